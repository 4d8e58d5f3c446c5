//! A test server for one node. It implements the agent API, records every violation, and kills the
//! agent where a test says.

use crate::wire::{Request, head, read_request};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::io::Write;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

pub const TOKEN: &str = "token-1";
pub const NODE: &str = "node-1";
/// A test that waits longer hangs.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(120);
/// A request for a task is kept open for this long.
const TAKE_WAIT: Duration = Duration::from_millis(300);

/// A fault of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The request takes effect, and its answer is lost.
    Lose,
    /// The request has no effect.
    Status(u16),
    /// The agent is killed before the request takes effect, after that, or after the answer.
    KillBefore,
    KillCounted,
    KillAnswered,
}

pub struct State {
    pub tokens: BTreeMap<String, Option<String>>,
    pub session: Option<String>,
    pub tasks: VecDeque<Value>,
    pub open_task: Option<Value>,
    /// The first report of each task, and how often it arrived.
    pub reports: BTreeMap<String, (Value, usize)>,
    pub logs: BTreeMap<String, String>,
    pub heard: Vec<(String, Value)>,
    pub faults: BTreeMap<&'static str, VecDeque<Fault>>,
    pub then: &'static str,
    /// The code that every request except an enrollment is answered with.
    pub unknown: Option<&'static str>,
    /// The agent's process id.
    pub pid: Option<Pid>,
    /// A file that is created when a renewal is accepted.
    pub gate: Option<PathBuf>,
    up: bool,
    /// Violations of the protocol by the agent.
    pub wrong: Vec<String>,
}

pub struct Server {
    pub address: SocketAddr,
    shared: Arc<(Mutex<State>, Condvar)>,
}

impl Server {
    pub fn start() -> Self {
        let state = State {
            tokens: [(TOKEN.to_string(), None)].into(),
            session: None,
            tasks: VecDeque::new(),
            open_task: None,
            reports: BTreeMap::new(),
            logs: BTreeMap::new(),
            heard: Vec::new(),
            faults: BTreeMap::new(),
            then: "go-on",
            unknown: None,
            pid: None,
            gate: None,
            up: true,
            wrong: Vec::new(),
        };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = Self { address, shared: Arc::new((Mutex::new(state), Condvar::new())) };
        server.listen(listener);
        server
    }

    fn listen(&self, listener: TcpListener) {
        let shared = self.shared.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                if !lock(&shared).up {
                    return;
                }
                let shared = shared.clone();
                thread::spawn(move || {
                    let stream = stream.unwrap();
                    let _ = answer(&stream, &shared);
                    let _ = stream.shutdown(Shutdown::Both);
                });
            }
        });
    }

    /// Acts like a killed process: the port is closed.
    pub fn kill(&self) {
        self.state().up = false;
        self.shared.1.notify_all();
        let _ = TcpStream::connect(self.address);
    }

    pub fn restart(&self) {
        let since = Instant::now();
        let listener = loop {
            match TcpListener::bind(self.address) {
                Ok(listener) => break listener,
                Err(error) => {
                    assert!(since.elapsed() < TEST_TIMEOUT, "the port is not free: {error}")
                }
            }
            thread::sleep(Duration::from_millis(10));
        };
        self.state().up = true;
        self.listen(listener);
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.shared)
    }

    /// Waits for a condition.
    #[track_caller]
    pub fn wait_until(&self, what: &str, so: impl Fn(&State) -> bool) {
        let (done, waited) = self
            .shared
            .1
            .wait_timeout_while(self.state(), TEST_TIMEOUT, |state| !so(state))
            .unwrap();
        assert!(!waited.timed_out(), "never: {what}\n{:?}\n{:?}", done.heard, done.wrong);
    }

    pub fn give(&self, id: &str, kind: &str, more: Value) {
        let mut task = json!({"id": id, "kind": kind, "lease_seconds": 3, "deadline_seconds": 600, "params": {}});
        for (key, value) in more.as_object().unwrap() {
            task[key] = value.clone();
        }
        self.state().tasks.push_back(task);
        self.shared.1.notify_all();
    }

    pub fn fault(&self, path: &'static str, fault: Fault) {
        self.state().faults.entry(path).or_default().push_back(fault);
    }

    /// Waits for the report of a task, and until the agent has forgotten the task: it then asks for
    /// the next.
    #[track_caller]
    pub fn report(&self, id: &str) -> Value {
        self.wait_until(&format!("a report of {id}"), |state| {
            let reported =
                state.heard.iter().rposition(|(path, body)| path == "report" && body["id"] == id);
            let requested = state.heard.iter().rposition(|(path, _)| path == "take");
            state.reports.contains_key(id) && requested > reported
        });
        self.state().reports[id].0.clone()
    }

    pub fn count(&self, path: &str) -> usize {
        self.state().heard.iter().filter(|(heartbeat, _)| heartbeat == path).count()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !thread::panicking() {
            assert_eq!(self.state().wrong, Vec::<String>::new());
        }
        self.kill();
    }
}

type Shared = (Mutex<State>, Condvar);

fn lock(shared: &Shared) -> MutexGuard<'_, State> {
    shared.0.lock().unwrap_or_else(|error| error.into_inner())
}

