//! Tokens, roles and bindings, as administrators change them.

use super::{AccessControl, Caller, Snapshot};
use crate::secret::checksum;
use model::access::{
    AccessPolicy, BUILT_IN_ROLES, BindingReach, Permission, Role, RoleBinding, Subject,
    TOKEN_PREFIX, TokenKind, TokenRecord, TokenState, check_foreign_name, check_lifetime,
};
use model::id::{BindingId, TokenId};
use model::refusal::{Reason, Refusal};
use model::text;
use model::time::Timestamp;
use rand::Rng;
use secrecy::{ExposeSecret, SecretString};
use std::sync::Arc;
use std::time::Duration;
use store::{AccessState, AuditDraft, Result, Store, StoredToken, Tx};

/// The number of random bytes in a token.
const SECRET_BYTES: usize = 32;

/// A request for a new token.
#[derive(Debug, Clone)]
pub struct TokenRequest {
    pub user: String,
    pub description: String,
    /// Roles that are bound to the token itself.
    pub roles: Vec<String>,
    /// None: it does not expire.
    pub lifetime: Option<Duration>,
}

/// A new token with its secret, which is shown once.
pub struct NewToken {
    pub token: TokenRecord,
    pub secret: SecretString,
}

/// The changes of access that a caller requests.
pub struct AccessAdmin {
    control: AccessControl,
    caller: Caller,
    store: Store,
}

/// A random secret for a new token.
pub fn new_secret(kind: TokenKind) -> SecretString {
    let mut bytes = [0; SECRET_BYTES];
    rand::rng().fill_bytes(&mut bytes);
    let random: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    match kind {
        TokenKind::Api => format!("{TOKEN_PREFIX}{random}").into(),
        TokenKind::SignIn | TokenKind::Session => random.into(),
    }
}

impl AccessControl {
    pub fn for_caller(&self, caller: &Caller, dry_run: bool) -> AccessAdmin {
        let store = self.store.with_dry_run(dry_run);
        AccessAdmin { control: self.clone(), caller: caller.clone(), store }
    }

    /// The same access control for a request whose first commit writes this entry of the audit
    /// log.
    #[must_use]
    pub fn with_audit(&self, audit: Option<Arc<AuditDraft>>) -> Self {
        Self { store: self.store.with_audit(audit), ..self.clone() }
    }
}

impl NewToken {
    pub(super) fn stored(&self) -> StoredToken {
        let hash = checksum(self.secret.expose_secret());
        StoredToken { token: self.token.clone(), hash }
    }
}

/// A row that a change of access writes or deletes.
enum AccessChange {
    RevokeToken(String),
    InsertRole(Role),
    DeleteRole(String),
    InsertBinding(RoleBinding),
    DeleteBinding(String),
}

struct ChangeInput {
    change: AccessChange,
    by: String,
    now: Timestamp,
}

impl AccessAdmin {
    pub async fn create_token(&self, request: TokenRequest) -> Result<NewToken> {
        self.caller.require(Permission::Admin, "creating a token")?;
        check_user("user", &request.user)?;
        text::check_short("description", &request.description)?;
        if let Some(lifetime) = request.lifetime {
            check_lifetime("lifetime", lifetime)?;
        }
        let snapshot = self.control.snapshot();
        for role in &request.roles {
            known_role(&snapshot, role)?;
        }
        let now = (self.control.clock)();
        let made = NewToken {
            token: TokenRecord {
                id: TokenId::new(now, (self.control.random)()).to_string(),
                kind: TokenKind::Api,
                parent: None,
                user: request.user,
                groups: Vec::new(),
                description: request.description,
                created_at: now,
                created_by: self.caller.principal().user.clone(),
                expires_at: request.lifetime.map(|life| now + life),
                revoked_at: None,
            },
            secret: new_secret(TokenKind::Api),
        };
        let bindings: Vec<RoleBinding> = request
            .roles
            .into_iter()
            .map(|role| {
                let subject = Subject::Token(made.token.id.clone());
                self.new_binding(subject, role, BindingReach::Everything)
            })
            .collect();
        let input = (made.stored(), bindings);
        let written = self.store.write("create_token", input, |(stored, bindings), tx| {
            Box::pin(async move {
                tx.insert_token(stored)?;
                let StoredToken { token, .. } = stored;
                bindings.iter().try_for_each(|binding| {
                    tx.insert_role_binding(binding, &token.created_by, token.created_at)
                })
            })
        });
        written.await?;
        self.reload().await?;
        Ok(made)
    }

