//! The transaction that writes one decision about a claimed run.

use crate::claims::Aftermath;
use model::firmware::Applied;
use model::run::{Decision, Run};
use model::time::Timestamp;
use store::{Cause, Hold, NewEvent, NewLog, Result, Settle, Tx};

/// Writes state, history, event, queue row, log, and the effects on the target's record.
pub(super) struct Commit {
    pub decision: Decision,
    /// The firmware that the ended step has installed on its device.
    pub applied: Option<Applied>,
    pub epoch: i64,
    pub wakes: i64,
    pub hold: Hold,
    pub lines: Vec<NewLog>,
    pub now: Timestamp,
}

impl Commit {
    pub async fn run(&self, tx: &mut Tx) -> Result<i64> {
        let Decision { run, notes, evidence, facts, .. } = &self.decision;
        let said: Vec<&str> = notes.iter().map(|note| note.said.as_str()).collect();
        let line: Vec<&str> = notes.iter().map(|note| note.line).collect();
        let event = NewEvent {
            cause: Cause::Engine,
            actor: "engine".into(),
            message: said.join("; "),
            decided_by: line.join(", "),
            at: self.now,
        };
        // Lock order everywhere: the target before the run, so that no two transactions deadlock.
        let facts = facts.as_ref();
        let locked = Aftermath { run, evidence, facts, event: &event }.load(tx).await?;
        let settle = Settle {
            run: run.clone(),
            epoch: self.epoch,
            wakes: self.wakes,
            hold: self.hold,
            now: self.now,
        };
        let version = tx.settle(&settle)?.version;
        let run = Run { version, ..run.clone() };
        tx.append_run_event(&run, &event)?;
        Aftermath { run: &run, evidence, facts, event: &event }.write(tx, locked).await?;
        if let Some(applied) = &self.applied {
            tx.insert_applied(applied)?;
        }
        tx.append_log(&run.spec.id, &self.lines)?;
        Ok(version)
    }
}
