//! The events of a rollout: its targets end or wait, and operators request what they may.

use super::{AT_ONCE, Explore, LifecycleEvent};
use model::id::RolloutId;
use model::lifecycle::Lifecycle;
use model::plan::{Params, RunType};
use model::rollout::{
    Pace, Rollout, RolloutEditor, RolloutOperation, RolloutRequest, RolloutSpec, RolloutStage,
    RolloutTurnInput, TargetState, apply_rollout_request,
};
use model::time::Timestamp;

/// The counts that no decision depends on are left out, so that the walk ends.
fn counted(rollout: &Rollout, changes: &[(TargetState, TargetState)]) -> Rollout {
    let mut after = rollout.clone();
    for (from, to) in changes {
        after.counts.shift(*from, *to, 1);
    }
    after
}

fn open() -> RolloutTurnInput {
    RolloutTurnInput { wave_open: true, ..RolloutTurnInput::default() }
}

/// A rollout of two targets, one in each wave.
fn of_two() -> Rollout {
    let operation =
        RolloutOperation { run_type: RunType::Reboot, plan_id: None, params: Params::new() };
    let spec = RolloutSpec {
        operation,
        filter: String::new(),
        pace: Pace { soak_seconds: 60, wave_approval: true, ..Pace::default() },
        gate: None,
        start_at: Some(Timestamp::from_millis(1_000)),
        order_label: None,
        on_conflict: Default::default(),
    };
    let editor =
        RolloutEditor { user: "ada".into(), groups: Vec::new(), token_id: None, is_user: true };
    let id = RolloutId::trusted("ro-1");
    Rollout::new(&id, spec, editor, ("request".into(), 2), Timestamp::default())
}

impl Explore for Rollout {
    const TITLE: &'static str = "The states of a rollout";
    const ABOUT: &'static str = "A rollout carries out one operation on many machines, in waves. Its targets have states of their own, which `farrier rollout targets` lists; this page is about the rollout as a whole. A pause \
         keeps what is at work: a target that was begun goes through its sequence to the end.";

    fn fresh() -> Self {
        of_two()
    }

    fn events(&self) -> Vec<LifecycleEvent<Self>> {
        let event = |name, record: Self, context| LifecycleEvent { name, record, context };
        let settled = RolloutTurnInput::default();
        let mut all = vec![event(AT_ONCE, self.clone(), open())];
        let works = matches!(self.stage, RolloutStage::Running | RolloutStage::Aborting);
        let counts = &self.counts;
        if works
            && counts.pending > 0
            && self.stage == RolloutStage::Running
            && self.pause.is_none()
        {
            let begun = counted(self, &[(TargetState::Pending, TargetState::Active)]);
            all.push(event("a target is started", begun, open()));
            let waits = counted(self, &[(TargetState::Pending, TargetState::Waiting)]);
            all.push(event("a target cannot be started", waits, open()));
        }
        if self.stage == RolloutStage::Running && counts.active + counts.waiting == 0 {
            all.push(event("the wave has no open target", self.clone(), settled));
        }
        if works && counts.waiting > 0 {
            let begun = counted(self, &[(TargetState::Waiting, TargetState::Active)]);
            let later = RolloutTurnInput { next_due: Some(Timestamp::default()), ..open() };
            all.push(event("a waiting target is started", begun, later));
        }
        if works && counts.active > 0 {
            if counts.active + counts.waiting == 1 {
                let done = counted(self, &[(TargetState::Active, TargetState::Done)]);
                all.push(event("the last target of the wave ends well", done, settled));
            }
            let failed = counted(self, &[(TargetState::Active, TargetState::Failed)]);
            all.push(event("a target fails", failed, open()));
        }
        for (name, request) in [
            ("a person pauses it", RolloutRequest::Pause { reason: "lunch".into() }),
            ("a person resumes it", RolloutRequest::Resume),
            (
                "a person aborts it",
                RolloutRequest::Abort { cancel_running: false, reason: "wrong image".into() },
            ),
            ("a person promotes it", RolloutRequest::Promote),
            ("a person has its failed targets tried again", RolloutRequest::RetryFailed),
        ] {
            let changed = apply_rollout_request(self, &request, "ada", Timestamp::default());
            if let Ok(Some((record, _))) = changed {
                all.push(event(name, record, open()));
            }
        }
        all
    }

    fn advice(&self) -> &'static str {
        match self.state_name() {
            "Waiting" => "wait, or start it now: `farrier rollout promote <rollout>`",
            "Running" => "`farrier rollout watch <rollout>`",
            "Soaking" => "wait, or end the soak: `farrier rollout promote <rollout>`",
            "AwaitingApproval" => "`farrier rollout promote <rollout>`",
            "Paused" => "`farrier why <rollout>`, then resume or abort it",
            "Aborting" => "wait until what runs has ended",
            _ => "`farrier rollout targets <rollout>`",
        }
    }
}
