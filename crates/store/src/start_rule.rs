//! Windows and freezes. There are few of them, and admission reads all that hold.

use crate::driver::{Dialect, ExpectedRows, Statement};
use crate::event::NewEvent;
use crate::keyset::KeysetQuery;
use crate::signal::Signal;
use crate::unreadable::Listed;
use crate::value::{Row, Value, values};
use crate::{Result, StoreError, Tx};
use model::filter::Filter;
use model::time::Timestamp;
use model::window::{HoldsFor, StartRule, StartRuleId, StartRuleKind, StartTerms, WeeklyWindows};

const COLUMNS: &str = "kind, name, filter, holds_for, open, until, reason, created_by, created_at, \
                       updated_at, version";

impl Tx {
    pub async fn start_rule(&mut self, id: &StartRuleId) -> Result<Option<StartRule>> {
        let sql = format!("SELECT {COLUMNS} FROM start_rules WHERE kind = $1 AND name = $2");
        let row = self.query_one(&sql, values![id.kind.as_str(), id.name.as_str()]).await?;
        row.as_ref().map(start_rule).transpose()
    }

    /// The rules that hold operations back now: also those for rollouts only, if a rollout asks.
    /// Freezes first.
    pub async fn start_rules_in_force(
        &mut self,
        by_rollout: bool,
        now: Timestamp,
    ) -> Result<Vec<StartRule>> {
        let least = if by_rollout { "" } else { HoldsFor::Everything.as_str() };
        let sql = format!(
            "SELECT {COLUMNS} FROM start_rules WHERE ($1 = '' OR holds_for = $1) \
             AND (until IS NULL OR until > $2) ORDER BY kind, name"
        );
        let rows = self.query(&sql, values![least, now]).await?;
        rows.iter().map(start_rule).collect()
    }

    /// One page of the windows, or of the freezes, that match, ordered by name.
    pub async fn start_rules(
        &mut self,
        kind: StartRuleKind,
        filter: &Filter,
        after: &str,
        limit: i64,
    ) -> Result<Listed<StartRule>> {
        let query = KeysetQuery {
            sql: format!(
                "SELECT {COLUMNS} FROM start_rules WHERE name > $1 AND kind = $2 \
                 ORDER BY name LIMIT $3"
            ),
            after: vec![after.into()],
            fixed: vec![kind.as_str().into()],
            key: &[1],
            kind: None,
            decode: start_rule,
        };
        self.filtered_items(query, filter, limit).await
    }

    /// The number of windows and freezes, also of those that have ended.
    pub async fn count_start_rules(&mut self) -> Result<i64> {
        let row = self.query_one("SELECT COUNT(*) FROM start_rules", &[]).await?;
        row.map_or(Ok(0), |row| row.int(0))
    }

    /// Waits for every other transaction that changes windows or freezes.
    pub async fn lock_start_rules(&mut self) -> Result<()> {
        match self.dialect() {
            // A write transaction is alone.
            Dialect::Sqlite => Ok(()),
            Dialect::Postgres => {
                let sql = "LOCK TABLE start_rules IN SHARE ROW EXCLUSIVE MODE";
                self.execute(sql, &[]).await.map(drop)
            }
        }
    }

    /// Inserts a window or a freeze and sets its version.
    pub async fn insert_start_rule(
        &mut self,
        rule: &mut StartRule,
        event: &NewEvent,
    ) -> Result<()> {
        // A deleted one of the same name has a history that continues.
        rule.version = self.last_version(&rule.id.history()).await? + 1;
        let sql = format!(
            "INSERT INTO start_rules ({COLUMNS}) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)"
        );
        self.queue_write(Statement::new(sql, &cells(rule)), ExpectedRows::One)?;
        self.append_start_rule_event(rule, rule.version, "created", event)
    }

    /// Writes a changed rule and raises its version. A conflict means that another transaction
    /// wrote it first.
    pub fn update_start_rule(&mut self, rule: &mut StartRule, event: &NewEvent) -> Result<()> {
        let read_at = rule.version;
        rule.version += 1;
        let sql = "UPDATE start_rules SET filter = $3, holds_for = $4, open = $5, until = $6, \
                   reason = $7, created_by = $8, created_at = $9, updated_at = $10, version = $11 \
                   WHERE kind = $1 AND name = $2 AND version = $12";
        let values = [cells(rule), vec![read_at.into()]].concat();
        self.queue_write(Statement::new(sql, &values), ExpectedRows::One)?;
        self.append_start_rule_event(rule, rule.version, "changed", event)
    }

    /// Deletes a rule at its version.
    pub fn delete_start_rule(&mut self, rule: &StartRule, event: &NewEvent) -> Result<()> {
        let sql = "DELETE FROM start_rules WHERE kind = $1 AND name = $2 AND version = $3";
        let StartRuleId { kind, name } = &rule.id;
        let values = values![kind.as_str(), name.as_str(), rule.version];
        self.queue_write(Statement::new(sql, values), ExpectedRows::One)?;
        self.append_start_rule_event(rule, rule.version + 1, "removed", event)
    }

    fn append_start_rule_event(
        &mut self,
        rule: &StartRule,
        version: i64,
        name: &str,
        event: &NewEvent,
    ) -> Result<()> {
        let StartRuleId { kind, .. } = &rule.id;
        let event = self.object_event(kind.as_str(), &rule.id.history(), version, name, event);
        self.queue_write(event, ExpectedRows::One)?;
        self.signal(Signal::Event);
        Ok(())
    }
}

/// The values of all columns, in their order.
fn cells(rule: &StartRule) -> Vec<Value> {
    let StartRuleId { kind, name } = &rule.id;
    let (open, until, reason) = match &rule.terms {
        StartTerms::Open(windows) => (windows.to_string(), None, ""),
        StartTerms::Frozen { until, reason } => (String::new(), Some(*until), reason.as_str()),
    };
    values![
        kind.as_str(),
        name.as_str(),
        rule.filter.as_str(),
        rule.holds_for.as_str(),
        open,
        until,
        reason,
        rule.created_by.as_str(),
        rule.created_at,
        rule.updated_at,
        rule.version,
    ]
    .to_vec()
}

fn start_rule(row: &Row) -> Result<StartRule> {
    let unknown = |what: &str, text: &str| {
        StoreError::Corrupt(format!("the {what} {text:?} of a window or a freeze is unknown"))
    };
    let (kind, holds_for) = (row.text(0)?, row.text(3)?);
    let kind = StartRuleKind::parse(kind).ok_or_else(|| unknown("kind", kind))?;
    let terms = match kind {
        StartRuleKind::Window => {
            let open = row.text(4)?;
            let windows = WeeklyWindows::parse("open", open).map_err(|_| unknown("time", open))?;
            StartTerms::Open(windows)
        }
        StartRuleKind::Freeze => {
            StartTerms::Frozen { until: row.time(5)?, reason: row.text(6)?.to_string() }
        }
    };
    Ok(StartRule {
        id: StartRuleId::trusted(kind, row.text(1)?),
        filter: row.text(2)?.to_string(),
        holds_for: HoldsFor::parse(holds_for).ok_or_else(|| unknown("operations", holds_for))?,
        terms,
        created_by: row.text(7)?.to_string(),
        created_at: row.time(8)?,
        updated_at: row.time(9)?,
        version: row.int(10)?,
    })
}
