//! The gate `approval`: a request of a class that the policy names needs a second person.
//!
//! The gate is asked in the transaction of the request, after all others. An approval is used up
//! in that transaction, so one approval starts its request once, whatever crashes. A request
//! without one is rolled back; it holds nothing, and its record is filed in a transaction of its
//! own. An administrator can override the gate: the record of that waits for a review.

use crate::Engine;
use crate::access::Caller;
use model::access::{AuthMethod, Permission, PermissionSet};
use model::approval::{
    Approval, ApprovalPolicy, ApprovalVerdict, MAX_PENDING, Proposal, describe, describe_gate,
    judge, too_many_pending,
};
use model::audit::{AuditEntry, AuditOutcome};
use model::gate::{Gate, Overrides};
use model::id::ApprovalId;
use model::refusal::{Reason, Refusal};
use model::time::Timestamp;
use std::sync::{Arc, Mutex, PoisonError};
use store::{AuditDraft, Result, StoreError, Tx};

/// The gate for one request.
#[derive(Clone)]
pub(crate) struct ApprovalGate {
    caller: Caller,
    id: ApprovalId,
    now: Timestamp,
    dry_run: bool,
    audit: Option<Arc<AuditDraft>>,
    outcome: Arc<Mutex<GateOutcome>>,
}

/// The result of the last execution of the transaction.
#[derive(Clone, Default)]
enum GateOutcome {
    #[default]
    Passed,
    /// The request is rolled back, and this record is to be filed.
    Required(Box<(Approval, Proposal)>),
    BreakGlass(Box<Approval>),
}

impl ApprovalGate {
    pub fn new(engine: &Engine) -> Self {
        let now = engine.now();
        Self {
            caller: engine.caller().clone(),
            id: ApprovalId::new(now, engine.random()),
            now,
            dry_run: engine.store().is_dry_run(),
            audit: engine.store().audit().cloned(),
            outcome: Arc::default(),
        }
    }

    pub fn caller(&self) -> &Caller {
        &self.caller
    }

    fn set(&self, outcome: GateOutcome) {
        *self.outcome.lock().unwrap_or_else(PoisonError::into_inner) = outcome;
    }

