//! Whole onboardings at the fake MAAS, decided by the model as in the engine: what an operator is
//! offered after a failure leads to success.

use crate::maas_api::{End, NodeStatus, PlannedOutcomes, Trouble};
use crate::maas_fixture::{MaasFixture, NODE, SITE};
use model::effect::{CallOutcome, Effect, ProviderAnswer};
use model::fault::{FaultCode, Incident};
use model::id::{NodeId, PlanId, RunId, SiteId};
use model::lifecycle::Lifecycle;
use model::node::{NodeStage, StageExecutor, StageTarget, steps};
use model::plan::{OnFailure, Params, RunType};
use model::run::actions::{Action, ActionResult, Requester, RestartMode, apply_action, restart};
use model::run::{
    AfterCommit, CallResult, Decision, ENGINE_VERSION, Policy, Run, RunSpec, Workflow, decide,
};
use model::target::TargetId;
use model::time::Timestamp;

/// More turns than any of these runs takes.
const MAX_TURNS: usize = 200;

/// The onboarding of the fixture's node.
async fn onboarding(fixture: &MaasFixture) -> Run {
    let node = fixture.node().await;
    let owner = StageTarget {
        node: NodeId::trusted(NODE),
        site: Some(SiteId::trusted(SITE)),
        provider: "maas".into(),
        cluster: String::new(),
    };
    Run::new(RunSpec {
        id: RunId::trusted("op-1"),
        target: TargetId::from(&node.machine),
        request_id: String::new(),
        run_type: RunType::Onboard,
        plan_id: PlanId::trusted("plan-onboard"),
        steps: steps(&NodeStage::ONBOARDING, &owner),
        params: Params::new(),
        initiator: "alice".into(),
        rerun_of: None,
        restart: None,
        on_failure: OnFailure::KeepPhase,
        parent_run: None,
        reports_to: Some(node.subject()),
        held_targets: Vec::new(),
        engine_version: ENGINE_VERSION,
        created_at: Timestamp::default(),
    })
}

fn restarted(run: &Run, mode: RestartMode, id: &str) -> Run {
    let spec = RunSpec {
        id: RunId::trusted(id),
        rerun_of: Some(run.spec.id.clone()),
        restart: Some(mode),
        ..run.spec.clone()
    };
    Run { spec, progress: restart(run, mode, false).unwrap(), version: 1 }
}

/// A run as the engine takes it on. Waits take no time.
struct Driver<'a> {
    fixture: &'a MaasFixture,
    run: Run,
    now: Timestamp,
}

impl Driver<'_> {
    fn of(fixture: &MaasFixture, run: Run) -> Driver<'_> {
        Driver { fixture, run, now: Timestamp::from_millis(1_000) }
    }

    /// Takes the run on until it ends, or until it waits for a time.
    async fn until_idle(&mut self) -> AfterCommit {
        let mut answer = None;
        for _ in 0..MAX_TURNS {
            let decided = decide(&self.run, 1, answer.as_ref(), Policy::default(), self.now);
            let Decision { run, then, .. } = decided;
            self.run = run;
            let AfterCommit::CallProvider(call, _) = then else { return then };
            let at_maas = matches!(&call.effect, Effect::Stage { stage, .. }
                if stage.executor() == StageExecutor::Maas);
            let result = match at_maas {
                true => self.fixture.call(&call).await.0,
                false => Ok(ProviderAnswer::Done(CallOutcome::default())),
            };
            answer = Some(CallResult::Answered(call.verb, result));
        }
        panic!("{:#?}", self.run.progress);
    }
}

/// Takes a run to its end.
async fn drive(fixture: &MaasFixture, run: Run) -> Run {
    let mut driver = Driver::of(fixture, run);
    for _ in 0..MAX_TURNS {
        match driver.until_idle().await {
            AfterCommit::IdleUntil(at) => driver.now = at,
            AfterCommit::Idle | AfterCommit::CallProvider(..) => return driver.run,
        }
    }
    panic!("{:#?}", driver.run.progress);
}

/// The fault that ended a run, and the commands that an operator is offered.
async fn offered(fixture: &MaasFixture, run: &Run) -> (FaultCode, Vec<String>) {
    let failure = run.progress.failure.as_ref().unwrap();
    let node = fixture.node().await;
    let incident =
        Incident { fault: &failure.fault, run: Some(run), machine: None, node: Some(&node) };
    (failure.fault.code, incident.commands())
}

fn installs(fails: bool) -> PlannedOutcomes {
    let log = "curtin: Installation failed\nFailed to format sda".to_owned();
    let deployment = match fails {
        true => End::Fails { events: Vec::new(), log },
        false => End::default(),
    };
    PlannedOutcomes { deployment, reports_hardware: true, ..PlannedOutcomes::default() }
}

