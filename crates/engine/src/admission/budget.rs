//! The gate `budget`: no operation takes more machines out of service than the budgets allow.
//!
//! It is asked in the transaction that creates or continues the run, after the gates of its
//! devices. The memberships of the machines are locked, then the budgets, each in a fixed order;
//! only then is counted. So of two operations that are admitted at the same instant, the second
//! counts the first. What an operation takes is recorded in the same transaction, and given back by
//! the one in which the run ends. Child runs take nothing: their parent has. The gates `window` and
//! `freeze` are asked for the same machines, where an operation starts.

use super::window::OperationStart;
use crate::access::Caller;
use crate::power_shelf::load_power_loss;
use model::blast_radius::Impact;
use model::budget::{BudgetUse, MAX_NAMED, describe_uses, history_notes, losses, refuse};
use model::gate::Overrides;
use model::id::{BudgetId, MachineId, PowerShelfId, RackId};
use model::refusal::Refusal;
use model::run::Run;
use model::switch::Switch;
use model::target::TargetKind;
use model::time::Timestamp;
use std::collections::{BTreeMap, BTreeSet};
use store::{Result, Tx};

/// How budgets are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BudgetRead {
    /// To decide: the rows that decide are locked. A refusal names the machines that use a budget
    /// only to a caller that may see all machines.
    Decide { names: bool },
    /// For a dry run.
    Foresee,
}

/// A request that takes machines out of service.
pub(crate) struct MachinesTaken<'a> {
    /// The operation, or the key of the power shelf.
    pub taker: &'a str,
    /// What a refusal calls the request.
    pub what: &'a str,
    pub by: &'a str,
    pub machines: BTreeSet<MachineId>,
    pub overrides: &'a Overrides,
    pub caller: &'a Caller,
    /// None: it has started before.
    pub start: Option<OperationStart>,
}

impl MachinesTaken<'_> {
    /// Refuses the transaction outside of the windows, or if a budget would be exceeded; otherwise
    /// records what is taken. Returns the note about the override for the history; empty: there is
    /// nothing to say.
    pub async fn admit(&self, tx: &mut Tx) -> Result<String> {
        let started = match self.start {
            Some(start) => {
                let found = start.check(tx, &self.machines).await?;
                if let Some(refusal) = found.refuse(self.what, self.overrides) {
                    return Err(refusal.into());
                }
                found.history_notes(self.overrides, self.by)
            }
            None => String::new(),
        };
        let read = BudgetRead::Decide { names: !self.caller.sees_a_part() };
        let uses = load_budget_uses(tx, &self.machines, read).await?;
        if let Some(refusal) = refuse(self.what, &uses, self.overrides) {
            return Err(refusal.into());
        }
        if !self.machines.is_empty() {
            tx.take_machines(self.taker, &self.machines)?;
        }
        let notes = [history_notes(&uses, self.overrides, self.by), started];
        Ok(notes.into_iter().filter(|note| !note.is_empty()).collect::<Vec<_>>().join("; "))
    }
}

/// Admits what a run takes. `overrides` are those of the run, `starts_at` is none for a run that
/// goes on. A child run takes nothing of its own while its parent is active; the caller does not
/// ask for one.
pub(crate) async fn admit_taken_by(
    tx: &mut Tx,
    run: &Run,
    overrides: &Overrides,
    caller: &Caller,
    starts_at: Option<Timestamp>,
) -> Result<String> {
    let machines = load_taken_machines(tx, run).await?;
    let (id, what) = (run.spec.id.as_str(), title(run));
    let by = &run.spec.initiator;
    let start = starts_at.map(|now| OperationStart::of(run, now));
    MachinesTaken { taker: id, what: &what, by, machines, overrides, caller, start }.admit(tx).await
}

/// Records what a run takes without asking the budgets: a stop must always be possible.
pub(crate) async fn take_unasked(tx: &mut Tx, run: &Run) -> Result<()> {
    let machines = load_taken_machines(tx, run).await?;
    match machines.is_empty() {
        true => Ok(()),
        false => tx.take_machines(run.spec.id.as_str(), &machines),
    }
}

/// The refusal by windows, freezes or budgets of a run that a lifecycle would start, if there is
/// one.
pub(crate) async fn find_start_refusal(
    tx: &mut Tx,
    run: &Run,
    now: Timestamp,
) -> Result<Option<Refusal>> {
    let overrides = Overrides::of_params(&run.spec.params);
    let machines = load_taken_machines(tx, run).await?;
    let found = OperationStart::of(run, now).check(tx, &machines).await?;
    if let Some(refusal) = found.refuse(&title(run), &overrides) {
        return Ok(Some(refusal));
    }
    let uses = load_budget_uses(tx, &machines, BudgetRead::Decide { names: true }).await?;
    Ok(refuse(&title(run), &uses, &overrides))
}

