//! The input of a rack's lifecycle: its devices, its operations, and the firmware of an ingestion.

use super::maintenance::{Leg, Limits};
use super::{Counts, During, Powered, RackTrouble, power_said};
use crate::blast::{Against, Dark};
use crate::condition::ConditionType;
use crate::effect::PowerTo;
use crate::fault::Code;
use crate::firmware::Resolution;
use crate::health::Standing;
use crate::id::{NodeId, RunId};
use crate::lifecycle::{Lifecycle, Trouble};
use crate::machine::Machine;
use crate::power_shelf::{PowerShelf, PowerShelfState};
use crate::run::{Run, RunPhase};
use crate::switch::{Switch, SwitchState};
use crate::target::{TargetId, TargetKind};

/// A device in a rack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    pub target: TargetId,
    pub slot: Option<u32>,
    /// The name of its state.
    pub state: String,
    /// The device has come into service. Machines have no lifecycle to wait for, so they are always
    /// ready.
    pub ready: bool,
    pub active_run: Option<RunId>,
    /// None when unknown.
    pub power: Option<PowerTo>,
    /// The objection to taking it down; machines only.
    pub dark: Option<Dark>,
    /// Why no operation may touch it.
    pub blocked: Option<String>,
    /// The summary of its health reports.
    pub health: Standing,
}

impl Device {
    /// `serves` is the node in service on the machine, if there is one.
    pub fn of_machine(machine: &Machine, serves: Option<&NodeId>) -> Self {
        let flag = [ConditionType::Retired, ConditionType::Rma]
            .into_iter()
            .find(|flag| machine.is(*flag))
            .map(|flag| format!("{} is flagged {}", machine.id, flag.as_str()));
        Self {
            target: TargetId::from(&machine.id),
            slot: machine.spec.slot,
            state: machine.effective_state().as_str().into(),
            ready: true,
            active_run: machine.active_run.clone(),
            power: None,
            dark: Some(Dark::of(machine, serves)),
            blocked: flag,
            health: machine.health.clone(),
        }
    }

    pub fn of_switch(switch: &Switch) -> Self {
        let ready = matches!(switch.state, SwitchState::Ready);
        let power = switch.facts.power;
        Self::of_record(TargetKind::Switch, switch, ready, power)
    }

    pub fn of_shelf(shelf: &PowerShelf) -> Self {
        let ready = matches!(shelf.state, PowerShelfState::Ready);
        let power = shelf.facts.power;
        Self::of_record(TargetKind::PowerShelf, shelf, ready, power)
    }

    fn of_record<R: Lifecycle>(
        kind: TargetKind,
        record: &R,
        ready: bool,
        power: Option<PowerTo>,
    ) -> Self {
        let head = record.head();
        Self {
            target: TargetId::new(kind, head.id.as_str()),
            slot: head.slot,
            state: record.word().into(),
            ready,
            active_run: head.active_run.clone(),
            power,
            dark: None,
            blocked: head.deleted.then(|| format!("{} is marked for deletion", head.id)),
            health: head.health.clone(),
        }
    }

    /// A device whose record cannot be read. It is shown but not touched, and does not block the
    /// other devices.
    pub fn unreadable(target: TargetId, said: &str) -> Self {
        Self {
            dark: target.machine().map(Dark::unreadable),
            blocked: Some(format!("{target} cannot be worked on: {said}")),
            target,
            slot: None,
            state: "Unreadable".into(),
            ready: false,
            active_run: None,
            power: None,
            health: Standing::default(),
        }
    }

    /// True if it is a machine whose workloads have not been moved away.
    pub fn in_service(&self) -> bool {
        let against = self.dark.as_ref().and_then(|dark| dark.against.as_ref());
        matches!(against, Some(Against::InService | Against::Serves(_)))
    }

    /// The sort key: from the bottom to the top, devices without a slot last.
    pub(crate) fn place(&self) -> (u32, &str) {
        (self.slot.unwrap_or(u32::MAX), self.target.as_str())
    }
}

/// An operation on the rack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operation {
    pub id: RunId,
    pub phase: RunPhase,
    /// The current or last step; none before the first.
    pub leg: Option<Leg>,
    /// Child runs are active, although the operation may have ended.
    pub parts_at_work: bool,
    pub claims: Vec<TargetId>,
    pub trouble: Option<RackTrouble>,
    /// The operation that this one reruns.
    pub parent: Option<RunId>,
    /// Why an accepted operation may not begin now; computed only before it has begun.
    pub against: Option<String>,
}

impl Operation {
    /// `failed` is the child run that caused its failure, if any.
    pub fn of(run: &Run, parts_at_work: bool, failed: Option<&Run>) -> Self {
        let last = run.progress.steps.iter().rfind(|step| step.started_at.is_some());
        let leg = last.and_then(|step| run.plan_step(step));
        let leg = leg.and_then(|step| Leg::parse(&step.name));
        Self {
            id: run.spec.id.clone(),
            phase: run.phase(),
            leg,
            parts_at_work,
            claims: run.spec.claims.clone(),
            trouble: trouble(run, leg, failed),
            parent: run.spec.parent.clone(),
            against: None,
        }
    }

    /// True if a power sequence stopped before its end.
    pub fn stopped_switching(&self) -> bool {
        self.trouble.as_ref().is_some_and(|trouble| trouble.during == During::PowerSequence)
    }

    /// Adds the power states that a stopped sequence left behind. The failure of a child run
    /// contains them already.
    pub fn tell_power(&mut self, devices: &[Powered]) {
        if let Some(RackTrouble { trouble, .. }) = &mut self.trouble
            && Code::parse(&trouble.code) != Some(Code::PartFailed)
            && !devices.is_empty()
        {
            trouble.said = format!("{}; {}", trouble.said, power_said(devices));
        }
    }

