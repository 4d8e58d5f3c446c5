//! Power shelves and switches on simulated hardware: intake, power, failures, placement, deletion.

use crate::workers::{TEST_TIMEOUT, engine, open, settings, wait_for_run};
use engine::{DescribedDevice, DescribedMachine, Engine, PlacedSpec, Settings};
use model::condition::ConditionType;
use model::device::Device;
use model::effect::{CallVerb, DesiredPower, Effect, EffectKey, PowerOffPolicy, ProviderCall};
use model::filter::{Filter, FilterSubject};
use model::gate::{Gate, Overrides};
use model::health::{Alert, AlertClass, ReportChange};
use model::id::{MachineId, NodeId, PowerShelfId, RackId, RunId};
use model::lifecycle::{Lifecycle, RecordHeader};
use model::machine::{Labels, Machine, MachineSpec};
use model::node::{Node, NodeState};
use model::plan::RunType;
use model::power_shelf::PowerShelf;
use model::power_shelf::maintenance::PowerChangeRequest;
use model::rack::{Counts, Rack, RackSpec};
use model::refusal::Refusal;
use model::retry::Backoff;
use model::run::actions::{Action, Requester, RestartMode};
use model::run::{Policy, Run};
use model::switch::Switch;
use model::target::TargetId;
use model::time::Timestamp;
use providers::sim::{Action as Fails, FaultRule, PROBE, Sim, Speed};
use providers::{Journal, Provider, Target};
use std::sync::Arc;
use std::time::{Duration, Instant};
use store::{Cause, NewEvent, Result, Store, StoreError, Tx};

struct ShelfFixture {
    engine: Engine,
    store: Store,
    sim: Sim,
    _dir: tempfile::TempDir,
}

async fn fixture() -> ShelfFixture {
    fixture_with(settings("shelves")).await
}

async fn fixture_with(settings: Settings) -> ShelfFixture {
    let backoff = Backoff { initial: Duration::from_millis(1), max: Duration::from_millis(2) };
    let settings = Settings { policy: Policy { backoff }, ..settings };
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir).await;
    let sim = Sim::in_ram(Speed::Zero);
    let engine = engine(&store, Arc::new(sim.clone()), settings).await;
    ShelfFixture { engine, store, sim, _dir: dir }
}

fn simulated() -> model::lifecycle::DeviceSpec {
    model::lifecycle::DeviceSpec { provider: "sim".into(), ..Default::default() }
}

impl ShelfFixture {
    async fn add<D: Device>(&self, id: &str, rack: Option<&str>, slot: Option<u32>) -> Result<D> {
        let rack = rack.map(RackId::trusted);
        let spec = Some(PlacedSpec { spec: simulated(), rack, slot });
        let described = DescribedDevice { id: id.into(), spec, labels: Labels::new() };
        self.engine.devices().register::<D>(described, "ada".into()).await
    }

    /// A shelf or a switch that is in service.
    async fn ready<D: Device>(&self, id: &str, rack: Option<&str>) -> D {
        self.add::<D>(id, rack, None).await.unwrap();
        self.wait_for::<D>(id, |device| device.state_name() == "Ready").await
    }

