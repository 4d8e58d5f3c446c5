//! The creation of a rollout: its targets are selected, ordered and written once.

use super::turn::{StageRun, TurnResources};
use super::{Rollouts, known_rollout};
use crate::access::Caller;
use crate::admission::{ApprovalGate, StartRun, approval_sentence, event, sealed, step_lines};
use crate::run::previewed_steps;
use model::access::PermissionSet;
use model::approval::Proposal;
use model::filter::{Filter, FilterSubject};
use model::gate::Overrides;
use model::here;
use model::id::{MachineId, RolloutId};
use model::machine::Machine;
use model::plan::{IMAGE_REF, Params, RunType};
use model::refusal::{Reason, Refusal};
use model::rollout::{
    ExcludedMachine, MAX_TARGETS, OnConflict, Pace, Rollout, RolloutEditor, RolloutOperation,
    RolloutPreview, RolloutSpec, TargetStage, exclusion, ordered, plan_targets,
};
use model::run::{Run, TimeEstimate};
use model::text;
use model::time::Timestamp;
use model::window::StartCheck;
use std::time::Duration;
use store::{Cause, Result, Tx};

/// The machines of one page of the selection.
const PAGE: i64 = 1_000;
/// The machines whose rollouts are compared in one statement.
const CONFLICT_PAGE: usize = 500;

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
    /// What a dry run says about the windows and freezes of the targets.
    pub windows: Vec<String>,
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
        let create =
            CreateRollout { id, requested, selected, sample, request_id, by, gate: gates, now };
        let done = self
            .0
            .store()
            .retry_write("create_rollout", create, |create, tx| Box::pin(create.run(tx)));
        gate.settle(&self.0, done.await).await
    }

    /// The machines that match, in the order of the rollout, and those that are left out.
    async fn select(&self, spec: &RolloutSpec) -> Result<Selected> {
        let filter = Filter::parse(&spec.filter, FilterSubject::Machine)?;
        let mut machines: Vec<Machine> = Vec::new();
        let mut excluded = Vec::new();
        let mut after = None;
        loop {
            let page = self.0.machines().list(filter.clone(), after, PAGE).await?;
            let unreadable = page.unreadable.iter().map(|row| ExcludedMachine {
                machine: MachineId::trusted(&row.id),
                reason: "its row cannot be read".into(),
            });
            excluded.extend(unreadable);
            for machine in page.machines {
                match exclusion(&machine) {
                    None => machines.push(machine),
                    Some(reason) => excluded.push(ExcludedMachine { machine: machine.id, reason }),
                }
            }
            if machines.len() > MAX_TARGETS {
                let problem = format!("matches more than {MAX_TARGETS} machines");
                return Err(Refusal::invalid("filter", problem, "name a part of the fleet").into());
            }
            let Some(next) = page.next else { break };
            after = Some(next);
        }
        if machines.is_empty() {
            return Err(nothing_to_do(&spec.filter, &excluded).into());
        }
        let machines = ordered(machines, spec.order_label.as_deref());
        Ok(Selected { machines, excluded })
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
        for machine in [inside, outside].into_iter().flatten() {
            let run = |stage| {
                let request_id = format!("{id}:{}", machine.id);
                let begins = false;
                let run = StageRun { rollout: id, operation, machine, stage, begins, request_id };
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

/// The machines of a new rollout.
struct Selected {
    machines: Vec<Machine>,
    excluded: Vec<ExcludedMachine>,
}

/// What the rollout does on single machines, and the usual time of it.
#[derive(Default)]
struct Sample {
    runs: Vec<Run>,
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

struct CreateRollout {
    id: RolloutId,
    requested: RolloutSpec,
    selected: Selected,
    sample: Sample,
    request_id: String,
    by: String,
    gate: ApprovalGate,
    now: Timestamp,
}

impl CreateRollout {
    async fn run(&self, tx: &mut Tx) -> Result<CreatedRollout> {
        if let Some(known) = replayed(tx, &self.request_id).await? {
            return replay(known, &self.requested);
        }
        let spec = &self.requested;
        let machines: Vec<MachineId> =
            self.selected.machines.iter().map(|machine| machine.id.clone()).collect();
        self.check_rights(self.gate.caller())?;
        if spec.on_conflict == OnConflict::Refuse {
            check_conflicts(tx, &machines).await?;
        }
        let permissions = self.sample.permissions();
        let approval = approval_sentence(tx, permissions, &Overrides::default()).await?;
        let note = self.gate.check(tx, Some(self.proposal(&machines))).await?;
        let total = u32::try_from(machines.len()).unwrap_or(u32::MAX);
        let editor = RolloutEditor::new(self.gate.caller().principal());
        let request = (self.request_id.clone(), total);
        let mut rollout = Rollout::new(&self.id, spec.clone(), editor, request, self.now);
        rollout.spec.operation.params = self.sample.params.clone();
        rollout.permissions = permissions.iter().map(|one| one.as_str().to_string()).collect();
        let suffix = if note.is_empty() { note } else { format!("; {note}") };
        let message = format!("{} on {total} machines{suffix}", spec.operation.words());
        let event = event(Cause::Request, &self.by, message, here!(), self.now);
        tx.insert_record(&mut rollout, &event).await?;
        tx.insert_rollout_targets(&self.id, &plan_targets(&machines, self.now))?;
        tx.insert_rollout_request(&self.request_id, &self.id)?;
        let preview = RolloutPreview {
            waves: spec.pace.waves(total),
            targets: machines,
            excluded: self.selected.excluded.clone(),
            usual_target: self.sample.usual,
        };
        let (approval, windows) = (approval.unwrap_or_default(), self.describe_windows(tx).await?);
        Ok(CreatedRollout { rollout, preview, approval, windows })
    }

    async fn describe_windows(&self, tx: &mut Tx) -> Result<Vec<String>> {
        let rules = tx.start_rules_in_force(true, self.now).await?;
        let found = StartCheck::new(&self.selected.machines, &rules, true, self.now)?;
        let own = self.requested.pace.window.as_ref();
        let own = own.map(|own| format!("its own window ({own}) is {}", own.state(self.now)));
        Ok(own.into_iter().chain(found.describe(&Overrides::default())).collect())
    }

    /// The caller must have the rights now with which the rollout will act.
    fn check_rights(&self, caller: &Caller) -> Result<()> {
        let what = self.requested.operation.words();
        for machine in &self.selected.machines {
            let granted = caller.grants().on(&machine.labels);
            caller.require_all(granted, self.sample.permissions(), &what)?;
        }
        Ok(())
    }

    /// What another person approves: the operation with its steps, the pace, and every machine.
    fn proposal(&self, machines: &[MachineId]) -> Proposal {
        let spec = &self.requested;
        let pace = Pace::default().differences(&spec.pace);
        let mut plan = vec![
            spec.operation.words(),
            format!("canary {}; {}", spec.pace.canary, pace.join(", ")),
        ];
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
            targets: machines.iter().map(ToString::to_string).collect(),
            permissions: self.sample.permissions(),
            plan,
            digest: String::new(),
            overrides: Overrides::default(),
            operations: Vec::new(),
        })
    }
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
        return Ok(CreatedRollout { rollout: known, preview, approval, windows: Vec::new() });
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

async fn check_conflicts(tx: &mut Tx, machines: &[MachineId]) -> Result<()> {
    for some in machines.chunks(CONFLICT_PAGE) {
        if let Some((machine, other)) = tx.open_rollout_target(some).await? {
            let message = format!("{machine} is a target of {other}, which has not ended");
            let next = format!("farrier rollout get {other}");
            return Err(Refusal::new(Reason::RolloutConflict, message).next(next).into());
        }
    }
    Ok(())
}

fn nothing_to_do(filter: &str, excluded: &[ExcludedMachine]) -> Refusal {
    let why = match excluded.first() {
        None => "no machine matches".to_string(),
        Some(first) => {
            let (count, machine) = (excluded.len(), &first.machine);
            format!("{count} machines match, and all are excluded; {machine}: {}", first.reason)
        }
    };
    let shown = text::shell_word(filter);
    let next = format!("farrier list --filter {shown}");
    Refusal::new(Reason::RolloutEmpty, format!("the rollout has no target: {why}")).next(next)
}
