//! Starting runs on any target, and what they hold while they last.
//!
//! A machine, a switch and a power shelf each name the run that works on them or has claimed them. A run on a rack claims every device
//! in its scope, all or none; its parts work under that claim. What ends lets go of what it held, in the commit that ends it.

use crate::{hosts, nodes};
use model::condition::{ConditionType, Evidence};
use model::effect::Facts;
use model::host::Host;
use model::id::{MachineId, ObjectId, RunId};
use model::lifecycle::{Lifecycle, NewRun, SubjectId, SubjectKind};
use model::machine::Machine;
use model::node::Node;
use model::plan::RunType;
use model::power_shelf::PowerShelf;
use model::refusal::Refusal;
use model::run::act::{Acted, Action, Who, act};
use model::run::{Run, apply_to_machine};
use model::switch::Switch;
use model::target::{TargetId, TargetKind};
use model::time::Timestamp;
use store::{Birth, NewEvent, Result, Tx};

/// Writes a run that was decided on, and claims what it holds. `own` is the record whose turn this is: it has named the run itself.
pub(crate) async fn start_run(
    tx: &mut Tx,
    new: NewRun,
    birth: Birth<'_>,
    own: Option<&SubjectId>,
    event: &NewEvent,
) -> Result<Run> {
    let mut run = new.run(event.at);
    // A part works under the claim of the whole.
    if run.spec.part_of.is_none() {
        hold(tx, &run, own, event).await?;
        // After everything that was done to it, whatever the clocks of other replicas said then.
        let newest = tx.newest_run_at(std::slice::from_ref(&run.spec.target)).await?;
        run.spec.created_at = event.at.max(newest + Timestamp::TICK);
    }
    tx.insert_run(&run, birth, event)?;
    Ok(run)
}

/// Claims what a run holds, all or nothing.
pub(crate) async fn hold(
    tx: &mut Tx,
    run: &Run,
    own: Option<&SubjectId>,
    event: &NewEvent,
) -> Result<()> {
    let mut targets = vec![run.spec.target.clone()];
    targets.extend(run.spec.claims.iter().cloned());
    targets.sort();
    for target in targets {
        if !own.is_some_and(|own| is_record_of(own, &target)) {
            name_holder(tx, &target, &run.spec.id, event).await?;
        }
    }
    Ok(())
}

/// Whether the record is the device itself. A host or a node is not its machine: it has no device of its own.
fn is_record_of(record: &SubjectId, target: &TargetId) -> bool {
    let kind = match record.kind {
        SubjectKind::Rack => Some(TargetKind::Rack),
        SubjectKind::Switch => Some(TargetKind::Switch),
        SubjectKind::PowerShelf => Some(TargetKind::PowerShelf),
        SubjectKind::Host | SubjectKind::Node | SubjectKind::Site => None,
    };
    kind == Some(target.kind) && record.id == target.id
}

/// Whether the whole that a run is a part of holds its device for it. The device stays locked until the transaction ends.
pub(crate) async fn is_held_by_whole(tx: &mut Tx, run: &Run) -> Result<bool> {
    let Some(whole) = &run.spec.part_of else { return Ok(false) };
    Ok(holder_of(tx, &run.spec.target).await?.as_ref() == Some(whole))
}

/// Who holds a device, which stays locked until the transaction ends.
async fn holder_of(tx: &mut Tx, target: &TargetId) -> Result<Option<RunId>> {
    Ok(lock(tx, target).await?.holder().cloned())
}

