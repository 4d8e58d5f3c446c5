//! The inventory: valid and invalid records, and reading all of it page by page.

use crate::api::{
    BUILT_IN_PLANS, LISTS, TestServer, field_of, is, labelled, machine, on_both, page, plan,
    reboot, refused, states, step,
};
use crate::fleet::{Clients, Server, Setup};
use crate::stage::{farrier, finish};
use proto::v1;
use std::collections::BTreeSet;
use tonic::Code::{FailedPrecondition, InvalidArgument};
use tonic::Response;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;

#[tokio::test(flavor = "multi_thread")]
async fn machines_are_registered_and_updated() {
    on_both("zero", registering).await;
}

async fn registering(_world: &TestServer, mut api: Clients) {
    let made = api.put(machine("")).await;
    assert!(made.machine_id.starts_with("m-"), "{}", made.machine_id);
    let other = api.put(machine("")).await;
    assert_ne!(made.machine_id, other.machine_id);
    assert_eq!(states(&made), ("FACTORY_READY", "EFFECTIVE_STATE_NEW"));

    // MAC addresses are normalized.
    let mut desired = labelled("m-1", &[("env", "prod"), ("app.example.com/name", "")]);
    let spec = desired.spec.as_mut().unwrap();
    spec.mac_addresses = vec!["AA-BB-CC-DD-EE-FF".into(), "001122334455".into()];
    spec.ssh_endpoint = "[fd00::1]:22".into();
    spec.bmc_endpoint = "https://bmc-1.example.net/redfish".into();
    let made = api.settled(desired.clone()).await;
    let spec = made.spec.clone().unwrap();
    assert_eq!(spec.mac_addresses, ["aa:bb:cc:dd:ee:ff", "00:11:22:33:44:55"]);
    assert_eq!(made.labels, desired.labels);

    // Registering the same record changes nothing; registering a known machine keeps its status.
    let version = |machine: &v1::Machine| machine.status.as_ref().unwrap().version;
    assert_eq!(version(&api.put(desired.clone()).await), version(&made));
    api.in_maintenance("m-1").await;
    let before = api.machine("m-1").await;
    assert!(before.labels.is_empty(), "registering replaces the labels");
    let after = api.put(desired.clone()).await;
    assert_eq!(version(&after), version(&before) + 1);
    assert_eq!(states(&after), ("MAINTENANCE", "EFFECTIVE_STATE_MAINTENANCE"));
    assert!(is(&after, "Reachable"));

    // The status in an update is ignored.
    desired.labels.insert("env".into(), "stage".into());
    desired.status = Some(v1::MachineStatus {
        phase: v1::machine_status::Phase::Ready.into(),
        active_run_id: "op-mine".into(),
        version: 99,
        conditions: vec![v1::Condition {
            r#type: "RMA".into(),
            status: true,
            ..Default::default()
        }],
        ..Default::default()
    });
    let request = v1::UpdateMachineRequest {
        machine: Some(desired.clone()),
        expected_version: 0,
        update_mask: None,
        ..Default::default()
    };
    let updated = api.machines.update_machine(request).await.unwrap().into_inner();
    assert_eq!(updated.labels["env"], "stage");
    assert_eq!(version(&updated), version(&after) + 1);
    assert_eq!(
        v1::MachineStatus { version: 0, updated_at: None, ..updated.status.unwrap() },
        v1::MachineStatus { version: 0, updated_at: None, ..after.status.unwrap() }
    );
    let again = api.put(desired).await;
    assert!(!is(&again, "RMA"));
    assert_eq!(states(&again), ("MAINTENANCE", "EFFECTIVE_STATE_MAINTENANCE"));
}

/// Selects a text field of a spec.
type FieldSelector = fn(&mut v1::MachineSpec) -> &mut String;

