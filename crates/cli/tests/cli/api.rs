//! Shared by the API tests: a server, short forms of long requests, and the checks that every
//! refusal must pass.

use crate::fleet::{
    Clients, DatabaseKind, Server, Setup, TEST_TIMEOUT, new_database, postgres,
    transactions_settled,
};
use proto::v1;
use proto::v1::step::Kind;
use proto::words;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::{Duration, Instant};
use tonic::{Code, Response, Status};
use tonic_types::StatusExt;

/// Short retry delays and frequent node polling, so that no test waits for them.
const QUICK: &str =
    "[engine]\nbackoff_first_ms = 1\nbackoff_most_ms = 5\n[nodes]\nsweep_seconds = 1";

/// The number of built-in plans.
pub const BUILT_IN_PLANS: usize = 23;

/// A server for one test.
pub struct TestServer {
    pub server: Server,
    _dir: tempfile::TempDir,
}

impl TestServer {
    pub async fn open(speed: &'static str) -> (Self, Clients) {
        Self::at(DatabaseKind::Sqlite, speed).await
    }

    async fn at(home: DatabaseKind, speed: &'static str) -> (Self, Clients) {
        let dir = tempfile::tempdir().unwrap();
        let setup = Setup { home, config: QUICK.into(), ..Setup::new(dir.path(), speed) };
        let server = Server::start(setup);
        let clients = server.clients().await;
        (Self { server, _dir: dir }, clients)
    }

    /// A watch that is opened next begins with everything that was committed so far.
    pub async fn settle(&self) {
        transactions_settled(&self.server.setup.home).await;
    }
}

/// Runs the body on SQLite, and on PostgreSQL if it is available.
pub async fn on_both(speed: &'static str, body: impl AsyncFn(&TestServer, Clients)) {
    let (env, clients) = TestServer::open(speed).await;
    body(&env, clients).await;
    if let Some(cluster) = postgres() {
        let home = DatabaseKind::Postgres(new_database(&cluster).await);
        let (env, clients) = TestServer::at(home, speed).await;
        body(&env, clients).await;
    }
}

/// Checks that the refusal has this code and these words, and that it says what to do: it names a
/// command or the invalid field.
#[track_caller]
pub fn refused<T: Debug>(answer: Result<T, Status>, code: Code, words: &[&str]) -> Status {
    let status = answer.expect_err("this should have been refused");
    let message = status.message();
    assert_eq!(status.code(), code, "{message}");
    for name in words {
        assert!(message.contains(name), "{name:?} is not in: {message}");
    }
    let details = status.get_error_details();
    let field = details.bad_request().map(|bad| bad.field_violations[0].field.clone());
    let names_it = field.is_some_and(|field| message.contains(&field));
    assert!(names_it || message.contains("farrier "), "it does not say what to do: {message}");
    assert!(details.error_info().is_some_and(|info| !info.reason.is_empty()), "{message}");
    status
}

/// The field that a refusal names.
pub fn field_of(status: &Status) -> String {
    let details = status.get_error_details();
    details.bad_request().map(|bad| bad.field_violations[0].field.clone()).unwrap_or_default()
}

pub fn machine(id: &str) -> v1::Machine {
    let spec = v1::MachineSpec {
        target_cluster_ref: "cluster-a".into(),
        provider: "sim".into(),
        ..Default::default()
    };
    v1::Machine { machine_id: id.into(), spec: Some(spec), ..Default::default() }
}

pub fn labelled(id: &str, labels: &[(&str, &str)]) -> v1::Machine {
    let labels = labels.iter().map(|(key, value)| (key.to_string(), value.to_string()));
    v1::Machine { labels: labels.collect(), ..machine(id) }
}

/// A fault rule of the simulator. Zero times means forever.
pub fn fault(machine: &str, effect: &str, action: &str, times: i32) -> v1::SimFault {
    v1::SimFault {
        machine: machine.into(),
        effect: effect.into(),
        action: words::value::<v1::SimAction>(action),
        times,
        ..Default::default()
    }
}