fn answer(stream: &TcpStream, shared: &Shared) -> std::io::Result<()> {
    let Some(request) = read_request(stream) else { return Ok(()) };
    let mut state = lock(shared);
    let Some(name) = name_of(&request, &mut state) else {
        return send_json(stream, 404, &json!({}));
    };
    if name == "take" {
        let nothing = |state: &mut State| {
            state.up
                && state.open_task.is_none()
                && state.tasks.is_empty()
                && state.unknown.is_none()
        };
        state = shared.1.wait_timeout_while(state, TAKE_WAIT, nothing).unwrap().0;
    }
    if !state.up {
        return Ok(());
    }
    let fault = state.faults.get_mut(name).and_then(VecDeque::pop_front);
    match fault {
        Some(Fault::KillBefore) => return kill_agent(&mut state, shared),
        Some(Fault::Status(status)) => return send_json(stream, status, &json!({})),
        Some(Fault::Lose | Fault::KillCounted | Fault::KillAnswered) | None => {}
    }
    let (status, body) = state.count(name, &request);
    state.heard.push((name.to_string(), request.body));
    shared.1.notify_all();
    match fault {
        Some(Fault::Lose) => Ok(()),
        Some(Fault::KillCounted) => kill_agent(&mut state, shared),
        Some(Fault::KillAnswered) => {
            send_json(stream, status, &body)?;
            kill_agent(&mut state, shared)
        }
        Some(Fault::KillBefore | Fault::Status(_)) | None => send_json(stream, status, &body),
    }
}

fn kill_agent(state: &mut State, shared: &Shared) -> std::io::Result<()> {
    let pid = state.pid.take().expect("there is an agent to be killed");
    kill_process(pid, Signal::KILL)?;
    shared.1.notify_all();
    Ok(())
}

fn send_json(mut stream: &TcpStream, status: u16, body: &Value) -> std::io::Result<()> {
    let text = body.to_string();
    head(stream, status, "", text.len())?;
    stream.write_all(text.as_bytes())
}

/// The name of the request. Violations of the protocol are recorded and fail the test at its end.
fn name_of(request: &Request, state: &mut State) -> Option<&'static str> {
    let (name, keys): (_, &[&str]) = match request.path.as_str() {
        "/agent/v1/enroll" => {
            ("enroll", &["boot_id", "hostname", "macs", "serial", "session", "token", "version"])
        }
        "/agent/v1/heartbeat" => {
            ("heartbeat", &["boot_id", "healthy", "problems", "tasks", "version"])
        }
        "/agent/v1/tasks/take" => ("take", &["wait_seconds"]),
        "/agent/v1/tasks/renew" => ("renew", &["id", "log"]),
        "/agent/v1/tasks/report" => ("report", &["id", "log", "ok", "said"]),
        other => {
            state.wrong.push(format!("asked for {other}"));
            return None;
        }
    };
    let mut found: Vec<&String> =
        request.body.as_object().map(|body| body.keys().collect()).unwrap_or_default();
    found.sort();
    let log = request.body["log"].as_str().unwrap_or_default().len();
    if found != keys || request.method != "POST" || request.range.is_some() || log > 64 * 1024 {
        state.wrong.push(format!("{} {name}: {found:?}, a log of {log}", request.method));
    }
    if (name == "enroll") != request.bearer.is_empty() {
        state.wrong.push(format!("{name} with the wrong Authorization"));
    }
    Some(name)
}

impl State {
    fn count(&mut self, name: &str, request: &Request) -> (u16, Value) {
        let body = &request.body;
        if name == "enroll" {
            return self.enroll(body);
        }
        if let Some(code) = self.unknown {
            return (401, json!({ "code": code }));
        }
        if self.session.as_ref() != Some(&request.bearer) {
            return (401, json!({"code": "session-unknown"}));
        }
        let id = body["id"].as_str().unwrap_or_default().to_owned();
        match name {
            "heartbeat" => {
                let waiting = !self.tasks.is_empty();
                (200, json!({"heartbeat_seconds": 1, "waiting": waiting}))
            }
            "take" => {
                self.open_task = self.open_task.take().or_else(|| self.tasks.pop_front());
                (200, json!({ "task": self.open_task }))
            }
            "renew" if self.holds(&id) => {
                *self.logs.entry(id).or_default() += body["log"].as_str().unwrap();
                if let Some(gate) = &self.gate {
                    fs::write(gate, "").unwrap();
                }
                (200, json!({ "then": self.then }))
            }
            "report" if self.holds(&id) || self.reports.contains_key(&id) => {
                self.reported(&id, body);
                (200, json!({}))
            }
            _ => (409, json!({"code": "task-over"})),
        }
    }

    fn holds(&self, id: &str) -> bool {
        self.open_task.as_ref().is_some_and(|task| task["id"] == id)
    }

    fn reported(&mut self, id: &str, body: &Value) {
        let entry = self.reports.entry(id.to_owned()).or_insert_with(|| (body.clone(), 0));
        entry.1 += 1;
        if entry.0 != *body {
            self.wrong.push(format!("{id} is reported in two ways: {} and {body}", entry.0));
        }
        if self.holds(id) {
            self.open_task = None;
            *self.logs.entry(id.to_owned()).or_default() += body["log"].as_str().unwrap();
        }
    }

    fn enroll(&mut self, body: &Value) -> (u16, Value) {
        let session = body["session"].as_str().unwrap().to_owned();
        let refused = |code: &str| (403, json!({"code": code, "said": "no"}));
        match self.tokens.get_mut(body["token"].as_str().unwrap()) {
            None => return refused("token-unknown"),
            Some(Some(by)) if *by != session => return refused("token-used"),
            Some(by) => *by = Some(session.clone()),
        }
        self.session = Some(session);
        (200, json!({"node": NODE, "heartbeat_seconds": 1}))
    }
}
