//! The only place where the time is read.

use model::time::Timestamp;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// What time it is. Tests bring their own.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// The system's clock.
pub fn system() -> Clock {
    Arc::new(|| {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp::from_micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
    })
}
