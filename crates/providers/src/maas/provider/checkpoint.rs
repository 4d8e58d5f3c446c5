//! What is remembered of an order at MAAS, under its key. It is written before what it names is asked.

use super::letting::Letting;
use crate::power::{PowerGoal, PowerStage};
use crate::state_store::{Checkpoint, ProviderStateStore};
use model::effect::Key;
use model::fault::{Code, Fault};
use model::node::Upstream;
use model::time::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub(super) enum OrderCheckpoint {
    /// Begun, and harmless to be done again.
    Begun,
    /// The same, and MAAS was asked to make a record, to delete one, or to take back an installation.
    Asked {
        at: Timestamp,
    },
    /// As what MAAS had the machine before, and when it was asked to commission it.
    Commission {
        before: Upstream,
        asked: Option<Timestamp>,
    },
    /// When MAAS was asked to install.
    Deploy {
        asked: Option<Timestamp>,
    },
    Release {
        letting: Letting,
    },
    Reinstall {
        round: u32,
        leg: Leg,
    },
    Power {
        goal: PowerGoal,
        stage: PowerStage,
        watched: Option<Timestamp>,
    },
    /// Given up; nothing more is asked under its key.
    Stopped,
    /// Of a whole run: as what MAAS had the machine when the run first saw it.
    FirstSeen {
        before: Upstream,
    },
}

/// How far a round of installing anew is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Leg {
    Letting(Letting),
    /// When MAAS was asked to install.
    Installing {
        asked: Option<Timestamp>,
    },
}

impl OrderCheckpoint {
    /// When MAAS was asked for something that cannot be called back while it is on its way. A course of power is finished instead.
    pub fn asked(&self) -> Option<Timestamp> {
        let let_go = |letting: &Letting| match letting {
            Letting::Begun => None,
            Letting::Asked { at, .. } => Some(*at),
        };
        match self {
            Self::Asked { at } => Some(*at),
            Self::Commission { asked, .. } | Self::Deploy { asked } => *asked,
            Self::Release { letting } => let_go(letting),
            Self::Reinstall { leg: Leg::Letting(letting), .. } => let_go(letting),
            Self::Reinstall { leg: Leg::Installing { asked }, .. } => *asked,
            Self::Begun | Self::Power { .. } | Self::Stopped | Self::FirstSeen { .. } => None,
        }
    }
}

/// The notes of one key.
#[derive(Clone, Copy)]
pub(super) struct Notes<'a> {
    pub store: &'a dyn ProviderStateStore,
    pub key: &'a Key,
}

/// What a stop finds.
pub(super) enum Stopping {
    /// It never began, and never will.
    Barred,
    Begun(OrderCheckpoint),
}

impl Notes<'_> {
    /// Writes the first note, unless there is one. Answers what holds now. Whoever was stopped does not begin.
    pub async fn begin(&self, first: OrderCheckpoint) -> Result<OrderCheckpoint, Fault> {
        match self.store.begin(self.key, &Checkpoint::Begun(self.written(&first)?)).await? {
            None => Ok(first),
            Some(Checkpoint::Barred) => Err(self.barred()),
            Some(Checkpoint::Begun(body)) => match self.read(body)? {
                OrderCheckpoint::Stopped => Err(self.barred()),
                memo => Ok(memo),
            },
        }
    }

    /// What was begun; none when nothing was, or when it was stopped.
    pub async fn recall(&self) -> Result<Option<OrderCheckpoint>, Fault> {
        match self.store.recall(self.key).await? {
            None | Some(Checkpoint::Barred) => Ok(None),
            Some(Checkpoint::Begun(body)) => Ok(match self.read(body)? {
                OrderCheckpoint::Stopped => None,
                memo => Some(memo),
            }),
        }
    }

    /// Goes from one note to the next. Whoever finds another one than its own has slept, and must not act any more.
    pub async fn compare_and_swap(
        &self,
        before: &OrderCheckpoint,
        after: &OrderCheckpoint,
    ) -> Result<(), Fault> {
        if before == after {
            return Ok(());
        }
        let (old, new) = (self.written(before)?, self.written(after)?);
        match self.store.compare_and_swap(self.key, &old, &new).await? {
            true => Ok(()),
            false => {
                let said = format!("another worker has gone on with {}, or stopped it", self.key);
                Err(Fault::new(Code::AnswerLost, said))
            }
        }
    }

    /// Bars the key where nothing has begun.
    pub async fn stop(&self) -> Result<Stopping, Fault> {
        match self.store.begin(self.key, &Checkpoint::Barred).await? {
            None | Some(Checkpoint::Barred) => Ok(Stopping::Barred),
            Some(Checkpoint::Begun(body)) => Ok(match self.read(body)? {
                OrderCheckpoint::Stopped => Stopping::Barred,
                memo => Stopping::Begun(memo),
            }),
        }
    }

    fn written(&self, memo: &OrderCheckpoint) -> Result<Value, Fault> {
        let wrong =
            |error| Fault::new(Code::ProtocolBroken, format!("the note of {}: {error}", self.key));
        serde_json::to_value(memo).map_err(wrong)
    }

    fn read(&self, body: Value) -> Result<OrderCheckpoint, Fault> {
        let wrong = |error| {
            Fault::new(Code::RecordUnreadable, format!("the note of {}: {error}", self.key))
        };
        serde_json::from_value(body).map_err(wrong)
    }

    fn barred(&self) -> Fault {
        Fault::new(Code::EffectFailed, format!("{} was stopped before it began", self.key))
    }
}

/// A note that belongs to another kind of order.
pub(super) fn two_effects() -> Fault {
    Fault::new(Code::ProtocolBroken, "one key stands for two effects")
}
