//! The door for requests: each is gated and written in one transaction, or refused with nothing
//! written. The gates are the model's; the transaction makes them hold under concurrency.

mod act;

use crate::Engine;
use act::Act;
use model::effect::Effect;
use model::here;
use model::id::{MachineId, PlanId, RunId};
use model::machine::Machine;
use model::machine::admit::admit_by;
use model::node::door::spare;
use model::plan::{
    Defaults, HEALTH_OVERRIDE, IMAGE_REF, Params, Plan, RunType, checked_params, default_plan,
    with_defaults,
};
use model::refusal::{Refusal, RefusalKind};
use model::run::act::{Action, Again, Who, again};
use model::run::{ENGINE_VERSION, Progress, Run, RunSpec, apply_to_machine};
use model::target::TargetId;
use model::time::Timestamp;
use providers::Providers;
use store::{Birth, Cause, Held, NewEvent, Result, StoreError, Tx, TxFuture};

/// A request to start a run.
#[derive(Debug, Clone)]
pub struct Start {
    pub machine_id: MachineId,
    pub request_id: String,
    pub run_type: RunType,
    pub plan_id: Option<PlanId>,
    pub params: Params,
    pub initiator: String,
}

/// What a start came to.
#[derive(Debug, Clone)]
pub struct Started {
    pub run: Run,
    /// False when the request had been made before, and this is what it made.
    pub new: bool,
}

/// What came of a request that may have started a run.
pub(crate) trait Begun: Send + 'static {
    /// The run, where it is new.
    fn begun(&self) -> Option<&Run>;
}

impl Begun for Started {
    fn begun(&self) -> Option<&Run> {
        self.new.then_some(&self.run)
    }
}

impl Engine {
    pub async fn start(&self, start: Start) -> Result<Started> {
        let params = checked_params(start.params)?;
        self.begin_run(Start { params, ..start }, Origin::Plan).await
    }

    /// Rerun or restart clean: a new run out of an ended one.
    pub async fn again(
        &self,
        parent: RunId,
        how: Again,
        request_id: String,
        who: Who,
    ) -> Result<Started> {
        let parent = self.run(&parent).await?;
        if let Some(rack) = parent.spec.target.rack() {
            let started = self.rack_again(rack, &parent, (how, request_id), who).await?;
            let run = started.run.ok_or_else(|| no_run(&parent.spec.id))?;
            return Ok(Started { run, new: started.new });
        }
        if RunType::NODES.contains(&parent.spec.run_type) {
            return self.node_again(&parent.spec.id, how, request_id, who).await;
        }
        // What was a part was let through by its whole, not by the gates of its machine.
        let on_machine = parent.spec.target.machine().filter(|_| parent.spec.part_of.is_none());
        let Some(machine_id) = on_machine else {
            return self.device_again(&parent.spec.id, how, request_id, who).await;
        };
        let start = Start {
            machine_id,
            request_id,
            run_type: parent.spec.run_type,
            plan_id: Some(parent.spec.plan_id),
            params: parent.spec.params,
            initiator: who.by,
        };
        self.begin_run(start, Origin::Again { parent: parent.spec.id, how }).await
    }

    async fn begin_run(&self, start: Start, origin: Origin) -> Result<Started> {
        let id = RunId::new(self.now(), self.chance());
        let start = StartRun {
            start,
            origin,
            id: id.clone(),
            owner: self.eager_owner(),
            defaults: self.defaults().clone(),
            providers: self.providers().clone(),
            now: self.now(),
        };
        self.begin("start_run", id, start, |start, tx| Box::pin(start.run(tx))).await
    }

    /// Writes what starts a run, and takes the run up where it was born in our hands.
    pub(crate) async fn begin<I, T>(
        &self,
        name: &'static str,
        id: RunId,
        input: I,
        body: impl for<'a> Fn(&'a I, &'a mut Tx) -> TxFuture<'a, (T, Option<Held>)>
        + Send
        + Sync
        + 'static,
    ) -> Result<T>
    where
        I: Send + Sync + 'static,
        T: Begun,
    {
        let engine = self.clone();
        // In a task of its own: a client that goes away must not leave a run in nobody's hands.
        let task = tokio::spawn(async move {
            let written = engine.store().retry_write(name, input, body).await;
            engine.take_up_begun(id, written)
        });
        task.await.unwrap_or_else(|_| Err(StoreError::Corrupt("a panic".into())))
    }

    fn take_up_begun<T: Begun>(self, id: RunId, written: Result<(T, Option<Held>)>) -> Result<T> {
        match written {
            Ok((started, owned)) => {
                if let Some(run) = started.begun() {
                    let kind = run.spec.run_type.as_str();
                    metrics::counter!("farrier_runs_started_total", "type" => kind).increment(1);
                }
                if let Some(held) = owned {
                    self.take_up(held);
                }
                Ok(started)
            }
            Err(error @ StoreError::Unavailable(_)) => {
                // It may have been written all the same, and then it was born in our hands.
                tokio::spawn(self.disown(id));
                Err(error)
            }
            Err(error) => Err(error),
        }
    }

