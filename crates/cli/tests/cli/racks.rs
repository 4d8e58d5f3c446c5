//! Racks on the command line: bring-up, and every command about them, against a real server.

use crate::api::TestServer;
use crate::api_cli::Terminal;
use crate::fleet::TEST_TIMEOUT;
use std::time::Instant;

/// Waits until the rack is in a state.
#[track_caller]
fn until(person: &Terminal, rack: &str, state: &str) {
    let started = Instant::now();
    loop {
        let observed = person.json(&format!("rack get {rack}"));
        if observed["status"]["state"] == state {
            return;
        }
        assert!(started.elapsed() < TEST_TIMEOUT, "{rack} is never {state}: {observed}");
    }
}

#[track_caller]
fn says(text: &str, words: &[&str]) {
    for name in words {
        assert!(text.contains(name), "{name:?} is not in\n{text}");
    }
}

/// Types every command about racks.
pub fn typed(person: &Terminal) {
    inventory(person);
    preview(person);
    trouble(person);
    canceled(person);
    watched(person);
    reprovision(person);
    deleted(person);
}

fn inventory(person: &Terminal) {
    let create = "rack create rack-1 --hardware-type gb200 --expect-machines 2 --label location=hall-2 \
         --room hall-2 --row B --position 7";
    assert!(person.line("rack create shelf-1", 2).contains("rack.rack_id"));
    person.check_dry_run(create, "rack list", &["would create rack-1"]);
    for _ in 0..2 {
        assert!(person.line(create, 0).contains("rack-1 created"));
    }
    assert!(person.line("rack create rack-1", 2).contains("farrier rack update rack-1"));
    says(&person.line("rack get rack-1", 0), &["Discovering", "0 of 2 machines", "nothing stands"]);
    says(&person.line("why rack-1", 0), &["rack-1 looks for its devices", "0 of 2 machines"]);
    let message = person.line("machine register tray-1 --provider sim --rack rack-9 --slot 1", 2);
    says(&message, &["machine.spec.rack_id", "farrier rack create rack-9"]);
    person.line("machine register tray-1 --provider sim --rack rack-1 --slot 3", 0);
    let message = person.line("machine register tray-2 --provider sim --rack rack-1 --slot 3", 2);
    says(&message, &["machine.spec.slot", "tray-1 stands in rack-1"]);
    person.line("machine register tray-2 --provider sim", 0);
    person.line("machine update tray-2 --rack rack-1 --slot 5", 0);
    until(person, "rack-1", "Ready");
    person.formats("rack get rack-1", "tray-2");
    says(&person.line("rack get rack-1", 0), &["│ 5     machine  tray-2", "│ 4     (empty)"]);
    says(&person.line("get tray-2", 0), &["Rack:", "rack-1", "Slot:"]);
    heights_and_names(person);
    assert!(person.line("list --filter rack=rack-1", 0).contains("tray-1"));
    person.formats("rack list", "rack-1");
    for desired in ["--state Ready", "--label location", "--hardware-type gb200 --limit 1"] {
        assert!(person.line(&format!("rack list {desired}"), 0).contains("rack-1"), "{desired}");
    }
    for other in ["--state Error", "--label location=hall-3", "--hardware-type gb300"] {
        assert!(!person.line(&format!("rack list {other}"), 0).contains("rack-1"), "{other}");
    }
    assert!(person.line("rack list --state Lost", 2).contains("is none of Created"));
    let update = "rack update rack-1 --label row=7 --remove-label location";
    person.check_dry_run(
        update,
        "rack get rack-1",
        &["would update rack-1", "hall-2 → none", "row=7", "2 machines"],
    );
    person.line(update, 0);
    assert!(person.line("rack list -o wide", 0).contains("row=7"));
    says(&person.line("rack get rack-1", 0), &["room hall-2, row B, position 7"]);
    person.line("rack update rack-1 --position 8 --row=", 0);
    let location = person.json("rack get rack-1")["location"].clone();
    assert_eq!(location, serde_json::json!({ "room": "hall-2", "row": "", "position": "8" }));
    assert!(person.line("rack update rack-1 --room \u{7}", 2).contains("rack.location.room"));
    says(&person.line("history rack-1", 0), &["Discovering", "Validating", "Ready"]);
}

