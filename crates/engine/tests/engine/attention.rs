//! Objects of every kind that need a person, found and ranked, in simulated time.

use crate::clients::Client;
use crate::node_scenarios::MACHINE;
use crate::nodes::{
    DAY, NodeFixture, agents, decommission_request, enrolling_agent, onboard_request, refusal,
    requester,
};
use crate::rack_fixture::RackFixture;
use crate::test_env::{TestEnv, simulate};
use engine::admission::StartRequest;
use engine::node::SessionPolicy;
use engine::secret::{Cipher, CredentialRequest, SecretStore};
use engine::{Attention, Engine};
use model::condition::{ConditionObservation, ConditionType};
use model::credential::{BindingWrite, CredentialWrite};
use model::gate::{Gate, Overrides};
use model::health::{Alert, AlertClass, ReportChange};
use model::here;
use model::id::MachineId;
use model::machine::Phase;
use model::node::{DecommissionMode, NodeState};
use model::plan::{Params, RunType};
use model::rack::Counts;
use model::run::RunPhase;
use model::run::actions::{Action, Requester, RestartMode};
use model::target::TargetId;
use model::why::Urgency;
use providers::sim;
use providers::state_store::Secret;
use secrecy::{ExposeSecret, SecretString};
use std::time::Duration;
use store::{Cause, NewEvent};

async fn listed(engine: &Engine, limit: usize) -> Attention {
    engine.attention(limit, None).await.expect("the list")
}

/// Sets the phase and a condition of a machine, as if they had been observed.
async fn observe(env: &TestEnv, id: &str, condition: ConditionType, status: bool) {
    let mut machine = env.machine(id).await;
    machine.phase = Phase::Ready;
    machine.learn(&[ConditionObservation::new(condition, status, "test")], env.now());
    let event = NewEvent {
        cause: Cause::Probe,
        actor: "test".into(),
        message: "observed".into(),
        decided_by: here!().into(),
        at: env.now(),
    };
    let input = (machine, event);
    let written = env.store.write("observe", input, |(machine, event), tx| {
        let mut machine = machine.clone();
        Box::pin(async move { tx.update_machine(&mut machine, event) })
    });
    written.await.expect("written");
}

/// Machines that were never probed do not hide the one that is out of service, and the worst comes
/// first whatever its id is.
#[test]
fn the_list_is_bounded_by_rank() {
    simulate(async {
        let env = TestEnv::new(3).await;
        let process = env.boot("a").await;
        for number in 0..60 {
            env.register(&process.engine, &format!("a-{number:02}")).await;
        }
        for id in ["m-off-1", "m-off-2", "m-no-bmc", "z-failed"] {
            env.register(&process.engine, id).await;
        }
        observe(&env, "m-no-bmc", ConditionType::BmcReachable, false).await;
        observe(&env, "m-off-1", ConditionType::Reachable, false).await;
        observe(&env, "m-off-2", ConditionType::Reachable, false).await;
        observe(&env, "z-failed", ConditionType::NeedsIntervention, true).await;
        let found = listed(&process.engine, 2).await;
        let ids: Vec<&str> = found.items.iter().map(|item| item.id.as_str()).collect();
        assert_eq!(ids, ["z-failed", "m-off-1"]);
        assert_eq!(found.items[0].urgency, Urgency::Stopped);
        let rest = vec![Urgency::OutOfService, Urgency::Degraded];
        assert_eq!((found.rest, found.more), (rest, false));
    });
}

