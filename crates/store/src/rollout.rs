//! The targets of rollouts. Every read goes by an index and has a limit: a turn never reads all of
//! them.

use crate::driver::{ExpectedRows, Statement};
use crate::value::{Row, Value, values};
use crate::{Result, StoreError, Tx};
use model::id::{MachineId, RolloutId, RunId};
use model::lifecycle::{SubjectId, SubjectKind};
use model::rollout::{
    FailureGroup, Rollout, RolloutTarget, RolloutTurnInput, TargetStage, TargetState,
};
use model::time::Timestamp;

const COLUMNS: &str = "t.target, t.position, t.wave, t.state, t.stage, t.attempt, t.run, t.fault, \
                       t.reason, t.maintenance, t.since, t.refused_since, t.due_at";
/// The targets of one INSERT: with 14 values each, below the limit of parameters of each database.
const ROWS_PER_INSERT: usize = 100;
/// The most groups of failures that are read.
const MAX_GROUPS: i64 = 20;

/// A target that is due: its run has ended, or its time has come.
const DUE: &str = "FROM rollout_targets t LEFT JOIN subjects s ON s.id = t.run \
                   WHERE t.rollout = $1 AND t.state = 'active' AND (t.due_at <= $2 \
                   OR (t.run IS NOT NULL AND (s.id IS NULL OR s.ended_at IS NOT NULL)))";
const WAITING: &str = "FROM rollout_targets t \
                       WHERE t.rollout = $1 AND t.state = 'waiting' AND t.due_at <= $2";
const PENDING: &str = "FROM rollout_targets t \
                       WHERE t.rollout = $1 AND t.state = 'pending' AND t.position < $2";

impl Tx {
    /// Inserts the targets of a new rollout.
    pub fn insert_rollout_targets(
        &mut self,
        rollout: &RolloutId,
        targets: &[RolloutTarget],
    ) -> Result<()> {
        for some in targets.chunks(ROWS_PER_INSERT) {
            let row = |number: usize| {
                let places = (1..=14).map(|column| format!("${}", number * 14 + column));
                format!("({})", places.collect::<Vec<_>>().join(", "))
            };
            let rows: Vec<String> = (0..some.len()).map(row).collect();
            let sql = format!(
                "INSERT INTO rollout_targets (rollout, target, position, wave, state, stage, \
                 attempt, run, fault, reason, maintenance, since, refused_since, due_at) VALUES {}",
                rows.join(", ")
            );
            let values: Vec<Value> = some.iter().flat_map(|one| row_values(rollout, one)).collect();
            self.queue_write(Statement::new(sql, &values), ExpectedRows::Any)?;
        }
        Ok(())
    }

    /// Writes a changed target.
    pub fn update_rollout_target(
        &mut self,
        rollout: &RolloutId,
        target: &RolloutTarget,
    ) -> Result<()> {
        let sql = "UPDATE rollout_targets SET wave = $4, state = $5, stage = $6, attempt = $7, \
                   run = $8, fault = $9, reason = $10, maintenance = $11, since = $12, \
                   refused_since = $13, due_at = $14 \
                   WHERE rollout = $1 AND target = $2 AND position = $3";
        let values = row_values(rollout, target);
        self.queue_write(Statement::new(sql, &values), ExpectedRows::One)
    }

    pub async fn rollout_target(
        &mut self,
        rollout: &RolloutId,
        machine: &MachineId,
    ) -> Result<Option<RolloutTarget>> {
        let sql = format!(
            "SELECT {COLUMNS} FROM rollout_targets t WHERE t.rollout = $1 AND t.target = $2"
        );
        let row = self.query_one(&sql, values![rollout.as_str(), machine.as_str()]).await?;
        row.as_ref().map(target).transpose()
    }

    /// The targets after a position, in their order; of one state, if one is named.
    pub async fn rollout_targets(
        &mut self,
        rollout: &RolloutId,
        state: Option<TargetState>,
        after: Option<u32>,
        limit: i64,
    ) -> Result<Vec<RolloutTarget>> {
        let after = after.map_or(-1, i64::from);
        let rows = match state {
            None => {
                let sql = format!(
                    "SELECT {COLUMNS} FROM rollout_targets t \
                     WHERE t.rollout = $1 AND t.position > $2 ORDER BY t.position LIMIT $3"
                );
                self.query(&sql, values![rollout.as_str(), after, limit]).await?
            }
            Some(state) => {
                let sql = format!(
                    "SELECT {COLUMNS} FROM rollout_targets t \
                     WHERE t.rollout = $1 AND t.state = $4 AND t.position > $2 \
                     ORDER BY t.position LIMIT $3"
                );
                self.query(&sql, values![rollout.as_str(), after, limit, state.as_str()]).await?
            }
        };
        rows.iter().map(target).collect()
    }

