//! Devices in the simulated world, and what may be asked of them: each is one transaction, as a service would write it. Asking
//! again for what was written already changes nothing.

use crate::audit::{Asking, audit_run, gaps, step_of};
use crate::world::{Kept, World};
use model::effect::{Effect, Group, Key, Part, PowerTo};
use model::host::{Host, HostState, RETRY_INTERVAL};
use model::id::{MachineId, PlanId, RackId, RunId};
use model::lifecycle::{DeviceSpec, Head, Lifecycle};
use model::machine::{Labels, Machine, MachineSpec};
use model::node::Node;
use model::plan::{OnFailure, Params, RunStep, RunType};
use model::power_shelf::{MaintenanceRequest, PowerShelf, PowerShelfState};
use model::rack::Rack;
use model::run::{ENGINE_VERSION, Run, RunSpec, StepPhase, Workflow};
use model::switch::{Switch, SwitchState};
use model::target::{TargetId, TargetKind};
use model::time::Timestamp;
use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::time::Duration;
use store::{Cause, Enqueue, Event, NewEvent, RecordFilter, Result, Store, StoreError, Tx};

pub const SHELF: &str = "ps-1";
pub const SWITCH: &str = "sw-9";
pub const MANY: i64 = 1_000;

pub fn event(at: Timestamp, message: &str) -> NewEvent {
    NewEvent {
        cause: Cause::Request,
        actor: "client".into(),
        message: message.into(),
        decided_by: "here".into(),
        at,
    }
}

/// A device by its id: `m-…`, `sw-…`, `ps-…`.
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

/// Registers a shelf or a switch, whose life begins with that.
pub struct Register {
    pub id: &'static str,
    pub now: Timestamp,
}

impl Register {
    pub async fn run(&self, tx: &mut Tx) -> Result<()> {
        let head = Head::new(self.id, Labels::new(), self.now);
        match device(self.id).kind {
            TargetKind::Switch => self.put(tx, Switch::new(head, spec())).await,
            TargetKind::Machine | TargetKind::PowerShelf | TargetKind::Rack => {
                self.put(tx, PowerShelf::new(head, spec())).await
            }
        }
    }
}

impl Register {
    async fn put<R: Lifecycle>(&self, tx: &mut Tx, mut record: R) -> Result<()> {
        if tx.record::<R>(self.id).await?.is_some() {
            return Ok(());
        }
        tx.insert_record(&mut record, &event(self.now, "registered")).await
    }
}

/// A device that is in service already.
pub struct Stand {
    pub target: TargetId,
    pub rack: Option<RackId>,
    pub now: Timestamp,
}

impl Stand {
    pub async fn write(self, store: &Store) {
        let written = store.write("stand", self, |stand, tx| Box::pin(stand.run(tx)));
        written.await.expect("it stands");
    }

