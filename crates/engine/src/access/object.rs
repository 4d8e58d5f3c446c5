//! The rights of a caller on single objects. What decides is the object's labels: of a machine, a
//! switch and a power shelf their own, of a run and a node those of their machine.

use super::Caller;
use crate::Engine;
use crate::admission::{no_machine, no_run};
use crate::device::no_device;
use crate::node::no_node;
use model::access::{Permission, PermissionSet, check_permission};
use model::device::Device;
use model::hidden::{hide_ids, hides, ids_in};
use model::id::{MachineId, NodeId, PowerShelfId, RackId, RolloutId, RunId, SiteId, SwitchId};
use model::known_as::nothing_known_as;
use model::machine::{Labels, Machine};
use model::node::Node;
use model::power_shelf::PowerShelf;
use model::refusal::Refusal;
use model::run::RunSpec;
use model::switch::Switch;
use model::why::Explanation;
use std::collections::BTreeSet;
use store::{Result, StoreError, Tx};

/// An object that a request names by its id.
#[derive(Debug, Clone)]
pub enum NamedObject {
    Machine(String),
    Run(String),
    Node(String),
    Switch(String),
    PowerShelf(String),
    /// A machine, a run or a node.
    Any(String),
    /// Like `Any`, or a serial number, an address or a name of a machine.
    KnownAs(String),
}

impl NamedObject {
    /// The answer about an object that does not exist.
    fn absent(&self) -> Refusal {
        match self {
            Self::Machine(id) => no_machine(&MachineId::trusted(id)),
            Self::Run(id) => no_run(&RunId::trusted(id)),
            Self::Node(id) => no_node(&NodeId::trusted(id)),
            Self::Switch(id) => no_device::<Switch>(id),
            Self::PowerShelf(id) => no_device::<PowerShelf>(id),
            Self::Any(text) | Self::KnownAs(text) => nothing_known_as(text),
        }
    }

    /// The object with this id, which shows its kind.
    fn of_id(id: &str) -> Self {
        match (SwitchId::parse(id), PowerShelfId::parse(id)) {
            (Ok(_), _) => Self::Switch(id.into()),
            (_, Ok(_)) => Self::PowerShelf(id.into()),
            (Err(_), Err(_)) => Self::Any(id.into()),
        }
    }

    async fn labels(&self, tx: &mut Tx) -> Result<Option<Labels>> {
        match self {
            Self::Machine(id) => labels_of_machine(tx, &MachineId::trusted(id)).await,
            Self::Run(id) => labels_of_run(tx, &RunId::trusted(id)).await,
            Self::Node(id) => labels_of_node(tx, id).await,
            Self::Switch(id) => labels_of_device::<Switch>(tx, id).await,
            Self::PowerShelf(id) => labels_of_device::<PowerShelf>(tx, id).await,
            Self::Any(id) | Self::KnownAs(id) => {
                Ok(machine_behind(tx, id).await?.map(|machine| machine.labels))
            }
        }
    }
}

/// The machine, or that of the run or of the node.
async fn machine_behind(tx: &mut Tx, id: &str) -> Result<Option<Machine>> {
    let machine = match readable(tx.run(&RunId::trusted(id)).await)? {
        Some(run) => run.spec.target.machine(),
        None => match readable(tx.record::<Node>(id).await)? {
            Some(node) => Some(node.machine),
            None => Some(MachineId::trusted(id)),
        },
    };
    match machine {
        Some(machine) => readable(tx.machine(&machine).await),
        None => Ok(None),
    }
}

/// A row that cannot be decoded has no labels, so it is in no part of the fleet.
async fn labels_of_machine(tx: &mut Tx, id: &MachineId) -> Result<Option<Labels>> {
    Ok(readable(tx.machine(id).await)?.map(|machine| machine.labels))
}

/// A run on a rack, a switch or a power shelf concerns the whole fleet: it has no labels.
async fn labels_of_run(tx: &mut Tx, id: &RunId) -> Result<Option<Labels>> {
    let run = readable(tx.run(id).await)?;
    match run.and_then(|run| run.spec.target.machine()) {
        Some(machine) => labels_of_machine(tx, &machine).await,
        None => Ok(None),
    }
}

async fn labels_of_node(tx: &mut Tx, id: &str) -> Result<Option<Labels>> {
    match readable(tx.record::<Node>(id).await)? {
        Some(node) => labels_of_machine(tx, &node.machine).await,
        None => Ok(None),
    }
}

async fn labels_of_device<D: Device>(tx: &mut Tx, id: &str) -> Result<Option<Labels>> {
    let device = readable(tx.record::<D>(id).await)?;
    Ok(device.map(|device| device.head().labels.clone()))
}

fn readable<T>(found: Result<Option<T>>) -> Result<Option<T>> {
    match found {
        Err(StoreError::Corrupt(_)) => Ok(None),
        found => found,
    }
}

/// True if a text is the id of a rack, a device, a site or a rollout, which are not searched by
/// their names.
fn is_other_id(text: &str) -> bool {
    RackId::parse(text).is_ok()
        || SwitchId::parse(text).is_ok()
        || PowerShelfId::parse(text).is_ok()
        || SiteId::parse(text).is_ok()
        || RolloutId::parse(text).is_ok()
}

