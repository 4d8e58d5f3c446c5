//! The caller of a request.

use model::access::{AuthMethod, Permission, PermissionSet, Principal, check_permission};
use model::refusal::Refusal;
use model::time::Timestamp;
use std::sync::Arc;

/// What a caller has shown, and so what ends its rights.
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
/// request; the engine acts by itself with [`Caller::internal`].
#[derive(Debug, Clone)]
pub struct Caller(Arc<CallerState>);

#[derive(Debug)]
struct CallerState {
    principal: Principal,
    granted: PermissionSet,
    proof: Proof,
}

impl Caller {
    pub(super) fn new(principal: Principal, granted: PermissionSet, proof: Proof) -> Self {
        Self(Arc::new(CallerState { principal, granted, proof }))
    }

    /// The engine itself: schedules, lifecycles and child runs.
    pub(crate) fn internal() -> Self {
        let principal = Principal {
            user: "farrier".into(),
            groups: Vec::new(),
            method: AuthMethod::Internal,
            token_id: None,
        };
        Self::new(principal, PermissionSet::ALL, Proof::Internal)
    }

    pub fn principal(&self) -> &Principal {
        &self.0.principal
    }

    pub fn granted(&self) -> PermissionSet {
        self.0.granted
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

    /// Refuses a request that needs a permission which the caller does not have. `what` names the
    /// request.
    pub fn require(&self, needed: Permission, what: &str) -> Result<(), Refusal> {
        check_permission(&self.0.principal, self.0.granted, needed, what)
    }

    pub(crate) fn require_all(&self, needed: PermissionSet, what: &str) -> Result<(), Refusal> {
        needed.iter().try_for_each(|one| self.require(one, what))
    }
}
