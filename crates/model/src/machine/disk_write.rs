//! Disk writes: what the record of a machine says while its disk is written.
//!
//! The commit with the intent of an effect that writes the disk clears `Provisioned` and opens a
//! [`DiskWrite`], so a crash at any later point leaves a true record. The write stays open until an
//! answer observes the disk: the new system, or that there is none any more. A machine whose last
//! write is still open leaves maintenance, or is deleted, only with an override.

use super::Machine;
use crate::condition::{ConditionObservation, ConditionType};
use crate::effect::EffectKey;
use crate::gate::{Gate, OR_REPEAT, Overrides};
use crate::refusal::{Reason, Refusal};
use crate::run::Run;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};

/// A disk write that was intended and whose end was not observed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskWrite {
    /// The attempt that writes.
    pub key: EffectKey,
    /// The name of the image, or another description of the content.
    pub content: String,
    /// How much is written, as far as the provider reported it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent: Option<u8>,
}

impl DiskWrite {
    /// The write that the run has in progress: its current step writes the disk, and the intent of
    /// a call about it is in the same progress.
    pub fn of(run: &Run) -> Option<Self> {
        let step = run.progress.current()?;
        step.intent.as_ref().filter(|_| step.attempt_open)?;
        let content = run.effect(step)?.facts().disk?.to_string();
        Some(Self { key: run.key(step), content, percent: None })
    }

    fn is_of(&self, run: &Run) -> bool {
        self.key.run() == run.spec.id.as_str()
    }

    /// "at 60 %", as far as it is known.
    pub fn progress(&self) -> String {
        match self.percent {
            Some(percent) => format!("at {percent} %"),
            None => "at an unknown percentage".into(),
        }
    }

    /// Why the machine is not provisioned.
    fn observation(&self, at_work: bool) -> ConditionObservation {
        let Self { content, percent, key } = self;
        let run = key.run();
        let reason = match (at_work, percent) {
            (true, _) => format!("Writing:{content}:{run}"),
            (false, Some(percent)) => format!("Unfinished:{content}:{percent}%:{run}"),
            (false, None) => format!("Unfinished:{content}:{run}"),
        };
        ConditionObservation::new(ConditionType::Provisioned, false, reason)
    }
}

impl Machine {
    /// Applies a commit of a run to the record of the disk. `evidence` is that of the answer that
    /// led to the commit, `percent` how much the call reported as written.
    pub fn record_disk_write(
        &mut self,
        run: &Run,
        evidence: &[ConditionObservation],
        percent: Option<u8>,
        now: Timestamp,
    ) {
        if evidence.iter().any(|one| one.condition == ConditionType::Provisioned) {
            self.open_disk_write = None;
        }
        let mut before = self.open_disk_write.take();
        if let Some(known) = before.as_mut().filter(|known| known.is_of(run)) {
            known.percent = percent.or(known.percent);
        }
        self.open_disk_write = match (before, DiskWrite::of(run)) {
            (Some(before), Some(next)) if before.key == next.key => Some(before),
            (_, Some(next)) => Some(next),
            (before, None) => before,
        };
        if let Some(open) = self.open_disk_write.as_ref().filter(|open| open.is_of(run)) {
            let observed = open.observation(!run.ended());
            self.learn(&[observed], now);
        }
    }

    /// The gate `unfinished-disk`: a half-written disk does not go into service.
    pub(super) fn check_disk(&self, what: &str, overrides: &Overrides) -> Result<(), Refusal> {
        match &self.open_disk_write {
            Some(write) if !overrides.passes(Gate::UnfinishedDisk) => {
                let (id, run) = (&self.id, write.key.run());
                let message = format!(
                    "{what} is refused: {run} did not finish writing {} to the disk of {id}; it stopped {}",
                    write.content,
                    write.progress()
                );
                let flags = overrides.flags_with(Gate::UnfinishedDisk);
                Err(Refusal::new(Reason::UnfinishedDisk, message)
                    .at_gate(Gate::UnfinishedDisk)
                    .next(format!("farrier operation rerun {run}{OR_REPEAT}{flags}")))
            }
            Some(_) | None => Ok(()),
        }
    }
}
