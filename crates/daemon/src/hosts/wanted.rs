//! Hosts that want a disk of this host: a hypervisor there has opened the disk.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use haversack_model::{DiskId, HostId};

/// How long after a host's last request for a disk a hypervisor may still have the disk open there: three requests.
const WANTED: Duration = Duration::from_secs(15);
/// How long a VM may be idle at its destination while its disk counts as on its way there. A hypervisor that has the disk
/// open for longer is no sign of a move.
const ON_ITS_WAY: Duration = Duration::from_secs(3600);

struct Requested {
    first: Instant,
    last: Instant,
}

/// See the module.
#[derive(Default)]
pub(super) struct Wanted(HashMap<(DiskId, HostId), Requested>);

impl Wanted {
    /// Records a request for a disk. Hosts repeat their requests.
    pub fn note(&mut self, disk: DiskId, by: HostId, now: Instant) {
        self.0.retain(|_, requested| now.duration_since(requested.last) < WANTED);
        self.0.entry((disk, by)).or_insert(Requested { first: now, last: now }).last = now;
    }

    /// Records that a host no longer wants a disk.
    pub fn forget(&mut self, disk: DiskId, by: HostId) {
        self.0.remove(&(disk, by));
    }

    /// Returns whether a host has requested a disk recently.
    pub fn is_wanted(&self, disk: DiskId, by: HostId, now: Instant) -> bool {
        self.of(disk, by, now).is_some()
    }

    /// Returns whether the VM of a disk may have moved to a host, and not have written there yet.
    pub fn may_be_there(&self, disk: DiskId, by: HostId, now: Instant) -> bool {
        self.of(disk, by, now).is_some_and(|requested| now.duration_since(requested.first) < ON_ITS_WAY)
    }

    fn of(&self, disk: DiskId, by: HostId, now: Instant) -> Option<&Requested> {
        self.0.get(&(disk, by)).filter(|requested| now.duration_since(requested.last) < WANTED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vm_may_be_idle_at_its_destination_for_an_hour() {
        let (disk, host, start) = (DiskId([7; 16]), HostId(1), Instant::now());
        let mut wanted = Wanted::default();
        let shown =
            |wanted: &Wanted, now| (wanted.is_wanted(disk, host, now), wanted.may_be_there(disk, host, now));
        assert_eq!(shown(&wanted, start), (false, false));
        for seconds in (0..4000).step_by(5) {
            let now = start + Duration::from_secs(seconds);
            wanted.note(disk, host, now);
            assert_eq!(shown(&wanted, now), (true, seconds < 3600), "after {seconds} s");
            assert!(!wanted.is_wanted(disk, HostId(2), now));
        }
        // The hypervisor closes the disk, and opens it again later.
        let later = start + Duration::from_secs(4010);
        assert_eq!(shown(&wanted, later), (false, false));
        wanted.note(disk, host, later);
        assert_eq!(shown(&wanted, later), (true, true));
        wanted.forget(disk, host);
        assert_eq!(shown(&wanted, later), (false, false));
    }
}
