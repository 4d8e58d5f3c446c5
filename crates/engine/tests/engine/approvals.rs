//! Approvals: a request of a class that needs a second person holds nothing until another person
//! has approved it, and starts once after that, whatever crashes.

use crate::fault_injector::StopScope;
use crate::nodes::{NodeFixture, onboard_request, refusal};
use crate::rack_fixture::{RackFixture, machines, maintenance_request, power};
use crate::test_env::{TestEnv, simulate};
use engine::DescribedMachine;
use engine::Engine;
use engine::access::{AccessControl, Caller, TokenRequest, new_secret};
use engine::admission::{StartRequest, StartedRun};
use model::access::{Permission, PermissionSet, TokenKind};
use model::approval::{Approval, ApprovalPolicy, ApprovalState, MAX_PENDING};
use model::effect::DesiredPower;
use model::filter::Filter;
use model::gate::{Gate, Overrides};
use model::id::{ApprovalId, MachineId, PowerShelfId, RunId, TokenId};
use model::machine::{Labels, MachineSpec};
use model::plan::{IMAGE_REF, Params, RunType};
use model::power_shelf::maintenance::PowerChangeRequest;
use model::rack::maintenance::{MaintenanceScope, PowerSequence};
use model::refusal::Reason;
use model::run::Run;
use model::run::actions::{Action, Requester, RestartMode};
use secrecy::ExposeSecret;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use store::{Result, StoreError};

const MACHINE: &str = "m-1";

/// The people of a test, each with tokens of their own.
pub struct People {
    access: AccessControl,
    admin: Caller,
}

impl People {
    pub async fn of(env: &TestEnv) -> Self {
        let next = AtomicU64::new(1 << 40);
        let random = Arc::new(move || next.fetch_add(1, Ordering::Relaxed));
        let opened = AccessControl::open(env.store.clone(), env.clock(), random);
        let access = opened.await.expect("the access rules");
        let secret = new_secret(TokenKind::Api);
        access.bootstrap(&secret).await.expect("an administrator");
        let admin = access.authenticate(secret.expose_secret(), TokenKind::Api).await;
        Self { admin: admin.expect("a caller"), access }
    }

    pub fn admin(&self) -> &Caller {
        &self.admin
    }

    /// Revokes the token of a caller.
    pub async fn revoke(&self, caller: &Caller) {
        let id = TokenId::trusted(caller.principal().token_id.clone().expect("a token"));
        let revoked = self.access.for_caller(&self.admin, false).revoke_token(&id).await;
        revoked.expect("revoked");
    }

    /// Every call makes another token of the user.
    pub async fn caller(&self, user: &str, role: &str) -> Caller {
        let request = TokenRequest {
            user: user.into(),
            description: String::new(),
            roles: vec![role.into()],
            lifetime: None,
        };
        let made = self.access.for_caller(&self.admin, false).create_token(request).await;
        let secret = made.expect("a token").secret;
        let caller = self.access.authenticate(secret.expose_secret(), TokenKind::Api).await;
        caller.expect("a caller")
    }
}

struct ApprovalFixture {
    env: TestEnv,
    engine: Engine,
    people: People,
    ada: Caller,
    bob: Caller,
}

impl ApprovalFixture {
    /// A machine in maintenance, two operators, and a policy for these classes.
    async fn new(classes: &[Permission]) -> Self {
        let env = TestEnv::new(3).await;
        let engine = env.boot("a").await.engine;
        Self::on(env, engine, classes).await
    }

    async fn on(env: TestEnv, engine: Engine, classes: &[Permission]) -> Self {
        env.register(&engine, MACHINE).await;
        let enter = engine.runs().start(start(RunType::EnterMaintenance, "enter")).await;
        ended(&engine, &enter.expect("accepted").run.spec.id).await;
        let people = People::of(&env).await;
        set_policy(&engine, &people.admin, classes).await;
        let (ada, bob) =
            (people.caller("ada", "operator").await, people.caller("bob", "operator").await);
        Self { env, engine, people, ada, bob }
    }

