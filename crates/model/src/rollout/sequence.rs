//! The sequence of a target, and its row.
//!
//! [`MACHINE`] is the sequence as a table. [`RolloutTarget::next`] is the pure decision for one
//! target: from its row, its machine and its run to the changed row, or to the stage whose run is to
//! be started. The engine starts the run and writes the row in one transaction.

use super::{Rollout, RolloutStage};
use crate::condition::ConditionType;
use crate::id::{MachineId, RolloutId, RunId};
use crate::lifecycle::{AwaitedRunStatus, awaited_status};
use crate::machine::{Machine, Phase};
use crate::plan::{Maintenance, RunType};
use crate::refusal::{Refusal, RefusalKind, RefusingRule};
use crate::rollout::gate::GateVerdict;
use crate::run::Run;
use crate::time::{Timestamp, format_duration};
use std::time::Duration;

/// The wait before a target is tried again that could not be started.
pub const RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// The wait before a target is tried again that a window or a freeze holds back.
const OPENING_RETRY: Duration = Duration::from_secs(60);

/// A part of the work on one target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TargetStage {
    EnterMaintenance,
    Operation,
    ExitMaintenance,
    Gate,
}

impl TargetStage {
    pub const ALL: [Self; 4] =
        [Self::EnterMaintenance, Self::Operation, Self::ExitMaintenance, Self::Gate];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::EnterMaintenance => "enter-maintenance",
            Self::Operation => "operation",
            Self::ExitMaintenance => "exit-maintenance",
            Self::Gate => "gate",
        }
    }

    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.as_str() == word)
    }

    /// The run of a stage around the operation, with its plan. With a cluster, the work of the
    /// machine is moved away first and let back afterwards. None: the default plan.
    pub fn maintenance_run(self, machine: &Machine) -> Option<(RunType, Option<Maintenance>)> {
        let clustered = !machine.spec.target_cluster_ref.is_empty();
        let (run_type, plan) = match self {
            Self::EnterMaintenance => (RunType::EnterMaintenance, Maintenance::EnterDraining),
            Self::ExitMaintenance => (RunType::ExitMaintenance, Maintenance::ExitUncordoning),
            Self::Operation | Self::Gate => return None,
        };
        Some((run_type, clustered.then_some(plan)))
    }
}

/// One stage of a sequence, and when it is left out.
#[derive(Debug, Clone, Copy)]
pub struct SequenceRow {
    pub stage: TargetStage,
    pub skip_if: SkipIf,
}

/// When a stage is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SkipIf {
    Never,
    /// The target is in maintenance now.
    InMaintenance,
    /// The target was in maintenance before the rollout came to it: it is left there.
    WasInMaintenance,
    /// The same, or the rollout has no gate.
    WasInMaintenanceOrNoGate,
}

/// The sequence of a machine.
pub const MACHINE: [SequenceRow; 4] = [
    SequenceRow { stage: TargetStage::EnterMaintenance, skip_if: SkipIf::InMaintenance },
    SequenceRow { stage: TargetStage::Operation, skip_if: SkipIf::Never },
    SequenceRow { stage: TargetStage::ExitMaintenance, skip_if: SkipIf::WasInMaintenance },
    SequenceRow { stage: TargetStage::Gate, skip_if: SkipIf::WasInMaintenanceOrNoGate },
];

/// The facts that decide which stages are left out.
#[derive(Debug, Clone, Copy)]
pub struct SequenceFacts {
    pub in_maintenance: bool,
    pub was_in_maintenance: bool,
    pub has_gate: bool,
}

/// The stage after `done`; none as `done`: the first one. None: the target is done.
pub fn stage_after(done: Option<TargetStage>, facts: SequenceFacts) -> Option<TargetStage> {
    let left = MACHINE.iter().filter(|row| done.is_none_or(|done| row.stage > done));
    let mut left = left.filter(|row| match row.skip_if {
        SkipIf::Never => true,
        SkipIf::InMaintenance => !facts.in_maintenance,
        SkipIf::WasInMaintenance => !facts.was_in_maintenance,
        SkipIf::WasInMaintenanceOrNoGate => !facts.was_in_maintenance && facts.has_gate,
    });
    left.next().map(|row| row.stage)
}

/// The state of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TargetState {
    /// Its turn has not come.
    Pending,
    /// Its turn has come, and it cannot be started now.
    Waiting,
    /// It is in one of the stages of its sequence.
    Active,
    Done,
    /// It was as wanted already.
    PassedOver,
    Failed,
    Skipped,
    /// It was deleted or retired on the way.
    Gone,
}

