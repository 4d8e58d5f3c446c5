//! What Farrier writes on machines in MAAS to recognise its own. MAAS removes workload annotations
//! on release, which tells one deployment from the next; the description stays and names the maker.

use crate::maas::Machine;
use model::effect::Key;
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
pub(super) enum Whose {
    /// This run installed it or was about to.
    ThisRun,
    /// Another run did, for the same node.
    ThisNode,
    Other(NodeId),
    /// It has no annotation of Farrier.
    Nobody,
}

pub(super) fn node_of(machine: &Machine) -> Option<NodeId> {
    let marked = machine.workload_annotations.get(NODE);
    marked.and_then(|text| NodeId::parse(text).ok())
}

/// The effect key that installed it.
pub(super) fn key_of(machine: &Machine) -> Option<Key> {
    machine.workload_annotations.get(KEY).map(Key::trusted)
}

/// `node` is the node of this call; `None` for a machine that is not a node.
pub(super) fn whose(machine: &Machine, run: &str, node: Option<&NodeId>) -> Whose {
    match (key_of(machine), node_of(machine)) {
        (Some(key), _) if key.run() == run => Whose::ThisRun,
        (_, Some(marked)) if Some(&marked) == node => Whose::ThisNode,
        (_, Some(other)) => Whose::Other(other),
        (_, None) => Whose::Nobody,
    }
}

pub(super) fn installing(key: &Key, node: Option<&NodeId>) -> BTreeMap<String, String> {
    let mut marks = BTreeMap::from([(KEY.to_owned(), key.to_string())]);
    if let Some(node) = node {
        marks.insert(NODE.to_owned(), node.to_string());
    }
    marks
}

pub(super) fn letting_go(key: &Key) -> BTreeMap<String, String> {
    BTreeMap::from([(RELEASE.to_owned(), key.to_string())])
}

/// Whether a release was prepared under this key and has not happened.
pub(super) fn being_let_go(machine: &Machine, key: &Key) -> bool {
    machine.workload_annotations.get(RELEASE).is_some_and(|marked| marked == key.as_str())
}

/// The description of a new record.
pub(super) fn made_for(node: &NodeId, key: &Key) -> String {
    format!("{MADE}{node} ({key})")
}

/// The node and the run that made a record.
pub(super) fn maker(description: &str) -> Option<(NodeId, String)> {
    let (_, made) = description.split_once(MADE)?;
    let (node, rest) = made.split_once(" (")?;
    let (key, _) = rest.split_once(')')?;
    Some((NodeId::parse(node).ok()?, Key::trusted(key).run().to_owned()))
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
    fn a_machine_is_whose_mark_it_has() {
        let (one, two) = (NodeId::trusted("node-1"), NodeId::trusted("node-2"));
        for (annotations, expected) in [
            (json!({}), Whose::Nobody),
            (json!({"farrier-key": "op-1/deploy/3", "farrier-node": "node-1"}), Whose::ThisRun),
            (json!({"farrier-key": "op-12/deploy/1", "farrier-node": "node-1"}), Whose::ThisNode),
            (json!({"farrier-node": "node-1"}), Whose::ThisNode),
            (json!({"farrier-key": "op-9/deploy/1", "farrier-node": "node-2"}), Whose::Other(two)),
            (json!({"farrier-key": "op-9/deploy/1"}), Whose::Nobody),
            (json!({"farrier-node": "somebody"}), Whose::Nobody),
        ] {
            let machine = marked(annotations.clone());
            assert_eq!(whose(&machine, "op-1", Some(&one)), expected, "{annotations}");
        }
        let key = Key::trusted("op-1/release/1");
        assert!(being_let_go(&marked(json!(letting_go(&key))), &key));
        assert!(!being_let_go(&marked(json!({})), &key));
    }

    #[test]
    fn a_record_says_who_made_it() {
        let (node, key) = (NodeId::trusted("node-1"), Key::trusted("op-1/create/2"));
        assert_eq!(maker(&made_for(&node, &key)), Some((node, "op-1".to_owned())));
        for other in ["", "rack 7", "Made by Farrier for lunch", "Made by Farrier for x (op-1)"] {
            assert_eq!(maker(other), None, "{other}");
        }
    }
}
