//! The agent API over plain HTTP, against the real server. A token works once and only for its own
//! machine; tasks are claimed, renewed and reported; and the server is killed while an agent
//! executes a task.

use crate::fleet::{DatabaseKind, Server, TEST_TIMEOUT, TEST_TOKEN, new_database, postgres};
use crate::nodes::{Api, decommission, drain, state, with_agents};
use proto::v1;
use proto::words::WireEnum;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

const SERIAL: &str = "SN-1";
const MAC: &str = "52:54:00:00:00:01";

/// An agent that the test plays.
#[derive(Clone)]
struct TestAgent {
    port: u16,
    session: String,
}

impl TestAgent {
    fn new(port: u16) -> Self {
        Self { port, session: format!("{:032x}", rand::random::<u128>()) }
    }

    /// Sends a raw request. Returns the status and the body.
    fn raw(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        self.raw_with(method, path, "Content-Type: application/json", body)
    }

    fn raw_with(&self, method: &str, path: &str, headers: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\
             {headers}\r\nAuthorization: Bearer {}\r\nContent-Length: {}\r\n\r\n{body}",
            self.session,
            body.len()
        );
        // The server answers an oversized request before it has read all of it, so errors are
        // ignored.
        let _ = stream.write_all(request.as_bytes());
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        (status.unwrap_or_default(), body.to_string())
    }

    fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let path = format!("/agent/v1/{path}");
        let (status, body) = self.raw("POST", &path, &body.to_string());
        (status, serde_json::from_str(&body).unwrap_or(Value::String(body)))
    }

    #[track_caller]
    fn post_ok(&self, path: &str, body: &Value) -> Value {
        let (status, answer) = self.post(path, body);
        assert_eq!(status, 200, "{path} {body}: {answer}");
        answer
    }

    /// Expects a refusal with this status, and returns its code.
    #[track_caller]
    fn expect_refusal(&self, path: &str, body: &Value, status: u16) -> String {
        let (observed, answer) = self.post(path, body);
        assert_eq!(observed, status, "{path} {body}: {answer}");
        assert!(answer["said"].as_str().is_some_and(|message| !message.is_empty()), "{answer}");
        answer["code"].as_str().unwrap().to_string()
    }

    fn application(&self, token: &str, serial: &str, mac: &str) -> Value {
        json!({
            "token": token, "session": self.session, "hostname": "gpu-1", "serial": serial,
            "macs": [mac], "boot_id": "b-1", "version": "1.2.3", "of-a-newer-agent": {}
        })
    }

    #[track_caller]
    fn enroll(&self, token: &str) -> String {
        let answer = self.post_ok("enroll", &self.application(token, SERIAL, MAC));
        assert_eq!(answer["heartbeat_seconds"], 7, "{answer}");
        answer["node"].as_str().unwrap().to_string()
    }

    #[track_caller]
    fn send_heartbeat(&self) -> Value {
        let well = json!({ "boot_id": "b-1", "version": "1.2.3", "healthy": true, "problems": [], "tasks": [] });
        self.post_ok("heartbeat", &well)
    }

    fn claim_task(&self, wait_seconds: u64) -> Value {
        self.post_ok("tasks/take", &json!({ "wait_seconds": wait_seconds }))["task"].clone()
    }

    /// Waits for a task of this kind, and returns its ID.
    #[track_caller]
    fn wait_for_task(&self, kind: &str) -> String {
        let started = Instant::now();
        loop {
            let task = self.claim_task(5);
            if !task.is_null() {
                assert_eq!(task["kind"], kind, "{task}");
                assert_eq!(task["lease_seconds"], 60, "{task}");
                assert!(task["deadline_seconds"].as_u64().is_some_and(|left| left > 0), "{task}");
                assert!(task["params"]["node"].is_string(), "{task}");
                return task["id"].as_str().unwrap().to_string();
            }
            assert!(started.elapsed() < TEST_TIMEOUT, "nobody asks for {kind}");
        }
    }

    #[track_caller]
    fn report(&self, id: &str, ok: bool, message: &str) {
        self.post_ok(
            "tasks/report",
            &json!({ "id": id, "ok": ok, "said": message, "log": "the end\n" }),
        );
    }
}

struct AgentTestServer {
    server: Server,
    api: Api,
    port: u16,
    _dir: tempfile::TempDir,
}

