//! The hold of a run on a device. A claim is something else: a worker has it on a run.
//!
//! A machine, a switch and a power shelf each name the run that holds them. A run on a rack holds
//! every device in its scope, all or none; its child runs work under that hold. The commit that
//! ends a run releases its devices.

mod lost_run;

pub(crate) use lost_run::release_lost_run;

use crate::admission::{lock_machine, missing_machine};
use crate::{host, node};
use model::condition::{ConditionObservation, ConditionType};
use model::effect::DeviceFacts;
use model::firmware::AppliedFirmware;
use model::host::Host;
use model::id::{MachineId, ObjectId, RackId, RunId};
use model::lifecycle::{Lifecycle, SubjectId, SubjectKind};
use model::machine::{DiskReport, DiskWrite, Machine};
use model::node::Node;
use model::plan::RunType;
use model::power_shelf::PowerShelf;
use model::rack::Rack;
use model::refusal::Refusal;
use model::run::actions::{Action, ActionResult, Requester, apply_action};
use model::run::{Run, apply_to_machine};
use model::switch::Switch;
use model::target::{TargetId, TargetKind};
use model::time::Timestamp;
use std::collections::BTreeSet;
use store::{NewEvent, Result, StoreError, Tx};

/// Takes the target and the other held devices of a run, all or none.
pub(crate) async fn hold_devices(
    tx: &mut Tx,
    run: &Run,
    own: Option<&SubjectId>,
    event: &NewEvent,
) -> Result<()> {
    let mut targets = vec![run.spec.target.clone()];
    targets.extend(run.spec.held_targets.iter().cloned());
    targets.sort();
    for target in targets {
        if !own.is_some_and(|own| is_record_of(own, &target)) {
            name_holder(tx, &target, &run.spec.id, event).await?;
        }
    }
    Ok(())
}

/// True if the record is the device itself. Hosts and nodes are not: their device is a machine.
fn is_record_of(record: &SubjectId, target: &TargetId) -> bool {
    let kind = match record.kind {
        SubjectKind::Rack => Some(TargetKind::Rack),
        SubjectKind::Switch => Some(TargetKind::Switch),
        SubjectKind::PowerShelf => Some(TargetKind::PowerShelf),
        SubjectKind::Host | SubjectKind::Node | SubjectKind::Site | SubjectKind::Rollout => None,
    };
    kind == Some(target.kind) && record.id == target.id
}

/// True if the parent of a child run holds its device for it. The device stays locked until the
/// transaction ends.
pub(crate) async fn is_held_by_parent(tx: &mut Tx, run: &Run) -> Result<bool> {
    let Some(parent) = &run.spec.parent_run else { return Ok(false) };
    Ok(holder_of(tx, &run.spec.target).await?.as_ref() == Some(parent))
}

/// The run that holds a device, which stays locked until the transaction ends.
async fn holder_of(tx: &mut Tx, target: &TargetId) -> Result<Option<RunId>> {
    Ok(lock(tx, target).await?.holder().cloned())
}

async fn name_holder(tx: &mut Tx, target: &TargetId, by: &RunId, event: &NewEvent) -> Result<()> {
    let event = NewEvent { message: format!("held by {by}"), ..event.clone() };
    match target.kind {
        TargetKind::Machine => {
            let id = MachineId::trusted(&target.id);
            let mut machine = lock_machine(tx, &id, event.at).await?;
            free_for(target, machine.active_run.as_ref(), by)?;
            if machine.active_run.as_ref() == Some(by) {
                return Ok(());
            }
            machine.active_run = Some(by.clone());
            if machine.is(ConditionType::OperationCanceled) {
                let reason = format!("Started:{by}");
                let observed =
                    ConditionObservation::new(ConditionType::OperationCanceled, false, reason);
                machine.learn(&[observed], event.at);
            }
            tx.update_machine(&mut machine, &event)
        }
        TargetKind::Switch => name_on_record::<Switch>(tx, target, by, &event).await,
        TargetKind::PowerShelf => name_on_record::<PowerShelf>(tx, target, by, &event).await,
        // Several runs may work in one rack; each holds its devices, not the rack.
        TargetKind::Rack => Ok(()),
    }
}

