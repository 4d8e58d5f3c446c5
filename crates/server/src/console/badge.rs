//! Badges of states: a sign, a word and a colour, so that colour is never the only difference. The
//! meanings are those of the API documentation.

use super::text::clean_text;
use maud::{Markup, html};
use model::condition::{Condition, ConditionType};
use model::machine::view::EffectiveState;
use model::machine::{Machine, MachineProblem};
use model::node::NodeState;
use model::run::{RunPhase, StepPhase, Workflow};

/// The colour of a badge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tone {
    Gray,
    Green,
    Blue,
    Yellow,
    Orange,
    Red,
}

impl Tone {
    pub const fn class(self) -> &'static str {
        match self {
            Self::Gray => "gray",
            Self::Green => "green",
            Self::Blue => "blue",
            Self::Yellow => "yellow",
            Self::Orange => "orange",
            Self::Red => "red",
        }
    }
}

/// The display of a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Badge {
    pub tone: Tone,
    pub sign: &'static str,
    pub label: &'static str,
    /// The meaning of the state, and what the operator does about it.
    pub meaning: &'static str,
    pub action: &'static str,
}

impl Badge {
    pub fn draw(self) -> Markup {
        let reported = format!("{}: {}", self.meaning, self.action);
        html! {
            span class={ "badge " (self.tone.class()) } title=[(!self.meaning.is_empty()).then_some(reported)] {
                span aria-hidden="true" { (self.sign) " " } (self.label)
            }
        }
    }
}

const fn plain_badge(tone: Tone, sign: &'static str, name: &'static str) -> Badge {
    Badge { tone, sign, label: name, meaning: "", action: "" }
}

pub(super) const fn effective_state_badge(state: EffectiveState) -> Badge {
    let (tone, sign, meaning, action) = match state {
        EffectiveState::New => (Tone::Gray, "○", "needs setup", "enter maintenance, reimage"),
        EffectiveState::Idle => (Tone::Green, "✓", "healthy", "ready for work"),
        EffectiveState::Busy => (Tone::Blue, "▸", "working", "wait or cancel"),
        EffectiveState::Maintenance => (Tone::Yellow, "‖", "out of service", "reimage, then exit"),
        EffectiveState::Attention => (Tone::Orange, "!", "needs help", "investigate, remediate"),
        EffectiveState::Blocked => (Tone::Red, "×", "unusable", "RMA or decommission"),
    };
    Badge { tone, sign, label: state.as_str(), meaning, action }
}

/// The effective state of a machine. A machine with a problem keeps its documented state and is
/// not shown as healthy.
pub(super) fn machine_badge(machine: &Machine) -> Badge {
    let badge = effective_state_badge(machine.effective_state());
    match deviation(machine) {
        Some(meaning) => {
            Badge { tone: Tone::Orange, sign: "!", meaning, action: "farrier why …", ..badge }
        }
        None => badge,
    }
}

/// What is wrong with a machine that its effective state does not say, in a few words.
pub(super) fn deviation(machine: &Machine) -> Option<&'static str> {
    let alarmed = match machine.effective_state() {
        // These states call for an operator by themselves.
        EffectiveState::Attention | EffectiveState::Blocked => false,
        EffectiveState::New
        | EffectiveState::Idle
        | EffectiveState::Busy
        | EffectiveState::Maintenance => machine.health.state_changes.is_some(),
    };
    let alert = alarmed.then_some("a health alert prevents changes");
    machine.problem().map(MachineProblem::label).or(alert)
}

/// A workflow state, displayed as its phase.
pub(super) const fn workflow_badge(state: Workflow) -> Badge {
    Badge { label: state.as_str(), ..run_phase_badge(state.phase()) }
}

