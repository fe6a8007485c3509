//! Serializes attaching a disk, giving it up and forgetting it; and, separately, changes of its settings.
//!
//! Invariant
//! - One operation at a time per disk: an attach holds its turn from before the store is locked and its use recorded
//!   until the disk is attached, or both are undone. So no operation undoes what another one has just found.

use std::collections::HashSet;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use haversack_model::DiskId;

use crate::locked::Locked;

/// The disks that are being attached, given up or forgotten, or those whose settings are being changed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Turns(Arc<(Mutex<HashSet<DiskId>>, Condvar)>);

/// A disk's turn. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    turns: Turns,
    disk: DiskId,
}

impl Turns {
    /// Waits until nobody has a disk's turn, and takes it.
    pub(crate) fn take(&self, disk: DiskId) -> Turn {
        let (busy, ended) = &*self.0;
        let free = ended.wait_while(busy.locked(), |busy| busy.contains(&disk));
        free.unwrap_or_else(PoisonError::into_inner).insert(disk);
        Turn { turns: self.clone(), disk }
    }

    /// Takes a disk's turn, or returns `None` if it does not become free within the time.
    pub(crate) fn take_within(&self, disk: DiskId, time: Duration) -> Option<Turn> {
        let (busy, ended) = &*self.0;
        let waited = ended.wait_timeout_while(busy.locked(), time, |busy| busy.contains(&disk));
        let (mut free, _) = waited.unwrap_or_else(PoisonError::into_inner);
        free.insert(disk).then(|| Turn { turns: self.clone(), disk })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let (busy, ended) = &*self.turns.0;
        busy.locked().remove(&self.disk);
        ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_has_one_turn_at_a_time() {
        let turns = Turns::default();
        let (one, two) = (DiskId([1; 16]), DiskId([2; 16]));
        let first = turns.take(one);
        assert!(turns.take_within(one, Duration::ZERO).is_none());
        assert!(turns.take_within(two, Duration::ZERO).is_some(), "another disk waits for nobody");
        let (here, there) = std::sync::mpsc::channel();
        let waiting = turns.clone();
        let second = std::thread::spawn(move || {
            let turn = waiting.take(one);
            here.send(()).expect("the test waits");
            turn
        });
        assert!(there.try_recv().is_err());
        drop(first);
        there.recv().expect("the turn has ended");
        assert!(turns.take_within(one, Duration::ZERO).is_none());
        drop(second.join().expect("it took its turn"));
        assert!(turns.take_within(one, Duration::ZERO).is_some());
    }
}