    async fn run(&self, tx: &mut Tx) -> Result<()> {
        let (id, event) = (self.target.id.as_str(), event(self.now, "registered"));
        let head = Head { rack: self.rack.clone(), ..Head::new(id, Labels::new(), self.now) };
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

/// What somebody may want of a shelf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    Power(PowerTo),
    Retry,
    Delete,
}

/// Writes a wish down, under a name, so that it is written once.
pub struct Want {
    pub wish: Wish,
    pub name: String,
    pub now: Timestamp,
}

impl Want {
    pub async fn run(&self, tx: &mut Tx) -> Result<()> {
        let Some(mut shelf) = tx.record_locked::<PowerShelf>(SHELF).await? else { return Ok(()) };
        let said = tx.history(SHELF, 0, MANY).await?;
        if said.iter().any(|event| event.message == self.name) {
            return Ok(());
        }
        match self.wish {
            Wish::Power(operation) => {
                shelf.maintenance_requested = Some(MaintenanceRequest {
                    requested_at: self.now,
                    initiator: "client".into(),
                    operation,
                    forced: None,
                    request_id: None,
                });
            }
            Wish::Retry => shelf.retry_requested = true,
            Wish::Delete => shelf.head.deleted = true,
        }
        tx.update_and_enqueue(&mut shelf, &event(self.now, &self.name))
    }
}

/// A step of a group: every device does the same, a few at a time.
pub fn group(name: &str, effect: &Effect, devices: &[&str], at_once: u32) -> RunStep {
    let part = |id: &&str| Part {
        target: device(id),
        run_type: RunType::Firmware,
        steps: vec![model::lifecycle::run_step(effect.word(), 60, 1, effect.clone())],
    };
    let group = Group { parts: devices.iter().map(part).collect(), at_once, unless: Vec::new() };
    model::lifecycle::run_step(name, 3_600, 0, Effect::Parts { group })
}

/// A run on a rack that claims its devices.
pub fn whole(id: RunId, name: &str, steps: Vec<RunStep>, at: Timestamp) -> Run {
    let mut claims: Vec<TargetId> = steps
        .iter()
        .flat_map(|step| match &step.effect {
            Effect::Parts { group } => group.parts.iter().map(|part| part.target.clone()).collect(),
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
        parent: None,
        restart: None,
        on_failure: OnFailure::KeepPhase,
        part_of: None,
        reports_to: None,
        claims,
        engine: ENGINE_VERSION,
        created_at: at,
    })
}

/// Writes a whole and names it on every device that it claims, all or none.
pub struct StartWhole {
    pub run: Run,
    pub enqueue: Enqueue<'static>,
}

impl StartWhole {
    pub async fn run(&self, tx: &mut Tx) -> Result<RunId> {
        let spec = &self.run.spec;
        if let Some(known) = tx.run_of_request(&spec.target, &spec.request_id).await? {
            return Ok(known.spec.id);
        }
        let event = event(spec.created_at, &spec.request_id);
        for target in &spec.claims {
            match target.kind {
                TargetKind::Machine => {
                    let id = MachineId::trusted(&target.id);
                    let mut machine = tx.machine_locked(&id).await?.expect("it stands");
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
    let mut record: R = tx.record_locked(&target.id).await?.expect("it stands");
    assert_eq!(record.head().active_run, None, "{target} is free");
    record.head_mut().active_run = Some(by.clone());
    tx.update_and_enqueue(&mut record, event)
}

/// Everything that is stored about devices and what was done on them.
pub struct Everything {
    pub machines: Vec<Machine>,
    pub shelves: Vec<PowerShelf>,
    pub switches: Vec<Switch>,
    pub racks: Vec<Rack>,
    pub hosts: Vec<Host>,
    pub nodes: Vec<Node>,
    /// Of each node, whether an agent speaks for it, and what that one has still to do.
    pub agents: Vec<(bool, Option<Key>)>,
    /// The histories of the records, by their words in the queue.
    pub histories: BTreeMap<String, Vec<Event>>,
    /// What the queue says of the records: id, and whether somebody holds it.
    pub held: Vec<String>,
    /// In the order in which they were accepted.
    pub runs: Vec<Kept>,
}

/// What every record has.
struct Seen<'a> {
    key: String,
    word: &'static str,
    head: &'a Head,
}

impl<'a> Seen<'a> {
    fn new<R: Lifecycle>(record: &'a R) -> Self {
        Self { key: record.subject().key(), word: record.word(), head: record.head() }
    }
}

impl Everything {
    fn records(&self) -> impl Iterator<Item = Seen<'_>> {
        let nodes = self.nodes.iter().map(Seen::new);
        self.devices().chain(self.hosts.iter().map(Seen::new)).chain(nodes)
    }

    fn devices(&self) -> impl Iterator<Item = Seen<'_>> {
        let shelves = self.shelves.iter().map(Seen::new);
        shelves.chain(self.switches.iter().map(Seen::new)).chain(self.racks.iter().map(Seen::new))
    }

    /// Nothing is on its way to another state by itself. A host that tries again by itself is.
    pub fn hosts_rest(&self) -> bool {
        self.hosts.iter().all(|host| match &host.state {
            HostState::Ready => host.request.is_none(),
            HostState::FailedFirmwareUpgrade { .. } => host.next_attempt(RETRY_INTERVAL).is_none(),
            HostState::CheckingFirmwareV2 { .. } | HostState::WaitingForRackFirmwareUpgrade => {
                false
            }
        })
    }
}

async fn look_at_all(tx: &mut Tx) -> Result<Everything> {
    let machines = tx.machines(&model::filter::Filter::default(), None, MANY).await?.machines;
    let all = RecordFilter::default();
    let shelves = tx.records::<PowerShelf>(&all, None, MANY as usize).await?.records;
    let switches = tx.records::<Switch>(&all, None, MANY as usize).await?.records;
    let racks = tx.records::<Rack>(&all, None, MANY as usize).await?.records;
    let hosts = tx.records::<Host>(&all, None, MANY as usize).await?.records;
    let nodes = tx.records::<Node>(&all, None, MANY as usize).await?.records;
    let mut agents = Vec::new();
    for node in &nodes {
        let task = tx.open_task(&node.id()).await?;
        agents.push((tx.has_agent(&node.id()).await?, task.map(|row| row.task.key)));
    }
    let mut held = Vec::new();
    for owner in tx.replica_heartbeats().await?.into_iter().map(|pulse| pulse.replica.incarnation) {
        held.extend(tx.claimed_by(&owner).await?.into_iter().map(|(id, _)| id.to_string()));
    }
    let mut runs = Vec::new();
    let page = tx.runs(&model::filter::Filter::default(), None, MANY).await?;
    for run in page.runs.into_iter().rev() {
        let id = run.spec.id.clone();
        let held = tx.claimed_run(&id).await?.expect("every run is in the queue's table");
        runs.push(Kept { run, held, history: tx.history(id.as_str(), 0, MANY).await? });
    }
    let histories = BTreeMap::new();
    let mut all = Everything {
        machines,
        shelves,
        switches,
        racks,
        hosts,
        nodes,
        agents,
        histories,
        held,
        runs,
    };
    let keys: Vec<String> = all.records().map(|one| one.key).collect();
    for key in keys {
        let history = tx.history(&key, 0, MANY).await?;
        all.histories.insert(key, history);
    }
    Ok(all)
}

/// How a run ended, and how its steps did.
type Ended = (Workflow, Vec<(String, StepPhase)>);

/// How a story came out, as far as it must not depend on what happened on the way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RackOutcome {
    /// The states of records, by id.
    pub records: Vec<(String, &'static str)>,
    /// What was done on each target, in order: how each run ended, and its steps.
    pub runs: BTreeMap<String, Vec<Ended>>,
    /// How often each step of each run acted, or was done by an agent.
    pub acted: BTreeMap<(String, usize, String), u32>,
    /// Of each node, whether an agent speaks for it.
    pub agents: Vec<bool>,
}

impl World {
    pub async fn everything(&self) -> Everything {
        let all = self.store.read((), |(), tx| Box::pin(look_at_all(tx)));
        all.await.expect("the database of a simulation always answers")
    }

