//! The fixture of device scenarios: the initial devices, and a client that follows a script.

use crate::clients::Client;
use crate::device_records::{
    InServiceDevice, Register, ShelfRequest, StartParentRun, WriteShelfRequest, device, parent_run,
    retry_on_conflict,
};
use crate::node_scenarios::{self, NodeAction};
use crate::rack_fixture::{add_firmware, firmware};
use crate::rollout_fixture;
use crate::test_env::TestEnv;
use engine::host::Reprovision;
use engine::rack::{MaintenanceStart, RackDescription};
use model::gate::{Gate, Overrides};
use model::id::{FirmwareId, MachineId, RackId, RunId};
use model::machine::{Labels, Phase};
use model::plan::{RunStep, RunType};
use model::power_shelf::{PowerShelf, PowerShelfState};
use model::rack::maintenance::{
    MaintenanceScope, MaintenanceTrigger, RackMaintenanceRequest, RequestedActivity,
};
use model::rack::{Counts, RackSpec, RackState};
use model::rollout::{Rollout, RolloutRequest};
use model::run::Run;
use model::run::actions::{Action, Requester};
use providers::sim::FaultRule;
use std::time::Duration;
use store::{Enqueue, StoreError, Tx, TxFuture};

pub const FLASHED: [&str; 3] = ["m-1", "sw-1", "ps-2"];
/// Firmware that no device has when a scenario begins.
pub const NEWER: &str = "fw-2";
const PAUSE: Duration = Duration::from_secs(1);

/// One action of a client. Each waits until the previous ones are finished.
#[derive(Debug, Clone)]
pub enum DeviceAction {
    Register(&'static str),
    RequestShelf(ShelfRequest),
    StartParent(Vec<RunStep>),
    ClearFaults,
    /// On the last parent run.
    Act(Action),
    CreateRack,
    Maintain(RequestedActivity),
    DeleteRack,
    /// Upgrade the firmware of the machine.
    Reprovision,
    /// While its power is being switched.
    RequestWhilePowering(ShelfRequest),
    Node(NodeAction),
    /// Reboot all machines, one in each wave.
    Rollout,
    /// Have the failed targets of the rollout tried again.
    RetryRollout,
}

/// Devices, and the requests to them.
#[derive(Clone)]
pub struct DeviceFixture {
    pub devices: &'static [&'static str],
    pub before: Vec<DeviceAction>,
    pub faults: Vec<FaultRule>,
    pub script: Vec<DeviceAction>,
    pub node: Option<&'static str>,
}

impl DeviceFixture {
    pub async fn prepare(&self, env: &TestEnv, client: &Client) {
        let asks = || self.before.iter().chain(&self.script);
        let in_rack = asks().any(|request| matches!(request, DeviceAction::CreateRack));
        if in_rack || asks().any(|request| matches!(request, DeviceAction::Reprovision)) {
            for record in [firmware("fw-1", "2.0", true, true), firmware(NEWER, "3.0", false, true)]
            {
                add_firmware(&env.store, record).await;
            }
        }
        for id in self.devices {
            let rack = in_rack.then(rack_id);
            InServiceDevice { target: device(id), rack, now: env.now() }.write(&env.store).await;
        }
        if asks().any(|request| matches!(request, DeviceAction::Rollout)) {
            for id in self.devices {
                env.set_phase(id, Phase::Ready).await;
            }
            env.enable_rollout_checks();
        }
        if self.node.is_some() {
            env.enable_node_checks();
            node_scenarios::make_site(client, node_scenarios::SITE).await;
        }
        run_device_script(client.clone(), env.clone(), self.before.clone(), "before").await;
        for rule in &self.faults {
            env.sim.add_fault(rule.clone()).expect("a rule");
        }
    }
}