pub(super) const fn run_phase_badge(phase: RunPhase) -> Badge {
    match phase {
        RunPhase::Pending => plain_badge(Tone::Gray, "○", phase.as_str()),
        RunPhase::Running => plain_badge(Tone::Blue, "▸", phase.as_str()),
        RunPhase::Succeeded => plain_badge(Tone::Green, "✓", phase.as_str()),
        RunPhase::Failed => plain_badge(Tone::Red, "×", phase.as_str()),
        RunPhase::Canceled => plain_badge(Tone::Yellow, "‖", phase.as_str()),
    }
}

pub(super) const fn step_phase_badge(phase: StepPhase) -> Badge {
    match phase {
        StepPhase::Waiting => plain_badge(Tone::Gray, "○", "waiting"),
        StepPhase::Running => plain_badge(Tone::Blue, "▸", "running"),
        StepPhase::Succeeded => plain_badge(Tone::Green, "✓", "succeeded"),
        StepPhase::Failed => plain_badge(Tone::Red, "×", "failed"),
    }
}

/// The badge of a rack, a switch, a power shelf, a node, a site or a machine in a rack. `word` is
/// its state.
pub(super) fn record_state_badge(name: &str, shown: &str) -> Markup {
    let sign = match record_tone(name) {
        Tone::Gray => "○",
        Tone::Green => "✓",
        Tone::Blue => "▸",
        Tone::Yellow => "‖",
        Tone::Orange => "!",
        Tone::Red => "×",
    };
    html! {
        span class={ "badge " (record_tone(name).class()) } {
            span aria-hidden="true" { (sign) " " } (clean_text(shown))
        }
    }
}

/// The colour of a record's state. Unknown states are gray.
pub(super) fn record_tone(name: &str) -> Tone {
    if let Some(state) = EffectiveState::ALL.into_iter().find(|state| state.as_str() == name) {
        return effective_state_badge(state).tone;
    }
    match name {
        "Ready" | "Connected" => Tone::Green,
        "Unreachable" | "CutOff" => Tone::Orange,
        "Error" | "FailedFirmwareUpgrade" => Tone::Red,
        "Deleting" => Tone::Yellow,
        "Created" => Tone::Gray,
        name => NodeState::parse(name).map_or_else(|| transition_tone(name), node_tone),
    }
}

pub(super) const fn node_tone(state: NodeState) -> Tone {
    match state {
        NodeState::Active => Tone::Green,
        NodeState::Enrolling | NodeState::Draining | NodeState::Removing => Tone::Blue,
        NodeState::Retired => Tone::Yellow,
        NodeState::Offline => Tone::Orange,
        NodeState::Quarantined => Tone::Red,
        NodeState::BootstrapIssued | NodeState::Deleted => Tone::Gray,
    }
}

fn transition_tone(name: &str) -> Tone {
    match name {
        "Initializing"
        | "FetchingData"
        | "Configuring"
        | "Validating"
        | "Discovering"
        | "Maintenance"
        | "ReProvisioning"
        | "CheckingFirmwareV2"
        | "WaitingForRackFirmwareUpgrade" => Tone::Blue,
        _ => Tone::Gray,
    }
}

/// The state in an event, as a badge if it is known.
pub(super) fn event_state_badge(name: &str) -> Markup {
    let state = EffectiveState::ALL.into_iter().find(|state| state.as_str() == name);
    if let Some(state) = state {
        return effective_state_badge(state).draw();
    }
    match Workflow::parse(name) {
        Some(state) => workflow_badge(state).draw(),
        None => html! { (clean_text(name)) },
    }
}

/// The tone of a condition's status: good, bad or neutral.
pub(super) const fn condition_tone(condition: ConditionType, status: bool) -> Tone {
    match (condition, status) {
        (ConditionType::Reachable | ConditionType::BmcReachable, false) => Tone::Red,
        (
            ConditionType::Reachable
            | ConditionType::BmcReachable
            | ConditionType::Provisioned
            | ConditionType::InCustomerCluster,
            true,
        ) => Tone::Green,
        (ConditionType::NeedsIntervention | ConditionType::Degraded, true) => Tone::Orange,
        (ConditionType::Rma | ConditionType::Retired, true) => Tone::Red,
        (ConditionType::OperationCanceled | ConditionType::Drained, true) => Tone::Yellow,
        (
            ConditionType::Provisioned
            | ConditionType::InCustomerCluster
            | ConditionType::NeedsIntervention
            | ConditionType::Degraded
            | ConditionType::Rma
            | ConditionType::Retired
            | ConditionType::OperationCanceled
            | ConditionType::Drained,
            false,
        ) => Tone::Gray,
    }
}

