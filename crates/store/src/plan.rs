//! Plans of operators. The built-in plans are in the model.

use crate::unreadable::{Listed, RowKind, named};
use crate::value::{Row, values};
use crate::{Result, Tx};
use model::id::PlanId;
use model::plan::Plan;
use model::time::Timestamp;

impl Tx {
    pub async fn plan(&mut self, id: &PlanId) -> Result<Option<Plan>> {
        let row =
            self.query_one("SELECT body FROM plans WHERE id = $1", values![id.as_str()]).await?;
        named(RowKind::Plan, id.as_str(), row.as_ref().map(plan).transpose())
    }

    /// A conflict means that the id exists.
    pub async fn insert_plan(&mut self, plan: &Plan, now: Timestamp) -> Result<()> {
        let sql = "INSERT INTO plans (id, body, created_at) VALUES ($1, $2, $3)";
        let body = serde_json::to_string(plan)?;
        self.execute(sql, values![plan.id.as_str(), body, now]).await.map(drop)
    }

    /// One page of plans, ordered by id, and the id after which the next page starts.
    pub async fn plans(
        &mut self,
        after: &str,
        limit: i64,
    ) -> Result<(Listed<Plan>, Option<String>)> {
        let sql = "SELECT body, id FROM plans WHERE id > $1 ORDER BY id LIMIT $2";
        let rows = self.query(sql, values![after, limit]).await?;
        let mut found = Listed::default();
        for row in &rows {
            found.push(RowKind::Plan, row.text(1)?, plan(row))?;
        }
        let last = rows.last().filter(|_| rows.len() as i64 == limit);
        Ok((found, last.map(|row| row.text(1).map(String::from)).transpose()?))
    }
}

pub(crate) fn plan(row: &Row) -> Result<Plan> {
    row.json(0)
}
