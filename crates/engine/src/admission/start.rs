//! Starts a plan on a machine.

use super::window::admit_start;
use super::{Admission, Created, Holds, event, lock_machine, no_run, replay};
use crate::access::Caller;
use crate::plan::no_plan;
use crate::run::{Runs, superseding_run};
use model::gate::{Gate, Overrides, gates_of, without_overrides};
use model::here;
use model::id::{MachineId, PlanId, RunId};
use model::lifecycle::SubjectId;
use model::machine::Machine;
use model::machine::admit::{RunCase, admit_again};
use model::plan::{Defaults, IMAGE_REF, Params, Plan, RunType, checked_params, default_plan};
use model::refusal::{Reason, Refusal};
use model::run::actions::{RestartMode, restart};
use model::run::{ENGINE_VERSION, Progress, Run, RunSpec};
use model::target::TargetId;
use model::time::Timestamp;
use providers::Providers;
use store::{Cause, Enqueue, Result, Tx};

/// A request to start a run.
#[derive(Debug, Clone)]
pub struct StartRequest {
    pub machine_id: MachineId,
    pub request_id: String,
    pub run_type: RunType,
    pub plan_id: Option<PlanId>,
    pub params: Params,
    pub overrides: Overrides,
    pub initiator: String,
}

#[derive(Debug, Clone)]
pub struct StartedRun {
    pub run: Run,
    /// False when a repeated request returns the run of the first one.
    pub new: bool,
}

impl Runs {
    pub async fn start(&self, start: StartRequest) -> Result<StartedRun> {
        let params = checked_params(start.params)?;
        self.start_on_machine(StartRequest { params, ..start }, Origin::Plan).await
    }

    pub(super) async fn start_on_machine(
        &self,
        start: StartRequest,
        origin: Origin,
    ) -> Result<StartedRun> {
        let id = RunId::new(self.0.now(), self.0.random());
        let owner = self.0.scheduler().eager_owner();
        let claims = owner.is_some().then(|| id.clone());
        let (machine, by) = (start.machine_id.clone(), start.initiator.clone());
        let request = start.run_type.as_str();
        let start = StartRun {
            start,
            origin,
            id,
            owner,
            defaults: self.0.defaults().clone(),
            providers: self.0.providers().clone(),
            now: self.0.now(),
            record: None,
            begins: true,
        };
        // Only a reimage, or a plan of the client's own, installs an image. A restart installs one
        // that was checked before.
        let installs = start.start.run_type == RunType::Reimage || start.start.plan_id.is_some();
        if installs && matches!(start.origin, Origin::Plan) {
            let checked = start.check_provider_images(self.0.store()).await;
            self.0.trace_refusal(machine.as_str(), (&by, request), checked)?;
        }
        let done = self
            .0
            .admit("start_run", claims, start, |start, tx| {
                Box::pin(async move {
                    let mut created = Created::default();
                    Ok((start.run(tx, &mut created).await?, created))
                })
            })
            .await;
        self.0.trace_refusal(machine.as_str(), (&by, request), done)
    }
}

fn no_default(run_type: RunType) -> Refusal {
    let message = format!("{} is started by a lifecycle, not by a plan", run_type.as_str());
    Refusal::new(Reason::NoPlan, message).next("farrier plans")
}

#[derive(Clone)]
pub(crate) struct StartRun {
    pub start: StartRequest,
    origin: Origin,
    id: RunId,
    owner: Option<String>,
    defaults: Defaults,
    pub providers: Providers,
    now: Timestamp,
    /// The record that starts the run in its turn, and with whose rights.
    record: Option<(SubjectId, Caller)>,
    begins: bool,
}

/// What a record needs to start a run in its own transaction.
pub(crate) struct RecordStart {
    pub id: RunId,
    /// Is woken when the run ends.
    pub record: SubjectId,
    pub caller: Caller,
    /// False if the run goes on with work that the record has begun before: it has to finish also
    /// outside of the windows.
    pub begins: bool,
    pub defaults: Defaults,
    pub providers: Providers,
    pub now: Timestamp,
}

