//! The queue: claims, settles and wake-ups. Every object with a lifecycle has one row in it.
//!
//! A claim assigns an object to a replica and raises its epoch. A settle names the epoch and the
//! version that it was decided on, and fails as a whole if either has moved. The row counts the
//! wake-ups requested and handled, so an object that is woken during a turn gets another turn.

use crate::driver::{ExpectedRows, Statement};
use crate::signal::Signal;
use crate::value::{Row, Value, values};
use crate::{Result, StoreError, Tx};
use model::id::{ObjectId, RunId};
use model::lifecycle::SubjectKind;
use model::run::{Progress, Run};
use model::target::TargetKind;
use model::time::Timestamp;
use model::why::ReplicaContact;
use std::sync::LazyLock;

/// An object claimed from the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimedObject {
    pub id: ObjectId,
    pub kind: ClaimedKind,
    pub epoch: i64,
    pub wakes_requested: i64,
}

/// The kind of an object in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimedKind {
    Run,
    Record(SubjectKind),
    Notifier,
}

impl ClaimedKind {
    fn parse(name: &str) -> Option<Self> {
        match name {
            RUN => Some(Self::Run),
            NOTIFIER => Some(Self::Notifier),
            name => SubjectKind::parse(name).map(Self::Record),
        }
    }
}

/// The kind of a run and of a notifier in the column `kind`.
const RUN: &str = "run";
pub(crate) const NOTIFIER: &str = "notifier";

/// The initial queue state of a new run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enqueue<'a> {
    /// Due at once, for the next worker that claims.
    Now,
    /// Claimed by this replica from the start.
    Claimed(&'a str),
    /// Not due until it is woken.
    WhenWoken,
}

/// The claim after a settle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimOutcome {
    /// The worker keeps the claim.
    Keep,
    /// The object goes back to the queue, due at this time; `None` means when woken.
    Release(Option<Timestamp>),
}

/// A write of a run's progress, fenced by the epoch.
#[derive(Debug, Clone)]
pub struct RunSettlement {
    pub run: Run,
    pub epoch: i64,
    /// The number of wake-ups that the decision has handled.
    pub wakes_handled: i64,
    pub claim: ClaimOutcome,
    pub now: Timestamp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SettledVersion {
    pub version: i64,
}

/// Excludes kinds that only a newer replica knows: such a row must not block the others.
static KNOWN_KIND: LazyLock<String> =
    LazyLock::new(|| format!("kind IN ('{RUN}', '{NOTIFIER}', {})", record_kinds()));

/// All record kinds, as an SQL list.
pub(crate) fn record_kinds() -> String {
    let words = SubjectKind::ALL.map(|kind| format!("'{}'", kind.as_str()));
    words.join(", ")
}

fn progress_json(progress: &Progress) -> Result<Value> {
    Ok(Value::Text(serde_json::to_string(progress)?))
}

/// The end of a run; null while it is active.
fn ended_at(run: &Run, now: Timestamp) -> Value {
    Value::from(run.ended().then_some(now))
}

/// The target that an active run holds. Several runs may be active on one rack, so a rack run holds
/// only its own id; the devices that it needs are in `RunSpec::held_targets`.
fn held_key(run: &Run) -> Value {
    let claimed = || match run.spec.target.kind {
        TargetKind::Machine | TargetKind::Switch | TargetKind::PowerShelf => run.spec.target.key(),
        TargetKind::Rack => run.spec.id.to_string(),
    };
    Value::from((!run.ended()).then(claimed))
}

impl Tx {
    /// The queue row of a new run.
    pub(crate) fn subject_row(run: &Run, enqueue: Enqueue<'_>) -> Result<Statement> {
        let (owner, due) = match enqueue {
            Enqueue::Now => (None, Some(run.spec.created_at)),
            Enqueue::Claimed(owner) => (Some(owner), Some(run.spec.created_at)),
            Enqueue::WhenWoken => (None, None),
        };
        let epoch = i64::from(owner.is_some());
        Ok(Statement {
            sql: "INSERT INTO subjects (id, kind, holds_machine, version, epoch, owner, due_at, \
                  wakes_asked, wakes_handled, phase, workflow, state, updated_at, ended_at) \
                  VALUES ($1, 'run', $2, $3, $4, $5, $6, 1, 0, $7, $8, $9, $11, $10)"
                .into(),
            values: vec![
                Value::from(run.spec.id.as_str()),
                held_key(run),
                Value::from(run.version),
                Value::from(epoch),
                Value::from(owner),
                Value::from(due),
                Value::from(run.phase().as_str()),
                Value::from(run.progress.workflow.as_str()),
                progress_json(&run.progress)?,
                ended_at(run, run.spec.created_at),
                Value::from(run.spec.created_at),
            ],
        })
    }

