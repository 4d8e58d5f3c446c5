//! The condition reconciler: looks at every machine from time to time, spread over the interval, and
//! writes only what changed. An idle fleet costs its probes and nothing else.
//!
//! Replicas share the fleet by the machines' ids; a probe made twice when replicas come and go does no
//! harm, as it only looks.

use crate::Engine;
use model::condition::{ConditionType, Evidence, health};
use model::filter::Filter;
use model::here;
use model::id::MachineId;
use model::machine::Machine;
use model::retry::hash;
use model::time::Timestamp;
use providers::Target;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use store::{Cause, NewEvent, Result, Tx, Work};
use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, sleep_until, timeout};

/// How many machines are read at once.
const PAGE: i64 = 500;
/// How many machines may wait to be looked at out of turn.
const MAX_POKED: usize = 10_000;

/// Machines that want to be looked at out of turn.
#[derive(Default)]
pub(crate) struct Observer {
    poked: Mutex<Vec<MachineId>>,
    came: Notify,
}

impl Observer {
    pub fn poke(&self, id: &MachineId) {
        let mut poked = self.poked.lock().unwrap_or_else(PoisonError::into_inner);
        // Whoever finds no room is seen in the next round.
        if poked.len() < MAX_POKED {
            poked.push(id.clone());
        }
        self.came.notify_one();
    }

    fn take(&self) -> Vec<MachineId> {
        std::mem::take(&mut *self.poked.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Engine {
    /// Looks at the whole fleet once an interval, and at those who ask at once.
    pub(crate) async fn run_probes(self) {
        let slots = Arc::new(Semaphore::new(self.settings().probes_at_once.max(1)));
        loop {
            let started = Instant::now();
            let round = self.round().await;
            for (offset, id) in round {
                if self.wait_probing(started + offset, &slots).await.is_none() {
                    return;
                }
                self.probe_soon(id, &slots).await;
            }
            let end = started + self.settings().probe_interval;
            if self.wait_probing(end, &slots).await.is_none() {
                return;
            }
        }
    }

    /// Waits, serving those who ask out of turn meanwhile. None when the process stops.
    async fn wait_probing(&self, until: Instant, slots: &Arc<Semaphore>) -> Option<()> {
        loop {
            tokio::select! {
                () = self.stopped() => return None,
                () = self.observer().came.notified() => {
                    for id in self.observer().take() {
                        self.probe_soon(id, slots).await;
                    }
                }
                () = sleep_until(until) => return Some(()),
            }
        }
    }

    /// This replica's share of the fleet, each with its own moment in the interval.
    async fn round(&self) -> Vec<(Duration, MachineId)> {
        let (index, count) = self.share().await;
        let interval = self.settings().probe_interval;
        let mut found = Vec::new();
        let mut after = None;
        loop {
            let page = match self.machines(Filter::default(), after.take(), PAGE).await {
                Ok(page) => page,
                Err(error) => {
                    tracing::warn!(%error, "cannot read the fleet for probing");
                    break;
                }
            };
            for machine in page.machines {
                let spread = hash(machine.id.as_str(), 0);
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

    /// Which part of the fleet is ours: our place among the replicas alive.
    async fn share(&self) -> (u64, u64) {
        let names = self.store().read(Alive).await.unwrap_or_default();
        let place = names.iter().position(|name| *name == self.settings().replica);
        match place {
            Some(place) => (place as u64, names.len() as u64),
            None => (0, 1),
        }
    }

    async fn probe_soon(&self, id: MachineId, slots: &Arc<Semaphore>) {
        let Ok(slot) = Arc::clone(slots).acquire_owned().await else { return };
        let engine = self.clone();
        tokio::spawn(async move {
            if let Err(error) = engine.probe(&id).await {
                tracing::debug!(machine = %id, %error, "a probe could not be kept");
            }
            drop(slot);
        });
    }

    async fn probe(&self, id: &MachineId) -> Result<()> {
        let machine = self.machine(id).await?;
        let Some(provider) = self.providers().get(&machine.spec.provider) else {
            return Ok(());
        };
        let target = Target { machine_id: id.clone(), spec: machine.spec.clone() };
        let answered = timeout(self.settings().probe_timeout, provider.probe(&target)).await;
        let mut seen = match answered {
            Ok(Ok(seen)) => seen,
            Ok(Err(fault)) => lost(fault.said),
            Err(_) => lost("NoAnswer".into()),
        };
        seen.extend(health(&seen));
        metrics::counter!("farrier_probes_total").increment(1);
        let now = self.now();
        if machine.clone().learn(&seen, now) {
            self.store().write(Learn { id: id.clone(), seen, now }).await?;
        }
        Ok(())
    }
}

fn lost(reason: String) -> Vec<Evidence> {
    vec![Evidence::new(ConditionType::BmcReachable, false, reason)]
}

pub(crate) struct Alive;

impl Work for Alive {
    type Out = Vec<String>;

    async fn run(&self, tx: &mut Tx) -> Result<Vec<String>> {
        Ok(tx.pulses().await?.into_iter().map(|pulse| pulse.replica.name).collect())
    }
}

struct Learn {
    id: MachineId,
    seen: Vec<Evidence>,
    now: Timestamp,
}

impl Work for Learn {
    type Out = Option<Machine>;

    async fn run(&self, tx: &mut Tx) -> Result<Option<Machine>> {
        let Some(mut machine) = tx.machine_locked(&self.id).await? else { return Ok(None) };
        let before = machine.conditions.clone();
        if !machine.learn(&self.seen, self.now) {
            return Ok(Some(machine));
        }
        let news: Vec<String> = machine
            .conditions
            .iter()
            .filter(|(condition, known)| before.get(*condition) != Some(known))
            .map(|(condition, known)| {
                format!("{}={} ({})", condition.as_str(), known.status, known.reason)
            })
            .collect();
        let event = NewEvent {
            cause: Cause::Probe,
            actor: "observer".into(),
            message: news.join(", "),
            decided_by: here!().into(),
            at: self.now,
        };
        tx.update_machine(&mut machine, &event)?;
        Ok(Some(machine))
    }
}