    async fn start(&self, who: &Caller, start: StartRequest) -> Result<StartedRun> {
        self.engine.for_caller(who).runs().start(start).await
    }

    async fn approval(&self, id: &ApprovalId) -> Approval {
        self.engine.approvals().get(id).await.expect("an approval")
    }

    async fn approve(&self, who: &Caller, id: &ApprovalId) -> Result<Approval> {
        self.engine.for_caller(who).approvals().grant(id.clone(), "").await
    }

    /// The approval that a refused request waits for.
    async fn waits(&self, start: StartRequest) -> ApprovalId {
        required(self.start(&self.ada, start).await)
    }

    async fn reimages(&self) -> Vec<Run> {
        let runs = self.env.store.read((), |(), tx| {
            Box::pin(async move { tx.runs(&Filter::default(), None, 1_000).await })
        });
        let runs = runs.await.expect("the in-memory database answers").runs;
        runs.into_iter().filter(|run| run.spec.run_type == RunType::Reimage).collect()
    }
}

async fn set_policy(engine: &Engine, admin: &Caller, classes: &[Permission]) {
    let policy = ApprovalPolicy::parse(PermissionSet::of(classes), None).expect("a policy");
    let engine = engine.for_caller(admin);
    engine.approvals().set_policy(policy).await.expect("an administrator");
}

fn required<T: std::fmt::Debug>(answer: Result<T>) -> ApprovalId {
    let refusal = refusal(answer);
    assert_eq!(refusal.reason, Reason::ApprovalRequired, "{refusal}");
    assert_eq!(refusal.gate, Some(Gate::Approval));
    ApprovalId::trusted(refusal.approval.expect("an approval").id)
}

fn start(run_type: RunType, request_id: &str) -> StartRequest {
    StartRequest {
        machine_id: MachineId::trusted(MACHINE),
        request_id: request_id.into(),
        run_type,
        plan_id: None,
        params: Params::new(),
        overrides: Overrides::default(),
        initiator: "ada".into(),
    }
}

fn reimage(request_id: &str, image: &str) -> StartRequest {
    let params = Params::from([(IMAGE_REF.to_string(), image.to_string())]);
    StartRequest { params, ..start(RunType::Reimage, request_id) }
}

