//! The approval policy, and the requests that need or needed a second person.

use crate::driver::{ExpectedRows, Statement};
use crate::value::{Row, values};
use crate::{Result, StoreError, Tx};
use model::access::{Permission, PermissionSet};
use model::approval::{Approval, ApprovalPolicy, ApprovalState, MAX_EARLIER};
use model::id::{ApprovalId, RunId};
use model::time::Timestamp;
use std::time::Duration;

const COLUMNS: &str = "id, requester, request, request_id, targets, permissions, plan, digest, \
                       state, created_at, expires_at, decided_by, decided_at, comment, reason, \
                       operations";

impl Tx {
    pub async fn approval_policy(&mut self) -> Result<ApprovalPolicy> {
        let sql = "SELECT classes, lifetime_s FROM approval_policy";
        let row = self.query_one(sql, values![]).await?;
        let row = row.ok_or_else(|| StoreError::Corrupt("approval_policy has no row".into()))?;
        let lifetime = Duration::from_secs(u64::try_from(row.int(1)?).unwrap_or_default());
        Ok(ApprovalPolicy { classes: permissions(&row, 0)?, lifetime })
    }

    pub fn set_approval_policy(&mut self, policy: &ApprovalPolicy) -> Result<()> {
        let sql = "UPDATE approval_policy SET classes = $1, lifetime_s = $2";
        let lifetime = i64::try_from(policy.lifetime.as_secs()).unwrap_or(i64::MAX);
        let values = values![words(policy.classes), lifetime];
        self.queue_write(Statement::new(sql, values), ExpectedRows::One)
    }

    pub async fn approval(&mut self, id: &ApprovalId) -> Result<Option<Approval>> {
        let sql = format!("SELECT {COLUMNS} FROM approvals WHERE id = $1");
        self.query_one(&sql, values![id.as_str()]).await?.as_ref().map(approval).transpose()
    }

    /// The newest approvals of a requester with this digest or, unless it is empty, this request
    /// id; the newest first.
    pub async fn approvals_of_request(
        &mut self,
        requester: &str,
        digest: &str,
        request_id: &str,
    ) -> Result<Vec<Approval>> {
        let sql = format!(
            "SELECT {COLUMNS} FROM approvals WHERE requester = $1 \
             AND (digest = $2 OR (request_id = $3 AND request_id <> '')) \
             ORDER BY id DESC LIMIT $4"
        );
        let rows = self.query(&sql, values![requester, digest, request_id, MAX_EARLIER]).await?;
        rows.iter().map(approval).collect()
    }

    /// Approvals before an id, the newest first. `open`: only those that may wait for a person.
    pub async fn approvals(
        &mut self,
        open: bool,
        before: Option<&str>,
        limit: i64,
    ) -> Result<Vec<Approval>> {
        let state = match open {
            true => {
                let open = ApprovalState::OPEN.map(|state| format!("'{}'", state.as_str()));
                format!(" AND state IN ({})", open.join(", "))
            }
            false => String::new(),
        };
        let sql = format!(
            "SELECT {COLUMNS} FROM approvals WHERE ($1 = '' OR id < $1){state} \
             ORDER BY id DESC LIMIT $2"
        );
        let rows = self.query(&sql, values![before.unwrap_or_default(), limit]).await?;
        rows.iter().map(approval).collect()
    }

    /// The break-glasses that nobody has reviewed, the oldest first.
    pub async fn unreviewed_approvals(&mut self, limit: i64) -> Result<Vec<Approval>> {
        let state = ApprovalState::BreakGlass.as_str();
        let sql = format!("SELECT {COLUMNS} FROM approvals WHERE state = $1 ORDER BY id LIMIT $2");
        self.query(&sql, values![state, limit]).await?.iter().map(approval).collect()
    }

    pub async fn count_pending_approvals(&mut self, requester: &str) -> Result<i64> {
        let sql = "SELECT COUNT(*) FROM approvals WHERE requester = $1 AND state = $2";
        let values = values![requester, ApprovalState::Pending.as_str()];
        self.query_one(sql, values).await?.map_or(Ok(0), |row| row.int(0))
    }

    /// Marks the requests of a requester that have waited too long.
    pub async fn expire_approvals(&mut self, requester: &str, now: Timestamp) -> Result<()> {
        let sql = "UPDATE approvals SET state = $3 \
                   WHERE requester = $1 AND state = $4 AND expires_at <= $2";
        let (expired, pending) = (ApprovalState::Expired.as_str(), ApprovalState::Pending.as_str());
        self.execute(sql, values![requester, now, expired, pending]).await.map(drop)
    }

