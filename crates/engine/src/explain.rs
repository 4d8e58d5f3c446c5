//! Explanations and histories of objects of every kind.

use crate::Engine;
use crate::device::ExplainedDevice;
use crate::node::NodeView;
use model::condition::ConditionType;
use model::id::{MachineId, NodeId, RackId, RunId, SiteId};
use model::machine::Machine;
use model::machine::hardware::RecordedHardware;
use model::node::Node;
use model::refusal::{Reason, Refusal};
use model::run::Run;
use model::site::explain_site;
use model::target::TargetId;
use model::why::{
    Explanation, SetAside, explain_machine, explain_run, explain_set_aside, explain_unreadable,
};
use providers::Target;
use store::{Event, HistoryQuery, Result, RowKind, SetAsideRow, StoreError, Tx, UnreadableRow};

/// How many of a machine's newest runs are searched for the failure that needs intervention.
const MAX_FAILURES_BACK: i64 = 20;

/// The objects that an id refers to.
struct Found {
    machine: Option<Machine>,
    run: Option<Run>,
    /// The replica that has claimed the run.
    claimed_by: Option<String>,
    /// The node on the machine, or the node of the run.
    node: Option<Node>,
    /// The hardware that the last inspection recorded.
    hardware: Option<RecordedHardware>,
}

/// Treats a corrupt node as absent, so that it does not block other explanations.
fn readable(found: Result<Option<Node>>) -> Result<Option<Node>> {
    match found {
        Err(StoreError::Corrupt(_)) => Ok(None),
        other => other,
    }
}

async fn find(tx: &mut Tx, id: &str) -> Result<Option<Found>> {
    let run_id = RunId::trusted(id);
    if let Some(run) = tx.run(&run_id).await? {
        let held_by = tx.claiming_replica(&run_id).await?;
        let node = readable(crate::node::node_of_run(tx, &run).await)?;
        let (machine, hardware) = (None, None);
        return Ok(Some(Found { run: Some(run), claimed_by: held_by, node, machine, hardware }));
    }
    let Some(machine) = tx.machine(&MachineId::trusted(id)).await? else {
        return Ok(None);
    };
    let run = match &machine.active_run {
        Some(id) => tx.run(id).await?,
        // Explain the run that failed, even if later runs succeeded.
        None if machine.is(ConditionType::NeedsIntervention) => {
            let latest = tx.latest_runs(&TargetId::from(&machine.id), MAX_FAILURES_BACK).await?;
            latest.into_iter().find(|run| run.progress.failure.is_some())
        }
        None => tx.latest_run(&TargetId::from(&machine.id)).await?,
    };
    let held_by = match &run {
        Some(run) => tx.claiming_replica(&run.spec.id).await?,
        None => None,
    };
    let node = match tx.live_node_of_machine(&machine.id).await? {
        Some(id) => readable(tx.record::<Node>(id.as_str()).await)?,
        None => None,
    };
    let hardware = tx.hardware_of(&[id]).await?.remove(&machine.id);
    Ok(Some(Found { machine: Some(machine), run, claimed_by: held_by, node, hardware }))
}

/// The row of an object, if it cannot be decoded.
async fn find_unreadable(tx: &mut Tx, id: &str) -> Result<Option<UnreadableRow>> {
    // A health report has an object's id as a part of its key; it is not the object.
    for kind in RowKind::ALL.into_iter().filter(|kind| *kind != RowKind::HealthReport) {
        if let Some(row) = tx.unreadable_row(kind, id).await? {
            return Ok(Some(row));
        }
    }
    Ok(None)
}

fn set_aside(row: &SetAsideRow) -> SetAside<'_> {
    SetAside {
        kind: row.kind.as_str(),
        id: &row.id,
        problem: &row.problem,
        actor: &row.actor,
        reason: &row.reason,
        at: row.at,
    }
}

/// An explanation and the objects that it is about.
#[derive(Debug, Clone, Default)]
pub struct Explained {
    pub explanation: Explanation,
    pub machine_id: Option<MachineId>,
    pub run_id: Option<RunId>,
    pub claimed_by: Option<String>,
    /// Why calls of the provider are degraded, such as failures in a row or an open circuit.
    pub degraded_reason: Option<String>,
}

impl Engine {
    /// Checks that the database answers and that the lease of this replica is fresh.
    pub async fn healthy(&self) -> Result<()> {
        self.store().scan_one((), |(), tx| Box::pin(tx.horizon())).await?;
        if let Some(message) = self.store().outdated() {
            return Err(StoreError::Unavailable(message.into()));
        }
        if self.scheduler().lease_is_fresh() {
            return Ok(());
        }
        Err(StoreError::Unavailable("this replica cannot renew its lease".into()))
    }

    /// The history of an object, oldest first, after a version.
    pub async fn history(&self, id: &str, after: i64, limit: i64) -> Result<Vec<Event>> {
        let after = Some(after).filter(|after| *after > 0);
        self.filtered_history(id, HistoryQuery { after, ..HistoryQuery::default() }, limit).await
    }

