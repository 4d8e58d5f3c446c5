//! Runs: the immutable spec is in `runs`, the mutable progress in `subjects`.

use crate::driver::{ExpectedRows, Statement};
use crate::event::{Cursor, NewEvent, ObjectAsOf, readable_body};
use crate::filter::{Select, compile_filter};
use crate::signal::Signal;
use crate::subject::Enqueue;
use crate::unreadable::{Listed, RowKind, UnreadableRow, named};
use crate::value::{Row, Value, values};
use crate::{Result, Tx};
use model::filter::Filter;
use model::id::RunId;
use model::lifecycle::SubjectId;
use model::plan::RunType;
use model::run::{Progress, Run};
use model::target::TargetId;
use model::time::Timestamp;
use std::collections::BTreeMap;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunPage {
    pub runs: Vec<Run>,
    /// The id before which the next page starts, if there is one.
    pub next: Option<String>,
    /// Rows that were left out.
    pub unreadable: Vec<UnreadableRow>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimedRun {
    pub run: Run,
    pub epoch: i64,
    pub wakes_requested: i64,
    pub owner: Option<String>,
}

const COLUMNS: &str = "SELECT r.spec, s.state, s.version, r.id";
const FROM: &str = "FROM runs r JOIN subjects s ON s.id = r.id";
const CLAIMED: &str = "SELECT r.spec, s.state, s.version, s.epoch, s.wakes_asked, s.owner, r.id \
                    FROM runs r JOIN subjects s ON s.id = r.id";

impl Tx {
    pub async fn run(&mut self, id: &RunId) -> Result<Option<Run>> {
        let sql = format!("{COLUMNS} {FROM} WHERE r.id = $1");
        let row = self.query_one(&sql, values![id.as_str()]).await?;
        row.as_ref().map(named_run).transpose()
    }

    /// Reads a run with its claim.
    pub async fn run_with_claim(&mut self, id: &RunId) -> Result<Option<ClaimedRun>> {
        let sql = format!("{CLAIMED} WHERE r.id = $1");
        let row = self.query_one(&sql, values![id.as_str()]).await?;
        named(RowKind::Run, id.as_str(), row.as_ref().map(claimed_run).transpose())
    }

    /// Reads a run and locks it against claims and other writers until the transaction ends.
    pub async fn run_with_claim_locked(&mut self, id: &RunId) -> Result<Option<ClaimedRun>> {
        let sql = self.dialect().fill_placeholders("SELECT id FROM subjects WHERE id = $1 {lock}");
        self.query_one(&sql, values![id.as_str()]).await?;
        self.run_with_claim(id).await
    }

    /// Reads several runs. One that cannot be decoded does not hide the others.
    pub async fn runs_with_claims(
        &mut self,
        ids: &[&str],
    ) -> Result<Vec<(RunId, Result<ClaimedRun>)>> {
        let sql = self.dialect().fill_placeholders(&format!("{CLAIMED} WHERE r.id {{among $1}}"));
        let rows = self.query(&sql, values![serde_json::to_string(ids)?]).await?;
        let claimed = |row: &Row| {
            let id = row.text(6)?;
            Ok((RunId::trusted(id), named(RowKind::Run, id, claimed_run(row))))
        };
        rows.iter().map(claimed).collect()
    }

    /// The run that a request id created on a target.
    pub async fn run_of_request(&mut self, target: &TargetId, id: &str) -> Result<Option<Run>> {
        let sql = format!("{COLUMNS} {FROM} WHERE r.machine_id = $1 AND r.request_id = $2");
        let row = self.query_one(&sql, values![target.key(), id]).await?;
        row.as_ref().map(named_run).transpose()
    }

    pub async fn latest_run(&mut self, target: &TargetId) -> Result<Option<Run>> {
        Ok(self.latest_runs(target, 1).await?.into_iter().next())
    }

    /// The latest runs on a target, newest first.
    pub async fn latest_runs(&mut self, target: &TargetId, limit: i64) -> Result<Vec<Run>> {
        let sql = format!(
            "{COLUMNS} {FROM} WHERE r.machine_id = $1 \
             ORDER BY r.created_at DESC, r.id DESC LIMIT $2"
        );
        let rows = self.query(&sql, values![target.key(), limit]).await?;
        rows.iter().map(named_run).collect()
    }

    /// The runs with this request id on these targets: the child runs of a group.
    pub async fn runs_of_request(&mut self, targets: &[TargetId], id: &str) -> Result<Vec<Run>> {
        let sql = self.dialect().fill_placeholders(&format!(
            "{COLUMNS} {FROM} WHERE r.machine_id {{among $1}} \
             AND r.request_id = $2"
        ));
        let rows = self.query(&sql, values![keys(targets)?, id]).await?;
        rows.iter().map(named_run).collect()
    }

    /// The active runs on these targets, by the target's key.
    pub async fn active_runs_on(
        &mut self,
        targets: &[TargetId],
    ) -> Result<BTreeMap<String, RunId>> {
        let sql = self.dialect().fill_placeholders(
            "SELECT holds_machine, id FROM subjects WHERE holds_machine {among $1}",
        );
        let rows = self.query(&sql, values![keys(targets)?]).await?;
        rows.iter()
            .map(|row| Ok((row.text(0)?.to_string(), RunId::trusted(row.text(1)?))))
            .collect()
    }

    /// The creation time of the newest run on these targets, by the clock of any replica; the epoch
    /// if there is none.
    pub async fn newest_run_at(&mut self, targets: &[TargetId]) -> Result<Timestamp> {
        let sql = self.dialect().fill_placeholders(
            "SELECT COALESCE(MAX(created_at), 0) FROM runs WHERE machine_id {among $1}",
        );
        let row = self.query_one(&sql, values![keys(targets)?]).await?;
        row.map_or(Ok(Timestamp::default()), |row| row.time(0))
    }

    /// Up to `limit` runs that have not ended.
    pub async fn active_runs(&mut self, limit: i64) -> Result<Listed<Run>> {
        let sql = format!(
            "{COLUMNS} FROM subjects s JOIN runs r ON r.id = s.id \
             WHERE s.holds_machine IS NOT NULL LIMIT $1"
        );
        let rows = self.query(&sql, values![limit]).await?;
        let mut found = Listed::default();
        for row in &rows {
            found.push(RowKind::Run, row.text(3)?, run(row))?;
        }
        Ok(found)
    }

    /// One page of active runs of these types, ordered by id.
    pub async fn active_runs_of(
        &mut self,
        types: &[RunType],
        after: &str,
        limit: i64,
    ) -> Result<Vec<Run>> {
        let words: Vec<&str> = types.iter().map(|one| one.as_str()).collect();
        let sql = self.dialect().fill_placeholders(&format!(
            "{COLUMNS} {FROM} WHERE s.holds_machine IS NOT NULL \
             AND r.type {{among $1}} AND s.id > $2 ORDER BY s.id LIMIT $3"
        ));
        let rows = self.query(&sql, values![serde_json::to_string(&words)?, after, limit]).await?;
        rows.iter().map(named_run).collect()
    }

    /// Inserts a run, its queue row and its first event. A conflict means that
    /// another request won the race.
    pub fn insert_run(&mut self, run: &Run, enqueue: Enqueue<'_>, event: &NewEvent) -> Result<()> {
        let spec = &run.spec;
        self.created_run.get_or_insert_with(|| spec.id.to_string());
        let row = Statement {
            sql: "INSERT INTO runs (id, machine_id, request_id, type, plan_id, spec, created_at, \
                  part_of, reports_to) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)"
                .into(),
            values: vec![
                Value::from(spec.id.as_str()),
                Value::from(spec.target.key()),
                Value::from(spec.request_id.as_str()),
                Value::from(spec.run_type.as_str()),
                Value::from(spec.plan_id.as_str()),
                Value::from(serde_json::to_string(spec)?),
                Value::from(spec.created_at),
                Value::from(spec.parent_run.as_ref().map(RunId::as_str)),
                Value::from(spec.reports_to.as_ref().map(SubjectId::key)),
            ],
        };
        self.queue_write(row, ExpectedRows::One)?;
        self.queue_write(Self::subject_row(run, enqueue)?, ExpectedRows::One)?;
        self.queue_write(self.run_event(run, event)?, ExpectedRows::One)?;
        self.signal(Signal::Event);
        if enqueue == Enqueue::Now {
            self.signal(Signal::Work);
        }
        Ok(())
    }

    /// One page of runs, newest first.
    pub async fn runs(
        &mut self,
        filter: &Filter,
        before: Option<&str>,
        limit: i64,
    ) -> Result<RunPage> {
        let mut select = Select::new(self.dialect(), "r.machine_id");
        select.compare("s.id", "<", before);
        compile_filter(filter, &mut select);
        let join =
            if filter.needs_machine() { "JOIN machines ON machines.id = r.machine_id" } else { "" };
        let clause = select.clause();
        let count = select.bind(limit + 1);
        let sql = format!("{COLUMNS} {FROM} {join} {clause} ORDER BY s.id DESC LIMIT {count}");
        let rows = self.query(&sql, &select.values).await?;
        page(&rows, limit, |row| Ok(row.text(3)?.to_string()))
    }

    /// Like [`Tx::runs`], as of a cursor: later changes are undone, and runs that did not exist
    /// then are omitted. So a watch that continues from that cursor misses and repeats nothing.
    pub async fn runs_as_of(
        &mut self,
        filter: &Filter,
        before: Option<&str>,
        limit: i64,
        at: Cursor,
    ) -> Result<RunPage> {
        let page = self.runs(filter, before, limit).await?;
        let mut runs = Vec::with_capacity(page.runs.len());
        for run in page.runs {
            match self.object_as_of(run.spec.id.as_str(), run.version, at).await? {
                ObjectAsOf::Unchanged => runs.push(run),
                ObjectAsOf::Earlier(version, body) => {
                    let progress = readable_body::<Progress>(run.spec.id.as_str(), &body);
                    runs.extend(progress.map(|progress| Run { version, progress, ..run }));
                }
                ObjectAsOf::Later => {}
            }
        }
        Ok(RunPage { runs, ..page })
    }
}

/// The keys of targets as a JSON array, for `{among}`.
fn keys(targets: &[TargetId]) -> Result<String> {
    Ok(serde_json::to_string(targets)?)
}

fn claimed_run(row: &Row) -> Result<ClaimedRun> {
    let owner = row.opt_text(5)?.map(String::from);
    Ok(ClaimedRun { run: run(row)?, epoch: row.int(3)?, wakes_requested: row.int(4)?, owner })
}

/// One page of rows, of which one more than `limit` was read. `position` is that of a row.
pub(crate) fn page(
    rows: &[Row],
    limit: i64,
    position: impl Fn(&Row) -> Result<String>,
) -> Result<RunPage> {
    let shown = &rows[..rows.len().min(limit as usize)];
    let mut listed = Listed::default();
    for row in shown {
        listed.push(RowKind::Run, row.text(3)?, run(row))?;
    }
    let last = shown.last().filter(|_| rows.len() > shown.len());
    let next = last.map(position).transpose()?;
    Ok(RunPage { runs: listed.items, next, unreadable: listed.unreadable })
}

/// Decodes a run for a decision: an error names the row.
fn named_run(row: &Row) -> Result<Run> {
    named(RowKind::Run, row.text(3)?, run(row))
}

pub(crate) fn run(row: &Row) -> Result<Run> {
    Ok(Run { spec: row.json(0)?, progress: row.json(1)?, version: row.int(2)? })
}