    /// Cancel, retry, resume, adopt, mark manual.
    pub async fn act(&self, id: RunId, action: Action, who: Who) -> Result<Run> {
        let act = Act { id, action, who, now: self.now() };
        self.store().retry_write("act_on_run", act, |act, tx| Box::pin(act.run(tx))).await
    }
}

pub(crate) fn no_machine(id: &MachineId) -> Refusal {
    Refusal::not_found("machine", id, "farrier list")
}

pub(crate) fn no_run(id: &RunId) -> Refusal {
    Refusal::not_found("operation", id, "farrier ops")
}

fn no_default(run_type: RunType) -> Refusal {
    let said = format!("{} is started by a lifecycle, not by a plan", run_type.as_str());
    Refusal::precondition("NO_PLAN", said).next("farrier plans")
}

/// Another request was made under the name of the one that made this run.
pub(crate) fn reused(run: &Run) -> Refusal {
    let RunSpec { request_id, target, run_type, id, .. } = &run.spec;
    let kind = run_type.as_str();
    let said = format!(
        "request_id {request_id:?} was used on {target} for {kind} {id}, with other parameters"
    );
    Refusal::new(RefusalKind::Exists, "REQUEST_ID_REUSED", said)
        .next(format!("farrier run get {id}   # or repeat with a new --request-id"))
}

pub(crate) fn no_plan(id: &PlanId) -> Refusal {
    Refusal::not_found("plan", id, "farrier plans")
}

pub(crate) fn event(
    cause: Cause,
    actor: &str,
    message: String,
    line: &str,
    at: Timestamp,
) -> NewEvent {
    NewEvent { cause, actor: actor.into(), message, decided_by: line.into(), at }
}

struct StartRun {
    start: Start,
    origin: Origin,
    id: RunId,
    owner: Option<String>,
    defaults: Defaults,
    providers: Providers,
    now: Timestamp,
}

/// Where the steps of a new run come from.
enum Origin {
    Plan,
    Again { parent: RunId, how: Again },
}

impl Origin {
    fn parent(&self) -> (Option<RunId>, Option<Again>) {
        match self {
            Self::Plan => (None, None),
            Self::Again { parent, how } => (Some(parent.clone()), Some(*how)),
        }
    }
}

impl StartRun {
    async fn run(&self, tx: &mut Tx) -> Result<(Started, Option<Held>)> {
        let start = &self.start;
        let found = tx.machine_locked(&start.machine_id).await?;
        let mut machine = found.ok_or_else(|| no_machine(&start.machine_id))?;
        let target = TargetId::from(&start.machine_id);
        if let Some(run) = tx.run_of_request(&target, &start.request_id).await? {
            self.check_replay(&run)?;
            return Ok((Started { run, new: false }, None));
        }
        let at = self.after(&machine);
        let run = self.new_run(tx, &machine, at).await?;
        // The node first: whoever is told of the machine's phase would change that for nothing.
        spare_node(tx, &machine, &run).await?;
        admit_by(&machine, start.run_type, &run.spec.steps, overriding(&run))?;
        self.check_capabilities(&machine, &run)?;
        self.check_images(tx, &machine, &run).await?;

        let message = format!("{} accepted", start.run_type.as_str());
        let event = event(Cause::Request, &start.initiator, message, here!(), at);
        let held = insert_in_hand(tx, &run, self.owner.as_deref(), &event)?;
        apply_to_machine(&mut machine, &run, &[], at);
        let message = format!("held by {}", run.spec.id);
        tx.update_machine(&mut machine, &NewEvent { message, ..event })?;
        Ok((Started { run, new: true }, held))
    }
}

/// Writes a run that is born in somebody's hands, where there are free ones.
pub(crate) fn insert_in_hand(
    tx: &mut Tx,
    run: &Run,
    owner: Option<&str>,
    event: &NewEvent,
) -> Result<Option<Held>> {
    tx.insert_run(run, owner.map_or(Birth::Due, Birth::InHand), event)?;
    let owner = owner.map(|owner| Some(owner.to_string()));
    Ok(owner.map(|owner| Held { run: run.clone(), epoch: 1, wakes: 1, owner }))
}

impl StartRun {
    /// After everything that has happened to the machine, whatever the clocks of other replicas said then: the
    /// latest run is found by its time, and only that one may go on.
    fn after(&self, machine: &Machine) -> Timestamp {
        self.now.max(machine.updated_at + Timestamp::TICK)
    }

