//! Notifiers, their positions in the events, and dead letters.
//!
//! A notifier has a row in the queue. The replica that has claimed it sends its notices, and every
//! write of a delivery names the epoch of the claim.

use crate::driver::{ExpectedRows, Statement};
use crate::event::{Cursor, NewEvent, REMOVED, WatchedKind};
use crate::signal::Signal;
use crate::subject::NOTIFIER;
use crate::value::{Row, Value, values};
use crate::{Result, Tx};
use model::id::ObjectId;
use model::lifecycle::SubjectKind;
use model::notify::{DeadLetter, Delivery, Notice, Notifier};
use model::time::Timestamp;

const COLUMNS: &str = "name, spec, paused, version, created_at, updated_at, delivery, \
                       position_tx, position_seq";
const LETTER: &str = "seq, notice, attempts, problem, failed_at, replaying";

/// A notifier, and the last event whose notices it has sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredNotifier {
    pub notifier: Notifier,
    pub position: Cursor,
}

/// The claim under which a replica sends the notices of a notifier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotifierClaim {
    pub name: String,
    pub epoch: i64,
    pub now: Timestamp,
}

/// Dead letters of one notifier: those with these ids, or all.
#[derive(Debug, Clone, Default)]
pub struct DeadLetterQuery {
    pub notifier: String,
    /// Empty: all.
    pub ids: Vec<i64>,
}

/// The key of a notifier in the queue and in the history.
pub fn notifier_key(name: &str) -> ObjectId {
    ObjectId::trusted(format!("{NOTIFIER}/{name}"))
}

/// The name of the notifier with this key.
pub fn notifier_of(key: &ObjectId) -> &str {
    let name = key.as_str().strip_prefix(NOTIFIER).and_then(|rest| rest.strip_prefix('/'));
    name.unwrap_or(key.as_str())
}

impl Tx {
    pub async fn notifier(&mut self, name: &str) -> Result<Option<StoredNotifier>> {
        self.find_notifier(name, "").await
    }

    /// Reads a notifier and locks it until the transaction ends.
    pub async fn notifier_locked(&mut self, name: &str) -> Result<Option<StoredNotifier>> {
        self.find_notifier(name, "{lock}").await
    }

    async fn find_notifier(&mut self, name: &str, lock: &str) -> Result<Option<StoredNotifier>> {
        let sql = format!("SELECT {COLUMNS} FROM notifiers WHERE name = $1 {lock}");
        let sql = self.dialect().fill_placeholders(&sql);
        self.query_one(&sql, values![name]).await?.as_ref().map(notifier).transpose()
    }

    /// One page of the notifiers, ordered by name.
    pub async fn notifiers(&mut self, after: &str, limit: i64) -> Result<Vec<StoredNotifier>> {
        let sql = format!("SELECT {COLUMNS} FROM notifiers WHERE name > $1 ORDER BY name LIMIT $2");
        self.query(&sql, values![after, limit]).await?.iter().map(notifier).collect()
    }

    pub async fn count_notifiers(&mut self) -> Result<i64> {
        let row = self.query_one("SELECT COUNT(*) FROM notifiers", &[]).await?;
        row.map_or(Ok(0), |row| row.int(0))
    }

    /// Inserts a notifier that gets the events after the present ones, and its queue row, due now.
    pub async fn insert_notifier(&mut self, new: &mut Notifier, event: &NewEvent) -> Result<()> {
        let key = notifier_key(&new.name);
        // A deleted notifier of the same name has a history that continues.
        new.version = self.last_version(key.as_str()).await? + 1;
        let position = self.horizon().await?;
        let sql = format!(
            "INSERT INTO notifiers ({COLUMNS}) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)"
        );
        let values = values![
            new.name.as_str(),
            serde_json::to_string(&new.spec)?,
            i64::from(new.paused),
            new.version,
            new.created_at,
            new.updated_at,
            serde_json::to_string(&new.delivery)?,
            position.tx,
            position.seq,
        ];
        self.queue_write(Statement::new(sql, values), ExpectedRows::One)?;
        let sql = format!(
            "INSERT INTO subjects (id, kind, holds_machine, version, epoch, owner, due_at, \
             wakes_asked, wakes_handled, phase, workflow, state, updated_at, ended_at) \
             VALUES ($1, '{NOTIFIER}', NULL, 1, 0, NULL, $2, 1, 0, '', '', '', $2, NULL)"
        );
        let values = values![key.as_str(), new.created_at];
        self.queue_write(Statement::new(sql, values), ExpectedRows::One)?;
        self.signal(Signal::Work);
        self.append_notifier_event(&new.name, new.version, "created", event)
    }

