//! Watches and logs: every event once and in order, from any cursor; every byte, live or later.

use crate::api::{TestServer, fault, labelled, on_both, plan, refused, slow, ssh, step};
use crate::fleet::{Clients, DatabaseKind, Server, Setup, TEST_TIMEOUT, new_database, postgres};
use proto::v1;
use proto::words::WireEnum;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::timeout;
use tonic::{Code, Response, Streaming};

/// Long enough for an event that is on its way, short enough to wait for one that is not.
const QUIET: Duration = Duration::from_millis(300);

/// SQL belongs to the store crate, even for a test that opens a transaction.
const OPEN_TRANSACTION: &str = include_str!("../../../store/tests/open_transaction.sql");

/// One event, in a form that all kinds of objects share.
#[derive(Debug, Clone, PartialEq)]
struct WatchedEvent {
    id: String,
    version: i64,
    /// The phase of a run, or the state of another object.
    phase: String,
    initial: bool,
    deleted: bool,
    change: v1::WatchChange,
    cursor: String,
    message: String,
}

impl WatchedEvent {
    /// Without the cursor if it is a position in a snapshot.
    fn without_snapshot(&self) -> Self {
        let cursor = if self.initial { String::new() } else { self.cursor.clone() };
        Self { cursor, ..self.clone() }
    }
}

impl From<v1::RunEvent> for WatchedEvent {
    fn from(event: v1::RunEvent) -> Self {
        let change = event.change();
        let run = event.snapshot.unwrap();
        assert!(event.ts.is_some());
        Self {
            phase: run.phase().as_str_name().into(),
            id: run.run_id,
            version: run.version,
            initial: event.initial,
            deleted: false,
            change,
            cursor: event.cursor,
            message: event.message,
        }
    }
}

impl From<v1::OperationEvent> for WatchedEvent {
    fn from(event: v1::OperationEvent) -> Self {
        let change = event.change();
        let operation = event.snapshot.unwrap();
        Self {
            phase: operation.phase().as_str_name().into(),
            id: operation.operation_id,
            version: operation.version,
            initial: event.initial,
            deleted: false,
            change,
            cursor: event.cursor,
            message: event.message,
        }
    }
}

impl From<v1::MachineEvent> for WatchedEvent {
    fn from(event: v1::MachineEvent) -> Self {
        let change = event.change();
        let machine = event.snapshot.unwrap();
        let status = machine.status.unwrap();
        assert!(event.ts.is_some());
        Self {
            phase: status.phase().as_str_name().into(),
            id: machine.machine_id,
            version: status.version,
            initial: event.initial,
            deleted: event.deleted,
            change,
            cursor: event.cursor,
            message: event.message,
        }
    }
}

impl From<v1::RackEvent> for WatchedEvent {
    fn from(event: v1::RackEvent) -> Self {
        let change = event.change();
        let rack = event.snapshot.unwrap();
        let status = rack.status.unwrap();
        assert!(event.ts.is_some());
        Self {
            phase: status.state().word().into(),
            id: rack.rack_id,
            version: status.version,
            initial: event.initial,
            deleted: event.deleted,
            change,
            cursor: event.cursor,
            message: event.message,
        }
    }
}

impl From<v1::NodeEvent> for WatchedEvent {
    fn from(event: v1::NodeEvent) -> Self {
        let change = event.change();
        let node = event.snapshot.unwrap();
        assert!(event.ts.is_some());
        Self {
            phase: node.state().word().into(),
            id: node.node_id,
            version: node.version,
            initial: event.initial,
            deleted: event.deleted,
            change,
            cursor: event.cursor,
            message: event.message,
        }
    }
}

async fn watch_runs(api: &mut Clients, filter: &str, cursor: &str) -> Streaming<v1::RunEvent> {
    let request =
        v1::WatchRunsRequest { filter: filter.into(), cursor: cursor.into(), ..Default::default() };
    api.runs.watch_runs(request).await.map(Response::into_inner).unwrap()
}