impl TargetState {
    pub const ALL: [Self; 8] = [
        Self::Pending,
        Self::Waiting,
        Self::Active,
        Self::Done,
        Self::PassedOver,
        Self::Failed,
        Self::Skipped,
        Self::Gone,
    ];
    /// The states in which the rollout has something left to do.
    pub const OPEN: [Self; 3] = [Self::Pending, Self::Waiting, Self::Active];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Waiting => "waiting",
            Self::Active => "active",
            Self::Done => "done",
            Self::PassedOver => "passed-over",
            Self::Failed => "failed",
            Self::Skipped => "skipped",
            Self::Gone => "gone",
        }
    }

    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.as_str() == word)
    }
}

/// One target of a rollout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RolloutTarget {
    pub machine: MachineId,
    /// Its place in the order of the rollout, counted from 0.
    pub position: u32,
    /// The wave in which it was started, counted from 1. 0: not yet.
    pub wave: u32,
    pub state: TargetState,
    /// The stage that it is in, or in which it ended.
    pub stage: Option<TargetStage>,
    /// Raised by each retry of failed targets. A part of the request ids of its runs.
    pub attempt: u32,
    /// The run of the stage.
    pub run: Option<RunId>,
    /// The fault code of a failed target; empty if there is none.
    pub fault: String,
    /// Why it waits, or how it ended.
    pub reason: String,
    /// None: its turn has not come.
    pub was_in_maintenance: Option<bool>,
    /// When it entered its state or stage.
    pub since: Timestamp,
    /// Since when it cannot be started.
    pub refused_since: Option<Timestamp>,
    /// When it is to be looked at again. None: when its run ends.
    pub due_at: Option<Timestamp>,
}

/// What the decision about a target needs beside its row.
#[derive(Debug, Clone, Copy)]
pub struct TargetContext<'a> {
    /// None: it was deleted.
    pub machine: Option<&'a Machine>,
    /// The run of its stage, or the one that has restarted it.
    pub run: Option<&'a Run>,
    /// Another rollout that works on the machine.
    pub other: Option<&'a RolloutId>,
}

/// The decision about one target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TargetStep {
    /// Its run is active.
    Keep,
    /// Its run is active and is to be canceled.
    Cancel(RunId),
    Change(Box<RolloutTarget>),
    /// Start the run of this stage. Then [`RolloutTarget::started`], or [`RolloutTarget::refused`].
    Start(Box<RolloutTarget>, TargetStage),
}

/// What a refused start means for the rollout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RefusedStart {
    Target(Box<RolloutTarget>),
    /// The rights of the editor do not cover the run: the rollout pauses, the target stays.
    NoRights(Box<RolloutTarget>, String),
}

const DELETED: &str = "it was deleted";

fn change(row: RolloutTarget) -> TargetStep {
    TargetStep::Change(Box::new(row))
}

impl RolloutTarget {
    pub fn new(machine: MachineId, position: u32, now: Timestamp) -> Self {
        Self {
            machine,
            position,
            wave: 0,
            state: TargetState::Pending,
            stage: None,
            attempt: 1,
            run: None,
            fault: String::new(),
            reason: String::new(),
            was_in_maintenance: None,
            since: now,
            refused_since: None,
            due_at: None,
        }
    }

    /// The request id of the run of a stage. With it, the run of this attempt exists once.
    pub fn request_id(&self, rollout: &RolloutId, stage: TargetStage) -> String {
        format!("{rollout}:{}:{}", stage.as_str(), self.attempt)
    }

    /// The next step of a target that is due.
    pub fn next(&self, rollout: &Rollout, seen: TargetContext<'_>, now: Timestamp) -> TargetStep {
        match (self.state, self.stage) {
            (TargetState::Pending | TargetState::Waiting, _) | (TargetState::Active, None) => {
                self.begin(rollout, seen, now)
            }
            (TargetState::Active, Some(stage)) => match (stage, &self.run) {
                (TargetStage::Gate, _) => self.at_gate(rollout, seen, now),
                (_, Some(_)) => self.after_run(rollout, stage, seen, now),
                (_, None) => self.go_on(rollout, stage, seen, now),
            },
            (
                TargetState::Done
                | TargetState::PassedOver
                | TargetState::Failed
                | TargetState::Skipped
                | TargetState::Gone,
                _,
            ) => TargetStep::Keep,
        }
    }