    async fn wait_for<D: Device>(&self, id: &str, reached: impl Fn(&D) -> bool) -> D {
        let started = Instant::now();
        loop {
            let device: D = self.engine.devices().get(id).await.unwrap();
            if reached(&device) {
                return device;
            }
            assert!(started.elapsed() < TEST_TIMEOUT, "{id} stays {}", device.state_name());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn switched(&self, id: &str, power: DesiredPower) -> PowerShelf {
        let reached = |shelf: &PowerShelf| {
            shelf.facts.power == Some(power)
                && shelf.maintenance_requested.is_none()
                && shelf.state_name() == "Ready"
        };
        self.wait_for(id, reached).await
    }

    async fn request(&self, requested: PowerChangeRequest) -> std::result::Result<(), Refusal> {
        match self.engine.power_shelves().maintain(requested).await {
            Ok(_) => Ok(()),
            Err(StoreError::Refused(refusal)) => Err(refusal),
            Err(error) => panic!("{error}"),
        }
    }

    async fn rack(&self, id: &str) {
        let added =
            self.store.write("add_rack", id.to_string(), |id, tx| Box::pin(add_rack(tx, id)));
        added.await.unwrap();
    }

    async fn machine(&self, id: &str, rack: &str) {
        self.fed_machine(id, Some(rack), &[]).await.unwrap();
    }

    /// Registers or changes a machine that these shelves feed.
    async fn fed_machine(&self, id: &str, rack: Option<&str>, feeds: &[&str]) -> Result<Machine> {
        let spec = MachineSpec {
            target_cluster_ref: "c".into(),
            provider: "sim".into(),
            rack: rack.map(RackId::trusted),
            feeds: feeds.iter().map(|id| PowerShelfId::trusted(*id)).collect(),
            ..MachineSpec::default()
        };
        let id = Some(MachineId::trusted(id));
        let described = DescribedMachine { id, spec: Some(spec), labels: Labels::new() };
        self.engine.machines().register(described, "ada".into()).await
    }

    /// Brings a machine into service.
    async fn serve(&self, id: &str) {
        for run_type in [RunType::EnterMaintenance, RunType::ExitMaintenance] {
            let run = crate::workers::start(&self.engine, id, run_type).await;
            wait_for_run(&self.engine, &run.spec.id, Run::ended).await;
        }
    }

    fn fault(&self, machine: &str, effect: &str, times: u32) {
        let rule = FaultRule {
            machine: machine.into(),
            effect: effect.into(),
            times,
            message: "the breaker is out".into(),
            ..FaultRule::new(Fails::Fail)
        };
        self.sim.add_fault(rule).unwrap();
    }

    async fn has_message(&self, id: &str, message: &str) -> bool {
        self.messages(id).await.iter().any(|(_, _, text)| text == message)
    }

    async fn messages(&self, id: &str) -> Vec<(String, String, String)> {
        let history = self.engine.history(id, 0, 1_000).await.unwrap();
        history.into_iter().map(|one| (one.state, one.actor, one.message)).collect()
    }
}

fn power_off_request(ids: &[&str]) -> PowerChangeRequest {
    power_request(ids, DesiredPower::Off)
}

fn power_request(ids: &[&str], operation: DesiredPower) -> PowerChangeRequest {
    let ids = ids.iter().map(|id| PowerShelfId::trusted(*id)).collect();
    PowerChangeRequest {
        ids,
        operation,
        initiator: "ada (T-1)".into(),
        overrides: Overrides::default(),
        request_id: None,
    }
}

async fn add_rack(tx: &mut Tx, id: &str) -> Result<()> {
    let head = RecordHeader::new(id, Labels::new(), Timestamp::from_millis(1));
    // It expects more devices than come, so that it stays in discovery.
    let expected = Counts { machines: 60, switches: 60, power_shelves: 60 };
    let mut rack = Rack::new(head, RackSpec { expected, ..RackSpec::default() });
    tx.insert_record(&mut rack, &event("made")).await
}

/// Sets or clears the run that holds a device.
async fn hold(store: &Store, id: &str, by: Option<RunId>) {
    let claimed = store.write("hold", (id.to_string(), by), |(id, by), tx| {
        Box::pin(async move {
            let mut switch: Switch = tx.record_locked(id).await?.expect("the switch exists");
            switch.head.active_run = by.clone();
            tx.update_and_enqueue(&mut switch, &event("held or let go"))
        })
    });
    claimed.await.unwrap();
}

fn event(message: &str) -> NewEvent {
    NewEvent {
        cause: Cause::Request,
        actor: "test".into(),
        message: message.into(),
        decided_by: model::here!().into(),
        at: Timestamp::from_millis(1),
    }
}

fn states(history: &[(String, String, String)]) -> Vec<&str> {
    let mut words: Vec<&str> = history.iter().map(|(name, _, _)| name.as_str()).collect();
    words.dedup();
    words
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_device_is_read_configured_and_ready() {
    let site = fixture().await;
    let shelf: PowerShelf = site.ready("ps-1", None).await;
    assert_eq!(
        (shelf.facts.model.as_str(), shelf.facts.power),
        ("Simulated", Some(DesiredPower::On))
    );
    assert!(!shelf.facts.firmware.is_empty() && !shelf.facts.serial.is_empty());
    let history = site.messages("ps-1").await;
    assert_eq!(states(&history), ["Initializing", "FetchingData", "Configuring", "Ready"]);
    site.ready::<Switch>("sw-1", None).await;
    let history = site.messages("sw-1").await;
    let expected = ["Created", "Initializing", "Configuring", "Validating", "Ready"];
    assert_eq!(states(&history), expected);
    // The same request again changes nothing.
    let again: Switch = site.add("sw-1", None, None).await.unwrap();
    assert_eq!(again, site.engine.devices().get("sw-1").await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn shelves_are_switched_together_and_read_back() {
    let site = fixture().await;
    for id in ["ps-1", "ps-2"] {
        site.ready::<PowerShelf>(id, None).await;
    }
    site.request(power_off_request(&["ps-1", "ps-2", "ps-1"])).await.unwrap();
    for id in ["ps-1", "ps-2"] {
        site.switched(id, DesiredPower::Off).await;
        let history = site.messages(id).await;
        assert_eq!(states(&history)[3..], ["Ready", "Maintenance", "Ready"]);
        let requested =
            history.iter().find(|(_, _, message)| message == "power-off requested").unwrap();
        assert_eq!(requested.1, "ada (T-1)");
    }
    site.request(power_request(&["ps-2"], DesiredPower::On)).await.unwrap();
    site.switched("ps-2", DesiredPower::On).await;
    assert_eq!(
        site.engine.devices().get::<PowerShelf>("ps-1").await.unwrap().facts.power,
        Some(DesiredPower::Off)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn one_refused_shelf_refuses_the_whole_request() {
    let site = fixture().await;
    let before: PowerShelf = site.ready("ps-1", None).await;
    let refusal = site.request(power_off_request(&["ps-1", "ps-9"])).await.unwrap_err();
    assert_eq!(refusal.reason.as_str(), "NOT_FOUND");
    assert_eq!(site.engine.devices().get::<PowerShelf>("ps-1").await.unwrap(), before);
    let preview =
        site.engine.power_shelves().preview(power_off_request(&["ps-1", "ps-9"])).await.unwrap();
    assert_eq!(preview.preview.refusals, [refusal]);
    let many: Vec<String> = (0..101).map(|number| format!("ps-{number}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let refusal = site.request(power_off_request(&many)).await.unwrap_err();
    assert_eq!(refusal.field.as_deref(), Some("power_shelf_ids"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_shelf_recovers_by_request_retry_or_rerun() {
    let site = fixture().await;
    site.ready::<PowerShelf>("ps-1", None).await;
    let in_error = |shelf: &PowerShelf| shelf.failure().is_some();
    site.fault("ps-1", "power", 2);
    site.request(power_off_request(&["ps-1"])).await.unwrap();
    let failed = site.wait_for("ps-1", in_error).await;
    let cause = failed.failure().unwrap();
    assert!(cause.message.contains("the breaker is out"), "{}", cause.message);
    assert_eq!(failed.maintenance_requested, None, "it is not retried by itself");
    let why = site.engine.explain("ps-1").await.unwrap();
    assert!(why.explanation.headline.contains("the breaker is out"), "{why:?}");
    assert_eq!(why.explanation.next_commands[0], "farrier power-shelf retry ps-1");
    assert_eq!(why.run_id, cause.run);
    // A new request leaves the error.
    site.request(power_off_request(&["ps-1"])).await.unwrap();
    site.switched("ps-1", DesiredPower::Off).await;
    // So does a retry of the same run.
    site.fault("ps-1", "power", 2);
    site.request(power_request(&["ps-1"], DesiredPower::On)).await.unwrap();
    let run = site.wait_for("ps-1", in_error).await.failure().unwrap().run.clone().unwrap();
    let requester = Requester { by: "ada".into(), reason: "mended".into() };
    site.engine.runs().act(run.clone(), Action::RetryStep, requester.clone()).await.unwrap();
    wait_for_run(&site.engine, &run, Run::ended).await;
    site.switched("ps-1", DesiredPower::On).await;
    // So does a rerun.
    site.fault("ps-1", "power", 2);
    site.request(power_off_request(&["ps-1"])).await.unwrap();
    let run = site.wait_for("ps-1", in_error).await.failure().unwrap().run.clone().unwrap();
    let runs = site.engine.runs();
    let restarted =
        || runs.restart(run.clone(), RestartMode::Rerun, "anew".into(), requester.clone());
    let (first, second) = (restarted().await.unwrap(), restarted().await.unwrap());
    assert_eq!((first.new, second.new, &first.run.spec.id), (true, false, &second.run.spec.id));
    site.switched("ps-1", DesiredPower::Off).await;
    // So does a retry of the shelf.
    site.fault("ps-1", "power", 2);
    site.request(power_request(&["ps-1"], DesiredPower::On)).await.unwrap();
    site.wait_for("ps-1", in_error).await;
    site.engine.devices().retry::<PowerShelf>("ps-1", requester.clone()).await.unwrap();
    site.wait_for("ps-1", |shelf: &PowerShelf| shelf.state_name() == "Ready").await;
    let refused = site.engine.devices().retry::<PowerShelf>("ps-1", requester).await.unwrap_err();
    assert!(refused.to_string().contains("only what is in Error"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_while_one_is_under_way_is_refused_and_its_repetition_is_not() {
    let site = fixture().await;
    site.ready::<PowerShelf>("ps-1", None).await;
    site.sim
        .add_fault(FaultRule {
            machine: "ps-1".into(),
            effect: "power".into(),
            action: Fails::Slow,
            delay_ms: 500,
            times: 1,
            ..FaultRule::new(Fails::Fail)
        })
        .unwrap();
    let named =
        PowerChangeRequest { request_id: Some("r-1".into()), ..power_off_request(&["ps-1"]) };
    site.request(named.clone()).await.unwrap();
    let refusal = site.request(power_request(&["ps-1"], DesiredPower::On)).await.unwrap_err();
    assert_eq!(refusal.reason.as_str(), "MAINTENANCE_REQUESTED");
    assert!(
        refusal.message.contains("power-off") && refusal.message.contains("ada (T-1)"),
        "{refusal}"
    );
    site.request(named.clone()).await.unwrap();
    site.switched("ps-1", DesiredPower::Off).await;
    let count = site.messages("ps-1").await.len();
    site.request(named).await.unwrap();
    assert_eq!(site.messages("ps-1").await.len(), count, "the request was replayed");
}

#[tokio::test(flavor = "multi_thread")]
async fn machines_in_service_keep_their_power_unless_by_force() {
    let site = fixture().await;
    site.rack("rack-1").await;
    site.machine("m-1", "rack-1").await;
    let requester = |run_type| crate::workers::start(&site.engine, "m-1", run_type);
    wait_for_run(&site.engine, &requester(RunType::EnterMaintenance).await.spec.id, Run::ended)
        .await;
    wait_for_run(&site.engine, &requester(RunType::ExitMaintenance).await.spec.id, Run::ended)
        .await;
    for id in ["ps-1", "ps-2"] {
        site.ready::<PowerShelf>(id, Some("rack-1")).await;
    }
    let refusal = site.request(power_off_request(&["ps-1", "ps-2"])).await.unwrap_err();
    assert_eq!(refusal.reason.as_str(), "MACHINES_IN_SERVICE");
    assert!(refusal.message.contains("m-1 is in service and not drained"), "{refusal}");
    // One of them may be powered off; then the other one is the last.
    site.request(power_off_request(&["ps-1"])).await.unwrap();
    let refusal = site.request(power_off_request(&["ps-2"])).await.unwrap_err();
    assert_eq!(refusal.reason.as_str(), "MACHINES_IN_SERVICE");
    site.switched("ps-1", DesiredPower::Off).await;
    let forced = PowerChangeRequest {
        overrides: Overrides::of(&[Gate::InService, Gate::Health], "the rack burns"),
        ..power_off_request(&["ps-2"])
    };
    let foreseen = site.engine.power_shelves().maintain(forced).await.unwrap();
    assert_eq!(foreseen.affected.len(), 1);
    assert!(foreseen.warnings[0].contains("the controller of ps-2"), "{:?}", foreseen.warnings);
    site.switched("ps-2", DesiredPower::Off).await;
    let history = site.messages("ps-2").await;
    let note = "; gate in-service overridden by ada (T-1): the rack burns; gate health named by ada (T-1), and it did not refuse: the rack burns";
    let said = format!("power-off requested{note}");
    assert!(history.iter().any(|one| one.2 == said), "{history:?}");
}

/// The node of a machine that loses power by our order goes offline in the commit of the order.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_goes_offline_with_the_shelf_that_feeds_it() {
    let site = fixture().await;
    site.rack("rack-1").await;
    site.machine("m-1", "rack-1").await;
    site.ready::<PowerShelf>("ps-1", Some("rack-1")).await;
    let added = site.store.write("add_node", NodeId::trusted("node-1"), |id, tx| {
        Box::pin(async move {
            let machine = MachineId::trusted("m-1");
            let now = Timestamp::from_millis(1);
            let mut node = Node::new(id, &machine, NodeState::Active, now);
            tx.attach_node(id, &machine, None)?;
            tx.insert_record(&mut node, &event("serves")).await
        })
    });
    added.await.unwrap();
    let refusal = site.request(power_off_request(&["ps-1"])).await.unwrap_err();
    assert!(refusal.message.contains("m-1 serves as node-1"), "{refusal}");
    let overrides = Overrides::of(&[Gate::InService], "the rack burns");
    let forced = PowerChangeRequest { overrides, ..power_off_request(&["ps-1"]) };
    site.request(forced).await.unwrap();
    site.switched("ps-1", DesiredPower::Off).await;
    let node = site.engine.nodes().get(&NodeId::trusted("node-1")).await.unwrap().node;
    assert_eq!(node.state, NodeState::Offline);
    let by = node.down_by.expect("the operation on the shelf");
    let run = site.engine.runs().get(&by).await.unwrap();
    assert_eq!(run.spec.target.as_str(), "ps-1");
    // The shelf and its rack say that it is off.
    let why = site.engine.explain("ps-1").await.unwrap().explanation;
    assert!(why.headline.contains("Ready, and switched off"), "{why:?}");
    assert_eq!(why.next_commands[0], "farrier power-shelf maintenance power-on --id ps-1");
    let why = site.engine.explain("rack-1").await.unwrap().explanation;
    assert!(why.notes.contains(&"switched off: ps-1".to_string()), "{why:?}");
}

/// A machine has no operation of its own when its shelf is switched: it is probed at the end of the
/// shelf's, and not an interval later.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_shelf_feeds_is_observed_when_the_shelf_was_switched() {
    let once = Settings { probe_interval: Duration::from_secs(86_400), ..settings("shelves") };
    let site = fixture_with(once).await;
    site.rack("rack-1").await;
    site.ready::<PowerShelf>("ps-1", Some("rack-1")).await;
    let machine = site.fed_machine("m-1", Some("rack-1"), &["ps-1"]).await.unwrap();
    let reachable = async |expected: bool| {
        let started = Instant::now();
        loop {
            let known = site.engine.machines().get(&machine.id).await.unwrap();
            let known = known.conditions.get(ConditionType::Reachable).cloned();
            if known.as_ref().is_some_and(|known| known.status == expected) {
                return;
            }
            assert!(started.elapsed() < TEST_TIMEOUT, "{known:?}, not {expected}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    reachable(true).await;
    for power in [DesiredPower::Off, DesiredPower::On] {
        site.request(power_request(&["ps-1"], power)).await.unwrap();
        reachable(power == DesiredPower::On).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unhealthy_shelf_refuses_a_retry() {
    let site = fixture().await;
    site.ready::<PowerShelf>("ps-1", None).await;
    site.fault("ps-1", "power", 2);
    site.request(power_off_request(&["ps-1"])).await.unwrap();
    let failed = site.wait_for("ps-1", |shelf: &PowerShelf| shelf.failure().is_some()).await;
    let run = failed.failure().unwrap().run.clone().unwrap();
    let alert = Alert {
        component: String::new(),
        message: "wet".into(),
        classes: [AlertClass::PreventStateChanges.as_str().to_string()].into_iter().collect(),
        since: Timestamp::default(),
    };
    let leak = ReportChange::Merge([("leak".to_string(), alert)].into_iter().collect());
    let requester = Requester { by: "ada".into(), reason: "mended".into() };
    let shelf = failed.target();
    site.engine.health().change(&shelf, "probe".into(), leak, requester.clone()).await.unwrap();
    let tried = site.engine.runs().act(run.clone(), Action::RetryStep, requester.clone()).await;
    let restarted = site
        .engine
        .runs()
        .restart(run, RestartMode::Rerun, "anew".into(), requester)
        .await
        .map(|one| one.run);
    for answer in [tried, restarted] {
        let Err(StoreError::Refused(refusal)) = answer else { panic!("{answer:?}") };
        assert_eq!(refusal.reason.as_str(), "HEALTH_PREVENTS");
    }
}

/// Days may pass between a failure and its retry.
#[tokio::test(flavor = "multi_thread")]
async fn machines_that_came_into_service_keep_their_power_when_a_failed_shelf_is_tried_again() {
    let site = fixture().await;
    site.rack("rack-1").await;
    site.machine("m-1", "rack-1").await;
    site.ready::<PowerShelf>("ps-1", Some("rack-1")).await;
    site.fault("ps-1", "power", 2);
    site.request(power_off_request(&["ps-1"])).await.unwrap();
    let failed = site.wait_for("ps-1", |shelf: &PowerShelf| shelf.failure().is_some()).await;
    let run = failed.failure().unwrap().run.clone().unwrap();
    for run_type in [RunType::EnterMaintenance, RunType::ExitMaintenance] {
        let run = crate::workers::start(&site.engine, "m-1", run_type).await;
        wait_for_run(&site.engine, &run.spec.id, Run::ended).await;
    }
    let requester = Requester { by: "ada".into(), reason: "mended".into() };
    let tried = site.engine.runs().act(run.clone(), Action::RetryStep, requester.clone()).await;
    let restarted = site
        .engine
        .runs()
        .restart(run, RestartMode::Rerun, "anew".into(), requester)
        .await
        .map(|one| one.run);
    for answer in [tried, restarted] {
        let Err(StoreError::Refused(refusal)) = answer else { panic!("{answer:?}") };
        assert_eq!(refusal.reason.as_str(), "MACHINES_IN_SERVICE");
        assert!(
            refusal
                .next_command
                .unwrap()
                .contains("power-off --id ps-1 --override in-service --reason")
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_power_offs_of_a_rack_keep_one_shelf_on() {
    let site = fixture().await;
    site.rack("rack-1").await;
    site.machine("m-1", "rack-1").await;
    let run = crate::workers::start(&site.engine, "m-1", RunType::EnterMaintenance).await;
    wait_for_run(&site.engine, &run.spec.id, Run::ended).await;
    let run = crate::workers::start(&site.engine, "m-1", RunType::ExitMaintenance).await;
    wait_for_run(&site.engine, &run.spec.id, Run::ended).await;
    for id in ["ps-1", "ps-2"] {
        site.ready::<PowerShelf>(id, Some("rack-1")).await;
    }
    let (one, two) = tokio::join!(
        site.request(power_off_request(&["ps-1"])),
        site.request(power_off_request(&["ps-2"]))
    );
    assert_eq!([one.is_ok(), two.is_ok()].iter().filter(|fine| **fine).count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_feed_is_a_known_shelf_in_the_same_rack_or_in_none() {
    let site = fixture().await;
    for rack in ["rack-1", "rack-2"] {
        site.rack(rack).await;
    }
    site.add::<PowerShelf>("ps-1", Some("rack-1"), None).await.unwrap();
    site.add::<PowerShelf>("ps-9", None, None).await.unwrap();
    for (rack, feeds, said) in [
        (Some("rack-1"), &["ps-8"][..], "no such power shelf"),
        (Some("rack-2"), &["ps-1"], "stands in rack-1"),
        (None, &["ps-1"], "in no rack"),
    ] {
        let refused = site.fed_machine("m-1", rack, feeds).await.unwrap_err().to_string();
        assert!(refused.starts_with("machine.spec.feeds") && refused.contains(said), "{refused}");
    }
    site.fed_machine("m-1", Some("rack-1"), &["ps-1", "ps-9"]).await.unwrap();
    let refused = site.fed_machine("m-1", Some("rack-2"), &["ps-1"]).await.unwrap_err();
    assert!(refused.to_string().contains("stands in rack-1"), "{refused}");
    let spec = |feeds: &[&str]| {
        let feeds = feeds.iter().map(|id| PowerShelfId::trusted(*id)).collect();
        let spec = model::lifecycle::DeviceSpec { feeds, ..simulated() };
        Some(PlacedSpec { spec, rack: Some(RackId::trusted("rack-2")), slot: None })
    };
    for (feeds, fine) in [(&["ps-1"][..], false), (&["ps-9"], true)] {
        let (id, labels) = ("sw-1".to_string(), Labels::new());
        let described = DescribedDevice { id, spec: spec(feeds), labels };
        let added = site.engine.devices().register::<Switch>(described, "ada".into()).await;
        assert_eq!(added.is_ok(), fine, "{added:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn feeds_decide_whether_a_machine_loses_power() {
    let site = fixture().await;
    site.rack("rack-1").await;
    for (id, rack) in [("ps-1", Some("rack-1")), ("ps-2", Some("rack-1")), ("ps-9", None)] {
        site.ready::<PowerShelf>(id, rack).await;
    }
    site.fed_machine("m-1", Some("rack-1"), &["ps-1"]).await.unwrap();
    site.serve("m-1").await;
    let affected = async |id: &str| {
        let preview = site.engine.power_shelves().preview(power_off_request(&[id])).await.unwrap();
        assert_eq!(preview.preview.affected.is_empty(), preview.preview.permitted().is_ok());
        preview.preview.affected.len()
    };
    assert_eq!((affected("ps-1").await, affected("ps-2").await), (1, 0), "ps-2 does not feed it");
    let refusal = site.request(power_off_request(&["ps-1"])).await.unwrap_err();
    assert_eq!(refusal.reason.as_str(), "MACHINES_IN_SERVICE");
    // A second feed in no rack keeps it on; of both at once, one request is refused.
    site.fed_machine("m-1", Some("rack-1"), &["ps-1", "ps-9"]).await.unwrap();
    assert_eq!((affected("ps-1").await, affected("ps-9").await), (0, 0));
    let (one, two) = tokio::join!(
        site.request(power_off_request(&["ps-1"])),
        site.request(power_off_request(&["ps-9"]))
    );
    assert_eq!([one.is_ok(), two.is_ok()].iter().filter(|fine| **fine).count(), 1);
    // A shelf in no rack takes the power of a machine in no rack.
    site.fed_machine("m-2", None, &["ps-9"]).await.unwrap();
    assert!(affected("ps-9").await >= 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_must_be_free_and_moves_wake_the_rack() {
    let site = fixture().await;
    for rack in ["rack-1", "rack-2"] {
        site.rack(rack).await;
    }
    let refused = site.add::<Switch>("sw-1", Some("rack-9"), None).await.unwrap_err();
    assert!(refused.to_string().starts_with("switch.spec.rack_id"), "{refused}");
    site.add::<Switch>("sw-1", Some("rack-1"), Some(3)).await.unwrap();
    assert!(site.has_message("rack-1", "sw-1 was added").await);
    assert!(!site.has_message("rack-2", "sw-1 was added").await);
    let refused = site.add::<Switch>("sw-2", Some("rack-1"), Some(3)).await.unwrap_err();
    assert!(refused.to_string().contains("sw-1 stands"), "{refused}");
    // Slots are counted per kind of device.
    site.add::<PowerShelf>("ps-1", Some("rack-1"), Some(3)).await.unwrap();
    site.wait_for("sw-1", |switch: &Switch| switch.state_name() == "Ready").await;
    site.add::<Switch>("sw-1", Some("rack-2"), Some(3)).await.unwrap();
    assert!(site.has_message("rack-1", "sw-1 was moved").await);
    assert!(site.has_message("rack-2", "sw-1 was moved").await);
    let filter = Filter::parse("rack=rack-2", FilterSubject::Switch).unwrap();
    let page = site.engine.devices().list::<Switch>(filter, None, 10).await.unwrap();
    assert_eq!(page.records.len(), 1);
    let spec = PlacedSpec {
        spec: model::lifecycle::DeviceSpec { provider: "nobody".into(), ..Default::default() },
        ..PlacedSpec::default()
    };
    let described = DescribedDevice { id: "sw-3".into(), spec: Some(spec), labels: Labels::new() };
    let refused = site.engine.devices().register::<Switch>(described, "ada".into()).await;
    assert!(refused.unwrap_err().to_string().starts_with("switch.spec.provider"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_device_is_removed_when_released_and_can_return() {
    let site = fixture().await;
    site.rack("rack-1").await;
    site.ready::<Switch>("sw-1", Some("rack-1")).await;
    let holder = RunId::trusted("op-rack");
    hold(&site.store, "sw-1", Some(holder)).await;
    site.wait_for("sw-1", |switch: &Switch| switch.state_name() == "ReProvisioning").await;
    let requester = Requester { by: "ada".into(), reason: String::new() };
    site.engine.devices().delete::<Switch>("sw-1", None, requester.clone()).await.unwrap();
    let why = site.engine.explain("sw-1").await.unwrap().explanation;
    assert!(why.waiting_for.contains("op-rack"), "{why:?}");
    hold(&site.store, "sw-1", None).await;
    let started = Instant::now();
    while site.engine.devices().get::<Switch>("sw-1").await.is_ok() {
        assert!(started.elapsed() < TEST_TIMEOUT, "the switch is never deleted");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(states(&site.messages("sw-1").await).last(), Some(&"removed"));
    assert!(site.has_message("rack-1", "sw-1 was removed").await);
    site.ready::<Switch>("sw-1", Some("rack-1")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_released_switch_is_validated_again() {
    let site = fixture().await;
    site.ready::<Switch>("sw-1", None).await;
    let holder = RunId::trusted("op-rack");
    hold(&site.store, "sw-1", Some(holder)).await;
    site.wait_for("sw-1", |switch: &Switch| switch.state_name() == "ReProvisioning").await;
    hold(&site.store, "sw-1", None).await;
    site.wait_for("sw-1", |switch: &Switch| switch.state_name() == "Ready").await;
    let history = site.messages("sw-1").await;
    assert_eq!(states(&history)[4..], ["Ready", "ReProvisioning", "Validating", "Ready"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn power_changes_and_outages_are_observed() {
    let often = Settings { probe_interval: Duration::from_millis(50), ..settings("shelves") };
    let site = fixture_with(often).await;
    let shelf: PowerShelf = site.ready("ps-1", None).await;
    let observed = site.wait_for("ps-1", |shelf: &PowerShelf| shelf.observed.is_some()).await;
    assert!(observed.observed.unwrap().reachable);
    // An operator presses the power button at the rack.
    let target = Target { id: shelf.target(), spec: shelf.spec.clone().into() };
    let effect =
        Effect::Power { to: DesiredPower::Off, power_off: PowerOffPolicy::PROVIDER_DEFAULT };
    let key = EffectKey::new(&RunId::trusted("op-hand"), "power", 1);
    let call = ProviderCall { key, effect, verb: CallVerb::Perform, log_offset_bytes: 0 };
    site.sim.call(&target, &call, &Journal::new().0).await.unwrap();
    site.switched("ps-1", DesiredPower::Off).await;
    site.fault("ps-1", PROBE, 0);
    let lost =
        |shelf: &PowerShelf| shelf.observed.as_ref().is_some_and(|observed| !observed.reachable);
    let gone = site.wait_for("ps-1", lost).await;
    assert!(gone.observed.unwrap().message.contains("the breaker is out"));
    let why = site.engine.explain("ps-1").await.unwrap().explanation;
    assert!(why.headline.contains("cannot be reached"), "{why:?}");
    site.sim.clear_faults(None).unwrap();
    site.wait_for("ps-1", |shelf: &PowerShelf| !lost(shelf)).await;
    let count = site.messages("ps-1").await.len();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(site.messages("ps-1").await.len(), count, "unchanged observations are not written");
    let target = TargetId::from(&PowerShelfId::trusted("ps-1"));
    assert_eq!(shelf.target(), target);
}