async fn name_on_record<R: Lifecycle>(
    tx: &mut Tx,
    target: &TargetId,
    by: &RunId,
    event: &NewEvent,
) -> Result<()> {
    let found = tx.record_locked::<R>(&target.id).await?;
    let mut record = found.ok_or_else(|| unknown(target))?;
    free_for(target, record.head().active_run.as_ref(), by)?;
    if record.head().active_run.as_ref() == Some(by) {
        return Ok(());
    }
    record.head_mut().active_run = Some(by.clone());
    tx.update_and_enqueue(&mut record, event)
}

fn free_for(target: &TargetId, holder: Option<&RunId>, by: &RunId) -> Result<()> {
    match holder {
        Some(holder) if holder != by => Err(target.refuse_held(holder).into()),
        Some(_) | None => Ok(()),
    }
}

/// The refusal for a target that does not exist. Of a machine it says whether it was deleted.
pub(crate) async fn missing_target(
    tx: &mut Tx,
    target: &TargetId,
    now: Timestamp,
) -> Result<Refusal> {
    match target.machine() {
        Some(id) => missing_machine(tx, &id, now).await,
        None => Ok(unknown(target)),
    }
}

pub(crate) fn unknown(target: &TargetId) -> Refusal {
    Refusal::not_found(target.kind.noun(), target, target.kind.list_command())
}

/// Requests that a run stops, canceled or frozen, as an operator would. No effect on an ended run.
pub(crate) async fn halt_run(
    tx: &mut Tx,
    id: &RunId,
    action: Action,
    reason: &str,
    event: &NewEvent,
) -> Result<()> {
    let Some(claimed) = tx.run_with_claim(id).await? else { return Ok(()) };
    let mut run = claimed.run;
    if run.ended() {
        return Ok(());
    }
    let who = Requester { by: event.actor.clone(), reason: reason.into() };
    match apply_action(&run, action, &who, event.at)? {
        ActionResult::Unchanged => Ok(()),
        ActionResult::Recorded(progress, note)
        | ActionResult::Changed(progress, note)
        | ActionResult::Reopened(progress, note) => {
            run.progress = progress;
            run.version = tx.update_unclaimed(&run, event.at)?.version;
            let event = NewEvent {
                message: note.message,
                decided_by: note.code_line.into(),
                ..event.clone()
            };
            tx.append_run_event(&run, &event)
        }
    }
}

/// A device, locked before the run's own row: the same lock order everywhere, so no deadlock.
pub(crate) enum LockedTarget {
    Nothing,
    Machine(Box<Machine>),
    Switch(Box<Switch>),
    PowerShelf(Box<PowerShelf>),
}

impl LockedTarget {
    fn holder(&self) -> Option<&RunId> {
        match self {
            Self::Nothing => None,
            Self::Machine(machine) => machine.active_run.as_ref(),
            Self::Switch(switch) => switch.head.active_run.as_ref(),
            Self::PowerShelf(shelf) => shelf.head.active_run.as_ref(),
        }
    }

    fn rack(&self) -> Option<&RackId> {
        match self {
            Self::Nothing => None,
            Self::Machine(machine) => machine.spec.rack.as_ref(),
            Self::Switch(switch) => switch.head.rack.as_ref(),
            Self::PowerShelf(shelf) => shelf.head.rack.as_ref(),
        }
    }
}

/// Wakes the racks that wait for the release of a device.
pub(crate) async fn wake_waiting_racks(
    tx: &mut Tx,
    racks: BTreeSet<RackId>,
    at: Timestamp,
) -> Result<()> {
    for id in racks {
        let rack = match tx.record::<Rack>(id.as_str()).await {
            // The run ends all the same.
            Err(StoreError::Corrupt(_)) => None,
            found => found?,
        };
        if rack.is_some_and(|rack| rack.waits_for_release()) {
            tx.wake(&ObjectId::trusted(SubjectId::new(SubjectKind::Rack, id.as_str()).key()), at)?;
        }
    }
    Ok(())
}

