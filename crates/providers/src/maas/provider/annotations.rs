//! The marks that Farrier writes on machines in MAAS to recognise its own. MAAS removes workload
//! annotations on release, which tells one deployment from the next; the description stays and
//! names the maker.

use crate::maas::Machine;
use model::effect::EffectKey;
use model::id::NodeId;
use std::collections::BTreeMap;

/// The node that is installed.
const NODE: &str = "farrier-node";
/// The effect key that installed it.
const KEY: &str = "farrier-key";
/// The effect key that releases it. MAAS removes it with the release.
const RELEASE: &str = "farrier-release";
const MADE: &str = "Made by Farrier for ";

/// The owner of a machine by its annotations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum AnnotationOwner {
    /// This run installed it or was about to.
    ThisRun,
    /// Another run did, for the same node.
    ThisNode,
    OtherNode(NodeId),
    /// It has no annotation of Farrier.
    Unmarked,
}

pub(super) fn annotated_node(machine: &Machine) -> Option<NodeId> {
    let marked = machine.workload_annotations.get(NODE);
    marked.and_then(|text| NodeId::parse(text).ok())
}

/// The effect key that installed it.
pub(super) fn annotated_key(machine: &Machine) -> Option<EffectKey> {
    machine.workload_annotations.get(KEY).map(EffectKey::trusted)
}

/// `node` is the node of this call; `None` for a machine that is not a node.
pub(super) fn annotation_owner(
    machine: &Machine,
    run: &str,
    node: Option<&NodeId>,
) -> AnnotationOwner {
    match (annotated_key(machine), annotated_node(machine)) {
        (Some(key), _) if key.run() == run => AnnotationOwner::ThisRun,
        (_, Some(marked)) if Some(&marked) == node => AnnotationOwner::ThisNode,
        (_, Some(other)) => AnnotationOwner::OtherNode(other),
        (_, None) => AnnotationOwner::Unmarked,
    }
}

pub(super) fn install_annotations(
    key: &EffectKey,
    node: Option<&NodeId>,
) -> BTreeMap<String, String> {
    let mut marks = BTreeMap::from([(KEY.to_owned(), key.to_string())]);
    if let Some(node) = node {
        marks.insert(NODE.to_owned(), node.to_string());
    }
    marks
}

pub(super) fn release_annotations(key: &EffectKey) -> BTreeMap<String, String> {
    BTreeMap::from([(RELEASE.to_owned(), key.to_string())])
}

/// True if a release was prepared under this key and has not happened.
pub(super) fn is_marked_for_release(machine: &Machine, key: &EffectKey) -> bool {
    machine.workload_annotations.get(RELEASE).is_some_and(|marked| marked == key.as_str())
}

/// The description of a new record.
pub(super) fn record_description(node: &NodeId, key: &EffectKey) -> String {
    format!("{MADE}{node} ({key})")
}

/// The node and the run that made a record.
pub(super) fn parse_record_description(description: &str) -> Option<(NodeId, String)> {
    let (_, made) = description.split_once(MADE)?;
    let (node, rest) = made.split_once(" (")?;
    let (key, _) = rest.split_once(')')?;
    Some((NodeId::parse(node).ok()?, EffectKey::trusted(key).run().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn marked(annotations: serde_json::Value) -> Machine {
        let value = json!({"system_id": "a", "status": 6, "workload_annotations": annotations});
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn annotations_decide_the_owner() {
        let (one, two) = (NodeId::trusted("node-1"), NodeId::trusted("node-2"));
        for (annotations, expected) in [
            (json!({}), AnnotationOwner::Unmarked),
            (
                json!({"farrier-key": "op-1/deploy/3", "farrier-node": "node-1"}),
                AnnotationOwner::ThisRun,
            ),
            (
                json!({"farrier-key": "op-12/deploy/1", "farrier-node": "node-1"}),
                AnnotationOwner::ThisNode,
            ),
            (json!({"farrier-node": "node-1"}), AnnotationOwner::ThisNode),
            (
                json!({"farrier-key": "op-9/deploy/1", "farrier-node": "node-2"}),
                AnnotationOwner::OtherNode(two),
            ),
            (json!({"farrier-key": "op-9/deploy/1"}), AnnotationOwner::Unmarked),
            (json!({"farrier-node": "somebody"}), AnnotationOwner::Unmarked),
        ] {
            let machine = marked(annotations.clone());
            assert_eq!(annotation_owner(&machine, "op-1", Some(&one)), expected, "{annotations}");
        }
        let key = EffectKey::trusted("op-1/release/1");
        assert!(is_marked_for_release(&marked(json!(release_annotations(&key))), &key));
        assert!(!is_marked_for_release(&marked(json!({})), &key));
    }

    #[test]
    fn the_description_names_node_and_run() {
        let (node, key) = (NodeId::trusted("node-1"), EffectKey::trusted("op-1/create/2"));
        assert_eq!(
            parse_record_description(&record_description(&node, &key)),
            Some((node, "op-1".to_owned()))
        );
        for other in ["", "rack 7", "Made by Farrier for lunch", "Made by Farrier for x (op-1)"] {
            assert_eq!(parse_record_description(other), None, "{other}");
        }
    }
}