    fn begin(&self, rollout: &Rollout, seen: TargetContext<'_>, now: Timestamp) -> TargetStep {
        let row = Self { wave: rollout.wave, ..self.clone() };
        let Some(machine) = seen.machine else {
            return row.settled(TargetState::Gone, DELETED, now);
        };
        for flag in [ConditionType::Retired, ConditionType::Rma] {
            if machine.is(flag) {
                let reason = format!("it is flagged {}", flag.as_str());
                return row.settled(TargetState::Gone, &reason, now);
            }
        }
        if rollout.spec.operation.holds_on(machine) {
            return row.settled(TargetState::PassedOver, "it is as wanted already", now);
        }
        if let Some(other) = seen.other {
            return change(row.wait(rollout, &format!("{other} works on it"), now));
        }
        let reachable = machine.conditions.get(ConditionType::Reachable);
        if let Some(known) = reachable.filter(|known| !known.status) {
            let reason = format!("it is not reachable: {}", known.reason);
            return change(row.wait(rollout, &reason, now));
        }
        let in_maintenance = machine.phase == Phase::Maintenance;
        let was_in_maintenance = Some(self.was_in_maintenance.unwrap_or(in_maintenance));
        let row = Self { was_in_maintenance, ..row };
        match stage_after(None, row.facts(rollout, machine)) {
            Some(stage) => TargetStep::Start(Box::new(row), stage),
            None => row.settled(TargetState::Done, "", now),
        }
    }

    /// A stage whose run was refused is tried again.
    fn go_on(
        &self,
        rollout: &Rollout,
        stage: TargetStage,
        seen: TargetContext<'_>,
        now: Timestamp,
    ) -> TargetStep {
        if seen.machine.is_none() {
            return self.clone().settled(TargetState::Gone, DELETED, now);
        }
        if rollout.cancels_runs() {
            return self.aborted(now);
        }
        TargetStep::Start(Box::new(self.clone()), stage)
    }

    fn after_run(
        &self,
        rollout: &Rollout,
        stage: TargetStage,
        seen: TargetContext<'_>,
        now: Timestamp,
    ) -> TargetStep {
        match awaited_status(seen.run) {
            AwaitedRunStatus::Active => match seen.run.filter(|_| rollout.cancels_runs()) {
                Some(run) if run.progress.stop_request.is_none() => {
                    TargetStep::Cancel(run.spec.id.clone())
                }
                Some(_) | None => TargetStep::Keep,
            },
            AwaitedRunStatus::Failed(failure) => {
                let stays = match seen.machine.is_some_and(|one| one.phase == Phase::Maintenance) {
                    true => "; it stays in maintenance",
                    false => "",
                };
                let reason = format!("{}: {}{stays}", stage.as_str(), failure.message);
                let row = Self { fault: failure.code, ..self.clone() };
                row.settled(TargetState::Failed, &reason, now)
            }
            AwaitedRunStatus::Succeeded => {
                let Some(machine) = seen.machine else {
                    return self.clone().settled(TargetState::Gone, DELETED, now);
                };
                self.after_stage(rollout, stage, machine, now)
            }
        }
    }

    fn after_stage(
        &self,
        rollout: &Rollout,
        stage: TargetStage,
        machine: &Machine,
        now: Timestamp,
    ) -> TargetStep {
        match stage_after(Some(stage), self.facts(rollout, machine)) {
            None => self.clone().settled(TargetState::Done, "", now),
            Some(_) if rollout.cancels_runs() => self.aborted(now),
            Some(TargetStage::Gate) => {
                let row = Self {
                    stage: Some(TargetStage::Gate),
                    run: None,
                    since: now,
                    due_at: Some(now),
                    ..self.clone()
                };
                change(row)
            }
            Some(
                stage @ (TargetStage::EnterMaintenance
                | TargetStage::Operation
                | TargetStage::ExitMaintenance),
            ) => TargetStep::Start(Box::new(self.clone()), stage),
        }
    }

    fn at_gate(&self, rollout: &Rollout, seen: TargetContext<'_>, now: Timestamp) -> TargetStep {
        let Some(machine) = seen.machine else {
            return self.clone().settled(TargetState::Gone, DELETED, now);
        };
        let verdict = match &rollout.spec.gate {
            Some(gate) => gate.judge(machine, self.since, now),
            None => GateVerdict::Open,
        };
        let GateVerdict::Closed { look_at, reason } = verdict else {
            return self.clone().settled(TargetState::Done, "", now);
        };
        if rollout.cancels_runs() {
            return self.aborted(now);
        }
        let deadline = self.since + rollout.spec.pace.target_deadline();
        if deadline <= now {
            let waited = format_duration(now.since(self.since));
            let reason = format!("{reason}: the gate did not open within {waited}");
            return self.clone().settled(TargetState::Failed, &reason, now);
        }
        let row = Self { reason, due_at: Some(look_at.min(deadline)), ..self.clone() };
        change(row)
    }

    fn aborted(&self, now: Timestamp) -> TargetStep {
        let reason = match self.stage {
            Some(TargetStage::Gate) => "the rollout was aborted before the gate opened",
            Some(_) | None => "the rollout was aborted; it stays in maintenance",
        };
        self.clone().settled(TargetState::Failed, reason, now)
    }

