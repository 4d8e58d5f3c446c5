//! Disk writes: what the record of a machine says while its disk is written.
//!
//! The commit with the intent of an effect that writes the disk clears `Provisioned` and opens a
//! [`DiskWrite`], so a crash at any later point leaves a true record. The write stays open until an
//! answer observes the disk: the new system, or that there is none any more. If the provider proves
//! that nothing was written, the record gets back what was true before. A machine whose last write
//! is still open leaves maintenance, or is deleted, only with an override; one whose system was
//! removed leaves maintenance only with it.

use super::Machine;
use crate::condition::{Condition, ConditionObservation, ConditionType};
use crate::effect::EffectKey;
use crate::gate::{Gate, OR_REPEAT, Overrides};
use crate::refusal::{Reason, Refusal};
use crate::run::Run;
use crate::time::Timestamp;
use crate::why::install_command;
use serde::{Deserialize, Serialize};

/// A disk write that was intended and whose end was not observed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskWrite {
    /// The attempt that writes.
    pub key: EffectKey,
    /// The name of the image, or another description of the content.
    pub content: String,
    /// Part of the image that is written, as far as the provider reported it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent: Option<u8>,
    /// The operation has ended, and the outcome of its attempt is not known.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub outcome_unknown: bool,
    /// State before the write. None: the write was opened by a version that did not store it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Box<DiskBefore>>,
}

/// The record of a disk before a write was intended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskBefore {
    provisioned: Option<Condition>,
    /// The write that was open already.
    open: Option<DiskWrite>,
}

/// Report of a call about the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskReport {
    /// The device has begun to write; this much of it is done, in percent.
    Written(u8),
    /// Nothing was written under the key of the call, and nothing will be.
    Untouched,
}

impl DiskWrite {
    /// The write that the run has in progress: its current step writes the disk, and the intent of
    /// a call about it is in the same progress.
    pub fn of(run: &Run) -> Option<Self> {
        let step = run.progress.current()?;
        step.intent.as_ref().filter(|_| step.attempt_open)?;
        let content = run.effect(step)?.facts().disk?.to_string();
        Some(Self {
            key: run.key(step),
            content,
            percent: None,
            outcome_unknown: false,
            before: None,
        })
    }

    fn is_of(&self, run: &Run) -> bool {
        self.key.run() == run.spec.id.as_str()
    }

    /// True if the attempt that writes may still be at work, or its outcome is unknown.
    fn is_open_in(&self, run: &Run) -> bool {
        run.progress.steps.iter().any(|step| step.attempt_open && run.key(step) == self.key)
    }

    /// True if the device confirmed that it has begun to write.
    pub fn has_begun(&self) -> bool {
        self.percent.is_some_and(|percent| percent > 0)
    }

    /// "op-1 did not finish writing ubuntu-2204; it stopped at 60 %", as far as it is known. `to`
    /// names the disk, after a space, where the sentence does not.
    pub fn describe_end(&self, to: &str) -> String {
        let (run, content) = (self.key.run(), &self.content);
        let end = match self.outcome_unknown {
            true => format!("whether {run} finished writing {content}{to} is not known"),
            false => format!("{run} did not finish writing {content}{to}"),
        };
        match (self.percent, self.outcome_unknown) {
            (Some(percent), false) => format!("{end}; it stopped at {percent} %"),
            (Some(percent), true) => format!("{end}; the last progress seen was {percent} %"),
            (None, _) => format!("{end}; how far it came is not known"),
        }
    }

    /// The disk is certainly half written.
    pub fn is_half_written(&self) -> bool {
        self.has_begun() && !self.outcome_unknown
    }

    /// The reason why the machine is not provisioned.
    fn observation(&self, at_work: bool) -> ConditionObservation {
        let Self { content, percent, key, outcome_unknown, before: _ } = self;
        let run = key.run();
        let end = if *outcome_unknown { "OutcomeUnknown" } else { "Unfinished" };
        let reason = match (at_work, percent) {
            (true, _) => format!("Writing:{content}:{run}"),
            (false, Some(percent)) => format!("{end}:{content}:{percent}%:{run}"),
            (false, None) => format!("{end}:{content}:{run}"),
        };
        ConditionObservation::new(ConditionType::Provisioned, false, reason)
    }
}