/// A device of several rack units overlaps no other.
fn heights_and_names(person: &Terminal) {
    let message = person.line("machine update tray-1 --height-u 3", 2);
    says(&message, &["machine.spec.height_u", "tray-2 stands in slot 5 of rack-1"]);
    assert!(
        person.line("machine update tray-1 --height-u 61", 2).contains("machine.spec.height_u")
    );
    person.line("machine update tray-1 --height-u 2 --node-name gpu-1.example", 0);
    let message = person.line("machine register tray-3 --provider sim --rack rack-1 --slot 4", 2);
    says(&message, &["machine.spec.slot", "tray-1 stands in rack-1"]);
    let message = person.line("switch register sw-9 --provider sim --rack rack-1 --slot 4", 2);
    says(&message, &["switch.spec.slot", "tray-1 stands in rack-1"]);
    says(&person.line("rack get rack-1", 0), &["│ 4-3   machine  tray-1"]);
    says(&person.line("get tray-1", 0), &["Height:", "2U", "gpu-1.example"]);
    let spec = person.json("machine get tray-1")["spec"].clone();
    assert_eq!((&spec["height_u"], &spec["node_name"]), (&2.into(), &"gpu-1.example".into()));
    assert!(person.line("machine update tray-1 --node-name Gpu_1", 2).contains("spec.node_name"));
    person.line("machine update tray-1 --node-name=", 0);
    assert_eq!(person.json("machine get tray-1")["spec"]["node_name"], "");
}

fn preview(person: &Terminal) {
    let message = person.line("rack maintenance start rack-1 --dry-run", 0);
    let words = [
        "power-on-machines",
        "no firmware is applied: there is no default firmware for hardware type gb200",
        "no gate refuses it",
        "dry run: nothing was changed",
    ];
    says(&message, &words);
    person.line("rack maintenance start rack-1 --machine tray-9 --dry-run", 2);
    let message = person.line("rack maintenance start rack-1 --machine machine-1", 2);
    says(&message, &["scope.machine_ids[0]", "machine-1 stands in no rack"]);
    let message = person.line("rack maintenance start rack-1 --switch nonsense", 2);
    says(&message, &["scope.switch_ids[0]"]);
    let message = person.line("rack maintenance start rack-1 --activity nmx-cluster", 2);
    says(&message, &["no switch stands in the rack"]);
    // Machines in service are taken down only with an override.
    person.line("enter-maintenance tray-1", 0);
    person.line("exit-maintenance tray-1", 0);
    let off = "rack maintenance start rack-1 --activity power --power reset";
    let message = person.expect_refused_dry_run(off);
    says(&message, &["would be refused:", "tray-1 is in service and not drained", "Taken down: "]);
    says(
        &person.line(off, 2),
        &["tray-1 is in service", "(gate in-service)", "--override in-service --reason"],
    );
    for (half, other) in [("--override in-service", "--reason"), ("--reason fire", "--override")] {
        for command in [off, "rack reprovision rack-1"] {
            says(&person.line(&format!("{command} {half}"), 2), &[other]);
        }
    }
    // Another gate does not open this one, and a gate of other requests is refused.
    let other = person.line(&format!("{off} --override health --reason fire"), 2);
    says(&other, &["(gate in-service)", "--override in-service,health --reason"]);
    let wrong = person.line(&format!("{off} --override devices --reason fire"), 2);
    says(&wrong, &["devices, which is not a gate of this request", "in-service, health"]);
    let forced = format!("{off} --override in-service,health --reason fire --reference T-7");
    let run = person.submit(&forced);
    person.line(&format!("operation watch {run}"), 0);
    says(
        &person.line(&format!("history {run}"), 0),
        &[
            "; gate in-service overridden by ",
            ": fire; gate health named by ",
            "did not refuse: fire",
        ],
    );
    says(&person.line("history rack-1", 0), &["gate in-service overridden by "]);
    assert!(person.json(&format!("operation get {run}")).to_string().contains("fire"));
    let status = person.line("rack maintenance status rack-1", 0);
    says(&status, &["power-off-machines", "power-on-machines", "validate", "2/2", "(T-7)"]);
    person.formats("rack maintenance status rack-1", "power-on-machines");
    let of_rack = person.json("operation list --filter machine_id=rack:rack-1");
    let all = of_rack.as_array().unwrap();
    assert!(!all.is_empty(), "{of_rack}");
    for one in all {
        assert_eq!(one["type"], "RACK_MAINTENANCE", "{one}");
    }
    until(person, "rack-1", "Ready");
}

