//! The creation of a rollout: its targets are selected, ordered and written once.

use super::turn::{NodeOperation, RackOperation, StageRun, TurnResources};
use super::{Rollouts, keep_own_budget, known_rollout};
use crate::access::Caller;
use crate::admission::{ApprovalGate, StartRun, approval_sentence, event, sealed, step_lines};
use crate::rack::MaintenanceAdmission;
use crate::run::previewed_steps;
use model::access::PermissionSet;
use model::approval::Proposal;
use model::budget::Budget;
use model::filter::{Filter, FilterSubject};
use model::gate::Overrides;
use model::here;
use model::id::{BudgetId, MachineId, RackId, RolloutId};
use model::machine::{Labels, Machine};
use model::plan::{IMAGE_REF, Params, RunType};
use model::rack::Rack;
use model::refusal::{Reason, Refusal};
use model::rollout::{
    ExcludedTarget, LimitingBudget, MAX_TARGETS, OnConflict, Pace, Rollout, RolloutEditor,
    RolloutOperation, RolloutPreview, RolloutSpec, TargetStage, exclusion, machine_key,
    most_at_once, ordered, plan_targets,
};
use model::run::{Run, TimeEstimate};
use model::target::{TargetId, TargetKind};
use model::text;
use model::time::Timestamp;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use store::{BudgetMember, Cause, DomainCount, Result, Tx};

/// The machines of one page of the selection.
const PAGE: i64 = 1_000;
/// The targets whose rollouts are compared in one statement.
const CONFLICT_PAGE: usize = 500;

const RACKS_PER_PAGE: usize = 1_000;
const UNREADABLE: &str = "its row cannot be read";

/// A request to create a rollout.
#[derive(Debug, Clone)]
pub struct NewRollout {
    pub spec: RolloutSpec,
    pub request_id: String,
    pub by: String,
}

/// A created rollout, or what it would be.
#[derive(Debug, Clone)]
pub struct CreatedRollout {
    pub rollout: Rollout,
    pub preview: RolloutPreview,
    /// What a dry run says about the gate `approval`; empty: nothing.
    pub approval: String,
}

impl Rollouts {
    /// Creates a rollout. Idempotent: a repeated request returns the rollout of the first one.
    pub async fn create(&self, new: NewRollout) -> Result<CreatedRollout> {
        let NewRollout { spec: requested, request_id, by } = new;
        check_spec(&requested)?;
        let known = self.0.store().read(request_id.clone(), |id, tx| Box::pin(replayed(tx, id)));
        if let Some(known) = known.await? {
            return replay(known, &requested);
        }
        let selected = self.select(&requested).await?;
        let id = RolloutId::new(self.0.now(), self.0.random());
        let sample = self.sample(&id, &requested.operation, &selected).await?;
        let gate = ApprovalGate::new(&self.0);
        let (gates, now) = (gate.clone(), self.0.now());
        let dry_run = self.0.store().is_dry_run();
        let create = CreateRollout {
            id,
            requested,
            selected,
            sample,
            request_id,
            by,
            gate: gates,
            dry_run,
            now,
        };
        let done = self
            .0
            .store()
            .retry_write("create_rollout", create, |create, tx| Box::pin(create.run(tx)));
        gate.settle(&self.0, done.await).await
    }

    /// What matches, in the order of the rollout, and what is left out.
    async fn select(&self, spec: &RolloutSpec) -> Result<Selected> {
        match spec.operation.target_kind() {
            TargetKind::Rack => self.select_racks(spec).await,
            TargetKind::Machine | TargetKind::Switch | TargetKind::PowerShelf => {
                self.select_machines(spec).await
            }
        }
    }

    async fn select_racks(&self, spec: &RolloutSpec) -> Result<Selected> {
        let filter = Filter::parse(&spec.filter, FilterSubject::Rack)?;
        let mut racks: Vec<Rack> = Vec::new();
        let mut excluded = Vec::new();
        let mut after = None;
        loop {
            let page = self.0.racks().list(filter.clone(), after, RACKS_PER_PAGE).await?;
            excluded.extend(page.unreadable.iter().map(|row| ExcludedTarget {
                target: TargetId::from(&RackId::trusted(&row.id)),
                reason: UNREADABLE.into(),
            }));
            for rack in page.records {
                match rack.head.deleted {
                    false => racks.push(rack),
                    true => excluded.push(ExcludedTarget {
                        target: rack.target(),
                        reason: "it is being deleted".into(),
                    }),
                }
            }
            if racks.len() > MAX_TARGETS {
                return Err(too_many("racks").into());
            }
            let Some(next) = page.next else { break };
            after = Some(next);
        }
        if racks.is_empty() {
            return Err(nothing_to_do(spec, &excluded).into());
        }
        let racks = ordered(racks, spec.order_label.as_deref(), rack_key);
        let targets = racks.iter().map(Rack::target).collect();
        Ok(Selected { targets, machines: Vec::new(), excluded })
    }

