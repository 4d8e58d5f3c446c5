//! Access control: which principal may do what.
//!
//! A [`Principal`] is an authenticated user, with its groups and its token. Bindings give roles to
//! users, groups and tokens, for everything or for the objects that a label selector selects; a
//! role is a set of permissions. [`AccessPolicy::grants`] computes the permissions of a principal;
//! everything that is not granted is denied.

mod certificate;
mod permission;
mod role;
mod run;
mod scope;
mod token;

pub use certificate::CertificateNames;
pub use permission::{Permission, PermissionSet};
pub use role::{BUILT_IN_ROLES, BindingReach, Role, RoleBinding, Subject};
pub use scope::{Grants, LabelSelector, LimitedGrant, Scope};
pub use token::{TOKEN_PREFIX, TokenKind, TokenRecord, TokenState, check_lifetime};

use crate::refusal::{Reason, Refusal};
use crate::text;
use crate::time::Timestamp;
use std::fmt;
use std::time::Duration;

/// An administrator whose token ends within this time does not count as the one who remains.
pub const LASTING_ACCESS: Duration = Duration::from_secs(24 * 3600);

/// Method by which a caller proved its identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AuthMethod {
    /// An API token.
    Token,
    /// A sign-in in a browser.
    Session,
    /// A client certificate.
    Certificate,
    /// A token of an OpenID Connect provider.
    Oidc,
    /// No request of a client: the server itself.
    Internal,
}

impl AuthMethod {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Token => "token",
            Self::Session => "session",
            Self::Certificate => "certificate",
            Self::Oidc => "oidc",
            Self::Internal => "internal",
        }
    }
}

/// An authenticated user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    pub user: String,
    pub groups: Vec<String>,
    pub method: AuthMethod,
    /// The API token, if one was used.
    pub token_id: Option<String>,
}

impl Principal {
    fn is(&self, subject: &Subject) -> bool {
        match subject {
            Subject::User(name) => self.user == *name,
            Subject::Group(name) => self.groups.contains(name),
            Subject::Token(id) => self.token_id.as_ref() == Some(id),
        }
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.user)
    }
}

/// Whether an installation can be administered with API tokens, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Administration {
    None,
    /// No administrator's token is valid for longer than [`LASTING_ACCESS`].
    Ending,
    Lasting,
}

impl Administration {
    /// Refuses a change that would leave no administrator, or only such whose tokens end soon. If
    /// there were only such before, every change is allowed that leaves one of them: otherwise
    /// they could not even take the rights of an attacker away.
    pub fn check_change_to(self, after: Self) -> Result<(), Refusal> {
        let problem = match (self, after) {
            (_, Self::Lasting) | (Self::Ending | Self::None, Self::Ending) => return Ok(()),
            (Self::Lasting, Self::Ending) => {
                "no administrator would remain whose token is valid for another 24 hours"
            }
            (_, Self::None) => "no administrator would remain",
        };
        Err(Refusal::new(Reason::LastAdmin, problem)
            .next("farrier token create --user NAME --role admin"))
    }
}

/// The roles and bindings of an installation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AccessPolicy {
    /// Roles beside the built-in ones.
    pub roles: Vec<Role>,
    pub bindings: Vec<RoleBinding>,
}

impl AccessPolicy {
    /// The role of this name. A built-in role cannot be redefined.
    pub fn role(&self, name: &str) -> Option<Role> {
        let built_in = BUILT_IN_ROLES.iter().find(|role| role.name == name);
        built_in.map(|role| role.to_role()).or_else(|| {
            let own = self.roles.iter().find(|role| role.name == name);
            own.cloned()
        })
    }

    /// Whether a token that is valid at this time has the permission admin.
    fn has_administrator(&self, tokens: &[TokenRecord], at: Timestamp) -> bool {
        let api = tokens.iter().filter(|token| token.kind == TokenKind::Api);
        let mut valid = api.filter(|token| token.state(at) == TokenState::Valid);
        valid.any(|token| self.grants(&token.principal()).everywhere.contains(Permission::Admin))
    }

