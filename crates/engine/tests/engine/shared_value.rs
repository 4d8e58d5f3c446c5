//! A shared value with waiters. Unlike tokio's `watch` it wakes them in the order in which they
//! began to wait, so that a simulation is deterministic.

use std::pin::pin;
use std::sync::{Mutex, PoisonError};
use tokio::sync::Notify;

pub struct SharedValue<T> {
    value: Mutex<T>,
    changed: Notify,
}

impl<T: Clone> SharedValue<T> {
    pub fn new(value: T) -> Self {
        Self { value: Mutex::new(value), changed: Notify::new() }
    }

    pub fn get(&self) -> T {
        self.value.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn set(&self, value: T) {
        *self.value.lock().unwrap_or_else(PoisonError::into_inner) = value;
        self.changed.notify_waiters();
    }

    pub async fn wait_for(&self, reached: impl Fn(&T) -> bool) -> T {
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            let value = self.get();
            if reached(&value) {
                return value;
            }
            changed.await;
        }
    }

    /// Resolves at the next change.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }
}