impl Machine {
    /// Applies a commit of a run to the record of the disk. `evidence` is that of the answer that
    /// led to the commit, `report` what the call reported about the disk.
    pub fn record_disk_write(
        &mut self,
        run: &Run,
        evidence: &[ConditionObservation],
        report: Option<DiskReport>,
        now: Timestamp,
    ) {
        if evidence.iter().any(|one| one.condition == ConditionType::Provisioned) {
            self.open_disk_write = None;
        }
        if let Some(report) = report
            && let Some(open) = self.open_disk_write.take_if(|open| open.is_of(run))
        {
            self.apply_disk_report(open, report, run);
        }
        let next = DiskWrite::of(run);
        let known = self.open_disk_write.as_ref().map(|open| &open.key);
        if let Some(next) = next.filter(|next| known != Some(&next.key)) {
            // An earlier write is kept once: what was before that one is not needed any more.
            let open = self.open_disk_write.take().map(|open| DiskWrite { before: None, ..open });
            let provisioned = self.conditions.get(ConditionType::Provisioned).cloned();
            let before = Some(Box::new(DiskBefore { provisioned, open }));
            self.open_disk_write = Some(DiskWrite { before, ..next });
        }
        if let Some(open) = self.open_disk_write.as_mut().filter(|open| open.is_of(run)) {
            open.outcome_unknown = run.ended() && open.is_open_in(run);
            let observed = open.observation(!run.ended());
            self.learn(&[observed], now);
        }
    }

    /// Only an attempt that has ended and provably wrote nothing is forgotten.
    fn apply_disk_report(&mut self, open: DiskWrite, report: DiskReport, run: &Run) {
        self.open_disk_write = match report {
            DiskReport::Written(percent) => Some(DiskWrite { percent: Some(percent), ..open }),
            DiskReport::Untouched if open.has_begun() || open.is_open_in(run) => Some(open),
            DiskReport::Untouched => match open.before {
                Some(before) => {
                    self.conditions.restore(ConditionType::Provisioned, before.provisioned);
                    before.open
                }
                None => Some(open),
            },
        };
    }

    /// The gate `unfinished-disk` on the way into service: the disk has a whole system.
    pub(super) fn check_system(&self, what: &str, overrides: &Overrides) -> Result<(), Refusal> {
        self.check_disk(what, overrides)?;
        let Some(known) = self.removed_system() else { return Ok(()) };
        if overrides.passes(Gate::UnfinishedDisk) {
            return Ok(());
        }
        let (id, reason) = (&self.id, &known.reason);
        let message = format!(
            "{what} is refused: {id} has no system; it was removed, and Provisioned is false: {reason}"
        );
        let flags = overrides.flags_with(Gate::UnfinishedDisk);
        Err(Refusal::new(Reason::UnfinishedDisk, message)
            .at_gate(Gate::UnfinishedDisk)
            .next(format!("{}{OR_REPEAT}{flags}", install_command(id, None))))
    }

    /// The gate `unfinished-disk`: a half-written disk is not forgotten.
    pub(super) fn check_disk(&self, what: &str, overrides: &Overrides) -> Result<(), Refusal> {
        match &self.open_disk_write {
            Some(write) if !overrides.passes(Gate::UnfinishedDisk) => {
                let (id, run) = (&self.id, write.key.run());
                let end = write.describe_end(&format!(" to the disk of {id}"));
                let message = format!("{what} is refused: {end}");
                let flags = overrides.flags_with(Gate::UnfinishedDisk);
                // If the outcome is unknown, the device is asked before anything is repeated.
                let repair = if write.outcome_unknown { "resume" } else { "rerun" };
                Err(Refusal::new(Reason::UnfinishedDisk, message)
                    .at_gate(Gate::UnfinishedDisk)
                    .next(format!("farrier operation {repair} {run}{OR_REPEAT}{flags}")))
            }
            Some(_) | None => Ok(()),
        }
    }
}
