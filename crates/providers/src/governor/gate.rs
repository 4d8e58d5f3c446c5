//! A semaphore that grants permits by priority, then first come, first served.

use super::Priority;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

/// Clones share their permits.
#[derive(Clone)]
pub struct Gate(Arc<Mutex<Inner>>);

struct Inner {
    places: usize,
    inside: usize,
    /// One queue per priority.
    lines: [VecDeque<oneshot::Sender<Pass>>; 3],
}

/// One permit, returned on drop, also when it is on its way to a cancelled waiter.
pub struct Pass(Gate);

impl Drop for Pass {
    fn drop(&mut self) {
        self.0.inner().inside -= 1;
        self.0.let_in();
    }
}

impl Gate {
    pub fn new(places: usize) -> Self {
        let lines = [VecDeque::new(), VecDeque::new(), VecDeque::new()];
        Self(Arc::new(Mutex::new(Inner { places, inside: 0, lines })))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a permit.
    pub async fn pass(&self, priority: Priority) -> Pass {
        loop {
            let waiting = {
                let mut inner = self.inner();
                if inner.inside < inner.places && inner.lines.iter().all(VecDeque::is_empty) {
                    inner.inside += 1;
                    return Pass(self.clone());
                }
                let (letter, arrives) = oneshot::channel();
                inner.lines[priority as usize].push_back(letter);
                arrives
            };
            // A permit may have been returned since the check.
            self.let_in();
            // The sender is dropped only with the semaphore, which `self` keeps alive.
            if let Ok(pass) = waiting.await {
                return pass;
            }
        }
    }

    /// Grants permits to the first waiters while there are any.
    fn let_in(&self) {
        loop {
            let next = {
                let mut inner = self.inner();
                if inner.inside >= inner.places {
                    return;
                }
                let Some(next) = inner.lines.iter_mut().find_map(VecDeque::pop_front) else {
                    return;
                };
                inner.inside += 1;
                next
            };
            if let Err(pass) = next.send(Pass(self.clone())) {
                // The waiter was cancelled. Dropping the permit would recurse into this function.
                std::mem::forget(pass);
                self.inner().inside -= 1;
            }
        }
    }

    /// A lower limit revokes no permit; it only delays new ones.
    pub fn resize(&self, places: usize) {
        self.inner().places = places;
        self.let_in();
    }

    /// The number of waiters, including cancelled ones that are still queued.
    pub fn waiting(&self) -> usize {
        self.inner().lines.iter().map(VecDeque::len).sum()
    }

    /// The number of permits in use, and the limit.
    pub fn use_now(&self) -> (usize, usize) {
        let inner = self.inner();
        (inner.inside, inner.places)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Priority::{Operator, Polling, Safety};

    #[tokio::test]
    async fn the_more_important_come_first_and_then_the_earlier() {
        let gate = Gate::new(1);
        let inside = gate.pass(Polling).await;
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut waiting = Vec::new();
        for (n, priority) in [Polling, Operator, Safety, Operator, Safety].into_iter().enumerate() {
            let (gate, order) = (gate.clone(), Arc::clone(&order));
            waiting.push(tokio::spawn(async move {
                let _inside = gate.pass(priority).await;
                order.lock().unwrap().push(n);
            }));
            tokio::task::yield_now().await;
        }
        assert_eq!(gate.waiting(), 5);
        drop(inside);
        for one in waiting {
            one.await.unwrap();
        }
        assert_eq!(*order.lock().unwrap(), [2, 4, 1, 3, 0]);
        assert_eq!((gate.waiting(), gate.use_now()), (0, (0, 1)));
    }

    #[tokio::test]
    async fn who_goes_away_leaves_no_place_taken() {
        let gate = Gate::new(1);
        let inside = gate.pass(Operator).await;
        let mut waiting = Vec::new();
        for _ in 0..10 {
            let gate = gate.clone();
            waiting.push(tokio::spawn(async move { drop(gate.pass(Operator).await) }));
        }
        tokio::task::yield_now().await;
        // Some are cancelled before they get a permit, some at that moment.
        waiting.iter().step_by(2).for_each(tokio::task::JoinHandle::abort);
        drop(inside);
        waiting.iter().skip(1).step_by(4).for_each(tokio::task::JoinHandle::abort);
        for one in waiting {
            let _ = one.await;
        }
        assert_eq!(gate.use_now(), (0, 1));
        drop(gate.pass(Polling).await);
    }

    #[tokio::test]
    async fn a_wider_gate_lets_more_in() {
        let gate = Gate::new(1);
        let _first = gate.pass(Operator).await;
        let waiting = tokio::spawn({
            let gate = gate.clone();
            async move { gate.pass(Operator).await }
        });
        tokio::task::yield_now().await;
        gate.resize(2);
        let second = waiting.await.unwrap();
        gate.resize(1);
        assert_eq!(gate.use_now(), (2, 1));
        drop(second);
        assert_eq!(gate.use_now(), (1, 1));
    }
}