    /// Claims up to `limit` due objects.
    pub async fn claim_due(
        &mut self,
        owner: &str,
        now: Timestamp,
        limit: i64,
    ) -> Result<Vec<ClaimedObject>> {
        let sql = self.dialect().fill_placeholders(&format!(
            "UPDATE subjects SET owner = $1, epoch = epoch + 1 WHERE id IN (\
             SELECT id FROM subjects WHERE owner IS NULL AND due_at IS NOT NULL AND due_at <= $2 \
             AND {} ORDER BY due_at LIMIT $3 {{skip_locked}}) \
             RETURNING id, epoch, wakes_asked, kind",
            *KNOWN_KIND
        ));
        let rows = self.query(&sql, values![owner, now, limit]).await?;
        rows.iter().map(claimed).collect()
    }

    /// The time at which the next object is due.
    pub async fn next_due(&mut self) -> Result<Option<Timestamp>> {
        let sql = format!(
            "SELECT due_at FROM subjects WHERE owner IS NULL AND due_at IS NOT NULL \
             AND {} ORDER BY due_at LIMIT 1",
            *KNOWN_KIND
        );
        self.query_one(&sql, &[]).await?.map(|row| row.time(0)).transpose()
    }

    /// Writes a decision under a claim. If the epoch or the version has moved, the whole
    /// transaction fails with [`StoreError::Conflict`].
    pub fn settle(&mut self, settle: &RunSettlement) -> Result<SettledVersion> {
        let run = &settle.run;
        let version = run.version + 1;
        let (keep, due) = match settle.claim {
            ClaimOutcome::Keep => (1, None),
            ClaimOutcome::Release(due) => (0, due),
        };
        let sql = "UPDATE subjects SET version = $4, phase = $5, workflow = $6, state = $7, \
                   holds_machine = $8, updated_at = $9, wakes_handled = $10, ended_at = $13, \
                   owner = CASE WHEN CAST($11 AS BIGINT) = 1 THEN owner ELSE NULL END, \
                   due_at = CASE WHEN CAST($11 AS BIGINT) = 1 THEN due_at \
                                 WHEN wakes_asked > $10 THEN $9 ELSE $12 END \
                   WHERE id = $1 AND epoch = $2 AND version = $3 AND owner IS NOT NULL";
        let values = values![
            run.spec.id.as_str(),
            settle.epoch,
            run.version,
            version,
            run.phase().as_str(),
            run.progress.workflow.as_str(),
            serde_json::to_string(&run.progress)?,
            held_key(run),
            settle.now,
            settle.wakes_handled,
            i64::from(keep),
            due,
            ended_at(run, settle.now),
        ];
        self.queue_write(Statement::new(sql, values), ExpectedRows::One)?;
        if let ClaimOutcome::Release(Some(_)) = settle.claim {
            self.signal(Signal::Work);
        }
        if run.ended() {
            // Tells followers of its log that it is complete.
            self.signal(Signal::Log(run.spec.id.clone()));
        }
        Ok(SettledVersion { version })
    }

    /// Writes a change that a request makes to a run without a claim on it, and wakes the run.
    pub fn update_unclaimed(&mut self, run: &Run, now: Timestamp) -> Result<SettledVersion> {
        let version = run.version + 1;
        let sql = "UPDATE subjects SET version = $3, phase = $4, workflow = $5, state = $6, \
                   holds_machine = $7, updated_at = $8, wakes_asked = wakes_asked + 1, due_at = $8, \
                   ended_at = $9 WHERE id = $1 AND version = $2";
        let values = values![
            run.spec.id.as_str(),
            run.version,
            version,
            run.phase().as_str(),
            run.progress.workflow.as_str(),
            serde_json::to_string(&run.progress)?,
            held_key(run),
            now,
            ended_at(run, now),
        ];
        self.queue_write(Statement::new(sql, values), ExpectedRows::One)?;
        self.signal(Signal::Wake(run.spec.id.object()));
        self.signal(Signal::Work);
        Ok(SettledVersion { version })
    }

    /// Requests a turn for an object without changing it.
    pub fn wake(&mut self, id: &ObjectId, now: Timestamp) -> Result<()> {
        let sql = "UPDATE subjects SET wakes_asked = wakes_asked + 1, due_at = $2 WHERE id = $1";
        self.queue_write(Statement::new(sql, values![id.as_str(), now]), ExpectedRows::Any)?;
        self.signal(Signal::Wake(id.clone()));
        self.signal(Signal::Work);
        Ok(())
    }

    /// The objects that `owner` has claimed and that have unhandled wake-ups.
    pub async fn unhandled_wakes(&mut self, owner: &str) -> Result<Vec<ObjectId>> {
        let sql = "SELECT id FROM subjects WHERE owner = $1 AND wakes_asked > wakes_handled";
        let rows = self.query(sql, values![owner]).await?;
        rows.iter().map(|row| Ok(ObjectId::trusted(row.text(0)?))).collect()
    }

