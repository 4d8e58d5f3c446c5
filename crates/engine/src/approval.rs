//! Approvals as people see and decide them, and the policy that asks for them.

use crate::Engine;
use model::access::Permission;
use model::approval::{Approval, ApprovalPolicy, Decision};
use model::id::ApprovalId;
use model::refusal::Refusal;
use model::text;
use model::time::Timestamp;
use std::time::Duration;
use store::{Result, Tx};

/// The time that an approval is kept after it ended. The audit log keeps its facts for ever.
pub(crate) const KEPT_AFTER_END: Duration = Duration::from_secs(90 * 86_400);

/// The service for approvals, on behalf of a caller.
#[derive(Clone)]
pub struct Approvals(pub(crate) Engine);

/// The decision of a person.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verb {
    Grant,
    Deny,
}

impl Approvals {
    pub async fn policy(&self) -> Result<ApprovalPolicy> {
        self.0.store().read_one((), |(), tx| Box::pin(tx.approval_policy())).await
    }

    pub async fn set_policy(&self, policy: ApprovalPolicy) -> Result<ApprovalPolicy> {
        self.0.caller().require(Permission::Admin, "changing the approval policy")?;
        let written = self.0.store().retry_write("set_approval_policy", policy, |policy, tx| {
            Box::pin(async move { tx.set_approval_policy(policy) })
        });
        written.await?;
        Ok(policy)
    }

    /// Approvals before an id, the newest first. `open`: only those that wait for a person.
    pub async fn list(
        &self,
        open: bool,
        before: Option<String>,
        limit: i64,
    ) -> Result<Vec<Approval>> {
        let found = self.0.store().scan((open, before, limit), |(open, before, limit), tx| {
            Box::pin(tx.approvals(*open, before.as_deref(), *limit))
        });
        found.await
    }

    pub async fn get(&self, id: &ApprovalId) -> Result<Approval> {
        let found = self.0.store().read_one(id.clone(), |id, tx| Box::pin(tx.approval(id)));
        Ok(found.await?.ok_or_else(|| no_approval(id))?)
    }

    /// Approves a request of another person, or reviews a break-glass.
    pub async fn grant(&self, id: ApprovalId, comment: &str) -> Result<Approval> {
        self.decide(id, comment, Verb::Grant).await
    }

    /// Denies a request, takes an approval back, or withdraws one's own request.
    pub async fn deny(&self, id: ApprovalId, comment: &str) -> Result<Approval> {
        self.decide(id, comment, Verb::Deny).await
    }

    async fn decide(&self, id: ApprovalId, comment: &str, verb: Verb) -> Result<Approval> {
        let comment = text::check_optional_reason("comment", comment)?;
        let input = DecisionInput { engine: self.0.clone(), id, comment, verb, now: self.0.now() };
        let done = self
            .0
            .store()
            .retry_write("decide_approval", input, |input, tx| Box::pin(input.run(tx)))
            .await?;
        if !self.0.store().is_dry_run() {
            let Approval { id, requester, decided_by, stored, .. } = &done;
            let state = stored.as_str();
            tracing::info!(%id, requester, by = decided_by, state, "approval decided");
        }
        Ok(done)
    }
}

struct DecisionInput {
    engine: Engine,
    id: ApprovalId,
    comment: String,
    verb: Verb,
    now: Timestamp,
}

impl DecisionInput {
    async fn run(&self, tx: &mut Tx) -> Result<Approval> {
        let before = tx.approval(&self.id).await?.ok_or_else(|| no_approval(&self.id))?;
        let caller = self.engine.caller();
        let decision = Decision {
            by: caller.principal(),
            // A caller whose rights are limited to a part of the fleet cannot decide.
            granted: caller.grants().everywhere,
            comment: &self.comment,
            lifetime: tx.approval_policy().await?.lifetime,
            now: self.now,
        };
        let after = match self.verb {
            Verb::Grant => before.grant(decision)?,
            Verb::Deny => before.deny(decision)?,
        };
        if after != before {
            tx.decide_approval(before.stored, &after)?;
        }
        Ok(after)
    }
}

fn no_approval(id: &ApprovalId) -> Refusal {
    Refusal::not_found("approval", id, "farrier approval list")
}
