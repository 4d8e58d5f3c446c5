//! The inventory of machines and their flags. Each change is one transaction with its event.

pub mod batch;
mod delete;
pub mod hardware;
mod inspection;
pub(crate) mod probe;

use crate::access::Caller;
use crate::admission::{event, lock_machine, missing_machine};
use crate::change::Expected;
use crate::topology::{
    DeviceLocation, DeviceMove, check_feeding_shelves, check_machine_location, check_may_move,
    mark_racks_changed, predict_racks,
};
use crate::{Change, Engine};
use model::access::Permission;
use model::condition::{ConditionObservation, ConditionType};
use model::gate::Overrides;
use model::here;
use model::id::MachineId;
use model::machine::admit::admit_flag;
use model::machine::{Labels, Machine, MachineSpec};
use model::order::Selection;
use model::refusal::{Reason, Refusal};
use model::run::actions::Requester;
use model::target::TargetId;
use model::time::Timestamp;
use model::version::check_version;
use std::sync::Arc;
use store::{Cause, MachinePage, NewEvent, Result, Tx};

/// Machines: inventory, probes, and live hardware queries.
#[derive(Clone)]
pub struct Machines(pub(crate) Engine);

impl Machines {
    /// Registers a machine. A known one gets the described spec and labels.
    pub async fn register(&self, machine: DescribedMachine, actor: String) -> Result<Machine> {
        let id = machine.id.clone();
        self.register_changed(id, Arc::new(move |_| Ok(machine.clone())), actor).await
    }

    /// Registers a machine, which the change makes from an empty one, or changes a known one.
    pub async fn register_changed(
        &self,
        id: Option<MachineId>,
        change: Change<Machine, DescribedMachine>,
        actor: String,
    ) -> Result<Machine> {
        let id = id.unwrap_or_else(|| MachineId::new(self.0.now(), self.0.random()));
        self.put(id, change, Expected::Any, actor).await
    }

    /// Changes the spec and labels of a known machine, at this version if one is named.
    pub async fn update(
        &self,
        id: MachineId,
        change: Change<Machine, DescribedMachine>,
        version: Option<i64>,
        actor: String,
    ) -> Result<Machine> {
        let (machine, by) = (id.clone(), actor.clone());
        let done = self.put(id, change, Expected::Known { version }, actor).await;
        self.0.trace_refusal(machine.as_str(), (&by, "update"), done).await
    }

    async fn put(
        &self,
        id: MachineId,
        change: Change<Machine, DescribedMachine>,
        expected: Expected,
        actor: String,
    ) -> Result<Machine> {
        let change = self.checked_change(change);
        let (caller, now) = (self.0.caller().clone(), self.0.now());
        let put = Put { id, change, expected, actor, caller, now };
        let written =
            self.0.store().retry_write("put_machine", put, |put, tx| Box::pin(put.run(tx)));
        let machine = written.await?;
        // A new or changed machine is probed soon.
        self.0.observer().poke(&machine.id);
        Ok(machine)
    }

    /// The change with a check of the provider. What is stored stays valid.
    fn checked_change(&self, change: Change<Machine, DescribedMachine>) -> MachineChange {
        let machines = self.clone();
        Arc::new(move |stored| {
            let DescribedMachine { spec, labels, .. } = change(stored)?;
            match spec.unwrap_or_else(|| stored.spec.clone()) {
                spec if spec == stored.spec && !spec.provider.is_empty() => Ok((spec, labels)),
                spec => Ok((machines.with_provider(spec)?, labels)),
            }
        })
    }

    pub(crate) fn with_provider(&self, mut spec: MachineSpec) -> Result<MachineSpec> {
        let providers = self.0.providers();
        if spec.provider.is_empty() {
            let default = providers.default_for(&spec);
            let default = default.ok_or_else(|| no_provider_named("machine"))?;
            spec.provider = default.to_string();
        }
        let Some(provider) = providers.get(&spec.provider) else {
            return Err(providers.refuse_unknown("machine.spec.provider", &spec.provider).into());
        };
        provider.check(&spec)?;
        Ok(spec)
    }

