//! The condition reconciler: probes every machine once per interval, spread over it, and writes
//! only changes. An idle fleet costs its probes and nothing else.
//!
//! Reachability is probed often, component health rarely, and a condition changes only after
//! several consecutive probes. That hysteresis is kept in memory; losing it costs a few more
//! probes.
//!
//! Replicas share the fleet by machine id. A probe is read-only, so a duplicate one does no harm
//! when replicas come and go.

use crate::machine::Machines;
use crate::power_shelf;
use model::condition::poll_state::{MachinePollState, Probed};
use model::condition::{ConditionObservation, ConditionType};
use model::fault::Fault;
use model::filter::Filter;
use model::here;
use model::id::{MachineId, RunId};
use model::machine::Machine;
use model::retry::fnv1a;
use model::target::{TargetId, TargetKind};
use model::time::Timestamp;
use providers::{Provider, Target};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use store::{Cause, NewEvent, Result, Tx};
use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, sleep_until, timeout};

/// Machines per page.
const PAGE: i64 = 500;
/// The most machines that wait for a requested probe.
const MAX_POKED: usize = 10_000;
/// A health probe makes many calls: its timeout is this many times `probe_timeout`.
const EXAMINE_TIMES: u32 = 2;

/// Requested probes, and the hysteresis of each machine.
#[derive(Default)]
pub(crate) struct Observer {
    poked: Mutex<Vec<MachineId>>,
    came: Notify,
    watched: Mutex<HashMap<MachineId, MachinePollState>>,
}

impl Observer {
    pub fn poke(&self, id: &MachineId) {
        let mut poked = self.poked.lock().unwrap_or_else(PoisonError::into_inner);
        // When the queue is full, the machine is probed in the next round.
        if poked.len() < MAX_POKED {
            poked.push(id.clone());
        }
        self.came.notify_one();
    }

    /// Probes a machine at once, and accepts what that probe observes.
    pub fn probe_after_change(&self, id: &MachineId, now: Timestamp) {
        self.watched(id, now, MachinePollState::note_change);
        self.poke(id);
    }

