//! Ids of objects that a caller may not see, in texts.

use model::hidden::{hide_ids, hides, ids_in};
use std::collections::BTreeSet;

#[test]
fn an_id_is_hidden_wherever_it_stands() {
    let visible = BTreeSet::from(["op-01own".to_string(), "rack-1".to_string()]);
    for (text, expected) in [
        ("", ""),
        ("held by op-01own", "held by op-01own"),
        ("held by op-01other", "held by op-(hidden)"),
        ("op-01other", "op-(hidden)"),
        ("(op-01other), then op-01own.", "(op-(hidden)), then op-01own."),
        ("in rack-1, not rack-2.", "in rack-1, not rack-(hidden)."),
        ("..rack-2... --rack-1", "..rack-(hidden)... --rack-1"),
        ("fed by ps-a.1 and sw-b", "fed by ps-(hidden) and sw-(hidden)"),
        ("rack/rack-2: site-b/node-01x", "rack/rack-(hidden): site-(hidden)/node-(hidden)"),
        ("rack-10 is not rack-1", "rack-(hidden) is not rack-1"),
        // Words that are no ids.
        (
            "gate node-health, op-ed, a rack, rack-, m-2",
            "gate node-health, op-ed, a rack, rack-, m-2",
        ),
        ("übung: op-01other ✓", "übung: op-(hidden) ✓"),
    ] {
        let shown = hide_ids(text, &visible);
        assert_eq!(shown, expected);
        assert!(ids_in(&shown).all(|id| visible.contains(id)), "{shown}");
        assert_eq!(hides(&shown), shown != text);
        assert_eq!(hide_ids(&shown, &visible), shown);
    }
    assert_eq!(ids_in("op-01a, rack-2/ps-3.").collect::<Vec<_>>(), ["op-01a", "rack-2", "ps-3"]);
}
