//! The only place where the time is read.

use model::time::Timestamp;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::time::Instant;

/// Returns the current time. Tests inject their own.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// The system clock, made monotonic.
pub fn system() -> Clock {
    steady(|| {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp::from_micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
    })
}

/// A clock that never goes back. When the wall clock is set back, this clock continues at its own
/// pace until the wall clock has caught up, so deadlines and waits keep their length.
pub fn steady(wall: impl Fn() -> Timestamp + Send + Sync + 'static) -> Clock {
    let anchor = Mutex::new((wall(), Instant::now()));
    Arc::new(move || {
        let mut anchor = anchor.lock().unwrap_or_else(PoisonError::into_inner);
        let (wall, now) = (wall(), Instant::now());
        let own = anchor.0 + (now - anchor.1);
        if wall > own {
            *anchor = (wall, now);
        }
        wall.max(own)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicI64, Ordering};
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn a_clock_that_is_set_back_goes_on() {
        let millis = Arc::new(AtomicI64::new(10_000));
        let set = Arc::clone(&millis);
        let clock = steady(move || Timestamp::from_millis(millis.load(Ordering::Relaxed)));
        assert_eq!(clock().as_millis(), 10_000);
        set.store(20_000, Ordering::Relaxed);
        assert_eq!(clock().as_millis(), 20_000, "follows the wall clock forward");
        set.store(5_000, Ordering::Relaxed);
        assert_eq!(clock().as_millis(), 20_000, "does not go back");
        tokio::time::advance(Duration::from_secs(3)).await;
        assert_eq!(clock().as_millis(), 23_000, "continues at its own pace");
        set.store(24_000, Ordering::Relaxed);
        assert_eq!(clock().as_millis(), 24_000);
    }
}