    /// Writes what its owner has changed, and wakes the replica that sends its notices. The state
    /// of the deliveries belongs to that replica.
    pub fn update_notifier(
        &mut self,
        changed: &mut Notifier,
        word: &str,
        event: &NewEvent,
    ) -> Result<()> {
        let read_at = changed.version;
        changed.version += 1;
        changed.updated_at = event.at;
        let sql = "UPDATE notifiers SET spec = $3, paused = $4, version = $5, updated_at = $6 \
                   WHERE name = $1 AND version = $2";
        let values = values![
            changed.name.as_str(),
            read_at,
            serde_json::to_string(&changed.spec)?,
            i64::from(changed.paused),
            changed.version,
            changed.updated_at,
        ];
        self.queue_write(Statement::new(sql, values), ExpectedRows::One)?;
        self.wake(&notifier_key(&changed.name), event.at)?;
        self.append_notifier_event(&changed.name, changed.version, word, event)
    }

    /// Deletes a notifier with its dead letters. Its history stays.
    pub fn delete_notifier(&mut self, gone: &Notifier, event: &NewEvent) -> Result<()> {
        let key = notifier_key(&gone.name);
        let sql = "DELETE FROM notifiers WHERE name = $1 AND version = $2";
        let values = values![gone.name.as_str(), gone.version];
        self.queue_write(Statement::new(sql, values), ExpectedRows::One)?;
        // The replica that sends its notices finds it gone.
        self.signal(Signal::Wake(key.clone()));
        let sql = "DELETE FROM subjects WHERE id = $1";
        self.queue_write(Statement::new(sql, values![key.as_str()]), ExpectedRows::One)?;
        let sql = "DELETE FROM dead_letters WHERE notifier = $1";
        self.queue_write(Statement::new(sql, values![gone.name.as_str()]), ExpectedRows::Any)?;
        self.append_notifier_event(&gone.name, gone.version + 1, REMOVED, event)
    }

    fn append_notifier_event(
        &mut self,
        name: &str,
        version: i64,
        word: &str,
        event: &NewEvent,
    ) -> Result<()> {
        let key = notifier_key(name);
        let event = self.object_event(NOTIFIER, key.as_str(), version, word, event);
        self.queue_write(event, ExpectedRows::One)?;
        self.signal(Signal::Event);
        Ok(())
    }

    /// Writes what became of the deliveries of a claimed notifier. A conflict means that the claim
    /// was lost.
    pub fn settle_delivery(
        &mut self,
        claim: &NotifierClaim,
        position: Cursor,
        delivery: &Delivery,
    ) -> Result<()> {
        self.require_claim(&notifier_key(&claim.name), claim.epoch, claim.now)?;
        let sql = "UPDATE notifiers SET position_tx = $2, position_seq = $3, delivery = $4 \
                   WHERE name = $1";
        let values = values![
            claim.name.as_str(),
            position.tx,
            position.seq,
            serde_json::to_string(delivery)?
        ];
        self.queue_write(Statement::new(sql, values), ExpectedRows::One)
    }

    /// The newest event of an object that has notices which retention has deleted.
    pub async fn newest_removed_object_event(&mut self) -> Result<Cursor> {
        let watched = WatchedKind::ALL.map(WatchedKind::as_str);
        let records = SubjectKind::ALL.map(SubjectKind::as_str);
        self.newest_removed_of(&[&watched[..], &records[..]].concat()).await
    }

    /// The number of wake-ups requested of a notifier, while it is claimed under this epoch.
    pub async fn notifier_wakes(&mut self, name: &str, epoch: i64) -> Result<Option<i64>> {
        let sql = "SELECT wakes_asked FROM subjects \
                   WHERE id = $1 AND epoch = $2 AND owner IS NOT NULL";
        let row = self.query_one(sql, values![notifier_key(name).as_str(), epoch]).await?;
        row.map(|row| row.int(0)).transpose()
    }

    /// Records the wake-ups that the holder of the claim has handled.
    pub fn handle_notifier_wakes(&mut self, claim: &NotifierClaim, wakes: i64) -> Result<()> {
        let sql = "UPDATE subjects SET wakes_handled = $3 \
                   WHERE id = $1 AND epoch = $2 AND owner IS NOT NULL";
        let values = values![notifier_key(&claim.name).as_str(), claim.epoch, wakes];
        self.queue_write(Statement::new(sql, values), ExpectedRows::One)
    }

