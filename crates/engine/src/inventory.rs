//! The inventory's door: machines, their flags, and plans. Each change is one transaction with its event.

use crate::Engine;
use crate::submit::{event, no_machine};
use model::condition::{ConditionType, Evidence};
use model::here;
use model::id::MachineId;
use model::machine::{Labels, Machine, MachineSpec};
use model::plan::Plan;
use model::refusal::{Refusal, RefusalKind};
use model::run::act::Who;
use model::time::Timestamp;
use store::{Cause, Result, Tx, Work};

impl Engine {
    /// Registers a machine, or updates the spec and labels of a known one.
    pub async fn register(
        &self,
        id: Option<MachineId>,
        spec: MachineSpec,
        labels: Labels,
        actor: String,
    ) -> Result<Machine> {
        let id = id.unwrap_or_else(|| MachineId::new(self.now(), rand::random()));
        let spec = self.with_provider(spec)?;
        self.put(Put { id, spec, labels, actor, create: true, now: self.now() }).await
    }

    /// Updates the spec and labels of a known machine.
    pub async fn update(
        &self,
        id: MachineId,
        spec: MachineSpec,
        labels: Labels,
        actor: String,
    ) -> Result<Machine> {
        let spec = self.with_provider(spec)?;
        self.put(Put { id, spec, labels, actor, create: false, now: self.now() }).await
    }

    async fn put(&self, put: Put) -> Result<Machine> {
        let machine = self.racing(|| self.store().write(put.clone())).await?;
        self.look_at(&machine.id);
        Ok(machine)
    }

    fn with_provider(&self, mut spec: MachineSpec) -> Result<MachineSpec> {
        let names = self.providers().names();
        if spec.provider.is_empty()
            && let Some(only) = names.first()
        {
            spec.provider = (*only).to_string();
        }
        if self.providers().get(&spec.provider).is_none() {
            let problem = format!("{:?} is not a provider of this server", spec.provider);
            let instead = format!("use one of: {}", names.join(", "));
            return Err(Refusal::invalid("machine.spec.provider", problem, instead).into());
        }
        Ok(spec)
    }

    /// Sets or clears a flag that only an administrator may.
    pub async fn flag(
        &self,
        id: MachineId,
        condition: ConditionType,
        status: bool,
        who: Who,
    ) -> Result<Machine> {
        self.racing(|| {
            let (id, who, now) = (id.clone(), who.clone(), self.now());
            self.store().write(Flag { id, condition, status, who, now })
        })
        .await
    }

    /// Creates a plan. The same plan again is answered with the existing one.
    pub async fn create_plan(&self, plan: Plan) -> Result<Plan> {
        self.racing(|| self.store().write(CreatePlan { plan: plan.clone(), now: self.now() })).await
    }
}

#[derive(Clone)]
struct Put {
    id: MachineId,
    spec: MachineSpec,
    labels: Labels,
    actor: String,
    create: bool,
    now: Timestamp,
}

impl Work for Put {
    type Out = Machine;

    async fn run(&self, tx: &mut Tx) -> Result<Machine> {
        let event = |message: &str, line| {
            event(Cause::Request, &self.actor, message.into(), line, self.now)
        };
        match tx.machine_locked(&self.id).await? {
            Some(mut machine) => {
                if machine.spec != self.spec || machine.labels != self.labels {
                    machine.spec = self.spec.clone();
                    machine.labels = self.labels.clone();
                    let event = event("spec or labels changed", here!());
                    tx.update_machine(&mut machine, &event).await?;
                }
                Ok(machine)
            }
            None if self.create => {
                let (id, spec) = (self.id.clone(), self.spec.clone());
                let machine = Machine::new(id, spec, self.labels.clone(), self.now);
                tx.insert_machine(&machine, &event("registered", here!())).await?;
                Ok(machine)
            }
            None => Err(no_machine(&self.id).into()),
        }
    }
}

struct Flag {
    id: MachineId,
    condition: ConditionType,
    status: bool,
    who: Who,
    now: Timestamp,
}

impl Work for Flag {
    type Out = Machine;

    async fn run(&self, tx: &mut Tx) -> Result<Machine> {
        let found = tx.machine_locked(&self.id).await?;
        let mut machine = found.ok_or_else(|| no_machine(&self.id))?;
        if machine.is(self.condition) == self.status && !self.status {
            let said = format!("{} is not flagged {}", self.id, self.condition.as_str());
            return Err(Refusal::precondition("NOT_FLAGGED", said)
                .next(format!("farrier get {}", self.id))
                .into());
        }
        let seen = Evidence::new(self.condition, self.status, self.who.reason.clone());
        if machine.learn(&[seen], self.now) {
            let what = if self.status { "set" } else { "cleared" };
            let message = format!("{} {what}: {}", self.condition.as_str(), self.who.reason);
            let event = event(Cause::Admin, &self.who.by, message, here!(), self.now);
            tx.update_machine(&mut machine, &event).await?;
        }
        Ok(machine)
    }
}

struct CreatePlan {
    plan: Plan,
    now: Timestamp,
}

impl Work for CreatePlan {
    type Out = Plan;

    async fn run(&self, tx: &mut Tx) -> Result<Plan> {
        let built_in = model::plan::built_in().into_iter().find(|plan| plan.id == self.plan.id);
        let existing = match built_in {
            Some(plan) => Some(plan),
            None => tx.plan(&self.plan.id).await?,
        };
        match existing {
            None => {
                tx.insert_plan(&self.plan, self.now).await?;
                Ok(self.plan.clone())
            }
            Some(existing) if existing.same_work(&self.plan) => Ok(existing),
            Some(existing) => {
                let said = format!(
                    "plan {} exists and does something else; plans never change",
                    existing.id
                );
                Err(Refusal::new(RefusalKind::Exists, "PLAN_EXISTS", said)
                    .next(format!("farrier plan get {}   # then choose a new plan_id", existing.id))
                    .into())
            }
        }
    }
}