    /// Waits until no record is on its way to another state by itself, however long a claim that nobody uses any more holds it up.
    pub async fn records_at_rest(&self) {
        for _ in 0..MAX_LOOKS {
            let all = self.everything().await;
            let nodes = crate::node_lives::at_rest(&all.nodes);
            if all.devices().all(|one| rests(one.word)) && all.hosts_rest() && nodes {
                return;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    pub async fn rack_outcome(&self) -> RackOutcome {
        let all = self.everything().await;
        let named = |one: Seen<'_>| {
            let place = all.nodes.iter().position(|node| node.head.id == one.key);
            (place.map_or(one.key, |place| format!("node {place}")), one.word)
        };
        let records = all.records().map(named).collect();
        let mut runs: BTreeMap<String, Vec<_>> = BTreeMap::new();
        let mut acted = BTreeMap::new();
        // How often a switch looks at itself depends on whether it saw who held it in between.
        let own_look =
            |run: &Run| run.spec.run_type == RunType::Check && run.spec.part_of.is_none();
        let worked = self.worked.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for Kept { run, .. } in all.runs.iter().filter(|kept| !own_look(&kept.run)) {
            let target = run.spec.target.key();
            let on_target = runs.entry(target.clone()).or_default();
            for count in self.sim.effects(run.spec.id.as_str()).expect("the ledger") {
                let step = (target.clone(), on_target.len(), step_of(&count.key));
                *acted.entry(step).or_default() += count.applied;
            }
            let own = format!("{}/", run.spec.id);
            for (key, times) in worked.iter().filter(|(key, _)| key.starts_with(&own)) {
                let step = (target.clone(), on_target.len(), step_of(key));
                *acted.entry(step).or_default() += times;
            }
            let steps = run.progress.steps.iter();
            let steps = steps.map(|step| (run.step_name(step), step.state)).collect();
            on_target.push((run.progress.workflow, steps));
        }
        acted.retain(|_, times| *times > 0);
        let agents = all.agents.iter().map(|(speaks, _)| *speaks).collect();
        RackOutcome { records, runs, acted, agents }
    }

    /// Everything that is wrong with what is stored, and with what the hardware saw.
    pub async fn audit_racks(&self, asking: Asking) -> Vec<String> {
        let all = self.everything().await;
        let mut wrong = self.witnessed.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for kept in &all.runs {
            let whole = kept.run.spec.steps.iter().any(|step| step.effect.word() == "parts");
            audit_run(kept, &mut wrong);
            gaps(kept.run.spec.id.as_str(), &kept.history, kept.run.version, &mut wrong);
            if !whole {
                self.audit_effects(kept, asking, &mut wrong);
            }
            audit_part(kept, &all.runs, &mut wrong);
        }
        audit_claims(&all, &mut wrong);
        self.audit_agents(&all, &mut wrong);
        audit_width(&all.runs, &mut wrong);
        wrong.extend(all.held.iter().map(|id| format!("{id} is still in somebody's hands")));
        wrong
    }
}

impl World {
    /// Nothing is left for an agent to do, and what one has done it has done under one key.
    fn audit_agents(&self, all: &Everything, wrong: &mut Vec<String>) {
        let open = all.agents.iter().filter_map(|(_, task)| task.as_ref());
        wrong.extend(open.map(|key| format!("{key} is still to be done")));
        let worked = self.worked.lock().unwrap_or_else(PoisonError::into_inner);
        let mut steps: BTreeMap<&str, u32> = BTreeMap::new();
        for (key, times) in worked.iter() {
            let step = key.rsplit_once('/').map_or(key.as_str(), |(step, _)| step);
            *steps.entry(step).or_default() += times;
        }
        let often = steps.into_iter().filter(|(_, times)| *times > 1);
        wrong.extend(often.map(|(step, times)| format!("{step} was done {times} times")));
    }
}

/// How many seconds records have to come to rest.
const MAX_LOOKS: u32 = 120;

fn rests(word: &str) -> bool {
    matches!(word, "Ready" | "Error")
}

/// A part is begun and ends while its whole lasts.
fn audit_part(kept: &Kept, runs: &[Kept], wrong: &mut Vec<String>) {
    let Some(whole) = &kept.run.spec.part_of else { return };
    let (id, part) = (&kept.run.spec.id, &kept.run);
    let Some(whole) = runs.iter().find(|one| one.run.spec.id == *whole) else {
        wrong.push(format!("{id} is a part of nothing"));
        return;
    };
    let (ended, end) = (part.progress.finished_at, whole.run.progress.finished_at);
    if ended > end {
        wrong.push(format!("{id} ended at {ended:?}, after its whole, which ended at {end:?}"));
    }
}

/// Nobody holds anything when all is over, and the histories of the records have no gaps.
fn audit_claims(all: &Everything, wrong: &mut Vec<String>) {
    let machines = all.machines.iter().map(|one| (one.id.to_string(), one.active_run.clone()));
    for Seen { key, head, .. } in all.records() {
        gaps(&key, &all.histories[&key], head.version, wrong);
    }
    let records = all.records().map(|one| (one.key, one.head.active_run.clone()));
    for (id, holder) in machines.chain(records) {
        if let Some(run) = holder {
            wrong.push(format!("{id} is still held by {run}"));
        }
    }
    for rack in &all.racks {
        let waits = rack.active.iter().chain(&rack.maintenance_requested);
        wrong.extend(waits.map(|run| format!("{} still waits for {run}", rack.head.id)));
    }
    for host in all.hosts.iter().filter(|host| host.is_ready()) {
        let machine = all.machines.iter().find(|one| one.id == host.machine());
        let alerts = machine.map(|machine| machine.health.said()).unwrap_or_default();
        wrong.extend(alerts.iter().map(|said| format!("{} is ready, but {said}", host.head.id)));
    }
    for shelf in all.shelves.iter().filter(|shelf| shelf.run.is_some()) {
        wrong.push(format!("{} still waits for {:?}", shelf.head.id, shelf.run));
    }
}

/// No group ever had more parts at work than it may.
fn audit_width(runs: &[Kept], wrong: &mut Vec<String>) {
    for whole in runs {
        for step in &whole.run.spec.steps {
            let Effect::Parts { group } = &step.effect else { continue };
            let of_step = format!("{}/{}/", whole.run.spec.id, step.name);
            let parts: Vec<&Run> = runs
                .iter()
                .map(|kept| &kept.run)
                .filter(|run| run.spec.request_id.starts_with(&of_step))
                .collect();
            let lasts = |run: &Run| {
                (run.spec.created_at, run.progress.finished_at.unwrap_or(run.spec.created_at))
            };
            for part in &parts {
                let at = lasts(part).0;
                let together = parts.iter().filter(|one| {
                    let (begun, ended) = lasts(one);
                    begun <= at && at < ended
                });
                if together.count() > group.at_once as usize {
                    wrong.push(format!("more parts of {of_step} were at work than may be"));
                }
            }
        }
    }
}

/// What a client makes of an answer: that somebody else wrote first means that it must ask again.
pub fn heard<T>(answer: Result<T>) -> Result<T> {
    match answer {
        Err(StoreError::Conflict) => Err(StoreError::Unavailable("somebody else wrote".into())),
        other => other,
    }
}