    /// The row after its run was started.
    #[must_use]
    pub fn started(self, stage: TargetStage, run: RunId, now: Timestamp) -> Self {
        Self {
            state: TargetState::Active,
            stage: Some(stage),
            run: Some(run),
            reason: String::new(),
            since: now,
            refused_since: None,
            due_at: None,
            ..self
        }
    }

    /// The row after its start was refused. What time can cure is tried again until the deadline.
    pub fn refused(
        self,
        rollout: &Rollout,
        stage: TargetStage,
        refusal: &Refusal,
        now: Timestamp,
    ) -> RefusedStart {
        let row = match self.state {
            TargetState::Active => Self { stage: Some(stage), run: None, ..self },
            TargetState::Pending
            | TargetState::Waiting
            | TargetState::Done
            | TargetState::PassedOver
            | TargetState::Failed
            | TargetState::Skipped
            | TargetState::Gone => self,
        };
        if let Some(rule) = refusal.rule.as_deref() {
            return RefusedStart::Target(Box::new(row.wait_for_opening(
                rule,
                &refusal.message,
                now,
            )));
        }
        let row = match refusal.kind() {
            RefusalKind::Denied | RefusalKind::Unauthenticated => {
                let due_at = Some(now + RETRY_INTERVAL);
                let row = Self { reason: refusal.message.clone(), due_at, ..row };
                return RefusedStart::NoRights(Box::new(row), refusal.message.clone());
            }
            RefusalKind::Precondition | RefusalKind::Exhausted => {
                row.wait(rollout, &refusal.message, now)
            }
            RefusalKind::Invalid
            | RefusalKind::NotFound
            | RefusalKind::Exists
            | RefusalKind::Gone => row.give_up(&refusal.message, now),
        };
        RefusedStart::Target(Box::new(row))
    }

    /// Waits for a window to open, or a freeze to end. Either may be changed meanwhile, so it is
    /// tried again before. The deadline is for what other waits need.
    fn wait_for_opening(self, rule: &RefusingRule, reason: &str, now: Timestamp) -> Self {
        let waited = self.state == TargetState::Waiting;
        let look_again = now + OPENING_RETRY;
        Self {
            state: TargetState::Waiting,
            reason: reason.into(),
            since: if waited { self.since } else { now },
            refused_since: None,
            due_at: Some(rule.opens_at.map_or(look_again, |opens| opens.min(look_again))),
            ..self
        }
    }

    /// Waits until it is tried again, or ends at the deadline.
    fn wait(self, rollout: &Rollout, reason: &str, now: Timestamp) -> Self {
        let since = self.refused_since.unwrap_or(now);
        let deadline = since + rollout.spec.pace.target_deadline();
        if deadline <= now {
            let waited = format_duration(now.since(since));
            return self.give_up(&format!("{reason} (waited {waited})"), now);
        }
        let begun = self.state == TargetState::Active;
        Self {
            state: if begun { TargetState::Active } else { TargetState::Waiting },
            reason: reason.into(),
            since: if self.refused_since.is_some() { self.since } else { now },
            refused_since: Some(since),
            due_at: Some((now + RETRY_INTERVAL).min(deadline)),
            ..self
        }
    }

    /// A target that was not begun is skipped; one that was begun has failed where it is.
    fn give_up(self, reason: &str, now: Timestamp) -> Self {
        let begun = self.stage.filter(|_| self.state == TargetState::Active);
        match begun {
            None => self.ended(TargetState::Skipped, reason, now),
            Some(stage) => {
                let reason = format!("{}: {reason}; it stays in maintenance", stage.as_str());
                self.ended(TargetState::Failed, &reason, now)
            }
        }
    }

    fn settled(self, state: TargetState, reason: &str, now: Timestamp) -> TargetStep {
        change(self.ended(state, reason, now))
    }

    /// The row in a state in which the rollout leaves it.
    #[must_use]
    pub fn ended(self, state: TargetState, reason: &str, now: Timestamp) -> Self {
        let reason = reason.to_string();
        Self { state, reason, since: now, refused_since: None, due_at: None, ..self }
    }

    fn facts(&self, rollout: &Rollout, machine: &Machine) -> SequenceFacts {
        SequenceFacts {
            in_maintenance: machine.phase == Phase::Maintenance,
            was_in_maintenance: self.was_in_maintenance.unwrap_or_default(),
            has_gate: rollout.spec.gate.is_some(),
        }
    }
}

impl Rollout {
    /// True once the active runs of an aborted rollout are to be canceled.
    pub(super) fn cancels_runs(&self) -> bool {
        self.stage == RolloutStage::Aborting && self.cancel_running
    }
}