    /// Releases an object without a change.
    pub fn release(
        &mut self,
        id: &ObjectId,
        epoch: i64,
        wakes: i64,
        due: Option<Timestamp>,
        now: Timestamp,
    ) -> Result<()> {
        let sql = "UPDATE subjects SET owner = NULL, wakes_handled = $3, \
                   due_at = CASE WHEN wakes_asked > $3 THEN CAST($5 AS BIGINT) ELSE CAST($4 AS BIGINT) END \
                   WHERE id = $1 AND epoch = $2";
        self.queue_write(
            Statement::new(sql, values![id.as_str(), epoch, wakes, due, now]),
            ExpectedRows::Any,
        )?;
        self.signal(Signal::Work);
        Ok(())
    }

    /// The claims of a replica in the database.
    pub async fn claimed_by(&mut self, owner: &str) -> Result<Vec<(ObjectId, i64)>> {
        let rows =
            self.query("SELECT id, epoch FROM subjects WHERE owner = $1", values![owner]).await?;
        rows.iter().map(|row| Ok((ObjectId::trusted(row.text(0)?), row.int(1)?))).collect()
    }

    /// True if an object is still claimed under this epoch.
    pub async fn is_claimed(&mut self, id: &ObjectId, epoch: i64) -> Result<bool> {
        let sql = "SELECT id FROM subjects WHERE id = $1 AND owner IS NOT NULL AND epoch = $2";
        Ok(self.query_one(sql, values![id.as_str(), epoch]).await?.is_some())
    }

    /// Makes this transaction fail with a conflict unless the object is still claimed under this
    /// epoch. No other replica can claim it until the transaction ends.
    pub fn require_claim(&mut self, id: &ObjectId, epoch: i64, now: Timestamp) -> Result<()> {
        let sql = "UPDATE subjects SET updated_at = $3 \
                   WHERE id = $1 AND epoch = $2 AND owner IS NOT NULL";
        self.queue_write(Statement::new(sql, values![id.as_str(), epoch, now]), ExpectedRows::One)
    }

    /// Releases an object without handling its wake-ups; it is due at `due`.
    pub fn release_unhandled(&mut self, id: &ObjectId, epoch: i64, due: Timestamp) -> Result<()> {
        let sql = "UPDATE subjects SET owner = NULL, due_at = $3 WHERE id = $1 AND epoch = $2";
        self.queue_write(Statement::new(sql, values![id.as_str(), epoch, due]), ExpectedRows::Any)?;
        self.signal(Signal::Work);
        Ok(())
    }

    /// The name of the replica that has claimed a run.
    pub async fn claiming_replica(&mut self, id: &RunId) -> Result<Option<String>> {
        let sql = "SELECT COALESCE(r.name, s.owner) FROM subjects s \
                   LEFT JOIN replicas r ON r.incarnation = s.owner WHERE s.id = $1";
        let row = self.query_one(sql, values![id.as_str()]).await?;
        Ok(row.map(|row| row.opt_text(0).map(|name| name.map(String::from))).transpose()?.flatten())
    }

    /// The claiming replica and its last heartbeat. None: not claimed, or the replica is gone.
    pub async fn replica_contact(&mut self, id: &RunId) -> Result<Option<ReplicaContact>> {
        let sql = "SELECT r.name, r.heartbeat_at, r.expires_at FROM subjects s \
                   JOIN replicas r ON r.incarnation = s.owner WHERE s.id = $1";
        let row = self.query_one(sql, values![id.as_str()]).await?;
        let contact = |row: Row| {
            let (name, expires_at) = (row.text(0)?.to_string(), row.time(2)?);
            Ok(ReplicaContact { name, heartbeat_at: row.opt_time(1)?, expires_at })
        };
        row.map(contact).transpose()
    }

    /// The number of active runs by phase, for the metrics.
    pub async fn phase_counts(&mut self) -> Result<Vec<(String, i64)>> {
        let sql =
            "SELECT phase, COUNT(*) FROM subjects WHERE holds_machine IS NOT NULL GROUP BY phase";
        let rows = self.query(sql, &[]).await?;
        rows.iter().map(|row| Ok((row.text(0)?.to_string(), row.int(1)?))).collect()
    }
}

fn claimed(row: &Row) -> Result<ClaimedObject> {
    let name = row.text(3)?;
    let unknown = || StoreError::Corrupt(format!("kind {name:?}"));
    let kind = ClaimedKind::parse(name).ok_or_else(unknown)?;
    let id = ObjectId::trusted(row.text(0)?);
    Ok(ClaimedObject { id, kind, epoch: row.int(1)?, wakes_requested: row.int(2)? })
}
