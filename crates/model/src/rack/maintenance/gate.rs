//! The gates of a rack maintenance. A dry run shows all refusals; a request is refused with the
//! first.

use super::super::{Device, Rack, RackState};
use super::{FORCED, Leg, Planned, Trigger};
use crate::blast::{Against, Dark, Fate, permit};
use crate::health::{Standing, Wish};
use crate::lifecycle::Lifecycle;
use crate::refusal::Refusal;
use crate::run::Run;
use crate::target::{TargetId, TargetKind};
use std::collections::BTreeSet;

/// All refusals: by the state of the rack, by operations that hold its devices, by health reports,
/// and by affected machines that are needed.
pub fn gates(rack: &Rack, planned: &Planned, force: Option<&str>) -> Vec<Refusal> {
    let state = admit(rack, planned.wanted.scope.is_full(), planned.trigger).err();
    let held = planned.devices.iter().filter_map(|device| busy(rack, device, planned.trigger));
    // With an unknown firmware the affected machines are unknown too.
    let dark = if planned.unknown.is_some() { None } else { interlock(planned, force).err() };
    let ill = ill(rack, &planned.devices, force);
    state.into_iter().chain(held).chain(ill).chain(dark).collect()
}

/// The health reports of the rack and its devices that prevent a start.
pub(crate) fn ill(rack: &Rack, devices: &[Device], force: Option<&str>) -> Vec<Refusal> {
    let own = (rack.target(), &rack.head.health);
    let all = devices.iter().map(|device| (device.target.clone(), &device.health));
    let permit = |(target, health): (TargetId, &Standing)| {
        health.permit(&target, "maintenance", Wish::Change, force).err()
    };
    [own].into_iter().chain(all).filter_map(permit).collect()
}

/// The documented preconditions. While other operations are active in the rack, a request with a
/// limited scope may join them.
pub fn admit(rack: &Rack, full: bool, trigger: Trigger) -> Result<(), Refusal> {
    let id = &rack.head.id;
    let why = format!("farrier why {id}");
    let not_ready =
        |said: String| Err(Refusal::precondition("RACK_NOT_READY", said).next(why.clone()));
    if rack.head.deleted {
        return not_ready(format!("{id} is marked for deletion"));
    }
    if let Some(pending) = &rack.reprovision_requested {
        let said = format!("a reprovision of {id} is pending: {pending}");
        return Err(Refusal::precondition("MAINTENANCE_PENDING", said).next(why));
    }
    let joins = !full && trigger == Trigger::OnDemand;
    match &rack.state {
        RackState::Ready if rack.topology_changed => {
            not_ready(format!("the devices of {id} have changed, and it looks for them first"))
        }
        RackState::Ready | RackState::Error { .. } => match rack.maintenance_requested.first() {
            Some(pending) if full && trigger == Trigger::OnDemand => {
                let said = format!("a maintenance of {id} is already pending: {pending}");
                Err(Refusal::precondition("MAINTENANCE_PENDING", said).next(why))
            }
            Some(_) | None => Ok(()),
        },
        RackState::Maintenance { .. } | RackState::Validating if joins => Ok(()),
        RackState::Created
        | RackState::Discovering
        | RackState::Maintenance { .. }
        | RackState::Validating
        | RackState::Deleting => {
            let with = rack.active.first().map(|run| format!(" with {run}")).unwrap_or_default();
            not_ready(format!(
                "{id} is in {}{with}; a maintenance can only be asked for in Ready or Error",
                rack.word()
            ))
        }
    }
}

/// Refuses a device that an operation holds. A pending maintenance that has not begun gives way to
/// a reprovision.
fn busy(rack: &Rack, device: &Device, trigger: Trigger) -> Option<Refusal> {
    let holder = device.active_run.as_ref()?;
    let gives_way = trigger == Trigger::Reprovision && rack.maintenance_requested.contains(holder);
    (!gives_way).then(|| device.target.held_by(holder))
}

/// Machines in service are affected only by force, with a reason that is recorded.
pub fn interlock(planned: &Planned, force: Option<&str>) -> Result<(), Refusal> {
    let what = match planned.fate {
        Fate::LosePower => "this power sequence",
        Fate::Restart => "this firmware upgrade",
        Fate::LoseFabric => "this maintenance",
    };
    permit(what, planned.fate, &planned.dark, force)
}

/// Checks whether an operation may execute its remaining steps now. It may have been accepted, or
/// have failed, long ago. `devices` are all devices of the rack.
pub fn may_go_on(run: &Run, devices: &[Device]) -> Result<(), Refusal> {
    let (id, rack) = (&run.spec.id, &run.spec.target);
    let stands = |target: &TargetId| devices.iter().any(|device| device.target == *target);
    if let Some(gone) = run.spec.claims.iter().find(|target| !stands(target)) {
        let said =
            format!("{gone} does not stand in {rack} any more, and {id} was planned with it");
        return Err(Refusal::precondition("DEVICE_MOVED", said)
            .next(format!("farrier run rerun {id}   # planned from what stands there now")));
    }
    let left = run.progress.steps.iter().skip(run.progress.at);
    let (mut all, mut fabric, mut fate) = (false, false, Fate::LoseFabric);
    let mut named = BTreeSet::new();
    for step in left.filter_map(|state| run.plan_step(state)) {
        match Leg::parse(&step.name) {
            Some(Leg::PowerOff(TargetKind::PowerShelf)) => (all, fate) = (true, Fate::LosePower),
            Some(
                leg @ (Leg::PowerOff(TargetKind::Machine) | Leg::Firmware(TargetKind::Machine)),
            ) => {
                fate = match (leg, fate) {
                    (Leg::PowerOff(_), _) | (_, Fate::LosePower) => Fate::LosePower,
                    (_, Fate::Restart | Fate::LoseFabric) => Fate::Restart,
                };
                let parts = step.effect.group().map(|group| group.parts.as_slice());
                named.extend(parts.unwrap_or_default().iter().map(|part| &part.target));
            }
            Some(
                Leg::FabricOff
                | Leg::Firmware(TargetKind::Switch)
                | Leg::PowerOff(TargetKind::Switch),
            ) => fabric = true,
            Some(
                Leg::Firmware(_)
                | Leg::PowerOff(_)
                | Leg::PowerOn(_)
                | Leg::FabricManager
                | Leg::FabricConfigured
                | Leg::Validate,
            )
            | None => {}
        }
    }
    let suffers = |device: &&Device| {
        let needed = device.dark.as_ref().is_some_and(Dark::is_needed);
        all || named.contains(&device.target) || (fabric && needed)
    };
    let taken = devices.iter().filter(suffers);
    let own = |dark: &Dark| dark.against == Some(Against::HeldBy(id.clone()));
    let dark: Vec<Dark> =
        taken.filter_map(|one| one.dark.clone()).filter(|one| !own(one)).collect();
    let forced = run.spec.params.get(FORCED).map(String::as_str);
    permit(&format!("what is left of {id}"), fate, &dark, forced).map_err(|refusal| {
        let anew = format!("farrier rack maintenance start {rack} … --force --reason …");
        refusal.next(format!("{anew}   # or move their work away first"))
    })
}
