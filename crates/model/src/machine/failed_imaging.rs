//! Failed imaging: what the record of a machine says after an operation that was to install a
//! system has failed.
//!
//! A later success of any other operation clears `NeedsIntervention`, and the machine may go back
//! into service without the system that was asked for. So the failure stays on the record until
//! another installation succeeds, or an operator clears it with `NeedsIntervention`.

use super::Machine;
use crate::id::RunId;
use crate::run::{Run, RunPhase};
use crate::time::Timestamp;
use crate::why::writes_disk;
use serde::{Deserialize, Serialize};

/// An installation that failed, and was not followed by one that succeeded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedImaging {
    pub run: RunId,
    /// The end of that operation.
    pub since: Timestamp,
}

impl FailedImaging {
    /// A sentence about the machine, which it calls "it".
    pub fn describe(&self) -> String {
        format!("its last reimage {} failed", self.run)
    }
}

impl Machine {
    /// Records the end of a run that was to write the disk. A node reports the failures of its
    /// own runs.
    pub fn record_imaging(&mut self, run: &Run) {
        let ended = run.progress.finished_at.filter(|_| run.ended() && writes_disk(run));
        let Some(since) = ended else { return };
        match run.phase() {
            RunPhase::Failed if !run.works_on_node() => {
                self.failed_imaging = Some(FailedImaging { run: run.spec.id.clone(), since });
            }
            RunPhase::Succeeded => self.failed_imaging = None,
            // It had failed, and an operator gave it up.
            RunPhase::Canceled => {
                self.failed_imaging.take_if(|failed| failed.run == run.spec.id);
            }
            RunPhase::Failed | RunPhase::Pending | RunPhase::Running => {}
        }
    }
}
