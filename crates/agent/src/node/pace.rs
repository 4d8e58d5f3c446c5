//! How long the agent of a node waits, and for what. In one place, so that tests need not wait.

use crate::http::Limits;
use crate::pace::Pauses;
use crate::random::random;
use std::time::Duration;

#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// The first pause after something did not work; each further one is longer by as much.
    pub pause: Duration,
    pub longest_pause: Duration,
    /// Between two tries of a node that was told that it is not known.
    pub rare: Duration,
    /// How long a request for a task is left open.
    pub take_wait: Duration,
    /// Between two looks at the health of the node.
    pub health: Duration,
    /// How long the first heartbeat waits for the first of them.
    pub first_health: Duration,
    /// Between two looks at what runs on the GPUs.
    pub look: Duration,
    /// For a whole answer.
    pub answer: Duration,
    pub limits: Limits,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            pause: Duration::from_secs(1),
            longest_pause: Duration::from_secs(30),
            rare: Duration::from_secs(300),
            take_wait: Duration::from_secs(30),
            health: Duration::from_secs(300),
            first_health: Duration::from_secs(10),
            look: Duration::from_secs(1),
            answer: Duration::from_secs(30),
            limits: Limits { connect: Duration::from_secs(5), silence: Duration::from_secs(30) },
        }
    }
}

impl Pace {
    /// The same order of things, a hundred times as fast.
    pub fn for_tests() -> Self {
        Self {
            pause: Duration::from_millis(10),
            longest_pause: Duration::from_millis(50),
            rare: Duration::from_millis(100),
            take_wait: Duration::ZERO,
            health: Duration::from_secs(3),
            first_health: Duration::from_secs(5),
            look: Duration::from_millis(20),
            answer: Duration::from_secs(5),
            limits: Limits { connect: Duration::from_secs(5), silence: Duration::from_secs(5) },
        }
    }

    pub fn pauses(&self) -> Pauses {
        Pauses::between(self.pause, self.longest_pause)
    }
}

/// Between half of it and all of it: a fleet that lost its controller together must not come back together.
pub fn scattered(time: Duration) -> Duration {
    let share = random().map_or(u8::MAX, |bytes| bytes[0]);
    time / 2 + time / 2 * u32::from(share) / u32::from(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scattered_time_is_neither_short_nor_long() {
        let time = Duration::from_secs(30);
        let found: Vec<Duration> = (0..64).map(|_| scattered(time)).collect();
        assert!(found.iter().all(|one| (time / 2..=time).contains(one)), "{found:?}");
        assert!(found.iter().any(|one| *one != found[0]), "all are the same: {found:?}");
    }
}
