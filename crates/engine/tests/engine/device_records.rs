//! Devices in the test environment, and requests to them. Each request is one transaction, as a
//! service would write it, and is idempotent.

use crate::test_env::{StoredRun, TestEnv};
use model::effect::{ChildRunGroup, ChildRunSpec, DesiredPower, Effect, EffectKey};
use model::filter::Filter;
use model::host::{Host, HostState, RETRY_INTERVAL};
use model::id::{MachineId, PlanId, RackId, RunId};
use model::lifecycle::{DeviceSpec, Lifecycle, RecordHeader};
use model::machine::{Labels, Machine, MachineSpec};
use model::node::Node;
use model::plan::{OnFailure, Params, RunStep, RunType};
use model::power_shelf::{PowerShelf, PowerShelfState, ShelfPowerRequest};
use model::rack::Rack;
use model::run::{ENGINE_VERSION, Run, RunSpec};
use model::switch::{Switch, SwitchState};
use model::target::{TargetId, TargetKind};
use model::time::Timestamp;
use std::collections::BTreeMap;
use store::{Cause, Enqueue, Event, NewEvent, Result, Store, StoreError, Tx};

pub const SHELF: &str = "ps-1";
pub const SWITCH: &str = "sw-9";
pub const MANY: i64 = 10_000;

pub fn event(at: Timestamp, message: &str) -> NewEvent {
    NewEvent {
        cause: Cause::Request,
        actor: "client".into(),
        message: message.into(),
        decided_by: "here".into(),
        at,
    }
}

/// The prefix of the id gives the kind: `m-…`, `sw-…`, `ps-…`.
pub fn device(id: &str) -> TargetId {
    let kind = match id.split_once('-').map(|(kind, _)| kind) {
        Some("sw") => TargetKind::Switch,
        Some("ps") => TargetKind::PowerShelf,
        Some("rack") => TargetKind::Rack,
        Some(_) | None => TargetKind::Machine,
    };
    TargetId::new(kind, id)
}

fn spec() -> DeviceSpec {
    DeviceSpec { provider: "sim".into(), ..DeviceSpec::default() }
}

/// Registers a shelf or a switch in its initial state.
pub struct Register {
    pub id: &'static str,
    pub now: Timestamp,
}

impl Register {
    pub async fn run(&self, tx: &mut Tx) -> Result<()> {
        let head = RecordHeader::new(self.id, Labels::new(), self.now);
        match device(self.id).kind {
            TargetKind::Switch => self.put(tx, Switch::new(head, spec())).await,
            TargetKind::Machine | TargetKind::PowerShelf | TargetKind::Rack => {
                self.put(tx, PowerShelf::new(head, spec())).await
            }
        }
    }

    async fn put<R: Lifecycle>(&self, tx: &mut Tx, mut record: R) -> Result<()> {
        if tx.record::<R>(self.id).await?.is_some() {
            return Ok(());
        }
        tx.insert_record(&mut record, &event(self.now, "registered")).await
    }
}

/// Inserts a device that is already in service.
pub struct InServiceDevice {
    pub target: TargetId,
    pub rack: Option<RackId>,
    pub now: Timestamp,
}

impl InServiceDevice {
    pub async fn write(self, store: &Store) {
        let written = store.write("stand", self, |stand, tx| Box::pin(stand.run(tx)));
        written.await.expect("the device exists");
    }

    async fn run(&self, tx: &mut Tx) -> Result<()> {
        let (id, event) = (self.target.id.as_str(), event(self.now, "registered"));
        let head = RecordHeader {
            rack: self.rack.clone(),
            ..RecordHeader::new(id, Labels::new(), self.now)
        };
        match self.target.kind {
            TargetKind::Machine => {
                let spec = MachineSpec { rack: self.rack.clone(), ..MachineSpec::from(spec()) };
                let machine = Machine::new(MachineId::trusted(id), spec, Labels::new(), self.now);
                tx.insert_machine(&machine, &event)
            }
            TargetKind::Switch => {
                let mut switch = Switch::new(head, spec());
                switch.state = SwitchState::Ready;
                tx.insert_record(&mut switch, &event).await
            }
            TargetKind::PowerShelf => {
                let mut shelf = PowerShelf::new(head, spec());
                shelf.state = PowerShelfState::Ready;
                tx.insert_record(&mut shelf, &event).await
            }
            TargetKind::Rack => Ok(()),
        }
    }
}

/// A request to a shelf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShelfRequest {
    Power(DesiredPower),
    Retry,
    Delete,
}

/// Writes a request. Its name makes it idempotent.
pub struct WriteShelfRequest {
    pub request: ShelfRequest,
    pub name: String,
    pub now: Timestamp,
}