/// The mark of a machine on which no image was installed here, as in `farrier list`.
pub(super) fn never_mark() -> Markup {
    html! { span.mark.gray title="no image was installed on it here" { "never" } }
}

/// A condition in a table cell: yes, no, or a dash when it was never probed.
pub(super) fn condition_mark(condition: ConditionType, known: Option<&Condition>) -> Markup {
    let Some(known) = known else {
        return html! { span.mark.gray title="not known yet" { "–" span.vh { " not known" } } };
    };
    let (sign, name) = if known.status { ("✓", "yes") } else { ("×", "no") };
    let tone = condition_tone(condition, known.status).class();
    html! {
        span class={ "mark " (tone) } title=(clean_text(&known.reason)) {
            span aria-hidden="true" { (sign) " " } (name)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn badges_match_the_documentation() {
        let table = [
            (EffectiveState::New, Tone::Gray),
            (EffectiveState::Idle, Tone::Green),
            (EffectiveState::Busy, Tone::Blue),
            (EffectiveState::Maintenance, Tone::Yellow),
            (EffectiveState::Attention, Tone::Orange),
            (EffectiveState::Blocked, Tone::Red),
        ];
        for (state, tone) in table {
            let badge = effective_state_badge(state);
            assert_eq!(badge.tone, tone);
            let shown = badge.draw().into_string();
            assert!(shown.contains(state.as_str()) && shown.contains(badge.meaning), "{shown}");
        }
    }

    #[test]
    fn an_idle_machine_that_is_off_is_not_healthy() {
        use model::condition::{ConditionObservation, POWERED_OFF};
        use model::machine::{Labels, MachineSpec, Phase};
        let id = model::id::MachineId::trusted("m-1");
        let now = model::time::Timestamp::default();
        let mut machine = Machine::new(id, MachineSpec::default(), Labels::new(), now);
        machine.phase = Phase::Ready;
        assert_eq!(machine_badge(&machine), effective_state_badge(EffectiveState::Idle));
        let off = ConditionObservation::new(ConditionType::Reachable, false, POWERED_OFF);
        machine.learn(&[off], now);
        let badge = machine_badge(&machine);
        assert_eq!((badge.label, badge.tone), ("IDLE", Tone::Orange));
        assert!(!badge.draw().into_string().contains("healthy"));
        let no_bmc = ConditionObservation::new(ConditionType::BmcReachable, false, "Timeout");
        let mut deaf = Machine { conditions: Default::default(), ..machine.clone() };
        deaf.learn(&[no_bmc], now);
        assert_eq!((machine_badge(&deaf).tone, machine_badge(&deaf).sign), (Tone::Orange, "!"));
        assert!(deaf.is_never_imaged() && never_mark().into_string().contains("never"));
        machine.phase = Phase::Maintenance;
        assert_eq!(machine_badge(&machine), effective_state_badge(EffectiveState::Maintenance));
    }

    #[test]
    fn no_two_states_differ_by_colour_alone() {
        let all = EffectiveState::ALL.map(effective_state_badge);
        for (index, one) in all.iter().enumerate() {
            for other in &all[index + 1..] {
                assert!(one.sign != other.sign && one.label != other.label);
            }
        }
    }

    #[test]
    fn event_states_are_known_or_escaped() {
        assert!(event_state_badge("ATTENTION").into_string().contains("orange"));
        assert!(event_state_badge("failed_retryable").into_string().contains("red"));
        assert_eq!(event_state_badge("<b>").into_string(), "&lt;b&gt;");
    }
}
