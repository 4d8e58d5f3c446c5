//! The work of a rollout's turn on its targets.
//!
//! All of it is in the transaction of the turn: the row of a target, the run that it starts, and
//! the counts of the rollout. A crash before the commit leaves the target as it was; after it, the
//! run exists, and its end wakes the rollout. A turn works on at most [`MAX_TARGETS_PER_TURN`].

use crate::Engine;
use crate::access::Caller;
use crate::admission::{Created, RecordStart, StartRequest, StartRun, event};
use crate::component::desired_firmware;
use crate::holds::halt_run;
use crate::node::{Decommission, Onboard, StartDecommission, StartOnboarding};
use crate::rack::{MaintenanceAdmission, MaintenanceStart};
use model::access::{TokenKind, TokenState, unauthenticated};
use model::filter::{Filter, FilterSubject};
use model::firmware::FirmwareResolution;
use model::gate::Overrides;
use model::here;
use model::host::Host;
use model::id::{BudgetId, MachineId, NodeId, RackId, RolloutId, RunId};
use model::lifecycle::{SubjectId, SubjectKind};
use model::machine::Machine;
use model::node::Node;
use model::node::heartbeat::HeartbeatLimits;
use model::plan::{Defaults, Maintenance, Params, RunType};
use model::rack::Rack;
use model::rack::maintenance::{MaintenanceTrigger, RackLimits, request_of_rollout};
use model::refusal::{Reason, Refusal};
use model::rollout::{
    MAX_TARGETS, RefusedStart, Rollout, RolloutEditor, RolloutOperation, RolloutStage,
    RolloutTarget, TargetContext, TargetObject, TargetStage, TargetState, TargetStep, exclusion, machine_key,
    ordered, plan_targets,
};
use model::run::actions::Action;
use model::run::{HistoryNote, Run};
use model::target::{TargetId, TargetKind};
use model::time::Timestamp;
use providers::Providers;
use std::collections::{BTreeMap, BTreeSet};
use store::{Cause, Result, StoreError, Tx};

/// The most targets that one turn works on; the rest have their own turns.
const MAX_TARGETS_PER_TURN: i64 = 32;
const NO_NODE: &str = "it has no node";
/// The machines of one page of a search for new ones.
const MACHINES_PER_PAGE: i64 = 1_000;
/// Runs that a lifecycle starts itself have the lower numbers.
const FIRST_RUN: u64 = 1 << 10;

/// What a turn needs beside the database.
#[derive(Clone)]
pub(crate) struct TurnResources {
    pub providers: Providers,
    pub defaults: Defaults,
    rack_limits: RackLimits,
    heartbeat_limits: HeartbeatLimits,
    pub now: Timestamp,
    random: u64,
}

impl TurnResources {
    pub fn new(engine: &Engine) -> Self {
        Self {
            providers: engine.providers().clone(),
            defaults: engine.defaults().clone(),
            rack_limits: engine.settings().rack_limits,
            heartbeat_limits: engine.settings().nodes.heartbeat_limits,
            now: engine.now(),
            random: engine.random(),
        }
    }

    /// The id of a run of this turn; each number makes another one.
    pub fn run_id(&self, number: u64) -> RunId {
        RunId::new(self.now, self.random.wrapping_add(number << 32))
    }
}

/// The run of one stage of a target.
pub(super) struct StageRun<'a> {
    pub rollout: &'a RolloutId,
    pub operation: &'a RolloutOperation,
    pub machine: &'a Machine,
    pub stage: TargetStage,
    pub request_id: String,
}

impl StageRun<'_> {
    /// The start of the run. A stage without a run of its own starts the operation.
    pub fn start(self, resources: &TurnResources, number: u64, caller: Caller) -> StartRun {
        let Self { rollout, operation, machine, stage, request_id } = self;
        let (run_type, plan_id, params) = match stage.maintenance_run(machine) {
            Some((run_type, plan)) => (run_type, plan.map(Maintenance::plan_id), Params::new()),
            None => {
                let RolloutOperation { run_type, plan_id, params } = operation.clone();
                (run_type, plan_id, params)
            }
        };
        let start = StartRequest {
            machine_id: machine.id.clone(),
            request_id,
            run_type,
            plan_id,
            params,
            overrides: Overrides::default(),
            initiator: rollout.to_string(),
        };
        let by = RecordStart {
            id: resources.run_id(FIRST_RUN + number),
            record: SubjectId::new(SubjectKind::Rollout, rollout.as_str()),
            caller,
            defaults: resources.defaults.clone(),
            providers: resources.providers.clone(),
            now: resources.now,
        };
        StartRun::by_record(start, by)
    }
}

