//! Label selectors, and the scope of a right: the objects that it holds for.

use super::permission::{Permission, PermissionSet};
use crate::filter::{Filter, FilterField, FilterSubject, FilterTerm};
use crate::machine::Labels;
use crate::refusal::{Reason, Refusal};
use std::fmt;

/// Selects objects by their labels, in the language of filters: `labels.team=ml AND
/// labels.env!=prod`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabelSelector {
    text: String,
    terms: Vec<FilterTerm>,
}

impl LabelSelector {
    /// At least one term must ask for a label: terms with `!=` alone would select every object
    /// without labels too.
    pub fn parse(field: &str, text: &str) -> Result<Self, Refusal> {
        let terms = Filter::parse(text, FilterSubject::Selector)
            .map_err(|refusal| at_field(field, refusal))?
            .terms;
        if terms.iter().all(|term| term.negated) {
            let problem = "asks for no label, so it would select objects without labels too";
            let instead = "add a term with = or in, as in labels.team=ml";
            return Err(Refusal::invalid(field, problem, instead));
        }
        Ok(Self { text: text.trim().to_string(), terms })
    }

    pub fn terms(&self) -> &[FilterTerm] {
        &self.terms
    }

    pub fn matches(&self, labels: &Labels) -> bool {
        self.terms.iter().all(|term| match &term.field {
            FilterField::Label(key) => term.compare(labels.get(key).cloned()),
            // The parser makes no other field.
            FilterField::MachineId
            | FilterField::Phase
            | FilterField::RunPhase
            | FilterField::EffectiveState
            | FilterField::LifecycleState
            | FilterField::Provider
            | FilterField::Rack
            | FilterField::Condition(_)
            | FilterField::Type
            | FilterField::RunId
            | FilterField::PlanId
            | FilterField::RequestId
            | FilterField::TargetKind
            | FilterField::Initiator
            | FilterField::PartOf
            | FilterField::CreatedFrom
            | FilterField::CreatedBefore
            | FilterField::WorkflowState
            | FilterField::RecordId
            | FilterField::State
            | FilterField::HardwareType
            | FilterField::Site
            | FilterField::Named(_) => false,
        })
    }

    fn and(&self, other: &Self) -> Self {
        let terms = self.terms.iter().chain(&other.terms).cloned().collect();
        Self { text: format!("{self} AND {other}"), terms }
    }
}

impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The parser of filters names the field `filter`.
fn at_field(field: &str, refusal: Refusal) -> Refusal {
    let message = match refusal.message.strip_prefix("filter ") {
        Some(rest) => format!("{field} {rest}"),
        None => refusal.message,
    };
    Refusal { field: Some(field.into()), message, ..refusal }
}

/// The objects that a right holds for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Scope {
    #[default]
    Everything,
    /// The objects that one of the selectors selects; without selectors, none.
    Labels(Vec<LabelSelector>),
}

impl Scope {
    pub fn contains(&self, labels: &Labels) -> bool {
        match self {
            Self::Everything => true,
            Self::Labels(selectors) => selectors.iter().any(|one| one.matches(labels)),
        }
    }

    /// The selector that every object of the scope fulfills, if there is only one.
    pub fn only_selector(&self) -> Option<&LabelSelector> {
        match self {
            Self::Labels(selectors) => match selectors.as_slice() {
                [one] => Some(one),
                _ => None,
            },
            Self::Everything => None,
        }
    }

    #[must_use]
    pub fn intersect(self, other: Self) -> Self {
        match (self, other) {
            (Self::Everything, scope) | (scope, Self::Everything) => scope,
            (Self::Labels(ours), Self::Labels(theirs)) => Self::Labels(
                ours.iter().flat_map(|one| theirs.iter().map(|other| one.and(other))).collect(),
            ),
        }
    }
}

/// Permissions on the objects that a selector selects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitedGrant {
    pub permissions: PermissionSet,
    pub selector: LabelSelector,
}

/// The permissions of a principal: those for the whole fleet, and those for a part of it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Grants {
    pub everywhere: PermissionSet,
    pub limited: Vec<LimitedGrant>,
}

impl Grants {
    /// Every permission on everything.
    pub const ALL: Self = Self { everywhere: PermissionSet::ALL, limited: Vec::new() };

    /// The permissions for at least a part of the fleet.
    pub fn somewhere(&self) -> PermissionSet {
        self.limited.iter().fold(self.everywhere, |all, one| all.union(one.permissions))
    }

    /// The permissions on an object with these labels.
    pub fn on(&self, labels: &Labels) -> PermissionSet {
        let here = self.limited.iter().filter(|one| one.selector.matches(labels));
        here.fold(self.everywhere, |all, one| all.union(one.permissions))
    }

    /// The objects on which the principal has this permission.
    pub fn scope(&self, permission: Permission) -> Scope {
        if self.everywhere.contains(permission) {
            return Scope::Everything;
        }
        let limited = self.limited.iter().filter(|one| one.permissions.contains(permission));
        Scope::Labels(limited.map(|one| one.selector.clone()).collect())
    }