/// A canceled write leaves no failed run, and its half-written disk needs a person.
#[test]
fn a_half_written_disk_needs_a_person() {
    simulate(async {
        let env = TestEnv::new(1).await;
        let process = env.boot("one").await;
        env.register(&process.engine, "m-1").await;
        let client = Client::new(&process.engine);
        let enter = client.start("m-1", RunType::EnterMaintenance, "enter".into()).await.unwrap();
        client.wait_until_ended(&enter).await;
        assert!(listed(&process.engine, 9).await.items.is_empty());
        let run = client.start("m-1", RunType::Reimage, "image".into()).await.unwrap();
        let key = format!("{run}/repave-os/1");
        while env.sim.effects(&key).expect("the effect counts").is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        client.act(&run, Action::Cancel).await;
        assert_eq!(client.wait_until_ended(&run).await.phase(), RunPhase::Canceled);
        assert!(!env.machine("m-1").await.is(ConditionType::NeedsIntervention));
        let found = listed(&process.engine, 9).await;
        let item = found.items.first().expect("the machine");
        assert_eq!(
            (item.id.as_str(), item.kind, item.urgency),
            ("m-1", "machine", Urgency::Stopped)
        );
        let explained = &item.explained.explanation;
        assert!(explained.headline.contains("half written"), "{}", explained.headline);
        assert_eq!(
            explained.next_command(),
            Some(format!("farrier operation rerun {run}").as_str())
        );
        // The list asks the gates about the command that it shows, and about no other.
        assert_eq!(explained.next_commands.len(), 1, "{explained:?}");
        let whole = process.engine.explain("m-1").await.expect("explained").explanation;
        assert!(whole.next_commands.len() > 1, "{whole:?}");
        assert_eq!(whole.next_command(), explained.next_command());
    });
}

/// A rack that waits for its devices is overdue after an hour, and in Error after a day.
#[test]
fn a_rack_that_waits_too_long_needs_a_person() {
    simulate(async {
        let expected = Counts { machines: 1, switches: 0, power_shelves: 0 };
        let fixture = RackFixture::with_expected(expected).await;
        fixture.wait_for_state("Discovering").await;
        assert!(listed(fixture.engine(), 9).await.items.is_empty());
        for (hours, urgency) in [(2, Urgency::Overdue), (24, Urgency::Stopped)] {
            tokio::time::sleep(Duration::from_secs(hours * 3_600)).await;
            let found = listed(fixture.engine(), 9).await;
            let item = found.items.first().expect("the rack");
            assert_eq!((item.kind, item.urgency), ("rack", urgency));
            assert_eq!(item.explained.explanation.overdue, urgency == Urgency::Overdue);
        }
    });
}

/// An alert that prevents changes is listed for machines and racks, with the command that shows it.
#[test]
fn an_alert_that_prevents_changes_needs_a_person() {
    simulate(async {
        let fixture = RackFixture::ready().await;
        let engine = fixture.engine();
        let machine = MachineId::trusted("m-1");
        let alert = Alert {
            component: String::new(),
            message: "it is wet".into(),
            classes: [AlertClass::PreventStateChanges.as_str().to_string()].into(),
            since: engine.now(),
        };
        let alerts = [("leak".to_string(), alert)];
        let who = Requester { by: "dcim".into(), reason: String::new() };
        let change = ReportChange::Merge(alerts.into());
        let target = TargetId::from(&machine);
        engine.health().change(&target, "dcim".into(), change, who).await.expect("reported");
        let found = listed(engine, 9).await;
        let item = found.items.first().expect("the machine");
        assert_eq!((item.id.as_str(), item.urgency), ("m-1", Urgency::Stopped));
        let explained = &item.explained.explanation;
        assert!(explained.headline.contains("dcim reports leak"), "{}", explained.headline);
        assert_eq!(explained.next_command(), Some("farrier health get m-1"));
    });
}

/// The server reads the expiry from the stored kubeconfig; it asks no cluster.
#[test]
fn a_kubeconfig_that_expires_needs_a_person() {
    simulate(async {
        let env = TestEnv::new(1).await;
        let process = env.boot("one").await;
        let secrets = SecretStore::new(env.store.clone(), Cipher::new(&[7; 32]), env.clock());
        // The claims of the token: {"exp":1000}. It expired in 1970.
        for (name, token) in [("prod", "aGVhZA.eyJleHAiOjEwMDB9.c2ln"), ("lab", "opaque")] {
            let text = format!(
                "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
                 contexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
                 clusters: [{{name: k, cluster: {{server: 'https://k'}}}}]\n\
                 users: [{{name: u, user: {{token: {token}}}}}]\n"
            );
            let secret = Secret::Kubeconfig { text: text.into() };
            let who = Requester { by: "ada".into(), reason: String::new() };
            let write = CredentialWrite::Create;
            let binding = BindingWrite::Keep { plain_http: false };
            let request = CredentialRequest { write, binding, binding_required: true };
            secrets.write(name, &secret, request, who).await.expect("stored");
        }
        let found = process.engine.attention(9, Some(&secrets)).await.expect("the list");
        let item = found.items.first().expect("the credential");
        assert_eq!((item.id.as_str(), item.kind), ("prod", "credential"));
        assert_eq!((item.urgency, found.items.len()), (Urgency::Stopped, 1));
        let told = &item.explained.explanation;
        assert!(told.headline.contains("the kubeconfig of cluster prod expired"), "{told:?}");
        assert_eq!(told.next_command(), Some("farrier credential update prod --kubeconfig …"));
    });
}

