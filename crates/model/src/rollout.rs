//! Rollouts: one operation on many machines, in waves.
//!
//! A rollout is a record with a lifecycle on the one queue. Its targets are rows of their own,
//! because there may be 20,000 of them; their decisions are in `sequence`. [`Rollout::next`] decides
//! about the waves: the canary, then batches, and after each wave the soak and the approval. Only
//! runs touch hardware: the rollout starts them and is woken when they end.

mod batch;
mod gate;
mod pace;
mod preview;
mod requests;
mod sequence;
mod why;

pub use batch::{BatchSize, FailureLimit, MAX_COUNT};
pub use gate::{ConditionGate, GateVerdict};
pub use pace::{OnConflict, Pace};
pub use preview::{ExcludedMachine, MAX_TARGETS, RolloutPreview, exclusion, ordered, plan_targets};
pub use requests::{RolloutRequest, apply_rollout_request, check_skip};
pub use sequence::{
    MACHINE, RETRY_INTERVAL, RefusedStart, RolloutTarget, SequenceFacts, SequenceRow, SkipIf,
    TargetContext, TargetStage, TargetState, TargetStep, stage_after,
};
pub use why::{FailureGroup, explain_rollout};

use crate::access::{AuthMethod, Permission, PermissionSet, Principal};
use crate::condition::{ConditionType, imaged};
use crate::id::{PlanId, RolloutId};
use crate::lifecycle::{Lifecycle, LifecycleDecision, RecordHeader, SubjectKind, head_in_field};
use crate::machine::{Labels, Machine};
use crate::note;
use crate::plan::{IMAGE_REF, Params, RunType};
use crate::refusal::Refusal;
use crate::time::{Timestamp, format_duration};
use crate::window::WindowState;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How long the record and the targets of an ended rollout are kept.
pub const KEPT: Duration = Duration::from_secs(90 * 86_400);

/// The run types that a rollout can start. All of them may run in maintenance.
pub const RUN_TYPES: [RunType; 5] =
    [RunType::Reboot, RunType::Reimage, RunType::Upgrade, RunType::NetReconfig, RunType::Join];

/// The operation that a rollout carries out on each of its targets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RolloutOperation {
    pub run_type: RunType,
    /// None: the default plan of the type.
    #[serde(default)]
    pub plan_id: Option<PlanId>,
    #[serde(default)]
    pub params: Params,
}

impl RolloutOperation {
    pub fn check(&self, field: &str) -> Result<(), Refusal> {
        if RUN_TYPES.contains(&self.run_type) {
            return Ok(());
        }
        let words: Vec<&str> = RUN_TYPES.iter().map(|kind| kind.as_str()).collect();
        let problem = format!("is {}, which is no work for a rollout", self.run_type.as_str());
        Err(Refusal::invalid(field, problem, format!("use one of {}", words.join(", "))))
    }

    /// True if a machine is as the operation would leave it. Only an image can be compared.
    pub fn holds_on(&self, machine: &Machine) -> bool {
        let image = self.params.get(IMAGE_REF).filter(|_| self.run_type == RunType::Reimage);
        let wanted = image.filter(|_| self.plan_id.is_none()).map(|image| imaged(image).reason);
        let known = machine.conditions.get(ConditionType::Provisioned);
        wanted
            .is_some_and(|wanted| known.is_some_and(|known| known.status && known.reason == wanted))
    }

    /// Such as `REIMAGE image_ref=debian-12`.
    pub fn words(&self) -> String {
        let plan = self.plan_id.iter().map(|plan| format!("plan={plan}"));
        let params = self.params.iter().map(|(name, value)| format!("{name}={value}"));
        let words = std::iter::once(self.run_type.as_str().to_string()).chain(plan).chain(params);
        words.collect::<Vec<_>>().join(" ")
    }
}

/// What a rollout does, on which machines, and how fast.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RolloutSpec {
    pub operation: RolloutOperation,
    /// The filter that selected the targets when the rollout was created.
    pub filter: String,
    pub pace: Pace,
    #[serde(default)]
    pub gate: Option<ConditionGate>,
    #[serde(default)]
    pub start_at: Option<Timestamp>,
    /// The label whose values order the targets. None: by their ids.
    #[serde(default)]
    pub order_label: Option<String>,
    #[serde(default)]
    pub on_conflict: OnConflict,
}

