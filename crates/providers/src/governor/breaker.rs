//! The circuit breaker of one BMC.

use super::Settings;
use std::time::Duration;
use tokio::time::Instant;

#[derive(Debug, Clone, Default)]
pub struct CircuitBreaker {
    failures: u32,
    open_until: Option<Instant>,
    last_error: String,
}

impl CircuitBreaker {
    pub fn succeed(&mut self) {
        *self = Self::default();
    }

    /// The circuit opens at the `break_after`th failure in a row. Each further failure doubles the
    /// period, up to the maximum.
    pub fn fail(&mut self, message: &str, settings: &Settings, now: Instant) {
        self.failures = self.failures.saturating_add(1);
        self.last_error = message.to_string();
        if let Some(beyond) = self.failures.checked_sub(settings.break_after.max(1)) {
            let rest = settings.open_period.saturating_mul(1 << beyond.min(16));
            self.open_until = Some(now + rest.min(settings.max_open_period));
        }
    }

    /// The time that the circuit stays open from now on.
    pub fn open_for(&self, now: Instant) -> Option<Duration> {
        let left = self.open_until?.saturating_duration_since(now);
        (!left.is_zero()).then_some(left)
    }

    pub fn failures(&self) -> u32 {
        self.failures
    }

    pub fn last_error(&self) -> &str {
        &self.last_error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_periods_grow_up_to_the_maximum() {
        let settings = Settings {
            break_after: 2,
            open_period: Duration::from_secs(10),
            max_open_period: Duration::from_secs(35),
            ..Settings::default()
        };
        let now = Instant::now();
        let mut breaker = CircuitBreaker::default();
        let mut rests = Vec::new();
        for _ in 0..5 {
            breaker.fail("no", &settings, now);
            rests.push(breaker.open_for(now).map_or(0, |left| left.as_secs()));
        }
        assert_eq!(rests, [0, 10, 20, 35, 35]);
        assert_eq!(breaker.open_for(now + Duration::from_secs(35)), None);
        breaker.succeed();
        assert_eq!((breaker.failures(), breaker.open_for(now)), (0, None));
    }
}
