//! Who is alive, by our own steady clock. A replica whose pulse has not moved for as long as a lease is
//! dead, whatever time it, the database or we believe it is: clocks that step or differ end no lease.

use std::collections::BTreeMap;
use std::time::Duration;
use store::Pulse;
use tokio::time::Instant;

/// The pulses seen last, and since when each has stood still.
#[derive(Default)]
pub(crate) struct Witness(BTreeMap<String, (Pulse, Instant)>);

impl Witness {
    /// Takes note of the pulses as they are now. Answers those that have stood still for too long.
    pub fn silent(&mut self, pulses: Vec<Pulse>, now: Instant, lease: Duration) -> Vec<Pulse> {
        let known = std::mem::take(&mut self.0);
        for pulse in pulses {
            let name = pulse.replica.name.clone();
            let since = match known.get(&name) {
                Some((before, since)) if *before == pulse => *since,
                Some(_) | None => now,
            };
            self.0.insert(name, (pulse, since));
        }
        let still = self.0.values().filter(|(_, since)| now - *since >= lease);
        still.map(|(pulse, _)| pulse.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::time::Timestamp;
    use store::Replica;

    fn pulse(name: &str, incarnation: u8, beat: i64) -> Pulse {
        let replica = Replica { name: name.into(), incarnation: format!("{name}#{incarnation}") };
        Pulse { replica, beat: Timestamp::from_millis(beat) }
    }

    #[test]
    fn only_a_pulse_that_stands_still_is_silent() {
        const LEASE: Duration = Duration::from_secs(6);
        let mut witness = Witness::default();
        let start = Instant::now();
        let mut at = |second, pulses| {
            let silent = witness.silent(pulses, start + Duration::from_secs(second), LEASE);
            silent.into_iter().map(|pulse| pulse.replica.name).collect::<Vec<_>>()
        };
        let none: [&str; 0] = [];
        // The beats are whatever the others' clocks say: far ahead, far behind, going backwards.
        assert_eq!(
            at(0, vec![pulse("a", 1, 9_000_000), pulse("b", 1, -5), pulse("c", 1, 1)]),
            none
        );
        assert_eq!(at(4, vec![pulse("a", 1, 1), pulse("b", 1, -5), pulse("c", 1, 1)]), none);
        assert_eq!(at(6, vec![pulse("a", 1, 1), pulse("b", 1, -5), pulse("c", 2, 1)]), ["b"]);
        assert_eq!(at(9, vec![pulse("a", 1, 1), pulse("c", 2, 1)]), none);
        assert_eq!(at(10, vec![pulse("a", 1, 1), pulse("c", 2, 1)]), ["a"]);
        // Whoever comes back under its name begins anew.
        assert_eq!(at(12, vec![pulse("b", 1, -5)]), none);
    }
}