    /// Describes the reaction of the racks that these machines are registered in or moved between.
    /// The machines are the result of a dry run: the stored ones are as before.
    pub async fn predict_racks(&self, machines: Vec<Machine>) -> Result<Vec<String>> {
        let found = self.0.store().read(machines, |machines, tx| {
            Box::pin(async move {
                let mut moves = Vec::new();
                for machine in machines {
                    let before = tx.machine(&machine.id).await?;
                    let from = before.map_or(DeviceLocation::NOWHERE, |before| {
                        DeviceLocation::of_machine(&before.spec)
                    });
                    let to = DeviceLocation::of_machine(&machine.spec);
                    moves.push(DeviceMove { device: TargetId::from(&machine.id), from, to });
                }
                predict_racks(tx, &moves).await
            })
        });
        found.await
    }

    /// Sets or clears a condition on an administrator's request.
    pub async fn flag(&self, request: FlagRequest, who: Requester) -> Result<Machine> {
        let (id, by) = (request.id.clone(), who.by.clone());
        let what = format!("flag {}", request.condition.as_str());
        let flag = Flag { request, who, caller: self.0.caller().clone(), now: self.0.now() };
        let done = self
            .0
            .store()
            .retry_write("flag_machine", flag, |flag, tx| Box::pin(flag.run(tx)))
            .await;
        self.0.trace_refusal(id.as_str(), (&by, &what), done).await
    }

    pub async fn get(&self, id: &MachineId) -> Result<Machine> {
        match self.0.store().machine(id).await? {
            Some(machine) => {
                self.0.caller().check_machine(&machine, Permission::View)?;
                Ok(machine)
            }
            None => {
                let input = (id.clone(), self.0.now());
                let missing = self
                    .0
                    .store()
                    .scan(input, |(id, now), tx| Box::pin(missing_machine(tx, id, *now)));
                Err(missing.await?.into())
            }
        }
    }