/// The maintenance of a rack that is a target.
pub(super) struct RackOperation<'a> {
    pub rollout: &'a RolloutId,
    pub operation: &'a RolloutOperation,
    pub rack_id: RackId,
    pub request_id: String,
}

impl RackOperation<'_> {
    pub fn start(
        self,
        resources: &TurnResources,
        number: u64,
        caller: Caller,
    ) -> Result<MaintenanceAdmission> {
        let start = MaintenanceStart {
            rack_id: self.rack_id,
            request: request_of_rollout(&self.operation.params)?,
            trigger: MaintenanceTrigger::OnDemand,
            request_id: self.request_id,
            by: self.rollout.to_string(),
            reference: String::new(),
            overrides: Overrides::default(),
            dry_run: false,
        };
        let (id, limits) = (resources.run_id(FIRST_RUN + number), resources.rack_limits);
        let with = (caller, resources.now);
        Ok(MaintenanceAdmission::by_record(start, id, limits, with))
    }
}

/// The onboarding or the decommission of the node of a machine that is a target.
pub(super) enum NodeOperation {
    Onboard(StartOnboarding),
    Decommission(StartDecommission),
}

impl NodeOperation {
    /// None if the operation is none on nodes.
    pub async fn of(
        tx: &mut Tx,
        run: &StageRun<'_>,
        (resources, number): (&TurnResources, u64),
        caller: &Caller,
    ) -> Result<Option<Self>> {
        let TurnResources { providers, now, heartbeat_limits, .. } = resources;
        let id = resources.run_id(FIRST_RUN + number);
        let (overrides, by) = (Overrides::default(), run.rollout.to_string());
        let request_id = run.request_id.clone();
        if run.operation.run_type == RunType::Onboard {
            let (machine, site) = (run.machine.id.clone(), run.operation.site()?);
            return Ok(Some(Self::Onboard(StartOnboarding {
                request: Onboard { machine, site, overrides, request_id, by },
                node: NodeId::new(*now, resources.random.wrapping_add(number << 32)),
                run: id,
                owner: None,
                providers: providers.clone(),
                record: Some(caller.clone()),
                now: *now,
            })));
        }
        if run.operation.run_type != RunType::Decommission {
            return Ok(None);
        }
        let node = tx.live_node_of_machine(&run.machine.id).await?;
        let node = node.ok_or_else(|| Refusal::new(Reason::NotFound, NO_NODE))?;
        Ok(Some(Self::Decommission(StartDecommission {
            request: Decommission { node, mode: run.operation.mode()?, overrides, request_id, by },
            run: id,
            owner: None,
            providers: providers.clone(),
            limits: *heartbeat_limits,
            record: Some(caller.clone()),
            now: *now,
        })))
    }

    /// The run as it would be created now.
    pub async fn planned_run(&self, tx: &mut Tx, machine: &Machine) -> Result<Run> {
        match self {
            Self::Onboard(start) => Ok(start.plan(tx, machine).await?.1),
            Self::Decommission(start) => {
                let id = start.request.node.as_str();
                let node = tx.record::<Node>(id).await?;
                let node = node.ok_or_else(|| Refusal::new(Reason::NotFound, NO_NODE))?;
                start.plan(tx, (&node, machine)).await
            }
        }
    }

    async fn run(&self, tx: &mut Tx, created: &mut Created) -> Result<Run> {
        let (started, new) = match self {
            Self::Onboard(start) => start.run(tx).await?,
            Self::Decommission(start) => start.run(tx).await?,
        };
        created.extend(new);
        Ok(started.run)
    }
}