async fn watch_operations(
    api: &mut Clients,
    filter: &str,
    cursor: &str,
) -> Streaming<v1::OperationEvent> {
    let request = v1::WatchOperationsRequest {
        filter: filter.into(),
        cursor: cursor.into(),
        ..Default::default()
    };
    api.operations.watch_operations(request).await.map(Response::into_inner).unwrap()
}

/// Reads exactly this many events, within the time limit.
async fn take<T: Into<WatchedEvent>>(stream: &mut Streaming<T>, count: usize) -> Vec<WatchedEvent> {
    let mut observed = Vec::new();
    while observed.len() < count {
        let event = timeout(TEST_TIMEOUT, stream.message()).await;
        let event =
            event.unwrap_or_else(|_| panic!("{} of {count} came: {observed:#?}", observed.len()));
        observed.push(event.unwrap().unwrap().into());
    }
    observed
}

/// Reads until no event has arrived for `QUIET`.
async fn drain<T: Into<WatchedEvent>>(stream: &mut Streaming<T>) -> Vec<WatchedEvent> {
    let mut observed = Vec::new();
    while let Ok(event) = timeout(QUIET, stream.message()).await {
        observed.push(event.unwrap().unwrap().into());
    }
    observed
}

/// Reads until this many runs have ended.
async fn until_ended<T: Into<WatchedEvent>>(
    stream: &mut Streaming<T>,
    ends: usize,
) -> Vec<WatchedEvent> {
    let mut observed: Vec<WatchedEvent> = Vec::new();
    let over =
        |one: &&WatchedEvent| !one.initial && !["PENDING", "RUNNING"].contains(&one.phase.as_str());
    while observed.iter().filter(over).count() < ends {
        observed.extend(take(stream, 1).await);
    }
    observed
}

/// Versions by run, in the order of arrival.
fn versions(observed: &[WatchedEvent]) -> BTreeMap<String, Vec<i64>> {
    let mut by_run: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    for one in observed {
        by_run.entry(one.id.clone()).or_default().push(one.version);
    }
    by_run
}

