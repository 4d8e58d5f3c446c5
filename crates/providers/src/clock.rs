//! The clock, as a value that a test can replace.

use model::time::Timestamp;
use std::sync::Arc;
use std::time::SystemTime;

pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

pub fn now() -> Timestamp {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    Timestamp::default() + since_1970.unwrap_or_default()
}

/// The clock of the system.
pub fn system_clock() -> Clock {
    Arc::new(now)
}

/// A clock that follows tokio's: a test that pauses tokio's time pauses this clock.
pub fn tokio_clock(start: Timestamp) -> Clock {
    let begun = tokio::time::Instant::now();
    Arc::new(move || start + begun.elapsed())
}