/// The targets that a turn has moved, and what it still may do.
struct TargetWork<'a> {
    resources: &'a TurnResources,
    id: RolloutId,
    /// The rollout with its counts after the work.
    rollout: Rollout,
    /// The rights of the editor, read before the first start.
    rights: Option<std::result::Result<Caller, Refusal>>,
    started: u64,
    settled: Vec<TargetState>,
    /// The domains of budgets of which each machine is a member, while it serves.
    domains: BTreeMap<MachineId, BTreeSet<(BudgetId, String)>>,
    /// The domains in which nothing is left.
    full: BTreeSet<(BudgetId, String)>,
    /// The machines that count in the budget of the rollout's own limit.
    counted: BTreeSet<MachineId>,
    /// What the history says beside the counts.
    notes: Vec<String>,
}

/// Works on the targets that are due, then on the next ones. Returns the rollout if its counts, or
/// its pause, have changed.
pub(crate) async fn work_on_targets(
    rollout: &Rollout,
    tx: &mut Tx,
    resources: &TurnResources,
    created: &mut Created,
) -> Result<Option<(Rollout, HistoryNote)>> {
    if rollout.stage.has_ended() {
        return Ok(None);
    }
    let mut work = TargetWork {
        resources,
        id: rollout.id(),
        rollout: rollout.clone(),
        rights: None,
        started: 0,
        settled: Vec::new(),
        domains: BTreeMap::new(),
        full: BTreeSet::new(),
        counted: BTreeSet::new(),
        notes: Vec::new(),
    };
    let due = tx.due_rollout_targets(&work.id, resources.now, MAX_TARGETS_PER_TURN).await?;
    let next = work.find_next(tx, &due).await?;
    work.lock_machines(tx, due.iter().chain(&next)).await?;
    for target in due {
        work.advance(tx, target, created).await?;
    }
    for target in next {
        // A start without rights has paused the rollout.
        if work.rollout.free_slots() > 0 && !work.is_held_back(&target) {
            work.advance(tx, target, created).await?;
        }
    }
    if work.rollout.includes_new_now() {
        work.include_new(tx).await?;
    }
    work.settled.iter().for_each(|state| created.settle_target(*state));
    let after = work.rollout;
    if after == *rollout {
        return Ok(None);
    }
    let mut words = change_words(rollout, &after);
    words.extend(work.notes.iter().map(|note| format!("; {note}")));
    let note = HistoryNote::new(words, here!());
    Ok(Some((after, note)))
}

/// Such as `wave 2: 3 active, 10 done`, with the reason of a new pause.
fn change_words(before: &Rollout, after: &Rollout) -> String {
    let changed = |state: &TargetState| before.counts.of(*state) != after.counts.of(*state);
    let states = TargetState::ALL.into_iter().filter(changed);
    let words: Vec<String> =
        states.map(|state| format!("{} {}", after.counts.of(state), state.as_str())).collect();
    let mut text = format!("wave {}: {}", after.wave, words.join(", "));
    if let Some(pause) = after.pause.as_ref().filter(|_| before.pause.is_none()) {
        text = match words.is_empty() {
            true => format!("paused: {}", pause.reason),
            false => format!("{text}; paused: {}", pause.reason),
        };
    }
    text
}

