//! The state that the threads of the agent share: the current task, the node's health, the contact
//! with Farrier, and the end.

use super::journal::Contact;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

#[derive(Default)]
pub struct Board {
    inner: Mutex<Inner>,
    moved: Condvar,
}

#[derive(Default)]
struct Inner {
    held: Option<String>,
    /// None before the first health check has ended.
    health: Option<Vec<String>>,
    /// Why the state directory cannot be written.
    unwritten: Option<String>,
    contact: Contact,
    rung: bool,
    over: bool,
}

impl Board {
    /// For a node whose current token is refused, for this reason.
    pub fn new(refused: String) -> Self {
        let contact = Contact { refused, ..Contact::default() };
        Self { inner: Mutex::new(Inner { contact, ..Inner::default() }), ..Self::default() }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn hold(&self, task: Option<&str>) {
        self.inner().held = task.map(str::to_owned);
    }

    pub fn held(&self) -> Vec<String> {
        self.inner().held.iter().cloned().collect()
    }

    pub fn looked(&self, problems: Vec<String>) {
        self.inner().health = Some(problems);
        self.moved.notify_all();
    }

    pub fn unwritten(&self, problem: Option<String>) {
        self.inner().unwritten = problem;
    }

    /// The node's problems. Before the first health check it counts as unhealthy.
    pub fn problems(&self) -> Vec<String> {
        let inner = self.inner();
        let mut problems = match &inner.health {
            Some(problems) => problems.clone(),
            None => vec!["the first look at the node's health has not ended".into()],
        };
        problems.extend(inner.unwritten.clone());
        problems
    }

    pub fn wait_for_health(&self, time: Duration) {
        let inner = self.inner();
        let waits = |inner: &mut Inner| inner.health.is_none() && !inner.over;
        let _ = self.moved.wait_timeout_while(inner, time, waits);
    }

    pub fn contact(&self) -> Contact {
        self.inner().contact.clone()
    }

    /// Changes the contact, and returns whether it differs.
    pub fn change_contact(&self, change: impl FnOnce(&mut Contact)) -> bool {
        let mut inner = self.inner();
        let before = inner.contact.clone();
        change(&mut inner.contact);
        inner.contact != before
    }

    /// Wakes the thread that asks for tasks.
    pub fn ring(&self) {
        self.inner().rung = true;
        self.moved.notify_all();
    }

    /// Waits for this time, or until the end.
    pub fn pause(&self, time: Duration) {
        let inner = self.inner();
        let _ = self.moved.wait_timeout_while(inner, time, |inner| !inner.over);
    }

    /// Waits for this time, until the end, or until `ring`.
    pub fn pause_for_ring(&self, time: Duration) {
        let inner = self.inner();
        let waits = |inner: &mut Inner| !inner.over && !inner.rung;
        let (mut inner, _) = self
            .moved
            .wait_timeout_while(inner, time, waits)
            .unwrap_or_else(PoisonError::into_inner);
        inner.rung = false;
    }

    pub fn end(&self) {
        self.inner().over = true;
        self.moved.notify_all();
    }

    pub fn over(&self) -> bool {
        self.inner().over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_waits_once_it_is_over_or_there_is_work() {
        let board = Board::default();
        board.ring();
        board.pause_for_ring(Duration::from_secs(3_600));
        board.end();
        board.pause(Duration::from_secs(3_600));
        board.pause_for_ring(Duration::from_secs(3_600));
        board.wait_for_health(Duration::from_secs(3_600));
        assert!(board.over());
    }

    #[test]
    fn a_node_is_well_only_when_somebody_has_looked() {
        let board = Board::default();
        assert_eq!(board.problems().len(), 1);
        board.looked(Vec::new());
        assert!(board.problems().is_empty());
        board.unwritten(Some("full".into()));
        assert_eq!(board.problems(), ["full"]);
        board.unwritten(None);
        board.looked(vec!["hot".into()]);
        assert_eq!(board.problems(), ["hot"]);
    }

    #[test]
    fn only_news_is_written_down() {
        let board = Board::default();
        assert!(board.change_contact(|contact| contact.trouble = "away".into()));
        assert!(!board.change_contact(|contact| contact.trouble = "away".into()));
        assert_eq!(board.contact().trouble, "away");
    }
}