async fn name_holder(tx: &mut Tx, target: &TargetId, by: &RunId, event: &NewEvent) -> Result<()> {
    let event = NewEvent { message: format!("held by {by}"), ..event.clone() };
    match target.kind {
        TargetKind::Machine => {
            let id = MachineId::trusted(&target.id);
            let found = tx.machine_locked(&id).await?;
            let mut machine = found.ok_or_else(|| unknown(target))?;
            free_for(target, machine.active_run.as_ref(), by)?;
            if machine.active_run.as_ref() == Some(by) {
                return Ok(());
            }
            machine.active_run = Some(by.clone());
            if machine.is(ConditionType::OperationCanceled) {
                let reason = format!("Started:{by}");
                let seen = Evidence::new(ConditionType::OperationCanceled, false, reason);
                machine.learn(&[seen], event.at);
            }
            tx.update_machine(&mut machine, &event)
        }
        TargetKind::Switch => name_on_record::<Switch>(tx, target, by, &event).await,
        TargetKind::PowerShelf => name_on_record::<PowerShelf>(tx, target, by, &event).await,
        // Several may work in one rack; what they hold of it are their claims.
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
    tx.tell_record(&mut record, event)
}

fn free_for(target: &TargetId, holder: Option<&RunId>, by: &RunId) -> Result<()> {
    match holder {
        Some(holder) if holder != by => Err(target.held_by(holder).into()),
        Some(_) | None => Ok(()),
    }
}

pub(crate) fn unknown(target: &TargetId) -> Refusal {
    Refusal::not_found(target.kind.noun(), target, target.kind.list())
}

/// Asks a run to stop, canceled or frozen, as an operator would. One that has ended already is left as it is.
pub(crate) async fn halt_run(
    tx: &mut Tx,
    id: &RunId,
    action: Action,
    reason: &str,
    event: &NewEvent,
) -> Result<()> {
    let Some(held) = tx.held(id).await? else { return Ok(()) };
    let mut run = held.run;
    if run.ended() {
        return Ok(());
    }
    let who = Who { by: event.actor.clone(), reason: reason.into() };
    match act(&run, action, &who, event.at)? {
        Acted::Already => Ok(()),
        Acted::Told(progress, note)
        | Acted::Changed(progress, note)
        | Acted::Reopened(progress, note) => {
            run.progress = progress;
            run.version = tx.tell(&run, event.at)?.version;
            let event =
                NewEvent { message: note.said, decided_by: note.line.into(), ..event.clone() };
            tx.tell_run(&run, &event)
        }
    }
}

/// A device, read and locked before the run's own row: the same order everywhere, so that nobody waits in a ring.
pub(crate) enum Held {
    Nothing,
    Machine(Box<Machine>),
    Switch(Box<Switch>),
    PowerShelf(Box<PowerShelf>),
}

impl Held {
    fn holder(&self) -> Option<&RunId> {
        match self {
            Self::Nothing => None,
            Self::Machine(machine) => machine.active_run.as_ref(),
            Self::Switch(switch) => switch.head.active_run.as_ref(),
            Self::PowerShelf(shelf) => shelf.head.active_run.as_ref(),
        }
    }
}

async fn lock(tx: &mut Tx, target: &TargetId) -> Result<Held> {
    let id = target.id.as_str();
    let found = match target.kind {
        TargetKind::Machine => {
            let machine = tx.machine_locked(&MachineId::trusted(id)).await?;
            machine.map(|one| Held::Machine(Box::new(one)))
        }
        TargetKind::Switch => {
            tx.record_locked::<Switch>(id).await?.map(|one| Held::Switch(Box::new(one)))
        }
        TargetKind::PowerShelf => {
            tx.record_locked::<PowerShelf>(id).await?.map(|one| Held::PowerShelf(Box::new(one)))
        }
        // Nobody holds a rack as a whole.
        TargetKind::Rack => None,
    };
    Ok(found.unwrap_or(Held::Nothing))
}

/// What the commit of a run has locked: what it acts on, and what it lets go of with who holds that from then on.
pub(crate) struct Locked {
    target: Held,
    /// The node that it works on.
    node: Option<Box<Node>>,
    /// What is known of a machine's firmware, where that changes too.
    host: Option<Box<Host>>,
    claims: Vec<(Held, Option<RunId>)>,
}

/// What a commit of a run means for what it acts on.
pub(crate) struct Aftermath<'a> {
    pub run: &'a Run,
    pub evidence: &'a [Evidence],
    pub facts: Option<&'a Facts>,
    pub event: &'a NewEvent,
}