/// Machines that are invalid in one field, and the name of that field.
fn wrong_machines() -> Vec<(v1::Machine, String)> {
    let mut wrong = Vec::new();
    let long = |length: usize| "x".repeat(length);
    let endpoints = [
        "host:",
        "host:0",
        "host:65536",
        ":22",
        "a b",
        "[::1",
        "[zzz]:22",
        "u:p@host",
        "h\u{0}st",
        "://host",
        "...",
        "10.20.30.999",
    ];
    for bad in endpoints.map(String::from).into_iter().chain([long(256)]) {
        for field in ["ssh_endpoint", "bmc_endpoint"] {
            let mut machine = machine("m-1");
            let spec = machine.spec.as_mut().unwrap();
            let position = match field {
                "ssh_endpoint" => &mut spec.ssh_endpoint,
                _ => &mut spec.bmc_endpoint,
            };
            *position = bad.clone();
            wrong.push((machine, format!("machine.spec.{field}")));
        }
    }
    for bad in
        ["", "aa:bb:cc:dd:ee", "aa:bb:cc:dd:ee:fg", "aa:bb:cc:dd:ee:ff:00", "aabbccddeeff:::::"]
    {
        let mut machine = machine("m-1");
        machine.spec.as_mut().unwrap().mac_addresses = vec!["aa:bb:cc:dd:ee:ff".into(), bad.into()];
        wrong.push((machine, "machine.spec.mac_addresses[1]".into()));
    }
    let mut many = machine("m-1");
    many.spec.as_mut().unwrap().mac_addresses = vec!["aa:bb:cc:dd:ee:ff".into(); 65];
    wrong.push((many, "machine.spec.mac_addresses".into()));
    for bad in [long(129), "a\u{7}b".into()] {
        let texts: [(&str, FieldSelector); 4] = [
            ("target_cluster_ref", |spec| &mut spec.target_cluster_ref),
            ("provider", |spec| &mut spec.provider),
            ("serial", |spec| &mut spec.serial),
            ("customer_id", |spec| &mut spec.customer_id),
        ];
        for (field, position) in texts {
            let mut machine = machine("m-1");
            *position(machine.spec.as_mut().unwrap()) = bad.clone();
            wrong.push((machine, format!("machine.spec.{field}")));
        }
    }
    for bad in [long(254), "Node-1".into(), "a..b".into(), "a;id".into()] {
        let mut machine = machine("m-1");
        machine.spec.as_mut().unwrap().node_name = bad;
        wrong.push((machine, "machine.spec.node_name".into()));
    }
    for bad in [0, -1, 61] {
        let mut machine = machine("m-1");
        machine.spec.as_mut().unwrap().height_u = Some(bad);
        wrong.push((machine, "machine.spec.height_u".into()));
    }
    for (bad, field) in [("sw-1", "machine.spec.feeds[0]"), ("ps-nowhere", "machine.spec.feeds")] {
        let mut machine = machine("m-1");
        machine.spec.as_mut().unwrap().feeds = vec![bad.into()];
        wrong.push((machine, field.into()));
    }
    let mut foreign = machine("m-1");
    foreign.spec.as_mut().unwrap().provider = "nobody".into();
    wrong.push((foreign, "machine.spec.provider".into()));
    for key in ["", "a b", "a\u{0}", "ä", &long(64)] {
        wrong.push((labelled("m-1", &[(key, "x")]), "machine.labels".into()));
    }
    for value in [long(256), "a\u{1b}[2Jb".into(), "line\nbreak".into()] {
        wrong.push((labelled("m-1", &[("env", &value)]), "machine.labels[env]".into()));
    }
    let many: Vec<String> = (0..65).map(|index| format!("k{index}")).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|key| (key.as_str(), "")).collect();
    wrong.push((labelled("m-1", &many), "machine.labels".into()));
    for id in ["a b", "a\u{7}", "-a", "ä", "a/b", &long(64)] {
        wrong.push((machine(id), "machine.machine_id".into()));
    }
    wrong
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_malformed_is_named_and_nothing_is_written() {
    let (_world, mut api) = TestServer::open("zero").await;
    let before = api.settled(labelled("m-1", &[("env", "prod")])).await;
    let history = api.history("m-1").await;
    for (machine, field) in wrong_machines() {
        let shown = format!("{machine:?}");
        let status = refused(api.try_put(machine.clone()).await, InvalidArgument, &[&field]);
        assert_eq!(field_of(&status), field, "{shown}");
        let request = v1::UpdateMachineRequest {
            machine: Some(machine),
            expected_version: 0,
            update_mask: None,
            ..Default::default()
        };
        let answer = api.machines.update_machine(request).await;
        let status = refused(answer, InvalidArgument, &[&field]);
        assert_eq!(field_of(&status), field, "{shown}");
    }
    assert_eq!(api.machine("m-1").await, before);
    assert_eq!(api.history("m-1").await, history);
    let all = api.machines.list_machines(v1::ListMachinesRequest::default()).await;
    assert_eq!(all.unwrap().into_inner().machines.len(), 1);
}

