//! Rollouts: their targets, their waits, the requests of operators, and the rights of their editor.

use crate::approvals::People;
use crate::rollout_fixture::{check_rollouts, reboots, request};
use crate::test_env::{TestEnv, simulate};
use engine::Engine;
use engine::admission::StartRequest;
use engine::rollout::CreatedRollout;
use model::access::{Permission, PermissionSet};
use model::approval::ApprovalPolicy;
use model::condition::{ConditionObservation, ConditionType};
use model::gate::Overrides;
use model::id::{MachineId, RolloutId};
use model::lifecycle::Lifecycle;
use model::machine::Phase;
use model::plan::{IMAGE_REF, Params, RunType};
use model::refusal::Reason;
use model::rollout::{
    BatchSize, ConditionGate, FailureLimit, OnConflict, Pace, Rollout, RolloutRequest, RolloutSpec,
    TargetState,
};
use model::run::actions::Requester;
use providers::sim::{self, FaultRule};
use std::sync::Arc;
use std::time::Duration;
use store::StoreError;

struct Fleet {
    env: TestEnv,
    engine: Engine,
}

impl Fleet {
    /// Machines m-1 to m-N in service, without a cluster's work on them.
    async fn of(count: usize) -> Self {
        let env = TestEnv::new(5).await;
        let engine = env.boot("a").await.engine;
        for number in 1..=count {
            let id = format!("m-{number}");
            env.register(&engine, &id).await;
            env.set_phase(&id, Phase::Ready).await;
        }
        Self { env, engine }
    }

    async fn create(&self, spec: RolloutSpec) -> RolloutId {
        self.created(spec, "first").await.rollout.id()
    }

    async fn created(&self, spec: RolloutSpec, request_id: &str) -> CreatedRollout {
        self.engine.rollouts().create(request(spec, request_id)).await.expect("created")
    }

    async fn refused(&self, spec: RolloutSpec, request_id: &str) -> (Reason, String) {
        match self.engine.rollouts().create(request(spec, request_id)).await {
            Err(StoreError::Refused(refusal)) => (refusal.reason, refusal.message),
            other => panic!("{other:?}"),
        }
    }

    async fn get(&self, id: &RolloutId) -> Rollout {
        self.engine.rollouts().get(id).await.expect("a rollout")
    }

    async fn ask(&self, id: &RolloutId, wanted: RolloutRequest) -> Rollout {
        let who = Requester { by: "ada".into(), reason: String::new() };
        self.engine.rollouts().request(id, wanted, who).await.expect("accepted")
    }

