//! Predicts a device's own transitions after a request, for dry runs.

use crate::run::RecordedDurations;
use crate::scheduler::lifecycle::LoadContext;
use crate::topology::{self, DeviceLocation, DeviceMove};
use model::device::{Device, Prediction, predict_steps};
use model::id::RunId;
use model::lifecycle::DeviceContext;
use model::run::{TimeEstimate, UsualTime};
use model::target::TargetId;
use model::time::Timestamp;
use store::{Result, Tx};

/// The transitions of a device after a dry run, and what its racks do then.
pub(super) async fn follows<D: Device<TurnInput = DeviceContext> + LoadContext>(
    tx: &mut Tx,
    device: &D,
    fresh: &RunId,
    now: Timestamp,
) -> Result<Vec<String>> {
    let observed = device.load_context(tx, fresh.clone(), now).await?;
    let mut follows = with_time(tx, device, predict_steps(device, observed, now)).await?;
    // A dry run has written nothing: the stored record is the old one.
    let head = device.head();
    let before = tx.record::<D>(&head.id).await?;
    let gone = head.deleted && !before.as_ref().is_some_and(|one| one.head().deleted);
    let before = before.map_or(DeviceLocation::NOWHERE, |one| DeviceLocation::of(one.head()));
    let after = if gone { DeviceLocation::NOWHERE } else { DeviceLocation::of(head) };
    let device = TargetId::new(D::TARGET, head.id.clone());
    let moved = DeviceMove { device, from: before, to: after };
    follows.extend(topology::predict_racks(tx, &[moved]).await?);
    Ok(follows)
}

/// The predictions in words; each step with the time that it takes.
async fn with_time<D: Device>(
    tx: &mut Tx,
    device: &D,
    predicted: Vec<Prediction>,
) -> Result<Vec<String>> {
    let target = TargetId::new(D::TARGET, device.head().id.clone());
    let steps = predicted.iter().filter_map(|one| one.step.as_ref());
    let steps = steps.map(|(plan, step)| (&target, plan.clone(), step.name.as_str()));
    let recorded = RecordedDurations::load(tx, steps).await?;
    let words = |one: Prediction| match one.step {
        Some((plan, step)) => {
            let usual = recorded.usual(&target, &plan, &step.name);
            let usual = usual.as_ref().map(UsualTime::from);
            let time = TimeEstimate { usual, limit: step.time_limit() };
            format!("{}, {}", one.message, time.words())
        }
        None => one.message,
    };
    Ok(predicted.into_iter().map(words).collect())
}