impl AgentTestServer {
    /// Starts a server and registers a machine without a cluster, for a node without MAAS.
    async fn open(home: DatabaseKind) -> Self {
        let known = v1::MachineSpec {
            serial: SERIAL.into(),
            mac_addresses: vec![MAC.into()],
            ..Default::default()
        };
        Self::with(home, known).await
    }

    async fn with(home: DatabaseKind, known: v1::MachineSpec) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (setup, port) = with_agents(dir.path(), home);
        let server = Server::start(setup);
        let mut api = Api::of(&server).await;
        let spec = v1::MachineSpec { provider: "sim".into(), ..known };
        let machine =
            v1::Machine { machine_id: "m-1".into(), spec: Some(spec), ..Default::default() };
        let request = v1::RegisterMachineRequest { machine: Some(machine), ..Default::default() };
        api.all.machines.register_machine(request).await.unwrap();
        Self { server, api, port, _dir: dir }
    }

    async fn bootstrap(&mut self, expires_in_seconds: Option<i64>) -> v1::NodeBundle {
        let request = v1::BootstrapNodeRequest {
            machine_id: "m-1".into(),
            expires_in_seconds,
            ..Default::default()
        };
        self.api.nodes.bootstrap_node(request).await.unwrap().into_inner()
    }

    /// Enrolls a healthy agent and waits until its node is active.
    async fn active(&mut self) -> (TestAgent, String) {
        let bundle = self.bootstrap(None).await;
        let agent = TestAgent::new(self.port);
        let node = agent.enroll(&bundle.token);
        self.wait_until_active(&agent, &node).await;
        (agent, node)
    }

    /// Sends heartbeats until the node is active: only a heartbeat after the start of the
    /// onboarding counts.
    async fn wait_until_active(&mut self, agent: &TestAgent, node: &str) {
        let started = Instant::now();
        while state(&self.api.node(node).await.node) != "active" {
            assert!(started.elapsed() < TEST_TIMEOUT, "{node} never becomes active");
            agent.send_heartbeat();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Kills the server with SIGKILL and starts it again.
    async fn restart_after_kill(self) -> Self {
        let Self { server, port, _dir, .. } = self;
        let server = Server::start(server.kill());
        let api = Api::of(&server).await;
        Self { server, api, port, _dir }
    }

    async fn log_of(&mut self, run: &str) -> String {
        let request =
            v1::StreamRunLogsRequest { run_id: run.into(), no_follow: true, ..Default::default() };
        let mut chunks = self.api.all.runs.stream_run_logs(request).await.unwrap().into_inner();
        let mut log = Vec::new();
        while let Some(chunk) = chunks.message().await.unwrap() {
            log.extend(chunk.data);
        }
        String::from_utf8_lossy(&log).into_owned()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_works_once_and_for_its_own_machine() {
    let mut env = AgentTestServer::open(DatabaseKind::Sqlite).await;
    let bundle = env.bootstrap(None).await;
    let port = env.port;
    assert_eq!(state(&bundle.node), "bootstrap_issued");
    let config =
        format!("controllers = [\"http://127.0.0.1:{port}\"]\ntoken = \"{}\"\n", bundle.token);
    assert!(bundle.agent_config.starts_with(&config), "{}", bundle.agent_config);
    assert!(bundle.agent_config.contains("# scratch_dirs = ["), "{}", bundle.agent_config);
    let (agent, claimant) = (TestAgent::new(port), TestAgent::new(port));
    let unknown = claimant.application("made-up", SERIAL, MAC);
    assert_eq!(claimant.expect_refusal("enroll", &unknown, 403), "token-unknown");
    for (serial, mac) in [("SN-2", MAC), (SERIAL, "52:54:00:00:00:02")] {
        let elsewhere = claimant.application(&bundle.token, serial, mac);
        assert_eq!(claimant.expect_refusal("enroll", &elsewhere, 403), "identity-differs");
    }
    let silent = json!({ "token": bundle.token, "session": claimant.session, "hostname": "gpu-1" });
    assert_eq!(claimant.expect_refusal("enroll", &silent, 403), "identity-missing");
    let node = agent.enroll(&bundle.token);
    assert_eq!(node, bundle.node.as_ref().unwrap().node_id);
    // The response was lost: the same session gets the same response again.
    assert_eq!(agent.enroll(&bundle.token), node);
    let used = claimant.application(&bundle.token, SERIAL, MAC);
    assert_eq!(claimant.expect_refusal("enroll", &used, 403), "token-used");
    let name = json!({ "healthy": true });
    assert_eq!(claimant.expect_refusal("heartbeat", &name, 401), "session-unknown");

    // A node with an unhealthy agent is not taken into service.
    let ill = json!({ "healthy": false, "problems": ["a fan stands still", "hot"] });
    agent.post_ok("heartbeat", &ill);
    let detail = env.api.node(&node).await;
    assert_eq!(state(&detail.node), "enrolling");
    let known = detail.agent.unwrap();
    assert_eq!(known.problems, "a fan stands still; hot");
    assert_eq!((known.hostname.as_str(), known.version.as_str()), ("gpu-1", "1.2.3"));
    agent.post_ok("heartbeat", &json!({ "healthy": false }));
    assert_eq!(env.api.node(&node).await.agent.unwrap().problems, "it does not say why");
    env.wait_until_active(&agent, &node).await;
    assert_eq!(agent.send_heartbeat(), json!({ "heartbeat_seconds": 7, "waiting": false }));
    let detail = env.api.node(&node).await;
    assert!(detail.agent.unwrap().heard_at.is_some());
    assert_eq!(detail.workflow.unwrap().steps.len(), 1);
}

/// An attacker in the nodes' network guesses tokens and sessions, as fast as it can.
#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_guesses_are_limited_and_stay_one_log_line() {
    const GUESSES: usize = 1_200;
    let mut env = AgentTestServer::open(DatabaseKind::Sqlite).await;
    let (agent, _) = env.active().await;
    let mut statuses = std::collections::BTreeMap::new();
    for guess in 0..GUESSES {
        let attacker = TestAgent::new(env.port);
        let (status, answer) = match guess % 2 {
            0 => attacker.post("enroll", &attacker.application("made-up", SERIAL, MAC)),
            _ => attacker.post("heartbeat", &json!({ "healthy": true })),
        };
        assert!(answer["said"].is_string(), "{answer}");
        *statuses.entry(status).or_insert(0) += 1;
    }
    // The burst of one address, and what is refilled meanwhile.
    let checked = statuses[&401] + statuses[&403];
    let refused = statuses[&429];
    assert!(checked >= 500 && refused > 0 && checked + refused == GUESSES, "{statuses:?}");
    // The agent behind the same address is not locked out.
    agent.send_heartbeat();
    let lines: Vec<String> =
        env.server.log().lines().filter(|line| line.contains("denied")).map(String::from).collect();
    assert!(matches!(lines.len(), 1 | 2), "{lines:?}");
    assert!(lines[0].contains("requests denied") && lines[0].contains("agents"), "{lines:?}");
    let operator = TestAgent { port: env.server.setup.port, session: TEST_TOKEN.into() };
    let (_, page) = operator.raw("GET", "/metrics", "");
    let count = |why: &str| {
        let series = format!("farrier_denied_requests_total{{listener=\"agents\",why=\"{why}\"}} ");
        page.lines().find_map(|line| line.strip_prefix(&series)?.parse::<usize>().ok())
    };
    assert_eq!((count("identity"), count("too-many")), (Some(checked), Some(refused)), "{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_runs_out_and_another_takes_its_place() {
    let mut env = AgentTestServer::open(DatabaseKind::Sqlite).await;
    let bundle = env.bootstrap(Some(1)).await;
    let ends = Duration::from_secs(bundle.expires_at.unwrap().seconds.unsigned_abs() + 1);
    while SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap() < ends {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let agent = TestAgent::new(env.port);
    let late = agent.application(&bundle.token, SERIAL, MAC);
    assert_eq!(agent.expect_refusal("enroll", &late, 403), "token-expired");
    let node = bundle.node.unwrap().node_id;
    let request = v1::ReissueBootstrapRequest { node_id: node.clone(), ..Default::default() };
    let again = env.api.nodes.reissue_bootstrap(request).await.unwrap().into_inner();
    assert_ne!(again.token, bundle.token);
    assert_eq!(agent.expect_refusal("enroll", &late, 403), "token-unknown");
    assert_eq!(agent.enroll(&again.token), node);
    for scenario in [0, -1, 40 * 24 * 3_600] {
        let request = v1::ReissueBootstrapRequest {
            node_id: node.clone(),
            expires_in_seconds: Some(scenario),
            ..Default::default()
        };
        let answer = env.api.nodes.reissue_bootstrap(request).await;
        let status = crate::api::refused(answer, tonic::Code::InvalidArgument, &[]);
        assert_eq!(crate::api::field_of(&status), "expires_in_seconds", "{scenario}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_token_ends_the_session_unless_it_is_kept() {
    let mut env = AgentTestServer::open(DatabaseKind::Sqlite).await;
    let (agent, node) = env.active().await;
    assert!(env.api.node(&node).await.agent.unwrap().enrolled);
    let requested = |keep_session| v1::ReissueBootstrapRequest {
        node_id: node.clone(),
        keep_session,
        ..Default::default()
    };
    env.api.nodes.reissue_bootstrap(requested(true)).await.unwrap();
    agent.send_heartbeat();
    let again = env.api.nodes.reissue_bootstrap(requested(false)).await.unwrap().into_inner();
    assert_eq!(
        agent.expect_refusal("heartbeat", &json!({ "healthy": true }), 401),
        "session-unknown"
    );
    let known = env.api.node(&node).await.agent.unwrap();
    assert!(!known.enrolled && known.hostname == "gpu-1", "{known:?}");
    let after = TestAgent::new(env.port);
    assert_eq!(after.enroll(&again.token), node);
    after.send_heartbeat();
    assert!(env.api.node(&node).await.agent.unwrap().enrolled);
}

/// A node with its agent: drained, cleaned and removed.
async fn tasks_are_done(home: DatabaseKind) {
    let mut env = AgentTestServer::open(home).await;
    let (agent, node) = env.active().await;
    assert_eq!(agent.claim_task(0), Value::Null);
    // A waiting agent is notified as soon as there is a task.
    let waiting = {
        let agent = agent.clone();
        tokio::task::spawn_blocking(move || agent.wait_for_task("node.drain"))
    };
    let run = env.api.nodes.drain_node(drain(&node, "drain")).await.unwrap().into_inner();
    let run = run.run.unwrap().run_id;
    let task = waiting.await.unwrap();
    assert_eq!(state(&env.api.node(&node).await.node), "draining");
    // A node has one agent, so a second request gets the task that the agent already holds.
    assert_eq!(agent.wait_for_task("node.drain"), task);
    assert_eq!(agent.send_heartbeat()["waiting"], true);
    let log = |text: &str| json!({ "id": task, "log": text });
    assert_eq!(agent.post_ok("tasks/renew", &log("evicting job 7\n"))["then"], "go-on");
    // A resume does no harm while the agent holds the task.
    let request = v1::ResumeNodeRequest { node_id: node.clone(), ..Default::default() };
    let resumed = env.api.nodes.resume_node(request).await.unwrap().into_inner();
    assert_eq!((resumed.task().word(), resumed.reopened), ("live", false));
    let stranger = TestAgent::new(env.port);
    assert_eq!(stranger.expect_refusal("tasks/renew", &log(""), 401), "session-unknown");
    let other = json!({ "id": "op-1/drain_node/1", "ok": true });
    assert_eq!(agent.expect_refusal("tasks/report", &other, 409), "task-over");
    agent.report(&task, true, "nothing is left on it");
    // The response was lost: the same report is accepted again.
    agent.report(&task, true, "nothing is left on it");
    let twisted = json!({ "id": task, "ok": false, "said": "no", "log": "" });
    assert_eq!(agent.expect_refusal("tasks/report", &twisted, 409), "task-over");
    env.api.all.finished(&run).await;
    env.api.until(&node, "retired").await;
    assert_eq!(agent.post_ok("tasks/renew", &log(""))["then"], "stop");
    let reported = env.log_of(&run).await;
    assert!(reported.contains("evicting job 7") && reported.contains("the end"), "{reported}");

    // The whole decommission: after the agent has uninstalled itself, its session is unknown.
    let gone = decommission(&node, "full_decommission", "gone");
    let run = env.api.nodes.decommission_node(gone).await.unwrap().into_inner().run.unwrap();
    // The node is already drained.
    for kind in ["node.cleanup_storage", "node.scrub", "node.validate", "node.uninstall"] {
        let task = agent.wait_for_task(kind);
        agent.report(&task, true, "done");
    }
    env.api.all.finished(&run.run_id).await;
    env.api.until(&node, "deleted").await;
    assert_eq!(
        agent.expect_refusal("heartbeat", &json!({ "healthy": true }), 401),
        "session-unknown"
    );
    let session = TEST_TOKEN.to_string();
    let operator = TestAgent { port: env.server.setup.port, session };
    let (_, page) = operator.raw("GET", "/metrics", "");
    for series in [
        "farrier_node_tasks_total{kind=\"node.drain\",end=\"done\"} 1",
        "farrier_node_tasks_total{kind=\"node.uninstall\",end=\"done\"} 1",
        "farrier_node_tasks_total{kind=\"node.scrub\",end=\"failed\"} 0",
        "farrier_devices{kind=\"node\",state=\"deleted\"} 1",
    ] {
        assert!(page.lines().any(|line| line == series), "{series}\n{page}");
    }
    let beats = page.lines().find_map(|line| line.strip_prefix("farrier_heartbeats_total "));
    assert!(beats.is_some_and(|count| count.parse::<u64>().unwrap() >= 2), "{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_takes_renews_and_reports() {
    tasks_are_done(DatabaseKind::Sqlite).await;
    if let Some(cluster) = postgres() {
        tasks_are_done(DatabaseKind::Postgres(new_database(&cluster).await)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unclean_node_waits_for_the_operator() {
    let mut env = AgentTestServer::open(DatabaseKind::Sqlite).await;
    let (agent, node) = env.active().await;
    let requested = decommission(&node, "storage_cleanup", "clean");
    let run = env.api.nodes.decommission_node(requested).await.unwrap().into_inner().run.unwrap();
    for kind in ["node.release", "node.drain", "node.cleanup_storage"] {
        let task = agent.wait_for_task(kind);
        agent.report(&task, true, "done");
    }
    loop {
        let detail = env.api.node(&node).await;
        if detail.workflow.as_ref().is_some_and(|run| run.finished_at.is_some()) {
            assert_eq!(detail.failure_code, "node-not-clean", "{detail:#?}");
            assert!(detail.failure.contains("/scratch has files"), "{detail:#?}");
            assert!(detail.recommended.iter().any(|one| one.contains(&run.run_id)), "{detail:#?}");
            break;
        }
        let task = agent.claim_task(1);
        if let Some(id) = task["id"].as_str() {
            assert_eq!(task["kind"], "node.validate", "{task}");
            agent.report(id, false, "/scratch has files");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_survives_kill_9_with_its_task_out() {
    let mut env = AgentTestServer::open(DatabaseKind::Sqlite).await;
    let (agent, node) = env.active().await;
    let run = env.api.nodes.drain_node(drain(&node, "drain")).await.unwrap().into_inner();
    let run = run.run.unwrap().run_id;
    let task = agent.wait_for_task("node.drain");
    let log = json!({ "id": task, "log": "half way\n" });
    assert_eq!(agent.post_ok("tasks/renew", &log)["then"], "go-on");
    let mut env = env.restart_after_kill().await;
    // The agent continues the same task: no second task was created, and the node was not released.
    assert_eq!(state(&env.api.node(&node).await.node), "draining");
    assert_eq!(
        agent.post_ok("tasks/renew", &json!({ "id": task, "log": "more\n" }))["then"],
        "go-on"
    );
    assert_eq!(agent.wait_for_task("node.drain"), task);
    agent.report(&task, true, "empty");
    let ended = env.api.all.finished(&run).await;
    assert_eq!(ended.phase(), v1::run::Phase::Succeeded, "{ended:#?}");
    env.api.until(&node, "retired").await;
    let reported = env.log_of(&run).await;
    for piece in ["half way", "more", "the end"] {
        assert_eq!(reported.matches(piece).count(), 1, "{piece}: {reported}");
    }
    assert_eq!(agent.claim_task(0), Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_requests_name_the_field() {
    let env = AgentTestServer::open(DatabaseKind::Sqlite).await;
    let agent = TestAgent::new(env.port);
    for (path, body, field) in [
        ("enroll", json!({ "session": agent.session }), "token"),
        ("enroll", json!({ "token": "t", "session": "short" }), "session"),
        ("heartbeat", json!({ "healthy": "yes" }), "healthy"),
        ("tasks/take", json!({ "wait_seconds": "long" }), "wait_seconds"),
        ("tasks/renew", json!({ "log": "" }), "id"),
        ("tasks/report", json!({ "id": "x", "ok": 1 }), "ok"),
        ("tasks/report", json!([]), "body"),
    ] {
        let (status, answer) = agent.post(path, &body);
        assert_eq!((status, &answer["code"]), (400, &json!("not-understood")), "{path}: {answer}");
        assert!(answer["said"].as_str().unwrap().contains(field), "{path}: {answer}");
    }
    assert_eq!(agent.raw("POST", "/agent/v1/heartbeat", "{").0, 400);
    let long = json!({ "id": "x", "log": "x".repeat(1 << 20) }).to_string();
    assert_ne!(agent.raw("POST", "/agent/v1/tasks/renew", &long).0, 200);
    let (status, message) = agent.raw("GET", "/agent/v1/binary", "");
    assert_eq!(status, 404);
    assert!(message.contains("nodes.agent_binary"), "{message}");
    assert_eq!(agent.raw("GET", "/agent/v1/enroll", "").0, 405);
    // A page in a browser is refused here too.
    let foreign = "Content-Type: application/json\r\nOrigin: https://evil.example";
    for (headers, status) in [("Content-Type: text/plain", 415), (foreign, 403)] {
        let answer = agent.raw_with("POST", "/agent/v1/heartbeat", headers, "{}");
        assert_eq!(answer.0, status, "{headers}: {answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_fetch_the_agent_from_here() {
    let dir = tempfile::tempdir().unwrap();
    let binary = dir.path().join("farrier-agent");
    std::fs::write(&binary, "#!/bin/true\n").unwrap();
    let (mut setup, port) = with_agents(dir.path(), DatabaseKind::Sqlite);
    setup.config.push_str(&format!("agent_binary = {binary:?}\nurl = \"http://10.0.0.1:80\"\n"));
    let server = Server::start(setup);
    let agent = TestAgent::new(port);
    assert_eq!(agent.raw("GET", "/agent/v1/binary", ""), (200, "#!/bin/true\n".to_string()));
    let mut api = Api::of(&server).await;
    api.all.register("m-1").await;
    let request = v1::BootstrapNodeRequest { machine_id: "m-1".into(), ..Default::default() };
    let bundle = api.nodes.bootstrap_node(request).await.unwrap().into_inner();
    assert!(bundle.agent_config.starts_with("controllers = [\"http://10.0.0.1:80\"]\n"));
}

/// A directory that stands for a node, and the real agent in it.
struct TestNode {
    dir: tempfile::TempDir,
    agent: Option<Child>,
}

impl TestNode {
    /// Installs the bundle as issued, followed by the directories of this test.
    fn install(agent_config: &str) -> Self {
        let node = Self { dir: tempfile::tempdir().unwrap(), agent: None };
        for folder in ["hooks", "scratch"] {
            std::fs::create_dir(node.path(folder)).unwrap();
        }
        let places = "state_dir = \"DIR/state\"\nhooks_dir = \"DIR/hooks\"\nscratch_dirs = [\"DIR/scratch\"]\n\
                      nvidia_smi = \"DIR/nvidia-smi\"\nsystemctl = \"DIR/systemctl\"\n";
        // The file contains a token.
        node.write("agent.toml", 0o600, &format!("{agent_config}{places}"));
        node.write("nvidia-smi", 0o755, "#!/bin/sh\nexit 0\n");
        node.write("systemctl", 0o755, "#!/bin/sh\necho \"$*\" >> DIR/disabled\n");
        node
    }

    /// The path without symbolic links, as scratch directories require.
    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join(name)
    }

    /// Writes the file from another process. An executable that this process, or a child forked
    /// meanwhile, has open for writing cannot be started.
    fn write(&self, name: &str, mode: u32, text: &str) {
        let dir = self.dir.path().canonicalize().unwrap();
        let text = text.replace("DIR", &dir.display().to_string());
        let script =
            "printf %s \"$1\" > \"$0.new\" && chmod \"$2\" \"$0.new\" && mv \"$0.new\" \"$0\"";
        let mut command = Command::new("sh");
        command.args(["-c", script]).arg(self.path(name)).arg(text).arg(format!("{mode:o}"));
        assert!(command.status().unwrap().success());
    }

    /// Installs a hook that records its start and waits for its go file. It also ends by itself, in
    /// case the test is gone.
    fn hook(&self, name: &str) {
        let text = format!(
            "#!/bin/sh\necho run >> DIR/{name}.runs\ntries=0\n\
             until [ -e DIR/{name}.go ] || [ $tries -gt 2000 ]; do sleep 0.05; tries=$((tries + 1)); done\n"
        );
        self.write(&format!("hooks/{name}"), 0o755, &text);
    }

    fn release_hook(&self, hook: &str) {
        std::fs::write(self.path(&format!("{hook}.go")), "").unwrap();
    }

    fn start(&mut self) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_farrier"));
        command.args(["agent", "run", "--config"]).arg(self.path("agent.toml"));
        self.agent = Some(command.stdout(Stdio::null()).spawn().unwrap());
    }

    /// SIGKILL, without a clean shutdown.
    fn kill(&mut self) {
        if let Some(mut agent) = self.agent.take() {
            let _ = agent.kill();
            let _ = agent.wait();
        }
    }

    /// Waits until a hook has been started this many times.
    async fn wait_for_hook_start(&self, hook: &str, times: usize) {
        let started = Instant::now();
        let runs = || std::fs::read_to_string(self.path(&format!("{hook}.runs")));
        while runs().unwrap_or_default().lines().count() < times {
            assert!(started.elapsed() < TEST_TIMEOUT, "the hook {hook} never begins {times} times");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until the agent has exited by itself.
    async fn wait_for_exit(&mut self) {
        let started = Instant::now();
        loop {
            if let Some(status) = self.agent.as_mut().unwrap().try_wait().unwrap() {
                return assert!(status.success(), "{status}");
            }
            assert!(started.elapsed() < TEST_TIMEOUT, "the agent never leaves its node");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Drop for TestNode {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Real bundle, real agent and real server; agent and server are killed during a task.
#[tokio::test(flavor = "multi_thread")]
async fn a_real_agent_lives_with_a_real_server_and_both_are_killed() {
    // The machine's spec is empty, because the host name and network cards of the test host are
    // unknown.
    let mut env = AgentTestServer::with(DatabaseKind::Sqlite, v1::MachineSpec::default()).await;
    let bundle = env.bootstrap(None).await;
    let id = bundle.node.unwrap().node_id;
    let mut node = TestNode::install(&bundle.agent_config);
    node.hook("drain");
    node.hook("cleanup_storage");
    node.start();
    env.api.until(&id, "active").await;

    let run = env.api.nodes.drain_node(drain(&id, "drain")).await.unwrap().into_inner();
    let run = run.run.unwrap().run_id;
    node.wait_for_hook_start("drain", 1).await;
    let mut env = env.restart_after_kill().await;
    node.kill();
    node.start();
    // The same task is claimed again and its hook is started a second time.
    node.wait_for_hook_start("drain", 2).await;
    node.release_hook("drain");
    let ended = env.api.all.finished(&run).await;
    assert_eq!(ended.phase(), v1::run::Phase::Succeeded, "{ended:#?}");
    env.api.until(&id, "retired").await;

    std::fs::write(node.path("scratch/left"), "x").unwrap();
    let gone = decommission(&id, "full_decommission", "gone");
    let run = env.api.nodes.decommission_node(gone).await.unwrap().into_inner().run.unwrap();
    node.wait_for_hook_start("cleanup_storage", 1).await;
    // Only the server is killed: the agent continues, and no hook is started twice.
    let mut env = env.restart_after_kill().await;
    node.release_hook("cleanup_storage");
    node.wait_for_exit().await;
    let ended = env.api.all.finished(&run.run_id).await;
    assert_eq!(ended.phase(), v1::run::Phase::Succeeded, "{ended:#?}");
    env.api.until(&id, "deleted").await;
    let runs = std::fs::read_to_string(node.path("cleanup_storage.runs")).unwrap();
    assert_eq!(runs, "run\n");
    assert!(!node.path("scratch/left").exists() && !node.path("state").exists());
    let disabled = std::fs::read_to_string(node.path("disabled")).unwrap();
    assert_eq!(disabled, "disable farrier-agent.service\n");
}
