//! A semaphore that grants permits by priority, then first come, first served.

use super::Priority;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

/// Clones share their permits.
#[derive(Clone)]
pub struct PrioritySemaphore(Arc<Mutex<Inner>>);

struct Inner {
    permits: usize,
    in_use: usize,
    /// One queue per priority.
    queues: [VecDeque<oneshot::Sender<Permit>>; 3],
}

/// One permit, returned on drop, also when it is on its way to a cancelled waiter.
pub struct Permit(PrioritySemaphore);

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.inner().in_use -= 1;
        self.0.grant_permits();
    }
}

impl PrioritySemaphore {
    pub fn new(places: usize) -> Self {
        let lines = [VecDeque::new(), VecDeque::new(), VecDeque::new()];
        Self(Arc::new(Mutex::new(Inner { permits: places, in_use: 0, queues: lines })))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a permit.
    pub async fn acquire(&self, priority: Priority) -> Permit {
        loop {
            let waiting = {
                let mut inner = self.inner();
                if inner.in_use < inner.permits && inner.queues.iter().all(VecDeque::is_empty) {
                    inner.in_use += 1;
                    return Permit(self.clone());
                }
                let (letter, arrives) = oneshot::channel();
                inner.queues[priority as usize].push_back(letter);
                arrives
            };
            // A permit may have been returned since the check.
            self.grant_permits();
            // The sender is dropped only with the semaphore, which `self` keeps alive.
            if let Ok(pass) = waiting.await {
                return pass;
            }
        }
    }

    /// Grants permits to the first waiters while there are any.
    fn grant_permits(&self) {
        loop {
            let next = {
                let mut inner = self.inner();
                if inner.in_use >= inner.permits {
                    return;
                }
                let Some(next) = inner.queues.iter_mut().find_map(VecDeque::pop_front) else {
                    return;
                };
                inner.in_use += 1;
                next
            };
            if let Err(pass) = next.send(Permit(self.clone())) {
                // The waiter was cancelled. Dropping the permit would recurse into this function.
                std::mem::forget(pass);
                self.inner().in_use -= 1;
            }
        }
    }

    /// A lower limit revokes no permit; it only delays new ones.
    pub fn resize(&self, places: usize) {
        self.inner().permits = places;
        self.grant_permits();
    }

    /// The number of waiters, including cancelled ones that are still queued.
    pub fn waiting(&self) -> usize {
        self.inner().queues.iter().map(VecDeque::len).sum()
    }

    /// The number of permits in use, and the limit.
    pub fn usage(&self) -> (usize, usize) {
        let inner = self.inner();
        (inner.in_use, inner.permits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Priority::{Operator, Polling, Safety};

    #[tokio::test]
    async fn permits_go_by_priority_then_by_arrival() {
        let gate = PrioritySemaphore::new(1);
        let inside = gate.acquire(Polling).await;
        let call = Arc::new(Mutex::new(Vec::new()));
        let mut waiting = Vec::new();
        for (n, priority) in [Polling, Operator, Safety, Operator, Safety].into_iter().enumerate() {
            let (gate, call) = (gate.clone(), Arc::clone(&call));
            waiting.push(tokio::spawn(async move {
                let _inside = gate.acquire(priority).await;
                call.lock().unwrap().push(n);
            }));
            tokio::task::yield_now().await;
        }
        assert_eq!(gate.waiting(), 5);
        drop(inside);
        for one in waiting {
            one.await.unwrap();
        }
        assert_eq!(*call.lock().unwrap(), [2, 4, 1, 3, 0]);
        assert_eq!((gate.waiting(), gate.usage()), (0, (0, 1)));
    }

    #[tokio::test]
    async fn cancelled_waiters_hold_no_permit() {
        let gate = PrioritySemaphore::new(1);
        let inside = gate.acquire(Operator).await;
        let mut waiting = Vec::new();
        for _ in 0..10 {
            let gate = gate.clone();
            waiting.push(tokio::spawn(async move { drop(gate.acquire(Operator).await) }));
        }
        tokio::task::yield_now().await;
        // Some are cancelled before they get a permit, some at that moment.
        waiting.iter().step_by(2).for_each(tokio::task::JoinHandle::abort);
        drop(inside);
        waiting.iter().skip(1).step_by(4).for_each(tokio::task::JoinHandle::abort);
        for one in waiting {
            let _ = one.await;
        }
        assert_eq!(gate.usage(), (0, 1));
        drop(gate.acquire(Polling).await);
    }

    #[tokio::test]
    async fn a_higher_limit_grants_more_permits() {
        let gate = PrioritySemaphore::new(1);
        let _first = gate.acquire(Operator).await;
        let waiting = tokio::spawn({
            let gate = gate.clone();
            async move { gate.acquire(Operator).await }
        });
        tokio::task::yield_now().await;
        gate.resize(2);
        let second = waiting.await.unwrap();
        gate.resize(1);
        assert_eq!(gate.usage(), (2, 1));
        drop(second);
        assert_eq!(gate.usage(), (1, 1));
    }
}
