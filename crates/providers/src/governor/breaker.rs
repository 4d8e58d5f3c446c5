//! The circuit breaker of one BMC.

use super::Settings;
use std::time::Duration;
use tokio::time::Instant;

#[derive(Debug, Clone, Default)]
pub struct Breaker {
    failures: u32,
    until: Option<Instant>,
    said: String,
}

impl Breaker {
    pub fn succeed(&mut self) {
        *self = Self::default();
    }

    pub fn fail(&mut self, said: &str, settings: &Settings, now: Instant) {
        self.failures = self.failures.saturating_add(1);
        self.said = said.to_string();
        if let Some(beyond) = self.failures.checked_sub(settings.break_after.max(1)) {
            let rest = settings.rest.saturating_mul(1 << beyond.min(16));
            self.until = Some(now + rest.min(settings.longest_rest));
        }
    }

    /// How long the circuit stays open from now on.
    pub fn rests(&self, now: Instant) -> Option<Duration> {
        let left = self.until?.saturating_duration_since(now);
        (!left.is_zero()).then_some(left)
    }

    pub fn failures(&self) -> u32 {
        self.failures
    }

    pub fn said(&self) -> &str {
        &self.said
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rests_grow_up_to_the_longest() {
        let settings = Settings {
            break_after: 2,
            rest: Duration::from_secs(10),
            longest_rest: Duration::from_secs(35),
            ..Settings::default()
        };
        let now = Instant::now();
        let mut breaker = Breaker::default();
        let mut rests = Vec::new();
        for _ in 0..5 {
            breaker.fail("no", &settings, now);
            rests.push(breaker.rests(now).map_or(0, |left| left.as_secs()));
        }
        assert_eq!(rests, [0, 10, 20, 35, 35]);
        assert_eq!(breaker.rests(now + Duration::from_secs(35)), None);
        breaker.succeed();
        assert_eq!((breaker.failures(), breaker.rests(now)), (0, None));
    }
}
