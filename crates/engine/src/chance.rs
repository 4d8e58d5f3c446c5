//! The only place where dice are thrown: what new ids are made of. A simulation brings its own, so that
//! a seed tells the whole story.

use std::sync::Arc;

pub type Chance = Arc<dyn Fn() -> u64 + Send + Sync>;

/// The system's.
pub fn system() -> Chance {
    Arc::new(rand::random)
}
