//! The clock, as a value that a test can replace.

use model::time::Timestamp;
use std::sync::Arc;
use std::time::SystemTime;

/// Returns the current time.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// The time of the system's clock.
pub fn now() -> Timestamp {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    Timestamp::default() + since_1970.unwrap_or_default()
}

/// The system's clock.
pub fn system_clock() -> Clock {
    Arc::new(now)
}

/// A clock that goes with tokio's, so that a test that pauses the one pauses the other.
pub fn tokio_clock(start: Timestamp) -> Clock {
    let begun = tokio::time::Instant::now();
    Arc::new(move || start + begun.elapsed())
}
