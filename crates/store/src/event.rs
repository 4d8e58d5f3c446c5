//! Events: one row for every transition of every object. Read by object, they are its history; read
//! by cursor, they are a watch. Only the transaction that makes a change writes its event. The
//! events of runs, machines, racks and nodes hold the object as it was after the change.

use crate::driver::{ExpectedRows, Statement};
use crate::keyset::KeysetQuery;
use crate::signal::Signal;
use crate::value::{Row, Value, values};
use crate::{Result, Tx};
use model::filter::{Filter, FilterValues};
use model::lifecycle::{Lifecycle, SubjectKind};
use model::machine::Machine;
use model::node::Node;
use model::rack::Rack;
use model::run::{Run, RunSpec};
use model::time::Timestamp;
use std::fmt;
use std::sync::Arc;

/// The state in the last event of a deleted object.
pub const REMOVED: &str = "removed";

/// The component that caused a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    Request,
    Engine,
    Probe,
    Admin,
}

impl Cause {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::Engine => "engine",
            Self::Probe => "probe",
            Self::Admin => "admin",
        }
    }
}

/// A position in the order of all events. Clients get it as an opaque string.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Cursor {
    pub tx: i64,
    pub seq: i64,
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.tx, self.seq)
    }
}

impl Cursor {
    pub fn parse(text: &str) -> Option<Self> {
        let (tx, seq) = text.split_once('.')?;
        let cursor = Self { tx: tx.parse().ok()?, seq: seq.parse().ok()? };
        (cursor.tx >= 0 && cursor.seq >= 0).then_some(cursor)
    }
}

/// The description of a change.
#[derive(Debug, Clone)]
pub struct NewEvent {
    pub cause: Cause,
    pub actor: String,
    pub message: String,
    /// The source line that decided it.
    pub decided_by: String,
    pub at: Timestamp,
}

/// The kind of an object whose events hold a snapshot, so that it can be watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchedKind {
    Run,
    Machine,
    Rack,
    Node,
}

impl WatchedKind {
    pub const ALL: [Self; 4] = [Self::Run, Self::Machine, Self::Rack, Self::Node];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Machine => "machine",
            Self::Rack => SubjectKind::Rack.as_str(),
            Self::Node => SubjectKind::Node.as_str(),
        }
    }

    /// None for a kind that cannot be watched, or that only a newer version knows.
    fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }

    pub(crate) const fn of_record(kind: SubjectKind) -> Option<Self> {
        match kind {
            SubjectKind::Rack => Some(Self::Rack),
            SubjectKind::Node => Some(Self::Node),
            SubjectKind::Switch
            | SubjectKind::PowerShelf
            | SubjectKind::Host
            | SubjectKind::Site => None,
        }
    }
}

/// An object after a change, or before its deletion. Shared by all watchers.
#[derive(Debug, Clone)]
pub enum EventObject {
    Run(Arc<Run>),
    Machine(Arc<Machine>),
    Rack(Arc<Rack>),
    Node(Arc<Node>),
}

/// The object of an event before the change.
#[derive(Debug, Clone)]
pub enum ObjectBefore {
    /// It did not exist.
    Absent,
    /// The event before has expired, or was written without a snapshot.
    Unknown,
    /// A record whose events have no snapshot, in this state.
    State(String),
    Known(EventObject),
}

#[derive(Debug, Clone)]
pub struct Event {
    pub cursor: Cursor,
    pub ts: Timestamp,
    /// None for a kind that cannot be watched.
    pub kind: Option<WatchedKind>,
    /// None for a kind that is no record.
    pub record_kind: Option<SubjectKind>,
    pub object_id: String,
    pub version: i64,
    /// The state of the object after the change.
    pub state: String,
    pub cause: String,
    pub actor: String,
    pub message: String,
    pub decided_by: String,
    /// None in a history, for a kind that cannot be watched, and in an event that an older version
    /// wrote without a snapshot.
    pub object: Option<EventObject>,
}

impl Event {
    /// True for the last event of a deleted object.
    pub fn is_deletion(&self) -> bool {
        self.state == REMOVED
    }
}

impl FilterValues for Event {
    fn values_of(&self, field: &str) -> Vec<String> {
        match field {
            "cause" => vec![self.cause.clone()],
            "actor" => vec![self.actor.clone()],
            "state" => vec![self.state.clone()],
            _ => Vec::new(),
        }
    }
}

