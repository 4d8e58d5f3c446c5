//! A scripted server whose state survives a restart.

use crate::fleet::{TEST_TIMEOUT, as_administrator, free_port};
use proto::Timestamp;
use proto::v1::machine_service_server::{MachineService, MachineServiceServer};
use proto::v1::operation_service_server::{OperationService, OperationServiceServer};
use proto::v1::run_service_server::{RunService, RunServiceServer};
use proto::v1::*;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::pin::Pin;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Code, Request, Response, Status};
use tonic_types::{ErrorDetails, StatusExt};

const TICK: Duration = Duration::from_millis(5);

/// One scripted event.
pub enum ScriptEvent {
    /// The phase of the run, and the states of its two steps.
    Steps(run::Phase, [step_status::State; 2]),
    /// A log chunk: the step and the text.
    Log(&'static str, &'static str),
}

#[derive(Default)]
struct ScriptState {
    machines: BTreeMap<String, Machine>,
    /// Every version of the one run.
    versions: Vec<Run>,
    log: Vec<LogChunk>,
    initiator: String,
}

impl ScriptState {
    fn run(&self) -> Option<&Run> {
        self.versions.last()
    }

    fn is_over(&self) -> bool {
        self.run().is_some_and(|run| run.phase() as i32 > run::Phase::Running as i32)
    }

    fn submit(&mut self, machine_id: &str, request_id: &str) {
        if self.run().is_some_and(|run| run.request_id == request_id) {
            return;
        }
        let run = Run {
            run_id: "op-1".into(),
            machine_id: machine_id.into(),
            request_id: request_id.into(),
            r#type: "REIMAGE".into(),
            phase: run::Phase::Pending.into(),
            version: 1,
            ..Default::default()
        };
        self.versions.push(run);
        self.set_machine(EffectiveState::Busy, "op-1", false);
    }

    fn set_machine(&mut self, effective: EffectiveState, active: &str, provisioned: bool) {
        let provisioned =
            Condition { r#type: "Provisioned".into(), status: provisioned, ..Default::default() };
        let status = MachineStatus {
            phase: machine_status::Phase::Maintenance.into(),
            effective_state: effective.into(),
            active_operation_id: active.into(),
            conditions: vec![provisioned],
            ..Default::default()
        };
        let machine =
            Machine { machine_id: "machine-1".into(), status: Some(status), ..Default::default() };
        self.machines.insert("machine-1".into(), machine);
    }

    fn play(&mut self, play: ScriptEvent) {
        match play {
            ScriptEvent::Log(step, text) => {
                let offset =
                    self.log.last().map_or(0, |chunk| chunk.offset + chunk.data.len() as i64);
                let chunk =
                    LogChunk { step: step.into(), data: text.into(), offset, ..Default::default() };
                self.log.push(chunk);
            }
            ScriptEvent::Steps(phase, states) => self.move_run(phase, states),
        }
    }

    fn move_run(&mut self, phase: run::Phase, states: [step_status::State; 2]) {
        let mut run = self.run().cloned().unwrap_or_default();
        run.version += 1;
        run.set_phase(phase);
        run.started_at = Some(Timestamp { seconds: 1_000, nanos: 0 });
        let names = [("set-netboot", "netboot"), ("repave", "repave")];
        run.steps = names
            .into_iter()
            .zip(states)
            .map(|((name, kind), state)| StepStatus {
                name: name.into(),
                kind: kind.into(),
                state: state.into(),
                message: if state == step_status::State::Failed {
                    "no answer".into()
                } else {
                    String::new()
                },
                ..Default::default()
            })
            .collect();
        if phase == run::Phase::Failed {
            run.error = Some(ErrorStatus {
                message: "no answer".into(),
                details: [("fault".to_string(), "bmc-unreachable".to_string())].into(),
                next_command: "farrier operation retry-step op-1".into(),
                ..Default::default()
            });
        }
        if phase != run::Phase::Running {
            run.finished_at = Some(Timestamp { seconds: 1_272, nanos: 0 });
            self.set_machine(EffectiveState::Maintenance, "", phase == run::Phase::Succeeded);
        }
        self.versions.push(run);
    }
}

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<ScriptState>>);

impl Shared {
    fn state(&self) -> MutexGuard<'_, ScriptState> {
        self.0.lock().unwrap()
    }
}

pub struct ScriptedServer {
    shared: Shared,
    address: SocketAddr,
    runtime: Option<Runtime>,
}

impl ScriptedServer {
    pub fn open() -> Self {
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let mut stage = Self { shared: Shared::default(), address, runtime: None };
        stage.shared.state().set_machine(EffectiveState::Maintenance, "", false);
        stage.start();
        stage
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn start(&mut self) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let router = tonic::transport::Server::builder()
            .add_service(MachineServiceServer::new(self.shared.clone()))
            .add_service(OperationServiceServer::new(self.shared.clone()))
            .add_service(RunServiceServer::new(self.shared.clone()));
        runtime.spawn(router.serve(self.address));
        self.runtime = Some(runtime);
        until("the server starts", || std::net::TcpStream::connect(self.address).is_ok());
    }

