//! Explanations and histories of objects of every kind.

mod attention;
mod contacts;
mod known_as;
mod offered;
mod worked_on;

pub use attention::{Attention, AttentionItem};

pub(crate) use contacts::{peer_contacts, usual_durations};
pub(crate) use worked_on::operation_down;

use crate::Engine;
use crate::admission::find_deletion;
use crate::device::ExplainedDevice;
use crate::node::NodeView;
use model::condition::ConditionType;
use model::id::{MachineId, NodeId, PowerShelfId, RackId, RunId, SiteId};
use model::known_as::nothing_known_as;
use model::machine::Machine;
use model::machine::hardware::RecordedHardware;
use model::node::{Node, NodeState};
use model::power_shelf::PowerShelf;
use model::refusal::{Reason, Refusal, RefusedRequest};
use model::run::Run;
use model::site::explain_site;
use model::target::TargetId;
use model::time::Timestamp;
use model::why::{
    Explanation, PeerContacts, RunContext, SetAside, dead_feeds, explain_held_machine,
    explain_machine, explain_run, explain_set_aside, explain_unreadable, operation_words,
    refused_words, skipped_firmware, writes_disk,
};
use offered::{Offer, Trials};
use providers::Target;
use std::time::Duration;
use store::{
    Cause, Cursor, Event, HistoryQuery, Result, RowKind, SetAsideRow, StoreError, Tx, UnreadableRow,
};

/// The state of the entry about a refused request in a history.
const REFUSED: &str = "refused";
/// The number of a machine's newest runs that are searched for the failure that needs intervention,
/// and for the last one that was to write its disk.
const MAX_RUNS_BACK: i64 = 20;

/// The objects that an id refers to.
struct Found {
    /// The id is that of the run, not that of the machine.
    is_run: bool,
    /// The machine, or the machine of the run.
    machine: Option<Machine>,
    run: Option<Run>,
    /// The replica that has claimed the run.
    claimed_by: Option<String>,
    /// The node on the machine, or the node of the run.
    node: Option<Node>,
    /// The hardware that the last inspection recorded.
    hardware: Option<RecordedHardware>,
    contacts: PeerContacts,
    /// The last run that was to write the disk of the machine.
    imaging: Option<Run>,
    /// The run of the failed change that the machine is shown with.
    failed_change: Option<Run>,
    trace: ObjectTrace,
}

/// The recent past of an object: its newest operation and its last refused request.
#[derive(Default)]
struct ObjectTrace {
    latest: Option<Run>,
    refused: Option<RefusedRequest>,
}

impl ObjectTrace {
    async fn read(tx: &mut Tx, target: Option<&TargetId>, id: &str) -> Result<Self> {
        let latest = match target {
            Some(target) => readable(tx.latest_run(target).await)?,
            None => None,
        };
        Ok(Self { latest, refused: tx.refused_request(id).await? })
    }

    fn tell(&self, about: &str, now: Timestamp, explained: &mut Explanation) {
        // An operation that is explained already, or is the object itself, is not repeated.
        let latest = self.latest.as_ref().filter(|run| run.spec.id.as_str() != about);
        if let Some(run) = latest {
            explained.last_operation = operation_words(run, now);
        }
        explained.refused = refused_words(self.refused.as_ref(), now);
    }
}

/// Treats a corrupt object as absent, so that it does not block other explanations.
fn readable<T>(found: Result<Option<T>>) -> Result<Option<T>> {
    match found {
        Err(StoreError::Corrupt(_)) => Ok(None),
        other => other,
    }
}