    async fn select_machines(&self, spec: &RolloutSpec) -> Result<Selected> {
        let filter = Filter::parse(&spec.filter, FilterSubject::Machine)?;
        let mut machines: Vec<Machine> = Vec::new();
        let mut excluded = Vec::new();
        let mut after = None;
        loop {
            let page = self.0.machines().list(filter.clone(), after, PAGE).await?;
            let unreadable = page.unreadable.iter().map(|row| ExcludedTarget {
                target: TargetId::from(&MachineId::trusted(&row.id)),
                reason: UNREADABLE.into(),
            });
            excluded.extend(unreadable);
            for machine in page.machines {
                match exclusion(spec.operation.run_type, &machine) {
                    None => machines.push(machine),
                    Some(reason) => {
                        let target = TargetId::from(&machine.id);
                        excluded.push(ExcludedTarget { target, reason });
                    }
                }
            }
            if machines.len() > MAX_TARGETS {
                return Err(too_many("machines").into());
            }
            let Some(next) = page.next else { break };
            after = Some(next);
        }
        if machines.is_empty() {
            return Err(nothing_to_do(spec, &excluded).into());
        }
        let machines = ordered(machines, spec.order_label.as_deref(), machine_key);
        let targets = machines.iter().map(|machine| TargetId::from(&machine.id)).collect();
        Ok(Selected { targets, machines, excluded })
    }

    /// The runs that the rollout would start on its first machine within a cluster, and on its
    /// first one without. They show the steps, and an operation that cannot be started is refused
    /// here.
    async fn sample(
        &self,
        id: &RolloutId,
        operation: &RolloutOperation,
        of: &Selected,
    ) -> Result<Sample> {
        let clustered = |machine: &&Machine| !machine.spec.target_cluster_ref.is_empty();
        let inside = of.machines.iter().find(clustered);
        let outside = of.machines.iter().find(|machine| !clustered(machine));
        let mut sample = Sample::default();
        if let Some(rack_id) = of.targets.first().and_then(TargetId::rack) {
            let request_id = format!("{id}:{rack_id}");
            let planned = RackOperation { rollout: id, operation, rack_id, request_id };
            let (resources, caller) = (TurnResources::new(&self.0), self.0.caller().clone());
            let planned = planned.start(&resources, 0, caller)?;
            let read =
                self.0.store().read(planned, |planned, tx| Box::pin(sample_of_rack(tx, planned)));
            return Ok(Sample { params: operation.params.clone(), ..read.await? });
        }
        if [RunType::Onboard, RunType::Decommission].contains(&operation.run_type) {
            let sample = self.sample_of_nodes(id, operation, &of.machines).await?;
            return Ok(Sample { params: operation.params.clone(), ..sample });
        }
        for machine in [inside, outside].into_iter().flatten() {
            let run = |stage| {
                let request_id = format!("{id}:{}", machine.id);
                let run = StageRun { rollout: id, operation, machine, stage, request_id };
                run.start(&TurnResources::new(&self.0), 0, self.0.caller().clone())
            };
            run(TargetStage::Operation).check_provider_images(self.0.store()).await?;
            let input = (STAGES_WITH_RUN.map(run), machine.clone());
            let read = self
                .0
                .store()
                .read(input, |(starts, machine), tx| Box::pin(sample_of(tx, starts, machine)));
            sample.add(read.await?);
        }
        Ok(sample)
    }
}

