//! The kinds of objects that can be watched, and what differs between them.

use crate::Engine;
use model::access::Scope;
use model::filter::{Filter, FilterItem, FilterSubject};
use model::id::{MachineId, NodeId, RackId, RolloutId, RunId};
use model::lifecycle::Lifecycle;
use model::machine::Machine;
use model::node::{Node, NodeState};
use model::rack::Rack;
use model::refusal::Refusal;
use model::rollout::Rollout;
use model::run::Run;
use model::time::Timestamp;
use std::sync::Arc;
use store::{Cursor, EventObject, Result, StoreError, Tx, WatchedKind};

/// The number of objects in one page of a snapshot.
const SNAPSHOT_PAGE: i64 = 200;

/// The next page of a snapshot.
#[derive(Debug, Clone)]
pub struct SnapshotQuery {
    pub filter: Filter,
    /// The last object of the page before.
    pub last: Option<String>,
    pub at: Cursor,
}

pub struct SnapshotPage<T> {
    pub objects: Vec<T>,
    /// The id of the last object, if there are more.
    pub next: Option<String>,
}

/// An object that can be watched.
pub trait Watched: Send + Sync + Sized + 'static {
    const KIND: WatchedKind;

    fn of_event(object: &EventObject) -> Option<&Arc<Self>>;

    fn id(&self) -> &str;

    /// True if a text is an id of this kind.
    fn is_id(text: &str) -> bool;

    /// The time of the last change, for the snapshot.
    fn snapshot_time(&self) -> Timestamp;

    /// True if the object counts as deleted although its record stays.
    fn is_deleted(&self) -> bool {
        false
    }

    fn parse_filter(text: &str) -> std::result::Result<Filter, Refusal>;

    /// The terms that are compared with the object before a change.
    fn filter_before(filter: &Filter) -> Filter {
        filter.clone()
    }

    /// One page of the objects as of a cursor. It may contain objects that do not match the filter.
    fn page(
        tx: &mut Tx,
        query: &SnapshotQuery,
    ) -> impl Future<Output = Result<SnapshotPage<Self>>> + Send;

    fn matches(
        &self,
        filter: &Filter,
        engine: &Engine,
    ) -> impl Future<Output = Result<bool>> + Send;
}

impl Watched for Run {
    const KIND: WatchedKind = WatchedKind::Run;

    fn of_event(object: &EventObject) -> Option<&Arc<Self>> {
        match object {
            EventObject::Run(run) => Some(run),
            EventObject::Machine(_)
            | EventObject::Rack(_)
            | EventObject::Node(_)
            | EventObject::Rollout(_) => None,
        }
    }

    fn id(&self) -> &str {
        self.spec.id.as_str()
    }

    fn is_id(text: &str) -> bool {
        RunId::parse(text).is_ok()
    }

    fn snapshot_time(&self) -> Timestamp {
        self.progress.finished_at.unwrap_or(self.spec.created_at)
    }

    fn parse_filter(text: &str) -> std::result::Result<Filter, Refusal> {
        Filter::parse(text, FilterSubject::Run)
    }

    /// The states of the machine at that time are not stored with the run. They may have matched.
    fn filter_before(filter: &Filter) -> Filter {
        filter.without_machine_states()
    }

    async fn page(tx: &mut Tx, query: &SnapshotQuery) -> Result<SnapshotPage<Self>> {
        let SnapshotQuery { filter, last, at } = query;
        let page = tx.runs_as_of(filter, last.as_deref(), SNAPSHOT_PAGE, *at).await?;
        Ok(SnapshotPage { objects: page.runs, next: page.next })
    }

    async fn matches(&self, filter: &Filter, engine: &Engine) -> Result<bool> {
        let machine = match self.spec.target.machine().filter(|_| filter.needs_machine()) {
            Some(id) => current_machine(engine, &id).await?,
            None => None,
        };
        Ok(filter.matches(FilterItem::Run(self, machine.as_ref())))
    }
}

