//! Reading: what the doors show. Nothing here changes anything.

use crate::Engine;
use crate::admission::{no_machine, no_run};
use crate::devices::ExplainedDevice;
use crate::nodes::NodeView;
use model::condition::ConditionType;
use model::filter::{Filter, Item};
use model::id::{MachineId, NodeId, PlanId, RackId, RunId, SiteId};
use model::machine::Machine;
use model::node::Node;
use model::plan::{Plan, built_in};
use model::refusal::Refusal;
use model::run::Run;
use model::site::explain_site;
use model::target::TargetId;
use model::why::{Explanation, explain_machine, explain_run, overdue};
use providers::Target;
use store::{Event, LogLine, MachinePage, Result, RunPage, StoreError, Tx};

/// How many active runs are looked at for the metric of overdue ones.
const MAX_OVERDUE: i64 = 1_000;

/// How far back a machine that needs a person is searched for what failed.
const MAX_FAILURES_BACK: i64 = 20;

/// What an id leads to.
struct Found {
    machine: Option<Machine>,
    run: Option<Run>,
    /// Who holds the run.
    held_by: Option<String>,
    /// The node that lives on the machine, or that the run is about.
    node: Option<Node>,
}

/// What cannot be read has nothing to say, and keeps nobody else from it.
fn readable(found: Result<Option<Node>>) -> Result<Option<Node>> {
    match found {
        Err(StoreError::Corrupt(_)) => Ok(None),
        other => other,
    }
}

async fn find(tx: &mut Tx, id: &str) -> Result<Option<Found>> {
    let run_id = RunId::trusted(id);
    if let Some(run) = tx.run(&run_id).await? {
        let held_by = tx.holder(&run_id).await?;
        let node = readable(crate::nodes::node_of_run(tx, &run).await)?;
        return Ok(Some(Found { run: Some(run), held_by, node, machine: None }));
    }
    let Some(machine) = tx.machine(&MachineId::trusted(id)).await? else {
        return Ok(None);
    };
    let run = match &machine.active_run {
        Some(id) => tx.run(id).await?,
        // What a person is wanted for is what failed, whatever came after it.
        None if machine.is(ConditionType::NeedsIntervention) => {
            let latest = tx.latest_runs(&TargetId::from(&machine.id), MAX_FAILURES_BACK).await?;
            latest.into_iter().find(|run| run.progress.failure.is_some())
        }
        None => tx.latest_run(&TargetId::from(&machine.id)).await?,
    };
    let held_by = match &run {
        Some(run) => tx.holder(&run.spec.id).await?,
        None => None,
    };
    let node = match tx.node_on(&machine.id).await? {
        Some(id) => readable(tx.record::<Node>(id.as_str()).await)?,
        None => None,
    };
    Ok(Some(Found { machine: Some(machine), run, held_by, node }))
}

pub(crate) fn no_plan(id: &PlanId) -> Refusal {
    Refusal::not_found("plan", id, "farrier plans")
}

/// An explanation, and what it is about.
#[derive(Debug, Clone)]
pub struct Explained {
    pub told: Explanation,
    pub machine_id: Option<MachineId>,
    pub run_id: Option<RunId>,
    pub held_by: Option<String>,
    /// What keeps its provider from talking to the machine.
    pub hindrance: Option<String>,
}

#[derive(Debug, Clone)]
pub struct PlanPage {
    pub plans: Vec<Plan>,
    pub next: Option<String>,
}

impl Engine {
    /// Whether the database answers, and has heard from this replica.
    pub async fn healthy(&self) -> Result<()> {
        self.store().scan_one((), |(), tx| Box::pin(tx.horizon())).await?;
        if self.lease_is_fresh() {
            return Ok(());
        }
        Err(StoreError::Unavailable("this replica cannot renew its lease".into()))
    }

    pub async fn machine(&self, id: &MachineId) -> Result<Machine> {
        let found = self.store().machine(id).await?;
        Ok(found.ok_or_else(|| no_machine(id))?)
    }

    pub async fn run(&self, id: &RunId) -> Result<Run> {
        let found = self.store().read_one(id.clone(), |id, tx| Box::pin(tx.run(id))).await?;
        Ok(found.ok_or_else(|| no_run(id))?)
    }

    pub async fn plan(&self, id: &PlanId) -> Result<Plan> {
        if let Some(plan) = built_in().into_iter().find(|plan| plan.id == *id) {
            return Ok(plan);
        }
        let found = self.store().read_one(id.clone(), |id, tx| Box::pin(tx.plan(id))).await?;
        Ok(found.ok_or_else(|| no_plan(id))?)
    }

    pub async fn machines(
        &self,
        filter: Filter,
        after: Option<String>,
        limit: i64,
    ) -> Result<MachinePage> {
        let input = (filter, after, limit);
        self.store()
            .scan_one(input, |(filter, after, limit), tx| {
                Box::pin(tx.machines(filter, after.as_deref(), *limit))
            })
            .await
    }

    pub async fn runs(
        &self,
        filter: Filter,
        before: Option<String>,
        limit: i64,
    ) -> Result<RunPage> {
        let input = (filter, before, limit);
        self.store()
            .scan_one(input, |(filter, before, limit), tx| {
                Box::pin(tx.runs(filter, before.as_deref(), *limit))
            })
            .await
    }