async fn lock(tx: &mut Tx, target: &TargetId) -> Result<LockedTarget> {
    let id = target.id.as_str();
    let found = match target.kind {
        TargetKind::Machine => {
            let machine = tx.machine_locked(&MachineId::trusted(id)).await?;
            machine.map(|one| LockedTarget::Machine(Box::new(one)))
        }
        TargetKind::Switch => {
            tx.record_locked::<Switch>(id).await?.map(|one| LockedTarget::Switch(Box::new(one)))
        }
        TargetKind::PowerShelf => tx
            .record_locked::<PowerShelf>(id)
            .await?
            .map(|one| LockedTarget::PowerShelf(Box::new(one))),
        // A rack has no holder.
        TargetKind::Rack => None,
    };
    Ok(found.unwrap_or(LockedTarget::Nothing))
}

/// The rows that the commit of a run has locked. Each held device comes with the run
/// that holds it afterwards.
pub(crate) struct LockedTargets {
    target: LockedTarget,
    node: Option<Box<Node>>,
    /// The active nodes whose machines the intended call takes down.
    taken_down: Vec<Node>,
    /// Set when the run has read facts of a machine that is not a node.
    host: Option<Box<Host>>,
    claims: Vec<(LockedTarget, Option<RunId>)>,
}

/// The changes that a commit of a run makes to its devices.
pub(crate) struct TargetUpdate<'a> {
    pub run: &'a Run,
    pub evidence: &'a [ConditionObservation],
    pub facts: Option<&'a DeviceFacts>,
    /// The report of the last call about the disk.
    pub disk_report: Option<DiskReport>,
    /// The firmware that the commit has installed on the target.
    pub firmware: Option<&'a AppliedFirmware>,
    pub event: &'a NewEvent,
}

