//! Badges of states: a sign, a word and a colour, so that colour is never the only difference. The
//! meanings are those of the API documentation.

use super::text::clean;
use maud::{Markup, html};
use model::condition::{Condition, ConditionType};
use model::machine::view::EffectiveState;
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

/// How a state is displayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Look {
    pub tone: Tone,
    pub sign: &'static str,
    pub word: &'static str,
    /// What the state means, and what the operator does about it.
    pub meaning: &'static str,
    pub action: &'static str,
}

impl Look {
    pub fn badge(self) -> Markup {
        let told = format!("{}: {}", self.meaning, self.action);
        html! {
            span class={ "badge " (self.tone.class()) } title=[(!self.meaning.is_empty()).then_some(told)] {
                span aria-hidden="true" { (self.sign) " " } (self.word)
            }
        }
    }
}

const fn look(tone: Tone, sign: &'static str, word: &'static str) -> Look {
    Look { tone, sign, word, meaning: "", action: "" }
}

pub(super) const fn effective(state: EffectiveState) -> Look {
    let (tone, sign, meaning, action) = match state {
        EffectiveState::New => (Tone::Gray, "○", "needs setup", "enter maintenance, reimage"),
        EffectiveState::Idle => (Tone::Green, "✓", "healthy", "ready for work"),
        EffectiveState::Busy => (Tone::Blue, "▸", "working", "wait or cancel"),
        EffectiveState::Maintenance => (Tone::Yellow, "‖", "out of service", "reimage, then exit"),
        EffectiveState::Attention => (Tone::Orange, "!", "needs help", "investigate, remediate"),
        EffectiveState::Blocked => (Tone::Red, "×", "unusable", "RMA or decommission"),
    };
    Look { tone, sign, word: state.as_str(), meaning, action }
}

/// A workflow state, displayed as its phase.
pub(super) const fn workflow(state: Workflow) -> Look {
    Look { word: state.as_str(), ..run_phase(state.phase()) }
}

pub(super) const fn run_phase(phase: RunPhase) -> Look {
    match phase {
        RunPhase::Pending => look(Tone::Gray, "○", phase.as_str()),
        RunPhase::Running => look(Tone::Blue, "▸", phase.as_str()),
        RunPhase::Succeeded => look(Tone::Green, "✓", phase.as_str()),
        RunPhase::Failed => look(Tone::Red, "×", phase.as_str()),
        RunPhase::Canceled => look(Tone::Yellow, "‖", phase.as_str()),
    }
}

pub(super) const fn step_phase(phase: StepPhase) -> Look {
    match phase {
        StepPhase::Waiting => look(Tone::Gray, "○", "waiting"),
        StepPhase::Running => look(Tone::Blue, "▸", "running"),
        StepPhase::Succeeded => look(Tone::Green, "✓", "succeeded"),
        StepPhase::Failed => look(Tone::Red, "×", "failed"),
    }
}

/// The badge of a rack, a switch, a power shelf, a node, a site or a machine in a rack. `word` is
/// its state.
pub(super) fn record_state(word: &str, shown: &str) -> Markup {
    let sign = match tone_of_record(word) {
        Tone::Gray => "○",
        Tone::Green => "✓",
        Tone::Blue => "▸",
        Tone::Yellow => "‖",
        Tone::Orange => "!",
        Tone::Red => "×",
    };
    html! {
        span class={ "badge " (tone_of_record(word).class()) } {
            span aria-hidden="true" { (sign) " " } (clean(shown))
        }
    }
}

/// The colour of a record's state. Unknown states are gray.
pub(super) fn tone_of_record(word: &str) -> Tone {
    if let Some(state) = EffectiveState::ALL.into_iter().find(|state| state.as_str() == word) {
        return effective(state).tone;
    }
    match word {
        "Ready" | "Connected" => Tone::Green,
        "Unreachable" | "CutOff" => Tone::Orange,
        "Error" | "FailedFirmwareUpgrade" => Tone::Red,
        "Deleting" => Tone::Yellow,
        "Created" => Tone::Gray,
        word => NodeState::parse(word).map_or_else(|| under_way(word), tone_of_node),
    }
}

pub(super) const fn tone_of_node(state: NodeState) -> Tone {
    match state {
        NodeState::Active => Tone::Green,
        NodeState::Enrolling | NodeState::Draining | NodeState::Removing => Tone::Blue,
        NodeState::Retired => Tone::Yellow,
        NodeState::Offline => Tone::Orange,
        NodeState::Quarantined => Tone::Red,
        NodeState::BootstrapIssued | NodeState::Deleted => Tone::Gray,
    }
}

fn under_way(word: &str) -> Tone {
    match word {
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
pub(super) fn named(word: &str) -> Markup {
    let state = EffectiveState::ALL.into_iter().find(|state| state.as_str() == word);
    if let Some(state) = state {
        return effective(state).badge();
    }
    match Workflow::parse(word) {
        Some(state) => workflow(state).badge(),
        None => html! { (clean(word)) },
    }
}

/// Whether a condition's status is good, bad or neutral.
pub(super) const fn tone_of(condition: ConditionType, status: bool) -> Tone {
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

/// A condition in a table cell: yes, no, or a dash when it was never probed.
pub(super) fn mark(condition: ConditionType, known: Option<&Condition>) -> Markup {
    let Some(known) = known else {
        return html! { span.mark.gray title="not known yet" { "–" span.vh { " not known" } } };
    };
    let (sign, word) = if known.status { ("✓", "yes") } else { ("×", "no") };
    let tone = tone_of(condition, known.status).class();
    html! {
        span class={ "mark " (tone) } title=(clean(&known.reason)) {
            span aria-hidden="true" { (sign) " " } (word)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_look_as_the_document_says() {
        let table = [
            (EffectiveState::New, Tone::Gray),
            (EffectiveState::Idle, Tone::Green),
            (EffectiveState::Busy, Tone::Blue),
            (EffectiveState::Maintenance, Tone::Yellow),
            (EffectiveState::Attention, Tone::Orange),
            (EffectiveState::Blocked, Tone::Red),
        ];
        for (state, tone) in table {
            let look = effective(state);
            assert_eq!(look.tone, tone);
            let shown = look.badge().into_string();
            assert!(shown.contains(state.as_str()) && shown.contains(look.meaning), "{shown}");
        }
    }

    #[test]
    fn no_two_states_differ_by_colour_alone() {
        let all = EffectiveState::ALL.map(effective);
        for (index, one) in all.iter().enumerate() {
            for other in &all[index + 1..] {
                assert!(one.sign != other.sign && one.word != other.word);
            }
        }
    }

    #[test]
    fn the_words_of_events_are_known_or_escaped() {
        assert!(named("ATTENTION").into_string().contains("orange"));
        assert!(named("failed_retryable").into_string().contains("red"));
        assert_eq!(named("<b>").into_string(), "&lt;b&gt;");
    }
}
