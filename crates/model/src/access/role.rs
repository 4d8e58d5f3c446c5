//! Roles, and their bindings to users, groups and tokens.

use super::permission::{Permission, PermissionSet};
use super::scope::LabelSelector;
use crate::refusal::Refusal;
use std::fmt;

/// A named set of permissions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Role {
    pub name: String,
    pub permissions: PermissionSet,
}

/// A role that every installation has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BuiltInRole {
    pub name: &'static str,
    pub permissions: PermissionSet,
}

impl BuiltInRole {
    pub fn to_role(self) -> Role {
        Role { name: self.name.to_string(), permissions: self.permissions }
    }
}

/// `rack-operator` is the role that the documents call ForgeAdminCLI: rack maintenance and the
/// power of shelves. Agents have listeners and tokens of their own, so their role may call nothing
/// of the API.
pub const BUILT_IN_ROLES: [BuiltInRole; 5] = [
    BuiltInRole { name: "viewer", permissions: PermissionSet::of(&[Permission::View]) },
    BuiltInRole {
        name: "operator",
        permissions: PermissionSet::of(&[
            Permission::View,
            Permission::Operate,
            Permission::Inventory,
            Permission::Destroy,
            Permission::CredentialUse,
        ]),
    },
    BuiltInRole {
        name: "rack-operator",
        permissions: PermissionSet::of(&[
            Permission::View,
            Permission::Power,
            Permission::Firmware,
        ]),
    },
    BuiltInRole { name: "admin", permissions: PermissionSet::ALL },
    BuiltInRole { name: "agent", permissions: PermissionSet::EMPTY },
];

/// The party that a binding gives a role to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    User(String),
    Group(String),
    /// An API token, by its id.
    Token(String),
}

impl Subject {
    /// Parses `user:NAME`, `group:NAME` or `token:ID`.
    pub fn parse(field: &str, text: &str) -> Result<Self, Refusal> {
        let made = match text.split_once(':') {
            Some((_, "")) | None => None,
            Some(("user", name)) => Some(Self::User(name.to_string())),
            Some(("group", name)) => Some(Self::Group(name.to_string())),
            Some(("token", id)) => Some(Self::Token(id.to_string())),
            Some(_) => None,
        };
        let shown: String = text.chars().take(64).collect();
        made.ok_or_else(|| {
            Refusal::invalid(
                field,
                format!("is {shown:?}"),
                "write user:NAME, group:NAME or token:ID",
            )
        })
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(name) => write!(f, "user:{name}"),
            Self::Group(name) => write!(f, "group:{name}"),
            Self::Token(id) => write!(f, "token:{id}"),
        }
    }
}

/// Gives a role to a subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoleBinding {
    pub id: String,
    pub subject: Subject,
    pub role: String,
    pub reach: BindingReach,
}

/// The objects that a binding holds for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BindingReach {
    Everything,
    Selected(LabelSelector),
    /// The stored selector cannot be read. The binding grants nothing.
    Unreadable(String),
}

impl BindingReach {
    /// Parses the text of a request. Empty: everything.
    pub fn parse(field: &str, text: &str) -> Result<Self, Refusal> {
        match text {
            "" => Ok(Self::Everything),
            text => LabelSelector::parse(field, text).map(Self::Selected),
        }
    }

    /// Like `parse`, for a text that was stored, perhaps by a newer version.
    pub fn stored(text: &str) -> Self {
        Self::parse("selector", text).unwrap_or_else(|_| Self::Unreadable(text.to_string()))
    }

    /// The text of the selector; empty for everything.
    pub fn text(&self) -> String {
        match self {
            Self::Everything => String::new(),
            Self::Selected(selector) => selector.to_string(),
            Self::Unreadable(text) => text.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_are_read_as_they_are_written() {
        for subject in [
            Subject::User("ada".into()),
            Subject::Group("a:b".into()),
            Subject::Token("tok-1".into()),
        ] {
            assert_eq!(Subject::parse("subject", &subject.to_string()), Ok(subject));
        }
        for bad in ["ada", "user:", "role:admin", ""] {
            let refusal = Subject::parse("subject", bad).unwrap_err();
            assert_eq!(refusal.field.as_deref(), Some("subject"));
        }
    }

    #[test]
    fn a_stored_selector_that_cannot_be_read_is_not_taken_for_everything() {
        assert_eq!(BindingReach::stored(""), BindingReach::Everything);
        let own = BindingReach::parse("selector", "labels.team=ml").unwrap();
        assert_eq!(BindingReach::stored(&own.text()), own);
        let newer = BindingReach::stored("labels.team~ml");
        assert_eq!(newer, BindingReach::Unreadable("labels.team~ml".into()));
        assert_eq!(newer.text(), "labels.team~ml");
    }

    #[test]
    fn only_admin_may_do_everything() {
        for role in BUILT_IN_ROLES {
            let all = role.permissions == PermissionSet::ALL;
            assert_eq!(all, role.name == "admin", "{}", role.name);
            let admin = role.permissions.contains(Permission::Admin);
            assert_eq!(admin, role.name == "admin", "{}", role.name);
        }
    }
}