/// Selects entries of a history.
#[derive(Debug, Clone, Default)]
pub struct HistoryQuery {
    pub filter: Filter,
    pub newest_first: bool,
    /// The version of the last entry of the page before.
    pub after: Option<i64>,
}

/// A stored object as of a cursor.
pub(crate) enum ObjectAsOf {
    /// It has not changed since.
    Unchanged,
    /// Its version then, and the body of the event of that version.
    Earlier(i64, String),
    /// It did not exist then, or its event of that time has expired. A later event describes it.
    Later,
}

impl Tx {
    /// Appends an event to the history of a run. `run` is the run after the change, at its new
    /// version.
    pub fn append_run_event(&mut self, run: &Run, event: &NewEvent) -> Result<()> {
        let statement = self.run_event(run, event)?;
        self.queue_write(statement, ExpectedRows::One)?;
        self.signal(Signal::Event);
        Ok(())
    }

    /// Adds a note to the first event of a run, in the transaction that has inserted it.
    pub fn annotate_new_run(&mut self, run: &Run, note: &str) -> Result<()> {
        let sql = "UPDATE events SET message = message || $3 WHERE object_id = $1 AND version = $2";
        let values = values![run.spec.id.as_str(), run.version, format!("; {note}")];
        self.queue_write(Statement::new(sql, values), ExpectedRows::One)
    }

    pub(crate) fn run_event(&self, run: &Run, event: &NewEvent) -> Result<Statement> {
        let body = serde_json::to_string(&run.progress)?;
        let name = run.progress.workflow.as_str();
        let mut statement = insert("run", run.spec.id.as_str(), run.version, name, event, body);
        statement.sql = self.dialect().fill_placeholders(&statement.sql);
        Ok(statement)
    }

    pub(crate) fn machine_event(&self, machine: &Machine, event: &NewEvent) -> Result<Statement> {
        let state = machine.effective_state().as_str();
        self.machine_event_in_state(machine, machine.version, state, event)
    }

    /// The last event of a machine, with the machine as it was.
    pub(crate) fn machine_deletion(
        &self,
        machine: &Machine,
        event: &NewEvent,
    ) -> Result<Statement> {
        self.machine_event_in_state(machine, machine.version + 1, REMOVED, event)
    }

    fn machine_event_in_state(
        &self,
        machine: &Machine,
        version: i64,
        state: &str,
        event: &NewEvent,
    ) -> Result<Statement> {
        let body = serde_json::to_string(machine)?;
        let (kind, id) = (WatchedKind::Machine.as_str(), machine.id.as_str());
        let mut statement = insert(kind, id, version, state, event, body);
        statement.sql = self.dialect().fill_placeholders(&statement.sql);
        Ok(statement)
    }

    /// An event of a record, with a body if the record can be watched.
    pub(crate) fn lifecycle_event<R: Lifecycle>(
        &self,
        record: &R,
        version: i64,
        state: &str,
        event: &NewEvent,
    ) -> Result<Statement> {
        let body = match WatchedKind::of_record(R::KIND) {
            Some(_) => serde_json::to_string(record)?,
            None => String::new(),
        };
        let key = record.subject().key();
        let mut statement = insert(R::KIND.as_str(), &key, version, state, event, body);
        statement.sql = self.dialect().fill_placeholders(&statement.sql);
        Ok(statement)
    }

    /// The insert of an event without a body.
    pub(crate) fn object_event(
        &self,
        kind: &str,
        id: &str,
        version: i64,
        name: &str,
        event: &NewEvent,
    ) -> Statement {
        let mut statement = insert(kind, id, version, name, event, String::new());
        statement.sql = self.dialect().fill_placeholders(&statement.sql);
        statement
    }

    /// The state of a stored object, which is at `version` now, as of a cursor.
    pub(crate) async fn object_as_of(
        &mut self,
        id: &str,
        version: i64,
        at: Cursor,
    ) -> Result<ObjectAsOf> {
        let sql = "SELECT version, body, word FROM events WHERE object_id = $1 AND version <= $2 \
                   AND (tx, seq) <= ($3, $4) ORDER BY version DESC LIMIT 1";
        match self.query_one(sql, values![id, version, at.tx, at.seq]).await? {
            Some(then) if then.int(0)? == version => Ok(ObjectAsOf::Unchanged),
            // It was deleted then, and was created again later.
            Some(then) if then.text(2)? == REMOVED => Ok(ObjectAsOf::Later),
            Some(then) => match then.text(1)? {
                // An older version wrote the event without a body.
                "" => Ok(ObjectAsOf::Later),
                body => Ok(ObjectAsOf::Earlier(then.int(0)?, body.to_string())),
            },
            None => {
                let sql = "SELECT version FROM events WHERE object_id = $1 LIMIT 1";
                match self.query_one(sql, values![id]).await? {
                    Some(_) => Ok(ObjectAsOf::Later),
                    // Retention has deleted all of its events: it has not changed since.
                    None => Ok(ObjectAsOf::Unchanged),
                }
            }
        }
    }

