//! How many mappings the front ends of a disk may have at a time, and the thread that takes mappings away.
//!
//! A process has a limited number of mappings, for all disks together. Tables that the front end has replaced stay mapped
//! while requests use them, so one front end could have any number.
//!
//! To unmap much memory takes long, a second for some GiB, and the last to hold a mapping may be who drives the queues. So
//! mappings go in a thread of their own.

use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Condvar, LazyLock, Mutex, PoisonError};
use std::time::Duration;

/// Mappings of all front ends of a disk: two full memory tables of each side of a migration.
pub const MAX_MAPPINGS: usize = 4 * crate::memory::MAX_MEMORY_REGIONS;
/// How long a new mapping waits for old ones that are being taken away.
const PATIENCE: Duration = Duration::from_secs(1);

/// Places for mappings. Clones share them.
#[derive(Clone, Debug)]
pub struct Quota(Arc<Places>);

#[derive(Debug)]
struct Places {
    free: Mutex<usize>,
    freed: Condvar,
}

/// The place of a mapping, free again when this is dropped.
#[derive(Debug)]
pub(crate) struct Place(Arc<Places>);

impl Default for Quota {
    fn default() -> Self {
        Self(Arc::new(Places { free: Mutex::new(MAX_MAPPINGS), freed: Condvar::new() }))
    }
}

impl Quota {
    /// A place for one more mapping; `None` if there is none.
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

/// Runs something in the thread that takes mappings away; here if there is no thread.
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
