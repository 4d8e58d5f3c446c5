//! The rights of a caller on single objects. What decides is the object's labels: of a machine, a
//! switch and a power shelf their own, of a run and a node those of their machine.

use super::Caller;
use crate::Engine;
use crate::admission::{no_machine, no_run};
use crate::device::no_device;
use crate::node::no_node;
use model::access::{Permission, PermissionSet, check_permission};
use model::device::Device;
use model::id::{MachineId, NodeId, PowerShelfId, RackId, RolloutId, RunId, SiteId, SwitchId};
use model::known_as::nothing_known_as;
use model::machine::{Labels, Machine};
use model::node::Node;
use model::power_shelf::PowerShelf;
use model::refusal::Refusal;
use model::run::RunSpec;
use model::switch::Switch;
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

    async fn labels(&self, tx: &mut Tx) -> Result<Option<Labels>> {
        match self {
            Self::Machine(id) => labels_of_machine(tx, &MachineId::trusted(id)).await,
            Self::Run(id) => labels_of_run(tx, &RunId::trusted(id)).await,
            Self::Node(id) => labels_of_node(tx, id).await,
            Self::Switch(id) => labels_of_device::<Switch>(tx, id).await,
            Self::PowerShelf(id) => labels_of_device::<PowerShelf>(tx, id).await,
            Self::Any(id) | Self::KnownAs(id) => {
                let run = labels_of_run(tx, &RunId::trusted(id)).await?;
                let machine = match run {
                    Some(labels) => Some(labels),
                    None => labels_of_machine(tx, &MachineId::trusted(id)).await?,
                };
                match machine {
                    Some(labels) => Ok(Some(labels)),
                    None => labels_of_node(tx, id).await,
                }
            }
        }
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

/// True if a text is the id of a rack, a device, a site or a rollout, which are not searched by their
/// names.
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

    /// Those of these machines, runs and nodes that the caller may see.
    pub(crate) async fn visible_objects(&self, ids: Vec<String>) -> Result<BTreeSet<String>> {
        let input = (ids, self.caller().clone());
        let read = self.store().scan(input, |(ids, caller), tx| {
            Box::pin(async move {
                let mut visible = BTreeSet::new();
                for id in ids {
                    let labels = NamedObject::Any(id.clone()).labels(tx).await?;
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