/// The source of a new run's steps.
#[derive(Clone)]
pub(super) enum Origin {
    Plan,
    /// `note` names the restarted run and the reason, for the history. `inherited`: the override
    /// is that of the original run.
    Restart {
        original: RunId,
        mode: RestartMode,
        note: String,
        inherited: bool,
    },
}

impl Origin {
    fn parent(&self) -> (Option<RunId>, Option<RestartMode>) {
        match self {
            Self::Plan => (None, None),
            Self::Restart { original, mode, .. } => (Some(original.clone()), Some(*mode)),
        }
    }
}

impl StartRun {
    /// The start of a run by a record.
    pub(crate) fn by_record(start: StartRequest, by: RecordStart) -> Self {
        let RecordStart { id, record, caller, begins, defaults, providers, now } = by;
        let (origin, record) = (Origin::Plan, Some((record, caller)));
        Self { start, origin, id, owner: None, defaults, providers, now, record, begins }
    }

    /// Refuses before the first write, so that a record can go on after a refusal.
    pub(crate) async fn run(&self, tx: &mut Tx, created: &mut Created) -> Result<StartedRun> {
        let start = &self.start;
        let mut machine = lock_machine(tx, &start.machine_id, self.now).await?;
        let target = TargetId::from(&start.machine_id);
        if let Some(run) = tx.run_of_request(&target, &start.request_id).await? {
            let same = self.made(&run);
            return Ok(StartedRun { run: replay(run, same)?, new: false });
        }
        let run = self.new_run(tx, &machine).await?;
        let refusing = self.admit(tx, &machine, &run).await?;
        self.check_capabilities(&machine, &run)?;
        self.check_images(tx, &machine, &run).await?;
        if let Some((_, caller)) = &self.record {
            let granted = caller.on_targets(tx, &run.spec).await?;
            caller.require_all(granted, run.spec.permissions(), run.spec.run_type.as_str())?;
            // A request asks for all of its runs at the end.
            if self.begins {
                admit_start(tx, &run, &machine, self.now).await?;
            }
        }

        let note = self.override_note(&refusing);
        let message = match &self.origin {
            Origin::Plan => format!("{} accepted{note}", start.run_type.as_str()),
            Origin::Restart { note: again, .. } => {
                format!("{} accepted, {again}{note}", start.run_type.as_str())
            }
        };
        let event = &event(Cause::Request, &start.initiator, message, here!(), self.now);
        let enqueue = self.owner.as_deref().map_or(Enqueue::Now, Enqueue::Claimed);
        let holds = Holds::Machine { machine: &mut machine, note: &note };
        let run = created.add(tx, Admission { run, enqueue, holds, event }).await?;
        Ok(StartedRun { run, new: true })
    }

    /// Returns the gates that would refuse without the override.
    async fn admit(&self, tx: &mut Tx, machine: &Machine, run: &Run) -> Result<Vec<Gate>> {
        let StartRequest { run_type, overrides, .. } = &self.start;
        let node = tx.node_in_service(&machine.id).await?;
        let node = node.as_ref();
        let case = RunCase { machine, node, run_type: *run_type, steps: &run.spec.steps };
        match &self.origin {
            Origin::Plan => case.admit(overrides)?,
            Origin::Restart { .. } => admit_again(machine, node, run)?,
        }
        Ok(gates_of(&case.refusals(&Overrides::default())))
    }

    /// The note about the override in the history.
    fn override_note(&self, refusing: &[Gate]) -> String {
        let StartRequest { overrides, initiator, .. } = &self.start;
        let by = match &self.origin {
            Origin::Plan | Origin::Restart { inherited: false, .. } => initiator.clone(),
            Origin::Restart { original, .. } => format!("{initiator} as in {original}"),
        };
        overrides.history_note(&by, refusing)
    }

