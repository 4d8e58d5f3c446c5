//! Polls switches and power shelves: each once per probe interval, spread over it. Only changes are
//! written. The hysteresis of each device is kept in memory; losing it costs a few more probes.
//!
//! A device that a run holds is not polled: the run reports its state.

use crate::device::Devices;
use model::device::{Device, DeviceChange, DevicePollState};
use model::filter::Filter;
use model::here;
use model::power_shelf::PowerShelf;
use model::retry::fnv1a;
use model::switch::Switch;
use model::target::{TargetId, TargetKind};
use model::time::Timestamp;
use providers::Target;
use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use store::{Cause, NewEvent, Result, Tx};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep_until, timeout};

/// Devices per page.
const PAGE: usize = 500;
/// The number of possible start times within an interval.
const MOMENTS: u32 = 10_000;

type DevicePollStates = Arc<Mutex<BTreeMap<TargetId, DevicePollState>>>;
type Round = Vec<(Duration, TargetId)>;

impl Devices {
    pub(crate) async fn run_polling(self) {
        let slots = Arc::new(Semaphore::new(self.0.settings().max_concurrent_probes.max(1)));
        let poll_states = DevicePollStates::default();
        loop {
            let started = Instant::now();
            let round = self.poll_round().await;
            forget_but(&poll_states, &round);
            for (offset, id) in round {
                if self.pause_until(started + offset).await.is_none() {
                    return;
                }
                self.poll_soon(id, &slots, &poll_states).await;
            }
            if self.pause_until(started + self.0.settings().probe_interval).await.is_none() {
                return;
            }
        }
    }

    /// None when the process stops.
    async fn pause_until(&self, then: Instant) -> Option<()> {
        tokio::select! {
            () = self.0.stopped() => None,
            () = sleep_until(then) => Some(()),
        }
    }

    /// This replica's share of the devices, each with its own offset in the interval.
    async fn poll_round(&self) -> Round {
        let (index, count) = self.0.scheduler().shard().await;
        let mut round = Round::new();
        for found in [self.watched_of::<Switch>().await, self.watched_of::<PowerShelf>().await] {
            match found {
                Ok(ids) => round.extend(ids.into_iter().filter_map(|id| {
                    let spread = fnv1a(id.as_str(), 0);
                    let time = (spread / count % u64::from(MOMENTS)) as u32;
                    let offset = self.0.settings().probe_interval * time / MOMENTS;
                    (spread % count == index).then_some((offset, id))
                })),
                Err(error) => tracing::warn!(%error, "reading the devices for polling failed"),
            }
        }
        round.sort();
        round
    }

    async fn watched_of<D: Device>(&self) -> Result<Vec<TargetId>> {
        let mut found = Vec::new();
        let mut after = None;
        loop {
            let page = self.list::<D>(Filter::default(), after, PAGE).await?;
            found.extend(page.records.iter().filter(|one| should_poll(*one)).map(Device::target));
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(found),
            }
        }
    }

    async fn poll_soon(
        &self,
        id: TargetId,
        slots: &Arc<Semaphore>,
        poll_states: &DevicePollStates,
    ) {
        let Ok(slot) = Arc::clone(slots).acquire_owned().await else { return };
        let (devices, poll_states) = (self.clone(), Arc::clone(poll_states));
        tokio::spawn(async move {
            let looked = match id.kind {
                TargetKind::Switch => devices.poll::<Switch>(&id, &poll_states).await,
                TargetKind::PowerShelf => devices.poll::<PowerShelf>(&id, &poll_states).await,
                TargetKind::Machine | TargetKind::Rack => Ok(()),
            };
            if let Err(error) = looked {
                tracing::debug!(device = %id, %error, "polling a device failed");
            }
            drop(slot);
        });
    }

    async fn poll<D: Device>(&self, id: &TargetId, poll_states: &DevicePollStates) -> Result<()> {
        let device = self.get::<D>(id.as_str()).await?;
        let provider = self.0.providers().get(&device.spec().provider);
        let (true, Some(provider)) = (should_poll(&device), provider) else { return Ok(()) };
        let target = Target { id: id.clone(), spec: device.spec().clone().into() };
        let limit = self.0.settings().probe_timeout;
        let observed = match timeout(limit, provider.poll_device(&target)).await {
            Ok(observed) => observed,
            Err(_) => {
                let message = format!("it did not answer within {} s", limit.as_secs());
                Err(model::fault::Fault::new(model::fault::FaultCode::BmcUnreachable, message))
            }
        };
        metrics::counter!("farrier_device_probes_total").increment(1);
        let (now, steadiness) = (self.0.now(), self.0.settings().machine_polling.steadiness);
        let change = with_poll_state(poll_states, id, |probe| {
            probe.record_probe(&device, observed, steadiness, now)
        });
        let Some(change) = change else { return Ok(()) };
        let input = (id.id.clone(), device.head().version, change, now);
        let learned =
            self.0.store().write("learn_device", input, |(id, version, change, now), tx| {
                Box::pin(learn::<D>(tx, id, *version, change, *now))
            });
        if let Some(version) = learned.await? {
            with_poll_state(poll_states, id, |probe| probe.written(version));
        }
        Ok(())
    }
}

fn should_poll<D: Device>(device: &D) -> bool {
    device.is_polled() && device.head().active_run.is_none()
}

fn with_poll_state<T>(
    poll_states: &DevicePollStates,
    id: &TargetId,
    use_it: impl FnOnce(&mut DevicePollState) -> T,
) -> T {
    let mut poll_states = poll_states.lock().unwrap_or_else(PoisonError::into_inner);
    use_it(poll_states.entry(id.clone()).or_default())
}

/// Drops devices that were deleted or that another replica polls now.
fn forget_but(poll_states: &DevicePollStates, round: &Round) {
    let ours: HashSet<&TargetId> = round.iter().map(|(_, id)| id).collect();
    poll_states.lock().unwrap_or_else(PoisonError::into_inner).retain(|id, _| ours.contains(id));
}

/// Writes the observation of a device. Returns its new version; none if the device has changed
/// since the probe.
async fn learn<D: Device>(
    tx: &mut Tx,
    id: &str,
    version: i64,
    change: &DeviceChange,
    now: Timestamp,
) -> Result<Option<i64>> {
    let found = tx.record_locked::<D>(id).await?;
    let Some(mut device) = found.filter(|one| one.head().version == version) else {
        return Ok(None);
    };
    *device.observed_mut() = Some(change.observed.clone());
    device.merge_facts(&change.facts);
    let event = NewEvent {
        cause: Cause::Probe,
        actor: "observer".into(),
        message: change.message.clone(),
        decided_by: here!().into(),
        at: now,
    };
    tx.update_record(&mut device, &event)?;
    Ok(Some(device.head().version))
}