async fn ended(engine: &Engine, id: &RunId) {
    while !engine.runs().get(id).await.expect("a run").ended() {
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

#[test]
fn a_request_starts_once_after_another_person_has_approved_it() {
    simulate(async {
        let fixture = ApprovalFixture::new(&[Permission::Destroy]).await;
        let ask = || reimage("r-1", "ubuntu-2204");
        let id = fixture.waits(ask()).await;
        // It holds nothing, and a repetition files nothing.
        assert_eq!(fixture.waits(ask()).await, id);
        assert_eq!(fixture.waits(reimage("r-2", "ubuntu-2204")).await, id);
        assert_eq!(fixture.reimages().await, []);
        assert_eq!(fixture.env.machine(MACHINE).await.active_run, None);
        let shown = fixture.approval(&id).await;
        assert_eq!((shown.requester.as_str(), shown.request.as_str()), ("ada", "REIMAGE"));
        assert!(shown.plan.contains(&"parameter image_ref=ubuntu-2204".to_string()), "{shown:#?}");
        let marked = |line: &String| line.contains("(destructive)");
        assert!(shown.plan.iter().any(marked), "{shown:#?}");

        // Not another token of the same person, not somebody with fewer rights.
        let other_token = fixture.people.caller("ada", "admin").await;
        let viewer = fixture.people.caller("eve", "viewer").await;
        for (who, reason) in [
            (&fixture.ada, Reason::SecondPersonRequired),
            (&other_token, Reason::SecondPersonRequired),
            (&viewer, Reason::PermissionDenied),
        ] {
            assert_eq!(refusal(fixture.approve(who, &id).await).reason, reason);
        }
        let approved = fixture.approve(&fixture.bob, &id).await.expect("another person");
        assert_eq!(approved.stored, ApprovalState::Approved);

        // The approval is for the requester and for the request id.
        let bobs = fixture.start(&fixture.bob, ask()).await;
        assert_ne!(required(bobs), id);
        assert_eq!(fixture.waits(reimage("r-2", "ubuntu-2204")).await, id);
        let started = fixture.start(&fixture.ada, ask()).await.expect("approved");
        assert!(started.new);
        let again = fixture.start(&fixture.ada, ask()).await.expect("a replay");
        assert_eq!((again.run.spec.id.clone(), again.new), (started.run.spec.id.clone(), false));
        let run = &started.run.spec.id;
        let used = fixture.approval(&id).await;
        assert_eq!((used.stored, used.operations), (ApprovalState::Used, vec![run.to_string()]));
        let history = fixture.engine.history(run.as_str(), 0, 100).await.expect("a history");
        let note = &format!("accepted; approved by bob ({id})");
        assert!(history.iter().any(|event| event.message.ends_with(note)), "{history:#?}");

        // A used approval covers nothing else; a rerun needs its own.
        ended(&fixture.engine, run).await;
        assert_ne!(fixture.waits(reimage("r-3", "ubuntu-2204")).await, id);
        let who = Requester { by: "ada".into(), reason: String::new() };
        let runs = fixture.engine.for_caller(&fixture.ada).runs();
        let rerun = runs.restart(run.clone(), RestartMode::Rerun, "again".into(), who).await;
        assert_ne!(required(rerun), id);
    });
}

#[test]
fn other_classes_and_the_engine_itself_need_no_approval() {
    simulate(async {
        let fixture = ApprovalFixture::new(&[Permission::Destroy]).await;
        let reboot = fixture.start(&fixture.ada, start(RunType::Reboot, "b")).await;
        ended(&fixture.engine, &reboot.expect("not a class of the policy").run.spec.id).await;
        let own =
            fixture.engine.runs().start(reimage("own", "ubuntu-2204")).await.expect("internal");
        ended(&fixture.engine, &own.run.spec.id).await;
        fixture.waits(reimage("r-1", "ubuntu-2204")).await;
        set_policy(&fixture.engine, &fixture.people.admin, &[]).await;
        fixture.start(&fixture.ada, reimage("r-1", "ubuntu-2204")).await.expect("no policy");
        // Only an administrator changes the policy.
        let ada = fixture.engine.for_caller(&fixture.ada);
        let refused = refusal(ada.approvals().set_policy(ApprovalPolicy::default()).await);
        assert_eq!(refused.reason, Reason::PermissionDenied);
    });
}

#[test]
fn a_changed_request_or_plan_needs_another_approval() {
    simulate(async {
        let fixture = ApprovalFixture::new(&[Permission::Destroy]).await;
        let id = fixture.waits(reimage("r-1", "ubuntu-2204")).await;
        fixture.approve(&fixture.bob, &id).await.expect("another person");
        let changed = refusal(fixture.start(&fixture.ada, reimage("r-1", "rhel-9")).await);
        assert!(changed.message.contains(&format!("{id} was for something else")), "{changed}");
        assert!(changed.message.contains("rhel-9"), "{changed}");
        let other = ApprovalId::trusted(changed.approval.expect("an approval").id);
        assert_ne!(other, id);

        // The machine joins another cluster now, so the same request would do something else.
        let spec = MachineSpec {
            target_cluster_ref: "other".into(),
            provider: "sim".into(),
            ..MachineSpec::default()
        };
        let machine = Some(MachineId::trusted(MACHINE));
        let described = DescribedMachine { id: machine, spec: Some(spec), labels: Labels::new() };
        fixture.engine.machines().register(described, "ada".into()).await.expect("changed");
        let changed = refusal(fixture.start(&fixture.ada, reimage("r-1", "ubuntu-2204")).await);
        assert_eq!(changed.reason, Reason::ApprovalRequired);
        assert_ne!(changed.approval.expect("an approval").id, id.to_string());
        assert_eq!(fixture.reimages().await, []);
        assert_eq!(fixture.approval(&id).await.stored, ApprovalState::Approved);
    });
}

#[test]
fn an_approval_expires_before_and_after_it_is_granted() {
    simulate(async {
        let fixture = ApprovalFixture::new(&[Permission::Destroy]).await;
        let ask = || reimage("r-1", "ubuntu-2204");
        let first = fixture.waits(ask()).await;
        tokio::time::sleep(Duration::from_secs(3_601)).await;
        let late = refusal(fixture.approve(&fixture.bob, &first).await);
        assert_eq!(late.reason, Reason::ApprovalClosed, "{late}");
        let refused = refusal(fixture.start(&fixture.ada, ask()).await);
        assert!(refused.message.contains(&format!("{first} expired ")), "{refused}");
        let second = ApprovalId::trusted(refused.approval.expect("an approval").id);
        assert_ne!(second, first);
        fixture.approve(&fixture.bob, &second).await.expect("in time");
        tokio::time::sleep(Duration::from_secs(3_601)).await;
        let third = fixture.waits(ask()).await;
        assert_ne!(third, second);
        assert_eq!(fixture.reimages().await, []);
        fixture.approve(&fixture.bob, &third).await.expect("in time");
        fixture.start(&fixture.ada, ask()).await.expect("in time");
    });
}

#[test]
fn a_denied_request_stays_denied() {
    simulate(async {
        let fixture = ApprovalFixture::new(&[Permission::Destroy]).await;
        let ask = || reimage("r-1", "ubuntu-2204");
        let id = fixture.waits(ask()).await;
        let bob = fixture.engine.for_caller(&fixture.bob);
        bob.approvals().deny(id.clone(), "wrong machine").await.expect("denied");
        let refused = refusal(fixture.start(&fixture.ada, ask()).await);
        assert_eq!(refused.reason, Reason::ApprovalDenied);
        assert!(refused.message.contains("wrong machine"), "{refused}");
        assert_eq!(
            refusal(fixture.approve(&fixture.bob, &id).await).reason,
            Reason::ApprovalClosed
        );
        // An approval can be taken back until it is used; a requester can withdraw.
        let second = fixture.waits(reimage("r-2", "ubuntu-2204")).await;
        fixture.approve(&fixture.bob, &second).await.expect("another person");
        let ada = fixture.engine.for_caller(&fixture.ada);
        ada.approvals().deny(second, "").await.expect("withdrawn");
        let refused = fixture.start(&fixture.ada, reimage("r-2", "ubuntu-2204")).await;
        assert_eq!(refusal(refused).reason, Reason::ApprovalDenied);
        assert_eq!(fixture.reimages().await, []);
    });
}

#[test]
fn two_replicas_start_one_approval_once() {
    simulate(async {
        let fixture = ApprovalFixture::new(&[Permission::Destroy]).await;
        let other = fixture.env.boot("b").await.engine.for_caller(&fixture.ada).runs();
        let ask = || reimage("r-1", "ubuntu-2204");
        // Also the filing: both get the same approval.
        let (one, two) = tokio::join!(fixture.start(&fixture.ada, ask()), other.start(ask()));
        let id = required(one);
        assert_eq!(required(two), id);
        fixture.approve(&fixture.bob, &id).await.expect("another person");
        let (one, two) = tokio::join!(fixture.start(&fixture.ada, ask()), other.start(ask()));
        let (one, two) = (one.expect("accepted"), two.expect("accepted"));
        assert_eq!(one.run.spec.id, two.run.spec.id);
        assert!(one.new != two.new, "{one:?} {two:?}");
        assert_eq!(fixture.reimages().await.len(), 1);
    });
}

/// Every point at which the process of the requester can die while it files the request, and while
/// it starts it after the approval.
#[test]
fn a_crash_neither_loses_nor_repeats_an_approval() {
    let ask = || reimage("r-1", "ubuntu-2204");
    for approved in [false, true] {
        for point in 0.. {
            let crashed = simulate(async {
                let env = TestEnv::new(3).await;
                let process = env.boot("a").await;
                let classes = &[Permission::Destroy];
                let fixture = ApprovalFixture::on(env, process.engine.clone(), classes).await;
                if approved {
                    let id = fixture.waits(ask()).await;
                    fixture.approve(&fixture.bob, &id).await.expect("another person");
                }
                process.injector.arm(Some((point, StopScope::Process)));
                let crashed = tokio::select! {
                    stopped = process.injector.wait_until_stopped() => Some(stopped),
                    _ = fixture.start(&fixture.ada, ask()) => None,
                };
                process.injector.kill();
                let engine = fixture.env.boot("a").await.engine;
                let fixture = ApprovalFixture { engine, ..fixture };
                let pending = fixture.engine.approvals().list(true, None, 10).await;
                assert!(pending.expect("approvals").len() <= 1, "{crashed:?}");
                if !approved {
                    let id = fixture.waits(ask()).await;
                    fixture.approve(&fixture.bob, &id).await.expect("another person");
                }
                let run = fixture.start(&fixture.ada, ask()).await.expect("approved").run.spec.id;
                ended(&fixture.engine, &run).await;
                assert_eq!(fixture.reimages().await.len(), 1, "{crashed:?}");
                let all = fixture.engine.approvals().list(false, None, 10).await;
                let all = all.expect("approvals");
                assert_eq!(all.len(), 1, "{crashed:?}: {all:#?}");
                assert_eq!(all[0].stored, ApprovalState::Used, "{crashed:?}");
                assert_eq!(all[0].operations, [run.to_string()], "{crashed:?}");
                crashed
            });
            if crashed.is_none() {
                assert!(point > 1, "no crash point was passed");
                break;
            }
        }
    }
}

#[test]
fn an_administrator_can_break_the_glass_and_everybody_sees_it() {
    simulate(async {
        let fixture = ApprovalFixture::new(&[Permission::Destroy]).await;
        let overrides = Overrides::of(&[Gate::Approval], "the hall is on fire");
        let ask = || StartRequest { overrides: overrides.clone(), ..reimage("r-1", "rhel-9") };
        let refused = refusal(fixture.start(&fixture.ada, ask()).await);
        assert_eq!(refused.reason, Reason::PermissionDenied, "{refused}");
        let root = fixture.people.caller("root", "admin").await;
        let run = fixture.start(&root, ask()).await.expect("break-glass").run;
        let history = fixture.engine.history(run.spec.id.as_str(), 0, 100).await;
        let note = "gate approval overridden by root (break-glass): the hall is on fire";
        let history = history.expect("a history");
        assert!(history.iter().any(|event| event.message.ends_with(note)), "{history:#?}");

        let seen = async || {
            let attention = fixture.engine.attention(10, None).await.expect("a list");
            let items = attention.items.into_iter().filter(|item| item.kind == "approval");
            items.collect::<Vec<_>>()
        };
        let items = seen().await;
        assert_eq!(items.len(), 1, "{items:#?}");
        let explained = &items[0].explained.explanation;
        assert!(explained.headline.contains("root started REIMAGE on m-1"), "{explained:?}");
        assert!(explained.headline.contains("the hall is on fire"), "{explained:?}");
        let id = ApprovalId::trusted(items[0].id.as_str());
        let own = refusal(fixture.approve(&root, &id).await);
        assert_eq!(own.reason, Reason::SecondPersonRequired);
        fixture.approve(&fixture.bob, &id).await.expect("a review");
        assert!(seen().await.is_empty());
        let reviewed = fixture.approval(&id).await;
        assert_eq!(reviewed.stored, ApprovalState::Reviewed);
        assert_eq!(reviewed.operations, [run.spec.id.to_string()]);

        // A failed operation continues under what it started with; a rerun does not inherit it.
        ended(&fixture.engine, &run.spec.id).await;
        let who = Requester { by: "root".into(), reason: String::new() };
        let runs = fixture.engine.for_caller(&root).runs();
        let id = run.spec.id.clone();
        required(runs.restart(id, RestartMode::Rerun, "again".into(), who).await);
    });
}

#[test]
fn a_run_that_has_failed_continues_under_its_approval() {
    simulate(async {
        let fixture = ApprovalFixture::new(&[Permission::Destroy]).await;
        let ask = || reimage("r-1", "ubuntu-2204");
        let id = fixture.waits(ask()).await;
        fixture.approve(&fixture.bob, &id).await.expect("another person");
        let fault = crate::device_scenarios::fault("repave", providers::sim::Action::Fail, 0);
        fixture.env.sim.add_fault(fault).expect("a rule");
        let run = fixture.start(&fixture.ada, ask()).await.expect("approved").run.spec.id;
        ended(&fixture.engine, &run).await;
        fixture.env.sim.clear_faults(None).expect("no rule");
        let who = Requester { by: "ada".into(), reason: String::new() };
        let engine = fixture.engine.for_caller(&fixture.ada);
        engine.runs().act(run.clone(), Action::RetryStep, who).await.expect("the same run");
        ended(&fixture.engine, &run).await;
        assert_eq!(fixture.engine.approvals().list(true, None, 9).await.expect("a list"), []);
    });
}

#[test]
fn a_dry_run_says_what_is_needed_and_files_nothing() {
    simulate(async {
        let fixture = ApprovalFixture::new(&[Permission::Destroy]).await;
        let engine = fixture.engine.for_caller(&fixture.ada).with_dry_run(true);
        let would = engine.runs().start(reimage("", "rhel-9")).await.expect("a preview");
        let preview = engine.runs().preview(&would.run).await.expect("a preview");
        let said = |note: &String| note.contains("needs the approval of a second person (destroy)");
        assert!(preview.notes.iter().any(said), "{preview:?}");
        assert_eq!(fixture.engine.approvals().list(false, None, 9).await.expect("a list"), []);
        // A dry run of an approval changes nothing either.
        let id = fixture.waits(reimage("r-1", "rhel-9")).await;
        let bob = fixture.engine.for_caller(&fixture.bob).with_dry_run(true);
        bob.approvals().grant(id.clone(), "").await.expect("would be approved");
        assert_eq!(fixture.approval(&id).await.stored, ApprovalState::Pending);
    });
}

#[test]
fn the_requests_of_one_person_that_wait_are_bounded() {
    simulate(async {
        let fixture = ApprovalFixture::new(&[Permission::Destroy]).await;
        for number in 0..MAX_PENDING {
            fixture.waits(reimage("r", &format!("image-{number}"))).await;
        }
        let refused = refusal(fixture.start(&fixture.ada, reimage("r", "one-more")).await);
        assert_eq!(refused.reason, Reason::TooManyApprovals);
        // Another person is not kept from asking.
        required(fixture.start(&fixture.bob, reimage("r", "one-more")).await);
    });
}

#[test]
fn racks_power_shelves_and_hosts_need_approvals_too() {
    simulate(async {
        let fixture = RackFixture::ready().await;
        let people = People::of(&fixture.env).await;
        let classes = &[Permission::Power, Permission::Firmware];
        set_policy(fixture.engine(), &people.admin, classes).await;
        let ada = fixture.engine().for_caller(&people.caller("ada", "rack-operator").await);
        let bob = fixture.engine().for_caller(&people.caller("bob", "rack-operator").await);

        let desired = || power(MaintenanceScope::default(), PowerSequence::Reset);
        let ask = || maintenance_request(desired());
        let id = required(ada.racks().maintain(ask()).await);
        assert_eq!(required(ada.racks().maintain(ask()).await), id, "the same request");
        let part = maintenance_request(power(machines(&["m-1"]), PowerSequence::Reset));
        assert_ne!(required(ada.racks().maintain(part).await), id);
        assert_eq!(fixture.view().await.rack.maintenance_requested, []);
        bob.approvals().grant(id.clone(), "").await.expect("another person");
        let started = ada.racks().maintain(ask()).await.expect("approved");
        let run = started.run.expect("an operation").spec.id;
        fixture.wait_until_ended(&run).await;
        fixture.wait_for_state("Ready").await;
        let used = fixture.engine().approvals().get(&id).await.expect("an approval");
        assert_eq!(used.operations, [run.to_string()]);

        let shelf = |request_id: &str| PowerChangeRequest {
            ids: vec![PowerShelfId::trusted("ps-1")],
            operation: DesiredPower::On,
            initiator: "ada".into(),
            overrides: Overrides::default(),
            request_id: Some(request_id.into()),
        };
        let id = required(ada.power_shelves().maintain(shelf("s-1")).await);
        assert_eq!(required(ada.power_shelves().maintain(shelf("s-2")).await), id);
        let preview = ada.power_shelves().preview(shelf("s-1")).await.expect("a preview");
        let said = |warning: &String| warning.contains("second person (power)");
        assert!(preview.preview.warnings.iter().any(said), "{preview:?}");
        bob.approvals().grant(id.clone(), "").await.expect("another person");
        ada.power_shelves().maintain(shelf("s-1")).await.expect("approved");
        let used = fixture.engine().approvals().get(&id).await.expect("an approval");
        assert_eq!(used.stored, ApprovalState::Used);

        let host = || engine::host::Reprovision {
            machine: MachineId::trusted("m-1"),
            firmware: None,
            request_id: "h-1".into(),
            by: "ada".into(),
        };
        let id = required(ada.hosts().reprovision(host()).await);
        bob.approvals().grant(id, "").await.expect("another person");
        ada.hosts().reprovision(host()).await.expect("approved");
    });
}

#[test]
fn the_onboarding_of_a_node_is_the_same_request_every_time() {
    simulate(async {
        let fixture = NodeFixture::new().await;
        let people = People::of(&fixture.env).await;
        let engine = &fixture.process.engine;
        set_policy(engine, &people.admin, &[Permission::Destroy]).await;
        let ada = engine.for_caller(&people.caller("ada", "admin").await);
        let bob = engine.for_caller(&people.caller("bob", "admin").await);
        let ask = || onboard_request(crate::machine_scenarios::MACHINE, "n-1");
        let id = required(ada.nodes().onboard(ask()).await);
        assert_eq!(required(ada.nodes().onboard(ask()).await), id);
        bob.approvals().grant(id, "").await.expect("another person");
        ada.nodes().onboard(ask()).await.expect("approved");
    });
}

/// The refusal is not an answer of the store, and a store that fails is not a refusal.
#[test]
fn a_lost_connection_while_filing_is_reported_as_such() {
    simulate(async {
        let env = TestEnv::new(3).await;
        let process = env.boot("a").await;
        let classes = &[Permission::Destroy];
        let fixture = ApprovalFixture::on(env, process.engine.clone(), classes).await;
        process.injector.arm(Some((0, StopScope::Task)));
        let ask = fixture.start(&fixture.ada, reimage("r-1", "rhel-9"));
        let cut = async {
            process.injector.wait_until_stopped().await;
            process.injector.cut_connection();
        };
        let (answer, ()) = tokio::join!(ask, cut);
        assert!(matches!(answer, Err(StoreError::Unavailable(_))), "{answer:?}");
        fixture.waits(reimage("r-1", "rhel-9")).await;
    });
}
