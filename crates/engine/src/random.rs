//! The only random source: what new ids are made of. A simulation brings its own, so that a seed
//! repeats it exactly.

use std::sync::Arc;

pub type Random = Arc<dyn Fn() -> u64 + Send + Sync>;

/// The system's.
pub fn system() -> Random {
    Arc::new(rand::random)
}