    /// Breaks every connection, whatever it was doing.
    pub fn kill(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_secs(5));
        }
    }

    pub fn play(&self, play: ScriptEvent) {
        self.shared.state().play(play);
    }

    pub fn submit(&self, request_id: &str) {
        self.shared.state().submit("machine-1", request_id);
    }

    pub fn initiator(&self) -> String {
        self.shared.state().initiator.clone()
    }

    pub fn machines(&self) -> usize {
        self.shared.state().machines.len()
    }
}

/// Waits until the condition holds.
fn until(what: &str, so: impl Fn() -> bool) {
    let started = Instant::now();
    while !so() {
        assert!(started.elapsed() < TEST_TIMEOUT, "it never came to pass that {what}");
        std::thread::sleep(TICK);
    }
}

/// A running client process whose output can be read.
pub struct Follower {
    child: Child,
    said: Arc<Mutex<String>>,
    reader: JoinHandle<()>,
}

impl Follower {
    pub fn start(server: &str, args: &[&str]) -> Self {
        let mut child = farrier(server, args);
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let message: Arc<Mutex<String>> = Arc::default();
        let heartbeat = Arc::clone(&message);
        let reader = std::thread::spawn(move || {
            for line in lines {
                heartbeat.lock().unwrap().extend([line.unwrap(), "\n".into()]);
            }
        });
        Self { child, said: message, reader }
    }

    /// Waits until it has printed this.
    pub fn wait_for_output(&self, words: &str) {
        until(&format!("it says {words:?}"), || self.said.lock().unwrap().contains(words));
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
    }

    /// The exit code, stdout and stderr.
    pub fn finish(self) -> (i32, String, String) {
        let (code, _, stderr) = finish(self.child);
        self.reader.join().unwrap();
        let stdout = self.said.lock().unwrap().clone();
        (code, stdout, stderr)
    }
}

pub fn farrier(server: &str, args: &[&str]) -> Child {
    as_administrator(&mut Command::new(env!("CARGO_BIN_EXE_farrier")))
        .args(args)
        .env("FARRIER_SERVER", server)
        .env("USER", "ada")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Waits for the process. Returns the exit code, stdout and stderr.
pub fn finish(mut child: Child) -> (i32, String, String) {
    let mut stdout = String::new();
    if let Some(mut pipe) = child.stdout.take() {
        pipe.read_to_string(&mut stdout).unwrap();
    }
    let output = child.wait_with_output().unwrap();
    let code = output.status.code().unwrap_or(-1);
    (code, stdout, String::from_utf8_lossy(&output.stderr).into_owned())
}

type Streamed<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;
type Answer<T> = Result<Response<T>, Status>;

/// A stream of the items that `next` returns. It is polled until it reports the end.
fn stream<T: Send + 'static>(
    mut next: impl FnMut() -> (Vec<T>, bool) + Send + 'static,
) -> Streamed<T> {
    let (sender, receiver) = mpsc::channel(8);
    tokio::spawn(async move {
        loop {
            let (items, over) = next();
            for item in items {
                if sender.send(item).await.is_err() {
                    return;
                }
            }
            if over {
                return;
            }
            tokio::time::sleep(TICK).await;
        }
    });
    Box::pin(ReceiverStream::new(receiver).map(Ok))
}

/// Expands to what async_trait generates for a method, because async_trait does not expand macros.
macro_rules! absent {
    ($($name:ident: $request:ty => $answer:ty;)*) => {$(
        fn $name<'me, 'run>(
            &'me self,
            _: Request<$request>,
        ) -> Pin<Box<dyn Future<Output = Answer<$answer>> + Send + 'run>>
        where
            'me: 'run,
            Self: 'run,
        {
            Box::pin(async { Err(Status::unimplemented("not in this play")) })
        }
    )*};
}

#[tonic::async_trait]
impl MachineService for Shared {
    type WatchMachinesStream = Streamed<MachineEvent>;

    async fn register_machine(&self, request: Request<RegisterMachineRequest>) -> Answer<Machine> {
        let machine = request.into_inner().machine.unwrap_or_default();
        self.state().machines.insert(machine.machine_id.clone(), machine.clone());
        Ok(Response::new(machine))
    }

    async fn register_machines(
        &self,
        request: Request<RegisterMachinesRequest>,
    ) -> Answer<RegisterMachinesResponse> {
        let request = request.into_inner();
        let registrations = request.machines.into_iter().map(|machine| {
            let id = machine.machine_id.clone();
            let known = self.state().machines.contains_key(&id);
            if !(request.dry_run || known && request.only_new) {
                self.state().machines.insert(id, machine.clone());
            }
            let (machine, created) = (Some(machine), !known);
            MachineRegistration { machine, created, ..Default::default() }
        });
        let registrations = registrations.collect();
        let would_follow = Vec::new();
        Ok(Response::new(RegisterMachinesResponse { registrations, would_follow }))
    }

