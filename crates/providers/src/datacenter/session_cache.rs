//! Sessions that are kept for the next call, so that polling does not log in to each BMC each time.
//!
//! A session has a maximum age, so that a changed credential or trust policy takes effect. When the
//! cache is full, the least recently used session is dropped.

use std::collections::HashMap;
use std::time::Duration;
use tokio::time::Instant;

/// One for each machine of a large fleet.
const MAX_SESSIONS: usize = 32_768;
/// The time that a session is used before a new login.
const MAX_AGE: Duration = Duration::from_secs(1_800);

struct Entry<T> {
    session: T,
    created_at: Instant,
    used_at: Instant,
}

pub struct SessionCache<T> {
    entries: HashMap<String, Entry<T>>,
    capacity: usize,
}

impl<T> Default for SessionCache<T> {
    fn default() -> Self {
        Self { entries: HashMap::new(), capacity: MAX_SESSIONS }
    }
}

impl<T> SessionCache<T> {
    /// Removes and returns a session, unless it is too old.
    pub fn take(&mut self, position: &str, now: Instant) -> Option<T> {
        let entry = self.entries.remove(position)?;
        (now.saturating_duration_since(entry.created_at) < MAX_AGE).then_some(entry.session)
    }

    /// Stores a session that was created at `made` and used at `now`.
    pub fn put(&mut self, position: String, stored: T, made: Instant, now: Instant) {
        if self.entries.len() >= self.capacity && !self.entries.contains_key(&position) {
            let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.used_at);
            if let Some(position) = oldest.map(|(position, _)| position.clone()) {
                self.entries.remove(&position);
            }
        }
        self.entries.insert(position, Entry { session: stored, created_at: made, used_at: now });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_session_is_dropped() {
        let mut stored = SessionCache { capacity: 2, ..SessionCache::default() };
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        stored.put("a".into(), 1, start, at(1));
        stored.put("b".into(), 2, start, at(2));
        assert_eq!(stored.take("a", at(3)), Some(1));
        assert_eq!(stored.take("a", at(3)), None, "it is in use");
        stored.put("a".into(), 1, start, at(3));
        stored.put("c".into(), 3, start, at(4));
        assert_eq!(stored.take("b", at(5)), None);
        assert_eq!((stored.take("a", at(5)), stored.take("c", at(5))), (Some(1), Some(3)));
    }

    #[test]
    fn an_old_session_is_replaced_even_if_in_use() {
        let mut stored = SessionCache::default();
        let made = Instant::now();
        stored.put("a".into(), 1, made, made + MAX_AGE - Duration::from_secs(1));
        assert_eq!(stored.take("a", made + MAX_AGE - Duration::from_secs(1)), Some(1));
        stored.put("a".into(), 1, made, made + MAX_AGE - Duration::from_secs(1));
        assert_eq!(stored.take("a", made + MAX_AGE), None);
    }
}
