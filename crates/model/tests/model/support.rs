//! Runs to start from, and helpers that the tables share.

use model::effect::{
    CallOutcome, CallVerb, DesiredPower, Effect, NetbootMode, NodeLabels, PowerOffPolicy,
    ProviderAnswer,
};
use model::fault::{Fault, FaultCode};
use model::id::{PlanId, RunId};
use model::plan::{OnFailure, Params, RunStep, RunType};
use model::run::actions::{Action, ActionResult, Requester, apply_action};
use model::run::{
    AfterCommit, CallResult, Decision, ENGINE_VERSION, Policy, Progress, Run, RunSpec, decide,
};
use model::time::Timestamp;

pub const TIMEOUT_SECONDS: u32 = 3_600;

pub fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(1_700_000_000_000 + seconds * 1_000)
}

fn step(name: &str, max_retries: u32, effect: Effect) -> RunStep {
    RunStep { name: name.into(), timeout_seconds: TIMEOUT_SECONDS, max_retries, effect }
}

/// A repetition does harm, and there is no undo.
pub fn wipe(max_retries: u32) -> RunStep {
    step("wipe", max_retries, Effect::Repave { image: "ubuntu-2204".into() })
}

/// A repetition is harmless, and there is no undo.
pub fn note(max_retries: u32) -> RunStep {
    step("note", max_retries, Effect::Ssh { command: "true".into(), destructive: false })
}

/// A repetition is harmless, and there is an undo.
pub fn netboot(max_retries: u32) -> RunStep {
    step("netboot", max_retries, Effect::Netboot { mode: NetbootMode::Pxe })
}

/// A repetition is harmless, and there is an undo.
pub fn join(max_retries: u32) -> RunStep {
    let (labels, taints) = (NodeLabels::new(), Vec::new());
    step(
        "join",
        max_retries,
        Effect::Join {
            cluster_ref: "cluster-a".into(),
            labels,
            taints,
            kubeadm: Default::default(),
        },
    )
}

/// A repetition is harmless; the undo uncordons the node.
pub fn drain(max_retries: u32) -> RunStep {
    let effect = Effect::Drain {
        cluster_ref: "cluster-a".into(),
        deadline_seconds: Some(60),
        options: Default::default(),
    };
    step("drain", max_retries, effect)
}

/// A repetition does harm, and there is no undo.
pub fn power_off(max_retries: u32) -> RunStep {
    let effect =
        Effect::Power { to: DesiredPower::Off, power_off: PowerOffPolicy::PROVIDER_DEFAULT };
    step("power-off", max_retries, effect)
}

pub fn spec(steps: Vec<RunStep>) -> RunSpec {
    RunSpec {
        id: RunId::trusted("op-1"),
        target: model::target::TargetId::from_key("m-1"),
        parent_run: None,
        reports_to: None,
        held_targets: Vec::new(),
        request_id: "req-1".into(),
        run_type: RunType::Reimage,
        plan_id: PlanId::trusted("plan-x"),
        steps,
        params: Params::new(),
        initiator: "alice".into(),
        rerun_of: None,
        restart: None,
        on_failure: OnFailure::KeepPhase,
        engine_version: ENGINE_VERSION,
        created_at: at(0),
    }
}

pub fn run(steps: Vec<RunStep>) -> Run {
    Run::new(spec(steps))
}

pub fn who() -> Requester {
    Requester { by: "alice".into(), reason: "because".into() }
}

pub fn done() -> Result<ProviderAnswer, Fault> {
    Ok(ProviderAnswer::Done(CallOutcome { message: "it holds".into(), ..CallOutcome::default() }))
}

pub fn fault(code: FaultCode) -> Result<ProviderAnswer, Fault> {
    Err(Fault::new(code, "as told"))
}

/// Drives a run step by step, one decision after the other.
pub struct RunDriver {
    pub run: Run,
    pub then: AfterCommit,
    pub now: Timestamp,
}

impl RunDriver {
    /// Starts with the first decision about the run.
    pub fn begin(run: Run) -> Self {
        let mut driver = Self { run, then: AfterCommit::Idle, now: at(1) };
        driver.turn(None);
        driver
    }

    pub fn of(steps: Vec<RunStep>) -> Self {
        Self::begin(run(steps))
    }

    pub fn with(spec: RunSpec, progress: Progress) -> Self {
        Self::begin(Run { spec, progress, version: 1 })
    }

    fn turn(&mut self, given: Option<&CallResult>) {
        let Decision { run, then, .. } = decide(&self.run, 1, given, Policy::default(), self.now);
        self.run = run;
        self.then = then;
    }

    /// Answers the current provider call; then waits as long as the run wants to wait.
    pub fn answer(&mut self, result: Result<ProviderAnswer, Fault>) -> &mut Self {
        let verb = self.open_call().expect("a call is open").0;
        self.turn(Some(&CallResult::Answered(verb, result)));
        if let AfterCommit::IdleUntil(then) = self.then {
            self.now = then;
            self.turn(None);
        }
        self
    }

    /// Applies an action that the run must accept, and lets it decide unless a provider call is
    /// open.
    pub fn act(&mut self, action: Action) -> &mut Self {
        match apply_action(&self.run, action, &who(), self.now) {
            Ok(ActionResult::Recorded(progress, _)) => self.run.progress = progress,
            Ok(ActionResult::Changed(progress, _) | ActionResult::Reopened(progress, _)) => {
                self.run.progress = progress;
            }
            other => panic!("{action:?} on {:?}: {other:?}", self.run.progress.workflow),
        }
        if self.run.open_call().is_none() {
            self.turn(None);
        }
        self
    }

    pub fn interrupt(&mut self) -> &mut Self {
        self.turn(Some(&CallResult::Abandoned));
        self
    }

    /// The worker crashed during a provider call, and another one takes over.
    pub fn take_over(&mut self) -> &mut Self {
        self.turn(None);
        self
    }

    /// The current provider call: its verb, and the step and attempt of its key.
    pub fn open_call(&self) -> Option<(CallVerb, String)> {
        match &self.then {
            AfterCommit::CallProvider(call, _) => {
                let key = call.key.as_str();
                Some((call.verb, key.split_once('/').expect("a run id").1.to_string()))
            }
            AfterCommit::IdleUntil(_) | AfterCommit::Idle => None,
        }
    }

    /// Asserts the current provider call.
    #[track_caller]
    pub fn expect(&mut self, verb: CallVerb, key: &str) -> &mut Self {
        assert_eq!(self.open_call(), Some((verb, key.to_string())), "{:#?}", self.run.progress);
        self
    }
}
