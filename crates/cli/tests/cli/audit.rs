//! The checks at the end of every crash, freeze and outage test; a client that fails over between
//! replicas; and a watcher that reconnects.

use crate::fleet::{Clients, Server, TEST_TIMEOUT};
use proto::v1;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tonic::{Code, Response, Status, Streaming};

const RETRY: Duration = Duration::from_millis(20);

/// Checks that every run succeeded, that each step acted exactly once, that the history has no gap,
/// and that no machine is held. Requests that are refused as unavailable are retried.
pub async fn audit(api: &Clients, runs: &[String]) {
    let mut through = FailoverClient { replicas: vec![api.clone()], at: 0, refusals: Vec::new() };
    for id in runs {
        let ended = through.finished(id).await;
        assert_eq!(ended.phase(), v1::run::Phase::Succeeded, "{ended:#?}");
        let effects = through.call(|mut api| {
            let request =
                v1::ListEffectsRequest { filter: format!("run_id={id}"), ..Default::default() };
            async move { api.sim.list_effects(request).await }
        });
        let effects = effects.await.into_inner().effects;
        // One key per step: a retry cannot hide a repetition.
        assert_eq!(effects.len(), ended.steps.len(), "{effects:?}");
        assert!(effects.iter().all(|effect| effect.applied == 1), "{effects:?}");
        let history = through.call(|mut api| {
            let (id, page_size) = (id.clone(), 1_000);
            let request = v1::ListHistoryRequest { id, page_size, ..Default::default() };
            async move { api.explain.list_history(request).await }
        });
        let history = history.await.into_inner().entries;
        let versions: Vec<i64> = history.iter().map(|entry| entry.version).collect();
        assert_eq!(versions, (1..=ended.version).collect::<Vec<_>>(), "{history:#?}");
        assert!(history.iter().all(|entry| !entry.decided_by.is_empty()), "{history:#?}");
        let why = through.call(|mut api| {
            let request = v1::ExplainRequest { id: id.clone() };
            async move { api.explain.explain(request).await }
        });
        assert_eq!(why.await.into_inner().held_by, "", "{id}");
        let machine = through.call(|mut api| {
            let request = v1::GetMachineRequest {
                machine_id: ended.machine_id.clone(),
                ..Default::default()
            };
            async move { api.machines.get_machine(request).await }
        });
        let status = machine.await.into_inner().status.unwrap();
        assert_eq!(status.active_run_id, "", "{}", ended.machine_id);
    }
}

/// True if the connection broke. The status code then depends on the client library.
pub fn is_broken(status: &Status) -> bool {
    std::error::Error::source(status).is_some()
}

/// True if the server is gone or unavailable, so that the request should be repeated.
fn is_unavailable(status: &Status) -> bool {
    status.code() == Code::Unavailable || is_broken(status)
}

/// A client for all replicas. It repeats a failed request on the next replica.
#[derive(Clone)]
pub struct FailoverClient {
    replicas: Vec<Clients>,
    at: usize,
    /// The status of every failed request.
    pub refusals: Vec<Status>,
}

impl FailoverClient {
    pub fn of(servers: &[Server]) -> Self {
        let replicas = servers.iter().map(|server| Clients::lazy(&server.url())).collect();
        Self { replicas, at: 0, refusals: Vec::new() }
    }

    pub async fn call<T, F>(&mut self, call: impl Fn(Clients) -> F) -> T
    where
        F: Future<Output = Result<T, Status>>,
    {
        let started = Instant::now();
        loop {
            let requested = &self.replicas[self.at % self.replicas.len()];
            // A server that does not answer is treated as gone.
            let answer = timeout(TEST_TIMEOUT / 6, call(requested.clone())).await;
            match answer.unwrap_or_else(|_| Err(Status::unavailable("no answer"))) {
                Ok(answer) => return answer,
                Err(status) => {
                    assert!(is_unavailable(&status), "{status:?}");
                    assert!(started.elapsed() < TEST_TIMEOUT, "nobody answers: {status:?}");
                    self.refusals.push(status);
                }
            }
            self.at += 1;
            tokio::time::sleep(RETRY).await;
        }
    }

    pub async fn start(&mut self, machine: &str, kind: &str, request: &str) -> String {
        let request = v1::StartRunRequest {
            machine_id: machine.into(),
            r#type: kind.into(),
            request_id: request.into(),
            ..Default::default()
        };
        let call = |mut api: Clients| {
            let request = request.clone();
            async move { api.runs.start_run(request).await }
        };
        self.call(call).await.into_inner().run_id
    }

