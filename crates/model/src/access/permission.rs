//! The permissions, named by what they can destroy.

use std::fmt;

macro_rules! permissions {
    ($($variant:ident = $word:literal, $means:literal;)*) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Permission { $($variant,)* }

        impl Permission {
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }

            /// Short description of the calls that the permission allows.
            pub const fn help(self) -> &'static str {
                match self { $(Self::$variant => $means,)* }
            }
        }
    };
}

permissions! {
    View = "view", "read objects, events and logs";
    Operate = "operate", "reboot, maintenance, power of one machine, drains, actions on operations";
    Inventory = "inventory", "register, change and delete machines, racks, devices and sites";
    Destroy = "destroy", "reimage, erase, onboard and decommission";
    Power = "power", "maintenance and power of racks, power shelves and switches";
    Firmware = "firmware", "install firmware, and change its catalogue";
    Execute = "execute", "plans of one's own, commands and network documents: root on hosts; images";
    Trust = "trust", "pin identities of peers, and issue enrollment tokens";
    CredentialUse = "credential-use", "have Farrier log in to a peer that the caller names";
    CredentialWrite = "credential-write", "set and delete credentials";
    Simulate = "simulate", "change the simulated fleet";
    Admin = "admin", "tokens, roles and bindings, RMA and Retired, the database";
}

impl Permission {
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|one| one.as_str() == word)
    }

    const fn bit(self) -> u32 {
        1 << (self as u32)
    }
}

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PermissionSet(u32);

impl PermissionSet {
    pub const EMPTY: Self = Self(0);
    pub const ALL: Self = Self((1 << Permission::ALL.len()) - 1);

    pub const fn of(permissions: &[Permission]) -> Self {
        let mut bits = 0;
        let mut at = 0;
        while at < permissions.len() {
            bits |= permissions[at].bit();
            at += 1;
        }
        Self(bits)
    }

    pub const fn contains(self, permission: Permission) -> bool {
        self.0 & permission.bit() != 0
    }

    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// True if the sets have a permission in common.
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    #[must_use]
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn iter(self) -> impl Iterator<Item = Permission> {
        Permission::ALL.iter().copied().filter(move |one| self.contains(*one))
    }
}

impl From<Permission> for PermissionSet {
    fn from(permission: Permission) -> Self {
        Self::of(&[permission])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_what_was_put_into_it() {
        for one in Permission::ALL {
            assert_eq!(Permission::parse(one.as_str()), Some(*one));
            assert!(PermissionSet::ALL.contains(*one));
            assert!(!PermissionSet::EMPTY.contains(*one));
            assert_eq!(PermissionSet::from(*one).iter().collect::<Vec<_>>(), [*one]);
        }
        assert_eq!(PermissionSet::of(Permission::ALL), PermissionSet::ALL);
        assert_eq!(Permission::parse("root"), None);
    }
}