/// MAAS keeps a machine in Failed deployment until it is released, and neither commissions nor
/// installs it before (run: 3.4.8). A rerun keeps what holds, so it stops
/// there; a clean restart releases it first. That is offered after the failure, and also after a
/// rerun that was tried nevertheless.
#[tokio::test]
async fn the_offered_restart_of_a_failed_deployment_succeeds() {
    for reruns in [0, 1] {
        let fixture = MaasFixture::new().await;
        let id = fixture.add(NodeStatus::Ready);
        fixture.api.state().machines.get_mut(&id).unwrap().planned = installs(true);
        let mut failed = drive(&fixture, onboarding(&fixture).await).await;
        let (code, commands) = offered(&fixture, &failed).await;
        assert_eq!(code, FaultCode::DeployFailed);
        assert_eq!(fixture.status(&id), NodeStatus::FailedDeployment);
        assert_eq!(commands[0], "farrier operation restart-clean op-1");
        for _ in 0..reruns {
            let rerun = restarted(&failed, RestartMode::Rerun, "op-2");
            failed = drive(&fixture, rerun).await;
            let (code, commands) = offered(&fixture, &failed).await;
            assert_eq!(code, FaultCode::StateDisagrees);
            let act = commands.iter().find(|one| one.contains(" operation ")).unwrap();
            assert_eq!(act, "farrier operation restart-clean op-2");
            assert_eq!(fixture.count(&id, "release"), 0, "a rerun takes nothing away");
        }
        let (_, commands) = offered(&fixture, &failed).await;
        assert!(!commands.iter().any(|one| one.contains(" rerun ")), "{commands:?}");
        fixture.api.state().machines.get_mut(&id).unwrap().planned = installs(false);
        let last = drive(&fixture, restarted(&failed, RestartMode::RestartClean, "op-9")).await;
        assert_eq!(last.progress.workflow, Workflow::Completed, "{:#?}", last.progress.failure);
        assert_eq!(fixture.status(&id), NodeStatus::Deployed);
        assert_eq!((fixture.count(&id, "release"), fixture.count(&id, "deploy")), (1, 2));
    }
}

/// An image sync takes minutes: MAAS refuses to commission with a 400 until it is over (run:
/// 3.4.8). The stage goes on asking, beyond its retries, and succeeds.
#[tokio::test]
async fn an_onboarding_waits_for_the_sync_of_an_image() {
    const REFUSALS: usize = 9;
    let fixture = MaasFixture::new().await;
    let id = fixture.add(NodeStatus::New);
    let says = "Ephemeral operating system ubuntu jammy is unavailable.";
    {
        let mut env = fixture.api.state();
        let refused = Trouble::Says(400, says.into());
        env.trouble("commission", refused, REFUSALS);
        env.machines.get_mut(&id).unwrap().planned = installs(false);
    }
    let run = drive(&fixture, onboarding(&fixture).await).await;
    assert_eq!(run.progress.workflow, Workflow::Completed, "{:#?}", run.progress.failure);
    assert_eq!(fixture.count(&id, "commission"), REFUSALS + 1);
}

/// A 500 that repeats (run: 3.4.8) is no lost answer: each attempt ends with it, the retries of the
/// stage bound it, and a cancel between two attempts waits for nothing.
#[tokio::test]
async fn a_500_that_repeats_is_bounded_and_can_be_canceled() {
    let broken = async || {
        let fixture = MaasFixture::new().await;
        let id = fixture.add(NodeStatus::New);
        let says = Trouble::Says(500, "IPAddress() does not support netmasks".into());
        fixture.api.state().trouble("commission", says, MAX_TURNS);
        (fixture, id)
    };
    let (fixture, id) = broken().await;
    let failed = drive(&fixture, onboarding(&fixture).await).await;
    assert_eq!(offered(&fixture, &failed).await.0, FaultCode::MaasFailed);
    assert_eq!(failed.progress.workflow, Workflow::FailedRetryable);
    assert_eq!(fixture.count(&id, "commission"), 3, "one attempt and two retries");
    let (fixture, id) = broken().await;
    let mut driver = Driver::of(&fixture, onboarding(&fixture).await);
    assert!(matches!(driver.until_idle().await, AfterCommit::IdleUntil(_)), "it waits to retry");
    let who = Requester { by: "alice".into(), reason: String::new() };
    let canceled = apply_action(&driver.run, Action::Cancel, &who, driver.now).unwrap();
    let ActionResult::Recorded(progress, _) = canceled else { panic!("{canceled:?}") };
    driver.run.progress = progress;
    assert!(matches!(driver.until_idle().await, AfterCommit::Idle), "it waits for nothing");
    assert_eq!(driver.run.progress.workflow, Workflow::Cancelled);
    assert_eq!(fixture.count(&id, "commission"), 1);
}
