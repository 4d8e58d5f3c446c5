//! Turns the difference between two snapshots of a run into output lines.
//!
//! The server sends the whole run with every event, and one event may carry several changes. A
//! repeated snapshot therefore prints nothing twice, and a skipped snapshot loses nothing. Pure:
//! snapshots in, lines out.

use crate::table::Tone;
use crate::text::one_line;
use proto::v1::{Run, StepStatus, step_status::State};
use std::collections::HashMap;

/// One output line, and the step that it is about.
#[derive(Debug, PartialEq, Eq)]
pub struct ProgressLine {
    pub tone: Tone,
    pub text: String,
    pub step: String,
    pub position: LinePosition,
}

/// The position of a line within its step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinePosition {
    Start,
    Middle,
    End,
}

/// The last known state of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct StepSnapshot {
    state: State,
    retries: i32,
}

const INITIAL_SNAPSHOT: StepSnapshot = StepSnapshot { state: State::Waiting, retries: 0 };

/// One change of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StepChange {
    Started,
    Retried,
    Succeeded,
    Failed,
}

/// The changes that are already printed, by step name and whether the step is an undo. An undo step
/// may have the name of the step that it undoes.
#[derive(Default)]
pub struct Progress {
    steps: HashMap<(String, bool), StepSnapshot>,
    version: i64,
}

impl Progress {
    /// Creates a progress that prints only the changes after this snapshot.
    pub fn after(run: &Run) -> Self {
        let mut progress = Self::default();
        progress.lines_for(run);
        progress
    }

    /// True if the start line of a step is not printed yet.
    pub fn is_start_unprinted(&self, step: &str) -> bool {
        let waiting = |observed: &StepSnapshot| {
            matches!(observed.state, State::Unspecified | State::Waiting) && observed.retries == 0
        };
        self.steps.is_empty() || self.steps.get(&(step.to_string(), false)).is_some_and(waiting)
    }

    /// The lines for the changes since the last snapshot. An older snapshot gives none.
    pub fn lines_for(&mut self, run: &Run) -> Vec<ProgressLine> {
        if run.version < self.version {
            return Vec::new();
        }
        self.version = run.version;
        let mut lines = Vec::new();
        for step in &run.steps {
            let now = StepSnapshot { state: step.state(), retries: step.retry_count };
            let old =
                self.steps.insert((step.name.clone(), step.undo), now).unwrap_or(INITIAL_SNAPSHOT);
            let texts = StepTexts::of(step, &run.steps);
            lines.extend(step_changes(old, now).into_iter().map(|what| texts.line(what, step)));
        }
        lines
    }
}

/// The changes that lead from one state to the other.
fn step_changes(old: StepSnapshot, now: StepSnapshot) -> Vec<StepChange> {
    let begun = |observed: StepSnapshot| match observed.state {
        State::Running | State::Succeeded | State::Failed => true,
        State::Unspecified | State::Waiting => observed.retries > 0,
    };
    let ended = |observed: StepSnapshot| matches!(observed.state, State::Succeeded | State::Failed);
    let retried = now.retries > old.retries;
    let again = !retried && ended(old) && now.state == State::Running;
    let mut changes = Vec::new();
    if (begun(now) && !begun(old)) || again {
        changes.push(StepChange::Started);
    }
    if retried {
        changes.push(StepChange::Retried);
    }
    match now.state {
        State::Succeeded if old.state != State::Succeeded => changes.push(StepChange::Succeeded),
        State::Failed if old.state != State::Failed || retried => changes.push(StepChange::Failed),
        State::Unspecified | State::Waiting | State::Running | State::Succeeded | State::Failed => {
        }
    }
    changes
}

/// The kinds of steps that a plan may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StepKind {
    Ssh,
    Reboot,
    Netboot,
    Repave,
    Join,
    Verify,
    Net,
    Rma,
    Drain,
    Uncordon,
    Power,
    /// A kind that only a newer server knows.
    Other,
}

