//! Deletes a machine. One transaction checks the gate and deletes the machine with its host record,
//! its health reports, and the pins and lockouts of its addresses. Its history and its old
//! operations stay.

use super::{Machines, check_machine_version};
use crate::access::Caller;
use crate::admission::{event, lock_machine};
use model::access::Permission;
use model::device::Device;
use model::filter::Filter;
use model::gate::{Overrides, gate_of};
use model::here;
use model::host::Host;
use model::id::{MachineId, RunId};
use model::machine::delete::{MachineReferences, admit_deletion};
use model::machine::{Machine, MachineSpec};
use model::node::Node;
use model::plan::RunType;
use model::power_shelf::PowerShelf;
use model::switch::Switch;
use model::target::TargetId;
use model::time::Timestamp;
use providers::Providers;
use std::collections::BTreeSet;
use store::{Cause, NewEvent, Result, Tx};

/// Machines and runs in one read.
const PAGE: i64 = 500;

impl Machines {
    /// Deletes a machine that nothing uses, at this version if one is named. Returns it as it was.
    pub async fn delete(
        &self,
        id: MachineId,
        version: Option<i64>,
        overrides: Overrides,
        actor: String,
    ) -> Result<Machine> {
        // Peers of machines that the caller may not see count too.
        let shared_peers = Self(self.0.as_internal()).shared_peers(&id).await?;
        let (providers, now) = (self.0.providers().clone(), self.0.now());
        let caller = self.0.caller().clone();
        let (machine, by) = (id.clone(), actor.clone());
        let delete = Delete { id, version, overrides, actor, providers, shared_peers, caller, now };
        let done = self
            .0
            .store()
            .retry_write("delete_machine", delete, |delete, tx| Box::pin(delete.run(tx)));
        self.0.trace_refusal(machine.as_str(), (&by, "delete"), done.await).await
    }

    /// The peers of a machine that another machine or device has too, such as the BMC of a chassis.
    /// Read before the transaction, because it reads the whole fleet.
    async fn shared_peers(&self, id: &MachineId) -> Result<BTreeSet<String>> {
        let Some(machine) = self.0.store().machine(id).await? else { return Ok(BTreeSet::new()) };
        let own = peers(self.0.providers(), &machine.spec);
        if own.is_empty() {
            return Ok(own);
        }
        let (switches, shelves) =
            (self.device_peers::<Switch>().await?, self.device_peers::<PowerShelf>().await?);
        // An unreadable row may have any peer: then all are kept.
        let (Some(mut others), Some(mut shelves)) = (switches, shelves) else { return Ok(own) };
        others.append(&mut shelves);
        let mut after = None;
        loop {
            let page = self.list(Filter::default(), after, PAGE).await?;
            if !page.unreadable.is_empty() {
                return Ok(own);
            }
            for other in page.machines.iter().filter(|other| other.id != *id) {
                others.append(&mut peers(self.0.providers(), &other.spec));
            }
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(own.intersection(&others).cloned().collect()),
            }
        }
    }

    /// None if a device cannot be read.
    async fn device_peers<D: Device>(&self) -> Result<Option<BTreeSet<String>>> {
        let mut found = BTreeSet::new();
        let mut after = None;
        loop {
            let page = self.0.devices().list::<D>(Filter::default(), after, PAGE as usize).await?;
            if !page.unreadable.is_empty() {
                return Ok(None);
            }
            for device in &page.records {
                let spec = MachineSpec::from(device.spec().clone());
                found.append(&mut peers(self.0.providers(), &spec));
            }
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(Some(found)),
            }
        }
    }
}

fn peers(providers: &Providers, spec: &MachineSpec) -> BTreeSet<String> {
    let provider = providers.get(&spec.provider);
    provider.map(|provider| provider.peers(spec)).unwrap_or_default().into_iter().collect()
}

struct Delete {
    id: MachineId,
    version: Option<i64>,
    overrides: Overrides,
    actor: String,
    providers: Providers,
    shared_peers: BTreeSet<String>,
    caller: Caller,
    now: Timestamp,
}

impl Delete {
    async fn run(&self, tx: &mut Tx) -> Result<Machine> {
        // Lock order: the host before its machine, as in the host's own turn.
        let host = tx.record_locked::<Host>(self.id.as_str()).await?;
        let machine = lock_machine(tx, &self.id, self.now).await?;
        self.caller.check_machine(&machine, Permission::Inventory)?;
        check_machine_version(&machine, self.version)?;
        let target = TargetId::from(&machine.id);
        let run = tx.active_runs_on(std::slice::from_ref(&target)).await?.remove(&target.key());
        let rack_operation = pending_rack_operation(tx, &target).await?;
        let node = match tx.live_node_of_machine(&machine.id).await? {
            Some(node) => tx.record::<Node>(node.as_str()).await?,
            None => None,
        };
        let by = MachineReferences {
            run: run.as_ref(),
            rack_operation: rack_operation.as_ref(),
            host: host.as_ref(),
            node: node.as_ref(),
        };
        admit_deletion(&machine, by, &self.overrides)?;
        let refusing = gate_of(&admit_deletion(&machine, by, &Overrides::default()));
        let note = self.overrides.history_note(&self.actor, refusing.as_slice());

        let message = format!("deleted{note}");
        let event = event(Cause::Request, &self.actor, message, here!(), self.now);
        if let Some(host) = &host {
            tx.remove_record(host, &event)?;
        }
        for peer in peers(&self.providers, &machine.spec).difference(&self.shared_peers) {
            tx.delete_lockout(peer).await?;
            if let Some(pinned) = tx.identity(peer).await? {
                let message = format!("deleted with {}", machine.id);
                tx.delete_identity(&pinned, &NewEvent { message, ..event.clone() })?;
            }
        }
        tx.delete_machine(&machine, &event)?;
        Ok(machine)
    }
}

/// An operation of a rack that has not ended and that is to hold the device. A device may have left
/// the rack since the operation was accepted.
async fn pending_rack_operation(tx: &mut Tx, device: &TargetId) -> Result<Option<RunId>> {
    let mut after = String::new();
    loop {
        let runs = tx.active_runs_of(&[RunType::RackMaintenance], &after, PAGE).await?;
        if let Some(run) = runs.iter().find(|run| run.spec.held_targets.contains(device)) {
            return Ok(Some(run.spec.id.clone()));
        }
        match runs.last() {
            Some(last) if runs.len() as i64 == PAGE => after = last.spec.id.to_string(),
            Some(_) | None => return Ok(None),
        }
    }
}
