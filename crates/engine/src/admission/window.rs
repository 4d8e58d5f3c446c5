//! The gates `window` and `freeze`: operations start only while their machines are open.
//!
//! They are asked in the transaction that creates the run, at the time of that transaction: one
//! that is repeated because the database was away is asked again.

use model::gate::Overrides;
use model::id::MachineId;
use model::lifecycle::SubjectKind;
use model::machine::Machine;
use model::run::Run;
use model::time::Timestamp;
use model::window::StartCheck;
use std::collections::BTreeSet;
use store::{Result, Tx};

/// The start of an operation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OperationStart {
    by_rollout: bool,
    now: Timestamp,
}

impl OperationStart {
    /// A start by a request.
    pub fn requested(now: Timestamp) -> Self {
        Self { by_rollout: false, now }
    }

    pub fn of(run: &Run, now: Timestamp) -> Self {
        let record = run.spec.reports_to.as_ref();
        Self { by_rollout: record.is_some_and(|one| one.kind == SubjectKind::Rollout), now }
    }

    /// Matches the machines that the operation takes against the windows and freezes. A machine
    /// that cannot be read is left out: nothing can be done with it.
    pub async fn check(self, tx: &mut Tx, machines: &BTreeSet<MachineId>) -> Result<StartCheck> {
        if machines.is_empty() {
            return Ok(StartCheck::default());
        }
        let rules = tx.start_rules_in_force(self.by_rollout, self.now).await?;
        if rules.is_empty() {
            return Ok(StartCheck::default());
        }
        let ids: Vec<&str> = machines.iter().map(MachineId::as_str).collect();
        let found = tx.machines_by_ids(&ids).await?.into_iter();
        let machines: Vec<_> = found.filter_map(|(_, machine)| machine.ok()).collect();
        Ok(StartCheck::new(&machines, &rules, self.by_rollout, self.now)?)
    }
}

/// Refuses the first run that a record starts on a machine, whether or not that run takes the
/// machine out of service: the ones that follow may.
pub(crate) async fn admit_start(
    tx: &mut Tx,
    run: &Run,
    machine: &Machine,
    now: Timestamp,
) -> Result<()> {
    let machines = BTreeSet::from([machine.id.clone()]);
    let found = OperationStart::of(run, now).check(tx, &machines).await?;
    let what = format!("{} of {}", run.spec.run_type.as_str(), machine.id);
    let refusal = found.refuse(&what, &Overrides::of_params(&run.spec.params));
    refusal.map_or(Ok(()), |refusal| Err(refusal.into()))
}
