//! The state that the threads of the agent share: the current task, the node's health, the contact
//! with Farrier, and the end.

use super::journal::Contact;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

#[derive(Default)]
pub struct SharedState {
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Default)]
struct Inner {
    task: Option<String>,
    /// None before the first health check has ended.
    health: Option<Vec<String>>,
    /// The reason why the state directory cannot be written.
    unwritten: Option<String>,
    contact: Contact,
    woken: bool,
    over: bool,
}

impl SharedState {
    /// For a node whose current token is refused, for this reason.
    pub fn new(refused: String) -> Self {
        let contact = Contact { refused, ..Contact::default() };
        Self { inner: Mutex::new(Inner { contact, ..Inner::default() }), ..Self::default() }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set_task(&self, task: Option<&str>) {
        self.inner().task = task.map(str::to_owned);
    }

    pub fn task_ids(&self) -> Vec<String> {
        self.inner().task.iter().cloned().collect()
    }

    pub fn set_health(&self, problems: Vec<String>) {
        self.inner().health = Some(problems);
        self.changed.notify_all();
    }

    pub fn set_storage_problem(&self, problem: Option<String>) {
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
        let _ = self.changed.wait_timeout_while(inner, time, waits);
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
    pub fn wake_tasks(&self) {
        self.inner().woken = true;
        self.changed.notify_all();
    }

    /// Waits for this time, or until the end.
    pub fn pause(&self, time: Duration) {
        let inner = self.inner();
        let _ = self.changed.wait_timeout_while(inner, time, |inner| !inner.over);
    }

    /// Waits for this time, until the end, or until `wake_tasks`.
    pub fn pause_until_woken(&self, time: Duration) {
        let inner = self.inner();
        let waits = |inner: &mut Inner| !inner.over && !inner.woken;
        let (mut inner, _) = self
            .changed
            .wait_timeout_while(inner, time, waits)
            .unwrap_or_else(PoisonError::into_inner);
        inner.woken = false;
    }

    pub fn finish(&self) {
        self.inner().over = true;
        self.changed.notify_all();
    }

    pub fn has_ended(&self) -> bool {
        self.inner().over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_end_with_work_or_the_end() {
        let shared = SharedState::default();
        shared.wake_tasks();
        shared.pause_until_woken(Duration::from_secs(3_600));
        shared.finish();
        shared.pause(Duration::from_secs(3_600));
        shared.pause_until_woken(Duration::from_secs(3_600));
        shared.wait_for_health(Duration::from_secs(3_600));
        assert!(shared.has_ended());
    }

    #[test]
    fn nodes_are_unhealthy_before_the_first_check() {
        let shared = SharedState::default();
        assert_eq!(shared.problems().len(), 1);
        shared.set_health(Vec::new());
        assert!(shared.problems().is_empty());
        shared.set_storage_problem(Some("full".into()));
        assert_eq!(shared.problems(), ["full"]);
        shared.set_storage_problem(None);
        shared.set_health(vec!["hot".into()]);
        assert_eq!(shared.problems(), ["hot"]);
    }

    #[test]
    fn unchanged_contact_is_not_stored() {
        let shared = SharedState::default();
        assert!(shared.change_contact(|contact| contact.trouble = "away".into()));
        assert!(!shared.change_contact(|contact| contact.trouble = "away".into()));
        assert_eq!(shared.contact().trouble, "away");
    }
}