    /// One page of the API tokens, ordered by id.
    pub async fn list_tokens(&self, after: &str, limit: i64) -> Result<Vec<TokenRecord>> {
        self.caller.require(Permission::Admin, "listing tokens")?;
        let input = (after.to_string(), limit);
        let found =
            self.store.read_one(input, |(after, limit), tx| Box::pin(tx.api_tokens(after, *limit)));
        found.await
    }

    pub async fn revoke_token(&self, id: &TokenId) -> Result<TokenRecord> {
        self.caller.require(Permission::Admin, "revoking a token")?;
        self.change("revoke_token", AccessChange::RevokeToken(id.to_string())).await?;
        let input = id.to_string();
        let found = self.control.store.read_one(input, |id, tx| Box::pin(tx.api_token(id))).await?;
        let token = found.ok_or_else(|| no_token(id.as_str()))?;
        // A dry run has changed nothing, and shows what would be.
        Ok(TokenRecord { revoked_at: token.revoked_at.or(Some((self.control.clock)())), ..token })
    }

    /// The built-in roles, then those of this installation.
    pub fn list_roles(&self) -> Vec<(Role, bool)> {
        let built_in = BUILT_IN_ROLES.iter().map(|role| (role.to_role(), true));
        let own = self.control.snapshot().policy.roles.clone();
        built_in.chain(own.into_iter().map(|role| (role, false))).collect()
    }

    pub async fn create_role(&self, role: Role) -> Result<Role> {
        self.caller.require(Permission::Admin, "creating a role")?;
        text::check_name("name", &role.name)?;
        self.change("create_role", AccessChange::InsertRole(role.clone())).await?;
        Ok(role)
    }

    pub async fn delete_role(&self, name: &str) -> Result<Role> {
        self.caller.require(Permission::Admin, "deleting a role")?;
        let role = known_role(&self.control.snapshot(), name)?;
        self.change("delete_role", AccessChange::DeleteRole(name.to_string())).await?;
        Ok(role)
    }

    pub fn list_bindings(&self) -> Result<Vec<RoleBinding>> {
        self.caller.require(Permission::Admin, "listing role bindings")?;
        Ok(self.control.snapshot().policy.bindings.clone())
    }

    pub async fn bind(
        &self,
        subject: Subject,
        role: String,
        reach: BindingReach,
    ) -> Result<RoleBinding> {
        self.caller.require(Permission::Admin, "binding a role")?;
        known_role(&self.control.snapshot(), &role)?;
        match &subject {
            Subject::User(name) | Subject::Group(name) => check_user("subject", name)?,
            Subject::Token(_) => {}
        }
        let snapshot = self.control.snapshot();
        let same =
            |one: &&RoleBinding| (&one.subject, &one.role, &one.reach) == (&subject, &role, &reach);
        if let Some(known) = snapshot.policy.bindings.iter().find(same) {
            return Ok(known.clone());
        }
        let binding = self.new_binding(subject, role, reach);
        self.change("bind_role", AccessChange::InsertBinding(binding.clone())).await?;
        Ok(binding)
    }

    pub async fn unbind(&self, id: &BindingId) -> Result<RoleBinding> {
        self.caller.require(Permission::Admin, "removing a role binding")?;
        let snapshot = self.control.snapshot();
        let found = snapshot.policy.bindings.iter().find(|one| one.id == id.as_str());
        let found = found.cloned().ok_or_else(|| no_binding(id.as_str()))?;
        self.change("unbind_role", AccessChange::DeleteBinding(id.to_string())).await?;
        Ok(found)
    }

    fn new_binding(&self, subject: Subject, role: String, reach: BindingReach) -> RoleBinding {
        let id = BindingId::new((self.control.clock)(), (self.control.random)());
        RoleBinding { id: id.to_string(), subject, role, reach }
    }

