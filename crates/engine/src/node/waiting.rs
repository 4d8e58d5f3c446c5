//! The agents that wait for something to do, so that who puts it into the queue can poke them.

use model::id::NodeId;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Notify;

/// The agents that wait for work, by node.
#[derive(Default)]
pub(crate) struct Waiting(Mutex<HashMap<NodeId, Arc<Notify>>>);

impl Waiting {
    pub fn of(&self, node: &NodeId) -> Arc<Notify> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(all.entry(node.clone()).or_default())
    }

    pub fn poke(&self, node: &NodeId) {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(one) = all.get(node) {
            one.notify_one();
        }
    }

    /// Nobody waits there any more.
    pub fn leave(&self, node: &NodeId, own: &Arc<Notify>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // The map and the one who leaves hold it; anybody else still waits.
        if Arc::strong_count(own) <= 2 {
            all.remove(node);
        }
    }
}
