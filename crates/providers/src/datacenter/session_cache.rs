//! Sessions that are kept for the next call, so that polling does not log in to each BMC each time.
//!
//! A session has a maximum age, so that a changed credential or trust policy takes effect. When the
//! cache is full, the least recently used session is dropped.

use std::collections::HashMap;
use std::time::Duration;
use tokio::time::Instant;

/// One for each machine of a large fleet.
const MAX_KEPT: usize = 32_768;
/// How long a session is used before a new login.
const KEPT_FOR: Duration = Duration::from_secs(1_800);

struct Entry<T> {
    kept: T,
    made: Instant,
    used: Instant,
}

pub struct SessionCache<T> {
    entries: HashMap<String, Entry<T>>,
    most: usize,
}

impl<T> Default for SessionCache<T> {
    fn default() -> Self {
        Self { entries: HashMap::new(), most: MAX_KEPT }
    }
}

impl<T> SessionCache<T> {
    /// Removes and returns a session, unless it is too old.
    pub fn take(&mut self, place: &str, now: Instant) -> Option<T> {
        let entry = self.entries.remove(place)?;
        (now.saturating_duration_since(entry.made) < KEPT_FOR).then_some(entry.kept)
    }

    /// Stores a session that was created at `made` and used at `now`.
    pub fn keep(&mut self, place: String, kept: T, made: Instant, now: Instant) {
        if self.entries.len() >= self.most && !self.entries.contains_key(&place) {
            let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.used);
            if let Some(place) = oldest.map(|(place, _)| place.clone()) {
                self.entries.remove(&place);
            }
        }
        self.entries.insert(place, Entry { kept, made, used: now });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_one_that_was_used_longest_ago_goes_first() {
        let mut kept = SessionCache { most: 2, ..SessionCache::default() };
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        kept.keep("a".into(), 1, start, at(1));
        kept.keep("b".into(), 2, start, at(2));
        assert_eq!(kept.take("a", at(3)), Some(1));
        assert_eq!(kept.take("a", at(3)), None, "it is in use");
        kept.keep("a".into(), 1, start, at(3));
        kept.keep("c".into(), 3, start, at(4));
        assert_eq!(kept.take("b", at(5)), None);
        assert_eq!((kept.take("a", at(5)), kept.take("c", at(5))), (Some(1), Some(3)));
    }

    #[test]
    fn one_that_is_too_old_is_made_anew_however_often_it_is_used() {
        let mut kept = SessionCache::default();
        let made = Instant::now();
        kept.keep("a".into(), 1, made, made + KEPT_FOR - Duration::from_secs(1));
        assert_eq!(kept.take("a", made + KEPT_FOR - Duration::from_secs(1)), Some(1));
        kept.keep("a".into(), 1, made, made + KEPT_FOR - Duration::from_secs(1));
        assert_eq!(kept.take("a", made + KEPT_FOR), None);
    }
}