impl Rollouts {
    /// The run on the first machine whose node could be worked on.
    async fn sample_of_nodes(
        &self,
        id: &RolloutId,
        operation: &RolloutOperation,
        machines: &[Machine],
    ) -> Result<Sample> {
        let (resources, caller) = (TurnResources::new(&self.0), self.0.caller().clone());
        let input = (id.clone(), operation.clone(), machines.to_vec(), resources, caller);
        let read = self.0.store().read(input, |(id, operation, machines, resources, caller), tx| {
            Box::pin(async move {
                for machine in machines {
                    let onboards = operation.run_type == RunType::Onboard;
                    if tx.live_node_of_machine(&machine.id).await?.is_some() == onboards {
                        continue;
                    }
                    let (request_id, stage) = (String::new(), TargetStage::Operation);
                    let run = StageRun { rollout: id, operation, machine, stage, request_id };
                    let with = (resources, 0);
                    if let Some(start) = NodeOperation::of(tx, &run, with, caller).await? {
                        let run = start.planned_run(tx, machine).await?;
                        return sample_of_run(tx, run).await;
                    }
                }
                let message = "no machine that matches has a node to work on, or needs one";
                Err(Refusal::new(Reason::RolloutEmpty, message).next("farrier node list").into())
            })
        });
        read.await
    }
}

/// The place of a rack in the order of a rollout.
fn rack_key(rack: &Rack) -> (&Labels, &str) {
    (&rack.head.labels, rack.head.id.as_str())
}

/// The targets of a new rollout.
struct Selected {
    targets: Vec<TargetId>,
    /// None if the targets are racks.
    machines: Vec<Machine>,
    excluded: Vec<ExcludedTarget>,
}

/// What the rollout does on single targets, and the usual time of it.
#[derive(Default)]
struct Sample {
    runs: Vec<Run>,
    /// With what a run adds to the parameters that were asked for, such as the default image.
    params: Params,
    usual: Option<Duration>,
}

impl Sample {
    fn add(&mut self, other: Self) {
        self.usual = match self.runs.is_empty() {
            true => other.usual,
            false => self.usual.zip(other.usual).map(|(one, other)| one.max(other)),
        };
        self.runs.extend(other.runs);
        self.params = other.params;
    }

    fn permissions(&self) -> PermissionSet {
        let needed = self.runs.iter().map(|run| run.spec.permissions());
        needed.fold(PermissionSet::EMPTY, PermissionSet::union)
    }
}

const STAGES_WITH_RUN: [TargetStage; 3] =
    [TargetStage::EnterMaintenance, TargetStage::Operation, TargetStage::ExitMaintenance];

async fn sample_of(tx: &mut Tx, starts: &[StartRun; 3], machine: &Machine) -> Result<Sample> {
    let mut sample = Sample { usual: Some(Duration::ZERO), ..Sample::default() };
    for (stage, start) in STAGES_WITH_RUN.into_iter().zip(starts) {
        let run = start.new_run(tx, machine).await?;
        let time = TimeEstimate::of(&previewed_steps(tx, &run).await?);
        sample.usual = sample.usual.zip(time.usual).map(|(all, one)| all + one.median);
        if stage == TargetStage::Operation {
            start.check_images(tx, machine, &run).await?;
            sample.params = run.spec.params.clone();
        }
        sample.runs.push(run);
    }
    Ok(sample)
}

async fn sample_of_rack(tx: &mut Tx, planned: &MaintenanceAdmission) -> Result<Sample> {
    let run = planned.planned_run(tx).await?;
    sample_of_run(tx, run).await
}

async fn sample_of_run(tx: &mut Tx, run: Run) -> Result<Sample> {
    let time = TimeEstimate::of(&previewed_steps(tx, &run).await?);
    let usual = time.usual.map(|one| one.median);
    Ok(Sample { usual, params: Params::new(), runs: vec![run] })
}

struct CreateRollout {
    id: RolloutId,
    requested: RolloutSpec,
    selected: Selected,
    sample: Sample,
    request_id: String,
    by: String,
    gate: ApprovalGate,
    dry_run: bool,
    now: Timestamp,
}

impl CreateRollout {
    async fn run(&self, tx: &mut Tx) -> Result<CreatedRollout> {
        if let Some(known) = replayed(tx, &self.request_id).await? {
            return replay(known, &self.requested);
        }
        let spec = &self.requested;
        let targets = &self.selected.targets;
        self.check_rights(self.gate.caller())?;
        if spec.on_conflict == OnConflict::Refuse {
            check_conflicts(tx, targets).await?;
        }
        let permissions = self.sample.permissions();
        let approval = approval_sentence(tx, permissions, &Overrides::default()).await?;
        let note = self.gate.check(tx, Some(self.proposal(targets))).await?;
        let total = u32::try_from(targets.len()).unwrap_or(u32::MAX);
        let editor = RolloutEditor::new(self.gate.caller().principal());
        let request = (self.request_id.clone(), total);
        let mut rollout = Rollout::new(&self.id, spec.clone(), editor, request, self.now);
        rollout.spec.operation.params = self.sample.params.clone();
        rollout.permissions = permissions.iter().map(|one| one.as_str().to_string()).collect();
        let suffix = if note.is_empty() { note } else { format!("; {note}") };
        let noun = spec.operation.target_kind().noun();
        let message = format!("{} on {total} {noun}s{suffix}", spec.operation.words());
        let event = event(Cause::Request, &self.by, message, here!(), self.now);
        keep_own_budget(tx, None, &rollout, &event).await?;
        tx.insert_record(&mut rollout, &event).await?;
        tx.insert_rollout_targets(&self.id, &plan_targets(targets, 0, self.now))?;
        tx.insert_rollout_request(&self.request_id, &self.id)?;
        let preview = self.preview(tx, total).await?;
        Ok(CreatedRollout { rollout, preview, approval: approval.unwrap_or_default() })
    }