/// The user with whose rights a rollout acts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RolloutEditor {
    pub user: String,
    #[serde(default)]
    pub groups: Vec<String>,
    /// The API token that was used. Its end takes the rights away.
    #[serde(default)]
    pub token_id: Option<String>,
    /// False for the server itself, which has all rights.
    pub is_user: bool,
}

impl RolloutEditor {
    pub fn new(principal: &Principal) -> Self {
        Self {
            user: principal.user.clone(),
            groups: principal.groups.clone(),
            token_id: principal.token_id.clone(),
            is_user: principal.method != AuthMethod::Internal,
        }
    }

    /// The principal whose bindings give the rights.
    pub fn principal(&self) -> Principal {
        let method = match (self.is_user, &self.token_id) {
            (false, _) => AuthMethod::Internal,
            (true, Some(_)) => AuthMethod::Token,
            (true, None) => AuthMethod::Oidc,
        };
        let Self { user, groups, token_id, .. } = self.clone();
        Principal { user, groups, method, token_id }
    }
}

/// How far a rollout is. A pause does not change it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RolloutStage {
    /// Before its start time.
    Waiting,
    /// A wave is at work.
    Running,
    /// A wave has ended; the next one begins at this time.
    Soaking {
        until: Timestamp,
    },
    /// A wave has ended; a person lets the next one begin.
    AwaitingApproval,
    /// Nothing new starts; what was started finishes.
    Aborting,
    Done,
    Aborted,
}

impl RolloutStage {
    pub const fn has_ended(self) -> bool {
        match self {
            Self::Done | Self::Aborted => true,
            Self::Waiting
            | Self::Running
            | Self::Soaking { .. }
            | Self::AwaitingApproval
            | Self::Aborting => false,
        }
    }
}

/// Why and since when a rollout is paused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RolloutPause {
    pub reason: String,
    /// The user, or `engine`.
    pub by: String,
    pub since: Timestamp,
}

/// The number of targets by state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TargetCounts {
    pub pending: u32,
    pub waiting: u32,
    pub active: u32,
    pub done: u32,
    pub passed_over: u32,
    pub failed: u32,
    pub skipped: u32,
    pub gone: u32,
}

impl TargetCounts {
    pub const fn of(&self, state: TargetState) -> u32 {
        match state {
            TargetState::Pending => self.pending,
            TargetState::Waiting => self.waiting,
            TargetState::Active => self.active,
            TargetState::Done => self.done,
            TargetState::PassedOver => self.passed_over,
            TargetState::Failed => self.failed,
            TargetState::Skipped => self.skipped,
            TargetState::Gone => self.gone,
        }
    }

    fn of_mut(&mut self, state: TargetState) -> &mut u32 {
        match state {
            TargetState::Pending => &mut self.pending,
            TargetState::Waiting => &mut self.waiting,
            TargetState::Active => &mut self.active,
            TargetState::Done => &mut self.done,
            TargetState::PassedOver => &mut self.passed_over,
            TargetState::Failed => &mut self.failed,
            TargetState::Skipped => &mut self.skipped,
            TargetState::Gone => &mut self.gone,
        }
    }

    /// Counts targets that go from one state to another.
    pub fn shift(&mut self, from: TargetState, to: TargetState, count: u32) {
        let before = self.of_mut(from);
        *before = before.saturating_sub(count);
        let after = self.of_mut(to);
        *after = after.saturating_add(count);
    }

    /// The number of targets that the rollout has left behind.
    pub const fn settled(&self) -> u32 {
        self.done + self.passed_over + self.failed + self.skipped + self.gone
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rollout {
    pub head: RecordHeader,
    pub spec: RolloutSpec,
    pub stage: RolloutStage,
    #[serde(default)]
    pub pause: Option<RolloutPause>,
    /// Set by an abort that cancels the active runs.
    #[serde(default)]
    pub cancel_running: bool,
    pub editor: RolloutEditor,
    /// The request that created it, and what it asked for.
    pub request_id: String,
    pub requested: RolloutSpec,
    /// The words of the permissions that its runs need.
    pub permissions: Vec<String>,
    pub total: u32,
    /// The current or last wave, counted from 1. 0: none has begun.
    pub wave: u32,
    /// The targets before this position belong to waves that have begun.
    pub wave_end: u32,
    pub counts: TargetCounts,
    /// The failed targets that a person has accepted by resuming the rollout.
    #[serde(default)]
    pub accepted_failures: u32,
}

/// What a turn finds among the targets of a rollout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RolloutTurnInput {
    /// A target of the begun waves is not settled.
    pub wave_open: bool,
    /// A target can be worked on now.
    pub due_now: bool,
    /// When the next waiting target is due.
    pub next_due: Option<Timestamp>,
}

impl Rollout {
    /// The states in which it waits for a person.
    pub const STOPPED: &'static [&'static str] = &["AwaitingApproval", "Paused"];

