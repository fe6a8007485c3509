//! Memory for the payloads of a pool's NBD clients.
//!
//! Invariants
//! - Beyond the pool's budget, a disk without requests may always have one, and a client without requests one of at
//!   most `SMALL_BYTES`. So no client waits forever, regardless of what the others use.
//! - Apart from these requests, memory is granted to a disk only if the disk then uses no more than what remains free
//!   in the budget. So a single disk gets at most half of the budget, and memory always remains for the next disk.

use std::cell::{RefCell, RefMut};
use std::rc::Rc;

use haversack_model::DiskHandle;

/// The most bytes of a client with several requests.
const MOST_OF_A_CLIENT: usize = 32 << 20;
/// A request of up to this size is always granted to a client that has no other.
const SMALL_BYTES: usize = 256 << 10;

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Budget {
    most: usize,
    used: RefCell<Used>,
}

#[derive(Debug, Default)]
struct Used {
    all: usize,
    of_disks: Vec<(DiskHandle, usize)>,
}

impl Used {
    fn of(&mut self, disk: DiskHandle) -> &mut usize {
        let at = self.of_disks.iter().position(|(of, _)| *of == disk).unwrap_or_else(|| {
            self.of_disks.push((disk, 0));
            self.of_disks.len() - 1
        });
        &mut self.of_disks[at].1
    }
}

impl Budget {
    /// Makes a budget of this many bytes for all clients.
    pub fn new(most: usize) -> Rc<Budget> {
        Rc::new(Budget { most, used: RefCell::default() })
    }

    fn used(&self) -> RefMut<'_, Used> {
        self.used.borrow_mut()
    }

    /// Takes bytes for a request of a client that already holds `of_client`. Returns false if the request must
    /// wait.
    pub fn take(&self, disk: DiskHandle, of_client: usize, bytes: usize) -> bool {
        let mut used = self.used();
        let free = self.most.saturating_sub(used.all);
        let of_disk = used.of(disk);
        let alone = of_client == 0;
        let fits = *of_disk + bytes <= free.saturating_sub(bytes);
        let granted = *of_disk == 0
            || alone && (bytes <= SMALL_BYTES || fits)
            || of_client + bytes <= MOST_OF_A_CLIENT && fits;
        if granted {
            *of_disk += bytes;
            used.all += bytes;
        }
        granted
    }

    /// Returns bytes to the budget.
    pub fn give(&self, disk: DiskHandle, bytes: usize) {
        let mut used = self.used();
        used.all -= bytes;
        let of_disk = used.of(disk);
        *of_disk -= bytes;
        if *of_disk == 0 {
            used.of_disks.retain(|(of, _)| *of != disk);
        }
    }
}

#[cfg(test)]
mod tests {
    use haversack_model::{ArenaNo, DiskNo};

    use super::*;

    const MIB: usize = 1 << 20;

    fn disk(number: u16) -> DiskHandle {
        DiskHandle::new(ArenaNo(0), DiskNo(number), 1)
    }

    /// Takes pieces, as clients of 32 MiB each, until a request must wait. Returns how much was granted.
    fn greedy(budget: &Budget, disk: DiskHandle) -> usize {
        let mut all = 0;
        for _ in 0..100 {
            let mut of_client = 0;
            while budget.take(disk, of_client, MIB) {
                of_client += MIB;
            }
            all += of_client;
        }
        all
    }

    #[test]
    fn a_greedy_disk_leaves_as_much_as_it_takes() {
        let budget = Budget::new(256 * MIB);
        let first = greedy(&budget, disk(1));
        assert!((100 * MIB..=128 * MIB).contains(&first), "{first}");
        let second = greedy(&budget, disk(2));
        assert!((50 * MIB..=128 * MIB).contains(&second), "{second}");
        assert!(budget.take(disk(3), 0, 32 * MIB), "a quiet disk's largest request");
        for (number, bytes) in [(1, first), (2, second), (3, 32 * MIB)] {
            budget.give(disk(number), bytes);
        }
        assert!(budget.used().of_disks.is_empty() && budget.used().all == 0);
    }

    #[test]
    fn every_request_completes() {
        let budget = Budget::new(0);
        assert!(budget.take(disk(1), 0, 32 * MIB), "a disk's only request");
        assert!(!budget.take(disk(1), 0, MIB));
        assert!(budget.take(disk(1), 0, SMALL_BYTES), "a client's only small request");
        assert!(!budget.take(disk(1), SMALL_BYTES, 512));
    }
}
