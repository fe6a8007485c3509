//! Locks that stay usable after a holder panicked: what they guard is changed in single steps, so it is always
//! consistent.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// See the module documentation.
pub trait Locked<T> {
    /// Takes the lock.
    fn locked(&self) -> MutexGuard<'_, T>;
}

impl<T> Locked<T> for Mutex<T> {
    fn locked(&self) -> MutexGuard<'_, T> {
        self.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