impl WriteShelfRequest {
    pub async fn run(&self, tx: &mut Tx) -> Result<()> {
        let Some(mut shelf) = tx.record_locked::<PowerShelf>(SHELF).await? else { return Ok(()) };
        let message = tx.history(SHELF, 0, MANY).await?;
        if message.iter().any(|event| event.message == self.name) {
            return Ok(());
        }
        match self.request {
            ShelfRequest::Power(operation) => {
                shelf.maintenance_requested = Some(ShelfPowerRequest {
                    requested_at: self.now,
                    initiator: "client".into(),
                    operation,
                    overrides: model::gate::Overrides::default(),
                    request_id: None,
                });
            }
            ShelfRequest::Retry => shelf.retry_requested = true,
            ShelfRequest::Delete => shelf.head.deleted = true,
        }
        tx.update_and_enqueue(&mut shelf, &event(self.now, &self.name))
    }
}

/// A group step: the same effect on every device, `at_once` at a time.
pub fn group(name: &str, effect: &Effect, devices: &[&str], at_once: u32) -> RunStep {
    let part = |id: &&str| ChildRunSpec {
        target: device(id),
        run_type: RunType::Firmware,
        steps: vec![model::lifecycle::run_step(effect.name(), 60, 1, effect.clone())],
    };
    let group = ChildRunGroup {
        child_runs: devices.iter().map(part).collect(),
        max_concurrent: at_once,
        skip_if_all_hold: Vec::new(),
    };
    model::lifecycle::run_step(name, 3_600, 0, Effect::ChildRuns { group })
}

/// A parent run on a rack that claims its devices.
pub fn parent_run(id: RunId, name: &str, steps: Vec<RunStep>, at: Timestamp) -> Run {
    let mut claims: Vec<TargetId> = steps
        .iter()
        .flat_map(|step| match &step.effect {
            Effect::ChildRuns { group } => {
                group.child_runs.iter().map(|part| part.target.clone()).collect()
            }
            _ => Vec::new(),
        })
        .collect();
    claims.sort();
    claims.dedup();
    Run::new(RunSpec {
        id,
        target: device("rack-1"),
        request_id: name.into(),
        run_type: RunType::RackMaintenance,
        plan_id: PlanId::trusted("lifecycle-rack-maintenance"),
        steps,
        params: Params::new(),
        initiator: "client".into(),
        rerun_of: None,
        restart: None,
        on_failure: OnFailure::KeepPhase,
        parent_run: None,
        reports_to: None,
        held_targets: claims,
        engine_version: ENGINE_VERSION,
        created_at: at,
    })
}

/// Inserts a parent run and claims all of its devices in one transaction.
pub struct StartParentRun {
    pub run: Run,
    pub enqueue: Enqueue<'static>,
}

impl StartParentRun {
    pub async fn run(&self, tx: &mut Tx) -> Result<RunId> {
        let spec = &self.run.spec;
        if let Some(known) = tx.run_of_request(&spec.target, &spec.request_id).await? {
            return Ok(known.spec.id);
        }
        let event = event(spec.created_at, &spec.request_id);
        for target in &spec.held_targets {
            match target.kind {
                TargetKind::Machine => {
                    let id = MachineId::trusted(&target.id);
                    let mut machine = tx.machine_locked(&id).await?.expect("the device exists");
                    assert_eq!(machine.active_run, None, "{target} is free");
                    machine.active_run = Some(spec.id.clone());
                    tx.update_machine(&mut machine, &event)?;
                }
                TargetKind::Switch => claim::<Switch>(tx, target, &spec.id, &event).await?,
                TargetKind::PowerShelf => claim::<PowerShelf>(tx, target, &spec.id, &event).await?,
                TargetKind::Rack => {}
            }
        }
        tx.insert_run(&self.run, self.enqueue, &event)?;
        Ok(spec.id.clone())
    }
}

async fn claim<R: Lifecycle>(
    tx: &mut Tx,
    target: &TargetId,
    by: &RunId,
    event: &NewEvent,
) -> Result<()> {
    let mut record: R = tx.record_locked(&target.id).await?.expect("the device exists");
    assert_eq!(record.head().active_run, None, "{target} is free");
    record.head_mut().active_run = Some(by.clone());
    tx.update_and_enqueue(&mut record, event)
}

pub struct Records {
    pub shelves: Vec<PowerShelf>,
    pub switches: Vec<Switch>,
    pub racks: Vec<Rack>,
    pub hosts: Vec<Host>,
    pub nodes: Vec<Node>,
}

/// Everything stored about devices and their runs.
pub struct StoredState {
    pub machines: Vec<Machine>,
    pub records: Records,
    /// For each node: whether it has an agent, and its open task.
    pub agents: Vec<(bool, Option<EffectKey>)>,
    /// The histories of machines and records, by queue key.
    pub histories: BTreeMap<String, Vec<Event>>,
    /// The ids of claimed queue rows.
    pub claimed: Vec<String>,
    /// In the order of acceptance.
    pub runs: Vec<StoredRun>,
}

