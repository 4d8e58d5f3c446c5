//! Clients. Each [`Hand`] has one request in flight. A crew of them shares a few connections and
//! one watch that reports the end of each run, as a program that drives a fleet would do.

use crate::fleet::Channel;
use crate::wire::{self, Run};
use crate::{Outcome, Wrong};
use proto::v1;
use proto::v1::machine_service_client::MachineServiceClient;
use proto::v1::run_service_client::RunServiceClient;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

pub struct ClientPool {
    pub clients: Vec<BenchClient>,
    watch: JoinHandle<()>,
}

impl ClientPool {
    pub async fn gather(channels: Vec<Channel>, clients: usize) -> Outcome<Self> {
        let ends = Arc::new(Ends::default());
        let first = channels.first().cloned().ok_or("a crew needs a connection")?;
        let ended = "phase in (SUCCEEDED, FAILED, CANCELED)";
        let stream = wire::watch(first, ended, "").await?;
        let watch = tokio::spawn(run_watch(stream, Arc::clone(&ends)));
        let call = |channel: &Channel| BenchClient {
            machines: MachineServiceClient::new(channel.clone()),
            runs: RunServiceClient::new(channel.clone()),
            ends: Arc::clone(&ends),
        };
        let clients = channels.iter().cycle().take(clients).map(call).collect();
        Ok(Self { clients, watch })
    }

    pub fn first(&self) -> BenchClient {
        self.clients[0].clone()
    }
}

impl Drop for ClientPool {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

#[derive(Clone)]
pub struct BenchClient {
    pub machines: MachineServiceClient<Channel>,
    pub runs: RunServiceClient<Channel>,
    ends: Arc<Ends>,
}

impl BenchClient {
    pub async fn register(&mut self, id: &str) -> Outcome<()> {
        let spec = v1::MachineSpec {
            target_cluster_ref: "cluster-a".into(),
            provider: "sim".into(),
            ..Default::default()
        };
        let machine = v1::Machine { machine_id: id.into(), spec: Some(spec), ..Default::default() };
        let request = v1::RegisterMachineRequest { machine: Some(machine), ..Default::default() };
        self.machines.register_machine(request).await?;
        Ok(())
    }

    /// Starts a run, and returns when it is accepted.
    pub async fn start(&mut self, machine: &str, kind: &str, request: &str) -> Outcome<String> {
        let request = v1::StartRunRequest {
            machine_id: machine.into(),
            r#type: kind.into(),
            request_id: request.into(),
            ..Default::default()
        };
        Ok(self.runs.start_run(request).await?.into_inner().run_id)
    }

    /// Starts a run and waits until it has succeeded. Any other result is an error.
    pub async fn run_to_success(
        &mut self,
        machine: &str,
        kind: &str,
        request: &str,
    ) -> Outcome<Run> {
        let id = self.start(machine, kind, request).await?;
        let run = self.ended(&id).await?;
        if run.succeeded() {
            return Ok(run);
        }
        Err(format!("{kind} {id} on {machine} did not succeed").into())
    }

    /// Waits until a run has ended, with any result.
    pub async fn ended(&self, id: &str) -> Outcome<Run> {
        self.ends.wait(id).await
    }

    pub async fn get(&mut self, id: &str) -> Outcome<()> {
        let request = v1::GetMachineRequest { machine_id: id.into(), ..Default::default() };
        let machine = self.machines.get_machine(request).await?.into_inner();
        match machine.machine_id == id {
            true => Ok(()),
            false => Err(format!("asked for {id}, got {}", machine.machine_id).into()),
        }
    }

    pub async fn list(
        &mut self,
        filter: &str,
        page_size: i32,
        page_token: String,
    ) -> Outcome<v1::ListMachinesResponse> {
        let request = v1::ListMachinesRequest {
            filter: filter.into(),
            page_size,
            page_token,
            ..Default::default()
        };
        Ok(self.machines.list_machines(request).await?.into_inner())
    }
}

/// The clients that wait for the end of a run. An end may arrive before the client knows the run's
/// ID.
#[derive(Default)]
struct Ends(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    runs: HashMap<String, Slot>,
    broken: Option<String>,
}

enum Slot {
    Waiting(oneshot::Sender<Run>),
    Ended(Run),
}

impl Ends {
    fn lock(&self) -> std::sync::MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record_end(&self, run: Run) {
        let mut waiting = self.lock();
        match waiting.runs.remove(&run.run_id) {
            // A client that gave up waiting has already counted an error.
            Some(Slot::Waiting(sender)) => drop(sender.send(run)),
            Some(Slot::Ended(_)) | None => {
                waiting.runs.insert(run.run_id.clone(), Slot::Ended(run));
            }
        }
    }

    /// The watch broke: fails all waiting clients, because no more ends will arrive.
    fn fail_all(&self, message: String) {
        let mut waiting = self.lock();
        waiting.runs.clear();
        waiting.broken = Some(message);
    }

    async fn wait(&self, id: &str) -> Outcome<Run> {
        let desired = {
            let mut waiting = self.lock();
            if let Some(message) = &waiting.broken {
                return Err(message.clone().into());
            }
            if let Some(Slot::Ended(run)) = waiting.runs.remove(id) {
                return Ok(run);
            }
            let (sender, desired) = oneshot::channel();
            waiting.runs.insert(id.into(), Slot::Waiting(sender));
            desired
        };
        desired.await.map_err(|_| Wrong::from("the watch over all runs broke"))
    }
}

async fn run_watch(mut stream: tonic::Streaming<wire::Event>, ends: Arc<Ends>) {
    loop {
        match stream.message().await {
            Ok(Some(event)) => event.run.into_iter().for_each(|run| ends.record_end(run)),
            Ok(None) => return ends.fail_all("the watch over all runs ended".into()),
            Err(error) => return ends.fail_all(format!("the watch over all runs broke: {error}")),
        }
    }
}
