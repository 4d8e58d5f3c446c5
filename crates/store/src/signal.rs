//! Signals: something was committed that somebody may be waiting for.
//!
//! A lost signal costs latency, never truth: whoever waits also looks by itself from time to time.
//! On PostgreSQL the signals of one process reach the others through LISTEN/NOTIFY.

use model::id::{ObjectId, RunId};
use tokio::sync::broadcast;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Signal {
    /// Something is due.
    Work,
    /// This object was written by somebody who does not hold it.
    Wake(ObjectId),
    /// There are new events.
    Event,
    /// There is more log of this run.
    Log(RunId),
}

/// How many signals a slow listener may be behind before it is told that it missed some.
const CAPACITY: usize = 8_192;

#[derive(Debug, Clone)]
pub struct Bus(broadcast::Sender<Signal>);

impl Default for Bus {
    fn default() -> Self {
        Self(broadcast::channel(CAPACITY).0)
    }
}

impl Bus {
    pub fn listen(&self) -> broadcast::Receiver<Signal> {
        self.0.subscribe()
    }

    /// True when nobody listens, and nobody ever will: only listeners of the bus hold it.
    pub(crate) fn is_deserted(&self) -> bool {
        self.0.receiver_count() == 0 && self.0.strong_count() <= 1
    }

    pub(crate) fn publish(&self, signals: impl IntoIterator<Item = Signal>) {
        for signal in signals {
            // Nobody listening is no error.
            let _ = self.0.send(signal);
        }
    }
}

impl Signal {
    pub(crate) fn to_wire(&self) -> String {
        match self {
            Self::Work => "work".into(),
            Self::Event => "event".into(),
            Self::Wake(id) => format!("wake {id}"),
            Self::Log(id) => format!("log {id}"),
        }
    }

    pub(crate) fn from_wire(text: &str) -> Option<Self> {
        match text.split_once(' ') {
            None if text == "work" => Some(Self::Work),
            None if text == "event" => Some(Self::Event),
            Some(("wake", id)) => Some(Self::Wake(ObjectId::trusted(id))),
            Some(("log", id)) => Some(Self::Log(RunId::trusted(id))),
            Some(_) | None => None,
        }
    }
}
