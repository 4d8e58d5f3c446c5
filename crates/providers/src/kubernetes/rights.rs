//! The rights that Farrier needs in a cluster: one table. `farrier cluster check` asks the API
//! server about each of them, and deploy/kubernetes-rbac.yaml grants them.

use super::access::Right;
use std::fmt::Write;

/// Rights on one resource. An empty namespace is the whole cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RightsRule {
    pub group: &'static str,
    pub resource: &'static str,
    pub namespace: &'static str,
    /// The one object that is meant; empty: all of them.
    pub name: &'static str,
    pub verbs: &'static [&'static str],
    /// The function that does not work without it.
    pub purpose: &'static str,
}

impl RightsRule {
    pub fn rights(&self) -> impl Iterator<Item = Right<'static>> {
        let Self { group, resource, namespace, name, verbs, .. } = *self;
        verbs.iter().map(move |verb| Right { verb, group, resource, namespace, name })
    }
}

const fn rule(
    (group, resource): (&'static str, &'static str),
    (namespace, name): (&'static str, &'static str),
    verbs: &'static [&'static str],
    purpose: &'static str,
) -> RightsRule {
    RightsRule { group, resource, namespace, name, verbs, purpose }
}

pub const RIGHTS: [RightsRule; 7] = [
    rule(
        ("", "nodes"),
        ("", ""),
        &["get", "list", "patch", "delete"],
        "probes, cordons, labels, joins and leaves",
    ),
    rule(("", "pods"), ("", ""), &["list"], "drains, and whether a node is drained"),
    rule(("", "pods/eviction"), ("", ""), &["create"], "drains"),
    rule(
        ("policy", "poddisruptionbudgets"),
        ("", ""),
        &["list"],
        "the budgets in the dry run of a drain",
    ),
    rule(("", "events"), ("default", ""), &["create", "patch"], "events on the node"),
    rule(("", "secrets"), ("kube-system", ""), &["create", "delete"], "the tokens of joins"),
    rule(("", "configmaps"), ("kube-public", "cluster-info"), &["get"], "joins"),
];

const HEADER: &str = "\
# The user of Farrier in a Kubernetes cluster, with the rights that it needs and no others.
# Made by `cargo xtask reference` from the table of rights; `farrier cluster check NAME` asks the
# cluster about each of them.
#
#   kubectl apply -f kubernetes-rbac.yaml
apiVersion: v1
kind: Namespace
metadata:
  name: farrier
---
apiVersion: v1
kind: ServiceAccount
metadata:
  name: farrier
  namespace: farrier
";

/// The manifest that grants the rights to the service account `farrier/farrier`.
pub fn manifest() -> String {
    let mut namespaces: Vec<&str> = RIGHTS.iter().map(|rule| rule.namespace).collect();
    namespaces.sort_unstable();
    namespaces.dedup();
    let mut text = HEADER.to_owned();
    for namespace in namespaces {
        let kind = if namespace.is_empty() { "ClusterRole" } else { "Role" };
        let metadata = match namespace {
            "" => "metadata:\n  name: farrier\n".to_owned(),
            name => format!("metadata:\n  name: farrier\n  namespace: {name}\n"),
        };
        let head = |kind: &str| {
            format!("---\napiVersion: rbac.authorization.k8s.io/v1\nkind: {kind}\n{metadata}")
        };
        text.push_str(&head(kind));
        text.push_str("rules:\n");
        for rule in RIGHTS.iter().filter(|rule| rule.namespace == namespace) {
            let RightsRule { group, resource, name, purpose, .. } = rule;
            let verbs = rule.verbs.join(", ");
            // Writing to a string does not fail.
            let _ = write!(
                text,
                "  # {purpose}\n  - apiGroups: [\"{group}\"]\n    resources: [{resource}]\n"
            );
            if !name.is_empty() {
                let _ = writeln!(text, "    resourceNames: [{name}]");
            }
            let _ = writeln!(text, "    verbs: [{verbs}]");
        }
        text.push_str(&head(&format!("{kind}Binding")));
        let _ = write!(
            text,
            "roleRef:\n  apiGroup: rbac.authorization.k8s.io\n  kind: {kind}\n  name: farrier\n\
             subjects:\n  - kind: ServiceAccount\n    name: farrier\n    namespace: farrier\n"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/kubernetes-rbac.yaml");

    #[test]
    fn the_file_grants_what_the_table_says() {
        if std::env::var_os("FARRIER_REWRITE_REFERENCE").is_some() {
            std::fs::write(FILE, manifest()).unwrap();
        }
        let stored = std::fs::read_to_string(FILE).unwrap_or_default();
        assert_eq!(stored, manifest(), "run `cargo xtask reference`");
    }
}