impl Aftermath<'_> {
    fn matters(&self) -> bool {
        self.run.ended() || !self.evidence.is_empty() || self.facts.is_some()
    }

    /// Reads and locks what the commit will change, always in the same order.
    pub async fn load(&self, tx: &mut Tx) -> Result<Locked> {
        let spec = &self.run.spec;
        let node = nodes::follow::lock(tx, self.run).await?;
        // A host comes before its machine, as in its own turn.
        let host = match (self.facts, spec.target.machine()) {
            // What MAAS says is the node's to know.
            (Some(_), Some(_)) if node.is_some() => None,
            (Some(_), Some(id)) => tx.record_locked::<Host>(id.as_str()).await?.map(Box::new),
            (Some(_), None) | (None, _) => None,
        };
        let target = match self.matters() {
            true => lock(tx, &spec.target).await?,
            false => Held::Nothing,
        };
        let mut claims = Vec::new();
        if self.run.ended() && !spec.claims.is_empty() {
            let mut targets = spec.claims.clone();
            targets.sort();
            for target in &targets {
                claims.push((target.key(), lock(tx, target).await?));
            }
            // A part that is still at work there holds its device by itself from now on.
            let mut at_work = tx.active_runs_on(&targets).await?;
            let with_next = |(key, held): (String, Held)| (held, at_work.remove(&key));
            let claims = claims.into_iter().map(with_next).collect();
            return Ok(Locked { target, node, host, claims });
        }
        Ok(Locked { target, node, host, claims: Vec::new() })
    }

    /// Writes what it means, and wakes who waits for the run.
    pub async fn write(&self, tx: &mut Tx, locked: Locked) -> Result<()> {
        let alone = locked.target.holder() == Some(&self.run.spec.id);
        match locked.target {
            Held::Nothing => {}
            Held::Machine(mut machine) => {
                if let (Some(facts), None) = (self.facts, &locked.node) {
                    let host = locked.host.map(|host| *host);
                    hosts::learn(tx, &machine.id, host, facts, self.event).await?;
                }
                let before = machine.clone();
                apply_to_machine(&mut machine, self.run, self.evidence, self.event.at);
                if machine != before {
                    tx.update_machine(&mut machine, self.event)?;
                }
            }
            Held::Switch(switch) => self.learn(tx, *switch)?,
            Held::PowerShelf(shelf) => self.learn(tx, *shelf)?,
        }
        if let Some(node) = locked.node {
            nodes::follow::write(tx, *node, self.run, self.facts, self.event)?;
        }
        for (held, next) in locked.claims {
            self.release(tx, held, next)?;
        }
        self.report(tx, alone)
    }

    fn learn<R: Lifecycle>(&self, tx: &mut Tx, mut record: R) -> Result<()> {
        let before = record.clone();
        if let Some(facts) = self.facts {
            record.learn(facts);
        }
        if self.run.ended() && record.head().active_run.as_ref() == Some(&self.run.spec.id) {
            record.head_mut().active_run = None;
        }
        if record == before { Ok(()) } else { tx.tell_record(&mut record, self.event) }
    }

    /// Lets go of a device that this run had claimed.
    fn release(&self, tx: &mut Tx, held: Held, next: Option<RunId>) -> Result<()> {
        let id = &self.run.spec.id;
        let event = NewEvent { message: format!("let go by {id}"), ..self.event.clone() };
        match held {
            Held::Nothing => Ok(()),
            Held::Machine(mut machine) if machine.active_run.as_ref() == Some(id) => {
                machine.active_run = next;
                tx.update_machine(&mut machine, &event)?;
                // It may wait for what will not come any more.
                let host = SubjectId::new(SubjectKind::Host, machine.id.as_str());
                tx.wake(&ObjectId::trusted(host.key()), event.at)
            }
            Held::Machine(_) => Ok(()),
            Held::Switch(switch) => release_record(tx, *switch, id, next, &event),
            Held::PowerShelf(shelf) => release_record(tx, *shelf, id, next, &event),
        }
    }

    /// Wakes the whole that this is a part of, and the lifecycle that waits for it. A run on a rack is followed step by step. `alone`:
    /// it held its device by itself.
    fn report(&self, tx: &mut Tx, alone: bool) -> Result<()> {
        let spec = &self.run.spec;
        let at = self.event.at;
        if self.run.ended()
            && let Some(whole) = &spec.part_of
        {
            tx.wake(&whole.object(), at)?;
        }
        // A machine's firmware has a lifecycle of its own, whoever has it upgraded.
        if self.run.ended() && spec.run_type == RunType::Firmware && spec.target.machine().is_some()
        {
            let host = SubjectId::new(SubjectKind::Host, spec.target.as_str());
            tx.wake(&ObjectId::trusted(host.key()), at)?;
        }
        // The whole tells of its parts; one that outlives it, or went on after it, tells of itself.
        let heard = spec.part_of.is_none() || alone;
        match &spec.reports_to {
            Some(subject)
                if (self.run.ended() && heard) || spec.target.kind == TargetKind::Rack =>
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
    tx.tell_record(&mut record, event)
}