    fn outcome(&self) -> GateOutcome {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Refuses a request without its approval, or uses the approval up. Returns the note for the
    /// history; empty: there is nothing to say. A dry run says what it needs and is not refused.
    pub async fn check(&self, tx: &mut Tx, proposal: Option<Proposal>) -> Result<String> {
        self.set(GateOutcome::Passed);
        let principal = self.caller.principal();
        let Some(proposal) = proposal.filter(|_| principal.method != AuthMethod::Internal) else {
            return Ok(String::new());
        };
        let overridden = proposal.overrides.passes(Gate::Approval);
        if overridden {
            self.caller.require(Permission::Admin, "going past the gate approval")?;
        }
        let policy = tx.approval_policy().await?;
        let needed = !policy.needed(proposal.permissions).is_empty();
        let note = proposal.overrides.approval_note(&principal.user, needed);
        if !needed || self.dry_run {
            return Ok(note);
        }
        let times = (self.now, policy.lifetime);
        let new = Approval::new(self.id.clone(), &principal.user, &proposal, times);
        if overridden {
            return self.break_glass(tx, &proposal, new).map(|()| note);
        }
        let user = &principal.user;
        let found = tx.approvals_of_request(user, &proposal.digest, &proposal.request_id).await?;
        match judge(&found, &proposal, self.now) {
            ApprovalVerdict::Use(approval) => {
                tx.use_approval(&approval.id, &proposal.operations)?;
                self.name_in_audit(&approval.id);
                Ok(format!("approved by {} ({})", approval.decided_by, approval.id))
            }
            ApprovalVerdict::Refuse(refusal) => Err(refusal.into()),
            ApprovalVerdict::Request(_) => {
                let refusal = new.required(None);
                self.set(GateOutcome::Required(Box::new((new, proposal))));
                Err(refusal.into())
            }
        }
    }

    fn break_glass(&self, tx: &mut Tx, proposal: &Proposal, new: Approval) -> Result<()> {
        let record = new.break_glass(proposal);
        tx.insert_approval(&record)?;
        self.name_in_audit(&record.id);
        self.set(GateOutcome::BreakGlass(Box::new(record)));
        Ok(())
    }

    /// The entry of the request in the audit log names the approval.
    fn name_in_audit(&self, id: &ApprovalId) {
        if let Some(draft) = &self.audit {
            draft.add_object(id.as_str());
        }
    }

    /// After the transaction: files the record of a refused request, or raises the alarm about a
    /// break-glass.
    pub async fn settle<T>(&self, engine: &Engine, written: Result<T>) -> Result<T> {
        match (written, self.outcome()) {
            (Err(StoreError::Refused(refusal)), GateOutcome::Required(required))
                if refusal.reason == Reason::ApprovalRequired =>
            {
                let (approval, proposal) = *required;
                Err(self.file(engine, approval, proposal).await?.into())
            }
            (Ok(value), GateOutcome::BreakGlass(record)) => {
                let Approval { id, requester, request, targets, reason, .. } = *record;
                let what = describe(&request, &targets);
                tracing::warn!(%id, by = requester, what, reason, "break-glass: the gate approval was overridden");
                metrics::counter!("farrier_break_glass_total").increment(1);
                Ok(value)
            }
            (
                written,
                GateOutcome::Passed | GateOutcome::Required(_) | GateOutcome::BreakGlass(_),
            ) => written,
        }
    }

    /// Files a request that waits for a second person. Returns the refusal to answer with.
    async fn file(
        &self,
        engine: &Engine,
        approval: Approval,
        proposal: Proposal,
    ) -> Result<Refusal> {
        let entry = self.audit.as_ref().map(|draft| refused_entry(draft, &approval.id));
        // The audit log has the entry of the refusal, not one of an accepted request.
        let store = engine.store().with_audit(None);
        let input = (approval, proposal, entry);
        let filed = store.retry_write("file_approval", input, |(approval, proposal, entry), tx| {
            Box::pin(file(tx, approval, proposal, entry.as_ref()))
        });
        let (refusal, is_new) = filed.await?;
        if let Some(draft) = self.audit.as_ref().filter(|_| is_new) {
            draft.mark_written();
        }
        Ok(refusal)
    }
}

fn refused_entry(draft: &AuditDraft, id: &ApprovalId) -> AuditEntry {
    let reason = Reason::ApprovalRequired.as_str().to_string();
    let mut entry = draft.entry();
    entry.objects.push(id.to_string());
    AuditEntry { outcome: AuditOutcome::Refused { reason, count: 1 }, ..entry }
}

/// Returns the refusal, and whether a record and its entry in the audit log were written.
async fn file(
    tx: &mut Tx,
    approval: &Approval,
    proposal: &Proposal,
    entry: Option<&AuditEntry>,
) -> Result<(Refusal, bool)> {
    let (requester, now) = (&approval.requester, approval.created_at);
    tx.expire_approvals(requester, now).await?;
    let Proposal { digest, request_id, .. } = proposal;
    let found = tx.approvals_of_request(requester, digest, request_id).await?;
    let changed = match judge(&found, proposal, now) {
        ApprovalVerdict::Request(changed) => changed,
        // The same request was filed, or decided, at the same moment.
        ApprovalVerdict::Refuse(refusal) => return Ok((refusal, false)),
        ApprovalVerdict::Use(approval) => return Ok((approval.required(None), false)),
    };
    if tx.count_pending_approvals(requester).await? >= MAX_PENDING {
        return Err(too_many_pending(requester).into());
    }
    tx.insert_approval(approval)?;
    entry.into_iter().try_for_each(|entry| tx.insert_audit_entry(entry))?;
    Ok((approval.required(changed.as_deref()), true))
}

/// The sentence of a dry run about the gate; none if it has nothing to say.
pub(crate) async fn approval_sentence(
    tx: &mut Tx,
    permissions: PermissionSet,
    overrides: &Overrides,
) -> Result<Option<String>> {
    let policy: ApprovalPolicy = tx.approval_policy().await?;
    Ok(describe_gate(policy.needed(permissions), overrides))
}