    async fn preview(
        &self,
        tx: &mut Tx,
        total: u32,
    ) -> Result<RolloutPreview> {
        let (spec, targets) = (&self.requested, self.selected.targets.clone());
        let waves = spec.pace.waves(total);
        // Only a dry run shows what the budgets let be out of service at once.
        let budgets = match self.dry_run {
            true => load_limiting_budgets(tx, &self.id, &targets).await?,
            false => Vec::new(),
        };
        let others = budgets.iter().filter(|one| one.budget.id.as_str() != self.id.as_str());
        let wanted = self.selected.machines.iter().filter(|one| spec.operation.holds_on(one));
        Ok(RolloutPreview {
            at_once: most_at_once(&waves, &targets, &spec.pace, &budgets),
            as_wanted: wanted.map(|machine| TargetId::from(&machine.id)).collect(),
            excluded: self.selected.excluded.clone(),
            budgets: others.map(LimitingBudget::describe).collect(),
            usual_target: self.sample.usual,
            waves,
            targets,
        })
    }

    /// The caller must have the rights now with which the rollout will act.
    fn check_rights(&self, caller: &Caller) -> Result<()> {
        let what = self.requested.operation.words();
        // A rack has no labels that limit rights.
        if self.selected.machines.is_empty() {
            let granted = caller.grants().everywhere;
            return Ok(caller.require_all(granted, self.sample.permissions(), &what)?);
        }
        for machine in &self.selected.machines {
            let granted = caller.grants().on(&machine.labels);
            caller.require_all(granted, self.sample.permissions(), &what)?;
        }
        Ok(())
    }

    /// What another person approves: the operation with its steps, the pace, and every target.
    fn proposal(&self, targets: &[TargetId]) -> Proposal {
        let spec = &self.requested;
        let pace = Pace::default().differences(&spec.pace);
        let mut plan = vec![
            spec.operation.words(),
            format!("canary {}; {}", spec.pace.canary, pace.join(", ")),
        ];
        plan.extend(spec.include_new.then(|| "includes machines that match later".to_string()));
        plan.extend(spec.gate.iter().map(|gate| format!("gate {gate}")));
        plan.extend(spec.start_at.iter().map(|at| format!("starts at {} ms", at.as_millis())));
        for run in &self.sample.runs {
            let kind = run.spec.run_type.as_str();
            let steps = (1..).zip(&run.spec.steps);
            let lines =
                steps.flat_map(|(count, step)| step_lines(&format!("{kind} {count}"), step));
            plan.extend(lines);
        }
        sealed(Proposal {
            request: format!("ROLLOUT {}", spec.operation.run_type.as_str()),
            request_id: self.request_id.clone(),
            targets: targets.iter().map(ToString::to_string).collect(),
            permissions: self.sample.permissions(),
            plan,
            digest: String::new(),
            overrides: Overrides::default(),
            operations: Vec::new(),
        })
    }
}

/// The budgets in which some of the targets count, with the rollout's own.
async fn load_limiting_budgets(
    tx: &mut Tx,
    rollout: &RolloutId,
    targets: &[TargetId],
) -> Result<Vec<LimitingBudget>> {
    let targets = targets.iter().filter_map(TargetId::machine).collect();
    let mut members: BTreeMap<BudgetId, BTreeMap<MachineId, BTreeSet<String>>> = BTreeMap::new();
    let mut domains = BTreeSet::new();
    for member in tx.budget_members(&targets).await? {
        let BudgetMember { machine, budget, domain, .. } = member;
        if Budget::binds(&budget, rollout.as_str()) {
            domains.insert((budget.clone(), domain.clone()));
            members.entry(budget).or_default().entry(machine).or_default().insert(domain);
        }
    }
    let counts = tx.count_domains(&domains).await?;
    let ids: Vec<BudgetId> = members.keys().cloned().collect();
    let mut limiting = Vec::with_capacity(ids.len());
    for budget in tx.budgets_by_ids(&ids).await? {
        let own = counts.iter().filter(|count| count.budget == budget.id);
        let room = |count: &DomainCount| {
            let total = count.total.try_into().unwrap_or_default();
            (budget.max_unavailable.of(total), count.unavailable.try_into().unwrap_or_default())
        };
        let domains = own.map(|count| (count.domain.clone(), room(count))).collect();
        let members = members.remove(&budget.id).unwrap_or_default();
        limiting.push(LimitingBudget { domains, members, budget });
    }
    Ok(limiting)
}

