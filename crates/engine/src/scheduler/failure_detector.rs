//! The failure detector. A replica is dead when its heartbeat row has not changed for the length of
//! a lease, measured by the observer's monotonic clock: wall clocks that step or differ end no
//! lease.

use std::collections::BTreeMap;
use std::time::Duration;
use store::ReplicaHeartbeat;
use tokio::time::Instant;

/// The last heartbeat of each replica, and since when it has not changed.
#[derive(Default)]
pub(crate) struct FailureDetector(BTreeMap<String, (ReplicaHeartbeat, Instant)>);

impl FailureDetector {
    /// Records the current heartbeats and returns those that have not changed for a lease.
    pub fn detect_silent(
        &mut self,
        heartbeats: Vec<ReplicaHeartbeat>,
        now: Instant,
        lease: Duration,
    ) -> Vec<ReplicaHeartbeat> {
        let known = std::mem::take(&mut self.0);
        for heartbeat in heartbeats {
            let name = heartbeat.replica.name.clone();
            let since = match known.get(&name) {
                Some((before, since)) if *before == heartbeat => *since,
                Some(_) | None => now,
            };
            self.0.insert(name, (heartbeat, since));
        }
        let still = self.0.values().filter(|(_, since)| now - *since >= lease);
        still.map(|(heartbeat, _)| heartbeat.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::time::Timestamp;
    use store::Replica;

    fn heartbeat(name: &str, incarnation: u8, beat: i64) -> ReplicaHeartbeat {
        let replica = Replica { name: name.into(), incarnation: format!("{name}#{incarnation}") };
        ReplicaHeartbeat { replica, expires_at: Timestamp::from_millis(beat) }
    }

    #[test]
    fn only_a_heartbeat_that_stands_still_is_silent() {
        const LEASE: Duration = Duration::from_secs(6);
        let mut detector = FailureDetector::default();
        let start = Instant::now();
        let mut at = |second, heartbeats| {
            let silent =
                detector.detect_silent(heartbeats, start + Duration::from_secs(second), LEASE);
            silent.into_iter().map(|heartbeat| heartbeat.replica.name).collect::<Vec<_>>()
        };
        let none: [&str; 0] = [];
        // The replicas' clocks may be far ahead, far behind, or step backwards.
        assert_eq!(
            at(0, vec![heartbeat("a", 1, 9_000_000), heartbeat("b", 1, -5), heartbeat("c", 1, 1)]),
            none
        );
        assert_eq!(
            at(4, vec![heartbeat("a", 1, 1), heartbeat("b", 1, -5), heartbeat("c", 1, 1)]),
            none
        );
        assert_eq!(
            at(6, vec![heartbeat("a", 1, 1), heartbeat("b", 1, -5), heartbeat("c", 2, 1)]),
            ["b"]
        );
        assert_eq!(at(9, vec![heartbeat("a", 1, 1), heartbeat("c", 2, 1)]), none);
        assert_eq!(at(10, vec![heartbeat("a", 1, 1), heartbeat("c", 2, 1)]), ["a"]);
        // A replica that returns under its name gets a full lease again.
        assert_eq!(at(12, vec![heartbeat("b", 1, -5)]), none);
    }
}