pub fn slow(machine: &str, effect: &str, delay_ms: i32) -> v1::SimFault {
    v1::SimFault { delay_ms, ..fault(machine, effect, "slow", 0) }
}

/// The same rule for another provider call of the effect.
pub fn at(verb: &str, rule: v1::SimFault) -> v1::SimFault {
    v1::SimFault { verb: words::value::<v1::ProviderVerb>(verb), ..rule }
}

pub fn step(name: &str, kind: Kind) -> v1::Step {
    v1::Step { name: name.into(), kind: Some(kind), ..Default::default() }
}

pub fn ssh(command: &str) -> Kind {
    Kind::Ssh(v1::SshCommand { command: command.into(), destructive: false })
}

pub fn reboot() -> Kind {
    Kind::Reboot(v1::Reboot { mode: "bmc".into(), ..Default::default() })
}

pub fn rma(action: v1::RmaActionKind) -> Kind {
    Kind::Rma(v1::RmaAction { action: action.into(), ..Default::default() })
}

pub fn plan(id: &str, steps: Vec<v1::Step>) -> v1::Plan {
    v1::Plan { plan_id: id.into(), display_name: id.into(), steps, ..Default::default() }
}

pub fn params(pairs: &[(&str, &str)]) -> std::collections::HashMap<String, String> {
    pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
}