    /// True if the operation and all its child runs have ended.
    pub(crate) fn is_over(&self) -> bool {
        self.phase.ended() && !self.parts_at_work
    }

    pub(crate) fn words(&self) -> String {
        let at = self.leg.map_or("not begun", Leg::as_str);
        match self.phase.ended() {
            true => format!("parts of {} are still at work", self.id),
            false => format!("{} is at work: {at}", self.id),
        }
    }
}

fn trouble(run: &Run, leg: Option<Leg>, failed: Option<&Run>) -> Option<RackTrouble> {
    let id = &run.spec.id;
    let rack = &run.spec.target;
    let during = During::of(leg);
    let anew = format!("farrier run rerun {id}");
    match (run.phase(), &run.progress.failure) {
        (RunPhase::Pending | RunPhase::Running | RunPhase::Succeeded, _) => None,
        (RunPhase::Failed | RunPhase::Canceled, Some(failure)) => {
            let part = failed.and_then(|part| part.progress.failure.as_ref());
            let fault = part.map_or(&failure.fault, |failure| &failure.fault);
            let trouble = Trouble {
                said: fault.said.clone(),
                run: Some(failed.map_or(id, |part| &part.spec.id).clone()),
                code: fault.code.as_str().into(),
            };
            let retry = format!("farrier run retry-step {id}   # or, all of it anew: {anew}");
            let next = if run.spec.steps.is_empty() { anew } else { retry };
            let device = failed.map(|part| part.spec.target.clone());
            Some(RackTrouble { during, device, trouble, next })
        }
        (RunPhase::Failed | RunPhase::Canceled, None) => {
            let by = run.progress.halt.as_ref().map(|halt| format!(" by {}", halt.by));
            let said = format!(
                "{id} was canceled{}, and what it began may be half done",
                by.unwrap_or_default()
            );
            let trouble = Trouble { said, run: Some(id.clone()), code: String::new() };
            let next = format!("{anew}   # or another one: farrier rack maintenance start {rack}");
            Some(RackTrouble { during, device: None, trouble, next })
        }
    }
}

#[derive(Debug, Clone)]
pub struct Seen {
    /// The id for a run that this turn may start.
    pub fresh: RunId,
    pub devices: Vec<Device>,
    /// The operations that the rack names, as far as they exist.
    pub operations: Vec<Operation>,
    /// The firmware of an ingestion.
    pub firmware: Resolution,
    pub limits: Limits,
}

impl Seen {
    pub(crate) fn operation(&self, id: &RunId) -> Option<&Operation> {
        self.operations.iter().find(|one| one.id == *id)
    }

    /// A run that no longer exists counts as ended.
    pub(crate) fn is_over(&self, id: &RunId) -> bool {
        self.operation(id).is_none_or(Operation::is_over)
    }

    /// Why an accepted operation may not begin.
    pub(crate) fn against(&self, id: &RunId) -> Option<&str> {
        self.operation(id)?.against.as_deref()
    }

    pub(crate) fn went_well(&self, id: &RunId) -> bool {
        self.operation(id).is_some_and(|one| one.phase == RunPhase::Succeeded)
    }

    /// True if one of these operations includes the device that failed. A failure without a device
    /// concerns all of them.
    pub(crate) fn touches(&self, ids: &[RunId], cause: &RackTrouble) -> bool {
        let mut at_work = ids.iter().filter_map(|id| self.operation(id));
        cause.device.as_ref().is_none_or(|device| at_work.any(|one| one.claims.contains(device)))
    }

    /// True if `one` reruns `of`.
    pub(crate) fn is_anew(&self, one: &RunId, of: &RunId) -> bool {
        self.operation(one).is_some_and(|one| one.parent.as_ref() == Some(of))
    }

    pub(crate) fn going<'a>(&'a self, ids: &'a [RunId]) -> impl Iterator<Item = &'a Operation> {
        ids.iter().filter_map(|id| self.operation(id)).filter(|one| !one.is_over())
    }

    pub(crate) fn any_going(&self, ids: &[RunId]) -> bool {
        self.going(ids).next().is_some()
    }

    /// The failure of the first operation that did not succeed.
    pub(crate) fn trouble(&self, ids: &[RunId]) -> Option<RackTrouble> {
        ids.iter().find_map(|id| match self.operation(id) {
            Some(operation) => operation.trouble.clone(),
            None => Some(RackTrouble {
                during: During::Validation,
                device: None,
                trouble: Trouble {
                    said: format!("{id} is not there any more, and nobody knows how it ended"),
                    run: Some(id.clone()),
                    code: String::new(),
                },
                next: "farrier rack maintenance start …".into(),
            }),
        })
    }

    /// Describes the devices that are missing for the rack to be complete.
    pub(crate) fn missing(&self, expected: Counts) -> Vec<String> {
        let count = |kind: TargetKind| {
            let there = self.devices.iter().filter(|device| device.target.kind == kind).count();
            u32::try_from(there).unwrap_or(u32::MAX)
        };
        let counts = [
            (TargetKind::Machine, expected.machines, "machines"),
            (TargetKind::Switch, expected.switches, "switches"),
            (TargetKind::PowerShelf, expected.power_shelves, "power shelves"),
        ];
        let short = counts.into_iter().filter_map(|(kind, wanted, noun)| {
            let there = count(kind);
            (there < wanted).then(|| format!("{there} of {wanted} {noun} stand in it"))
        });
        let waiting = self.devices.iter().filter(|device| !device.ready);
        let waiting = waiting.map(|device| format!("{} is {}", device.target, device.state));
        let mut missing: Vec<String> = short.chain(waiting).collect();
        if self.devices.is_empty() && missing.is_empty() {
            missing.push("no device stands in it".into());
        }
        missing
    }
}