    /// The active targets that have something to do now.
    pub async fn due_rollout_targets(
        &mut self,
        rollout: &RolloutId,
        now: Timestamp,
        limit: i64,
    ) -> Result<Vec<RolloutTarget>> {
        let sql = format!("SELECT {COLUMNS} {DUE} ORDER BY t.position LIMIT $3");
        let rows = self.query(&sql, values![rollout.as_str(), now, limit]).await?;
        rows.iter().map(target).collect()
    }

    /// The targets that may be started next: those that have waited long enough, then those of the
    /// begun waves.
    pub async fn next_rollout_targets(
        &mut self,
        rollout: &Rollout,
        now: Timestamp,
        limit: i64,
    ) -> Result<Vec<RolloutTarget>> {
        let id = rollout.id();
        let sql = format!("SELECT {COLUMNS} {WAITING} ORDER BY t.due_at LIMIT $3");
        let mut rows = self.query(&sql, values![id.as_str(), now, limit]).await?;
        let left = limit - i64::try_from(rows.len()).unwrap_or(limit);
        let sql = format!("SELECT {COLUMNS} {PENDING} ORDER BY t.position LIMIT $3");
        let wave_end = i64::from(rollout.wave_end);
        rows.extend(self.query(&sql, values![id.as_str(), wave_end, left]).await?);
        rows.iter().map(target).collect()
    }

    /// What a turn of the rollout finds among its targets.
    pub async fn rollout_work(
        &mut self,
        rollout: &Rollout,
        now: Timestamp,
    ) -> Result<RolloutTurnInput> {
        let id = rollout.id();
        let (id, starts) = (id.as_str(), rollout.free_slots(now) > 0);
        let wave_end = i64::from(rollout.wave_end);
        let sql = format!("SELECT t.target {PENDING} LIMIT 1");
        let pending = self.query_one(&sql, values![id, wave_end]).await?.is_some();
        let sql = format!("SELECT t.target {DUE} LIMIT 1");
        let mut due_now = self.query_one(&sql, values![id, now]).await?.is_some();
        let mut next_due = self.first_due(id, TargetState::Active).await?;
        if starts {
            let waiting = self.first_due(id, TargetState::Waiting).await?;
            due_now |= pending || waiting.is_some_and(|at| at <= now);
            next_due = [next_due, waiting].into_iter().flatten().min();
        }
        let counts = &rollout.counts;
        let wave_open = pending || counts.active + counts.waiting > 0;
        Ok(RolloutTurnInput { wave_open, due_now, next_due })
    }

    async fn first_due(&mut self, rollout: &str, state: TargetState) -> Result<Option<Timestamp>> {
        let sql = "SELECT due_at FROM rollout_targets WHERE rollout = $1 AND state = $2 \
                   AND due_at IS NOT NULL ORDER BY due_at LIMIT 1";
        let row = self.query_one(sql, values![rollout, state.as_str()]).await?;
        row.map(|row| row.time(0)).transpose()
    }

    /// Another rollout that works on a machine now.
    pub async fn other_rollout_on(
        &mut self,
        machine: &MachineId,
        own: &RolloutId,
    ) -> Result<Option<RolloutId>> {
        let sql = "SELECT rollout FROM rollout_targets \
                   WHERE target = $1 AND state = 'active' AND rollout <> $2 LIMIT 1";
        let row = self.query_one(sql, values![machine.as_str(), own.as_str()]).await?;
        row.map(|row| Ok(RolloutId::trusted(row.text(0)?))).transpose()
    }

    /// One of these machines that is an open target of another rollout, with that rollout.
    pub async fn open_rollout_target(
        &mut self,
        machines: &[MachineId],
    ) -> Result<Option<(MachineId, RolloutId)>> {
        let sql = "SELECT target, rollout FROM rollout_targets \
                   WHERE target {among $1} AND state IN ('pending', 'waiting', 'active') LIMIT 1";
        let sql = self.dialect().fill_placeholders(sql);
        let ids: Vec<&str> = machines.iter().map(MachineId::as_str).collect();
        let row = self.query_one(&sql, values![serde_json::to_string(&ids)?]).await?;
        let found =
            |row: Row| Ok((MachineId::trusted(row.text(0)?), RolloutId::trusted(row.text(1)?)));
        row.map(found).transpose()
    }

    /// Makes the failed targets pending again, each with its next attempt; returns their number.
    pub async fn retry_failed_targets(
        &mut self,
        rollout: &RolloutId,
        now: Timestamp,
    ) -> Result<u64> {
        let sql = "UPDATE rollout_targets SET state = 'pending', stage = '', run = NULL, \
                   attempt = attempt + 1, fault = '', reason = '', since = $2, \
                   refused_since = NULL, due_at = NULL WHERE rollout = $1 AND state = 'failed'";
        self.execute(sql, values![rollout.as_str(), now]).await
    }