/// Executes the actions in order, each with its own request id.
pub async fn run_device_script(
    client: Client,
    env: TestEnv,
    script: Vec<DeviceAction>,
    name: &str,
) {
    let mut last: Option<RunId> = None;
    for (index, ask) in script.into_iter().enumerate() {
        match &ask {
            DeviceAction::RequestWhilePowering(_) => wait_until_power_run(&env).await,
            DeviceAction::Register(_)
            | DeviceAction::RequestShelf(_)
            | DeviceAction::StartParent(_)
            | DeviceAction::ClearFaults
            | DeviceAction::Act(_)
            | DeviceAction::CreateRack
            | DeviceAction::Maintain(_)
            | DeviceAction::DeleteRack
            | DeviceAction::Node(_)
            | DeviceAction::Rollout
            | DeviceAction::RetryRollout
            | DeviceAction::Reprovision => wait_until_idle(&env).await,
        }
        let name = format!("{name} {index}");
        match ask {
            DeviceAction::Register(id) => {
                let register = || Register { id, now: env.now() };
                write_until_answered(&client, "register", register, |one, tx| {
                    Box::pin(one.run(tx))
                })
                .await;
            }
            DeviceAction::RequestShelf(requested)
            | DeviceAction::RequestWhilePowering(requested) => {
                let want =
                    || WriteShelfRequest { request: requested, name: name.clone(), now: env.now() };
                write_until_answered(&client, "request_shelf", want, |want, tx| {
                    Box::pin(want.run(tx))
                })
                .await;
            }
            DeviceAction::StartParent(steps) => {
                let id = RunId::new(env.now(), 7 + index as u64);
                let run = parent_run(id, &name, steps, env.now());
                let start = || StartParentRun { run: run.clone(), enqueue: Enqueue::Now };
                let started = write_until_answered(&client, "start_parent", start, |start, tx| {
                    Box::pin(start.run(tx))
                });
                last = Some(started.await);
            }
            DeviceAction::CreateRack => {
                let answer = client.call(|engine| async move {
                    engine.racks().create(described(), "client".into()).await
                });
                answer.await.expect("created");
            }
            DeviceAction::Reprovision => {
                let answer = client.call(|engine| {
                    let asked = reprovision(&name);
                    async move { engine.hosts().reprovision(asked).await }
                });
                answer.await.expect("accepted");
            }
            DeviceAction::Maintain(asked) => {
                let answer = client.call(|engine| {
                    let start = maintenance(asked.clone(), &name);
                    async move { engine.racks().maintain(start).await }
                });
                answer.await.expect("accepted");
            }
            DeviceAction::DeleteRack => {
                let answer = client.call(|engine| async move {
                    let named = Overrides::of(&[Gate::Devices], "a test");
                    engine.racks().delete(rack_id(), None, named, "client".into()).await
                });
                // A retried request may find the rack deleted.
                let answer = answer.await.map(drop);
                assert!(matches!(answer, Ok(()) | Err(StoreError::Refused(_))), "{answer:?}");
            }
            DeviceAction::Node(ask) => {
                node_scenarios::perform_node_action(&client, &env, ask, &name).await
            }
            DeviceAction::Rollout => {
                let answer = client.call(|engine| {
                    let new = rollout_fixture::request(rollout_fixture::reboots(""), &name);
                    async move { engine.rollouts().create(new).await }
                });
                answer.await.expect("created");
            }
            DeviceAction::RetryRollout => {
                let rollouts = env.rollouts().await;
                for rollout in rollouts.iter().filter(|one| one.counts.failed > 0) {
                    retry_rollout(&client, rollout).await;
                }
            }
            DeviceAction::ClearFaults => {
                env.sim.clear_faults(None).expect("cleared");
            }
            DeviceAction::Act(action) => {
                // The run may have been canceled; then there is nothing to retry.
                let id = last.clone().expect("a parent run");
                let run = client.wait_until_ended(&id).await;
                if run.progress.workflow.failed() {
                    client.act(&id, action).await;
                }
            }
        }
    }
    wait_until_idle(&env).await;
}

/// Has the failed targets tried again, and accepts a pause.
async fn retry_rollout(client: &Client, rollout: &Rollout) {
    for wanted in [RolloutRequest::RetryFailed, RolloutRequest::Resume] {
        let answer = client.call(|engine| {
            let (id, wanted) = (rollout.id(), wanted.clone());
            let who = Requester { by: "client".into(), reason: String::new() };
            async move { engine.rollouts().request(&id, wanted, who).await.map(drop) }
        });
        // A retried request may find it done; and it is not always paused.
        let answer = answer.await;
        assert!(matches!(answer, Ok(()) | Err(StoreError::Refused(_))), "{answer:?}");
    }
}

