//! Devices other than machines: what switches and power shelves share, and which observations of
//! them are accepted.
//!
//! A probe tells whether a device answers and what it reports. Its power state is accepted at once,
//! because the device reports it itself. A missing answer is accepted only after several
//! consecutive probes, as for machines.

mod ahead;
pub(crate) mod moves;

pub use ahead::ahead;

use crate::condition::steady::{Doubts, Moment, Steadiness};
use crate::condition::{ConditionType, Conditions, Evidence};
use crate::effect::{Effect, Facts, PowerTo};
use crate::fault::{Code, Fault};
use crate::id::RunId;
use crate::lifecycle::{DeviceSpec, Head, Lifecycle, NewRun, Trouble};
use crate::plan::{Params, RunStep, RunType};
use crate::refusal::Refusal;
use crate::run::{Run, RunPhase};
use crate::target::{TargetId, TargetKind};
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};

/// The reachability of a device, as accepted. Its power state is in its [`Facts`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observed {
    pub reachable: bool,
    /// The message of the last change.
    pub said: String,
    pub at: Timestamp,
}

/// A device with a lifecycle, an address and a place in a rack.
pub trait Device: Lifecycle {
    /// The states of its lifecycle.
    type State;

    const TARGET: TargetKind;
    /// The prefix of its field names in requests.
    const FIELD: &'static str;
    /// The subcommand of `farrier` for this kind.
    const COMMAND: &'static str;

    /// The states in which the device waits for something.
    const WAITING: &'static [&'static str];

    /// Makes an id for a device that was registered without one.
    fn name(now: Timestamp, chance: u64) -> String;
    fn create(head: Head, spec: DeviceSpec) -> Self;
    fn spec(&self) -> &DeviceSpec;
    fn spec_mut(&mut self) -> &mut DeviceSpec;
    fn facts(&self) -> &Facts;
    fn observed(&self) -> Option<&Observed>;
    fn observed_mut(&mut self) -> &mut Option<Observed>;
    /// A copy in another state, which waits for this run or for none. A requested retry is cleared.
    fn in_state(&self, state: Self::State, run: Option<RunId>) -> Self;
    fn in_error(cause: Trouble) -> Self::State;
    /// The run that its state waits for.
    fn run(&self) -> Option<&RunId>;
    /// The cause, in the error state.
    fn trouble(&self) -> Option<&Trouble>;
    /// Requests a retry of what failed.
    fn want_retry(&mut self);
    /// True if the device is polled in its current state.
    fn is_watched(&self) -> bool;
    /// The activity within its state, such as the operation of a maintenance.
    fn detail(&self) -> String {
        String::new()
    }

    /// The run whose end moves the device on: the one that its state waits for, or the failed one,
    /// which an operator may have resumed and completed.
    fn waits_for(&self) -> Option<&RunId> {
        match self.trouble() {
            Some(cause) => cause.run.as_ref(),
            None => self.run(),
        }
    }

    fn target(&self) -> TargetId {
        TargetId::new(Self::TARGET, self.head().id.as_str())
    }
}

/// Requests a retry; refused unless the device is in the error state.
pub fn retry<D: Device>(device: &mut D) -> Result<(), Refusal> {
    let id = &device.head().id;
    if device.trouble().is_none() {
        let said = format!("{id} is {}: only what is in Error can be tried again", device.word());
        return Err(Refusal::precondition("NOT_IN_ERROR", said)
            .next(format!("farrier {} get {id}", D::COMMAND)));
    }
    device.want_retry();
    Ok(())
}

/// A run that the device's own lifecycle starts on it.
pub(crate) fn own_run<D: Device>(
    device: &D,
    id: RunId,
    step: (RunType, RunStep),
    initiator: String,
) -> NewRun {
    let (run_type, step) = step;
    NewRun {
        request_id: id.to_string(),
        id,
        target: device.target(),
        run_type,
        steps: vec![step],
        initiator,
        part_of: None,
        reports_to: Some(device.subject()),
        claims: Vec::new(),
        params: Params::new(),
    }
}

/// The known power state of a device: the last reading, or unknown when the last run was a power
/// change that did not succeed.
pub fn power_known(read: Option<PowerTo>, last: Option<&Run>) -> Option<PowerTo> {
    let in_doubt = |run: &Run| switches_power(run).is_some() && run.phase() != RunPhase::Succeeded;
    if last.is_some_and(in_doubt) { None } else { read }
}

/// The power state that a run leaves behind, if it switches power.
pub fn switches_power(run: &Run) -> Option<PowerTo> {
    run.spec.steps.iter().rev().find_map(|step| {
        let Effect::Power { to, .. } = &step.effect else { return None };
        Some(*to)
    })
}

/// The reason of a device that answers.
const ANSWERS: &str = "it answers";

/// The poller's memory of one device.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Glance {
    doubts: Doubts,
    /// The row version that the poller last read or wrote. A different one means another component
    /// changed the device.
    version: Option<i64>,
}

/// The changes that a probe causes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct News {
    pub observed: Observed,
    pub facts: Facts,
    /// The changes, for the history.
    pub said: String,
}