async fn find(tx: &mut Tx, id: &str, silence: Duration) -> Result<Option<Found>> {
    let run_id = RunId::trusted(id);
    if let Some(run) = tx.run(&run_id).await? {
        let held_by = tx.claiming_replica(&run_id).await?;
        let node = readable(crate::node::node_of_run(tx, &run).await)?;
        let machine = match run.spec.target.machine() {
            Some(id) => tx.machine(&id).await?,
            None => None,
        };
        let contacts = peer_contacts(tx, Some(&run), node.as_ref(), silence).await?;
        return Ok(Some(Found {
            is_run: true,
            machine,
            run: Some(run),
            claimed_by: held_by,
            node,
            hardware: None,
            contacts,
            imaging: None,
            failed_change: None,
            trace: ObjectTrace::read(tx, None, id).await?,
        }));
    }
    let Some(machine) = tx.machine(&MachineId::trusted(id)).await? else {
        return Ok(None);
    };
    let run = match &machine.active_run {
        Some(id) => tx.run(id).await?,
        // Explain the run that failed, even if later runs succeeded.
        None if machine.is(ConditionType::NeedsIntervention) => {
            let latest = tx.latest_runs(&TargetId::from(&machine.id), MAX_RUNS_BACK).await?;
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
    let contacts = peer_contacts(tx, run.as_ref(), node.as_ref(), silence).await?;
    let trace = ObjectTrace::read(tx, Some(&TargetId::from(&machine.id)), id).await?;
    let imaging = last_imaging(tx, &machine).await?;
    let failed_change = match machine.failed_change() {
        Some(failed) => readable(tx.run(&failed.run).await)?,
        None => None,
    };
    Ok(Some(Found {
        is_run: false,
        machine: Some(machine),
        run,
        claimed_by: held_by,
        node,
        hardware,
        contacts,
        imaging,
        failed_change,
        trace,
    }))
}

/// The last run that was to write the disk of a machine. An unreadable run does not prevent the
/// rest of the explanation.
async fn last_imaging(tx: &mut Tx, machine: &Machine) -> Result<Option<Run>> {
    match tx.latest_runs(&TargetId::from(&machine.id), MAX_RUNS_BACK).await {
        Err(StoreError::Corrupt(_)) => Ok(None),
        found => Ok(found?.into_iter().find(writes_disk)),
    }
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
    /// The reason why calls of the provider are degraded, such as failures in a row or an open
    /// circuit.
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
        let trials = Trials::default();
        self.explain_offering(id, Offer::all(&trials)).await
    }

    async fn explain_offering(&self, id: &str, offer: Offer<'_>) -> Result<Explained> {
        let error = match self.explain_readable(id, offer).await {
            Ok(explained) => {
                let explanation = explained.explanation.with_plain_commands();
                return Ok(Explained { explanation, ..explained });
            }
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

    async fn explain_readable(&self, id: &str, offer: Offer<'_>) -> Result<Explained> {
        if let Ok(rack) = RackId::parse(id) {
            return self.explain_rack(id, &rack, offer).await;
        }
        if let Some(device) = self.devices().explain(id).await? {
            let ExplainedDevice { mut explanation, run, claimed_by } = device;
            let trace = self.read_trace(id, TargetId::parse(id).ok()).await?;
            Box::pin(self.drop_refused((id, offer), [], &mut explanation)).await;
            trace.tell(id, self.now(), &mut explanation);
            let run_id = run.map(|run| run.spec.id);
            return Ok(Explained { explanation, run_id, claimed_by, ..Explained::default() });
        }
        if let Ok(node) = NodeId::parse(id) {
            return self.explain_node(id, &node, offer).await;
        }
        if let Ok(site) = SiteId::parse(id) {
            let mut explanation = explain_site(&self.sites().get(&site).await?);
            self.read_trace(id, None).await?.tell(id, self.now(), &mut explanation);
            return Ok(Explained { explanation, ..Explained::default() });
        }
        self.explain_machine_or_run(id, offer).await
    }

    async fn explain_rack(&self, id: &str, rack: &RackId, offer: Offer<'_>) -> Result<Explained> {
        let mut explained = self.racks().explain(rack).await?;
        let trace = self.read_trace(id, Some(TargetId::from(rack))).await?;
        let latest = trace.latest.as_ref();
        Box::pin(self.drop_refused((id, offer), [latest], &mut explained.explanation)).await;
        explained.explanation.notes.extend(trace.latest.as_ref().and_then(skipped_firmware));
        trace.tell(id, self.now(), &mut explained.explanation);
        Ok(explained)
    }

    async fn explain_node(&self, id: &str, node: &NodeId, offer: Offer<'_>) -> Result<Explained> {
        let NodeView { node, run, machine, mut explanation, .. } = self.nodes().get(node).await?;
        if let Some(machine) = machine.as_ref().filter(|_| node.state == NodeState::Offline) {
            explanation.blame_feeds(machine.id.as_str(), &self.find_dead_feeds(machine).await?);
        }
        self.drop_incapable(machine.as_ref(), &mut explanation);
        Box::pin(self.drop_refused((id, offer), [run.as_ref()], &mut explanation)).await;
        self.read_trace(id, None).await?.tell(id, self.now(), &mut explanation);
        if let Some(run) = &run {
            explanation.last_operation = operation_words(run, self.now());
        }
        let (machine_id, run_id) = (Some(node.machine), run.map(|run| run.spec.id));
        Ok(Explained { explanation, machine_id, run_id, ..Explained::default() })
    }

    async fn explain_machine_or_run(&self, id: &str, offer: Offer<'_>) -> Result<Explained> {
        let input = (id.to_string(), self.settings().nodes.heartbeat_limits.silence);
        let found =
            self.store().read(input, |(id, silence), tx| Box::pin(find(tx, id, *silence))).await?;
        let Some(mut found) = found else {
            let input = (id.to_string(), self.now());
            let deleted = self
                .store()
                .scan(input, |(id, now), tx| Box::pin(find_deletion(tx, id, *now)))
                .await?;
            return Err(deleted.unwrap_or_else(|| nothing_known_as(id)).into());
        };
        let hidden = !found.is_run && self.is_hidden(found.machine.as_ref(), found.run.as_ref());
        if hidden {
            (found.run, found.claimed_by) = (None, None);
        }
        let mut reported = match &found.machine {
            Some(machine) if hidden => explain_held_machine(machine),
            Some(_) | None => self.explain_found(&found).await?,
        };
        let Found { machine, run, claimed_by, failed_change, trace, .. } = found;
        self.drop_incapable(machine.as_ref(), &mut reported);
        let runs = [run.as_ref(), failed_change.as_ref()];
        Box::pin(self.drop_refused((id, offer), runs, &mut reported)).await;
        trace.tell(id, self.now(), &mut reported);
        let machine_id = machine.as_ref().map(|machine| machine.id.clone());
        let machine_id = machine_id.or(run.as_ref().and_then(|run| run.spec.target.machine()));
        let degraded_reason = self.degraded_reason(machine, machine_id.as_ref()).await?;
        Ok(Explained {
            explanation: reported,
            machine_id,
            run_id: run.map(|run| run.spec.id),
            claimed_by,
            degraded_reason,
        })
    }

    async fn explain_found(&self, found: &Found) -> Result<Explanation> {
        let now = self.now();
        let context = RunContext {
            machine: found.machine.as_ref(),
            node: found.node.as_ref(),
            contacts: Some(&found.contacts),
            imaging: found.imaging.as_ref(),
            failed_change: found.failed_change.as_ref(),
        };
        match (&found.machine, &found.run) {
            (_, Some(run)) if found.is_run => Ok(match &found.node {
                Some(node) => node.explain_run(run, context, now),
                None => explain_run(run, context, now),
            }),
            (Some(machine), run) => {
                let reported = explain_machine(machine, run.as_ref(), context, now);
                let mut reported = self.hosts().with_firmware(machine, reported).await?;
                let hardware = found.hardware.as_ref();
                reported.notes.extend(hardware.and_then(|one| one.serial_note(&machine.spec)));
                let known = machine.conditions.get(ConditionType::Reachable);
                if known.is_some_and(|known| !known.status) {
                    let dead = self.find_dead_feeds(machine).await?;
                    reported.blame_feeds(machine.id.as_str(), &dead);
                }
                Ok(reported)
            }
            (None, Some(_) | None) => Ok(Explanation::default()),
        }
    }

    /// True if an operation on a machine is one on a rack or a device, which a caller with rights
    /// for a part of the fleet does not see.
    fn is_hidden(&self, machine: Option<&Machine>, run: Option<&Run>) -> bool {
        let target = run.map(|run| run.spec.target.machine());
        let foreign = target.is_some_and(|target| target.as_ref() != machine.map(|one| &one.id));
        foreign && self.caller().sees_a_part()
    }

    /// The power shelves that feed a machine, if all of them are off.
    async fn find_dead_feeds(&self, machine: &Machine) -> Result<Vec<PowerShelfId>> {
        let Some(rack) = machine.spec.rack.clone() else { return Ok(Vec::new()) };
        let input = (rack, machine.spec.feeds.clone());
        let read = self
            .store()
            .read(input, |(rack, feeds), tx| Box::pin(load_dead_feeds(tx, rack, feeds)));
        read.await
    }

    async fn read_trace(&self, id: &str, target: Option<TargetId>) -> Result<ObjectTrace> {
        let input = (id.to_string(), target);
        let read = self
            .store()
            .read(input, |(id, target), tx| Box::pin(ObjectTrace::read(tx, target.as_ref(), id)));
        read.await
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

/// The power shelves that feed a device of a rack, if all of them are off.
pub(crate) async fn load_dead_feeds(
    tx: &mut Tx,
    rack: &RackId,
    feeds: &[PowerShelfId],
) -> Result<Vec<PowerShelfId>> {
    // A shelf that cannot be read may be on.
    let shelves: Result<Vec<PowerShelf>> =
        tx.records_in_rack(rack).await?.into_iter().map(|(_, one)| one).collect();
    Ok(shelves.map(|shelves| dead_feeds(feeds, &shelves)).unwrap_or_default())
}

/// A page of a history, and whether the object has any.
async fn history(
    tx: &mut Tx,
    id: &str,
    query: &HistoryQuery,
    limit: i64,
) -> Result<(Vec<Event>, bool)> {
    let mut events = tx.filtered_history(id, query, limit).await?;
    let known = !events.is_empty() || query.after.is_some() || tx.last_version(id).await? > 0;
    // The last refused request changed nothing, so it has no event: it is read beside them.
    let refused = tx.refused_request(id).await?.filter(|_| known);
    let refused = refused.map(|refused| refused_event(id, refused));
    let refused = refused.filter(|event| query.filter.matches_values(event));
    let is_last_page = (events.len() as i64) < limit;
    match refused {
        Some(event) if query.newest_first && query.after.is_none() => {
            let at = events.partition_point(|one| one.ts > event.ts);
            events.insert(at, event);
        }
        Some(event) if !query.newest_first && is_last_page => {
            let at = events.partition_point(|one| one.ts <= event.ts);
            events.insert(at, event);
        }
        Some(_) | None => {}
    }
    Ok((events, known))
}

/// A refused request as an entry of the object's history. The object kept its version.
fn refused_event(id: &str, refused: RefusedRequest) -> Event {
    let RefusedRequest { at, by, request, reason, message } = refused;
    Event {
        cursor: Cursor::default(),
        ts: at,
        kind: None,
        record_kind: None,
        object_id: id.into(),
        version: 0,
        state: REFUSED.into(),
        cause: Cause::Request.as_str().into(),
        actor: by,
        message: format!("{request} refused: {message} ({reason})"),
        decided_by: String::new(),
        object: None,
    }
}