impl TargetWork<'_> {
    /// The targets that may be begun in this turn. The due ones may free a place each.
    async fn find_next(&self, tx: &mut Tx, due: &[RolloutTarget]) -> Result<Vec<RolloutTarget>> {
        let (now, count) = (self.resources.now, i64::try_from(due.len()).unwrap_or(i64::MAX));
        if !due.is_empty() {
            let machines = due.iter().filter_map(|one| one.target.machine()).collect();
            tx.look_at_targets_waiting_for(&self.id, &machines, now).await?;
        }
        let free = i64::from(self.rollout.free_slots());
        let starts = self.rollout.pause.is_none() && self.rollout.stage == RolloutStage::Running;
        let most = (MAX_TARGETS_PER_TURN - count).min(free.saturating_add(count));
        match starts && most > 0 {
            true => tx.next_rollout_targets(&self.rollout, now, most).await,
            false => Ok(Vec::new()),
        }
    }

    /// Adds the machines that match by now and are no targets.
    async fn include_new(&mut self, tx: &mut Tx) -> Result<()> {
        let filter = Filter::parse(&self.rollout.spec.filter, FilterSubject::Machine)?;
        let run_type = self.rollout.spec.operation.run_type;
        let (mut machines, mut after) = (Vec::new(), None::<String>);
        loop {
            let page = tx.machines(&filter, after.as_deref(), MACHINES_PER_PAGE).await?;
            let ids = page.machines.iter().map(|machine| machine.id.clone()).collect();
            let known = tx.rollout_targets_among(&self.id, &ids).await?;
            let new =
                |machine: &Machine| !known.contains(&machine.id) && exclusion(run_type, machine).is_none();
            machines.extend(page.machines.into_iter().filter(new));
            let Some(next) = page.next else { break };
            after = Some(next);
        }
        let label = self.rollout.spec.order_label.as_deref();
        let machines = ordered(machines, label, machine_key);
        let room = MAX_TARGETS.saturating_sub(self.rollout.total as usize);
        let ids: Vec<TargetId> =
            machines.iter().map(|one| TargetId::from(&one.id)).take(room).collect();
        if ids.is_empty() {
            return Ok(());
        }
        let rows = plan_targets(&ids, self.rollout.total, self.resources.now);
        tx.insert_rollout_targets(&self.id, &rows)?;
        self.notes.push(format!("{} machines match by now and are included", rows.len()));
        let count = u32::try_from(rows.len()).unwrap_or(u32::MAX);
        self.rollout = self.rollout.with_more_targets(count);
        Ok(())
    }

    /// Locks the machines, then their memberships in budgets, both in the order of their ids: a turn
    /// takes several machines, and transactions that take one of them do not deadlock with it.
    async fn lock_machines(
        &mut self,
        tx: &mut Tx,
        targets: impl Iterator<Item = &RolloutTarget>,
    ) -> Result<()> {
        let machines: BTreeSet<MachineId> =
            targets.filter_map(|one| one.target.machine()).collect();
        for machine in &machines {
            // A row that cannot be read is reported when its target is advanced.
            readable(tx.machine_locked(machine).await)?.ok();
        }
        for member in tx.budget_members_locked(&machines).await? {
            if member.budget.as_str() == self.id.as_str() {
                self.counted.insert(member.machine.clone());
            }
            if !member.unavailable {
                let domains = self.domains.entry(member.machine).or_default();
                domains.insert((member.budget, member.domain));
            }
        }
        Ok(())
    }

    /// True if another target of this turn has found a budget of its machine used up.
    fn is_held_back(&self, target: &RolloutTarget) -> bool {
        let machine = target.target.machine();
        let domains = machine.and_then(|machine| self.domains.get(&machine));
        domains.is_some_and(|domains| !domains.is_disjoint(&self.full))
    }

    async fn advance(
        &mut self,
        tx: &mut Tx,
        target: RolloutTarget,
        created: &mut Created,
    ) -> Result<()> {
        let now = self.resources.now;
        let stage = target.stage.unwrap_or(TargetStage::Operation);
        let machine = match target.target.machine() {
            Some(id) => match readable(tx.machine(&id).await)? {
                Ok(machine) => machine,
                Err(refusal) => return self.refused(tx, target, stage, &refusal),
            },
            None => None,
        };
        let rack = match target.target.rack() {
            Some(id) => match readable(tx.record::<Rack>(id.as_str()).await)? {
                Ok(rack) => rack,
                Err(refusal) => return self.refused(tx, target, stage, &refusal),
            },
            None => None,
        };
        let run = match &target.run {
            Some(id) => match readable(tx.run(id).await)? {
                Ok(run) => run,
                Err(refusal) => return self.refused(tx, target, stage, &refusal),
            },
            None => None,
        };
        let other = match target.state == TargetState::Active {
            true => None,
            false => tx.other_rollout_on(&target.target, &self.id).await?,
        };
        let nothing_to_do = match (&machine, target.stage) {
            (Some(machine), None) => self.find_nothing_to_do(tx, machine).await?,
            (Some(_) | None, _) => None,
        };
        let limited = self.rollout.own_budget(now).is_some();
        let seen = TargetContext {
            object: match (&machine, &rack) {
                (Some(machine), _) => TargetObject::Machine(machine),
                (None, Some(_)) => TargetObject::Rack,
                (None, None) => TargetObject::Deleted,
            },
            run: run.as_ref(),
            nothing_to_do: nothing_to_do.as_deref(),
            other: other.as_ref(),
            counts: !limited
                || machine.as_ref().is_some_and(|machine| self.counted.contains(&machine.id)),
        };
        match target.next(&self.rollout, seen, now) {
            TargetStep::Keep => {
                let kept = RolloutTarget { due_at: None, ..target.clone() };
                self.write(tx, target.state, kept)
            }
            TargetStep::Cancel(run) => self.cancel(tx, target, &run).await,
            TargetStep::Change(after) => self.write(tx, target.state, *after),
            TargetStep::Start(row, stage) => match (machine, rack) {
                (Some(machine), _) => self.start(tx, *row, (&machine, stage), created).await,
                (None, Some(rack)) => self.start_rack(tx, *row, (&rack, stage), created).await,
                // A target without its object starts nothing.
                (None, None) => self.write(tx, target.state, *row),
            },
        }
    }

    /// Why the operation has nothing to do on a machine, by what is recorded of its firmware or its
    /// node.
    async fn find_nothing_to_do(&self, tx: &mut Tx, machine: &Machine) -> Result<Option<String>> {
        let operation = &self.rollout.spec.operation;
        if [RunType::Onboard, RunType::Decommission].contains(&operation.run_type) {
            let node = tx.live_node_of_machine(&machine.id).await?;
            return Ok(match (node, operation.run_type == RunType::Onboard) {
                (Some(node), true) => Some(format!("it has the node {node} already")),
                (None, false) => Some(NO_NODE.into()),
                (Some(_) | None, _) => None,
            });
        }
        if operation.run_type != RunType::Firmware {
            return Ok(None);
        }
        let (rack, named) = (machine.spec.rack.as_ref(), operation.firmware());
        match desired_firmware(tx, rack, named.as_ref()).await? {
            FirmwareResolution::Skip(why) => Ok(Some(format!("no firmware is applied: {why}"))),
            FirmwareResolution::Unknown(_) => Ok(None),
            FirmwareResolution::Use(firmware) => {
                let host = tx.record::<Host>(machine.id.as_str()).await?;
                let has = host.map(|host| host.facts.firmware).unwrap_or_default();
                let missing = firmware.missing_on(TargetKind::Machine, &has);
                Ok(missing.is_empty().then(|| format!("it has firmware {} already", firmware.id)))
            }
        }
    }

    async fn start(
        &mut self,
        tx: &mut Tx,
        target: RolloutTarget,
        (machine, stage): (&Machine, TargetStage),
        created: &mut Created,
    ) -> Result<()> {
        let caller = match self.rights(tx).await? {
            Ok(caller) => caller,
            Err(refusal) => return self.refused(tx, target, stage, &refusal),
        };
        let run = StageRun {
            rollout: &self.id,
            operation: &self.rollout.spec.operation,
            machine,
            stage,
            request_id: target.request_id(&self.id, stage),
        };
        let number = self.started;
        self.started += 1;
        let started = match NodeOperation::of(tx, &run, (self.resources, number), &caller).await {
            Ok(Some(start)) => start.run(tx, created).await,
            Ok(None) => {
                let start = run.start(self.resources, number, caller);
                start.run(tx, created).await.map(|started| started.run)
            }
            Err(error) => Err(error),
        };
        match started {
            Ok(Run { spec, .. }) => {
                let before = target.state;
                self.write(tx, before, target.started(stage, spec.id, self.resources.now))
            }
            Err(StoreError::Refused(refusal)) => self.refused(tx, target, stage, &refusal),
            Err(error) => Err(error),
        }
    }

    async fn start_rack(
        &mut self,
        tx: &mut Tx,
        target: RolloutTarget,
        (rack, stage): (&Rack, TargetStage),
        created: &mut Created,
    ) -> Result<()> {
        let caller = match self.rights(tx).await? {
            Ok(caller) => caller,
            Err(refusal) => return self.refused(tx, target, stage, &refusal),
        };
        let operation = RackOperation {
            rollout: &self.id,
            operation: &self.rollout.spec.operation,
            rack_id: rack.id(),
            request_id: target.request_id(&self.id, stage),
        };
        let start = operation.start(self.resources, self.started, caller)?;
        self.started += 1;
        match start.run(tx).await {
            Ok((started, new)) => {
                created.extend(new);
                let run = started.run.map(|run| run.spec.id);
                let run = run.ok_or_else(|| StoreError::Corrupt("no run was started".into()))?;
                self.write(tx, target.state, target.clone().started(stage, run, self.resources.now))
            }
            Err(StoreError::Refused(refusal)) => self.refused(tx, target, stage, &refusal),
            Err(error) => Err(error),
        }
    }

    fn refused(
        &mut self,
        tx: &mut Tx,
        target: RolloutTarget,
        stage: TargetStage,
        refusal: &Refusal,
    ) -> Result<()> {
        let (before, now) = (target.state, self.resources.now);
        if let Some(budget) = refusal.budget.as_deref() {
            self.full.insert((budget.id.clone(), budget.domain.clone()));
        }
        let row = match target.refused(&self.rollout, stage, refusal, now) {
            RefusedStart::Target(row) => row,
            RefusedStart::NoRights(row, reason) => {
                self.rollout = self.rollout.paused(&reason, "engine", now);
                row
            }
        };
        self.write(tx, before, *row)
    }

    async fn cancel(&mut self, tx: &mut Tx, target: RolloutTarget, run: &RunId) -> Result<()> {
        let reason = format!("{} was aborted", self.id);
        let event =
            event(Cause::Engine, self.id.as_str(), reason.clone(), here!(), self.resources.now);
        let mut row = RolloutTarget { due_at: None, ..target.clone() };
        match halt_run(tx, run, Action::Cancel, &reason, &event).await {
            Ok(()) => {}
            // It goes on to its end.
            Err(StoreError::Refused(refusal)) => row.reason = refusal.message,
            Err(error) => return Err(error),
        }
        self.write(tx, target.state, row)
    }

    /// Writes a row, and counts it where it has changed its state.
    fn write(&mut self, tx: &mut Tx, before: TargetState, row: RolloutTarget) -> Result<()> {
        self.rollout.counts.shift(before, row.state, 1);
        if before != row.state && row.state == TargetState::Waiting {
            // One stands for the others of this turn.
            if self.notes.is_empty() {
                self.notes.push(format!("{} waits: {}", row.target, row.reason));
            }
        }
        if before != row.state && !TargetState::OPEN.contains(&row.state) {
            self.settled.push(row.state);
        }
        tx.update_rollout_target(&self.id, &row)
    }

    async fn rights(&mut self, tx: &mut Tx) -> Result<std::result::Result<Caller, Refusal>> {
        if let Some(known) = &self.rights {
            return Ok(known.clone());
        }
        let found = editor_rights(tx, &self.rollout.editor.clone(), self.resources.now).await?;
        self.rights = Some(found.clone());
        Ok(found)
    }
}