/// The conditions of a machine.
pub fn conditions(machine: &v1::Machine) -> BTreeMap<String, bool> {
    let known = machine.status.iter().flat_map(|status| &status.conditions);
    known.map(|condition| (condition.r#type.clone(), condition.status)).collect()
}

pub fn is(machine: &v1::Machine, condition: &str) -> bool {
    conditions(machine).get(condition).copied().unwrap_or(false)
}

/// Phase and effective state, by name.
pub fn states(machine: &v1::Machine) -> (&'static str, &'static str) {
    let status = machine.status.as_ref().unwrap();
    (status.phase().as_str_name(), status.effective_state().as_str_name())
}

impl Clients {
    pub async fn put(&mut self, machine: v1::Machine) -> v1::Machine {
        self.try_put(machine).await.unwrap()
    }

    pub async fn try_put(&mut self, machine: v1::Machine) -> Result<v1::Machine, Status> {
        let request = v1::RegisterMachineRequest { machine: Some(machine), ..Default::default() };
        self.machines.register_machine(request).await.map(Response::into_inner)
    }

    /// Registers a machine and waits for its first probe, so that afterwards only requests change
    /// it.
    pub async fn settled(&mut self, machine: v1::Machine) -> v1::Machine {
        let id = self.put(machine).await.machine_id;
        let looked_at = |machine: &v1::Machine| is(machine, "Reachable");
        self.machine_until(&id, looked_at).await
    }

    pub async fn machine_until(
        &mut self,
        id: &str,
        reached: impl Fn(&v1::Machine) -> bool,
    ) -> v1::Machine {
        let started = Instant::now();
        loop {
            let machine = self.machine(id).await;
            if reached(&machine) {
                return machine;
            }
            assert!(started.elapsed() < TEST_TIMEOUT, "{machine:#?} did not get there");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Brings a machine into service.
    pub async fn in_service(&mut self, id: &str) {
        self.in_maintenance(id).await;
        for (kind, request) in [("REPAVE", "first"), ("EXIT_MAINTENANCE", "exit")] {
            self.done(id, kind, request).await;
        }
    }

    /// Starts a run and expects it to succeed.
    pub async fn done(&mut self, id: &str, kind: &str, request: &str) -> v1::Run {
        let run = self.start(id, kind, request).await;
        let run = self.finished(&run.run_id).await;
        assert_eq!(run.phase(), v1::run::Phase::Succeeded, "{run:#?}");
        run
    }

    pub async fn try_run(&mut self, request: v1::StartRunRequest) -> Result<v1::Run, Status> {
        self.runs.start_run(request).await.map(Response::into_inner)
    }

    /// Starts a run of a custom plan.
    pub async fn start_plan(&mut self, id: &str, plan: &str, request: &str) -> v1::Run {
        self.try_start_plan(id, plan, request).await.unwrap()
    }

    pub async fn try_start_plan(
        &mut self,
        id: &str,
        plan: &str,
        request: &str,
    ) -> Result<v1::Run, Status> {
        let request = v1::StartRunRequest {
            machine_id: id.into(),
            request_id: request.into(),
            r#type: "REBOOT".into(),
            plan_id: plan.into(),
            ..Default::default()
        };
        self.try_run(request).await
    }

    pub async fn try_plan(&mut self, plan: v1::Plan) -> Result<v1::Plan, Status> {
        let request = v1::CreatePlanRequest { plan: Some(plan), ..Default::default() };
        self.plans.create_plan(request).await.map(Response::into_inner)
    }

    pub async fn cancel(&mut self, id: &str) -> Result<v1::Operation, Status> {
        let request = v1::CancelOperationRequest {
            operation_id: id.into(),
            reason: "test".into(),
            dry_run: false,
        };
        self.machines.cancel_operation(request).await.map(Response::into_inner)
    }

    pub async fn clear_faults(&mut self) {
        self.sim.delete_faults(v1::DeleteFaultsRequest::default()).await.unwrap();
    }

    /// The stored history. The last refused request has no version; it is left out because the
    /// server records it some time later.
    pub async fn history(&mut self, id: &str) -> Vec<v1::HistoryEntry> {
        let request =
            v1::ListHistoryRequest { id: id.into(), page_size: 1_000, ..Default::default() };
        let mut answer = self.explain.list_history(request).await.unwrap().into_inner();
        answer.entries.retain(|entry| entry.version > 0);
        answer.entries
    }

    pub async fn why(&mut self, id: &str) -> v1::Explanation {
        let request = v1::ExplainRequest { id: id.into() };
        self.explain.explain(request).await.unwrap().into_inner()
    }

    pub async fn list_runs(&mut self, filter: &str) -> Vec<v1::Run> {
        let request = v1::ListRunsRequest { filter: filter.into(), ..Default::default() };
        self.runs.list_runs(request).await.unwrap().into_inner().runs
    }
}

/// Fetches one page of a list. Returns the IDs on it and the token of the next page.
pub async fn page(
    api: &mut Clients,
    list: &str,
    (filter, page_size, page_token): (&str, i32, &str),
) -> Result<(Vec<String>, String), Status> {
    let (filter, page_token) = (filter.to_string(), page_token.to_string());
    Ok(match list {
        "machines" => {
            let request =
                v1::ListMachinesRequest { filter, page_size, page_token, ..Default::default() };
            let page = api.machines.list_machines(request).await?.into_inner();
            let ids = page.machines.into_iter().map(|machine| machine.machine_id);
            (ids.collect(), page.next_page_token)
        }
        "runs" => {
            let request =
                v1::ListRunsRequest { filter, page_size, page_token, ..Default::default() };
            let page = api.runs.list_runs(request).await?.into_inner();
            (page.runs.into_iter().map(|run| run.run_id).collect(), page.next_page_token)
        }
        "operations" => {
            let request =
                v1::ListOperationsRequest { filter, page_size, page_token, ..Default::default() };
            let page = api.operations.list_operations(request).await?.into_inner();
            let ids = page.operations.into_iter().map(|operation| operation.operation_id);
            (ids.collect(), page.next_page_token)
        }
        "plans" => {
            let request = v1::ListPlansRequest { filter, page_size, page_token };
            let page = api.plans.list_plans(request).await?.into_inner();
            (page.plans.into_iter().map(|plan| plan.plan_id).collect(), page.next_page_token)
        }
        _ => {
            let id = filter;
            let request =
                v1::ListHistoryRequest { id, page_size, page_token, ..Default::default() };
            let page = api.explain.list_history(request).await?.into_inner();
            let ids = page.entries.into_iter().map(|entry| entry.version.to_string());
            (ids.collect(), page.next_page_token)
        }
    })
}

/// All lists. The history list takes an ID in place of a filter.
pub const LISTS: [&str; 5] = ["machines", "runs", "operations", "plans", "history"];
