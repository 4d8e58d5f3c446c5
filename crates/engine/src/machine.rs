//! The inventory of machines and their flags. Each change is one transaction with its event.

mod delete;
pub mod hardware;
mod inspection;
pub(crate) mod probe;

use crate::admission::{event, no_machine};
use crate::topology::{
    DeviceLocation, check_feeding_shelves, check_machine_location, check_may_move,
    mark_racks_changed,
};
use crate::{Change, Engine};
use model::condition::{ConditionObservation, ConditionType};
use model::here;
use model::id::MachineId;
use model::machine::{Labels, Machine, MachineSpec};
use model::order::Selection;
use model::refusal::{Reason, Refusal};
use model::run::actions::Requester;
use model::target::TargetId;
use model::time::Timestamp;
use model::version::check_version;
use std::sync::Arc;
use store::{Cause, MachinePage, Result, Tx};

/// Machines: inventory, probes, and live hardware queries.
#[derive(Clone)]
pub struct Machines(pub(crate) Engine);

impl Machines {
    /// Registers a machine, or updates the spec and labels of a known one.
    pub async fn register(&self, machine: DescribedMachine, actor: String) -> Result<Machine> {
        let id = machine.id.unwrap_or_else(|| MachineId::new(self.0.now(), self.0.random()));
        let (is_given, labels) = (machine.spec.is_some(), machine.labels);
        let spec = Box::new(self.with_provider(machine.spec.unwrap_or_default())?);
        self.put(id, Desired::Registered { spec, is_given, labels }, actor).await
    }

    /// Changes the spec and labels of a known machine, at this version if one is named.
    pub async fn update(
        &self,
        id: MachineId,
        change: Change<Machine, DescribedMachine>,
        version: Option<i64>,
        actor: String,
    ) -> Result<Machine> {
        let machines = self.clone();
        let change: MachineChange = Arc::new(move |stored| {
            let DescribedMachine { spec, labels, .. } = change(stored)?;
            let spec = spec.map(|spec| machines.with_provider(spec)).transpose()?;
            Ok((spec.unwrap_or_else(|| stored.spec.clone()), labels))
        });
        self.put(id, Desired::Changed { change, version }, actor).await
    }

    async fn put(&self, id: MachineId, desired: Desired, actor: String) -> Result<Machine> {
        let put = Put { id, desired, actor, now: self.0.now() };
        let written =
            self.0.store().retry_write("put_machine", put, |put, tx| Box::pin(put.run(tx)));
        let machine = written.await?;
        // A new or changed machine is probed soon.
        self.0.observer().poke(&machine.id);
        Ok(machine)
    }

    pub(crate) fn with_provider(&self, mut spec: MachineSpec) -> Result<MachineSpec> {
        let names = self.0.providers().names();
        if spec.provider.is_empty()
            && let Some(default) = self.0.providers().default_name()
        {
            spec.provider = default.to_string();
        }
        let Some(provider) = self.0.providers().get(&spec.provider) else {
            let problem = format!("{:?} is not a provider of this server", spec.provider);
            let instead = format!("use one of: {}", names.join(", "));
            return Err(Refusal::invalid("machine.spec.provider", problem, instead).into());
        };
        provider.check(&spec)?;
        Ok(spec)
    }

    /// Sets or clears a condition on an administrator's request.
    pub async fn flag(
        &self,
        id: MachineId,
        condition: ConditionType,
        status: bool,
        who: Requester,
    ) -> Result<Machine> {
        let flag = Flag { id, condition, status, who, now: self.0.now() };
        self.0.store().retry_write("flag_machine", flag, |flag, tx| Box::pin(flag.run(tx))).await
    }

    pub async fn get(&self, id: &MachineId) -> Result<Machine> {
        match self.0.store().machine(id).await? {
            Some(machine) => Ok(machine),
            None => {
                let deleted = self.deleted(id.as_str()).await?;
                Err(deleted.unwrap_or_else(|| no_machine(id)).into())
            }
        }
    }

    pub async fn list(
        &self,
        selection: impl Into<Selection>,
        after: Option<String>,
        limit: i64,
    ) -> Result<MachinePage> {
        let input = (selection.into(), after, limit);
        let found = self.0.store().scan_one(input, |(selection, after, limit), tx| {
            Box::pin(tx.selected_machines(selection, after.as_deref(), *limit))
        });
        let page = found.await?;
        self.0.store().unreadable().record(&page.unreadable);
        Ok(page)
    }
}

/// The desired spec and labels of a machine.
#[derive(Debug, Clone, Default)]
pub struct DescribedMachine {
    /// None: Farrier generates one.
    pub id: Option<MachineId>,
    /// None: unchanged.
    pub spec: Option<MachineSpec>,
    pub labels: Labels,
}

/// Makes the desired spec and labels from the stored machine.
type MachineChange = Arc<dyn Fn(&Machine) -> Result<(MachineSpec, Labels)> + Send + Sync>;