/// The rights that the editor has now, or why there are none.
async fn editor_rights(
    tx: &mut Tx,
    editor: &RolloutEditor,
    now: Timestamp,
) -> Result<std::result::Result<Caller, Refusal>> {
    if !editor.is_user {
        return Ok(Ok(Caller::internal()));
    }
    if let Some(id) = &editor.token_id {
        let token = tx.api_token(id).await?.filter(|token| token.kind == TokenKind::Api);
        // The end of a browser's session takes no rights away.
        let ended = match token.map(|token| token.state(now)) {
            Some(TokenState::Revoked) => Some("was revoked"),
            Some(TokenState::Expired) => Some("has expired"),
            Some(TokenState::Valid) | None => None,
        };
        if let Some(ended) = ended {
            let user = &editor.user;
            let problem = format!("the token {id} of {user}, the last editor, {ended}");
            return Ok(Err(unauthenticated(&problem)));
        }
    }
    let principal = editor.principal();
    // An unreadable row grants nothing.
    let policy = tx.access_policy(&mut Vec::new()).await?;
    let grants = policy.grants(&principal);
    Ok(Ok(Caller::of_record(principal, grants)))
}

/// A row that cannot be read holds up its target, not the rollout.
fn readable<T>(found: Result<Option<T>>) -> Result<std::result::Result<Option<T>, Refusal>> {
    match found {
        Err(StoreError::Corrupt(problem)) => Ok(Err(Refusal::new(Reason::MachineBlocked, problem))),
        found => Ok(Ok(found?)),
    }
}
