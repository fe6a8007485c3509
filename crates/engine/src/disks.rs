//! The attached disks of a shard, and the detached ones whose origins are still ending.
//!
//! Invariants
//! - A handle names the disk that it was given out for, or none; never the next disk in its place.
//! - A detached disk stays until no flight of its origin is left: the kernel may use its memory until then. Another disk may
//!   be in its place meanwhile.

use haversack_model::{DiskHandle, DiskId, DiskNo};

use crate::live::LiveDisk;

/// See the module.
#[derive(Default)]
pub(crate) struct Disks {
    /// By their places in the pool.
    attached: Vec<Option<LiveDisk>>,
    ending: Vec<LiveDisk>,
    /// The generation of the last handle.
    attachments: u32,
}

impl Disks {
    /// Puts a disk in its place, which is empty, under a handle of its own.
    pub fn attach(&mut self, number: DiskNo, make: impl FnOnce(DiskHandle) -> LiveDisk) -> DiskHandle {
        self.attachments = self.attachments.wrapping_add(1);
        let disk = DiskHandle::new(number, self.attachments);
        let at = usize::from(number.0);
        if self.attached.len() <= at {
            self.attached.resize_with(at + 1, || None);
        }
        self.attached[at] = Some(make(disk));
        disk
    }

    /// From now on the disk is one that is ending.
    pub fn detach(&mut self, disk: DiskHandle) {
        let place = self.attached.get_mut(usize::from(disk.number().0));
        self.ending.extend(place.and_then(|live| live.take_if(|live| live.handle == disk)));
    }

    /// Forgets a detached disk if its origin has ended.
    pub fn drop_ended(&mut self) {
        self.ending.retain(|live| !live.origin.is_closed());
    }

    /// Whether the origin of a detached disk has not ended yet.
    pub fn is_ending(&self, id: DiskId) -> bool {
        self.ending.iter().any(|live| live.spec.config.id == id)
    }

    /// The attached disk of a handle.
    pub fn get(&self, disk: DiskHandle) -> Option<&LiveDisk> {
        self.at(disk.number()).filter(|live| live.handle == disk)
    }

    /// The disk of a handle, attached or ending.
    pub fn get_mut(&mut self, disk: DiskHandle) -> Option<&mut LiveDisk> {
        let attached = self.attached.get_mut(usize::from(disk.number().0)).and_then(Option::as_mut);
        attached.into_iter().chain(&mut self.ending).find(|live| live.handle == disk)
    }

    /// The attached disk in a place, as the core names it at this moment.
    pub fn at(&self, number: DiskNo) -> Option<&LiveDisk> {
        self.attached.get(usize::from(number.0))?.as_ref()
    }

    /// The attached disks.
    pub fn iter(&self) -> impl Iterator<Item = &LiveDisk> {
        self.attached.iter().flatten()
    }

    /// How many places there are, empty ones included.
    pub fn places(&self) -> u16 {
        self.attached.len() as u16
    }
}