fn rack_id() -> RackId {
    RackId::trusted("rack-1")
}

fn described() -> RackDescription {
    let expected = Counts { machines: 1, switches: 1, power_shelves: 1 };
    let spec = RackSpec { hardware_type: "gb200".into(), expected, ..RackSpec::default() };
    RackDescription { id: rack_id(), labels: Labels::new(), spec }
}

fn reprovision(name: &str) -> Reprovision {
    Reprovision {
        machine: MachineId::trusted(FLASHED[0]),
        firmware: Some(FirmwareId::trusted(NEWER)),
        request_id: name.into(),
        by: "client".into(),
    }
}

fn maintenance(requested: RequestedActivity, name: &str) -> MaintenanceStart {
    MaintenanceStart {
        rack_id: rack_id(),
        request: RackMaintenanceRequest {
            scope: MaintenanceScope::default(),
            activities: vec![requested],
        },
        trigger: MaintenanceTrigger::OnDemand,
        request_id: name.into(),
        by: "client".into(),
        reference: String::new(),
        overrides: Overrides::default(),
        dry_run: false,
    }
}

/// Retries until it is written, through whichever process is current.
async fn write_until_answered<I: Send + Sync + 'static, T: Send + 'static>(
    client: &Client,
    name: &'static str,
    input: impl Fn() -> I,
    body: for<'a> fn(&'a I, &'a mut Tx) -> TxFuture<'a, T>,
) -> T {
    let answer = client.call(|engine| {
        let input = input();
        async move { retry_on_conflict(engine.store().write(name, input, body).await) }
    });
    answer.await.unwrap_or_else(|error| panic!("the request failed: {error}"))
}

/// Waits until a shelf has started a power run.
async fn wait_until_power_run(env: &TestEnv) {
    let is_power = |run: &Run| run.spec.run_type == RunType::Power;
    while !env.stored_state().await.runs.iter().any(|stored| is_power(&stored.run)) {
        tokio::time::sleep(PAUSE / 100).await;
    }
}

/// Waits until no run is active and every record is idle. Reads only after a commit.
async fn wait_until_idle(env: &TestEnv) {
    let mut committed = env.store.bus().listen();
    // Gives the woken workers time to start.
    tokio::time::sleep(PAUSE).await;
    loop {
        let all = env.records().await;
        let resting = |shelf: &PowerShelf| {
            let desired = shelf.maintenance_requested.is_some() || shelf.head.deleted;
            match shelf.state {
                PowerShelfState::Ready => !desired && shelf.head.active_run.is_none(),
                PowerShelfState::Error { .. } => !desired && !shelf.retry_requested,
                PowerShelfState::Initializing
                | PowerShelfState::FetchingData
                | PowerShelfState::Configuring
                | PowerShelfState::Maintenance { .. }
                | PowerShelfState::Deleting => false,
            }
        };
        let ended = active_runs(env).await.is_empty();
        let racks = all.racks.iter().all(|rack| {
            let over = matches!(rack.state, RackState::Ready | RackState::Error { .. });
            let requested = rack.topology_changed || !rack.maintenance_requested.is_empty();
            over && rack.active.is_empty() && !rack.head.deleted && !requested
        });
        let nodes =
            node_scenarios::nodes_are_idle(env, &all.nodes).await && env.rollouts_are_idle().await;
        if ended && racks && nodes && all.shelves.iter().all(resting) && all.hosts_are_idle() {
            return;
        }
        while committed.is_empty() {
            tokio::time::sleep(PAUSE).await;
        }
        committed = committed.resubscribe();
    }
}

/// The active run that a cancel is aimed at: a parent before its children.
pub async fn run_to_cancel(env: &TestEnv) -> Option<Run> {
    let active = active_runs(env).await;
    let parent = active.iter().find(|run| run.spec.parent_run.is_none()).cloned();
    parent.or_else(|| active.into_iter().next())
}

async fn active_runs(env: &TestEnv) -> Vec<Run> {
    let active = env.store.read((), |(), tx| Box::pin(tx.active_runs(100)));
    let active = active.await.expect("the in-memory database answers");
    active.complete().expect("all rows can be read")
}