    pub async fn list(
        &self,
        selection: impl Into<Selection>,
        after: Option<String>,
        limit: i64,
    ) -> Result<MachinePage> {
        let input = (self.0.caller().visible(selection), after, limit);
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

/// The provider of a machine or device without a BMC address cannot be guessed.
fn no_provider_named(kind: &str) -> Refusal {
    let problem = "is required without a bmc_endpoint";
    let instead = "name the provider, or give the address of the BMC";
    Refusal::invalid(&format!("{kind}.spec.provider"), problem, instead)
}

struct Put {
    id: MachineId,
    change: MachineChange,
    expected: Expected,
    actor: String,
    caller: Caller,
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
        match (tx.machine_locked(&self.id).await?, &self.expected) {
            (Some(machine), Expected::Any) => self.change(tx, machine).await,
            (Some(machine), Expected::Known { version }) => {
                check_machine_version(&machine, *version)?;
                self.change(tx, machine).await
            }
            (None, Expected::Any) => self.register(tx).await,
            (None, Expected::Known { .. }) => {
                Err(missing_machine(tx, &self.id, self.now).await?.into())
            }
        }
    }

    async fn change(&self, tx: &mut Tx, mut machine: Machine) -> Result<Machine> {
        let (spec, labels) = (self.change)(&machine)?;
        let described_anew = machine.spec != spec;
        let relabel = (&machine.labels, &labels);
        self.caller.grants().check_relabel(machine.id.as_str(), relabel, described_anew)?;
        if !described_anew && machine.labels == labels {
            return Ok(machine);
        }
        let from = DeviceLocation::of_machine(&machine.spec);
        let before = std::mem::replace(&mut machine.spec, spec);
        machine.labels = labels;
        let to = DeviceLocation::of_machine(&machine.spec);
        let holder = machine.active_run.as_ref();
        let target = TargetId::from(&machine.id);
        check_may_move(&target, holder, &from, &to)?;
        before.check_change(&machine.spec, &target, holder)?;
        self.check_place(tx, &before, &machine).await?;
        self.write_node_name(tx, &machine).await?;
        tx.update_machine(&mut machine, &self.event("spec or labels changed", here!()))?;
        if before.feeds != machine.spec.feeds {
            tx.write_feeds(&TargetId::from(&machine.id), &machine.spec.feeds)?;
        }
        let event = self.event(&format!("{} was moved", machine.id), here!());
        mark_racks_changed(tx, &from, &to, &event).await?;
        Ok(machine)
    }

    async fn register(&self, tx: &mut Tx) -> Result<Machine> {
        let id = self.id.clone();
        let empty = Machine::new(id, MachineSpec::default(), Labels::new(), self.now);
        let (spec, labels) = (self.change)(&empty)?;
        self.caller.grants().check_relabel(empty.id.as_str(), (&labels, &labels), true)?;
        // A deleted machine of the same id has a history that continues.
        let version = tx.last_version(self.id.as_str()).await? + 1;
        let machine = Machine { spec, labels, version, ..empty };
        self.check_place(tx, &MachineSpec::default(), &machine).await?;
        self.write_node_name(tx, &machine).await?;
        tx.insert_machine(&machine, &self.event("registered", here!()))?;
        if !machine.spec.feeds.is_empty() {
            tx.write_feeds(&TargetId::from(&machine.id), &machine.spec.feeds)?;
        }
        let event = self.event(&format!("{} was added", machine.id), here!());
        let to = DeviceLocation::of_machine(&machine.spec);
        mark_racks_changed(tx, &DeviceLocation::NOWHERE, &to, &event).await?;
        Ok(machine)
    }

    /// A name is checked where it differs from the index: what is stored stays valid.
    async fn write_node_name(&self, tx: &mut Tx, machine: &Machine) -> Result<()> {
        let name = machine.node_name();
        if name == tx.node_name_of(&machine.id).await? {
            return Ok(());
        }
        if let Some(name) = &name {
            machine.check_node_name(tx.machine_of_node_name(name).await?.as_ref())?;
        }
        tx.write_node_name(&machine.id, name.as_ref())
    }

    fn event(&self, message: &str, line: &str) -> NewEvent {
        event(Cause::Request, &self.actor, message.into(), line, self.now)
    }
}

/// A condition of a machine that an administrator sets or clears.
#[derive(Debug, Clone)]
pub struct FlagRequest {
    pub id: MachineId,
    pub condition: ConditionType,
    pub status: bool,
    pub overrides: Overrides,
}

struct Flag {
    request: FlagRequest,
    who: Requester,
    caller: Caller,
    now: Timestamp,
}

impl Flag {
    async fn run(&self, tx: &mut Tx) -> Result<Machine> {
        let FlagRequest { id, condition, status, overrides } = &self.request;
        let (condition, status, Requester { by, reason }) = (*condition, *status, &self.who);
        let mut machine = lock_machine(tx, id, self.now).await?;
        let clears_intervention = condition == ConditionType::NeedsIntervention && !status;
        let needed = if clears_intervention { Permission::Operate } else { Permission::Admin };
        self.caller.check_machine(&machine, needed)?;
        let before = machine.clone();
        if clears_intervention {
            machine.failed_changes.clear();
        }
        if !machine.is(condition) && !status && machine == before {
            let text = format!("{id} is not flagged {}", condition.as_str());
            return Err(Refusal::new(Reason::NotFlagged, text)
                .next(format!("farrier get {id}"))
                .into());
        }
        let mut note = String::new();
        if status && !machine.is(condition) {
            let node = tx.node_in_service(id).await?;
            let refusing = admit_flag(&machine, node.as_ref(), condition, overrides)?;
            note = overrides.history_note(by, &refusing);
        }
        let observed = ConditionObservation::new(condition, status, reason.clone());
        if machine.learn(&[observed], self.now) || machine != before {
            let what = if status { "set" } else { "cleared" };
            let message = format!("{} {what}: {reason}{note}", condition.as_str());
            let event = event(Cause::Admin, by, message, here!(), self.now);
            tx.update_machine(&mut machine, &event)?;
        }
        Ok(machine)
    }
}
