//! The transitions that all device lifecycles share: to an idle state, to a state that waits for a
//! run, and to the error state.

use super::{Device, own_run};
use crate::effect::{DeviceWork, Effect};
use crate::here;
use crate::id::RunId;
use crate::lifecycle::{
    DeviceContext, DeviceFailure, IdleReason, LifecycleChange, LifecycleDecision, NewRun, run_step,
};
use crate::plan::{RunStep, RunType};
use crate::run::HistoryNote;
use std::time::Duration;

/// Timeout in seconds and number of retries of a device's own steps.
pub(crate) const READ: (u32, u32) = (120, 3);
pub(crate) const CONFIGURE: (u32, u32) = (120, 3);
/// The normal time for which a device waits for the next worker.
pub(crate) const SOON: Duration = Duration::from_secs(10);

/// A transition to a state that waits for no run.
pub(crate) fn transition_to<D: Device>(
    device: &D,
    state: D::State,
    note: HistoryNote,
) -> LifecycleDecision<D> {
    LifecycleDecision::change(device.in_state(state, None), note)
}

/// A transition to a state that waits for a new run. The device stays idle while another run holds
/// it.
pub(crate) fn start_run<D: Device>(
    device: &D,
    state: D::State,
    run: NewRun,
    note: HistoryNote,
) -> LifecycleDecision<D> {
    if let Some(holder) = &device.head().active_run {
        return LifecycleDecision::Idle(held_by(holder));
    }
    let mut record = device.in_state(state, Some(run.id.clone()));
    record.head_mut().active_run = Some(run.id.clone());
    LifecycleChange { start: vec![run], ..LifecycleChange::new(record, note) }.into()
}

/// A one-step run that the device's own lifecycle starts.
pub(crate) fn engine_run<D: Device>(
    device: &D,
    observed: &DeviceContext,
    step: (RunType, RunStep),
) -> NewRun {
    own_run(device, observed.fresh.clone(), step, "engine".into())
}

pub(crate) fn reading() -> (RunType, RunStep) {
    let effect = Effect::Device { work: DeviceWork::Read };
    (RunType::Intake, run_step("read", READ.0, READ.1, effect))
}

pub(crate) fn configuring() -> (RunType, RunStep) {
    let effect = Effect::Device { work: DeviceWork::Configure };
    (RunType::Intake, run_step("configure", CONFIGURE.0, CONFIGURE.1, effect))
}

pub(crate) fn fail<D: Device>(device: &D, cause: DeviceFailure) -> LifecycleDecision<D> {
    let note = HistoryNote::new(cause.message.clone(), here!());
    transition_to(device, D::in_error(cause), note)
}

pub(crate) fn held_by(holder: &RunId) -> IdleReason {
    IdleReason::new(format!("it is held by operation {holder}"))
}

/// The normal duration of a device's own step.
pub(crate) const fn normal_duration((timeout, _): (u32, u32)) -> Option<Duration> {
    Some(Duration::from_secs(timeout as u64))
}