fn trouble(person: &Terminal) {
    person.line("sim fault create --machine tray-2 --effect power --action fail --times 0", 0);
    let start = "rack maintenance start rack-1 --activity power --request-id same";
    let reported = person.line(start, 1);
    says(&reported, &["✗ FAILED", "tray-2", "part-failed"]);
    let again = person.line(start, 1);
    assert!(again.contains("same operation, no new work"), "{again}");
    until(person, "rack-1", "Error");
    let shown = person.line("rack get rack-1", 0);
    says(&shown, &["PowerSequence: tray-2", "farrier operation retry-step op-"]);
    says(&person.line("why rack-1", 0), &["PowerSequence on tray-2 failed"]);
    let status = person.json("rack maintenance status rack-1");
    let run = status[0]["operation"]["operation_id"].as_str().unwrap().to_string();
    listed(person, &run);
    says(&person.line(&format!("rack maintenance status {run}"), 0), &["tray-2", "FAILED"]);
    person.line("sim fault delete --all", 0);
    assert!(person.line(&format!("operation retry-step {run}"), 0).contains("SUCCEEDED"));
    until(person, "rack-1", "Ready");
    let reported = person.line("rack maintenance start rack-1 --firmware-version fw-none", 1);
    says(&reported, &["fw-none is not in the catalogue", "firmware-unknown"]);
    assert!(!reported.contains("no new work"), "{reported}");
    until(person, "rack-1", "Error");
    let none = "rack maintenance start rack-1 --firmware-version fw-none --no-wait";
    let reported = person.line(none, 1);
    says(&reported, &["(FAILED)", "fw-none is not in the catalogue"]);
    assert!(!reported.contains("no new work"), "{reported}");
    until(person, "rack-1", "Error");
    person.line("rack maintenance start rack-1 --machine tray-2", 0);
    until(person, "rack-1", "Ready");
}

/// A list has child operations only where it is asked for them.
fn listed(person: &Terminal, run: &str) {
    let parents = |line: &str| -> Vec<String> {
        let all = person.json(line);
        let parent = |one: &serde_json::Value| one["part_of"].as_str().unwrap().to_string();
        all.as_array().unwrap().iter().map(parent).collect()
    };
    for line in ["operation list", "ops", "runs --since 1h"] {
        let found = parents(line);
        assert!(!found.is_empty() && found.iter().all(String::is_empty), "{line}: {found:?}");
    }
    assert!(parents("operation list --all").iter().any(|one| one == run));
    let children = parents(&format!("operation list --parent {run}"));
    assert!(!children.is_empty() && children.iter().all(|one| one == run), "{children:?}");
    assert_eq!(parents("operation list --initiator nobody").len(), 0);
    assert_eq!(parents("operation list --since 2100-01-01").len(), 0);
    for filter in ["target_id=rack-1", "target_kind=rack", "machine_id=rack:rack-1"] {
        let of_rack = person.json(&format!("operation list --filter {filter}"));
        let all = of_rack.as_array().unwrap();
        assert!(!all.is_empty() && all.iter().all(|one| one["target_id"] == "rack-1"), "{filter}");
    }
}

fn canceled(person: &Terminal) {
    person.line("sim fault create --machine tray-2 --effect check --action hang --times 0", 0);
    let run = person.submit("rack maintenance start rack-1 --machine tray-2");
    person.at_step(&run, "validate");
    let message = person.line("rack maintenance start rack-1", 2);
    says(&message, &["rack-1 is in ", "in Ready or Error"]);
    let partial = "rack maintenance start rack-1 --machine tray-1 --activity power";
    says(&person.line(partial, 2), &[&run, "in Ready or Error"]);
    person.stream(&["rack", "maintenance", "watch", "rack-1", "--timeout", "20s"], &run);
    let cancel = "rack maintenance cancel rack-1 --reason enough";
    let would = format!("would cancel {run}");
    let stops = "validate would be stopped on tray-2";
    person.check_dry_run(
        cancel,
        &format!("operation get {run}"),
        &[&would, stops, "wait in Error"],
    );
    let reported = person.line(cancel, 0);
    assert!(reported.contains("CANCELED"), "{reported}");
    until(person, "rack-1", "Error");
    assert!(person.line("rack maintenance cancel rack-1", 2).contains("nothing to cancel"));
    person.line("sim fault delete --all", 0);
    assert!(person.line(&format!("operation rerun {run}"), 0).contains("SUCCEEDED"));
    until(person, "rack-1", "Ready");
}