    pub async fn new_run(&self, tx: &mut Tx, machine: &Machine) -> Result<Run> {
        let start = &self.start;
        let mut params = start.params.clone();
        let (plan_id, steps, on_failure, progress) = match &self.origin {
            Origin::Plan => {
                let plan = find_plan(tx, start).await?;
                params = plan.complete_params(start.run_type, params, &self.defaults)?;
                let steps = plan.resolve(machine, &params, &self.defaults)?;
                let progress = Progress::fresh(&steps);
                (plan.id, steps, plan.on_failure, progress)
            }
            Origin::Restart { original, mode, .. } => {
                let run = tx.run(original).await?.ok_or_else(|| no_run(original))?;
                let superseded = superseding_run(tx, &run).await?.is_some();
                let progress = restart(&run, *mode, superseded)?;
                let RunSpec { plan_id, steps, on_failure, .. } = run.spec;
                (plan_id, steps, on_failure, progress)
            }
        };
        start.overrides.store_in(&mut params);
        let (parent, restart) = self.origin.parent();
        let spec = RunSpec {
            id: self.id.clone(),
            target: TargetId::from(&start.machine_id),
            request_id: start.request_id.clone(),
            run_type: start.run_type,
            plan_id,
            steps,
            params,
            initiator: start.initiator.clone(),
            rerun_of: parent,
            restart,
            on_failure,
            parent_run: None,
            reports_to: self.record.as_ref().map(|(record, _)| record.clone()),
            held_targets: Vec::new(),
            engine_version: ENGINE_VERSION,
            created_at: self.now,
        };
        Ok(Run { spec, progress, version: 1 })
    }

    /// True if this request made the run.
    fn made(&self, run: &Run) -> bool {
        let start = &self.start;
        let spec = &run.spec;
        let usual = || default_plan(start.run_type).map(|plan| plan.id);
        let plan = start.plan_id.clone().or_else(usual);
        let mut made_with = without_overrides(spec.params.clone());
        if !start.params.contains_key(IMAGE_REF) {
            // The server chose the image; its default may have changed since.
            made_with.remove(IMAGE_REF);
        }
        spec.run_type == start.run_type
            && made_with == start.params
            && Overrides::of_params(&spec.params) == start.overrides
            && plan.as_ref() == Some(&spec.plan_id)
            && (spec.rerun_of.clone(), spec.restart) == self.origin.parent()
    }

    fn check_capabilities(&self, machine: &Machine, run: &Run) -> Result<()> {
        let name = &machine.spec.provider;
        let Some(provider) = self.providers.get(name) else {
            let message = format!("the provider {name:?} of {} is not served here", machine.id);
            return Err(Refusal::new(Reason::ProviderMissing, message)
                .next(format!("farrier machine update {} --provider sim", machine.id))
                .into());
        };
        for step in &run.spec.steps {
            let needed = step.effect.required_capability();
            if !provider.capabilities().contains(&needed) {
                let message = format!(
                    "step {} needs {needed:?}, which the provider {name} of {} does not have",
                    step.name, machine.id
                );
                return Err(Refusal::new(Reason::CapabilityMissing, message)
                    .next("farrier plans")
                    .into());
            }
        }
        Ok(())
    }
}

/// Checks the gates of a run that exists, on its locked machine. Returns the gates that would
/// refuse without its override.
pub(crate) async fn admit_again_now(
    tx: &mut Tx,
    machine: &Machine,
    run: &Run,
) -> Result<Vec<Gate>> {
    let node = tx.node_in_service(&machine.id).await?;
    let node = node.as_ref();
    admit_again(machine, node, run)?;
    let case = RunCase { machine, node, run_type: run.spec.run_type, steps: &run.spec.steps };
    Ok(gates_of(&case.refusals(&Overrides::default())))
}

async fn find_plan(tx: &mut Tx, start: &StartRequest) -> Result<Plan> {
    let Some(id) = &start.plan_id else {
        return Ok(default_plan(start.run_type).ok_or_else(|| no_default(start.run_type))?);
    };
    if model::plan::node_plans().iter().any(|plan| plan.id == *id) {
        let message = format!(
            "{id} is the plan of a node: onboarding and decommission start it and fill it in"
        );
        let refusal = Refusal::new(Reason::NoPlan, message);
        return Err(refusal.next("farrier node onboard --help").into());
    }
    if let Some(plan) = model::plan::built_in().into_iter().find(|plan| plan.id == *id) {
        return Ok(plan);
    }
    Ok(tx.plan(id).await?.ok_or_else(|| no_plan(id))?)
}