    async fn change(&self, name: &'static str, change: AccessChange) -> Result<()> {
        let by = self.caller.principal().user.clone();
        let input = ChangeInput { change, by, now: (self.control.clock)() };
        let done = self.store.retry_write(name, input, |input, tx| Box::pin(apply(tx, input)));
        done.await?;
        self.reload().await
    }

    async fn reload(&self) -> Result<()> {
        if self.store.is_dry_run() { Ok(()) } else { self.control.reload().await }
    }
}

/// Checks a change against the stored rules, and that an administrator remains.
async fn apply(tx: &mut Tx, input: &ChangeInput) -> Result<()> {
    tx.lock_access().await?;
    let AccessState { tokens, policy: before, .. } = tx.access_state().await?;
    let administration = |policy: &AccessPolicy, tokens: Vec<StoredToken>| {
        let tokens: Vec<TokenRecord> = tokens.into_iter().map(|one| one.token).collect();
        policy.administration(&tokens, input.now)
    };
    let administered = administration(&before, tokens);
    match &input.change {
        AccessChange::RevokeToken(id) => {
            let token = tx.api_token(id).await?.filter(|token| token.kind == TokenKind::Api);
            let token = token.ok_or_else(|| no_token(id))?;
            if token.state(input.now) == TokenState::Revoked {
                let message = format!("the token {id} was revoked before");
                return Err(Refusal::new(Reason::TokenRevoked, message).into());
            }
            tx.revoke_token(id, input.now)?;
        }
        AccessChange::InsertRole(role) => {
            if let Some(known) = before.role(&role.name) {
                if known == *role {
                    return Ok(());
                }
                let message = format!("the role {} exists with other permissions", role.name);
                return Err(Refusal::new(Reason::RoleExists, message)
                    .next("farrier role list")
                    .into());
            }
            tx.insert_role(role)?;
        }
        AccessChange::DeleteRole(name) => {
            check_unbound(&before.bindings, name)?;
            if !before.roles.iter().any(|role| role.name == *name) {
                return Err(no_own_role(name).into());
            }
            tx.delete_role(name)?;
        }
        AccessChange::InsertBinding(binding) => {
            if let Subject::Token(id) = &binding.subject {
                tx.api_token(id).await?.ok_or_else(|| no_token(id))?;
            }
            tx.insert_role_binding(binding, &input.by, input.now)?;
        }
        AccessChange::DeleteBinding(id) => tx.delete_role_binding(id)?,
    }
    let AccessState { tokens, policy: after, .. } = tx.access_state().await?;
    administered.check_change_to(administration(&after, tokens))?;
    Ok(())
}

fn check_unbound(bindings: &[RoleBinding], role: &str) -> std::result::Result<(), Refusal> {
    match bindings.iter().find(|binding| binding.role == role) {
        None => Ok(()),
        Some(binding) => {
            let message = format!("{} has the role {role} by {}", binding.subject, binding.id);
            Err(Refusal::new(Reason::RoleInUse, message)
                .next(format!("farrier role unbind {}", binding.id)))
        }
    }
}

/// User and group names come from certificates and identity providers too, so they may have any
/// printable characters.
fn check_user(field: &str, name: &str) -> std::result::Result<(), Refusal> {
    if name.is_empty() {
        return Err(Refusal::missing(field));
    }
    text::check_short(field, name)?;
    check_foreign_name(name).map_err(|why| Refusal::invalid(field, why, "choose another name"))
}

fn known_role(snapshot: &Snapshot, name: &str) -> std::result::Result<Role, Refusal> {
    snapshot.policy.role(name).ok_or_else(|| Refusal::not_found("role", name, "farrier role list"))
}

fn no_own_role(name: &str) -> Refusal {
    let message = format!("the role {name} is built in and cannot be deleted");
    Refusal::new(Reason::RoleExists, message).next("farrier role list")
}

fn no_token(id: &str) -> Refusal {
    Refusal::not_found("token", id, "farrier token list")
}

fn no_binding(id: &str) -> Refusal {
    Refusal::not_found("role binding", id, "farrier role bindings")
}