    fn take(&self) -> Vec<MachineId> {
        std::mem::take(&mut *self.poked.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn watched<T>(
        &self,
        id: &MachineId,
        now: Timestamp,
        use_it: impl FnOnce(&mut MachinePollState) -> T,
    ) -> T {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        use_it(watched.entry(id.clone()).or_insert_with(|| MachinePollState::new(now)))
    }

    /// Drops machines that were deleted or that another replica probes now.
    fn forget_but(&self, round: &[(Duration, MachineId)]) {
        let ours: HashSet<&MachineId> = round.iter().map(|(_, id)| id).collect();
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        watched.retain(|id, _| ours.contains(id));
    }
}

impl Machines {
    /// Probes this replica's machines once per interval, and requested ones at once.
    pub(crate) async fn run_probes(self) {
        let slots = Arc::new(Semaphore::new(self.0.settings().max_concurrent_probes.max(1)));
        loop {
            let started = Instant::now();
            let round = self.round().await;
            self.0.observer().forget_but(&round);
            for (offset, id) in round {
                if self.wait_probing(started + offset, &slots).await.is_none() {
                    return;
                }
                self.probe_soon(id, &slots).await;
            }
            let end = started + self.0.settings().probe_interval;
            if self.wait_probing(end, &slots).await.is_none() {
                return;
            }
        }
    }

    /// Probes the machines that an ended run has changed, so that nobody reads for a whole interval
    /// what was true before it. What a power shelf feeds changes with the shelf, and has no
    /// operation of its own.
    pub(crate) async fn probe_changed_by(&self, target: &TargetId) {
        let now = self.0.now();
        let changed = match target.kind {
            TargetKind::Machine => Ok(target.machine().into_iter().collect()),
            TargetKind::PowerShelf => {
                let shelf = target.clone();
                let fed = self
                    .0
                    .store()
                    .read_one(shelf, |shelf, tx| Box::pin(power_shelf::machines_fed_by(tx, shelf)));
                fed.await
            }
            // A rack changes its devices by their own operations, and a switch powers no machine.
            TargetKind::Rack | TargetKind::Switch => Ok(Vec::new()),
        };
        match changed {
            Ok(machines) => {
                for id in &machines {
                    self.0.observer().probe_after_change(id, now);
                }
            }
            Err(error) => tracing::debug!(%target, %error, "its machines are probed in their turn"),
        }
    }

    /// Waits, serving requested probes meanwhile. None when the process stops.
    async fn wait_probing(&self, until: Instant, slots: &Arc<Semaphore>) -> Option<()> {
        loop {
            tokio::select! {
                () = self.0.stopped() => return None,
                () = self.0.observer().came.notified() => {
                    for id in self.0.observer().take() {
                        self.probe_soon(id, slots).await;
                    }
                }
                () = sleep_until(until) => return Some(()),
            }
        }
    }

    /// This replica's share of the fleet, each with its own offset in the interval.
    async fn round(&self) -> Vec<(Duration, MachineId)> {
        let (index, count) = self.0.scheduler().shard().await;
        let interval = self.0.settings().probe_interval;
        let mut found = Vec::new();
        let mut after = None;
        loop {
            let page = match self.list(Filter::default(), after.take(), PAGE).await {
                Ok(page) => page,
                Err(error) => {
                    tracing::warn!(%error, "reading the machines for probing failed");
                    break;
                }
            };
            for machine in page.machines {
                let spread = fnv1a(machine.id.as_str(), 0);
                if spread % count == index {
                    let share = (spread / count % 10_000) as u32;
                    found.push((interval * share / 10_000, machine.id));
                }
            }
            match page.next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        found.sort();
        found
    }

    async fn probe_soon(&self, id: MachineId, slots: &Arc<Semaphore>) {
        let Ok(slot) = Arc::clone(slots).acquire_owned().await else { return };
        let machines = self.clone();
        tokio::spawn(async move {
            if let Err(error) = machines.probe(&id).await {
                tracing::debug!(machine = %id, %error, "probing a machine failed");
            }
            drop(slot);
        });
    }

    async fn probe(&self, id: &MachineId) -> Result<()> {
        let machine = self.get(id).await?;
        let Some(provider) = self.0.providers().get(&machine.spec.provider) else {
            return Ok(());
        };
        let target = Target { id: TargetId::from(id), spec: machine.spec.clone() };
        let begun = self.0.now();
        let after_change = self.0.observer().watched(id, begun, MachinePollState::take_change);
        let answered = timeout(self.0.settings().probe_timeout, provider.probe(&target)).await;
        let observed = match answered {
            Ok(Ok(observed)) => observed,
            Ok(Err(fault)) => lost(fault),
            Err(_) => {
                vec![ConditionObservation::new(ConditionType::BmcReachable, false, "NoAnswer")]
            }
        };
        metrics::counter!("farrier_probes_total").increment(1);
        self.examine(provider.as_ref(), &target, &machine, &observed).await;
        let (now, rhythm) = (self.0.now(), self.0.settings().machine_polling);
        let probed = Probed { observed, after_change };
        let read =
            |watched: &mut MachinePollState| watched.record_probe(&machine, probed, now, &rhythm);
        let evidence = self.0.observer().watched(id, now, read);
        let disarmed = self.find_disarmed(provider.as_ref(), &target, &machine).await;
        if !evidence.is_empty() || disarmed.is_some() {
            let (id, version) = (id.clone(), machine.version);
            self.learn(Learn { id, version, evidence, disarmed, now }).await?;
        }
        Ok(())
    }

    /// The operation whose armed boot from the network is over: the machine has booted since, and
    /// its next boot is from disk. Only a machine with such a record is asked.
    async fn find_disarmed(
        &self,
        provider: &dyn Provider,
        target: &Target,
        machine: &Machine,
    ) -> Option<RunId> {
        let armed = machine.network_boot.as_ref().filter(|_| machine.active_run.is_none())?;
        let asked = timeout(self.0.settings().probe_timeout, provider.boots_from_disk(target));
        let from_disk = asked.await.is_ok_and(|answer| answer == Ok(Some(true)));
        from_disk.then(|| armed.armed_by.clone())
    }

    /// Runs the health probe of a machine when it is due. A failure is retried in a later round.
    async fn examine(
        &self,
        provider: &dyn Provider,
        target: &Target,
        machine: &Machine,
        observed: &[ConditionObservation],
    ) {
        let (id, now, rhythm) =
            (&target.machine_id(), self.0.now(), self.0.settings().machine_polling);
        let requests = |watched: &mut MachinePollState| {
            watched.needs_health_probe(machine, observed, now, &rhythm)
        };
        if !self.0.observer().watched(id, now, requests) {
            return;
        }
        metrics::counter!("farrier_health_probes_total").increment(1);
        let limit = self.0.settings().probe_timeout * EXAMINE_TIMES;
        match timeout(limit, provider.probe_hardware(target)).await {
            Ok(Ok(parts)) => {
                let now = self.0.now();
                self.0.observer().watched(id, now, |watched| watched.examined(parts, now));
            }
            Ok(Err(fault)) => tracing::debug!(machine = %id, %fault, "health probe failed"),
            Err(_) => tracing::debug!(machine = %id, "health probe timed out"),
        }
    }

    /// Writes changed conditions. If the machine has changed since the probe, it is probed again.
    async fn learn(&self, learn: Learn) -> Result<()> {
        let (id, now) = (learn.id.clone(), learn.now);
        let learned =
            self.0.store().write("learn_machine", learn, |learn, tx| Box::pin(learn.run(tx)));
        match learned.await? {
            Learned::At(version) => {
                self.0
                    .observer()
                    .watched(&id, now, |watched| watched.record_stored_version(version));
            }
            Learned::Outdated => self.0.observer().poke(&id),
            Learned::Gone => {}
        }
        Ok(())
    }
}

/// The evidence of a failed probe. A failure of Farrier itself says nothing about the machine.
fn lost(fault: Fault) -> Vec<ConditionObservation> {
    if fault.code.is_local() {
        return Vec::new();
    }
    vec![ConditionObservation::new(ConditionType::BmcReachable, false, fault.message)]
}

struct Learn {
    id: MachineId,
    /// The version of the machine that was probed.
    version: i64,
    evidence: Vec<ConditionObservation>,
    /// The operation whose armed boot from the network is over.
    disarmed: Option<RunId>,
    now: Timestamp,
}

enum Learned {
    /// Stored; the machine has this version now.
    At(i64),
    /// The machine has changed since the probe.
    Outdated,
    Gone,
}

impl Learn {
    async fn run(&self, tx: &mut Tx) -> Result<Learned> {
        let Some(mut machine) = tx.machine_locked(&self.id).await? else {
            return Ok(Learned::Gone);
        };
        if machine.version != self.version {
            return Ok(Learned::Outdated);
        }
        let before = machine.conditions.clone();
        let disarmed = self.disarmed.as_ref().filter(|run| machine.forget_network_boot(run));
        if !machine.learn(&self.evidence, self.now) && disarmed.is_none() {
            return Ok(Learned::At(machine.version));
        }
        let disarmed = disarmed.map(|run| {
            format!(
                "its next boot is from disk: the boot from the network that {run} armed is over"
            )
        });
        let change: Vec<String> = machine
            .conditions
            .iter()
            .filter(|(condition, known)| before.get(*condition) != Some(known))
            .map(|(condition, known)| {
                format!("{}={} ({})", condition.as_str(), known.status, known.reason)
            })
            .chain(disarmed)
            .collect();
        let event = NewEvent {
            cause: Cause::Probe,
            actor: "observer".into(),
            message: change.join(", "),
            decided_by: here!().into(),
            at: self.now,
        };
        tx.update_machine(&mut machine, &event)?;
        Ok(Learned::At(machine.version))
    }
}