    /// How long these tokens can administer the installation.
    pub fn administration(&self, tokens: &[TokenRecord], now: Timestamp) -> Administration {
        match (
            self.has_administrator(tokens, now + LASTING_ACCESS),
            self.has_administrator(tokens, now),
        ) {
            (true, _) => Administration::Lasting,
            (false, true) => Administration::Ending,
            (false, false) => Administration::None,
        }
    }

    /// The permissions of a principal. A binding to a role that does not exist grants nothing.
    pub fn grants(&self, principal: &Principal) -> Grants {
        let mut grants = Grants::default();
        for binding in self.bindings.iter().filter(|binding| principal.is(&binding.subject)) {
            let Some(Role { permissions, .. }) = self.role(&binding.role) else { continue };
            match &binding.reach {
                BindingReach::Everything => {
                    grants.everywhere = grants.everywhere.union(permissions);
                }
                BindingReach::Selected(selector) => {
                    grants.limited.push(LimitedGrant { permissions, selector: selector.clone() });
                }
                BindingReach::Unreadable(_) => {}
            }
        }
        grants
    }
}

/// Names that histories use for Farrier itself. No user may have one.
const RESERVED_USERS: [&str; 5] = ["engine", "farrier", "observer", "anonymous", "admin-cli"];

/// Checks the name of a user or a group that a certificate or an identity provider gives. The error
/// continues a sentence about the name.
pub fn check_foreign_name(name: &str) -> Result<(), String> {
    if name.is_empty() {
        return Err("is empty".into());
    }
    if name.trim() != name {
        return Err("begins or ends with a blank".into());
    }
    if RESERVED_USERS.contains(&name) {
        return Err(format!("is {name}, which histories use for Farrier itself"));
    }
    text::check_short("name", name).map_err(|refusal| {
        let why = refusal.message.split(';').next().unwrap_or_default();
        why.trim_start_matches("name ").to_string()
    })
}

/// The refusal of a request without a valid credential.
pub fn unauthenticated(problem: &str) -> Refusal {
    Refusal::new(Reason::Unauthenticated, problem.to_string())
        .next("farrier login URL --token-file FILE   # or set FARRIER_TOKEN_FILE to that file")
}