/// The machine of a run as it is now; none if it was deleted.
async fn current_machine(engine: &Engine, id: &MachineId) -> Result<Option<Machine>> {
    match engine.machines().get(id).await {
        Ok(machine) => Ok(Some(machine)),
        Err(StoreError::Refused(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

impl Watched for Machine {
    const KIND: WatchedKind = WatchedKind::Machine;

    fn of_event(object: &EventObject) -> Option<&Arc<Self>> {
        match object {
            EventObject::Machine(machine) => Some(machine),
            EventObject::Run(_)
            | EventObject::Rack(_)
            | EventObject::Node(_)
            | EventObject::Rollout(_) => None,
        }
    }

    fn id(&self) -> &str {
        self.id.as_str()
    }

    fn is_id(text: &str) -> bool {
        MachineId::parse(text).is_ok()
    }

    fn snapshot_time(&self) -> Timestamp {
        self.updated_at
    }

    fn parse_filter(text: &str) -> std::result::Result<Filter, Refusal> {
        Filter::parse(text, FilterSubject::Machine)
    }

    async fn page(tx: &mut Tx, query: &SnapshotQuery) -> Result<SnapshotPage<Self>> {
        let SnapshotQuery { filter, last, at } = query;
        let page = tx.machines_as_of(filter, last.as_deref(), SNAPSHOT_PAGE, *at).await?;
        Ok(SnapshotPage { objects: page.machines, next: page.next })
    }

    async fn matches(&self, filter: &Filter, _engine: &Engine) -> Result<bool> {
        Ok(filter.matches(FilterItem::Machine(self)))
    }
}

impl Watched for Rack {
    const KIND: WatchedKind = WatchedKind::Rack;

    fn of_event(object: &EventObject) -> Option<&Arc<Self>> {
        match object {
            EventObject::Rack(rack) => Some(rack),
            EventObject::Run(_)
            | EventObject::Machine(_)
            | EventObject::Node(_)
            | EventObject::Rollout(_) => None,
        }
    }

    fn id(&self) -> &str {
        &self.head.id
    }

    fn is_id(text: &str) -> bool {
        RackId::parse(text).is_ok()
    }

    fn snapshot_time(&self) -> Timestamp {
        self.head.updated_at
    }

    fn parse_filter(text: &str) -> std::result::Result<Filter, Refusal> {
        Filter::parse(text, FilterSubject::Rack)
    }

    async fn page(tx: &mut Tx, query: &SnapshotQuery) -> Result<SnapshotPage<Self>> {
        record_page(tx, query, Filter::default()).await
    }

    async fn matches(&self, filter: &Filter, _engine: &Engine) -> Result<bool> {
        Ok(filter.matches_record(self))
    }
}

impl Watched for Node {
    const KIND: WatchedKind = WatchedKind::Node;

    fn of_event(object: &EventObject) -> Option<&Arc<Self>> {
        match object {
            EventObject::Node(node) => Some(node),
            EventObject::Run(_)
            | EventObject::Machine(_)
            | EventObject::Rack(_)
            | EventObject::Rollout(_) => None,
        }
    }

    fn id(&self) -> &str {
        &self.head.id
    }

    fn is_id(text: &str) -> bool {
        NodeId::parse(text).is_ok()
    }

    fn snapshot_time(&self) -> Timestamp {
        self.head.updated_at
    }

    fn is_deleted(&self) -> bool {
        self.state == NodeState::Deleted
    }

    fn parse_filter(text: &str) -> std::result::Result<Filter, Refusal> {
        Filter::parse(text, FilterSubject::Node)
    }

    /// Without deleted nodes, like the list of nodes: their records stay, and their number grows.
    async fn page(tx: &mut Tx, query: &SnapshotQuery) -> Result<SnapshotPage<Self>> {
        record_page(tx, query, Filter::not_in_states(&[NodeState::Deleted.as_str()])).await
    }

    async fn matches(&self, filter: &Filter, engine: &Engine) -> Result<bool> {
        if filter.scope == Scope::Everything {
            return Ok(filter.matches_record(self));
        }
        let machine = current_machine(engine, &self.machine).await?;
        let labels = machine.as_ref().map(|machine| &machine.labels);
        Ok(filter.matches_record_seen_by(self, labels))
    }
}

impl Watched for Rollout {
    const KIND: WatchedKind = WatchedKind::Rollout;

    fn of_event(object: &EventObject) -> Option<&Arc<Self>> {
        match object {
            EventObject::Rollout(rollout) => Some(rollout),
            EventObject::Run(_)
            | EventObject::Machine(_)
            | EventObject::Rack(_)
            | EventObject::Node(_) => None,
        }
    }

    fn id(&self) -> &str {
        &self.head.id
    }

    fn is_id(text: &str) -> bool {
        RolloutId::parse(text).is_ok()
    }

    fn snapshot_time(&self) -> Timestamp {
        self.head.updated_at
    }

    fn parse_filter(text: &str) -> std::result::Result<Filter, Refusal> {
        Filter::parse(text, FilterSubject::Rollout)
    }

    async fn page(tx: &mut Tx, query: &SnapshotQuery) -> Result<SnapshotPage<Self>> {
        record_page(tx, query, Filter::default()).await
    }

    async fn matches(&self, filter: &Filter, _engine: &Engine) -> Result<bool> {
        Ok(filter.matches_record(self))
    }
}

async fn record_page<R: Lifecycle>(
    tx: &mut Tx,
    query: &SnapshotQuery,
    filter: Filter,
) -> Result<SnapshotPage<R>> {
    let filter = &filter.within(query.filter.scope.clone());
    let limit = usize::try_from(SNAPSHOT_PAGE).unwrap_or_default();
    let page = tx.records_as_of(filter, query.last.as_deref(), limit, query.at).await?;
    Ok(SnapshotPage { objects: page.records, next: page.next })
}