    async fn get_machine(&self, request: Request<GetMachineRequest>) -> Answer<Machine> {
        let id = request.into_inner().machine_id;
        match self.state().machines.get(&id) {
            Some(machine) => Ok(Response::new(machine.clone())),
            None => {
                let mut details =
                    ErrorDetails::with_bad_request_violation("machine_id", "is unknown");
                let next = [("next".to_string(), "farrier list".to_string())];
                details.set_error_info("NOT_FOUND", "farrier", next);
                let message = format!("there is no machine {id}");
                Err(Status::with_error_details(Code::NotFound, message, details))
            }
        }
    }

    async fn list_machines(
        &self,
        request: Request<ListMachinesRequest>,
    ) -> Answer<ListMachinesResponse> {
        let request = request.into_inner();
        let from: usize = request.page_token.parse().unwrap_or(0);
        let env = self.state();
        let machines: Vec<Machine> =
            env.machines.values().skip(from).take(request.page_size as usize).cloned().collect();
        let to = from + machines.len();
        let next_page_token = if to < env.machines.len() { to.to_string() } else { String::new() };
        let unreadable_rows = 0;
        Ok(Response::new(ListMachinesResponse { machines, next_page_token, unreadable_rows }))
    }

    async fn reimage_machine(&self, request: Request<ReimageMachineRequest>) -> Answer<Operation> {
        let initiator =
            request.metadata().get("farrier-initiator").and_then(|name| name.to_str().ok());
        let initiator = initiator.unwrap_or_default().to_string();
        let request = request.into_inner();
        let mut env = self.state();
        env.initiator = initiator;
        env.submit(&request.machine_id, &request.request_id);
        let run = env.run().cloned().unwrap_or_default();
        Ok(Response::new(Operation {
            operation_id: run.run_id,
            machine_id: run.machine_id,
            request_id: run.request_id,
            r#type: OperationType::Reimage.into(),
            phase: run.phase,
            ..Default::default()
        }))
    }

    absent! {
        update_machine: UpdateMachineRequest => Machine;
        delete_machine: DeleteMachineRequest => Machine;
        watch_machines: WatchMachinesRequest => Streamed<MachineEvent>;
        reboot_machine: RebootMachineRequest => Operation;
        enter_maintenance: EnterMaintenanceRequest => Operation;
        exit_maintenance: ExitMaintenanceRequest => Operation;
        cancel_operation: CancelOperationRequest => Operation;
    }
}

#[tonic::async_trait]
impl OperationService for Shared {
    type WatchOperationsStream = Streamed<OperationEvent>;
    type StreamOperationLogsStream = Streamed<LogChunk>;

    absent! {
        get_operation: GetOperationRequest => Operation;
        list_operations: ListOperationsRequest => ListOperationsResponse;
        watch_operations: WatchOperationsRequest => Streamed<OperationEvent>;
        stream_operation_logs: StreamOperationLogsRequest => Streamed<LogChunk>;
    }
}

#[tonic::async_trait]
impl RunService for Shared {
    type WatchRunsStream = Streamed<RunEvent>;
    type StreamRunLogsStream = Streamed<LogChunk>;

    async fn get_run(&self, _: Request<GetRunRequest>) -> Answer<Run> {
        self.state()
            .run()
            .cloned()
            .map(Response::new)
            .ok_or_else(|| Status::not_found("no such run"))
    }

    async fn watch_runs(&self, request: Request<WatchRunsRequest>) -> Answer<Streamed<RunEvent>> {
        let mut at: usize = request.into_inner().cursor.parse().unwrap_or(0);
        let shared = self.clone();
        Ok(Response::new(stream(move || {
            let env = shared.state();
            let fresh = env.versions.iter().enumerate().skip(at).map(|(at, run)| RunEvent {
                snapshot: Some(run.clone()),
                cursor: (at + 1).to_string(),
                ..Default::default()
            });
            let fresh: Vec<RunEvent> = fresh.collect();
            at += fresh.len();
            (fresh, false)
        })))
    }

    async fn stream_run_logs(
        &self,
        request: Request<StreamRunLogsRequest>,
    ) -> Answer<Streamed<LogChunk>> {
        let StreamRunLogsRequest { offset: mut from, no_follow, .. } = request.into_inner();
        let shared = self.clone();
        Ok(Response::new(stream(move || {
            let env = shared.state();
            let mut fresh = Vec::new();
            for chunk in &env.log {
                let skip = usize::try_from(from - chunk.offset).unwrap_or(0);
                if skip < chunk.data.len() {
                    let data = chunk.data[skip..].to_vec();
                    fresh.push(LogChunk {
                        offset: chunk.offset + skip as i64,
                        data,
                        ..chunk.clone()
                    });
                    from = chunk.offset + chunk.data.len() as i64;
                }
            }
            (fresh, no_follow || env.is_over())
        })))
    }

    absent! {
        start_run: StartRunRequest => Run;
        list_runs: ListRunsRequest => ListRunsResponse;
        cancel_run: CancelRunRequest => Run;
        retry_step: RetryStepRequest => Run;
        resume_run: ResumeRunRequest => Run;
        rerun: RerunRequest => Run;
        restart_clean: RestartCleanRequest => Run;
        adopt_observed_state: AdoptObservedStateRequest => Run;
        mark_manual: MarkManualRequest => Run;
    }
}
