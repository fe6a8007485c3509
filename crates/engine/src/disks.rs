//! The attached disks of an arena, and detached disks whose origins are still shutting down.
//!
//! Invariants
//! - A handle names the disk that it was issued for, or none; never the next disk with the same number.
//! - A detached disk stays until its origin has no I/O in flight: the kernel may use its memory until then. Its
//!   number may already belong to another disk.

use haversack_model::{ArenaNo, DiskHandle, DiskId, DiskNo};

use crate::live::LiveDisk;

/// See the module documentation.
pub(crate) struct Disks {
    arena: ArenaNo,
    /// Indexed by disk number.
    attached: Vec<Option<LiveDisk>>,
    ending: Vec<LiveDisk>,
    /// The generation of the last handle.
    attachments: u32,
}

impl Disks {
    pub fn new(arena: ArenaNo) -> Disks {
        Disks { arena, attached: Vec::new(), ending: Vec::new(), attachments: 0 }
    }

    /// Returns a handle for the next disk with this number, different from all earlier handles.
    pub fn next_handle(&mut self, number: DiskNo) -> DiskHandle {
        self.attachments = self.attachments.wrapping_add(1);
        DiskHandle::new(self.arena, number, self.attachments)
    }

    /// Adds a disk at its number, which must be free.
    pub fn attach(&mut self, live: LiveDisk) {
        let at = usize::from(live.handle.number().0);
        if self.attached.len() <= at {
            self.attached.resize_with(at + 1, || None);
        }
        self.attached[at] = Some(live);
    }

    /// Moves a disk from the attached to the ending ones.
    pub fn detach(&mut self, disk: DiskHandle) {
        let place = self.attached.get_mut(usize::from(disk.number().0));
        self.ending.extend(place.and_then(|live| live.take_if(|live| live.handle == disk)));
    }

    /// Drops the detached disks whose origins have shut down.
    pub fn drop_ended(&mut self) {
        self.ending.retain(|live| !live.origin.is_closed());
    }

    /// Returns whether the origin of a detached disk is still shutting down.
    pub fn is_ending(&self, id: DiskId) -> bool {
        self.ending.iter().any(|live| live.spec.config.id == id)
    }

    /// Returns the attached disk of a handle.
    pub fn get(&self, disk: DiskHandle) -> Option<&LiveDisk> {
        self.at(disk.number()).filter(|live| live.handle == disk)
    }

    /// Returns the disk of a handle, attached or ending.
    pub fn get_mut(&mut self, disk: DiskHandle) -> Option<&mut LiveDisk> {
        let attached = self.attached.get_mut(usize::from(disk.number().0)).and_then(Option::as_mut);
        attached.into_iter().chain(&mut self.ending).find(|live| live.handle == disk)
    }

    /// Returns the attached disk that the core knows by this number now.
    pub fn at(&self, number: DiskNo) -> Option<&LiveDisk> {
        self.attached.get(usize::from(number.0))?.as_ref()
    }

    /// Returns the attached disks.
    pub fn iter(&self) -> impl Iterator<Item = &LiveDisk> {
        self.attached.iter().flatten()
    }

    /// Returns how many numbers have been used, free ones included.
    pub fn places(&self) -> u16 {
        self.attached.len() as u16
    }
}