/// A later success on the machine clears NeedsIntervention; the node whose onboarding failed stays
/// in the list, with the command that repairs it.
#[test]
fn a_node_whose_onboarding_stopped_needs_a_person() {
    simulate(async {
        let fixture = NodeFixture::new().await;
        let engine = &fixture.process.engine;
        let stuck = crate::device_scenarios::fault("configure_storage", sim::Action::Fail, 0);
        fixture.env.sim.add_fault(stuck).expect("a rule");
        let requested = onboard_request(MACHINE, "on");
        let started = engine.nodes().onboard(requested).await.expect("accepted");
        let (node, run) = (started.node.head.id.clone(), started.run.spec.id);
        let item = async || {
            let found = listed(engine, 9).await;
            found.items.into_iter().find(|item| item.id == node)
        };
        assert!(item().await.is_none(), "its onboarding is at work");
        fixture.client.wait_until_ended(&run).await;
        assert_eq!(fixture.node().await.state, NodeState::Enrolling);
        let found = listed(engine, 9).await.items;
        let [only] = found.as_slice() else { panic!("one cause is one row: {found:?}") };
        assert_eq!((&only.id, only.explains[0].id.as_str()), (&node, MACHINE));
        let enter = fixture.client.start(MACHINE, RunType::EnterMaintenance, "in".into()).await;
        fixture.client.wait_until_ended(&enter.expect("accepted")).await;
        let machine = fixture.env.machine(MACHINE).await;
        assert!(!machine.is(ConditionType::NeedsIntervention), "rule 4");
        let found = item().await.expect("the node");
        assert_eq!((found.kind, found.urgency), ("node", Urgency::Stopped));
        let command = found.explained.explanation.next_command().expect("a command").to_string();
        assert_eq!(command, format!("farrier operation rerun {run}"));
        fixture.env.sim.clear_faults(None).expect("cleared");
        let who = Requester { by: "ada".into(), reason: String::new() };
        let rerun = engine.runs().restart(run, RestartMode::Rerun, "again".into(), who).await;
        fixture.client.wait_until_ended(&rerun.expect("accepted").run.spec.id).await;
        fixture.wait_for_state(NodeState::Active).await;
        assert!(item().await.is_none(), "the printed command repairs it");
    });
}

/// A machine without a system leaves maintenance only with an override: the list and the
/// explanation say so, before and after, and the printed commands install one.
#[test]
fn a_machine_without_a_system_needs_a_person() {
    simulate(async {
        let env = TestEnv::new(1).await;
        let process = env.boot("one").await;
        let engine = &process.engine;
        env.register(engine, "m-1").await;
        let client = Client::new(engine);
        let enter = client.start("m-1", RunType::EnterMaintenance, "enter".into()).await.unwrap();
        client.wait_until_ended(&enter).await;
        observe(&env, "m-1", ConditionType::Provisioned, false).await;
        let words = "it has no system; Provisioned is false: test";
        // The helper has put it into phase READY; it goes back.
        let enter = client.start("m-1", RunType::EnterMaintenance, "again".into()).await.unwrap();
        client.wait_until_ended(&enter).await;
        let found = listed(engine, 9).await;
        let told = &found.items.first().expect("the machine").explained.explanation;
        assert_eq!(told.headline, format!("m-1 is in maintenance, but {words}"));
        assert_eq!(told.next_command(), Some("farrier reimage m-1"));
        let told = engine.explain("m-1").await.expect("explained").explanation;
        assert_eq!(told.next_commands, ["farrier reimage m-1"], "the exit would be refused");
        let rig = Overrides::of(&[Gate::UnfinishedDisk], "it boots from the network");
        let leave = |request_id: &str, overrides: &Overrides| StartRequest {
            machine_id: MachineId::trusted("m-1"),
            request_id: request_id.into(),
            run_type: RunType::ExitMaintenance,
            plan_id: None,
            params: Params::new(),
            overrides: overrides.clone(),
            initiator: "ada".into(),
        };
        let dry = engine.with_dry_run(true);
        let refused = dry.runs().start(leave("dry", &Overrides::default())).await;
        let refusal = refusal(refused.map(drop));
        assert_eq!(refusal.gate, Some(Gate::UnfinishedDisk), "{refusal:?}");
        let leaving = dry.runs().start(leave("dry", &rig)).await.expect("accepted").run;
        let preview = dry.runs().preview(&leaving).await.expect("a preview");
        let note = format!("{words}; farrier reimage m-1");
        assert!(preview.notes.contains(&note), "{:?}", preview.notes);
        let exit = engine.runs().start(leave("exit", &rig)).await.expect("accepted").run.spec.id;
        assert_eq!(client.wait_until_ended(&exit).await.phase(), RunPhase::Succeeded);
        let found = listed(engine, 9).await;
        let item = found.items.first().expect("the machine");
        assert_eq!((item.id.as_str(), item.urgency), ("m-1", Urgency::OutOfService));
        let told = &item.explained.explanation;
        assert!(told.headline.contains(words), "{}", told.headline);
        assert_eq!(told.next_command(), Some("farrier enter-maintenance m-1"));
        for run_type in [RunType::EnterMaintenance, RunType::Reimage, RunType::ExitMaintenance] {
            let run = client.start("m-1", run_type, format!("{run_type:?}")).await.unwrap();
            client.wait_until_ended(&run).await;
        }
        assert!(listed(engine, 9).await.items.is_empty(), "the printed commands repair it");
    });
}

