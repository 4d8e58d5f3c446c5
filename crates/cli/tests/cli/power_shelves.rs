//! Power shelves and switches: the commands with their output and exit codes, the API, and a server
//! that is killed while a shelf is being switched off.

use crate::api::{TestServer, refused};
use crate::fleet::{Clients, Server, Setup, TEST_TIMEOUT};
use crate::stage::{farrier, finish};
use proto::v1;
use proto::v1::power_shelf_service_client::PowerShelfServiceClient;
use std::time::{Duration, Instant};
use tonic::{Code, Request};
use v1::PowerShelfMaintenanceOperation as Operation;

/// Runs a command and checks its exit code. Returns stdout and stderr.
#[track_caller]
fn typed(url: &str, line: &str, expected: i32) -> (String, String) {
    let args: Vec<&str> = line.split(' ').collect();
    let (code, stdout, stderr) = finish(farrier(url, &args));
    assert_eq!(code, expected, "{line}\n{stdout}\n{stderr}");
    (stdout, stderr)
}

#[track_caller]
fn json(url: &str, line: &str) -> serde_json::Value {
    let (text, _) = typed(url, &format!("{line} -o json"), 0);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{line}: {error}\n{text}"))
}

/// Polls a device until the condition holds.
#[track_caller]
fn until(url: &str, get: &str, reached: impl Fn(&serde_json::Value) -> bool) -> serde_json::Value {
    let started = Instant::now();
    loop {
        let device = json(url, get);
        if reached(&device) {
            return device;
        }
        assert!(started.elapsed() < TEST_TIMEOUT, "{get} never gets there: {device:#}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn ready(device: &serde_json::Value) -> bool {
    device["status"]["state"] == "Ready"
}

fn slow_power(delay_ms: i32) -> v1::SimFault {
    v1::SimFault {
        machine: "ps-1".into(),
        effect: "power".into(),
        action: v1::SimAction::Slow.into(),
        delay_ms,
        times: 1,
        ..Default::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn shelves_are_typed_as_in_the_document() {
    let (env, mut clients) = TestServer::open("zero").await;
    let url = &env.server.url();
    for id in ["ps-1", "ps-2", "ps-3"] {
        typed(url, &format!("power-shelf register {id} --provider sim --label row=a"), 0);
        until(url, &format!("power-shelf get {id}"), ready);
    }
    let submitted = |count: u32| {
        format!("Power shelf maintenance request submitted for {count} power shelves.\n")
    };
    let off = |id: &str| {
        until(url, &format!("power-shelf get {id}"), |shelf| {
            ready(shelf) && shelf["status"]["facts"]["power"] == "OFF"
        })
    };
    let (text, warned) = typed(url, "power-shelf maintenance power-off --power-shelf-id ps-1", 0);
    assert_eq!(text, submitted(1));
    assert!(warned.contains("the controller of ps-1 may lose its own power"), "{warned}");
    off("ps-1");
    let line = "power-shelf fix power-off --id ps-2 ps-3 ps-2 --ref https://tracker/MAINT-123";
    assert_eq!(typed(url, line, 0).0, submitted(2));
    off("ps-2");
    off("ps-3");
    let (history, _) = typed(url, "history ps-2", 0);
    assert!(history.contains("admin (https://tracker/MAINT-123)"), "{history}");
    // JSON output shows the accepted request.
    let line = "power-shelf maintenance power-on --power-shelf-id ps-1 --power-shelf-id ps-2";
    let answer = json(url, &format!("{line} --reference T-1"));
    let both = serde_json::json!([{ "id": "ps-1" }, { "id": "ps-2" }]);
    assert_eq!(answer["power_shelf_ids"], both, "{answer}");
    assert_eq!(answer["operation"], "POWER_ON", "{answer}");
    assert_eq!(answer["reference"], "T-1", "{answer}");
    let on = |shelf: &serde_json::Value| ready(shelf) && shelf["status"]["facts"]["power"] == "ON";
    until(url, "power-shelf get ps-1", on);
    until(url, "power-shelf get ps-2", on);

    let (list, _) = typed(url, "power-shelf list --label row=a --state Ready", 0);
    let header = "POWER_SHELF_ID  STATE  POWER  REACHABLE  RACK  SLOT  ACTIVE_OP";
    assert_eq!(list.lines().next(), Some(header), "{list}");
    assert_eq!(list.lines().count(), 4, "{list}");
    let (_, text) = typed(url, "power-shelf list --state Redy", 2);
    assert!(text.contains("filter is wrong") && text.contains("Ready"), "{text}");
    let (shown, _) = typed(url, "power-shelf get ps-3", 0);
    assert!(shown.contains("Power:") && shown.contains("OFF"), "{shown}");

    // A failure puts the shelf into Error with its cause, and `retry` recovers it.
    clients
        .fault(v1::SimFault {
            action: v1::SimAction::Fail.into(),
            times: 0,
            message: "the breaker is out".into(),
            ..slow_power(0)
        })
        .await;
    typed(url, "power-shelf maintenance power-off --id ps-1", 0);
    let in_error = |shelf: &serde_json::Value| shelf["status"]["state"] == "Error";
    until(url, "power-shelf get ps-1", in_error);
    let (why, _) = typed(url, "why ps-1", 0);
    assert!(
        why.contains("the breaker is out") && why.contains("farrier power-shelf retry ps-1"),
        "{why}"
    );
    typed(url, "power-shelf retry ps-1", 0);
    until(url, "power-shelf get ps-1", ready);
    typed(url, "power-shelf delete ps-1", 0);
    let started = Instant::now();
    while finish(farrier(url, &["power-shelf", "get", "ps-1"])).0 == 0 {
        assert!(started.elapsed() < TEST_TIMEOUT, "it never goes");
    }
    let (_, text) = typed(url, "power-shelf get ps-1", 2);
    assert!(text.contains("farrier power-shelf list"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_changes_nothing() {
    let (env, _) = TestServer::open("zero").await;
    let url = &env.server.url();
    typed(url, "power-shelf register ps-1 --provider sim", 0);
    let before = until(url, "power-shelf get ps-1", ready);
    let line = "power-shelf maintenance power-off --id ps-1 --dry-run";
    let (message, _) = typed(url, line, 0);
    assert!(message.contains("ps-1 (Ready, power on): power-off"), "{message}");
    assert!(message.contains("ps-1 stands in no rack"), "{message}");
    let (message, _) = typed(url, "power-shelf maintenance power-off --id ps-1 ps-9 --dry-run", 2);
    assert!(message.contains("no power shelf ps-9 is known"), "{message}");
    let preview = json(url, line);
    assert_eq!(preview["shelves"][0]["steps"], serde_json::json!(["power-off"]));
    let after = json(url, "power-shelf get ps-1");
    assert_eq!(after["status"]["facts"], before["status"]["facts"]);
    assert_eq!(after["maintenance_requested"], serde_json::Value::Null);
    let (history, _) = typed(url, "history ps-1", 0);
    assert!(!history.contains("requested"), "{history}");
}

#[tokio::test(flavor = "multi_thread")]
async fn machines_in_service_keep_their_power_unless_overridden() {
    let (env, mut clients) = TestServer::open("zero").await;
    let url = &env.server.url();
    // The rack expects more devices than exist, so it starts no operation on them.
    typed(url, "rack create rack-1 --hardware-type t --expect-machines 9", 0);
    typed(url, "machine register m-1 --provider sim --cluster c --rack rack-1 --slot 2", 0);
    for (kind, request) in [("ENTER_MAINTENANCE", "in"), ("EXIT_MAINTENANCE", "out")] {
        let run = clients.start("m-1", kind, request).await;
        clients.finished(&run.run_id).await;
    }
    for (id, slot) in [("ps-1", 1), ("ps-2", 3)] {
        let line = format!("power-shelf register {id} --provider sim --rack rack-1 --slot {slot}");
        typed(url, &line, 0);
        until(url, &format!("power-shelf get {id}"), ready);
    }
    let (_, message) =
        typed(url, "power-shelf register ps-3 --provider sim --rack rack-1 --slot 1", 2);
    assert!(
        message.contains("power_shelf.spec.slot") && message.contains("ps-1 stands"),
        "{message}"
    );
    let both = "power-shelf maintenance power-off --id ps-1 ps-2";
    let (message, _) = typed(url, &format!("{both} --dry-run"), 2);
    assert!(
        message.contains("Affected machines:\n  m-1  (m-1 is in service and not drained)"),
        "{message}"
    );
    assert!(message.contains("Would be refused:"), "{message}");
    let (_, message) = typed(url, both, 2);
    assert!(
        message.contains("m-1 is in service and not drained (gate in-service)")
            && message.contains("--override in-service --reason"),
        "{message}"
    );
    let (message, _) = typed(url, "power-shelf fix power-off --id ps-1 --dry-run", 0);
    assert!(message.contains("rack-1 keeps its power: ps-2 stays on"), "{message}");
    // With feeds, ps-2 does not help: it does not feed the machine.
    typed(url, "machine update m-1 --feeds ps-1", 0);
    let (message, _) = typed(url, "power-shelf fix power-off --id ps-1 --dry-run", 2);
    assert!(message.contains("by feeds, without power: m-1"), "{message}");
    let shown = json(url, "machine get m-1");
    assert_eq!(shown["spec"]["feeds"], serde_json::json!(["ps-1"]), "{shown}");
    typed(url, "machine update m-1 --feeds ps-2,ps-1", 0);
    let (message, _) = typed(url, "power-shelf fix power-off --id ps-1 --dry-run", 0);
    assert!(message.contains("by feeds, power is kept: m-1"), "{message}");
    let (message, _) = typed(url, &format!("{both} --dry-run"), 2);
    assert!(message.contains("by feeds, without power: m-1"), "{message}");
    let (_, message) = typed(url, "power-shelf update ps-2 --feeds ps-1", 2);
    assert!(message.contains("power_shelf.spec.feeds"), "{message}");
    typed(url, "machine update m-1 --feeds=", 0);
    let (_, warned) = typed(url, &format!("{both} --override in-service --reason burning"), 0);
    assert!(warned.contains("warning: the controller of ps-1, ps-2"), "{warned}");
    until(url, "power-shelf get ps-2", |shelf| {
        ready(shelf) && shelf["status"]["facts"]["power"] == "OFF"
    });
    let (history, _) = typed(url, "history ps-2", 0);
    assert!(history.contains("power-off requested; gate in-service overridden by "), "{history}");
}

async fn shelves(env: &TestServer) -> PowerShelfServiceClient<crate::fleet::Channel> {
    PowerShelfServiceClient::new(crate::fleet::channel(&env.server.url()).await)
}

fn power_request(ids: &[&str], operation: Operation) -> v1::PowerShelfMaintenanceRequest {
    v1::PowerShelfMaintenanceRequest {
        power_shelf_ids: ids.iter().map(|id| v1::PowerShelfId { id: (*id).into() }).collect(),
        operation: operation.into(),
        ..Default::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_wire_refuses_what_the_document_refuses() {
    let (env, mut clients) = TestServer::open("zero").await;
    let url = &env.server.url();
    typed(url, "power-shelf register ps-1 --provider sim", 0);
    until(url, "power-shelf get ps-1", ready);
    let mut api = shelves(&env).await;
    let many: Vec<String> = (0..101).map(|number| format!("ps-{number}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    for (request, code, words) in [
        (power_request(&["ps-1"], Operation::Unspecified), Code::InvalidArgument, "operation"),
        (power_request(&[], Operation::PowerOn), Code::InvalidArgument, "power_shelf_ids"),
        (power_request(&many, Operation::PowerOn), Code::InvalidArgument, "1 to 100"),
        (power_request(&["sw-1"], Operation::PowerOn), Code::InvalidArgument, "power_shelf_ids"),
        (power_request(&["ps-1", "ps-9"], Operation::PowerOn), Code::NotFound, "ps-9"),
    ] {
        refused(api.set_power_shelf_maintenance(request).await, code, &[words]);
    }
    for (operation, gates, reason, words) in [
        (Operation::PowerOff, &["in-service"][..], "", "gate_override.reason is required"),
        (Operation::PowerOff, &[], "fire", "gate_override.reason is given without a gate"),
        (Operation::PowerOff, &["devices"], "fire", "overridden: in-service, health"),
        // Switching on takes nothing from a machine.
        (Operation::PowerOn, &["in-service"], "fire", "can be overridden: health"),
    ] {
        let gates = gates.iter().map(ToString::to_string).collect();
        let request = v1::PowerShelfMaintenanceRequest {
            gate_override: Some(v1::GateOverride { gates, reason: reason.into() }),
            ..power_request(&["ps-1"], operation)
        };
        let answer = api.set_power_shelf_maintenance(request).await;
        refused(answer, Code::InvalidArgument, &[words]);
    }
    // A dry run is validated like any other request and writes nothing.
    let dry = v1::PowerShelfMaintenanceRequest {
        dry_run: Some(true),
        ..power_request(&["ps-1"], Operation::PowerOff)
    };
    api.set_power_shelf_maintenance(dry).await.unwrap();
    let shelf = json(url, "power-shelf get ps-1");
    assert_eq!(shelf["maintenance_requested"], serde_json::Value::Null);

    // The operation is still active when the test ends.
    clients.fault(slow_power(60_000)).await;
    let named = v1::PowerShelfMaintenanceRequest {
        request_id: Some("r-1".into()),
        ..power_request(&["ps-1"], Operation::PowerOff)
    };
    // The request has no reference.
    let answer = api.set_power_shelf_maintenance(Request::new(named.clone())).await.unwrap();
    assert_eq!(answer.metadata().get("farrier-request-id").unwrap(), "r-1");
    let shelf = json(url, "power-shelf get ps-1");
    assert_eq!(shelf["maintenance_requested"]["initiator"], "admin", "{shelf:#}");
    let answer =
        api.set_power_shelf_maintenance(power_request(&["ps-1"], Operation::PowerOn)).await;
    refused(answer, Code::FailedPrecondition, &["power-off already", "by admin"]);
    api.set_power_shelf_maintenance(named).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn switches_are_created_changed_and_deleted() {
    let (env, _) = TestServer::open("zero").await;
    let url = &env.server.url();
    let (_, message) = typed(url, "switch register core-1 --provider sim", 2);
    assert!(message.contains("switch.switch_id"), "{message}");
    let (_, message) = typed(url, "switch register sw-1 --provider nobody", 2);
    assert!(message.contains("switch.spec.provider"), "{message}");
    let (_, message) = typed(url, "switch register sw-1 --provider sim --rack rack-9", 2);
    assert!(message.contains("switch.spec.rack_id"), "{message}");
    typed(url, "switch register sw-1 --provider sim --serial S1 --label a=1", 0);
    until(url, "switch get sw-1", ready);
    typed(url, "switch update sw-1 --bmc-endpoint 10.0.0.9 --label b=2 --remove-label a", 0);
    let switch = json(url, "switch get sw-1");
    assert_eq!(switch["spec"]["serial"], "S1", "what is not given stays");
    assert_eq!(switch["spec"]["bmc_endpoint"], "10.0.0.9");
    assert_eq!(switch["labels"], serde_json::json!({"b": "2"}));
    let (_, message) = typed(url, "switch retry sw-1", 2);
    assert!(message.contains("only what is in Error"), "{message}");
    let (why, _) = typed(url, "why sw-1", 0);
    assert!(why.starts_with("sw-1 is Ready"), "{why}");
    typed(url, "switch delete sw-1", 0);
    let page = json(url, "switch list --rack rack-1");
    assert_eq!(page, serde_json::json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_power_off_survives_kill_9_in_the_middle_and_is_done_once() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(Setup::new(dir.path(), "fast"));
    let url = server.url();
    typed(&url, "power-shelf register ps-1 --provider sim", 0);
    until(&url, "power-shelf get ps-1", ready);
    let mut clients: Clients = server.clients().await;
    clients.fault(slow_power(4_000)).await;
    typed(&url, "power-shelf maintenance power-off --id ps-1", 0);
    let run = loop {
        let shelf = json(&url, "power-shelf get ps-1");
        let active =
            shelf["status"]["active_operation_id"].as_str().unwrap_or_default().to_string();
        if !active.is_empty() {
            break clients.at_step(&active, "power-off").await;
        }
    };
    let server = Server::start(server.kill());
    let url = server.url();
    let shelf = until(&url, "power-shelf get ps-1", |shelf| {
        ready(shelf) && shelf["status"]["facts"]["power"] == "OFF"
    });
    assert_eq!(shelf["maintenance_requested"], serde_json::Value::Null);
    assert_eq!(shelf["status"]["active_operation_id"], "");
    let mut clients = server.clients().await;
    let ended = clients.finished(&run.run_id).await;
    assert_eq!(ended.phase(), v1::run::Phase::Succeeded, "{ended:#?}");
    let applied: Vec<i32> = clients.applied(&run.run_id).await.into_values().collect();
    assert_eq!(applied.iter().sum::<i32>(), 1, "{applied:?}");
    let history = json(&url, &format!("history {}", run.run_id)).to_string();
    assert!(history.contains("took over"), "{history}");
}

/// A reported alert is shown in `get` and `why`, and disappears when it is removed.
#[tokio::test(flavor = "multi_thread")]
async fn alerts_on_racks_switches_and_shelves_are_seen_in_get_and_in_why() {
    let (env, _clients) = TestServer::open("zero").await;
    let url = &env.server.url();
    // The rack expects a machine that never arrives, so its state does not change.
    typed(url, "rack create rack-1 --hardware-type t --expect-machines 1", 0);
    typed(url, "switch register sw-1 --provider sim", 0);
    typed(url, "power-shelf register ps-1 --provider sim", 0);
    for (noun, id) in [("rack", "rack-1"), ("switch", "sw-1"), ("power-shelf", "ps-1")] {
        let (get, why) = (format!("{noun} get {id}"), format!("why {id}"));
        assert_eq!(json(url, &get)["status"]["health"], serde_json::Value::Null);
        let alert = "id=leak,message=wet,class=prevent-state-changes";
        typed(url, &format!("health report {id} --source dcim --alert {alert}"), 0);
        let (shown, _) = typed(url, &get, 0);
        let bar = "prevent-state-changes:  dcim reports leak: wet";
        assert!(shown.contains(bar) && shown.contains("ALERT  SOURCE"), "{shown}");
        let health = &json(url, &get)["status"]["health"];
        assert_eq!(health["reports"][0]["alerts"][0]["id"], "leak", "{health}");
        let listed = &json(url, &format!("{noun} list"))[0]["status"]["health"];
        assert_eq!((&listed["alerts"], &listed["bars"]), (&health["alerts"], &health["bars"]));
        assert_eq!(listed["reports"], serde_json::json!([]), "{listed}");
        let (message, _) = typed(url, &why, 0);
        assert!(message.contains("no operation starts on it: dcim reports leak: wet"), "{message}");
        assert!(message.contains(&format!("farrier health get {id}")), "{message}");
        typed(url, &format!("health delete {id} --source dcim"), 0);
        for line in [&get, &why] {
            let (message, _) = typed(url, line, 0);
            assert!(!message.contains("dcim"), "{message}");
        }
    }
}