    /// The version of the last event of an object, even if the object was deleted. A new object of
    /// the same id continues from it.
    pub async fn last_version(&mut self, id: &str) -> Result<i64> {
        let sql = "SELECT version FROM events WHERE object_id = $1 ORDER BY version DESC LIMIT 1";
        self.query_one(sql, values![id]).await?.as_ref().map_or(Ok(0), |row| row.int(0))
    }

    /// The next events after a cursor, in order. They are final: none can appear among them.
    pub async fn events_after(&mut self, cursor: Cursor, limit: i64) -> Result<Vec<Event>> {
        let sql = self.dialect().fill_placeholders(
            "SELECT e.tx, e.seq, e.ts, e.object_id, e.version, e.word, e.cause, e.actor, \
             e.message, e.decided_by, e.kind, e.body, r.spec FROM events e \
             LEFT JOIN runs r ON r.id = e.object_id \
             WHERE {after_cursor} ORDER BY e.tx, e.seq LIMIT $3",
        );
        let rows = self.query(&sql, values![cursor.tx, cursor.seq, limit]).await?;
        rows.iter().map(|row| event(row, readable_object(row))).collect()
    }

    /// True if an older open transaction keeps committed events from being final. No signal says
    /// when it ends.
    pub async fn has_held_back_events(&mut self) -> Result<bool> {
        let sql = "SELECT e.seq FROM events e WHERE {not_final} LIMIT 1";
        let sql = self.dialect().fill_placeholders(sql);
        Ok(self.query_one(&sql, &[]).await?.is_some())
    }

    /// The object before the change that made it this version.
    pub async fn object_before(&mut self, id: &str, version: i64) -> Result<ObjectBefore> {
        let sql = "SELECT e.tx, e.seq, e.ts, e.object_id, e.version, e.word, e.cause, e.actor, \
                   e.message, e.decided_by, e.kind, e.body, r.spec FROM events e \
                   LEFT JOIN runs r ON r.id = e.object_id \
                   WHERE e.object_id = $1 AND e.version < $2 ORDER BY e.version DESC LIMIT 1";
        Ok(match self.query_one(sql, values![id, version]).await? {
            None if version <= 1 => ObjectBefore::Absent,
            None => ObjectBefore::Unknown,
            Some(row) if row.text(5)? == REMOVED => ObjectBefore::Absent,
            Some(row) if WatchedKind::parse(row.text(10)?).is_none() => {
                ObjectBefore::State(row.text(5)?.to_string())
            }
            Some(row) => readable_object(&row).map_or(ObjectBefore::Unknown, ObjectBefore::Known),
        })
    }

    /// The cursor of the last final event.
    pub async fn horizon(&mut self) -> Result<Cursor> {
        let sql = self.dialect().fill_placeholders("{horizon}");
        match self.query_one(&sql, &[]).await? {
            Some(row) => Ok(Cursor { tx: row.int(0)?, seq: row.int(1)? }),
            None => Ok(Cursor::default()),
        }
    }

    /// A cursor at or after everything that is committed now. The horizon reaches it as soon as the
    /// transactions that are open now have ended.
    pub async fn latest_cursor(&mut self) -> Result<Cursor> {
        let sql = self.dialect().fill_placeholders("{latest}");
        match self.query_one(&sql, &[]).await? {
            Some(row) => Ok(Cursor { tx: row.int(0)?, seq: row.int(1)? }),
            None => Ok(Cursor::default()),
        }
    }

    /// The last event of an object, even if the object was deleted.
    pub async fn last_event(&mut self, id: &str) -> Result<Option<Event>> {
        let version = self.last_version(id).await?;
        Ok(self.history(id, version - 1, 1).await?.into_iter().next())
    }

    /// The events of one object after a version, oldest first.
    pub async fn history(&mut self, id: &str, after: i64, limit: i64) -> Result<Vec<Event>> {
        let query = HistoryQuery { after: Some(after), ..HistoryQuery::default() };
        self.filtered_history(id, &query, limit).await
    }

