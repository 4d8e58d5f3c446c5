//! The poller's memory of one machine: when to probe its component health, how to read a probe
//! during an operation, and which observations to accept.
//!
//! A reachability probe is cheap and runs often. A component health probe is expensive and runs
//! rarely, at an offset that depends only on the machine's id and therefore survives a restart. It
//! also runs early while the health is unknown or may have changed.

use super::hysteresis::{HysteresisLimits, PendingObservations, ProbeContext};
use super::{ConditionObservation, ConditionType, derive_degraded};
use crate::id::MachineId;
use crate::machine::Machine;
use crate::retry::fnv1a;
use crate::time::Timestamp;
use std::time::Duration;

/// The intervals of device polling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PollIntervals {
    pub steadiness: HysteresisLimits,
    /// The interval of component health probes.
    pub health_every: Duration,
    /// The time after an operation in which a machine may be unreachable without being degraded: it
    /// may be booting.
    pub settling: Duration,
}

impl Default for PollIntervals {
    fn default() -> Self {
        Self {
            steadiness: HysteresisLimits::default(),
            health_every: Duration::from_secs(600),
            settling: Duration::from_secs(600),
        }
    }
}

/// The observations of one probe.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Probed {
    pub observed: Vec<ConditionObservation>,
    /// True if a deliberate change was noted before the probe began.
    pub after_change: bool,
}

/// The poller's memory of one machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachinePollState {
    pending: PendingObservations,
    /// The row version that the poller last read or wrote. A different one means another component
    /// changed the machine.
    version: Option<i64>,
    /// Set by a deliberate change of the machine that its row does not show, such as power lost
    /// with a shelf, or that is not probed yet.
    changed: bool,
    /// The result of the last component health probe, if it had one.
    parts: Option<ConditionObservation>,
    /// The time of the last component health probe; before the first one, the time at which polling
    /// began.
    record_health_probe: Timestamp,
    ever_examined: bool,
    /// Until this time the machine may be booting.
    settles: Timestamp,
}

impl MachinePollState {
    pub fn new(now: Timestamp) -> Self {
        Self {
            pending: PendingObservations::default(),
            version: None,
            changed: false,
            parts: None,
            record_health_probe: now,
            ever_examined: false,
            settles: Timestamp::default(),
        }
    }

    /// A deliberate change has ended: the observation of the next probe is accepted at once.
    pub fn note_change(&mut self) {
        self.changed = true;
    }

    /// True if a change was noted since the last probe began. A probe takes the note when it
    /// begins: one that began before the change says nothing about it.
    pub fn take_change(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// True if to probe the component health now, given the reachability just observed.
    pub fn needs_health_probe(
        &self,
        machine: &Machine,
        observed: &[ConditionObservation],
        now: Timestamp,
        rhythm: &PollIntervals,
    ) -> bool {
        // The BMC answers the health probe, so it must be reachable.
        if !observed.iter().any(|one| one.condition == ConditionType::BmcReachable && one.status) {
            return false;
        }
        let well = machine.conditions.get(ConditionType::Degraded).map(|known| !known.status);
        let unsure = !self.ever_examined && well != Some(true);
        let changing = self.pending.is_pending(ConditionType::Degraded);
        unsure
            || changing
            || is_due(&machine.id, self.record_health_probe, now, rhythm.health_every)
    }

    /// Records a component health probe; none when the machine does not report component health.
    pub fn examined(&mut self, parts: Option<ConditionObservation>, now: Timestamp) {
        (self.parts, self.record_health_probe, self.ever_examined) = (parts, now, true);
    }

    /// Records a probe; returns the observations that are new and accepted.
    pub fn record_probe(
        &mut self,
        machine: &Machine,
        probed: Probed,
        now: Timestamp,
        rhythm: &PollIntervals,
    ) -> Vec<ConditionObservation> {
        let Probed { mut observed, after_change } = probed;
        let time = match self.version.replace(machine.version) {
            _ if after_change => ProbeContext::AfterChange,
            Some(version) if version != machine.version => ProbeContext::AfterChange,
            // Polling began in the middle of an operation.
            None if machine.active_run.is_some() => ProbeContext::AfterChange,
            Some(_) | None if now < self.settles => ProbeContext::Settling,
            Some(_) | None => ProbeContext::Routine,
        };
        if machine.active_run.is_some() || time == ProbeContext::AfterChange {
            self.settles = now + rhythm.settling;
        }
        observed.extend(derive_degraded(&observed, self.parts.as_ref(), now < self.settles));
        self.pending.accept_confirmed(&machine.conditions, observed, time, rhythm.steadiness)
    }

    /// The accepted observations were stored, and the row now has this version.
    pub fn record_stored_version(&mut self, version: i64) {
        self.version = Some(version);
    }
}

/// Each machine is due once per interval, at an offset that depends only on its id. It is due when
/// that time has passed since `done`.
fn is_due(id: &MachineId, done: Timestamp, now: Timestamp, every: Duration) -> bool {
    let every = i64::try_from(every.as_millis()).unwrap_or(i64::MAX).max(1);
    let offset = (fnv1a(id.as_str(), 1) % every.unsigned_abs()).cast_signed();
    let turn = |at: Timestamp| at.as_millis().saturating_sub(offset).div_euclid(every);
    turn(done) < turn(now)
}