/// Checks that the versions of each run have no gap.
#[track_caller]
fn check_order(observed: &[WatchedEvent]) {
    for (id, versions) in versions(observed) {
        let expected: Vec<i64> = (versions[0]..).take(versions.len()).collect();
        assert_eq!(versions, expected, "{id}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_is_a_snapshot_and_then_every_change_and_resumes_anywhere() {
    on_both("zero", resuming).await;
}

async fn resuming(env: &TestServer, mut api: Clients) {
    for index in 0..3 {
        api.in_maintenance(&format!("m-{index}")).await;
    }
    env.settle().await;
    let mut runs = watch_runs(&mut api, "", "").await;
    let mut operations = watch_operations(&mut api, "", "").await;
    let mut recorded = take(&mut runs, 3).await;
    assert!(recorded.iter().all(|one| one.initial && one.phase == "SUCCEEDED"), "{recorded:#?}");
    for index in 0..2 {
        api.start(&format!("m-{index}"), "REPAVE", "r").await;
    }
    recorded.extend(until_ended(&mut runs, 2).await);
    let changes = &recorded[3..];
    assert!(changes.iter().all(|one| !one.initial && !one.message.is_empty()), "{changes:#?}");
    check_order(changes);
    for (id, versions) in versions(changes) {
        assert_eq!(versions[0], 1, "{id} was there from its beginning");
        let run = api.run(&id).await;
        assert_eq!(versions.last(), Some(&run.version));
        let reported: Vec<&str> =
            changes.iter().filter(|one| one.id == id).map(|one| one.phase.as_str()).collect();
        assert_eq!((reported[0], reported[reported.len() - 1]), ("PENDING", "SUCCEEDED"));
    }
    let mut cursors: Vec<&String> = recorded.iter().map(|one| &one.cursor).collect();
    cursors.sort();
    cursors.dedup();
    assert_eq!(cursors.len(), recorded.len(), "every event has a cursor of its own");

    // Customers see the same events. Each watch has its own snapshot with the same content; only
    // the cursors into it differ.
    let reported = take(&mut operations, recorded.len()).await;
    let comparable = |observed: &[WatchedEvent]| {
        observed.iter().map(WatchedEvent::without_snapshot).collect::<Vec<_>>()
    };
    assert_eq!(comparable(&reported), comparable(&recorded));

    // A watch that resumes from a cursor gets exactly the remaining events, whatever the cursor.
    for (position, last) in recorded.iter().enumerate() {
        let rest = &recorded[position + 1..];
        let mut again = watch_runs(&mut api, "", &last.cursor).await;
        assert_eq!(take(&mut again, rest.len()).await, rest, "runs after event {position}");
        let mut again = watch_operations(&mut api, "", &last.cursor).await;
        assert_eq!(take(&mut again, rest.len()).await, rest, "operations after event {position}");
    }
    let last = recorded.last().unwrap();
    let mut again = watch_runs(&mut api, "", &last.cursor).await;
    assert_eq!(drain(&mut again).await, [], "nothing is repeated at the end");
    // A new event reaches all watches.
    let run = api.start("m-2", "REBOOT", "next").await.run_id;
    let next = take(&mut again, 1).await.remove(0);
    assert_eq!((&next.id, next.version, next.initial), (&run, 1, false));
    assert_eq!(take(&mut runs, 1).await, [next]);
}

/// The reader of the events is woken while an older transaction is open, and reads nothing. The end
/// of that transaction must wake it again: this server polls once in an hour.
#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_an_older_transaction_wakes_a_watch() {
    let Some(cluster) = postgres() else { return };
    let url = new_database(&cluster).await;
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(Setup {
        home: DatabaseKind::Postgres(url.clone()),
        config: "[engine]\npoll_ms = 3600000".into(),
        ..Setup::new(dir.path(), "zero")
    });
    let mut api = server.clients().await;
    api.in_maintenance("m-1").await;
    let mut runs = watch_runs(&mut api, "phase=SUCCEEDED AND type=REBOOT", "").await;
    let (older, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    for round in 0..3 {
        older.batch_execute(OPEN_TRANSACTION).await.unwrap();
        let run = api.done("m-1", "REBOOT", &format!("r-{round}")).await;
        assert_eq!(drain(&mut runs).await, [], "the older transaction is open");
        older.batch_execute("ROLLBACK").await.unwrap();
        assert_eq!(take(&mut runs, 1).await[0].id, run.run_id);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_may_leave_the_past_out() {
    on_both("zero", without_the_past).await;
}

async fn without_the_past(env: &TestServer, mut api: Clients) {
    for id in ["m-1", "m-2"] {
        api.in_maintenance(id).await;
    }
    api.fault(fault("m-1", "reboot", "hang", 0)).await;
    let run = api.start("m-1", "REBOOT", "r").await.run_id;
    env.settle().await;
    let request = v1::WatchRunsRequest { skip_ended: true, ..Default::default() };
    let mut runs = api.runs.watch_runs(request.clone()).await.unwrap().into_inner();
    let first: WatchedEvent = take(&mut runs, 1).await.remove(0);
    assert_eq!((&first.id, first.initial), (&run, true));
    // Runs that end after the start of the watch are reported.
    let next = api.start("m-2", "REBOOT", "r").await.run_id;
    let reported = until_ended(&mut runs, 1).await;
    assert!(reported.iter().all(|one| !one.initial), "{reported:#?}");
    assert_eq!(
        reported.last().map(|one| (&one.id, one.phase.as_str())),
        Some((&next, "SUCCEEDED"))
    );
    // A watch that breaks before its first event resumes from its start cursor.
    let quiet = v1::WatchRunsRequest { filter: "machine_id=m-2".into(), ..request.clone() };
    let marked = v1::WatchRunsRequest { bookmark: true, ..quiet.clone() };
    let mut answer = api.runs.watch_runs(marked).await.unwrap().into_inner();
    let bookmark = answer.message().await.unwrap().unwrap();
    assert_eq!((bookmark.change(), &bookmark.snapshot), (v1::WatchChange::Bookmark, &None));
    let cursor = bookmark.cursor;
    drop(answer);
    let missed = api.done("m-2", "REBOOT", "while away").await;
    let back = v1::WatchRunsRequest { cursor, ..quiet };
    let mut runs = api.runs.watch_runs(back).await.unwrap().into_inner();
    let reported = until_ended(&mut runs, 1).await;
    assert_eq!(reported.first().map(|one| (&one.id, one.version)), Some((&missed.run_id, 1)));
    env.settle().await;
    // A filter for ended runs gives no initial events.
    let request = v1::WatchRunsRequest { filter: "phase=SUCCEEDED".into(), ..request };
    let mut ended = api.runs.watch_runs(request).await.unwrap().into_inner();
    assert_eq!(drain(&mut ended).await, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_shows_what_its_filter_lets_through() {
    on_both("zero", filtering).await;
}

async fn filtering(world: &TestServer, mut api: Clients) {
    for (id, env) in [("m-1", "prod"), ("m-2", "stage")] {
        api.settled(labelled(id, &[("env", env)])).await;
        api.done(id, "ENTER_MAINTENANCE", "enter").await;
    }
    api.fault(fault("m-2", "reboot", "fail", 0)).await;
    let table = [
        ("machine_id=m-1", 1),
        ("type=REBOOT", 2),
        ("labels.env=prod AND type!=ENTER_MAINTENANCE", 1),
        ("phase=FAILED", 1),
        ("phase in (SUCCEEDED, FAILED) AND machine_phase=MAINTENANCE", 2),
    ];
    world.settle().await;
    let mut streams = Vec::new();
    for (filter, _) in table {
        streams.push(watch_runs(&mut api, filter, "").await);
    }
    let mut reboots = BTreeMap::new();
    for id in ["m-1", "m-2"] {
        let run = api.start(id, "REBOOT", "r").await.run_id;
        reboots.insert(id, api.finished(&run).await);
    }
    for ((filter, ends), stream) in table.into_iter().zip(&mut streams) {
        let observed = until_ended(stream, ends).await;
        let initial: Vec<&WatchedEvent> = observed.iter().filter(|one| one.initial).collect();
        let matching = api.list_runs(filter).await;
        let fits = |one: &WatchedEvent| matching.iter().any(|run| run.run_id == one.id);
        assert!(observed.iter().all(fits), "{filter}: {observed:#?}");
        let before = matching.iter().filter(|run| run.request_id == "enter").count();
        assert_eq!(initial.len(), before, "{filter}: {observed:#?}");
        if filter.starts_with("phase") {
            let active = |one: &WatchedEvent| ["PENDING", "RUNNING"].contains(&one.phase.as_str());
            assert!(!observed.iter().any(active));
        }
    }
    // A filter without matches waits and then shows new events.
    let mut none = watch_operations(&mut api, "request_id=later", "").await;
    assert_eq!(drain(&mut none).await, []);
    let run = api.start("m-1", "REBOOT", "later").await.run_id;
    let observed = until_ended(&mut none, 1).await;
    check_order(&observed);
    assert!(observed.iter().all(|one| one.id == run));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reader_misses_nothing_and_holds_back_nobody() {
    const MACHINES: usize = 50;
    let (env, mut api) = TestServer::open("zero").await;
    for index in 0..MACHINES {
        api.in_maintenance(&format!("m-{index}")).await;
    }
    let mut reader = env.server.clients().await;
    let mut stream = watch_runs(&mut reader, "type=REPAVE", "").await;
    let mut events = 0;
    for request in ["first", "second"] {
        let mut runs = Vec::new();
        for index in 0..MACHINES {
            runs.push(api.start(&format!("m-{index}"), "REPAVE", request).await.run_id);
        }
        for id in &runs {
            events += api.finished(id).await.version as usize;
        }
    }
    // All runs have ended before the slow reader reads its first event.
    assert!(events > 500, "{events}");
    let observed = take(&mut stream, events).await;
    check_order(&observed);
    assert!(versions(&observed).values().all(|versions| versions[0] == 1));
    assert_eq!(versions(&observed).len(), 2 * MACHINES);
    let ends = observed.iter().filter(|one| one.phase == "SUCCEEDED").count();
    assert_eq!(ends, 2 * MACHINES);
    assert_eq!(drain(&mut stream).await, []);
}

/// Opens a watch, records the initial events and those of `act` until one matches `is_last`, and
/// resumes the watch after each of them. Returns the recorded events.
async fn check_watch<E: Into<WatchedEvent>>(
    (env, api): (&TestServer, &mut Clients),
    open: impl AsyncFn(&mut Clients, &str) -> Streaming<E>,
    initial: usize,
    act: impl AsyncFn(&mut Clients),
    is_last: impl Fn(&WatchedEvent) -> bool,
) -> Vec<WatchedEvent> {
    env.settle().await;
    let mut stream = open(api, "").await;
    let mut recorded = take(&mut stream, initial).await;
    assert!(recorded.iter().all(|one| one.initial && one.message.is_empty()), "{recorded:#?}");
    act(api).await;
    while !recorded.last().is_some_and(&is_last) {
        recorded.extend(take(&mut stream, 1).await);
    }
    let changes = &recorded[initial..];
    assert!(changes.iter().all(|one| !one.initial && !one.message.is_empty()), "{changes:#?}");
    // The changes continue the snapshot without a gap.
    check_order(&recorded);
    let mut cursors: Vec<&String> = recorded.iter().map(|one| &one.cursor).collect();
    cursors.sort();
    cursors.dedup();
    assert_eq!(cursors.len(), recorded.len(), "every event has a cursor of its own");
    let deleted = |id: &String| recorded.iter().any(|one| one.deleted && one.id == *id);
    for (position, last) in recorded.iter().enumerate() {
        // An object that was deleted since is not in the rest of the snapshot.
        let rest = recorded[position + 1..].iter().filter(|one| !one.initial || !deleted(&one.id));
        let rest: Vec<_> = rest.map(WatchedEvent::without_snapshot).collect();
        let mut again = open(api, &last.cursor).await;
        let again = take(&mut again, rest.len()).await;
        let again: Vec<_> = again.iter().map(WatchedEvent::without_snapshot).collect();
        assert_eq!(again, rest, "after event {position}");
    }
    recorded
}

async fn watch_machines(
    api: &mut Clients,
    filter: &str,
    cursor: &str,
) -> Streaming<v1::MachineEvent> {
    let request =
        v1::WatchMachinesRequest { filter: filter.into(), cursor: cursor.into(), bookmark: false };
    api.machines.watch_machines(request).await.map(Response::into_inner).unwrap()
}

async fn delete_machine(api: &mut Clients, id: &str) {
    let request = v1::DeleteMachineRequest { machine_id: id.into(), ..Default::default() };
    api.machines.delete_machine(request).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn machines_are_watched_like_runs() {
    on_both("zero", machines).await;
}

async fn machines(env: &TestServer, mut api: Clients) {
    for id in ["m-0", "m-1", "m-2"] {
        api.settled(labelled(id, &[])).await;
    }
    let open = async |api: &mut Clients, cursor: &str| watch_machines(api, "", cursor).await;
    let act = async |api: &mut Clients| {
        api.put(labelled("m-0", &[("env", "prod")])).await;
        api.done("m-1", "ENTER_MAINTENANCE", "r").await;
        delete_machine(api, "m-2").await;
    };
    let recorded =
        check_watch((env, &mut api), open, 3, act, |one| one.deleted && one.id == "m-2").await;
    let phases = |id: &str| {
        let of = recorded.iter().filter(|one| one.id == id);
        of.map(|one| one.phase.as_str()).collect::<Vec<_>>()
    };
    assert_eq!(phases("m-1").last(), Some(&"MAINTENANCE"), "{recorded:#?}");
    assert!(phases("m-2").iter().all(|phase| *phase == "FACTORY_READY"), "the last snapshot");
    // A machine of the same id continues its versions.
    let mut stream = watch_machines(&mut api, "", &recorded.last().unwrap().cursor).await;
    api.put(labelled("m-2", &[("env", "prod")])).await;
    let again = take(&mut stream, 1).await.remove(0);
    assert_eq!((again.id.as_str(), again.deleted), ("m-2", false));
    assert_eq!(again.version, recorded.last().unwrap().version + 1);
    // A filter selects by the state after the change; a deletion by the last state.
    env.settle().await;
    let mut filtered = watch_machines(&mut api, "labels.env=prod AND machine_id=m-0", "").await;
    assert!(take(&mut filtered, 1).await[0].initial);
    api.put(labelled("m-1", &[("env", "prod")])).await;
    delete_machine(&mut api, "m-0").await;
    let reported = take(&mut filtered, 1).await.remove(0);
    assert_eq!((reported.id.as_str(), reported.deleted), ("m-0", true));
    assert_eq!(reported.change, v1::WatchChange::Deleted);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_says_when_an_object_no_longer_matches() {
    on_both("zero", unmatching).await;
}

async fn unmatching(env: &TestServer, mut api: Clients) {
    use v1::WatchChange::{Changed, NoLongerMatches, Snapshot};
    let prod = [("env", "prod")];
    for (id, labels) in [("m-0", &prod[..]), ("m-1", &[]), ("m-2", &prod)] {
        api.settled(labelled(id, labels)).await;
    }
    env.settle().await;
    let mut live = watch_machines(&mut api, "labels.env=prod", "").await;
    let snapshot = take(&mut live, 2).await;
    assert!(snapshot.iter().all(|one| one.change == Snapshot), "{snapshot:#?}");
    // m-1 never matches, so nothing is sent about its first change.
    api.put(labelled("m-1", &[("env", "stage")])).await;
    api.put(labelled("m-0", &[("env", "stage")])).await;
    api.put(labelled("m-0", &[("env", "test")])).await;
    api.put(labelled("m-1", &prod)).await;
    api.put(labelled("m-0", &prod)).await;
    let expected = [("m-0", NoLongerMatches), ("m-1", Changed), ("m-0", Changed)];
    let seen = |observed: &[WatchedEvent]| {
        observed.iter().map(|one| (one.id.clone(), one.change)).collect::<Vec<_>>()
    };
    let expected: Vec<_> = expected.iter().map(|(id, change)| (id.to_string(), *change)).collect();
    assert_eq!(seen(&take(&mut live, 3).await), expected);
    // A watch that resumes tells the same.
    let cursor = &snapshot.last().unwrap().cursor;
    let mut resumed = watch_machines(&mut api, "labels.env=prod", cursor).await;
    assert_eq!(seen(&take(&mut resumed, 3).await), expected);
    // A run that ends leaves a filter of active runs; the machine's own state may have matched.
    for (filter, last) in [
        ("phase in (PENDING, RUNNING) AND type=ENTER_MAINTENANCE", "SUCCEEDED"),
        ("phase in (PENDING, RUNNING) AND effective_state=BUSY", "SUCCEEDED"),
    ] {
        let machine = if filter.contains("BUSY") { "m-1" } else { "m-2" };
        let mut runs = watch_runs(&mut api, filter, "").await;
        api.done(machine, "ENTER_MAINTENANCE", "enter").await;
        let observed = until_ended(&mut runs, 1).await;
        let end = observed.last().unwrap();
        assert_eq!((end.phase.as_str(), end.change), (last, NoLongerMatches), "{observed:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn racks_and_nodes_are_watched_like_runs() {
    on_both("zero", racks_and_nodes).await;
}

async fn racks_and_nodes(env: &TestServer, mut api: Clients) {
    let rack = |labels: &[(&str, &str)]| v1::Rack {
        rack_id: "rack-1".into(),
        labels: labelled("", labels).labels,
        expected: Some(v1::RackCounts { machines: 1, ..Default::default() }),
        ..Default::default()
    };
    let request = v1::CreateRackRequest { rack: Some(rack(&[])), dry_run: false };
    api.racks.create_rack(request).await.unwrap();
    let open = async |api: &mut Clients, cursor: &str| {
        let request = v1::WatchRacksRequest { cursor: cursor.into(), ..Default::default() };
        api.racks.watch_racks(request).await.map(Response::into_inner).unwrap()
    };
    let act = async |api: &mut Clients| {
        let rack = Some(rack(&[("row", "a")]));
        let request = v1::UpdateRackRequest { rack, ..Default::default() };
        api.racks.update_rack(request).await.unwrap();
        let request = v1::DeleteRackRequest { rack_id: "rack-1".into(), ..Default::default() };
        api.racks.delete_rack(request).await.unwrap();
    };
    let recorded = check_watch((env, &mut api), open, 1, act, |one| one.deleted).await;
    assert!(recorded.iter().any(|one| one.phase == "Deleting"), "{recorded:#?}");

    let spec = v1::SiteSpec { provider: "sim".into(), ..Default::default() };
    let site = v1::Site { site_id: "site-1".into(), spec: Some(spec), ..Default::default() };
    api.sites
        .create_site(v1::CreateSiteRequest { site: Some(site), ..Default::default() })
        .await
        .unwrap();
    api.register("m-1").await;
    let request = v1::OnboardNodeRequest {
        machine_id: "m-1".into(),
        site_id: "site-1".into(),
        request_id: "on".into(),
        ..Default::default()
    };
    let onboarded = api.nodes.onboard_node(request).await.unwrap().into_inner();
    api.finished(&onboarded.run.unwrap().run_id).await;
    let node = onboarded.node.unwrap().node_id;
    let open = async |api: &mut Clients, cursor: &str| {
        let request = v1::WatchNodesRequest { cursor: cursor.into(), ..Default::default() };
        api.nodes.watch_nodes(request).await.map(Response::into_inner).unwrap()
    };
    let act = async |api: &mut Clients| {
        let request = v1::DecommissionNodeRequest {
            node_id: node.clone(),
            mode: v1::DecommissionMode::FullDecommission.into(),
            request_id: "off".into(),
            ..Default::default()
        };
        let run = api.nodes.decommission_node(request).await.unwrap().into_inner().run.unwrap();
        api.finished(&run.run_id).await;
    };
    let recorded = check_watch((env, &mut api), open, 1, act, |one| one.deleted).await;
    let states: Vec<&str> = recorded.iter().map(|one| one.phase.as_str()).collect();
    assert!(states.contains(&"draining") && states.last() == Some(&"deleted"), "{states:?}");
    env.settle().await;
    let mut anew = open(&mut api, "").await;
    assert_eq!(drain(&mut anew).await, [], "a deleted node is not in a snapshot");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cursor_of_another_kind_and_an_unknown_filter_are_refused() {
    let (_env, mut api) = TestServer::open("zero").await;
    for id in ["m-1", "m-2"] {
        api.in_maintenance(id).await;
    }
    let mut runs = watch_runs(&mut api, "", "").await;
    let snapshot = take(&mut runs, 1).await.remove(0).cursor;
    for cursor in ["x", "1~m-1", &snapshot] {
        let cursor = cursor.to_string();
        let request = v1::WatchMachinesRequest { cursor: cursor.clone(), ..Default::default() };
        let answer = api.machines.watch_machines(request).await.map(drop);
        refused(answer, Code::InvalidArgument, &["cursor"]);
        let request = v1::WatchRacksRequest { cursor: cursor.clone(), ..Default::default() };
        let answer = api.racks.watch_racks(request).await.map(drop);
        refused(answer, Code::InvalidArgument, &["cursor"]);
        let request = v1::WatchNodesRequest { cursor, ..Default::default() };
        let answer = api.nodes.watch_nodes(request).await.map(drop);
        refused(answer, Code::InvalidArgument, &["cursor"]);
    }
    let filter = || "colour=red".to_string();
    let request = v1::WatchMachinesRequest { filter: filter(), ..Default::default() };
    refused(api.machines.watch_machines(request).await.map(drop), Code::InvalidArgument, &[]);
    let request = v1::WatchRacksRequest { filter: filter(), ..Default::default() };
    refused(api.racks.watch_racks(request).await.map(drop), Code::InvalidArgument, &["filter"]);
    let request = v1::WatchNodesRequest { filter: filter(), ..Default::default() };
    refused(api.nodes.watch_nodes(request).await.map(drop), Code::InvalidArgument, &["filter"]);
    // A cursor after an event is valid for every kind.
    let last = until_cursor(&mut runs).await;
    drop(watch_machines(&mut api, "", &last).await);
}

/// Reads a snapshot to its end and returns the cursor of its last event.
async fn until_cursor(stream: &mut Streaming<v1::RunEvent>) -> String {
    drain(stream).await.pop().unwrap().cursor
}

/// A log chunk without its time.
#[derive(Debug, Clone, PartialEq)]
struct LogPiece {
    stream: String,
    step: String,
    offset: i64,
    data: Vec<u8>,
}

async fn read_log(mut stream: Streaming<v1::LogChunk>, run: &str) -> Vec<LogPiece> {
    let mut pieces = Vec::new();
    while let Some(chunk) = timeout(TEST_TIMEOUT, stream.message()).await.unwrap().unwrap() {
        assert!(chunk.ts.is_some());
        assert_eq!(chunk.run_id, run);
        let v1::LogChunk { stream, step, offset, data, .. } = chunk;
        pieces.push(LogPiece { stream, step, offset, data });
    }
    pieces
}

async fn run_log(api: &mut Clients, run: &str, offset: i64, no_follow: bool) -> Vec<LogPiece> {
    let request = v1::StreamRunLogsRequest { run_id: run.into(), offset, no_follow };
    let stream = api.runs.stream_run_logs(request).await.map(Response::into_inner).unwrap();
    read_log(stream, run).await
}

fn text(pieces: &[LogPiece]) -> String {
    String::from_utf8(pieces.iter().flat_map(|piece| piece.data.clone()).collect()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_is_the_same_from_any_byte_live_and_later() {
    on_both("fast", logs).await;
}

async fn logs(env: &TestServer, mut api: Clients) {
    let steps = ["one", "two", "three"].map(|name| step(name, ssh(&format!("echo {name}"))));
    api.try_plan(plan("talk", steps.to_vec())).await.unwrap();
    api.in_maintenance("m-1").await;
    api.fault(slow("m-1", "ssh", 1_000)).await;
    let run = api.start_plan("m-1", "talk", "r").await.run_id;
    let live = {
        let (mut api, run) = (env.server.clients().await, run.clone());
        tokio::spawn(async move { run_log(&mut api, &run, 0, false).await })
    };
    // During the run, part of the log can be read.
    api.at_step(&run, "two").await;
    let part = text(&run_log(&mut api, &run, 0, true).await);
    assert!(part.contains("echo one"), "{part:?}");
    let joined = run_log(&mut api, &run, part.len() as i64 - 3, false).await;
    let ended = api.run(&run).await;
    assert!(ended.finished_at.is_some(), "a log that is followed ends when the run has ended");

    let pieces = run_log(&mut api, &run, 0, false).await;
    let complete = text(&pieces);
    assert_eq!(text(&live.await.unwrap()), complete);
    assert_eq!(text(&joined), complete[part.len() - 3..]);
    assert!(complete.starts_with(&part) && complete.len() > part.len());
    for name in ["one", "two", "three"] {
        assert_eq!(complete.matches(&format!("$ echo {name}\n")).count(), 1, "{complete}");
    }
    // Each chunk has its offset, step and stream.
    let mut at = 0;
    for piece in &pieces {
        assert_eq!(piece.offset, at);
        at += piece.data.len() as i64;
        let error = text(std::slice::from_ref(piece)).contains("is not really run");
        assert_eq!(piece.stream, if error { "stderr" } else { "stdout" });
    }
    let spoke: Vec<&str> = pieces.iter().map(|piece| piece.step.as_str()).collect();
    assert_eq!(pieces.iter().filter(|piece| piece.stream == "stderr").count(), 3);
    assert_eq!((spoke[0], spoke[spoke.len() - 1]), ("one", "three"));
    // A log can be read from any byte offset.
    for offset in 0..=complete.len() {
        let request = v1::StreamOperationLogsRequest {
            operation_id: run.clone(),
            offset: offset as i64,
            no_follow: offset % 2 == 0,
        };
        let stream = api.operations.stream_operation_logs(request).await.unwrap().into_inner();
        let rest = read_log(stream, &run).await;
        assert_eq!(text(&rest), complete[offset..], "from byte {offset}");
        assert!(rest.first().is_none_or(|piece| piece.offset == offset as i64));
    }
}