/// Reads a list to its end with pages of `size`, and calls `meanwhile` between two pages.
async fn read_all(
    api: &mut Clients,
    list: &str,
    filter: &str,
    size: i32,
    meanwhile: impl AsyncFn(usize),
) -> Vec<String> {
    let mut all = Vec::new();
    let mut token = String::new();
    for round in 0.. {
        let (ids, next) = page(api, list, (filter, size, &token)).await.unwrap();
        assert!(ids.len() <= size as usize, "{list}: {} on a page of {size}", ids.len());
        all.extend(ids);
        if next.is_empty() {
            break;
        }
        token = next;
        meanwhile(round).await;
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_hold_everything_exactly_once_while_others_write() {
    on_both("zero", paging).await;
}

async fn paging(_world: &TestServer, mut api: Clients) {
    for index in 0..50 {
        api.register(&format!("m-{index:02}")).await;
    }
    for index in 0..30 {
        api.done(&format!("m-{index:02}"), "ENTER_MAINTENANCE", "r").await;
    }
    let writer = api.clone();
    // Between two pages, machines are added at the start, in the middle and at the end, and a run
    // is started.
    let meanwhile = async |round: usize| {
        let mut api = writer.clone();
        for position in ["a", "m-25", "z"] {
            api.register(&format!("{position}-new-{round}")).await;
        }
        api.start(&format!("a-new-{round}"), "ENTER_MAINTENANCE", "r").await;
        api.register("m-25").await;
    };
    let observed = read_all(&mut api, "machines", "", 7, meanwhile).await;
    assert!(observed.is_sorted(), "{observed:?}");
    let unique: BTreeSet<&String> = observed.iter().collect();
    assert_eq!(unique.len(), observed.len(), "something came twice: {observed:?}");
    let original = observed.iter().filter(|id| !id.contains("new")).count();
    assert_eq!(original, 50, "{observed:?}");

    let idle = async |_| {};
    let before = read_all(&mut api, "runs", "", 1_000, idle).await;
    assert!(before.len() >= 30 && before.iter().rev().is_sorted(), "newest first: {before:?}");
    let counter = std::cell::Cell::new(0);
    let meanwhile = async |_| {
        let round = counter.get();
        counter.set(round + 1);
        let mut api = writer.clone();
        let id = format!("b-new-{round}");
        api.register(&id).await;
        api.start(&id, "ENTER_MAINTENANCE", "r").await;
    };
    for list in ["runs", "operations"] {
        let before = read_all(&mut api, list, "", 1_000, idle).await;
        let observed = read_all(&mut api, list, "", 7, meanwhile).await;
        assert_eq!(observed, before, "{list}");
    }
    let filter = "labels.none!=x AND machine_id in (m-00, m-01, m-02, m-40)";
    assert_eq!(read_all(&mut api, "runs", filter, 2, idle).await.len(), 3);
    assert_eq!(read_all(&mut api, "machines", filter, 3, idle).await.len(), 4);
    let versions = read_all(&mut api, "history", "m-00", 2, idle).await;
    let counted: Vec<String> = (1..=versions.len()).map(|version| version.to_string()).collect();
    assert_eq!(versions, counted);
    assert!(versions.len() >= 3);
    let plans = read_all(&mut api, "plans", "", 2, idle).await;
    assert_eq!(plans.len(), BUILT_IN_PLANS, "{plans:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_is_a_hundred_unless_asked_and_a_thousand_at_most() {
    let (_world, mut api) = TestServer::open("zero").await;
    let lanes: Vec<_> = (0..8)
        .map(|lane| {
            let mut api = api.clone();
            tokio::spawn(async move {
                for index in (lane..1_010).step_by(8) {
                    api.register(&format!("m-{index:04}")).await;
                }
            })
        })
        .collect();
    for lane in lanes {
        lane.await.unwrap();
    }
    for (size, expected) in [(0, 100), (1, 1), (1_000, 1_000), (1_001, 1_000), (i32::MAX, 1_000)] {
        let (ids, next) = page(&mut api, "machines", ("", size, "")).await.unwrap();
        assert_eq!(ids.len(), expected, "page_size {size}");
        assert!(!next.is_empty());
    }
    let (_, next) = page(&mut api, "machines", ("", 1_000, "")).await.unwrap();
    let (ids, next) = page(&mut api, "machines", ("", 1_000, &next)).await.unwrap();
    assert_eq!((ids.len(), next.as_str()), (10, ""));
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_pages_filters_cursors_and_offsets_are_refused() {
    let (_world, mut api) = TestServer::open("zero").await;
    for index in 0..3 {
        api.in_maintenance(&format!("m-{index}")).await;
    }
    let before = api.machine("m-0").await.status.unwrap().version;
    let mut tokens = Vec::new();
    for list in LISTS {
        let filter = if list == "history" { "m-0" } else { "" };
        let (_, token) = page(&mut api, list, (filter, 1, "")).await.unwrap();
        assert!(!token.is_empty(), "{list}");
        tokens.push(token);
    }
    for (position, list) in LISTS.into_iter().enumerate() {
        let filter = if list == "history" { "m-0" } else { "" };
        for size in [-1, i32::MIN] {
            let answer = page(&mut api, list, (filter, size, "")).await;
            refused(answer, InvalidArgument, &["page_size", "1000"]);
        }
        for (from, token) in tokens.iter().enumerate().filter(|(from, _)| *from != position) {
            let answer = page(&mut api, list, (filter, 1, token)).await;
            let status = refused(answer, InvalidArgument, &["page_token"]);
            assert_eq!(field_of(&status), "page_token", "{list} with a token of {}", LISTS[from]);
        }
        for token in ["garbage!", "Z2FyYmFnZQ", "\u{0}", &"x".repeat(100_000)] {
            let answer = page(&mut api, list, (filter, 1, token)).await;
            refused(answer, InvalidArgument, &["page_token"]);
        }
        if list != "history" {
            let answer = page(&mut api, list, (&"x".repeat(1_000_000), 0, "")).await;
            let status = refused(answer, InvalidArgument, &["filter"]);
            assert!(status.message().len() < 300, "{}", status.message());
        }
    }
    // A page token is only valid with its filter.
    let answer = page(&mut api, "machines", ("phase=MAINTENANCE", 1, &tokens[0])).await;
    refused(answer, InvalidArgument, &["page_token"]);
    let answer = page(&mut api, "history", ("m-1", 1, &tokens[4])).await;
    refused(answer, InvalidArgument, &["page_token"]);

    let run = api.list_runs("machine_id=m-0").await.remove(0).run_id;
    for cursor in ["x", "-1", "1.2.3.4", "\u{7}", &"9".repeat(100), "1~nobody"] {
        let request = v1::WatchRunsRequest { cursor: cursor.into(), ..Default::default() };
        let answer = api.runs.watch_runs(request).await.map(drop);
        refused(answer, InvalidArgument, &["cursor"]);
        let request = v1::WatchOperationsRequest { cursor: cursor.into(), ..Default::default() };
        let answer = api.operations.watch_operations(request).await.map(drop);
        refused(answer, InvalidArgument, &["cursor"]);
    }
    let filter = "x".repeat(1_000_000);
    let request = v1::WatchRunsRequest { filter, ..Default::default() };
    refused(api.runs.watch_runs(request).await.map(drop), InvalidArgument, &["filter"]);
    let request = v1::StreamRunLogsRequest { run_id: run.clone(), offset: -1, no_follow: true };
    let answer = api.runs.stream_run_logs(request).await.map(drop);
    assert_eq!(field_of(&refused(answer, InvalidArgument, &["offset"])), "offset");
    // An offset behind the end of a finished log is no error; it gives an empty stream.
    let request = v1::StreamRunLogsRequest { run_id: run, offset: i64::MAX, no_follow: false };
    let mut log = api.runs.stream_run_logs(request).await.map(Response::into_inner).unwrap();
    assert!(log.message().await.unwrap().is_none());
    assert_eq!(api.machine("m-0").await.status.unwrap().version, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filtered_list_of_plans_is_complete_by_pages() {
    let (_world, mut api) = TestServer::open("zero").await;
    for id in ["a1", "a2", "a3", "a4", "a5"] {
        api.try_plan(plan(id, vec![step("a", reboot())])).await.unwrap();
    }
    let filter = "plan_id not in (a1, a2, a3)";
    let complete = read_all(&mut api, "plans", filter, 100, async |_| {}).await;
    assert_eq!(complete.len(), BUILT_IN_PLANS + 2);
    assert_eq!(read_all(&mut api, "plans", filter, 2, async |_| {}).await, complete);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_is_not_named_like_an_operation() {
    let (_world, mut api) = TestServer::open("zero").await;
    api.in_maintenance("m-1").await;
    let run = api.done("m-1", "REBOOT", "r").await.run_id;
    for id in [run.as_str(), "op-mine"] {
        refused(api.try_put(machine(id)).await, InvalidArgument, &["machine.machine_id"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_update_undoes_nothing_that_it_did_not_see() {
    let (_world, mut api) = TestServer::open("zero").await;
    let before = api.settled(labelled("m-1", &[("env", "prod")])).await;
    let update = |labels: &[(&str, &str)], expected_version| v1::UpdateMachineRequest {
        machine: Some(v1::Machine { spec: None, ..labelled("m-1", labels) }),
        expected_version,
        update_mask: None,
        ..Default::default()
    };
    let version = before.status.as_ref().unwrap().version;
    let answer = api.machines.update_machine(update(&[("env", "stage")], version)).await;
    let after = answer.unwrap().into_inner();
    assert_eq!(after.spec, before.spec, "an absent spec stays as it is");
    assert_eq!(after.labels["env"], "stage");
    let late = api.machines.update_machine(update(&[("env", "late")], version)).await;
    let status = refused(late, FailedPrecondition, &["version"]);
    assert!(status.message().contains("farrier get m-1"), "{status:?}");
    assert_eq!(api.machine("m-1").await.labels["env"], "stage");
}

/// The simulator's service is neither in the health service nor in what reflection describes.
async fn check_simulator_is_hidden(url: &str) {
    const SIMULATOR: &str = "farrier.v1.SimulatorService";
    let channel = crate::fleet::channel(url).await;
    let mut health = HealthClient::new(channel.clone());
    let request = HealthCheckRequest { service: SIMULATOR.into() };
    assert_eq!(health.check(request).await.unwrap_err().code(), tonic::Code::NotFound);
    let mut reflection = ServerReflectionClient::new(channel);
    let mut ask = async |request| {
        let request =
            ServerReflectionRequest { host: String::new(), message_request: Some(request) };
        let answer = reflection.server_reflection_info(tokio_stream::iter([request])).await;
        let answer = answer.unwrap().into_inner().message().await;
        answer.map(|message| format!("{:?}", message.unwrap())).map_err(|status| status.code())
    };
    let services = ask(MessageRequest::ListServices(String::new())).await.unwrap();
    assert!(services.contains("farrier.v1.SiteService"), "{services}");
    assert!(!services.contains(SIMULATOR), "{services}");
    let known = ask(MessageRequest::FileContainingSymbol("farrier.v1.SiteService".into())).await;
    assert!(known.is_ok());
    let hidden = ask(MessageRequest::FileContainingSymbol(SIMULATOR.into())).await;
    assert_eq!(hidden, Err(tonic::Code::NotFound));
}

/// A real machine never becomes a simulated one because its owner names no provider.
#[tokio::test(flavor = "multi_thread")]
async fn a_machine_is_simulated_only_on_request() {
    let dir = tempfile::tempdir().unwrap();
    let setup = Setup { simulates: false, ..Setup::new(dir.path(), "zero") };
    let server = Server::start(setup);
    let mut api = Clients::connect(&server.url()).await;
    let refusal = refused(api.try_put(machine("m-1")).await, InvalidArgument, &["--simulate"]);
    assert_eq!(field_of(&refusal), "machine.spec.provider");
    let faults = api.sim.list_faults(v1::ListFaultsRequest::default()).await;
    assert_eq!(faults.unwrap_err().code(), tonic::Code::Unimplemented);
    let (code, _, message) = finish(farrier(&server.url(), &["sim", "fault", "list"]));
    assert_eq!(code, 2, "{message}");
    assert!(
        message.contains("has no simulated hardware") && message.contains("--simulate"),
        "{message}"
    );
    check_simulator_is_hidden(&server.url()).await;
    check_default_provider(&mut api).await;

    let (_world, mut api) = TestServer::open("zero").await;
    api.put(machine("m-3")).await;
    check_default_provider(&mut api).await;
}

async fn check_default_provider(api: &mut Clients) {
    let unnamed = |id: &str, bmc_endpoint: &str| {
        let bmc_endpoint = bmc_endpoint.into();
        let spec = v1::MachineSpec { bmc_endpoint, ..Default::default() };
        v1::Machine { machine_id: id.into(), spec: Some(spec), ..Default::default() }
    };
    let made = api.put(unnamed("m-1", "https://127.0.0.1:1")).await;
    assert_eq!(made.spec.unwrap().provider, "datacenter");
    for machine in [unnamed("m-2", ""), v1::Machine { spec: None, ..unnamed("m-2", "") }] {
        let refusal = refused(api.try_put(machine).await, InvalidArgument, &["is required"]);
        assert_eq!(field_of(&refusal), "machine.spec.provider");
    }
    let known = v1::Machine { spec: None, ..unnamed("m-1", "") };
    assert_eq!(api.put(known).await.spec.unwrap().provider, "datacenter");
}
