//! The backoff.

use model::retry::Backoff;
use std::time::Duration;

#[test]
fn waits_grow_stay_under_the_cap_and_differ() {
    let backoff = Backoff::default();
    for failures in 1..=40 {
        let wait = backoff.delay(failures, "op-1/reboot");
        let full = Duration::from_secs(1 << failures.saturating_sub(1).min(6)).min(backoff.max);
        assert!(wait >= full / 2 && wait <= full, "{failures}: {wait:?}");
    }
    assert_ne!(backoff.delay(3, "op-1/reboot"), backoff.delay(3, "op-2/reboot"));
    assert_eq!(Backoff { initial: Duration::ZERO, ..backoff }.delay(5, "x"), Duration::ZERO);
}