    /// The events of one object that match.
    pub async fn filtered_history(
        &mut self,
        id: &str,
        query: &HistoryQuery,
        limit: i64,
    ) -> Result<Vec<Event>> {
        let (sign, direction, first) = match query.newest_first {
            true => ("<", "DESC", i64::MAX),
            false => (">", "ASC", 0),
        };
        let sql = format!(
            "SELECT e.tx, e.seq, e.ts, e.object_id, e.version, e.word, e.cause, e.actor, \
                   e.message, e.decided_by, e.kind FROM events e WHERE e.version {sign} $1 \
                   AND e.object_id = $2 ORDER BY e.version {direction} LIMIT $3"
        );
        let rows = KeysetQuery {
            sql,
            after: vec![query.after.unwrap_or(first).into()],
            fixed: vec![id.into()],
            key: &[4],
            kind: None,
            decode: |row| event(row, None),
        };
        self.filtered_items(rows, &query.filter, limit).await?.complete()
    }
}

fn insert(
    kind: &str,
    id: &str,
    version: i64,
    name: &str,
    event: &NewEvent,
    body: String,
) -> Statement {
    Statement {
        sql: "INSERT INTO events (tx, ts, kind, object_id, version, word, cause, actor, message, \
              decided_by, body) VALUES ({event_tx}, $1, $2, $3, $4, $5, $6, $7, $8, $9, $10)"
            .into(),
        values: vec![
            Value::from(event.at),
            Value::from(kind),
            Value::from(id),
            Value::from(version),
            Value::from(name),
            Value::from(event.cause.as_str()),
            Value::from(event.actor.as_str()),
            Value::from(event.message.as_str()),
            Value::from(event.decided_by.as_str()),
            Value::from(body),
        ],
    }
}

/// The object of an event; none if it cannot be decoded, such as one of a newer version. The
/// watches of other kinds continue.
fn readable_object(row: &Row) -> Option<EventObject> {
    event_object(row).unwrap_or_else(|error| {
        let object = row.text(3).unwrap_or_default();
        tracing::error!(object, %error, "the object of an event cannot be read");
        None
    })
}

/// An object in the body of an earlier event; none if it cannot be decoded. A snapshot leaves it
/// out: a later event describes the object.
pub(crate) fn readable_body<T: serde::de::DeserializeOwned>(object: &str, body: &str) -> Option<T> {
    serde_json::from_str(body)
        .inspect_err(|error| {
            tracing::error!(object, %error, "the object of an event cannot be read");
        })
        .ok()
}

/// The object in the body of an event: the columns 10 (kind) and 11 (body), and 12, the spec of a
/// run.
fn event_object(row: &Row) -> Result<Option<EventObject>> {
    let version = row.int(4)?;
    let Some(kind) = WatchedKind::parse(row.text(10)?) else { return Ok(None) };
    if row.text(11)?.is_empty() {
        return Ok(None);
    }
    Ok(Some(match kind {
        WatchedKind::Run => {
            let Some(spec) = row.opt_text(12)? else { return Ok(None) };
            let spec: RunSpec = serde_json::from_str(spec)?;
            EventObject::Run(Arc::new(Run { spec, progress: row.json(11)?, version }))
        }
        WatchedKind::Machine => {
            let machine: Machine = row.json(11)?;
            EventObject::Machine(Arc::new(Machine { version, ..machine }))
        }
        WatchedKind::Rack => EventObject::Rack(Arc::new(record_at::<Rack>(row, version)?)),
        WatchedKind::Node => EventObject::Node(Arc::new(record_at::<Node>(row, version)?)),
    }))
}

fn record_at<R: Lifecycle>(row: &Row, version: i64) -> Result<R> {
    let mut record: R = row.json(11)?;
    record.head_mut().version = version;
    Ok(record)
}

fn event(row: &Row, object: Option<EventObject>) -> Result<Event> {
    Ok(Event {
        cursor: Cursor { tx: row.int(0)?, seq: row.int(1)? },
        ts: row.time(2)?,
        kind: WatchedKind::parse(row.text(10)?),
        record_kind: SubjectKind::parse(row.text(10)?),
        object_id: row.text(3)?.to_string(),
        version: row.int(4)?,
        state: row.text(5)?.to_string(),
        cause: row.text(6)?.to_string(),
        actor: row.text(7)?.to_string(),
        message: row.text(8)?.to_string(),
        decided_by: row.text(9)?.to_string(),
        object,
    })
}
