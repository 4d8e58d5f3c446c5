//! Signals: hints that a commit may concern a waiting task.
//!
//! A lost signal costs latency, never work, because every waiter also polls. On PostgreSQL the
//! signals of one process reach the others through LISTEN/NOTIFY.

use model::id::{ObjectId, RunId};
use tokio::sync::broadcast;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Signal {
    /// An object is due.
    Work,
    /// A request changed this object without a claim on it.
    Wake(ObjectId),
    /// New events exist.
    Event,
    /// The log of this run has grown or ended.
    Log(RunId),
    /// Tokens, roles or role bindings have changed.
    Access,
}

/// The number of signals that a slow receiver may lag behind before it misses some.
const CAPACITY: usize = 8_192;

#[derive(Debug, Clone)]
pub struct SignalBus(broadcast::Sender<Signal>);

impl Default for SignalBus {
    fn default() -> Self {
        Self(broadcast::channel(CAPACITY).0)
    }
}

impl SignalBus {
    pub fn listen(&self) -> broadcast::Receiver<Signal> {
        self.0.subscribe()
    }

    /// True if no receiver exists and the caller holds the last clone of the bus.
    pub(crate) fn is_unused(&self) -> bool {
        self.0.receiver_count() == 0 && self.0.strong_count() <= 1
    }

    pub(crate) fn publish(&self, signals: impl IntoIterator<Item = Signal>) {
        for signal in signals {
            // Fails only without receivers.
            let _ = self.0.send(signal);
        }
    }
}

impl Signal {
    pub(crate) fn to_wire(&self) -> String {
        match self {
            Self::Work => "work".into(),
            Self::Event => "event".into(),
            Self::Access => "access".into(),
            Self::Wake(id) => format!("wake {id}"),
            Self::Log(id) => format!("log {id}"),
        }
    }

    pub(crate) fn from_wire(text: &str) -> Option<Self> {
        match text.split_once(' ') {
            None if text == "work" => Some(Self::Work),
            None if text == "event" => Some(Self::Event),
            None if text == "access" => Some(Self::Access),
            Some(("wake", id)) => Some(Self::Wake(ObjectId::trusted(id))),
            Some(("log", id)) => Some(Self::Log(RunId::trusted(id))),
            Some(_) | None => None,
        }
    }
}