impl TargetUpdate<'_> {
    fn matters(&self) -> bool {
        self.run.ended()
            || !self.evidence.is_empty()
            || self.facts.is_some()
            || self.disk_report.is_some()
            || DiskWrite::of(self.run).is_some()
    }

    /// Reads and locks the rows that the commit changes, always in the same order.
    pub async fn load(&self, tx: &mut Tx) -> Result<LockedTargets> {
        let spec = &self.run.spec;
        let node = node::run_update::lock(tx, self.run).await?;
        let taken_down = node::run_update::lock_taken_down(tx, self.run).await?;
        // Lock order: the host before its machine, as in the host's own turn.
        let host = match (self.facts, spec.target.machine()) {
            // Facts from MAAS belong to the node.
            (Some(_), Some(_)) if node.is_some() => None,
            (Some(_), Some(id)) => tx.record_locked::<Host>(id.as_str()).await?.map(Box::new),
            (Some(_), None) | (None, _) => None,
        };
        let target = match self.matters() {
            true => lock(tx, &spec.target).await?,
            false => LockedTarget::Nothing,
        };
        let mut claims = Vec::new();
        if self.run.ended() && !spec.held_targets.is_empty() {
            let mut targets = spec.held_targets.clone();
            targets.sort();
            for target in &targets {
                claims.push((target.key(), lock(tx, target).await?));
            }
            // A child run that is still active holds its device itself from now on.
            let mut at_work = tx.active_runs_on(&targets).await?;
            let with_next =
                |(key, claimed): (String, LockedTarget)| (claimed, at_work.remove(&key));
            let claims = claims.into_iter().map(with_next).collect();
            return Ok(LockedTargets { target, node, taken_down, host, claims });
        }
        Ok(LockedTargets { target, node, taken_down, host, claims: Vec::new() })
    }

    /// Writes the changes and wakes the objects that wait for the run.
    pub async fn write(&self, tx: &mut Tx, locked: LockedTargets) -> Result<()> {
        let alone = locked.target.holder() == Some(&self.run.spec.id);
        let racks = self.racks_of_released(&locked);
        match locked.target {
            LockedTarget::Nothing => {}
            LockedTarget::Machine(mut machine) => {
                if let (Some(facts), None) = (self.facts, &locked.node) {
                    let known = locked.host.map(|host| *host);
                    host::learn(tx, &machine.id, known, facts, self.event).await?;
                }
                let before = machine.clone();
                let (evidence, at) = (self.evidence, self.event.at);
                apply_to_machine(&mut machine, self.run, evidence, at);
                machine.record_disk_write(self.run, evidence, self.disk_report, at);
                machine.record_network_boot(self.run);
                machine.record_change(self.run);
                match self.firmware.and_then(AppliedFirmware::describe_change) {
                    Some(message) => {
                        let event = NewEvent { message, ..self.event.clone() };
                        tx.update_machine(&mut machine, &event)?;
                    }
                    None if machine != before => tx.update_machine(&mut machine, self.event)?,
                    None => {}
                }
            }
            LockedTarget::Switch(switch) => self.learn(tx, *switch)?,
            LockedTarget::PowerShelf(shelf) => self.learn(tx, *shelf)?,
        }
        for node in &locked.taken_down {
            node::run_update::write_taken_down(tx, node, self.run, self.event)?;
        }
        if let Some(node) = locked.node {
            node::run_update::write(tx, *node, self.run, self.facts, self.event)?;
        }
        for (claimed, next) in locked.claims {
            self.release(tx, claimed, next)?;
        }
        wake_waiting_racks(tx, racks, self.event.at).await?;
        self.report(tx, alone)
    }

    /// The racks of the devices that this commit releases. A run on a rack wakes its own rack.
    fn racks_of_released(&self, locked: &LockedTargets) -> BTreeSet<RackId> {
        let run = &self.run.spec;
        if !self.run.ended() || run.target.kind == TargetKind::Rack {
            return BTreeSet::new();
        }
        let held = std::iter::once(&locked.target).chain(locked.claims.iter().map(|(one, _)| one));
        let released = held.filter(|one| one.holder() == Some(&run.id));
        released.filter_map(LockedTarget::rack).cloned().collect()
    }

    fn learn<R: Lifecycle>(&self, tx: &mut Tx, mut record: R) -> Result<()> {
        let before = record.clone();
        if let Some(facts) = self.facts {
            record.merge_facts(facts);
        }
        if self.run.ended() && record.head().active_run.as_ref() == Some(&self.run.spec.id) {
            record.head_mut().active_run = None;
        }
        if record == before { Ok(()) } else { tx.update_and_enqueue(&mut record, self.event) }
    }

    /// Releases a device that this run held.
    fn release(&self, tx: &mut Tx, locked: LockedTarget, next: Option<RunId>) -> Result<()> {
        let id = &self.run.spec.id;
        let event = NewEvent { message: format!("released by {id}"), ..self.event.clone() };
        match locked {
            LockedTarget::Nothing => Ok(()),
            LockedTarget::Machine(mut machine) if machine.active_run.as_ref() == Some(id) => {
                machine.active_run = next;
                tx.update_machine(&mut machine, &event)?;
                // The host may wait for a child run that will not be started.
                let host = SubjectId::new(SubjectKind::Host, machine.id.as_str());
                tx.wake(&ObjectId::trusted(host.key()), event.at)
            }
            LockedTarget::Machine(_) => Ok(()),
            LockedTarget::Switch(switch) => release_record(tx, *switch, id, next, &event),
            LockedTarget::PowerShelf(shelf) => release_record(tx, *shelf, id, next, &event),
        }
    }

    /// Wakes the parent run and the lifecycle that waits for this run. A run on a rack wakes its
    /// lifecycle after each step. `alone`: the run itself held its device, not its parent.
    fn report(&self, tx: &mut Tx, alone: bool) -> Result<()> {
        let spec = &self.run.spec;
        let at = self.event.at;
        if self.run.ended()
            && let Some(parent) = &spec.parent_run
        {
            tx.wake(&parent.object(), at)?;
        }
        // The host has its own lifecycle, independent of the run that upgrades it.
        if self.run.ended() && spec.run_type == RunType::Firmware && spec.target.machine().is_some()
        {
            let host = SubjectId::new(SubjectKind::Host, spec.target.as_str());
            tx.wake(&ObjectId::trusted(host.key()), at)?;
        }
        // A child run reports through its parent, unless the parent has ended.
        let reports = spec.parent_run.is_none() || alone;
        match &spec.reports_to {
            Some(subject)
                if (self.run.ended() && reports) || spec.target.kind == TargetKind::Rack =>
            {
                tx.wake(&ObjectId::trusted(subject.key()), at)
            }
            Some(_) | None => Ok(()),
        }
    }
}

fn release_record<R: Lifecycle>(
    tx: &mut Tx,
    mut record: R,
    by: &RunId,
    next: Option<RunId>,
    event: &NewEvent,
) -> Result<()> {
    if record.head().active_run.as_ref() != Some(by) {
        return Ok(());
    }
    record.head_mut().active_run = next;
    tx.update_and_enqueue(&mut record, event)
}