/// Without an active operation, the watch waits for new ones until its time limit.
fn watched(person: &Terminal) {
    person.stream(&["rack", "watch"], "rack-1");
    let message = person.line("rack watch --filter phase=READY", 2);
    says(&message, &["is not a field; the fields are rack_id, state, hardware_type"]);
    let message = person.line("rack maintenance watch rack-1 --timeout 1s", 3);
    says(&message, &["rack-1 was watched for 1s"]);
    assert!(person.line("rack maintenance watch rack-9", 2).contains("farrier rack list"));
    let watch = ["rack", "maintenance", "watch", "rack-1", "--timeout", "60s"];
    let start = "rack maintenance start rack-1 --machine tray-1 --activity power";
    person.repeat_until_streamed(&watch, "RACK_MAINTENANCE", || drop(person.line(start, 0)));
    until(person, "rack-1", "Ready");
}

fn reprovision(person: &Terminal) {
    says(&person.line("rack reprovision rack-1 --dry-run", 0), &["validate", "dry run"]);
    let reported = person.line("rack reprovision rack-1 --ref T-8", 0);
    says(&reported, &["RACK_MAINTENANCE", "SUCCEEDED"]);
    until(person, "rack-1", "Ready");
}

fn deleted(person: &Terminal) {
    assert!(
        person
            .line("rack delete rack-1", 2)
            .contains("farrier rack delete rack-1 --override devices --reason")
    );
    let would = ["would delete rack-1", "tray-1 would be taken out", "tray-2 would be taken out"];
    let delete = "rack delete rack-1 --override devices --reason scrapped";
    person.check_dry_run(delete, "rack get rack-1", &would);
    person.line(delete, 0);
    let started = Instant::now();
    while person.json("rack list").as_array().is_some_and(|racks| !racks.is_empty()) {
        assert!(started.elapsed() < TEST_TIMEOUT, "rack-1 never goes");
    }
    assert!(person.line("rack get rack-1", 2).contains("farrier rack list"));
    assert_eq!(person.json("get tray-1")["spec"]["rack_id"], "");
}

/// A machine in service is left out of the ingestion of its rack. The rack says so until the
/// printed commands have it ingested.
#[tokio::test(flavor = "multi_thread")]
async fn a_rack_lists_what_it_has_not_ingested() {
    let (env, _) = TestServer::open("zero").await;
    let person = Terminal::new(env.server.url());
    tokio::task::spawn_blocking(move || {
        person.line("machine register tray-1 --provider sim", 0);
        person.line("enter-maintenance tray-1", 0);
        person.line("exit-maintenance tray-1", 0);
        person.line("rack create rack-7 --expect-machines 2", 0);
        person.line("machine update tray-1 --rack rack-7 --slot 1", 0);
        person.line("machine register tray-2 --provider sim --rack rack-7 --slot 2", 0);
        until(&person, "rack-7", "Ready");
        let rack = person.json("rack get rack-7");
        let left_out = &rack["status"]["not_ingested"];
        assert_eq!(left_out.as_array().map(Vec::len), Some(1), "{rack}");
        assert_eq!(left_out[0]["machine_id"], "tray-1", "{rack}");
        let next = left_out[0]["next_command"].as_str().unwrap();
        assert!(person.line("rack get rack-7", 0).contains(next), "{next}");
        let (first, then) = next.split_once("   # then: ").unwrap();
        // One command in each line, as it is typed.
        let why = person.line("why rack-7", 0);
        for command in [first, then] {
            assert!(why.lines().any(|line| line.trim() == command), "{command}: {why}");
        }
        for command in [first, then] {
            person.line(command.strip_prefix("farrier ").unwrap(), 0);
        }
        until(&person, "rack-7", "Ready");
        let rack = person.json("rack get rack-7");
        let left_out = rack["status"]["not_ingested"].as_array();
        assert!(left_out.is_none_or(Vec::is_empty), "{rack}");
    })
    .await
    .unwrap();
}