    /// Waits until the run has ended, on any replica.
    pub async fn finished(&mut self, id: &str) -> v1::Run {
        let started = Instant::now();
        loop {
            let request = v1::GetRunRequest { run_id: id.into() };
            let call = |mut api: Clients| {
                let request = request.clone();
                async move { api.runs.get_run(request).await }
            };
            let run = self.call(call).await.into_inner();
            if run.finished_at.is_some() {
                return run;
            }
            assert!(started.elapsed() < TEST_TIMEOUT, "{run:#?} did not end");
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Sends the following requests to the next replica.
    pub fn use_next_replica(&mut self) {
        self.at += 1;
    }
}

/// Follows all runs across crashes. It also changes to another replica every few events and resumes
/// there from its cursor.
pub struct RunWatcher {
    task: JoinHandle<()>,
    seen: mpsc::UnboundedReceiver<v1::Run>,
    versions: BTreeMap<String, Vec<i64>>,
}

/// The number of events that a watcher reads before it changes to another replica.
const EVENTS_PER_REPLICA: usize = 23;

impl RunWatcher {
    /// Needs at least one existing run, whose event gives the first cursor.
    pub async fn start(mut through: FailoverClient) -> Self {
        let (sender, observed) = mpsc::unbounded_channel();
        let (mut stream, mut cursor) = (watch(&mut through, "").await, String::new());
        while cursor.is_empty() {
            cursor = stream.message().await.unwrap().unwrap().cursor;
        }
        let task = tokio::spawn(async move {
            loop {
                for _ in 0..EVENTS_PER_REPLICA {
                    let Ok(Some(event)) = stream.message().await else { break };
                    cursor = event.cursor;
                    if !event.initial && sender.send(event.snapshot.unwrap()).is_err() {
                        return;
                    }
                }
                through.use_next_replica();
                stream = watch(&mut through, &cursor).await;
            }
        });
        Self { task, seen: observed, versions: BTreeMap::new() }
    }

    /// Reads until these runs have ended. Checks that every version of each arrived once and in
    /// order.
    pub async fn expect_all_events(mut self, runs: &[String]) {
        let mut left: std::collections::BTreeSet<&str> = runs.iter().map(String::as_str).collect();
        while !left.is_empty() {
            let run = timeout(TEST_TIMEOUT, self.seen.recv()).await;
            let run = run.unwrap_or_else(|_| panic!("no event came of {left:?}")).unwrap();
            // Older runs may have been active when the watch began.
            if !runs.contains(&run.run_id) {
                continue;
            }
            let versions = self.versions.entry(run.run_id.clone()).or_default();
            versions.push(run.version);
            let expected: Vec<i64> = (1..=versions.len() as i64).collect();
            assert_eq!(*versions, expected, "no event of {} is missing or doubled", run.run_id);
            if run.finished_at.is_some() {
                left.remove(run.run_id.as_str());
            }
        }
        self.task.abort();
    }
}

async fn watch(through: &mut FailoverClient, cursor: &str) -> Streaming<v1::RunEvent> {
    let request = v1::WatchRunsRequest { cursor: cursor.into(), ..Default::default() };
    let call = |mut api: Clients| {
        let request = request.clone();
        async move { api.runs.watch_runs(request).await }
    };
    through.call(call).await.into_inner()
}

/// A random source that gives the same numbers for the same seed, so that a failure can be
/// repeated.
pub struct SeededRandom(u64);

impl SeededRandom {
    pub fn seeded(seed: u64) -> Self {
        println!("seed {seed:#x}");
        Self(seed)
    }

    /// Returns a number below the bound (splitmix64).
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

/// Registers machines and brings them into maintenance, concurrently.
pub async fn in_maintenance(api: &Clients, machines: &[String]) {
    let each = machines.iter().map(|id| {
        let mut api = api.clone();
        async move { api.in_maintenance(id).await }
    });
    futures_util::future::join_all(each).await;
}

pub fn names(count: usize) -> Vec<String> {
    (0..count).map(|index| format!("m-{index}")).collect()
}

/// The log of a run: its current content, or until its end.
pub async fn log_of(api: &mut Clients, run: &str, no_follow: bool) -> String {
    let request = v1::StreamRunLogsRequest { run_id: run.into(), offset: 0, no_follow };
    let mut stream = api.runs.stream_run_logs(request).await.map(Response::into_inner).unwrap();
    let mut text = Vec::new();
    while let Some(chunk) = timeout(TEST_TIMEOUT, stream.message()).await.unwrap().unwrap() {
        text.extend(chunk.data);
    }
    String::from_utf8(text).unwrap()
}
