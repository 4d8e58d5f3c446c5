//! Targets: their stored form and kinds.

use model::id::MachineId;
use model::target::{TargetId, TargetKind};

#[test]
fn a_target_is_one_word() {
    for kind in TargetKind::ALL {
        let target = TargetId::new(kind, "x-1.y_2");
        assert_eq!(TargetId::from_key(&target.key()), target);
        let stored = serde_json::to_string(&target).unwrap();
        assert_eq!(serde_json::from_str::<TargetId>(&stored).unwrap(), target);
    }
    assert_eq!(TargetId::from(&MachineId::trusted("m-1")).key(), "m-1");
}

#[test]
fn an_id_says_what_it_names() {
    for (text, kind) in [
        ("rack-1", Some(TargetKind::Rack)),
        ("sw-1", Some(TargetKind::Switch)),
        ("ps-1", Some(TargetKind::PowerShelf)),
        ("m-1", Some(TargetKind::Machine)),
        ("rack7", Some(TargetKind::Machine)),
        ("rack-", None),
        ("op-1", None),
        ("", None),
    ] {
        assert_eq!(TargetId::parse(text).ok().map(|one| one.kind), kind, "{text:?}");
    }
}