    pub fn insert_dead_letter(&mut self, notifier: &str, letter: &DeadLetter) -> Result<()> {
        let sql = "INSERT INTO dead_letters (notifier, notice, attempts, problem, failed_at, \
                   replaying) VALUES ($1, $2, $3, $4, $5, 0)";
        let values = values![
            notifier,
            serde_json::to_string(&letter.notice)?,
            i64::from(letter.attempts),
            letter.problem.as_str(),
            letter.failed_at,
        ];
        self.queue_write(Statement::new(sql, values), ExpectedRows::One)
    }

    /// Writes a failed replay: the attempts, and whether it goes on.
    pub fn update_dead_letter(&mut self, letter: &DeadLetter) -> Result<()> {
        let sql = "UPDATE dead_letters SET attempts = $2, problem = $3, failed_at = $4, \
                   replaying = $5 WHERE seq = $1";
        let values = values![
            letter.id,
            i64::from(letter.attempts),
            letter.problem.as_str(),
            letter.failed_at,
            i64::from(letter.replaying),
        ];
        // It may have been discarded meanwhile.
        self.queue_write(Statement::new(sql, values), ExpectedRows::Any)
    }

    pub fn delete_dead_letter(&mut self, id: i64) -> Result<()> {
        let sql = "DELETE FROM dead_letters WHERE seq = $1";
        self.queue_write(Statement::new(sql, values![id]), ExpectedRows::Any)
    }

    /// One page of the dead letters of a notifier, the oldest first.
    pub async fn dead_letters(
        &mut self,
        notifier: &str,
        after: i64,
        limit: i64,
    ) -> Result<Vec<DeadLetter>> {
        let sql = format!(
            "SELECT {LETTER} FROM dead_letters WHERE notifier = $1 AND seq > $2 \
             ORDER BY seq LIMIT $3"
        );
        let rows = self.query(&sql, values![notifier, after, limit]).await?;
        rows.iter().map(letter).collect()
    }

    /// The first dead letter that is to be sent again.
    pub async fn next_replay(&mut self, notifier: &str) -> Result<Option<DeadLetter>> {
        let sql = format!(
            "SELECT {LETTER} FROM dead_letters WHERE notifier = $1 AND replaying = 1 \
             ORDER BY seq LIMIT 1"
        );
        self.query_one(&sql, values![notifier]).await?.as_ref().map(letter).transpose()
    }

    pub async fn count_dead_letters(&mut self, notifier: &str) -> Result<i64> {
        let sql = "SELECT COUNT(*) FROM dead_letters WHERE notifier = $1";
        self.query_one(sql, values![notifier]).await?.map_or(Ok(0), |row| row.int(0))
    }

    /// Marks dead letters to be sent again, and wakes the replica that sends. Returns how many.
    pub async fn replay_dead_letters(
        &mut self,
        query: &DeadLetterQuery,
        now: Timestamp,
    ) -> Result<u64> {
        let sql = "UPDATE dead_letters SET replaying = 1, attempts = 0";
        let count = self.execute_on_letters(sql, query).await?;
        self.wake(&notifier_key(&query.notifier), now)?;
        Ok(count)
    }

    /// Deletes dead letters. Returns how many.
    pub async fn discard_dead_letters(&mut self, query: &DeadLetterQuery) -> Result<u64> {
        self.execute_on_letters("DELETE FROM dead_letters", query).await
    }

    async fn execute_on_letters(&mut self, action: &str, query: &DeadLetterQuery) -> Result<u64> {
        let ids: Vec<String> = query.ids.iter().map(ToString::to_string).collect();
        let sql = self.dialect().fill_placeholders(&format!(
            "{action} WHERE notifier = $2 \
             AND (CAST($1 AS TEXT) = '[]' OR CAST(seq AS TEXT) {{among $1}})"
        ));
        let ids = Value::from(serde_json::to_string(&ids)?);
        self.execute(&sql, &[ids, query.notifier.as_str().into()]).await
    }
}

fn notifier(row: &Row) -> Result<StoredNotifier> {
    let notifier = Notifier {
        name: row.text(0)?.to_string(),
        spec: row.json(1)?,
        paused: row.int(2)? != 0,
        version: row.int(3)?,
        created_at: row.time(4)?,
        updated_at: row.time(5)?,
        delivery: row.json(6)?,
    };
    let position = Cursor { tx: row.int(7)?, seq: row.int(8)? };
    Ok(StoredNotifier { notifier, position })
}

fn letter(row: &Row) -> Result<DeadLetter> {
    let notice: Notice = row.json(1)?;
    Ok(DeadLetter {
        id: row.int(0)?,
        notice,
        attempts: u32::try_from(row.int(2)?).unwrap_or(u32::MAX),
        problem: row.text(3)?.to_string(),
        failed_at: row.time(4)?,
        replaying: row.int(5)? != 0,
    })
}