    pub fn insert_approval(&mut self, new: &Approval) -> Result<()> {
        let sql = format!(
            "INSERT INTO approvals ({COLUMNS}) VALUES \
             ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)"
        );
        let values = values![
            new.id.as_str(),
            new.requester.as_str(),
            new.request.as_str(),
            new.request_id.as_str(),
            serde_json::to_string(&new.targets)?,
            words(new.permissions),
            serde_json::to_string(&new.plan)?,
            new.digest.as_str(),
            new.stored.as_str(),
            new.created_at,
            new.expires_at,
            new.decided_by.as_str(),
            new.decided_at,
            new.comment.as_str(),
            new.reason.as_str(),
            serde_json::to_string(&new.operations)?,
        ];
        self.queue_write(Statement::new(sql, values), ExpectedRows::One)
    }

    /// Writes a decision. A conflict means that the approval has left the state `before`.
    pub fn decide_approval(&mut self, before: ApprovalState, new: &Approval) -> Result<()> {
        let sql = "UPDATE approvals SET state = $3, expires_at = $4, decided_by = $5, \
                   decided_at = $6, comment = $7 WHERE id = $1 AND state = $2";
        let values = values![
            new.id.as_str(),
            before.as_str(),
            new.stored.as_str(),
            new.expires_at,
            new.decided_by.as_str(),
            new.decided_at,
            new.comment.as_str(),
        ];
        self.queue_write(Statement::new(sql, values), ExpectedRows::One)
    }

    /// Uses an approval up for these operations. A conflict means that it was used, or denied.
    pub fn use_approval(&mut self, id: &ApprovalId, operations: &[RunId]) -> Result<()> {
        let sql = "UPDATE approvals SET state = $2, operations = $3 WHERE id = $1 AND state = $4";
        let (used, approved) = (ApprovalState::Used.as_str(), ApprovalState::Approved.as_str());
        let values = values![id.as_str(), used, serde_json::to_string(operations)?, approved];
        self.queue_write(Statement::new(sql, values), ExpectedRows::One)
    }

    /// True if approvals ended before this time, so that a write would delete some.
    pub async fn has_removable_approvals(&mut self, before: Timestamp) -> Result<bool> {
        let sql = "SELECT id FROM approvals WHERE expires_at < $1 AND state <> $2 LIMIT 1";
        let values = values![before, ApprovalState::BreakGlass.as_str()];
        Ok(self.query_one(sql, values).await?.is_some())
    }

    /// Deletes approvals that ended before this time. A break-glass stays until its review.
    pub async fn remove_approvals(&mut self, before: Timestamp, limit: i64) -> Result<u64> {
        let sql = "DELETE FROM approvals WHERE id IN (SELECT id FROM approvals \
                   WHERE expires_at < $1 AND state <> $2 ORDER BY id LIMIT $3)";
        self.execute(sql, values![before, ApprovalState::BreakGlass.as_str(), limit]).await
    }
}

fn words(permissions: PermissionSet) -> String {
    permissions.iter().map(Permission::as_str).collect::<Vec<_>>().join(" ")
}

/// A permission that this version does not know makes the row unreadable: to leave it out would
/// let a request through.
fn permissions(row: &Row, column: usize) -> Result<PermissionSet> {
    let known = row.text(column)?.split_whitespace().map(|word| {
        Permission::parse(word)
            .ok_or_else(|| StoreError::Corrupt(format!("the permission {word:?} is unknown")))
    });
    Ok(PermissionSet::of(&known.collect::<Result<Vec<_>>>()?))
}

fn approval(row: &Row) -> Result<Approval> {
    let text = |column: usize| row.text(column).map(String::from);
    let list =
        |column: usize| -> Result<Vec<String>> { Ok(serde_json::from_str(row.text(column)?)?) };
    let state = row.text(8)?;
    let stored = ApprovalState::parse(state)
        .ok_or_else(|| StoreError::Corrupt(format!("the approval state {state:?} is unknown")))?;
    Ok(Approval {
        id: ApprovalId::trusted(text(0)?),
        requester: text(1)?,
        request: text(2)?,
        request_id: text(3)?,
        targets: list(4)?,
        permissions: permissions(row, 5)?,
        plan: list(6)?,
        digest: text(7)?,
        stored,
        created_at: row.time(9)?,
        expires_at: row.time(10)?,
        decided_by: text(11)?,
        decided_at: row.opt_time(12)?,
        comment: text(13)?,
        reason: text(14)?,
        operations: list(15)?,
    })
}