    /// Built-in plans and those that were made, by id.
    pub async fn plans(&self, filter: &Filter, after: &str, limit: i64) -> Result<PlanPage> {
        let wanted = |plan: &Plan| filter.matches(Item::Plan(plan));
        let mut found = Vec::new();
        let mut at = after.to_string();
        // The filter is applied here, so pages are read until there is enough, whatever the
        // built-in plans add to it.
        loop {
            let input = (at.clone(), limit + 1);
            let page =
                self.store().scan(input, |(after, limit), tx| Box::pin(tx.plans(after, *limit)));
            let page = page.await?;
            let full = page.len() as i64 > limit;
            at = page.last().map(|plan| plan.id.to_string()).unwrap_or_default();
            found.extend(page.into_iter().filter(wanted));
            if !full || found.len() as i64 > limit {
                break;
            }
        }
        let ours = built_in().into_iter().filter(|plan| plan.id.as_str() > after);
        found.extend(ours.filter(wanted));
        found.sort_by(|a, b| a.id.cmp(&b.id));
        let more = found.len() as i64 > limit;
        found.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        let next = found.last().filter(|_| more).map(|plan| plan.id.to_string());
        Ok(PlanPage { plans: found, next })
    }

    /// The history of a machine or a run, oldest first, after a version.
    pub async fn history(&self, id: &str, after: i64, limit: i64) -> Result<Vec<Event>> {
        let input = (id.to_string(), after, limit);
        let events = self
            .store()
            .scan(input, |(id, after, limit), tx| Box::pin(tx.history(id, *after, *limit)));
        let events = events.await?;
        if events.is_empty() && after == 0 {
            let (what, list) = match NodeId::parse(id) {
                Ok(_) => ("node", "farrier node list"),
                Err(_) => ("machine or operation", "farrier list"),
            };
            return Err(Refusal::not_found(what, id, list).into());
        }
        Ok(events)
    }

    pub(crate) async fn log_page(
        &self,
        id: &RunId,
        offset: i64,
        limit: i64,
    ) -> Result<(Run, Vec<LogLine>)> {
        let input = (id.clone(), offset, limit);
        // The run first: when it has ended, the log read after it is complete.
        let page = self.store().scan(input, |(id, offset, limit), tx| {
            Box::pin(
                async move { Ok((tx.run(id).await?, tx.read_log(id, *offset, *limit).await?)) },
            )
        });
        let (run, lines) = page.await?;
        Ok((run.ok_or_else(|| no_run(id))?, lines))
    }

    /// How many active runs wait longer than is normal.
    pub async fn overdue(&self) -> Result<usize> {
        let runs = self.store().scan((), |(), tx| Box::pin(tx.active_runs(MAX_OVERDUE))).await?;
        let now = self.now();
        Ok(runs.iter().filter(|run| overdue(run, now)).count())
    }

    /// Why a machine or a run is as it is.
    pub async fn explain(&self, id: &str) -> Result<Explained> {
        if let Ok(rack) = RackId::parse(id) {
            return self.explain_rack(&rack).await;
        }
        if let Some(ExplainedDevice { told, run, held_by }) = self.explain_device(id).await? {
            let run_id = run.map(|run| run.spec.id);
            return Ok(Explained { told, machine_id: None, run_id, held_by, hindrance: None });
        }
        if let Ok(node) = NodeId::parse(id) {
            let NodeView { node, run, told, .. } = self.node(&node).await?;
            let run_id = run.map(|run| run.spec.id);
            let machine_id = Some(node.machine);
            return Ok(Explained { told, machine_id, run_id, held_by: None, hindrance: None });
        }
        if let Ok(site) = SiteId::parse(id) {
            let told = explain_site(&self.site(&site).await?);
            let (machine_id, run_id) = (None, None);
            return Ok(Explained { told, machine_id, run_id, held_by: None, hindrance: None });
        }
        let found = self.store().read(id.to_string(), |id, tx| Box::pin(find(tx, id))).await?;
        let Found { machine, run, held_by, node } =
            found.ok_or_else(|| Refusal::not_found("machine or operation", id, "farrier list"))?;
        let now = self.now();
        let told = match (&machine, &run) {
            (Some(machine), run) => {
                let told = explain_machine(machine, run.as_ref(), node.as_ref(), now);
                self.told_of_firmware(machine, told).await?
            }
            (None, Some(run)) => match &node {
                Some(node) => node.explain_run(run, now),
                None => explain_run(run, now),
            },
            (None, None) => Explanation::default(),
        };
        let machine_id = machine.as_ref().map(|machine| machine.id.clone());
        let machine_id = machine_id.or(run.as_ref().and_then(|run| run.spec.target.machine()));
        let hindrance = self.hindrance(machine, machine_id.as_ref()).await?;
        Ok(Explained { told, machine_id, run_id: run.map(|run| run.spec.id), held_by, hindrance })
    }

    /// What the machine's provider says about the way to it.
    async fn hindrance(
        &self,
        machine: Option<Machine>,
        id: Option<&MachineId>,
    ) -> Result<Option<String>> {
        let machine = match (machine, id) {
            (Some(machine), _) => Some(machine),
            (None, Some(id)) => self.store().machine(id).await?,
            (None, None) => None,
        };
        Ok(machine.and_then(|machine| {
            let provider = self.providers().get(&machine.spec.provider)?;
            provider.hindrance(&Target { id: TargetId::from(&machine.id), spec: machine.spec })
        }))
    }
}
