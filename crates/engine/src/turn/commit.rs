//! The transaction that writes one decision about a claimed run.

use crate::holds::TargetUpdate;
use model::firmware::AppliedFirmware;
use model::machine::DiskReport;
use model::run::{Decision, Run};
use model::time::Timestamp;
use store::{Cause, ClaimOutcome, NewEvent, NewLog, Result, RunSettlement, Tx};

/// Writes state, history, event, queue row, log, and the effects on the target's record.
pub(super) struct DecisionCommit {
    pub decision: Decision,
    /// The firmware that the ended step has installed on its device.
    pub applied_firmware: Option<AppliedFirmware>,
    /// The state of the disk that the provider reported with its answer.
    pub disk_report: Option<DiskReport>,
    pub epoch: i64,
    pub wakes: i64,
    pub hold: ClaimOutcome,
    pub lines: Vec<NewLog>,
    pub now: Timestamp,
}

impl DecisionCommit {
    pub async fn run(&self, tx: &mut Tx) -> Result<i64> {
        let Decision { run, notes, evidence, facts, .. } = &self.decision;
        let text: Vec<&str> = notes.iter().map(|note| note.message.as_str()).collect();
        let line: Vec<&str> = notes.iter().map(|note| note.code_line).collect();
        let event = NewEvent {
            cause: Cause::Engine,
            actor: "engine".into(),
            message: text.join("; "),
            decided_by: line.join(", "),
            at: self.now,
        };
        // Lock order everywhere: the target before the run, so that no two transactions deadlock.
        let (facts, disk_report) = (facts.as_ref(), self.disk_report);
        let firmware = self.applied_firmware.as_ref();
        let update = TargetUpdate { run, evidence, facts, disk_report, firmware, event: &event };
        let locked = update.load(tx).await?;
        let settle = RunSettlement {
            run: run.clone(),
            epoch: self.epoch,
            wakes_handled: self.wakes,
            claim: self.hold,
            now: self.now,
        };
        let version = tx.settle(&settle)?.version;
        let run = Run { version, ..run.clone() };
        tx.append_run_event(&run, &event)?;
        let update = TargetUpdate { run: &run, ..update };
        update.write(tx, locked).await?;
        if let Some(applied) = &self.applied_firmware {
            tx.insert_applied(applied)?;
        }
        tx.append_log(&run.spec.id, &self.lines)?;
        Ok(version)
    }
}