    pub fn new(
        id: &RolloutId,
        spec: RolloutSpec,
        editor: RolloutEditor,
        (request_id, total): (String, u32),
        now: Timestamp,
    ) -> Self {
        let requested = spec.clone();
        Self {
            head: RecordHeader::new(id.as_str(), Labels::new(), now),
            spec,
            stage: RolloutStage::Waiting,
            pause: None,
            cancel_running: false,
            editor,
            request_id,
            requested,
            permissions: Vec::new(),
            total,
            wave: 0,
            wave_end: 0,
            counts: TargetCounts { pending: total, ..TargetCounts::default() },
            accepted_failures: 0,
        }
    }

    pub fn id(&self) -> RolloutId {
        RolloutId::trusted(&self.head.id)
    }

    /// The permissions that its runs need. A word that only a newer version knows needs all.
    pub fn needed_permissions(&self) -> PermissionSet {
        let needed = self.permissions.iter().map(|word| match Permission::parse(word) {
            Some(permission) => permission.into(),
            None => PermissionSet::ALL,
        });
        needed.fold(PermissionSet::EMPTY, PermissionSet::union)
    }

    /// The state of its own window while it is closed. None: targets may be begun.
    pub fn closed_window(&self, now: Timestamp) -> Option<WindowState> {
        let state = self.spec.pace.window.as_ref().map(|window| window.state(now));
        state.filter(|state| matches!(state, WindowState::Closed(_)))
    }

    /// The number of targets that may be started now, beside the active ones.
    pub fn free_slots(&self, now: Timestamp) -> u32 {
        let starts = self.pause.is_none() && self.stage == RolloutStage::Running;
        if !starts || self.closed_window(now).is_some() {
            return 0;
        }
        let limit = self.spec.pace.max_in_flight.unwrap_or(u32::MAX);
        limit.saturating_sub(self.counts.active)
    }

    /// True if it is done, and every target is done or was as wanted.
    pub fn has_succeeded(&self) -> bool {
        self.stage == RolloutStage::Done && self.counts.done + self.counts.passed_over == self.total
    }

    /// The number of failures that no person has accepted.
    pub const fn new_failures(&self) -> u32 {
        self.counts.failed.saturating_sub(self.accepted_failures)
    }

    /// The rollout paused, unless it is already.
    #[must_use]
    pub fn paused(&self, reason: &str, by: &str, now: Timestamp) -> Self {
        let new = RolloutPause { reason: reason.into(), by: by.into(), since: now };
        Self { pause: Some(self.pause.clone().unwrap_or(new)), ..self.clone() }
    }

    pub(super) fn at_stage(&self, stage: RolloutStage) -> Self {
        Self { stage, ..self.clone() }
    }

    /// The rollout with its next wave begun; done if every target belongs to a wave already.
    pub(super) fn next_wave(&self) -> LifecycleDecision<Self> {
        let left = self.total.saturating_sub(self.wave_end);
        if left == 0 {
            return LifecycleDecision::change(
                self.at_stage(RolloutStage::Done),
                note!("all {} targets are settled: {}", self.total, self.outcome()),
            );
        }
        let size = self.spec.pace.wave_size(self.wave, self.total).min(left);
        let mut after = self.at_stage(RolloutStage::Running);
        (after.wave, after.wave_end) = (self.wave + 1, self.wave_end + size);
        let note = note!("wave {} begins, with {size} of {} targets", after.wave, self.total);
        LifecycleDecision::change(after, note)
    }

    /// Such as `7 done, 1 failed`.
    pub fn outcome(&self) -> String {
        let counted = TargetState::ALL.into_iter().filter(|state| self.counts.of(*state) > 0);
        let words = counted.map(|state| format!("{} {}", self.counts.of(state), state.as_str()));
        words.collect::<Vec<_>>().join(", ")
    }

