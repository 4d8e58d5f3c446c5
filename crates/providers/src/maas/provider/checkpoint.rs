//! The checkpoint of one provider call at MAAS. It is written before the request that it names.

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
    /// Started; repeating it is harmless.
    Begun,
    /// The same, after a request to create or delete a record or to abort or release.
    #[serde(rename = "asked")]
    Asked { at: Timestamp },
    /// The state before, and when MAAS was requested to commission.
    Commission {
        before: Upstream,
        #[serde(rename = "asked")]
        asked: Option<Timestamp>,
    },
    /// When MAAS was requested to install.
    Deploy {
        #[serde(rename = "asked")]
        asked: Option<Timestamp>,
    },
    Release {
        #[serde(rename = "letting")]
        letting: Letting,
    },
    Reinstall {
        round: u32,
        #[serde(rename = "leg")]
        leg: Leg,
    },
    Power {
        goal: PowerGoal,
        stage: PowerStage,
        #[serde(rename = "watched")]
        watched: Option<Timestamp>,
    },
    /// Stopped; nothing more is requested under this key.
    Stopped,
    /// Kept for a whole run: the state when the run first read the machine.
    #[serde(rename = "first_seen")]
    FirstSeen { before: Upstream },
}

/// The phase of one reinstall round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Leg {
    #[serde(rename = "letting")]
    Letting(Letting),
    /// When MAAS was requested to install.
    Installing {
        #[serde(rename = "asked")]
        asked: Option<Timestamp>,
    },
}

impl OrderCheckpoint {
    /// When MAAS got a request that cannot be recalled. A power sequence is completed instead.
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

/// The checkpoint of one effect key.
#[derive(Clone, Copy)]
pub(super) struct Notes<'a> {
    pub store: &'a dyn ProviderStateStore,
    pub key: &'a Key,
}

/// The result of a stop.
pub(super) enum Stopping {
    /// It never started and never will.
    Barred,
    Begun(OrderCheckpoint),
}

impl Notes<'_> {
    /// Writes the first checkpoint unless one exists; returns the one in force. Fails when stopped.
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

    /// `None` when nothing was started, or when it was stopped.
    pub async fn recall(&self) -> Result<Option<OrderCheckpoint>, Fault> {
        match self.store.recall(self.key).await? {
            None | Some(Checkpoint::Barred) => Ok(None),
            Some(Checkpoint::Begun(body)) => Ok(match self.read(body)? {
                OrderCheckpoint::Stopped => None,
                memo => Some(memo),
            }),
        }
    }

    /// Replaces the checkpoint. Fails when another worker has changed it: the caller must not act.
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

    /// Bars the key if nothing has started.
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

/// The checkpoint belongs to another kind of call.
pub(super) fn two_effects() -> Fault {
    Fault::new(Code::ProtocolBroken, "one key stands for two effects")
}
