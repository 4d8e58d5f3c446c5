//! The checkpoint of one provider call at MAAS. It is written before the request that it names.

use super::release_decision::ReleaseProgress;
use crate::power::{PowerGoal, PowerStage};
use crate::state_store::{Checkpoint, ProviderStateStore};
use model::effect::EffectKey;
use model::fault::{Fault, FaultCode, Result};
use model::node::MaasState;
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
    Requested { at: Timestamp },
    /// The state before, and when MAAS was requested to commission.
    Commission {
        before: MaasState,
        #[serde(rename = "asked")]
        requested_at: Option<Timestamp>,
    },
    /// The time when MAAS was requested to install.
    Deploy {
        #[serde(rename = "asked")]
        requested_at: Option<Timestamp>,
    },
    Release {
        #[serde(rename = "letting")]
        progress: ReleaseProgress,
    },
    Reinstall {
        round: u32,
        #[serde(rename = "leg")]
        phase: ReinstallPhase,
    },
    Power {
        goal: PowerGoal,
        stage: PowerStage,
        #[serde(rename = "watched")]
        last_read_at: Option<Timestamp>,
    },
    /// Stopped; nothing more is requested under this key.
    Stopped,
    /// Kept for a whole run: the state when the run first read the machine.
    #[serde(rename = "first_seen")]
    FirstObserved { before: MaasState },
    /// Kept for a whole run: the time of the last hardware report when this deployment was first
    /// read as Deployed.
    FirstSync { last_sync: Option<String> },
}

/// The phase of one reinstall round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ReinstallPhase {
    #[serde(rename = "letting")]
    Releasing(ReleaseProgress),
    /// The time when MAAS was requested to install.
    Installing {
        #[serde(rename = "asked")]
        requested_at: Option<Timestamp>,
    },
}

impl OrderCheckpoint {
    /// The time when MAAS got a request that cannot be recalled. A power sequence is completed
    /// instead.
    pub fn requested_at(&self) -> Option<Timestamp> {
        let let_go = |letting: &ReleaseProgress| match letting {
            ReleaseProgress::Begun => None,
            ReleaseProgress::Requested { at, .. } => Some(*at),
        };
        match self {
            Self::Requested { at } => Some(*at),
            Self::Commission { requested_at: requested, .. }
            | Self::Deploy { requested_at: requested } => *requested,
            Self::Release { progress: letting } => let_go(letting),
            Self::Reinstall { phase: ReinstallPhase::Releasing(letting), .. } => let_go(letting),
            Self::Reinstall {
                phase: ReinstallPhase::Installing { requested_at: requested },
                ..
            } => *requested,
            Self::Begun
            | Self::Power { .. }
            | Self::Stopped
            | Self::FirstObserved { .. }
            | Self::FirstSync { .. } => None,
        }
    }
}

/// The checkpoint of one effect key.
#[derive(Clone, Copy)]
pub(super) struct CheckpointStore<'a> {
    pub store: &'a dyn ProviderStateStore,
    pub key: &'a EffectKey,
}

impl CheckpointStore<'_> {
    /// Writes the first checkpoint unless one exists; returns the one in force. Fails when stopped.
    pub async fn begin(&self, first: OrderCheckpoint) -> Result<OrderCheckpoint> {
        match self.store.begin(self.key, &Checkpoint::Begun(self.serialize(&first)?)).await? {
            None => Ok(first),
            Some(Checkpoint::StoppedBeforeStart) => Err(self.stopped_before_start()),
            Some(Checkpoint::Begun(body)) => {
                self.deserialize(body)?.ok_or_else(|| self.stopped_before_start())
            }
        }
    }

    /// `None` when nothing was started, or when it was stopped.
    pub async fn recall(&self) -> Result<Option<OrderCheckpoint>> {
        match self.store.checkpoint(self.key).await? {
            None | Some(Checkpoint::StoppedBeforeStart) => Ok(None),
            Some(Checkpoint::Begun(body)) => self.deserialize(body),
        }
    }

    /// Replaces the checkpoint. Fails when another worker has changed it: the caller must not act.
    pub async fn compare_and_swap(
        &self,
        before: &OrderCheckpoint,
        after: &OrderCheckpoint,
    ) -> Result<()> {
        if before == after {
            return Ok(());
        }
        let (old, new) = (self.serialize(before)?, self.serialize(after)?);
        match self.store.compare_and_swap(self.key, &old, &new).await? {
            true => Ok(()),
            false => {
                let message =
                    format!("another worker has gone on with {}, or stopped it", self.key);
                Err(Fault::new(FaultCode::AnswerLost, message))
            }
        }
    }

    /// Bars the key if nothing has started. `None`: it never started and never will.
    pub async fn stop(&self) -> Result<Option<OrderCheckpoint>> {
        match self.store.begin(self.key, &Checkpoint::StoppedBeforeStart).await? {
            None | Some(Checkpoint::StoppedBeforeStart) => Ok(None),
            Some(Checkpoint::Begun(body)) => self.deserialize(body),
        }
    }

    fn serialize(&self, checkpoint: &OrderCheckpoint) -> Result<Value> {
        let wrong = |error| {
            Fault::new(FaultCode::ProtocolBroken, format!("the note of {}: {error}", self.key))
        };
        serde_json::to_value(checkpoint).map_err(wrong)
    }

    /// `None` when it was stopped.
    fn deserialize(&self, body: Value) -> Result<Option<OrderCheckpoint>> {
        let wrong = |error| {
            Fault::new(FaultCode::RecordUnreadable, format!("the note of {}: {error}", self.key))
        };
        let checkpoint = serde_json::from_value(body).map_err(wrong)?;
        Ok((checkpoint != OrderCheckpoint::Stopped).then_some(checkpoint))
    }

    fn stopped_before_start(&self) -> Fault {
        Fault::new(FaultCode::EffectFailed, format!("{} was stopped before it began", self.key))
    }
}

/// The checkpoint belongs to another kind of call.
pub(super) fn checkpoint_mismatch() -> Fault {
    Fault::new(FaultCode::ProtocolBroken, "one key stands for two effects")
}