    fn run_wave(&self, seen: &RolloutTurnInput, now: Timestamp) -> LifecycleDecision<Self> {
        let limit = self.spec.pace.stop_after.of(self.total);
        let unfinished = seen.wave_open || self.wave_end < self.total;
        if self.new_failures() >= limit && unfinished {
            let reason = format!("{} of {} targets failed", self.counts.failed, self.total);
            let note = note!("paused: {reason}; what runs finishes");
            return LifecycleDecision::change(self.paused(&reason, "engine", now), note);
        }
        if seen.wave_open {
            return self.wait_for_targets(seen, now);
        }
        let pace = &self.spec.pace;
        if self.wave_end == self.total {
            return self.next_wave();
        }
        if pace.soak_seconds > 0 {
            let soak = Duration::from_secs(pace.soak_seconds);
            let note = note!("wave {} has ended; it soaks {}", self.wave, format_duration(soak));
            let stage = RolloutStage::Soaking { until: now + soak };
            return LifecycleDecision::change(self.at_stage(stage), note);
        }
        self.after_soak()
    }

    fn after_soak(&self) -> LifecycleDecision<Self> {
        if !self.spec.pace.wave_approval {
            return self.next_wave();
        }
        let after = self.at_stage(RolloutStage::AwaitingApproval);
        let id = &self.head.id;
        let note = note!("wave {} has ended; farrier rollout promote {id} goes on", self.wave);
        LifecycleDecision::change(after, note)
    }

    fn wait_for_targets(&self, seen: &RolloutTurnInput, now: Timestamp) -> LifecycleDecision<Self> {
        let why = "the end of its active targets, its window, and the next try of those that wait";
        let opens = match self.closed_window(now) {
            Some(WindowState::Closed(Some(opens))) => Some(opens.at),
            Some(WindowState::Closed(None) | WindowState::Open(_)) | None => None,
        };
        match seen.next_due.into_iter().chain(opens).min() {
            _ if seen.due_now => LifecycleDecision::idle_until(now, why),
            Some(at) => LifecycleDecision::idle_until(at, why),
            None => LifecycleDecision::idle(why),
        }
    }
}

impl Lifecycle for Rollout {
    const KIND: SubjectKind = SubjectKind::Rollout;
    const STATES: &'static [&'static str] = &[
        "Waiting",
        "Running",
        "Soaking",
        "AwaitingApproval",
        "Paused",
        "Aborting",
        "Done",
        "Aborted",
    ];
    type TurnInput = RolloutTurnInput;

    head_in_field!();

    fn state_name(&self) -> &'static str {
        match (&self.stage, &self.pause) {
            (RolloutStage::Aborting, _) => "Aborting",
            (RolloutStage::Done, _) => "Done",
            (RolloutStage::Aborted, _) => "Aborted",
            (_, Some(_)) => "Paused",
            (RolloutStage::Waiting, None) => "Waiting",
            (RolloutStage::Running, None) => "Running",
            (RolloutStage::Soaking { .. }, None) => "Soaking",
            (RolloutStage::AwaitingApproval, None) => "AwaitingApproval",
        }
    }

    fn next(&self, seen: &RolloutTurnInput, now: Timestamp) -> LifecycleDecision<Self> {
        match (self.stage, &self.pause) {
            (RolloutStage::Aborting, _) if self.counts.active == 0 => {
                let after = self.at_stage(RolloutStage::Aborted);
                LifecycleDecision::change(after, note!("aborted: {}", self.outcome()))
            }
            (RolloutStage::Aborting, _) => self.wait_for_targets(seen, now),
            (RolloutStage::Done | RolloutStage::Aborted, _) if self.head.since + KEPT <= now => {
                LifecycleDecision::Remove(note!("ended {} ago", format_duration(KEPT)))
            }
            (RolloutStage::Done | RolloutStage::Aborted, _) => {
                LifecycleDecision::idle_until(self.head.since + KEPT, "nothing: it has ended")
            }
            (_, Some(_)) if self.counts.active > 0 => self.wait_for_targets(seen, now),
            (_, Some(_)) => LifecycleDecision::idle("a person resumes or aborts it"),
            (RolloutStage::Waiting, None) => match self.spec.start_at.filter(|at| *at > now) {
                Some(at) => LifecycleDecision::idle_until(at, "its start time"),
                None => self.next_wave(),
            },
            (RolloutStage::Running, None) => self.run_wave(seen, now),
            (RolloutStage::Soaking { until }, None) if until > now => {
                LifecycleDecision::idle_until(until, "the end of the soak")
            }
            (RolloutStage::Soaking { .. }, None) => self.after_soak(),
            (RolloutStage::AwaitingApproval, None) => {
                LifecycleDecision::idle("a person promotes it to its next wave")
            }
        }
    }

    /// A rollout normally ends within its deadlines; only one that waits for a person may be late.
    fn normal_duration(&self) -> Option<Duration> {
        None
    }
}