    /// Skips the targets that were not begun; returns their number.
    pub async fn skip_unbegun_targets(
        &mut self,
        rollout: &RolloutId,
        reason: &str,
        now: Timestamp,
    ) -> Result<u64> {
        let sql = "UPDATE rollout_targets SET state = 'skipped', reason = $2, since = $3, \
                   refused_since = NULL, due_at = NULL \
                   WHERE rollout = $1 AND state IN ('pending', 'waiting')";
        self.execute(sql, values![rollout.as_str(), reason, now]).await
    }

    /// Has every active target looked at in the next turns.
    pub async fn look_at_active_targets(
        &mut self,
        rollout: &RolloutId,
        now: Timestamp,
    ) -> Result<u64> {
        let sql = "UPDATE rollout_targets SET due_at = $2 WHERE rollout = $1 AND state = 'active'";
        self.execute(sql, values![rollout.as_str(), now]).await
    }

    /// The failed targets of a rollout by their fault codes, the most frequent first.
    pub async fn rollout_failures(&mut self, rollout: &RolloutId) -> Result<Vec<FailureGroup>> {
        let sql = "SELECT g.fault, g.targets, t.target, t.reason FROM \
                   (SELECT fault, COUNT(*) AS targets, MIN(position) AS first \
                    FROM rollout_targets WHERE rollout = $1 AND state = 'failed' GROUP BY fault) g \
                   JOIN rollout_targets t ON t.rollout = $1 AND t.position = g.first \
                   ORDER BY g.targets DESC, g.fault LIMIT $2";
        let rows = self.query(sql, values![rollout.as_str(), MAX_GROUPS]).await?;
        let group = |row: &Row| {
            Ok(FailureGroup {
                fault: row.text(0)?.to_string(),
                count: number(row, 1)?,
                example: row.text(2)?.to_string(),
                reason: row.text(3)?.to_string(),
            })
        };
        rows.iter().map(group).collect()
    }

    /// Remembers which rollout a request has created.
    pub fn insert_rollout_request(&mut self, request_id: &str, rollout: &RolloutId) -> Result<()> {
        let sql = "INSERT INTO rollout_requests (request_id, rollout) VALUES ($1, $2)";
        let values = values![request_id, rollout.as_str()];
        self.queue_write(Statement::new(sql, values), ExpectedRows::One)
    }

    pub async fn rollout_of_request(&mut self, request_id: &str) -> Result<Option<RolloutId>> {
        let sql = "SELECT rollout FROM rollout_requests WHERE request_id = $1";
        let row = self.query_one(sql, values![request_id]).await?;
        row.map(|row| Ok(RolloutId::trusted(row.text(0)?))).transpose()
    }

    /// Deletes the rows of a deleted rollout.
    pub(crate) fn delete_rollout_rows(&mut self, subject: &SubjectId) -> Result<()> {
        if subject.kind != SubjectKind::Rollout {
            return Ok(());
        }
        for table in ["rollout_targets", "rollout_requests"] {
            let sql = format!("DELETE FROM {table} WHERE rollout = $1");
            let values = values![subject.id.as_str()];
            self.queue_write(Statement::new(sql, values), ExpectedRows::Any)?;
        }
        Ok(())
    }
}

fn row_values(rollout: &RolloutId, target: &RolloutTarget) -> Vec<Value> {
    let maintenance = match target.was_in_maintenance {
        None => "",
        Some(true) => "before",
        Some(false) => "no",
    };
    values![
        rollout.as_str(),
        target.machine.as_str(),
        i64::from(target.position),
        i64::from(target.wave),
        target.state.as_str(),
        target.stage.map_or("", TargetStage::as_str),
        i64::from(target.attempt),
        target.run.as_ref().map(RunId::as_str),
        target.fault.as_str(),
        target.reason.as_str(),
        maintenance,
        target.since,
        target.refused_since,
        target.due_at,
    ]
    .to_vec()
}

fn number(row: &Row, column: usize) -> Result<u32> {
    let value = row.int(column)?;
    u32::try_from(value).map_err(|_| StoreError::Corrupt(format!("{value} in a rollout's target")))
}

fn target(row: &Row) -> Result<RolloutTarget> {
    let unknown = |what: &str, word: &str| StoreError::Corrupt(format!("{what} {word:?}"));
    let (state, stage) = (row.text(3)?, row.text(4)?);
    Ok(RolloutTarget {
        machine: MachineId::trusted(row.text(0)?),
        position: number(row, 1)?,
        wave: number(row, 2)?,
        state: TargetState::parse(state).ok_or_else(|| unknown("target state", state))?,
        stage: match stage {
            "" => None,
            word => Some(TargetStage::parse(word).ok_or_else(|| unknown("target stage", word))?),
        },
        attempt: number(row, 5)?,
        run: row.opt_text(6)?.map(RunId::trusted),
        fault: row.text(7)?.to_string(),
        reason: row.text(8)?.to_string(),
        was_in_maintenance: match row.text(9)? {
            "before" => Some(true),
            "no" => Some(false),
            _ => None,
        },
        since: row.time(10)?,
        refused_since: row.opt_time(11)?,
        due_at: row.opt_time(12)?,
    })
}
