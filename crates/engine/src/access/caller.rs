//! The caller of a request.

use model::access::{AuthMethod, Permission, PermissionSet, Principal, check_permission};
use model::refusal::Refusal;
use std::sync::Arc;

/// An authenticated principal and its permissions. Only [`super::AccessControl`] makes one from a
/// request; the engine acts by itself with [`Caller::internal`].
#[derive(Debug, Clone)]
pub struct Caller(Arc<CallerState>);

#[derive(Debug)]
struct CallerState {
    principal: Principal,
    granted: PermissionSet,
    /// The token that was presented: of a browser, that of its session.
    presented: Option<String>,
}

impl Caller {
    pub(super) fn new(
        principal: Principal,
        granted: PermissionSet,
        presented: Option<String>,
    ) -> Self {
        Self(Arc::new(CallerState { principal, granted, presented }))
    }

    /// The engine itself: schedules, lifecycles and child runs.
    pub(crate) fn internal() -> Self {
        let principal = Principal {
            user: "farrier".into(),
            groups: Vec::new(),
            method: AuthMethod::Internal,
            token_id: None,
        };
        Self::new(principal, PermissionSet::ALL, None)
    }

    pub fn principal(&self) -> &Principal {
        &self.0.principal
    }

    pub fn granted(&self) -> PermissionSet {
        self.0.granted
    }

    pub(super) fn presented_token(&self) -> Option<&str> {
        self.0.presented.as_deref()
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