impl Glance {
    /// Records a probe; returns what is new and accepted.
    pub fn look<D: Device>(
        &mut self,
        device: &D,
        seen: Result<Facts, Fault>,
        steadiness: Steadiness,
        now: Timestamp,
    ) -> Option<News> {
        let moment = match self.version.replace(device.head().version) {
            Some(version) if version != device.head().version => Moment::Deliberate,
            Some(_) | None => Moment::Routine,
        };
        let (evidence, facts) = match seen {
            Ok(facts) => (Evidence::new(ConditionType::BmcReachable, true, ANSWERS), Some(facts)),
            // The probe is not supported, or the database is unreachable: nothing was observed.
            Err(fault) if tells_nothing(fault.code) => return None,
            Err(fault) => (Evidence::new(ConditionType::BmcReachable, false, fault.said), None),
        };
        let known = conditions(device.observed());
        let believed = self.doubts.sift(&known, vec![evidence], moment, steadiness).pop();
        let mut learned = device.facts().clone();
        if let Some(facts) = &facts {
            learned.learn(facts);
        }
        let mut said = Vec::new();
        let observed = match (believed, device.observed()) {
            (Some(one), _) => {
                said.push(one.reason.clone());
                Observed { reachable: one.status, said: one.reason, at: now }
            }
            (None, Some(known)) if learned != *device.facts() => known.clone(),
            (None, _) => return None,
        };
        said.extend(changes(device.facts(), &learned));
        Some(News { observed, facts: learned, said: said.join(", ") })
    }

    /// The observation was stored, and the row now has this version.
    pub fn written(&mut self, version: i64) {
        self.version = Some(version);
    }
}

const fn tells_nothing(code: Code) -> bool {
    matches!(code, Code::NotSupported | Code::CapabilityMissing | Code::DatabaseUnreachable)
}

fn conditions(observed: Option<&Observed>) -> Conditions {
    let mut known = Conditions::default();
    if let Some(observed) = observed {
        let seen =
            Evidence::new(ConditionType::BmcReachable, observed.reachable, observed.said.clone());
        known.learn(&seen, observed.at);
    }
    known
}

fn changes(before: &Facts, after: &Facts) -> Vec<String> {
    let mut said = Vec::new();
    if let (true, Some(power)) = (before.power != after.power, after.power) {
        said.push(format!("power is {}", power_word(power)));
    }
    if before.firmware != after.firmware {
        said.push("its firmware changed".into());
    }
    let named =
        |facts: &Facts| (facts.manufacturer.clone(), facts.model.clone(), facts.serial.clone());
    if named(before) != named(after) {
        said.push(format!("it is {} {}", after.model, after.serial));
    }
    said
}

pub const fn power_word(power: PowerTo) -> &'static str {
    match power {
        PowerTo::On => "on",
        PowerTo::Off => "off",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Labels;
    use crate::switch::Switch;

    const AT: Timestamp = Timestamp::from_millis(1);

    fn switch(reachable: Option<bool>, power: Option<PowerTo>) -> Switch {
        let head = Head::new("sw-1", Labels::new(), AT);
        let mut switch = Switch::create(head, DeviceSpec::default());
        let said = match reachable {
            Some(true) => ANSWERS,
            Some(false) | None => "gone",
        };
        let observed = reachable.map(|reachable| Observed { reachable, said: said.into(), at: AT });
        *switch.observed_mut() = observed;
        switch.learn(&Facts { power, ..Facts::default() });
        switch
    }

    fn saw(power: PowerTo) -> Result<Facts, Fault> {
        Ok(Facts { power: Some(power), ..Facts::default() })
    }

    fn lost() -> Result<Facts, Fault> {
        Err(Fault::new(Code::BmcUnreachable, "gone"))
    }

    #[test]
    fn power_is_believed_at_once_and_silence_after_three_looks() {
        use PowerTo::{Off, On};
        let up = Some(true);
        for (device, looks, news) in [
            (switch(None, None), vec![saw(On)], vec![Some("it answers, power is on")]),
            (switch(None, None), vec![lost()], vec![Some("gone")]),
            (switch(up, Some(On)), vec![saw(On), saw(On)], vec![None, None]),
            (switch(up, Some(On)), vec![saw(Off)], vec![Some("power is off")]),
            (switch(up, Some(On)), vec![lost(), lost(), lost()], vec![None, None, Some("gone")]),
            (switch(up, Some(On)), vec![lost(), lost(), saw(On), lost()], vec![None; 4]),
            (switch(Some(false), Some(On)), vec![saw(On), saw(On)], vec![None, Some("it answers")]),
            (
                switch(up, None),
                vec![Err(Fault::new(Code::NotSupported, "no")), lost()],
                vec![None, None],
            ),
        ] {
            let mut glance = Glance::default();
            for (look, expected) in looks.into_iter().zip(news) {
                let told = glance.look(&device, look.clone(), Steadiness::default(), AT);
                let told = told.map(|news| news.said);
                assert_eq!(told.as_deref(), expected, "{device:?} {look:?}");
            }
        }
    }

    #[test]
    fn what_was_changed_on_purpose_is_believed_at_once() {
        let mut device = switch(Some(true), Some(PowerTo::On));
        let mut glance = Glance::default();
        assert_eq!(glance.look(&device, lost(), Steadiness::default(), AT), None);
        device.head.version += 1;
        let news = glance.look(&device, lost(), Steadiness::default(), AT).unwrap();
        assert!(!news.observed.reachable);
    }

    #[test]
    fn only_what_is_in_error_is_tried_again() {
        let mut device = switch(None, None);
        assert_eq!(retry(&mut device).unwrap_err().reason, "NOT_IN_ERROR");
        let cause = Trouble { said: "no".into(), run: None, code: String::new() };
        device.state = crate::switch::SwitchState::Error { cause };
        retry(&mut device).unwrap();
        assert!(device.retry_requested);
    }
}
