//! The caller of a request.

use model::access::{AuthMethod, Grants, Permission, PermissionSet, Principal, check_permission};
use model::machine::Labels;
use model::order::Selection;
use model::refusal::{Reason, Refusal};
use model::time::Timestamp;
use std::sync::Arc;

/// The proof of identity that a caller has shown. The end of the proof ends the caller's rights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Proof {
    /// A token that is stored here, by its id: of a browser, that of its session.
    Token(String),
    /// A certificate or a token of an identity provider, which is valid until then.
    Foreign { valid_until: Timestamp },
    /// Nothing: the server itself.
    Internal,
}

/// An authenticated principal and its permissions. Only [`super::AccessControl`] makes one from a
/// request; the engine acts by itself with [`Caller::internal`], or for the editor of a record with
/// [`Caller::of_record`].
#[derive(Debug, Clone)]
pub struct Caller(Arc<CallerState>);

#[derive(Debug)]
struct CallerState {
    principal: Principal,
    grants: Grants,
    proof: Proof,
}

impl Caller {
    pub(super) fn new(principal: Principal, grants: Grants, proof: Proof) -> Self {
        Self(Arc::new(CallerState { principal, grants, proof }))
    }

    /// The engine itself: schedules, lifecycles and child runs.
    pub(crate) fn internal() -> Self {
        let principal = Principal {
            user: "farrier".into(),
            groups: Vec::new(),
            method: AuthMethod::Internal,
            token_id: None,
        };
        Self::new(principal, Grants::ALL, Proof::Internal)
    }

    /// The user for whom a record acts by itself, with the rights that it has now.
    pub(crate) fn of_record(principal: Principal, grants: Grants) -> Self {
        Self::new(principal, grants, Proof::Internal)
    }

    pub fn principal(&self) -> &Principal {
        &self.0.principal
    }

    pub fn grants(&self) -> &Grants {
        &self.0.grants
    }

    pub(super) fn proof(&self) -> &Proof {
        &self.0.proof
    }

    /// The stored token that was presented.
    pub(super) fn presented_token(&self) -> Option<&str> {
        match &self.0.proof {
            Proof::Token(id) => Some(id),
            Proof::Foreign { .. } | Proof::Internal => None,
        }
    }

    /// True if selectors limit what the caller sees. A caller without limited rights was let
    /// through by its permissions for the whole fleet.
    pub(crate) fn sees_a_part(&self) -> bool {
        let Grants { everywhere, limited } = self.grants();
        !limited.is_empty() && !everywhere.contains(Permission::View)
    }

    /// The part of a selection that the caller may see.
    pub(crate) fn visible(&self, selection: impl Into<Selection>) -> Selection {
        let selection = selection.into();
        if !self.sees_a_part() {
            return selection;
        }
        let Selection { filter, order } = selection;
        Selection { filter: filter.within(self.grants().scope(Permission::View)), order }
    }

    /// Refuses a request that needs a permission for the whole fleet which the caller does not
    /// have. `what` names the request.
    pub fn require(&self, needed: Permission, what: &str) -> Result<(), Refusal> {
        let Grants { everywhere, limited } = self.grants();
        let here = limited.iter().find(|one| one.permissions.contains(needed));
        match here.filter(|_| !everywhere.contains(needed)) {
            None => check_permission(self.principal(), *everywhere, needed, what),
            Some(grant) => {
                let message = format!(
                    "{what} needs the permission {needed} for the whole fleet; {} has it for {}",
                    self.principal(),
                    grant.selector
                );
                Err(Refusal::new(Reason::PermissionDenied, message)
                    .next("farrier whoami   # shows your rights and their selectors"))
            }
        }
    }

    /// Like [`Self::require`], for a request whose objects are checked later.
    pub fn require_somewhere(&self, needed: Permission, what: &str) -> Result<(), Refusal> {
        check_permission(self.principal(), self.grants().somewhere(), needed, what)
    }

    /// Refuses a request about an object on which the caller has none of the needed permissions.
    /// `labels`: those of the object; None if it does not exist. An object that the caller may not
    /// see is refused with `absent`, like one that does not exist.
    pub(crate) fn check_object(
        &self,
        labels: Option<&Labels>,
        needed: PermissionSet,
        absent: impl FnOnce() -> Refusal,
    ) -> Result<(), Refusal> {
        let Some(labels) = labels else { return Err(absent()) };
        let here = self.grants().on(labels);
        match here {
            here if here.intersects(needed) => Ok(()),
            here if here.contains(Permission::View) => {
                let needed = needed.iter().next().unwrap_or(Permission::Admin);
                check_permission(self.principal(), here, needed, "this request on this object")
            }
            _ => Err(absent()),
        }
    }
}