enum Desired {
    /// The machine may be new. A known machine keeps its spec if none is given.
    Registered { spec: Box<MachineSpec>, is_given: bool, labels: Labels },
    /// The machine exists, at this version if one is given.
    Changed { change: MachineChange, version: Option<i64> },
}

impl Desired {
    /// The spec and labels that a known machine gets.
    fn of_known(&self, machine: &Machine) -> Result<(MachineSpec, Labels)> {
        match self {
            Self::Registered { spec, is_given, labels } => {
                let spec = if *is_given { spec.as_ref() } else { &machine.spec };
                Ok((spec.clone(), labels.clone()))
            }
            Self::Changed { change, version } => {
                check_machine_version(machine, *version)?;
                change(machine)
            }
        }
    }
}

struct Put {
    id: MachineId,
    desired: Desired,
    actor: String,
    now: Timestamp,
}

fn check_machine_version(machine: &Machine, expected: Option<i64>) -> Result<()> {
    let next = TargetId::from(&machine.id).show_command();
    Ok(check_version(&machine.id, machine.version, expected, next)?)
}

impl Put {
    /// Checks rack, slots and feeds where they have changed: what is stored stays valid although
    /// other devices have moved.
    async fn check_place(
        &self,
        tx: &mut Tx,
        before: &MachineSpec,
        machine: &Machine,
    ) -> Result<()> {
        let spec = &machine.spec;
        let moved = (&before.rack, before.slot) != (&spec.rack, spec.slot);
        if moved || before.height_u != spec.height_u {
            check_machine_location(tx, machine).await?;
        }
        if before.rack != spec.rack || before.feeds != spec.feeds {
            check_feeding_shelves(tx, "machine.spec", spec.rack.as_ref(), &spec.feeds).await?;
        }
        Ok(())
    }

    async fn run(&self, tx: &mut Tx) -> Result<Machine> {
        let event = |message: &str, line| {
            event(Cause::Request, &self.actor, message.into(), line, self.now)
        };
        match (tx.machine_locked(&self.id).await?, &self.desired) {
            (Some(mut machine), desired) => {
                let (spec, labels) = desired.of_known(&machine)?;
                if machine.spec != spec || machine.labels != labels {
                    let from = DeviceLocation::of_machine(&machine.spec);
                    let before = std::mem::replace(&mut machine.spec, spec);
                    machine.labels = labels;
                    let to = DeviceLocation::of_machine(&machine.spec);
                    let holder = machine.active_run.as_ref();
                    check_may_move(&TargetId::from(&machine.id), holder, &from, &to)?;
                    self.check_place(tx, &before, &machine).await?;
                    tx.update_machine(&mut machine, &event("spec or labels changed", here!()))?;
                    if before.feeds != machine.spec.feeds {
                        tx.write_feeds(&TargetId::from(&machine.id), &machine.spec.feeds)?;
                    }
                    let event = event(&format!("{} was moved", machine.id), here!());
                    mark_racks_changed(tx, &from, &to, &event).await?;
                }
                Ok(machine)
            }
            (None, Desired::Registered { spec, labels, .. }) => {
                let (id, spec) = (self.id.clone(), spec.as_ref().clone());
                let mut machine = Machine::new(id, spec, labels.clone(), self.now);
                // A deleted machine of the same id has a history that continues.
                machine.version = tx.last_version(self.id.as_str()).await? + 1;
                self.check_place(tx, &MachineSpec::default(), &machine).await?;
                tx.insert_machine(&machine, &event("registered", here!()))?;
                if !machine.spec.feeds.is_empty() {
                    tx.write_feeds(&TargetId::from(&machine.id), &machine.spec.feeds)?;
                }
                let event = event(&format!("{} was added", machine.id), here!());
                mark_racks_changed(
                    tx,
                    &DeviceLocation::NOWHERE,
                    &DeviceLocation::of_machine(&machine.spec),
                    &event,
                )
                .await?;
                Ok(machine)
            }
            (None, Desired::Changed { .. }) => Err(no_machine(&self.id).into()),
        }
    }
}

struct Flag {
    id: MachineId,
    condition: ConditionType,
    status: bool,
    who: Requester,
    now: Timestamp,
}

impl Flag {
    async fn run(&self, tx: &mut Tx) -> Result<Machine> {
        let found = tx.machine_locked(&self.id).await?;
        let mut machine = found.ok_or_else(|| no_machine(&self.id))?;
        if machine.is(self.condition) == self.status && !self.status {
            let text = format!("{} is not flagged {}", self.id, self.condition.as_str());
            return Err(Refusal::new(Reason::NotFlagged, text)
                .next(format!("farrier get {}", self.id))
                .into());
        }
        let observed =
            ConditionObservation::new(self.condition, self.status, self.who.reason.clone());
        if machine.learn(&[observed], self.now) {
            let what = if self.status { "set" } else { "cleared" };
            let message = format!("{} {what}: {}", self.condition.as_str(), self.who.reason);
            let event = event(Cause::Admin, &self.who.by, message, here!(), self.now);
            tx.update_machine(&mut machine, &event)?;
        }
        Ok(machine)
    }
}