    /// The entries of an object's history that match.
    pub async fn filtered_history(
        &self,
        id: &str,
        query: HistoryQuery,
        limit: i64,
    ) -> Result<Vec<Event>> {
        let input = (id.to_string(), query, limit);
        let events = self
            .store()
            .scan(input, |(id, query, limit), tx| Box::pin(history(tx, id, query, *limit)));
        let (events, known) = events.await?;
        if !known {
            let (what, list) = match NodeId::parse(id) {
                Ok(_) => ("node", "farrier node list"),
                Err(_) => ("machine or operation", "farrier list"),
            };
            return Err(Refusal::not_found(what, id, list).into());
        }
        Ok(events)
    }

    /// Explains the state of an object of any kind, also if its stored row cannot be read.
    pub async fn explain(&self, id: &str) -> Result<Explained> {
        let error = match self.explain_readable(id).await {
            Ok(explained) => return Ok(explained),
            Err(error) => error,
        };
        let input = id.to_string();
        let explanation = match &error {
            StoreError::Corrupt(row) => {
                let own = self.store().scan(input, |id, tx| Box::pin(find_unreadable(tx, id)));
                Some(explain_unreadable(id, row, own.await?.map(|row| row.kind.as_str())))
            }
            StoreError::Refused(refusal) if refusal.reason == Reason::NotFound => {
                let row = self.store().scan(input, |id, tx| Box::pin(tx.row_set_aside(None, id)));
                row.await?.as_ref().map(|row| explain_set_aside(&set_aside(row)))
            }
            StoreError::Refused(_) | StoreError::Unavailable(_) | StoreError::Conflict => None,
        };
        let explanation = explanation.ok_or(error)?;
        Ok(Explained { explanation, ..Explained::default() })
    }

    async fn explain_readable(&self, id: &str) -> Result<Explained> {
        if let Ok(rack) = RackId::parse(id) {
            return self.racks().explain(&rack).await;
        }
        if let Some(ExplainedDevice { explanation: reported, run, claimed_by: held_by }) =
            self.devices().explain(id).await?
        {
            let run_id = run.map(|run| run.spec.id);
            return Ok(Explained {
                explanation: reported,
                machine_id: None,
                run_id,
                claimed_by: held_by,
                degraded_reason: None,
            });
        }
        if let Ok(node) = NodeId::parse(id) {
            let NodeView { node, run, explanation: reported, .. } = self.nodes().get(&node).await?;
            let run_id = run.map(|run| run.spec.id);
            let machine_id = Some(node.machine);
            return Ok(Explained {
                explanation: reported,
                machine_id,
                run_id,
                claimed_by: None,
                degraded_reason: None,
            });
        }
        if let Ok(site) = SiteId::parse(id) {
            let reported = explain_site(&self.sites().get(&site).await?);
            let (machine_id, run_id) = (None, None);
            return Ok(Explained {
                explanation: reported,
                machine_id,
                run_id,
                claimed_by: None,
                degraded_reason: None,
            });
        }
        let found = self.store().read(id.to_string(), |id, tx| Box::pin(find(tx, id))).await?;
        let Some(Found { machine, run, claimed_by: held_by, node, hardware }) = found else {
            let deleted = self.machines().deleted(id).await?;
            let unknown = || Refusal::not_found("machine or operation", id, "farrier list");
            return Err(deleted.unwrap_or_else(unknown).into());
        };
        let now = self.now();
        let reported = match (&machine, &run) {
            (Some(machine), run) => {
                let reported = explain_machine(machine, run.as_ref(), node.as_ref(), now);
                let mut reported = self.hosts().with_firmware(machine, reported).await?;
                reported.notes.extend(hardware.and_then(|one| one.serial_note(&machine.spec)));
                reported
            }
            (None, Some(run)) => match &node {
                Some(node) => node.explain_run(run, now),
                None => explain_run(run, now),
            },
            (None, None) => Explanation::default(),
        };
        let machine_id = machine.as_ref().map(|machine| machine.id.clone());
        let machine_id = machine_id.or(run.as_ref().and_then(|run| run.spec.target.machine()));
        let degraded_reason = self.degraded_reason(machine, machine_id.as_ref()).await?;
        Ok(Explained {
            explanation: reported,
            machine_id,
            run_id: run.map(|run| run.spec.id),
            claimed_by: held_by,
            degraded_reason,
        })
    }

    /// The degraded reason of the machine's provider, if any.
    async fn degraded_reason(
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
            provider
                .degraded_reason(&Target { id: TargetId::from(&machine.id), spec: machine.spec })
        }))
    }
}

/// A page of a history, and whether the object has any.
async fn history(
    tx: &mut Tx,
    id: &str,
    query: &HistoryQuery,
    limit: i64,
) -> Result<(Vec<Event>, bool)> {
    let events = tx.filtered_history(id, query, limit).await?;
    let known = !events.is_empty() || query.after.is_some() || tx.last_version(id).await? > 0;
    Ok((events, known))
}