/// For a dry run of a new run: the windows and freezes of its machines, from which budgets it would
/// take, and the refusals.
pub(crate) async fn foresee_budgets(
    tx: &mut Tx,
    run: &Run,
    overrides: &Overrides,
    now: Timestamp,
) -> Result<(Vec<String>, Vec<Refusal>)> {
    if run.spec.parent_run.is_some() || run.ended() {
        return Ok((Vec::new(), Vec::new()));
    }
    let machines = load_taken_machines(tx, run).await?;
    foresee_taken(tx, &title(run), &machines, overrides, OperationStart::of(run, now)).await
}

/// Like [`foresee_budgets`], for machines.
pub(crate) async fn foresee_taken(
    tx: &mut Tx,
    what: &str,
    machines: &BTreeSet<MachineId>,
    overrides: &Overrides,
    start: OperationStart,
) -> Result<(Vec<String>, Vec<Refusal>)> {
    let found = start.check(tx, machines).await?;
    let uses = load_budget_uses(tx, machines, BudgetRead::Foresee).await?;
    let mut said = found.describe(overrides);
    said.extend(describe_uses(&uses, overrides));
    let refusals = [found.refuse(what, overrides), refuse(what, &uses, overrides)];
    Ok((said, refusals.into_iter().flatten().collect()))
}

fn title(run: &Run) -> String {
    format!("{} of {}", run.spec.run_type.as_str(), run.spec.target)
}

/// The machines that a run takes out of service: its own, those of the racks whose switches it
/// takes, and those that lose power or the fabric with the shelves that it switches off.
async fn load_taken_machines(tx: &mut Tx, run: &Run) -> Result<BTreeSet<MachineId>> {
    let (mut machines, mut racks, mut shelves) =
        (BTreeSet::new(), BTreeSet::<RackId>::new(), Vec::new());
    for (target, impact) in losses(&run.spec) {
        match target.kind {
            TargetKind::Machine => machines.extend(target.machine()),
            TargetKind::Switch => {
                let switch = tx.record::<Switch>(target.as_str()).await?;
                racks.extend(switch.and_then(|switch| switch.head.rack));
            }
            TargetKind::PowerShelf if impact == Impact::PowerLoss => {
                shelves.push(PowerShelfId::trusted(target.as_str()));
            }
            // The firmware of a shelf restarts no machine; a run on a rack takes by its parts.
            TargetKind::PowerShelf | TargetKind::Rack => {}
        }
    }
    for rack in &racks {
        machines.extend(tx.machines_in_rack(rack).await?.into_iter().map(|(id, _)| id));
    }
    if !shelves.is_empty() {
        let loss = load_power_loss(tx, &shelves).await?;
        machines.extend(loss.machines.into_iter().chain(loss.fabric).map(|one| one.machine));
    }
    Ok(machines)
}

/// The budgets of which some of these machines are members and serve now. A machine that does not
/// serve takes nothing more.
async fn load_budget_uses(
    tx: &mut Tx,
    machines: &BTreeSet<MachineId>,
    read: BudgetRead,
) -> Result<Vec<BudgetUse>> {
    if machines.is_empty() {
        return Ok(Vec::new());
    }
    let members = match read {
        BudgetRead::Decide { .. } => tx.budget_members_locked(machines).await?,
        BudgetRead::Foresee => tx.budget_members(machines).await?,
    };
    let mut taken: BTreeMap<(BudgetId, String), u64> = BTreeMap::new();
    for member in members.into_iter().filter(|member| !member.unavailable) {
        *taken.entry((member.budget, member.domain)).or_default() += 1;
    }
    if taken.is_empty() {
        return Ok(Vec::new());
    }
    let ids: BTreeSet<BudgetId> = taken.keys().map(|(budget, _)| budget.clone()).collect();
    let ids: Vec<BudgetId> = ids.into_iter().collect();
    let budgets = match read {
        BudgetRead::Decide { .. } => tx.budgets_locked(&ids).await?,
        BudgetRead::Foresee => tx.budgets_by_ids(&ids).await?,
    };
    let domains = taken.keys().cloned().collect();
    let mut uses = Vec::with_capacity(taken.len());
    for count in tx.count_domains(&domains).await? {
        let Some(budget) = budgets.iter().find(|one| one.id == count.budget) else { continue };
        let takes = taken.get(&(count.budget, count.domain.clone())).copied().unwrap_or_default();
        let mut found = BudgetUse {
            budget: budget.clone(),
            domain: count.domain,
            total: count.total.try_into().unwrap_or_default(),
            unavailable: count.unavailable.try_into().unwrap_or_default(),
            takes,
            named: Vec::new(),
        };
        if found.is_exceeded() && read != (BudgetRead::Decide { names: false }) {
            let domain = (&found.budget.id, found.domain.as_str());
            found.named = tx.unavailable_members(domain, MAX_NAMED as i64).await?;
        }
        uses.push(found);
    }
    Ok(uses)
}
