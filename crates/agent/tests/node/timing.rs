//! Tests of the module `node::timing` alone.

use agent::node::timing::*;
use std::time::Duration;

#[test]
fn jitter_is_between_half_and_all() {
    let time = Duration::from_secs(30);
    let found: Vec<Duration> = (0..64).map(|_| with_jitter(time)).collect();
    assert!(found.iter().all(|one| (time / 2..=time).contains(one)), "{found:?}");
    assert!(found.iter().any(|one| *one != found[0]), "all are the same: {found:?}");
}