    /// Waits until the rollout is in a state.
    async fn reaches(&self, id: &RolloutId, state: &str) -> Rollout {
        for _ in 0..20_000 {
            let rollout = self.get(id).await;
            if rollout.state_name() == state {
                return rollout;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        let targets = self.env.rollout_targets(id).await;
        panic!("{id} never became {state}: {:?}\n{targets:#?}", self.get(id).await);
    }

    async fn states(&self, id: &RolloutId) -> Vec<TargetState> {
        self.env.rollout_targets(id).await.into_iter().map(|one| one.state).collect()
    }

    async fn fail(&self, machine: &str, effect: &str) {
        let rule = FaultRule {
            machine: machine.into(),
            effect: effect.into(),
            ..FaultRule::new(sim::Action::Fail)
        };
        self.env.sim.add_fault(rule).expect("a rule");
    }

    async fn check(&self) {
        let read = self.env.store.read((), |(), tx| Box::pin(check_rollouts(tx)));
        assert_eq!(read.await.expect("read"), Vec::<String>::new());
    }
}

/// All at once, and any number of failures.
fn at_once(filter: &str) -> RolloutSpec {
    let pace = Pace {
        batch: BatchSize::Percent(100),
        stop_after: FailureLimit::Percent(100),
        ..Pace::default()
    };
    RolloutSpec { pace, ..reboots(filter) }
}

const ALL: &str = "provider=sim";

#[test]
fn every_target_goes_through_its_sequence_once() {
    simulate(async {
        let fleet = Fleet::of(3).await;
        fleet.env.set_phase("m-2", Phase::Maintenance).await;
        let id = fleet.create(reboots(ALL)).await;
        let ended = fleet.reaches(&id, "Done").await;
        assert!(ended.has_succeeded(), "{ended:?}");
        assert_eq!((ended.wave, ended.counts.done), (3, 3));
        fleet.check().await;
        for (machine, runs, phase) in
            [("m-1", 3, Phase::Ready), ("m-2", 1, Phase::Maintenance), ("m-3", 3, Phase::Ready)]
        {
            let data = fleet.env.machine_data(machine).await;
            assert_eq!((data.runs.len(), data.machine.phase), (runs, phase), "{machine}");
            for stored in &data.runs {
                assert_eq!(stored.run.spec.initiator, id.as_str());
            }
        }
        // The same request again is the same rollout; another one is refused.
        let again = fleet.created(reboots(ALL), "first").await;
        assert_eq!(again.rollout.id(), id);
        let (reason, _) = fleet.refused(at_once(ALL), "first").await;
        assert_eq!(reason, Reason::RolloutExists);
    });
}

#[test]
fn failures_pause_it_and_failed_targets_are_tried_again() {
    simulate(async {
        let fleet = Fleet::of(4).await;
        for machine in ["m-1", "m-2"] {
            fleet.fail(machine, "reboot").await;
        }
        let id = fleet.create(reboots(ALL)).await;
        let paused = fleet.reaches(&id, "Paused").await;
        assert_eq!((paused.counts.failed, paused.counts.pending), (2, 2));
        assert_eq!(fleet.env.machine("m-1").await.phase, Phase::Maintenance);
        let told = fleet.engine.explain(id.as_str()).await.expect("explained").explanation;
        assert!(told.waiting_for.contains("2 of 4 targets failed"), "{told:?}");
        assert!(told.failed.starts_with("2 × "), "{told:?}");
        fleet.env.sim.clear_faults(None).expect("cleared");
        fleet.ask(&id, RolloutRequest::RetryFailed).await;
        fleet.ask(&id, RolloutRequest::Resume).await;
        let ended = fleet.reaches(&id, "Done").await;
        assert_eq!(ended.counts.done, 4);
        assert_eq!(fleet.env.machine("m-1").await.phase, Phase::Ready);
        fleet.check().await;
    });
}

#[test]
fn a_busy_target_waits_without_blocking_others_and_is_skipped_at_its_deadline() {
    simulate(async {
        let fleet = Fleet::of(3).await;
        fleet.env.set_phase("m-1", Phase::Maintenance).await;
        let slow = FaultRule {
            machine: "m-1".into(),
            effect: "reboot".into(),
            ..FaultRule::new(sim::Action::Hang)
        };
        fleet.env.sim.add_fault(slow).expect("a rule");
        let hold = StartRequest {
            machine_id: MachineId::trusted("m-1"),
            request_id: "other".into(),
            run_type: RunType::Reboot,
            plan_id: None,
            params: Params::new(),
            overrides: Overrides::default(),
            initiator: "bob".into(),
        };
        fleet.engine.runs().start(hold).await.expect("started");
        let mut spec = at_once(ALL);
        spec.pace.target_deadline_seconds = 60;
        let id = fleet.create(spec).await;
        let ended = fleet.reaches(&id, "Done").await;
        assert_eq!((ended.counts.done, ended.counts.skipped), (2, 1), "{ended:?}");
        assert!(!ended.has_succeeded());
        let first = fleet.env.rollout_targets(&id).await.remove(0);
        assert!(first.reason.contains("held by operation"), "{first:?}");
        fleet.check().await;
    });
}

#[test]
fn a_gate_holds_targets_and_waves_soak_and_wait_for_approval() {
    simulate(async {
        let fleet = Fleet::of(2).await;
        let mut spec = reboots(ALL);
        spec.pace.soak_seconds = 600;
        spec.pace.wave_approval = true;
        spec.pace.target_deadline_seconds = 30;
        spec.gate = Some(ConditionGate {
            condition: ConditionType::Degraded,
            status: false,
            hold_seconds: 5,
        });
        let id = fleet.create(spec).await;
        let soaking = fleet.reaches(&id, "Soaking").await;
        assert_eq!(soaking.counts.done + soaking.counts.failed, 1);
        fleet.reaches(&id, "AwaitingApproval").await;
        tokio::time::sleep(Duration::from_secs(3_600)).await;
        assert_eq!(fleet.get(&id).await.wave, 1);
        let promoted = fleet.ask(&id, RolloutRequest::Promote).await;
        assert_eq!(promoted.wave, 2);
        let ended = fleet.reaches(&id, "Done").await;
        assert_eq!(ended.counts.done + ended.counts.failed, 2);
        fleet.check().await;
    });
}

#[test]
fn an_abort_lets_targets_finish_or_cancels_them() {
    for cancel_running in [false, true] {
        simulate(async {
            let fleet = Fleet::of(4).await;
            let slow = FaultRule {
                effect: "reboot".into(),
                delay_ms: 30_000,
                ..FaultRule::new(sim::Action::Slow)
            };
            fleet.env.sim.add_fault(slow).expect("a rule");
            let mut spec = at_once(ALL);
            spec.pace.max_in_flight = Some(2);
            let id = fleet.create(spec).await;
            tokio::time::sleep(Duration::from_secs(20)).await;
            assert_eq!(fleet.get(&id).await.counts.active, 2);
            fleet.check().await;
            let reason = "wrong image".to_string();
            fleet.ask(&id, RolloutRequest::Abort { cancel_running, reason }).await;
            let ended = fleet.reaches(&id, "Aborted").await;
            let (done, failed) = if cancel_running { (0, 2) } else { (2, 0) };
            assert_eq!((ended.counts.done, ended.counts.failed), (done, failed), "{ended:?}");
            assert_eq!(ended.counts.skipped, 2);
            fleet.check().await;
        });
    }
}

#[test]
fn a_pause_keeps_what_runs_and_a_target_can_be_skipped() {
    simulate(async {
        let fleet = Fleet::of(3).await;
        let id = fleet.create(reboots(ALL)).await;
        fleet.ask(&id, RolloutRequest::Pause { reason: "lunch".into() }).await;
        tokio::time::sleep(Duration::from_secs(3_600)).await;
        let paused = fleet.get(&id).await;
        assert_eq!((paused.state_name(), paused.counts.active), ("Paused", 0));
        assert!(paused.counts.pending >= 2, "{paused:?}");
        let who = || Requester { by: "ada".into(), reason: "in use".into() };
        let last = MachineId::trusted("m-3");
        let skipped = fleet.engine.rollouts().skip(&id, &last, who()).await.expect("skipped");
        assert_eq!(skipped.counts.skipped, 1);
        let again = fleet.engine.rollouts().skip(&id, &last, who()).await;
        assert!(matches!(again, Err(StoreError::Refused(_))), "{again:?}");
        let unknown = MachineId::trusted("m-9");
        let again = fleet.engine.rollouts().skip(&id, &unknown, who()).await;
        assert!(matches!(again, Err(StoreError::Refused(_))), "{again:?}");
        fleet.ask(&id, RolloutRequest::Resume).await;
        let ended = fleet.reaches(&id, "Done").await;
        assert_eq!((ended.counts.done, ended.counts.skipped), (2, 1));
        assert_eq!(fleet.env.machine_data("m-3").await.runs.len(), 0);
    });
}

#[test]
fn the_pace_changes_while_it_runs_at_the_named_version() {
    simulate(async {
        let fleet = Fleet::of(4).await;
        let mut spec = reboots(ALL);
        spec.pace.wave_approval = true;
        let id = fleet.create(spec).await;
        let waits = fleet.reaches(&id, "AwaitingApproval").await;
        let who = || Requester { by: "bob".into(), reason: String::new() };
        let faster = |stored: &Rollout| {
            let pace = Pace { batch: BatchSize::Count(3), ..stored.spec.pace.clone() };
            Ok(Pace { wave_approval: false, ..pace })
        };
        let rollouts = fleet.engine.rollouts();
        let old = rollouts.update(&id, Arc::new(faster), Some(1), who()).await;
        assert!(matches!(old, Err(StoreError::Refused(_))), "{old:?}");
        let version = Some(waits.head.version);
        rollouts.update(&id, Arc::new(faster), version, who()).await.expect("updated");
        fleet.ask(&id, RolloutRequest::Promote).await;
        let ended = fleet.reaches(&id, "Done").await;
        assert_eq!((ended.wave, ended.counts.done), (2, 4));
    });
}

#[test]
fn two_rollouts_never_work_on_one_machine_at_once() {
    simulate(async {
        let fleet = Fleet::of(2).await;
        let one = fleet.create(at_once(ALL)).await;
        let refuse = RolloutSpec { on_conflict: OnConflict::Refuse, ..at_once(ALL) };
        let (reason, message) = fleet.refused(refuse, "second").await;
        assert_eq!(reason, Reason::RolloutConflict);
        assert!(message.contains(one.as_str()), "{message}");
        let two = fleet.created(at_once(ALL), "second").await.rollout.id();
        for _ in 0..600 {
            fleet.check().await;
            let mut active = Vec::new();
            for id in [&one, &two] {
                let targets = fleet.env.rollout_targets(id).await.into_iter();
                active.extend(targets.filter(|row| row.state == TargetState::Active));
            }
            active.sort_by(|a, b| a.machine.cmp(&b.machine));
            let both = active.windows(2).any(|pair| pair[0].machine == pair[1].machine);
            assert!(!both, "{active:?}");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        for id in [one, two] {
            assert_eq!(fleet.reaches(&id, "Done").await.counts.done, 2);
        }
    });
}

#[test]
fn excluded_machines_are_listed_and_a_dry_run_writes_nothing() {
    simulate(async {
        let fleet = Fleet::of(3).await;
        fleet.env.set_phase("m-2", Phase::FactoryReady).await;
        let mut spec = reboots(ALL);
        spec.pace.canary = 1;
        spec.pace.batch = BatchSize::Count(5);
        let dry = fleet.engine.with_dry_run(true).rollouts();
        let found = dry.create(request(spec.clone(), "dry")).await.expect("a preview");
        assert_eq!(found.preview.waves, [1, 1]);
        assert_eq!(found.preview.targets.len(), 2);
        assert_eq!(found.preview.excluded[0].machine.as_str(), "m-2");
        assert!(fleet.env.rollouts().await.is_empty());
        let (reason, message) = fleet.refused(reboots("machine_id=m-2"), "none").await;
        assert_eq!(reason, Reason::RolloutEmpty);
        assert!(message.contains("FACTORY_READY"), "{message}");
        let (reason, _) = fleet.refused(reboots("provider=none"), "none").await;
        assert_eq!(reason, Reason::RolloutEmpty);
        let mut image = reboots(ALL);
        image.operation.run_type = RunType::Reimage;
        let (reason, message) = fleet.refused(image, "none").await;
        assert_eq!(reason, Reason::FieldMissing, "{message}");
    });
}

#[test]
fn a_target_that_has_the_image_is_passed_over() {
    simulate(async {
        let fleet = Fleet::of(2).await;
        let mut spec = at_once(ALL);
        spec.operation.run_type = RunType::Reimage;
        spec.operation.params = Params::from([(IMAGE_REF.into(), "debian-12".into())]);
        let one = fleet.create(spec.clone()).await;
        let ended = fleet.reaches(&one, "Done").await;
        assert_eq!(ended.counts.done, 2, "{:#?}", fleet.env.rollout_targets(&one).await);
        let two = fleet.created(spec, "again").await.rollout.id();
        let ended = fleet.reaches(&two, "Done").await;
        assert_eq!(fleet.states(&two).await, [TargetState::PassedOver; 2]);
        assert!(ended.has_succeeded());
    });
}

#[test]
fn a_target_that_is_retired_or_deleted_on_the_way_is_gone() {
    simulate(async {
        let fleet = Fleet::of(2).await;
        let mut spec = reboots(ALL);
        spec.pace.wave_approval = true;
        let id = fleet.create(spec).await;
        fleet.reaches(&id, "AwaitingApproval").await;
        let input = (MachineId::trusted("m-2"), fleet.env.now());
        let retired = fleet.env.store.write("retire", input, |(id, now), tx| {
            Box::pin(async move {
                let mut machine = tx.machine_locked(id).await?.expect("a machine");
                let seen = ConditionObservation::new(ConditionType::Retired, true, "old");
                machine.learn(&[seen], *now);
                let event = store::NewEvent {
                    cause: store::Cause::Admin,
                    actor: "test".into(),
                    message: "retired".into(),
                    decided_by: String::new(),
                    at: *now,
                };
                tx.update_machine(&mut machine, &event)
            })
        });
        retired.await.expect("written");
        fleet.ask(&id, RolloutRequest::Promote).await;
        let ended = fleet.reaches(&id, "Done").await;
        assert_eq!((ended.counts.done, ended.counts.gone), (1, 1));
    });
}

#[test]
fn it_acts_with_the_rights_of_its_last_editor() {
    simulate(async {
        let fleet = Fleet::of(2).await;
        let people = People::of(&fleet.env).await;
        let (ada, bob, eve) = (
            people.caller("ada", "operator").await,
            people.caller("bob", "operator").await,
            people.caller("eve", "viewer").await,
        );
        let create = |caller| {
            let mut spec = reboots(ALL);
            spec.pace.wave_approval = true;
            let rollouts = fleet.engine.for_caller(caller).rollouts();
            async move { rollouts.create(request(spec, "first")).await }
        };
        let denied = create(&eve).await;
        assert!(
            matches!(&denied, Err(StoreError::Refused(one)) if one.reason == Reason::PermissionDenied),
            "{denied:?}"
        );
        let id = create(&ada).await.expect("created").rollout.id();
        fleet.reaches(&id, "AwaitingApproval").await;
        people.revoke(&ada).await;
        fleet.ask(&id, RolloutRequest::Promote).await;
        let paused = fleet.reaches(&id, "Paused").await;
        let reason = paused.pause.expect("paused").reason;
        assert!(reason.contains("ada") && reason.contains("revoked"), "{reason}");
        assert_eq!(fleet.env.machine_data("m-2").await.runs.len(), 0);
        let who = || Requester { by: "eve".into(), reason: String::new() };
        let resume = |caller| {
            let rollouts = fleet.engine.for_caller(caller).rollouts();
            let id = id.clone();
            async move { rollouts.request(&id, RolloutRequest::Resume, who()).await }
        };
        assert!(resume(&eve).await.is_err());
        assert_eq!(resume(&bob).await.expect("resumed").editor.user, "bob");
        assert_eq!(fleet.reaches(&id, "Done").await.counts.done, 2);
    });
}

#[test]
fn one_approval_covers_a_rollout() {
    simulate(async {
        let fleet = Fleet::of(2).await;
        let people = People::of(&fleet.env).await;
        let (ada, bob) =
            (people.caller("ada", "operator").await, people.caller("bob", "operator").await);
        let classes = PermissionSet::of(&[Permission::Operate]);
        let policy = ApprovalPolicy::parse(classes, None).expect("a policy");
        let admin = fleet.engine.for_caller(people.admin());
        admin.approvals().set_policy(policy).await.expect("a policy");
        let create = || {
            let rollouts = fleet.engine.for_caller(&ada).rollouts();
            async move { rollouts.create(request(at_once(ALL), "first")).await }
        };
        let approval = match create().await {
            Err(StoreError::Refused(refusal)) => refusal.approval.expect("an approval").id,
            other => panic!("{other:?}"),
        };
        assert!(fleet.env.rollouts().await.is_empty());
        let id = model::id::ApprovalId::trusted(approval);
        fleet.engine.for_caller(&bob).approvals().grant(id, "").await.expect("granted");
        let id = create().await.expect("created").rollout.id();
        assert_eq!(fleet.reaches(&id, "Done").await.counts.done, 2);
    });
}