/// A drain that waits for an agent whose lease is over needs a person long before its deadline. The
/// list names the agent, its last word and the command; a revoked session is not called silence.
#[test]
fn a_drain_that_waits_for_a_lost_agent_is_listed() {
    simulate(async {
        let fixture = NodeFixture::new().await;
        let (engine, agents) = (&fixture.process.engine, agents(&fixture));
        let machine = MachineId::trusted(MACHINE);
        let bundle = agents.bootstrap(machine, DAY, requester()).await.expect("a bundle");
        let id = bundle.node.id();
        let enroll = async |token: &SecretString, session: &str| {
            let (token, agent) = (token.expose_secret().to_string(), enrolling_agent(session));
            agents.enroll(&token, agent).await.expect("an answer").expect("enrolled");
            agents.heartbeat(session, String::new()).await.expect("an answer").expect("known");
        };
        enroll(&bundle.token, "s1").await;
        let node = fixture.wait_for_state(NodeState::Active).await;
        let request = decommission_request(&node, DecommissionMode::Drain, "drain");
        engine.nodes().decommission(request).await.expect("accepted");
        fixture.wait_for_state(NodeState::Draining).await;
        let item = async || {
            let items = listed(engine, 9).await.items;
            items.into_iter().find(|item| item.id == id.as_str())
        };
        assert!(item().await.is_none(), "its agent was heard just now");
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert_eq!(fixture.node().await.state, NodeState::Draining);
        let silent = item().await.expect("its agent is silent");
        assert_eq!(silent.urgency, Urgency::Overdue);
        let told = silent.explained.explanation;
        let words = format!("it waits for the agent of {id}: silent for 10m");
        assert!(told.headline.contains(&words), "{}", told.headline);
        let inspect = format!("farrier machine inspect {MACHINE}");
        assert_eq!(told.next_command(), Some(&*inspect), "{told:#?}");

        let issued = agents.issue(&id, DAY, SessionPolicy::End, requester()).await;
        let issued = issued.expect("a token");
        tokio::time::sleep(Duration::from_secs(60)).await;
        let revoked = item().await.expect("its session is revoked").explained.explanation;
        let words = format!("it waits for the agent of {id}: its session was revoked 1m 0s ago");
        assert!(revoked.headline.contains(&words), "{}", revoked.headline);
        let reissue = format!("farrier node bootstrap --reissue {id}");
        assert_eq!(revoked.next_command(), Some(&*reissue), "{revoked:#?}");
        enroll(&issued.token, "s2").await;
        assert!(item().await.is_none(), "its agent has enrolled again");
        assert_eq!(fixture.node().await.agent.and_then(|agent| agent.session_revoked_at), None);
        fixture.assert_no_violations();
    });
}