    /// Refuses a change of an object's labels or description without the permission to change the
    /// inventory. A caller with that permission for a part of the fleet may change labels, if the
    /// object is in that part before and after the change: a label that a selector uses grants
    /// rights, so a change needs the permission on the old and on the new value. The description
    /// of an object names hardware and credentials, which have no labels; changing it needs the
    /// permission for the whole fleet.
    pub fn check_relabel(
        &self,
        id: &str,
        (before, after): (&Labels, &Labels),
        described_anew: bool,
    ) -> Result<(), Refusal> {
        let needed = Permission::Inventory;
        if self.limited.is_empty() || self.everywhere.contains(needed) {
            return Ok(());
        }
        let message = if described_anew {
            "a change of more than labels needs the permission inventory for the whole fleet"
        } else if !self.on(before).contains(needed) {
            "the permission inventory is missing for its labels as they are"
        } else if !self.on(after).contains(needed) {
            "the permission inventory is missing for the labels that it would have"
        } else {
            return Ok(());
        };
        Err(Refusal::new(Reason::PermissionDenied, format!("{id}: {message}"))
            .next("farrier whoami   # shows your rights and their selectors"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
    }

    fn selector(text: &str) -> LabelSelector {
        LabelSelector::parse("selector", text).unwrap()
    }

    #[test]
    fn a_selector_selects_by_labels_alone() {
        let ml = labels(&[("team", "ml"), ("env", "dev")]);
        for (text, object, expected) in [
            ("labels.team=ml", &ml, true),
            ("labels.team=web", &ml, false),
            ("labels.team=ml AND labels.env!=prod", &ml, true),
            ("labels.team in (ml, web) AND labels.env not in (dev)", &ml, false),
            ("labels.team", &ml, true),
            ("labels.team=ml", &Labels::new(), false),
            ("labels.team", &Labels::new(), false),
        ] {
            assert_eq!(selector(text).matches(object), expected, "{text}");
        }
        for bad in ["", "  ", "team=ml", "phase=READY", "labels.env!=prod", "labels.team=ml OR x"] {
            let refusal = LabelSelector::parse("selector", bad).unwrap_err();
            assert_eq!(refusal.field.as_deref(), Some("selector"), "{bad:?}: {refusal}");
            assert!(!refusal.message.contains("filter"), "{bad:?}: {refusal}");
        }
    }

    #[test]
    fn scopes_intersect_to_what_both_contain() {
        let scope = |texts: &[&str]| Scope::Labels(texts.iter().map(|one| selector(one)).collect());
        let (a, b) = (scope(&["labels.t=a", "labels.t=b"]), scope(&["labels.e=x", "labels.t=b"]));
        let both = a.clone().intersect(b.clone());
        for object in [
            labels(&[("t", "a")]),
            labels(&[("t", "b")]),
            labels(&[("t", "a"), ("e", "x")]),
            labels(&[("e", "x")]),
            Labels::new(),
        ] {
            let expected = a.contains(&object) && b.contains(&object);
            assert_eq!(both.contains(&object), expected, "{object:?}");
        }
        assert_eq!(Scope::Everything.intersect(a.clone()), a);
        assert!(!scope(&[]).contains(&labels(&[("t", "a")])), "no selector selects nothing");
    }

    fn ml_operator() -> Grants {
        let permissions = PermissionSet::of(&[Permission::Operate, Permission::Inventory]);
        Grants {
            everywhere: Permission::View.into(),
            limited: vec![LimitedGrant { permissions, selector: selector("labels.team=ml") }],
        }
    }

    #[test]
    fn a_limited_right_holds_where_its_selector_matches() {
        let grants = ml_operator();
        let (ml, web) = (labels(&[("team", "ml")]), labels(&[("team", "web")]));
        for (permission, on_ml, on_web) in [
            (Permission::View, true, true),
            (Permission::Operate, true, false),
            (Permission::Destroy, false, false),
        ] {
            assert_eq!(grants.on(&ml).contains(permission), on_ml, "{permission}");
            assert_eq!(grants.on(&web).contains(permission), on_web, "{permission}");
            assert_eq!(grants.scope(permission).contains(&ml), on_ml, "{permission}");
            assert_eq!(grants.scope(permission).contains(&web), on_web, "{permission}");
            assert_eq!(grants.somewhere().contains(permission), on_ml, "{permission}");
        }
        assert_eq!(grants.scope(Permission::View), Scope::Everything);
    }

    #[test]
    fn a_label_changes_with_rights_on_both_values_only() {
        let limited = ml_operator();
        let ml = labels(&[("team", "ml")]);
        let (named, web) = (labels(&[("team", "ml"), ("a", "b")]), labels(&[("team", "web")]));
        for (grants, before, after, described_anew, allowed) in [
            (&limited, &ml, &named, false, true),
            (&limited, &ml, &ml, true, false),
            (&limited, &ml, &web, false, false),
            (&limited, &web, &ml, false, false),
            (&limited, &ml, &Labels::new(), false, false),
            (&Grants::ALL, &ml, &web, true, true),
        ] {
            let checked = grants.check_relabel("m-1", (before, after), described_anew);
            assert_eq!(checked.is_ok(), allowed, "{before:?} to {after:?}: {checked:?}");
        }
    }
}