impl Engine {
    /// Refuses a request about an object on which the caller has none of the needed permissions.
    /// An object that the caller may not see is refused exactly like one that does not exist.
    pub async fn check_object(&self, object: NamedObject, needed: PermissionSet) -> Result<()> {
        let found = self.labels_of(object.clone()).await?;
        let known = match (&object, found) {
            (NamedObject::KnownAs(text), None) if !is_other_id(text) => {
                // The search finds only what the caller may see.
                let id = self.find_known_as(text, object.absent().into()).await?;
                self.labels_of(NamedObject::Machine(id)).await?
            }
            (
                NamedObject::Machine(_)
                | NamedObject::Run(_)
                | NamedObject::Node(_)
                | NamedObject::Switch(_)
                | NamedObject::PowerShelf(_)
                | NamedObject::Any(_)
                | NamedObject::KnownAs(_),
                found,
            ) => found,
        };
        Ok(self.caller().check_object(known.as_ref(), needed, || object.absent())?)
    }

    /// Hides the ids of objects that the caller may not see in texts about an object. The rack of
    /// its machine, and the power shelves that feed it, are facts of the machine.
    pub(crate) async fn hide_foreign_ids<'a>(
        &self,
        about: &str,
        texts: impl Iterator<Item = &'a mut String>,
    ) -> Result<()> {
        if !self.caller().sees_a_part() {
            return Ok(());
        }
        let texts: Vec<&mut String> = texts.collect();
        let named: BTreeSet<&str> = texts.iter().flat_map(|text| ids_in(text)).collect();
        let named = named.into_iter().map(String::from).collect();
        let mut visible = self.visible_objects(named).await?;
        let id = about.to_string();
        let own = self.store().scan(id, |id, tx| Box::pin(machine_behind(tx, id))).await?;
        if let Some(spec) = own.map(|machine| machine.spec) {
            visible.extend(spec.rack.iter().map(RackId::to_string));
            visible.extend(spec.feeds.iter().map(PowerShelfId::to_string));
        }
        visible.insert(about.to_string());
        for text in texts {
            *text = hide_ids(text, &visible);
        }
        Ok(())
    }

    /// The same for an explanation. A command that would name a hidden object is left out.
    pub(crate) async fn hide_in_explanation(
        &self,
        about: &str,
        explanation: &mut Explanation,
    ) -> Result<()> {
        self.hide_foreign_ids(about, explanation.texts_mut()).await?;
        explanation.next_commands.retain(|command| !hides(command));
        Ok(())
    }

    /// Those of these objects that the caller may see.
    pub(crate) async fn visible_objects(&self, ids: Vec<String>) -> Result<BTreeSet<String>> {
        let input = (ids, self.caller().clone());
        let read = self.store().scan(input, |(ids, caller), tx| {
            Box::pin(async move {
                let mut visible = BTreeSet::new();
                for id in ids {
                    let labels = NamedObject::of_id(id).labels(tx).await?;
                    let granted = labels.map(|labels| caller.grants().on(&labels));
                    if granted.is_some_and(|granted| granted.contains(Permission::View)) {
                        visible.insert(id.clone());
                    }
                }
                Ok(visible)
            })
        });
        read.await
    }

    async fn labels_of(&self, object: NamedObject) -> Result<Option<Labels>> {
        let read = self.store().scan(object, |object, tx| Box::pin(object.labels(tx)));
        read.await
    }
}

impl Caller {
    /// The permissions on every target of a run. A target that is no machine needs permissions
    /// for the whole fleet.
    pub(crate) async fn on_targets(&self, tx: &mut Tx, spec: &RunSpec) -> Result<PermissionSet> {
        let everywhere = self.grants().everywhere;
        if self.grants().limited.is_empty() {
            return Ok(everywhere);
        }
        let mut granted = PermissionSet::ALL;
        for target in std::iter::once(&spec.target).chain(&spec.held_targets) {
            let labels = match target.machine() {
                Some(id) => labels_of_machine(tx, &id).await?,
                None => None,
            };
            let here = labels.map_or(everywhere, |labels| self.grants().on(&labels));
            granted = granted.intersection(here);
        }
        Ok(granted)
    }

    /// The permissions to act on a run. A child run is a part of its parent's work, so acting on it
    /// needs permissions on every target of the parent too.
    pub(crate) async fn to_act_on(&self, tx: &mut Tx, spec: &RunSpec) -> Result<PermissionSet> {
        let granted = self.on_targets(tx, spec).await?;
        let Some(parent) = spec.parent_run.as_ref().filter(|_| !self.grants().limited.is_empty())
        else {
            return Ok(granted);
        };
        let of_parent = match tx.run(parent).await? {
            Some(parent) => self.on_targets(tx, &parent.spec).await?,
            None => self.grants().everywhere,
        };
        Ok(granted.intersection(of_parent))
    }

    /// True if the caller may see a machine.
    pub(crate) async fn sees_machine(&self, tx: &mut Tx, id: &MachineId) -> Result<bool> {
        if !self.sees_a_part() {
            return Ok(true);
        }
        let labels = labels_of_machine(tx, id).await?;
        Ok(labels.is_some_and(|labels| self.grants().on(&labels).contains(Permission::View)))
    }

    /// Refuses a request unless all needed permissions are granted.
    pub(crate) fn require_all(
        &self,
        granted: PermissionSet,
        needed: PermissionSet,
        what: &str,
    ) -> std::result::Result<(), Refusal> {
        needed.iter().try_for_each(|one| check_permission(self.principal(), granted, one, what))
    }

    /// Checks a machine again in the transaction that changes it: its labels may have changed
    /// since the request was let through.
    pub(crate) fn check_machine(
        &self,
        machine: &Machine,
        needed: Permission,
    ) -> std::result::Result<(), Refusal> {
        if self.grants().limited.is_empty() {
            return Ok(());
        }
        self.check_object(Some(&machine.labels), needed.into(), || no_machine(&machine.id))
    }
}
