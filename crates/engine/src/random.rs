//! The only random source, used for new ids. A simulation replaces it, so that a seed replays it.

use std::sync::Arc;

pub type Random = Arc<dyn Fn() -> u64 + Send + Sync>;

/// The random source of the operating system.
pub fn system() -> Random {
    Arc::new(rand::random)
}