/// The rollout that an earlier request with this id has created.
async fn replayed(tx: &mut Tx, request_id: &str) -> Result<Option<Rollout>> {
    match tx.rollout_of_request(request_id).await? {
        Some(id) => Ok(Some(known_rollout(tx, &id).await?)),
        None => Ok(None),
    }
}

/// The answer to a repeated request.
fn replay(known: Rollout, requested: &RolloutSpec) -> Result<CreatedRollout> {
    if known.requested == *requested {
        let (preview, approval) = (RolloutPreview::default(), String::new());
        return Ok(CreatedRollout { rollout: known, preview, approval });
    }
    let Rollout { request_id, head, .. } = known;
    let message =
        format!("request_id {request_id:?} was used for {}, with other parameters", head.id);
    let next = format!("farrier rollout get {}", head.id);
    Err(Refusal::new(Reason::RolloutExists, message).next(next).into())
}

fn check_spec(spec: &RolloutSpec) -> Result<()> {
    spec.operation.check("rollout.spec.type")?;
    spec.pace.check("rollout.pace")?;
    if spec.operation.target_kind() == TargetKind::Rack {
        check_spec_of_racks(spec)?;
    }
    if let Some(gate) = &spec.gate {
        gate.check("rollout.spec.gate")?;
    }
    let image = spec.operation.params.get(IMAGE_REF).filter(|image| !image.is_empty());
    let default_reimage =
        spec.operation.run_type == RunType::Reimage && spec.operation.plan_id.is_none();
    if default_reimage && image.is_none() {
        return Err(Refusal::missing("rollout.spec.params[image_ref]").into());
    }
    match &spec.order_label {
        Some(label) => Ok(text::check_short("rollout.spec.order_label", label)?),
        None => Ok(()),
    }
}

/// A rack has no conditions, and budgets count machines.
fn check_spec_of_racks(spec: &RolloutSpec) -> Result<()> {
    let given = [
        ("rollout.spec.gate", spec.gate.is_some()),
        ("rollout.spec.include_new", spec.include_new),
        ("rollout.spec.plan_id", spec.operation.plan_id.is_some()),
        ("rollout.pace.max_unavailable", spec.pace.max_unavailable.is_some()),
    ];
    match given.into_iter().find(|(_, given)| *given) {
        Some((field, _)) => {
            Err(Refusal::invalid(field, "has no use for racks", "leave it out").into())
        }
        None => Ok(()),
    }
}

async fn check_conflicts(tx: &mut Tx, targets: &[TargetId]) -> Result<()> {
    for some in targets.chunks(CONFLICT_PAGE) {
        if let Some((target, other)) = tx.open_rollout_target(some).await? {
            let message = format!("{target} is a target of {other}, which has not ended");
            let next = format!("farrier rollout get {other}");
            return Err(Refusal::new(Reason::RolloutConflict, message).next(next).into());
        }
    }
    Ok(())
}

fn too_many(noun: &str) -> Refusal {
    let problem = format!("matches more than {MAX_TARGETS} {noun}");
    Refusal::invalid("filter", problem, "name a part of the fleet")
}

fn nothing_to_do(spec: &RolloutSpec, excluded: &[ExcludedTarget]) -> Refusal {
    let kind = spec.operation.target_kind();
    let noun = kind.noun();
    let why = match excluded.first() {
        None => format!("no {noun} matches"),
        Some(first) => {
            let (count, target) = (excluded.len(), &first.target);
            format!("{count} {noun}s match, and all are excluded; {target}: {}", first.reason)
        }
    };
    let shown = text::shell_word(&spec.filter);
    let next = format!("{} --filter {shown}", kind.list_command());
    Refusal::new(Reason::RolloutEmpty, format!("the rollout has no target: {why}")).next(next)
}
