//! The long polls of agents, so that enqueueing a task can wake them.

use model::id::NodeId;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Notify;

/// One signal for each node with a waiting agent.
#[derive(Default)]
pub(crate) struct WaitingAgents(Mutex<HashMap<NodeId, Arc<Notify>>>);

impl WaitingAgents {
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

    /// Ends a wait. The signal is removed with the last one.
    pub fn leave(&self, node: &NodeId, own: &Arc<Notify>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Two references: the map's and the caller's. More: another call still waits.
        if Arc::strong_count(own) <= 2 {
            all.remove(node);
        }
    }
}