impl StepKind {
    /// Parses the field names of the oneof in `Step`.
    fn of(name: &str) -> Self {
        match name {
            "ssh" => StepKind::Ssh,
            "reboot" => StepKind::Reboot,
            "netboot" => StepKind::Netboot,
            "repave" => StepKind::Repave,
            "join" => StepKind::Join,
            "verify" => StepKind::Verify,
            "net" => StepKind::Net,
            "rma" => StepKind::Rma,
            "drain" => StepKind::Drain,
            "uncordon" => StepKind::Uncordon,
            "power" => StepKind::Power,
            _ => StepKind::Other,
        }
    }

    /// The texts for the start and for the success of a step.
    fn phrases(self) -> Option<(&'static str, &'static str)> {
        match self {
            StepKind::Ssh => Some(("Running command", "Command complete")),
            StepKind::Reboot => Some(("Rebooting machine", "Reboot complete")),
            StepKind::Netboot => Some(("Setting netboot", "Netboot configured")),
            StepKind::Repave => Some(("Repaving", "Repave complete")),
            StepKind::Join => Some(("Joining cluster", "Joined cluster")),
            StepKind::Verify => Some(("Verifying in cluster", "Verified")),
            StepKind::Net => Some(("Reconfiguring network", "Network reconfigured")),
            StepKind::Rma => Some(("RMA step", "RMA step complete")),
            StepKind::Drain => Some(("Draining node", "Node drained")),
            StepKind::Uncordon => Some(("Uncordoning node", "Node uncordoned")),
            StepKind::Power => Some(("Changing power", "Power changed")),
            StepKind::Other => None,
        }
    }
}

/// The texts for one step.
struct StepTexts {
    doing: String,
    done: String,
}

impl StepTexts {
    /// Adds the step's name if several steps have the same kind.
    fn of(step: &StepStatus, all: &[StepStatus]) -> Self {
        let name = one_line(&step.name);
        if step.undo {
            let name = name.strip_prefix("undo-").unwrap_or(&name);
            return Self {
                doing: format!("Undoing {name}"),
                done: format!("Undoing {name} complete"),
            };
        }
        let Some((doing, done)) = StepKind::of(&step.kind).phrases() else {
            return Self { doing: name.to_string(), done: format!("{name} complete") };
        };
        let same_kind = all.iter().filter(|other| other.kind == step.kind && !other.undo).count();
        let which = if same_kind > 1 { format!(" ({name})") } else { String::new() };
        Self { doing: format!("{doing}{which}"), done: format!("{done}{which}") }
    }

