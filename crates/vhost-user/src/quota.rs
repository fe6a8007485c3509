//! Limits how many mappings the front ends of a disk may have at a time; and the thread that unmaps.
//!
//! A process has a limited number of mappings for all disks together. Tables that the front end has replaced stay
//! mapped while requests use them, so without a limit one front end could have any number.
//!
//! Unmapping much memory takes long, a second for some GiB, and the last owner of a mapping may be the thread that
//! drives the queues. So mappings are dropped in their own thread.

use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Condvar, LazyLock, Mutex, PoisonError};
use std::time::Duration;

/// Mappings of all front ends of a disk: two full memory tables of each side of a migration.
pub const MAX_MAPPINGS: usize = 4 * crate::memory::MAX_MEMORY_REGIONS;
/// How long a new mapping waits for old ones that are being unmapped.
const PATIENCE: Duration = Duration::from_secs(1);

/// A counter of mappings. Clones share it.
#[derive(Clone, Debug)]
pub struct Quota(Arc<Places>);

#[derive(Debug)]
struct Places {
    free: Mutex<usize>,
    freed: Condvar,
}

/// A mapping's share of the quota, freed when this is dropped.
#[derive(Debug)]
pub(crate) struct Place(Arc<Places>);

impl Default for Quota {
    fn default() -> Self {
        Self(Arc::new(Places { free: Mutex::new(MAX_MAPPINGS), freed: Condvar::new() }))
    }
}

impl Quota {
    /// Takes a place for one more mapping; `None` if there is none.
    pub(crate) fn take(&self) -> Option<Place> {
        let free = self.0.free.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.0.freed.wait_timeout_while(free, PATIENCE, |free| *free == 0);
        let (mut free, _) = waited.unwrap_or_else(PoisonError::into_inner);
        *free = free.checked_sub(1)?;
        Some(Place(self.0.clone()))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        *self.0.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.0.freed.notify_one();
    }
}

type Work = Box<dyn FnOnce() + Send>;

/// Runs work in the unmapping thread; in the calling thread if there is none.
pub(crate) fn elsewhere(work: impl FnOnce() + Send + 'static) {
    static THREAD: LazyLock<Mutex<Option<Sender<Work>>>> = LazyLock::new(|| {
        let (sender, works) = mpsc::channel::<Work>();
        let thread = std::thread::Builder::new().name("unmap".into());
        let started = thread.spawn(move || works.into_iter().for_each(|work| work()));
        Mutex::new(started.is_ok().then_some(sender))
    });
    let work: Work = Box::new(work);
    let sender = THREAD.lock().unwrap_or_else(PoisonError::into_inner).clone();
    match sender {
        Some(sender) => drop(sender.send(work)),
        None => work(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_come_back() {
        let quota = Quota::default();
        let mut places: Vec<Place> = (0..MAX_MAPPINGS).map(|_| quota.take().unwrap()).collect();
        assert!(quota.clone().take().is_none());
        let place = places.pop();
        elsewhere(move || drop(place));
        assert!(quota.take().is_some());
    }
}