/// The common part of all records.
pub struct RecordSummary<'a> {
    pub key: String,
    pub state: &'static str,
    pub head: &'a RecordHeader,
}

impl<'a> RecordSummary<'a> {
    fn new<R: Lifecycle>(record: &'a R) -> Self {
        Self { key: record.subject().key(), state: record.state_name(), head: record.head() }
    }
}

impl Records {
    pub fn all(&self) -> impl Iterator<Item = RecordSummary<'_>> {
        let nodes = self.nodes.iter().map(RecordSummary::new);
        self.devices().chain(self.hosts.iter().map(RecordSummary::new)).chain(nodes)
    }

    pub fn devices(&self) -> impl Iterator<Item = RecordSummary<'_>> {
        let shelves = self.shelves.iter().map(RecordSummary::new);
        shelves
            .chain(self.switches.iter().map(RecordSummary::new))
            .chain(self.racks.iter().map(RecordSummary::new))
    }

    /// No host changes state by itself. A host that waits for its retry does.
    pub fn hosts_are_idle(&self) -> bool {
        self.hosts.iter().all(|host| match &host.state {
            HostState::Ready => host.request.is_none(),
            HostState::FailedFirmwareUpgrade { .. } => host.next_attempt(RETRY_INTERVAL).is_none(),
            HostState::CheckingFirmwareV2 { .. } | HostState::WaitingForRackFirmwareUpgrade => {
                false
            }
        })
    }
}

/// Reads the records alone: scripts poll them, and this is cheap.
async fn read_records(tx: &mut Tx) -> Result<Records> {
    let (all, many) = (Filter::default(), MANY as usize);
    Ok(Records {
        shelves: tx.records::<PowerShelf>(&all, None, many).await?.records,
        switches: tx.records::<Switch>(&all, None, many).await?.records,
        racks: tx.records::<Rack>(&all, None, many).await?.records,
        hosts: tx.records::<Host>(&all, None, many).await?.records,
        nodes: tx.records::<Node>(&all, None, many).await?.records,
    })
}

async fn read_machines(tx: &mut Tx) -> Result<Vec<Machine>> {
    Ok(tx.machines(&model::filter::Filter::default(), None, MANY).await?.machines)
}

async fn read_stored_state(tx: &mut Tx) -> Result<StoredState> {
    let machines = read_machines(tx).await?;
    let records = read_records(tx).await?;
    let mut agents = Vec::new();
    for node in &records.nodes {
        let task = tx.open_task(&node.id()).await?;
        agents.push((tx.has_agent(&node.id()).await?, task.map(|row| row.task.key)));
    }
    let mut claim = Vec::new();
    for owner in
        tx.replica_heartbeats().await?.into_iter().map(|heartbeat| heartbeat.replica.incarnation)
    {
        claim.extend(tx.claimed_by(&owner).await?.into_iter().map(|(id, _)| id.to_string()));
    }
    let mut runs = Vec::new();
    let page = tx.runs(&model::filter::Filter::default(), None, MANY).await?;
    for run in page.runs.into_iter().rev() {
        let id = run.spec.id.clone();
        let claim = tx.run_with_claim(&id).await?.expect("every run has a queue row");
        runs.push(StoredRun {
            run,
            queue_row: claim,
            history: tx.history(id.as_str(), 0, MANY).await?,
        });
    }
    let mut histories = BTreeMap::new();
    let machine_ids = machines.iter().map(|machine| machine.id.to_string());
    let keys: Vec<String> = records.all().map(|one| one.key).chain(machine_ids).collect();
    for key in keys {
        let history = tx.history(&key, 0, MANY).await?;
        histories.insert(key, history);
    }
    Ok(StoredState { machines, records, agents, histories, claimed: claim, runs })
}

impl TestEnv {
    pub async fn machines(&self) -> Vec<Machine> {
        let read = self.store.read((), |(), tx| Box::pin(read_machines(tx)));
        read.await.expect("the in-memory database answers")
    }

    pub async fn records(&self) -> Records {
        let read = self.store.read((), |(), tx| Box::pin(read_records(tx)));
        read.await.expect("the in-memory database answers")
    }

    pub async fn stored_state(&self) -> StoredState {
        let read = self.store.read((), |(), tx| Box::pin(read_stored_state(tx)));
        read.await.expect("the in-memory database answers")
    }
}

/// Maps a conflict to `Unavailable`, so that the client retries.
pub fn retry_on_conflict<T>(answer: Result<T>) -> Result<T> {
    match answer {
        Err(StoreError::Conflict) => Err(StoreError::Unavailable("conflict".into())),
        other => other,
    }
}