    fn line(&self, what: StepChange, step: &StepStatus) -> ProgressLine {
        let because = match one_line(&step.message).trim() {
            "" => String::new(),
            message => format!(": {message}"),
        };
        let (position, tone, text) = match what {
            StepChange::Started => {
                (LinePosition::Start, Tone::Busy, format!("→ {}...", self.doing))
            }
            StepChange::Retried => {
                let because = if step.state() == State::Succeeded { "" } else { &because };
                let attempt = step.retry_count.saturating_add(1);
                let text = format!("↻ {} again, attempt {attempt}{because}", self.doing);
                (LinePosition::Middle, Tone::Warn, text)
            }
            StepChange::Succeeded => (LinePosition::End, Tone::Good, format!("✓ {}", self.done)),
            StepChange::Failed => {
                (LinePosition::End, Tone::Bad, format!("✗ {} failed{because}", self.doing))
            }
        };
        ProgressLine { tone, text, step: step.name.clone(), position }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(name: &str, kind: &str, state: State, retries: i32, message: &str) -> StepStatus {
        StepStatus {
            name: name.into(),
            kind: kind.into(),
            state: state.into(),
            retry_count: retries,
            message: message.into(),
            ..Default::default()
        }
    }

    fn transcript(progress: &mut Progress, snapshots: &[Vec<StepStatus>]) -> String {
        let mut text = String::new();
        for (at, steps) in snapshots.iter().enumerate() {
            let run = Run { steps: steps.clone(), version: at as i64 + 1, ..Default::default() };
            for line in progress.lines_for(&run) {
                text.push_str(&line.text);
                text.push_str(if line.position == LinePosition::End { "\n\n" } else { "\n" });
            }
        }
        text
    }

    #[test]
    fn a_reimage_reads_as_in_the_document() {
        use State::{Running, Succeeded, Waiting};
        let at = |netboot, reboot, repave| {
            vec![
                step("set-netboot", "netboot", netboot, 0, ""),
                step("reboot", "reboot", reboot, 0, ""),
                step("repave", "repave", repave, 0, ""),
            ]
        };
        let snapshots = [
            at(Waiting, Waiting, Waiting),
            at(Running, Waiting, Waiting),
            at(Running, Waiting, Waiting),
            // One commit settles a step and starts the next.
            at(Succeeded, Running, Waiting),
            at(Succeeded, Succeeded, Running),
            at(Succeeded, Succeeded, Succeeded),
        ];
        let expected = "\
→ Setting netboot...
✓ Netboot configured

→ Rebooting machine...
✓ Reboot complete

→ Repaving...
✓ Repave complete

";
        assert_eq!(transcript(&mut Progress::default(), &snapshots), expected);
        // The last snapshot alone gives the same lines.
        assert_eq!(transcript(&mut Progress::default(), &snapshots[5..]), expected);
    }

    #[test]
    fn retries_failures_and_undo() {
        use State::{Failed, Running, Succeeded, Waiting};
        let mut undo = step("a", "ssh", Running, 0, "");
        undo.undo = true;
        let snapshots = [
            vec![step("a", "ssh", Running, 0, ""), step("b", "ssh", Waiting, 0, "")],
            vec![
                step("a", "ssh", Running, 1, "no route\u{1b} to host"),
                step("b", "ssh", Waiting, 0, ""),
            ],
            vec![step("a", "ssh", Succeeded, 1, "fine"), step("b", "ssh", Running, 0, "")],
            vec![
                step("a", "ssh", Succeeded, 1, ""),
                step("b", "ssh", Failed, 2, "refused\nby host"),
                undo,
            ],
        ];
        let expected = "\
→ Running command (a)...
↻ Running command (a) again, attempt 2: no route\\x1b to host
✓ Command complete (a)

→ Running command (b)...
↻ Running command (b) again, attempt 3: refused\\nby host
✗ Running command (b) failed: refused\\nby host

→ Undoing a...
";
        assert_eq!(transcript(&mut Progress::default(), &snapshots), expected);
    }

    #[test]
    fn only_what_is_new_after_a_baseline() {
        use State::{Failed, Running, Succeeded};
        let at = |state, retries| {
            vec![step("n", "netboot", Succeeded, 0, ""), step("d", "dance", state, retries, "")]
        };
        let baseline = Run { steps: at(Failed, 2), ..Default::default() };
        let mut progress = Progress::after(&baseline);
        let snapshots = [at(Failed, 2), at(Running, 2), at(Running, 3), at(Succeeded, 3)];
        assert_eq!(
            transcript(&mut progress, &snapshots),
            "→ d...\n↻ d again, attempt 4\n✓ d complete\n\n"
        );
    }

    #[test]
    fn an_older_snapshot_says_nothing() {
        let mut progress = Progress::default();
        let run = |version, state| Run {
            version,
            steps: vec![step("r", "reboot", state, 0, "")],
            ..Default::default()
        };
        assert_eq!(progress.lines_for(&run(5, State::Succeeded)).len(), 2);
        assert_eq!(progress.lines_for(&run(4, State::Running)), []);
    }

    #[test]
    fn every_pair_of_states_ends_in_the_new_one() {
        let states =
            [State::Unspecified, State::Waiting, State::Running, State::Succeeded, State::Failed];
        for old in states {
            for new in states {
                for (was, is) in [(0, 0), (0, 1), (1, 1)] {
                    let changes = step_changes(
                        StepSnapshot { state: old, retries: was },
                        StepSnapshot { state: new, retries: is },
                    );
                    let last = changes.last();
                    match new {
                        State::Succeeded => {
                            assert_eq!(last == Some(&StepChange::Succeeded), old != new)
                        }
                        State::Failed => {
                            assert_eq!(last == Some(&StepChange::Failed), old != new || is > was)
                        }
                        State::Unspecified | State::Waiting | State::Running => {
                            assert!(
                                !changes.contains(&StepChange::Succeeded)
                                    && !changes.contains(&StepChange::Failed)
                            );
                        }
                    }
                }
            }
        }
    }
}