    async fn new_run(&self, tx: &mut Tx, machine: &Machine, at: Timestamp) -> Result<Run> {
        let start = &self.start;
        let params = with_defaults(start.run_type, start.params.clone(), &self.defaults);
        let (plan_id, steps, on_failure, progress) = match &self.origin {
            Origin::Plan => {
                let plan = find_plan(tx, start).await?;
                let steps = plan.resolve(machine, &params, &self.defaults)?;
                let progress = Progress::fresh(&steps);
                (plan.id, steps, plan.on_failure, progress)
            }
            Origin::Again { parent, how } => {
                let run = tx.run(parent).await?.ok_or_else(|| no_run(parent))?;
                let progress = again(&run, *how)?;
                let RunSpec { plan_id, steps, on_failure, .. } = run.spec;
                (plan_id, steps, on_failure, progress)
            }
        };
        let (parent, again) = self.origin.parent();
        let spec = RunSpec {
            id: self.id.clone(),
            target: TargetId::from(&start.machine_id),
            request_id: start.request_id.clone(),
            run_type: start.run_type,
            plan_id,
            steps,
            params,
            initiator: start.initiator.clone(),
            parent,
            again,
            on_failure,
            part_of: None,
            reports_to: None,
            claims: Vec::new(),
            engine: ENGINE_VERSION,
            created_at: at,
        };
        Ok(Run { spec, progress, version: 1 })
    }

    /// The same request again is answered with what it made; another one under its name is refused.
    fn check_replay(&self, run: &Run) -> Result<()> {
        let start = &self.start;
        let spec = &run.spec;
        let usual = || default_plan(start.run_type).map(|plan| plan.id);
        let plan = start.plan_id.clone().or_else(usual);
        let mut made_with = spec.params.clone();
        if !start.params.contains_key(IMAGE_REF) {
            // The server chose the image; it may choose another one today.
            made_with.remove(IMAGE_REF);
        }
        let same = spec.run_type == start.run_type
            && made_with == start.params
            && plan.as_ref() == Some(&spec.plan_id)
            && (spec.parent.clone(), spec.again) == self.origin.parent();
        if same { Ok(()) } else { Err(reused(run).into()) }
    }

    /// An image that nobody has is better missed now than when the machine is half way there.
    async fn check_images(&self, tx: &mut Tx, machine: &Machine, run: &Run) -> Result<()> {
        let provider = self.providers.get(&machine.spec.provider);
        if !provider.is_some_and(|provider| provider.catalogued()) {
            return Ok(());
        }
        for step in &run.spec.steps {
            if let Effect::Repave { image } = &step.effect
                && tx.image(image).await?.is_none()
            {
                return Err(Refusal::not_found("image", image, "farrier image list").into());
            }
        }
        Ok(())
    }

    fn check_capabilities(&self, machine: &Machine, run: &Run) -> Result<()> {
        let name = &machine.spec.provider;
        let Some(provider) = self.providers.get(name) else {
            let said = format!("the provider {name:?} of {} is not served here", machine.id);
            return Err(Refusal::precondition("PROVIDER_MISSING", said)
                .next(format!("farrier machine update {} --provider sim", machine.id))
                .into());
        };
        for step in &run.spec.steps {
            let needed = step.effect.needs();
            if !provider.capabilities().contains(&needed) {
                let said = format!(
                    "step {} needs {needed:?}, which the provider {name} of {} does not have",
                    step.name, machine.id
                );
                return Err(Refusal::precondition("CAPABILITY_MISSING", said)
                    .next("farrier plans")
                    .into());
            }
        }
        Ok(())
    }
}

/// What serves on a machine as a node is asked by the node's own door, not by that of the machine.
async fn spare_node(tx: &mut Tx, machine: &Machine, run: &Run) -> Result<()> {
    match tx.serving(&machine.id).await? {
        Some(node) if !run.is_of_node() => Ok(spare(&node, run.spec.run_type, &run.spec.steps)?),
        Some(_) | None => Ok(()),
    }
}

/// Why a run goes ahead whatever is reported of its machine's health.
fn overriding(run: &Run) -> Option<&str> {
    run.spec.params.get(HEALTH_OVERRIDE).map(String::as_str)
}

async fn find_plan(tx: &mut Tx, start: &Start) -> Result<Plan> {
    let Some(id) = &start.plan_id else {
        return Ok(default_plan(start.run_type).ok_or_else(|| no_default(start.run_type))?);
    };
    if model::plan::node_plans().iter().any(|plan| plan.id == *id) {
        let said = format!("{id} is started by the door of a node, which fills it in");
        let refusal = Refusal::precondition("NO_PLAN", said);
        return Err(refusal.next("farrier node onboard --help").into());
    }
    if let Some(plan) = model::plan::built_in().into_iter().find(|plan| plan.id == *id) {
        return Ok(plan);
    }
    Ok(tx.plan(id).await?.ok_or_else(|| no_plan(id))?)
}
