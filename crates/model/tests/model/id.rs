//! Ids: their order and what may be one.

use model::id::{MachineId, RunId};
use model::time::Timestamp;

#[test]
fn ids_sort_by_creation() {
    let early = RunId::new(Timestamp::from_millis(1_700_000_000_000), u64::MAX);
    let late = RunId::new(Timestamp::from_millis(1_700_000_000_001), 0);
    assert!(early < late);
    assert_eq!(early.as_str().len(), "op-".len() + 20);
    assert_eq!(RunId::parse(early.as_str()).unwrap(), early);
}

#[test]
fn machines_may_be_named_by_their_owners() {
    for good in ["machine-1", "m-123", "A", "rack7.slot_3", "0"] {
        assert!(MachineId::parse(good).is_ok(), "{good}");
    }
    let long = "x".repeat(64);
    for bad in ["op-mine", "", "-x", "a b", "a\u{7}", "ä", "a/b", long.as_str()] {
        assert!(MachineId::parse(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn runs_are_named_by_farrier_only() {
    for bad in ["machine-1", "op-", "op", "run-1"] {
        let refusal = RunId::parse(bad).unwrap_err();
        assert!(refusal.to_string().contains("run_id"), "{refusal}");
    }
}