/// Refuses a request that needs a permission which its principal does not have.
pub fn check_permission(
    principal: &Principal,
    granted: PermissionSet,
    needed: Permission,
    what: &str,
) -> Result<(), Refusal> {
    if granted.contains(needed) {
        return Ok(());
    }
    let message =
        format!("{what} needs the permission {}, which {principal} does not have", needed.as_str());
    Err(Refusal::new(Reason::PermissionDenied, message)
        .next("farrier whoami   # shows your permissions; an administrator grants more"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn principal(user: &str, groups: &[&str], token: Option<&str>) -> Principal {
        Principal {
            user: user.into(),
            groups: groups.iter().map(|one| one.to_string()).collect(),
            method: AuthMethod::Token,
            token_id: token.map(String::from),
        }
    }

    fn binding(subject: Subject, role: &str) -> RoleBinding {
        let id = format!("{subject}-{role}");
        RoleBinding { id, subject, role: role.into(), reach: BindingReach::Everything }
    }

    #[test]
    fn a_selector_limits_its_binding_and_no_other() {
        let ada = Subject::User("ada".into());
        let limited = |role: &str, selector: &str| RoleBinding {
            reach: BindingReach::stored(selector),
            ..binding(ada.clone(), role)
        };
        let policy = AccessPolicy {
            roles: Vec::new(),
            bindings: vec![
                binding(ada.clone(), "viewer"),
                limited("operator", "labels.team=ml"),
                limited("admin", "labels.team~unreadable"),
            ],
        };
        let grants = policy.grants(&principal("ada", &[], None));
        assert_eq!(grants.everywhere, Permission::View.into());
        let [one] = grants.limited.as_slice() else { panic!("{grants:?}") };
        assert_eq!(one.selector.to_string(), "labels.team=ml");
        assert!(one.permissions.contains(Permission::Operate));
        assert!(!grants.somewhere().contains(Permission::Admin));
    }

    #[test]
    fn a_principal_has_the_permissions_of_all_its_bindings() {
        let own = Role { name: "flasher".into(), permissions: Permission::Firmware.into() };
        let policy = AccessPolicy {
            roles: vec![own],
            bindings: vec![
                binding(Subject::User("ada".into()), "viewer"),
                binding(Subject::Group("ops".into()), "operator"),
                binding(Subject::Token("tok-1".into()), "flasher"),
                binding(Subject::User("bob".into()), "no-such-role"),
            ],
        };
        for (who, can, cannot) in [
            (principal("ada", &[], None), Permission::View, Permission::Operate),
            (principal("ada", &["ops"], None), Permission::Destroy, Permission::Firmware),
            (principal("eve", &[], Some("tok-1")), Permission::Firmware, Permission::View),
        ] {
            let granted = policy.grants(&who).everywhere;
            assert!(check_permission(&who, granted, can, "it").is_ok(), "{who:?}");
            let refusal = check_permission(&who, granted, cannot, "it").unwrap_err();
            assert_eq!(refusal.reason, Reason::PermissionDenied);
            assert!(refusal.message.contains(cannot.as_str()), "{refusal}");
        }
        for nobody in [principal("bob", &[], None), principal("ops", &["ada"], Some("tok-2"))] {
            assert_eq!(policy.grants(&nobody), Grants::default(), "{nobody:?}");
        }
    }

    #[test]
    fn an_administrator_needs_a_token_that_stays_valid() {
        const HOUR: i64 = 3_600_000;
        let token = TokenRecord {
            id: "tok-1".into(),
            kind: TokenKind::Api,
            parent: None,
            user: "root".into(),
            groups: Vec::new(),
            description: String::new(),
            created_at: Timestamp::from_millis(0),
            created_by: String::new(),
            expires_at: Some(Timestamp::from_millis(100 * HOUR)),
            revoked_at: None,
        };
        let policy = |subject: Subject, role: &str| AccessPolicy {
            roles: Vec::new(),
            bindings: vec![binding(subject, role)],
        };
        let limited = |mut policy: AccessPolicy| {
            policy.bindings[0].reach = BindingReach::stored("labels.team=ml");
            policy
        };
        let own = Subject::Token("tok-1".into());
        for (policy, hour, expected) in [
            (policy(own.clone(), "admin"), 75, Administration::Lasting),
            (policy(Subject::User("root".into()), "admin"), 75, Administration::Lasting),
            (policy(own.clone(), "admin"), 76, Administration::Ending),
            (policy(own.clone(), "admin"), 99, Administration::Ending),
            (policy(own.clone(), "admin"), 100, Administration::None),
            (policy(own.clone(), "operator"), 75, Administration::None),
            (policy(Subject::User("ada".into()), "admin"), 75, Administration::None),
            (limited(policy(own, "admin")), 75, Administration::None),
        ] {
            let tokens = std::slice::from_ref(&token);
            let found = policy.administration(tokens, Timestamp::from_millis(hour * HOUR));
            assert_eq!(found, expected, "{policy:?} at hour {hour}");
        }
    }

    #[test]
    fn a_change_leaves_an_administrator_who_stays() {
        use Administration::{Ending, Lasting, None};
        for (before, after, allowed) in [
            (Lasting, Lasting, true),
            (Lasting, Ending, false),
            (Lasting, None, false),
            (Ending, Lasting, true),
            (Ending, Ending, true),
            (Ending, None, false),
            (None, Lasting, true),
            (None, Ending, true),
            (None, None, false),
        ] {
            let checked = before.check_change_to(after);
            assert_eq!(checked.is_ok(), allowed, "{before:?} to {after:?}");
            if let Err(refusal) = checked {
                assert_eq!(refusal.reason, Reason::LastAdmin);
            }
        }
    }

    #[test]
    fn a_built_in_role_cannot_be_redefined() {
        let fake = Role { name: "viewer".into(), permissions: PermissionSet::ALL };
        let policy = AccessPolicy { roles: vec![fake], bindings: Vec::new() };
        let role = policy.role("viewer").unwrap();
        assert_eq!(role.permissions, Permission::View.into());
    }
}
