//! Tests of the module `timing` alone.

use agent::timing::*;

#[test]
fn pauses_grow_to_a_limit_and_begin_again() {
    let mut backoff = Backoff::new(&Timing::default());
    let seconds: Vec<u64> = (0..7).map(|_| backoff.next_delay().as_secs()).collect();
    assert_eq!(seconds, [1, 2, 3, 4, 5, 5, 5]);
    backoff.reset();
    assert_eq!(backoff.next_delay().as_secs(), 1);
}
