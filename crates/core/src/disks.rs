//! The disks that the pool knows, by number.
//!
//! Invariants
//! - A number is given to a new disk only when the disk that had it was removed.
//! - The next disk with a number continues the generations of its intent pages, so that no new page is taken
//!   for an older one.

use std::ops::{Index, IndexMut};

use haversack_model::{DiskId, DiskNo};

use crate::bugs::{Bug, planted};
use crate::config::MAX_DISKS;
use crate::disk::Disk;
use crate::table::Table;

/// See the module. Indexing is for disks that are known.
pub(crate) struct Disks {
    known: Table<DiskNo, Option<Disk>>,
    /// The generation of intent pages that a new disk with this number continues.
    intent_generations: Table<DiskNo, u64>,
}

impl Disks {
    pub fn new() -> Disks {
        Disks { known: Table::new(), intent_generations: Table::new() }
    }

    /// Adds the next number with the disk that the record says has it, and the generation of its intent
    /// pages.
    pub fn adopt(&mut self, disk: Option<Disk>, generation: u64) {
        self.known.push(disk);
        self.intent_generations.push(generation);
    }

    /// Returns the number that a new disk gets; `None` if the table is full.
    pub fn free_number(&self) -> Option<DiskNo> {
        let at = self.known.iter().position(Option::is_none).unwrap_or(self.known.len());
        (at < MAX_DISKS).then_some(DiskNo(at as u16))
    }

    /// Adds a disk under a number that [`Disks::free_number`] has returned.
    pub fn add(&mut self, number: DiskNo, mut disk: Disk) {
        if self.known.get(number).is_none() {
            self.adopt(None, 1);
        }
        if !planted(Bug::RestartIntents) {
            disk.intents.generation = self.intent_generations[number];
        }
        self.known[number] = Some(disk);
    }

    /// Removes a disk.
    pub fn remove(&mut self, number: DiskNo) {
        if let Some(disk) = self.known[number].take() {
            self.intent_generations[number] = disk.intents.generation;
        }
    }

    #[inline]
    pub fn get(&self, number: DiskNo) -> Option<&Disk> {
        self.known.get(number)?.as_ref()
    }

    #[inline]
    pub fn get_mut(&mut self, number: DiskNo) -> Option<&mut Disk> {
        self.known.get_mut(number)?.as_mut()
    }

    pub fn contains(&self, number: DiskNo) -> bool {
        self.get(number).is_some()
    }

    /// Returns the number of the disk with this identity.
    pub fn find(&self, id: DiskId) -> Option<DiskNo> {
        self.numbered().find(|(_, disk)| disk.id == id).map(|(number, _)| number)
    }

    /// Returns all disks.
    pub fn iter(&self) -> impl Iterator<Item = &Disk> {
        self.known.iter().flatten()
    }

    /// Returns all disks.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Disk> {
        self.known.iter_mut().flatten()
    }

    /// Returns all disks with their numbers, in order.
    pub fn numbered(&self) -> impl Iterator<Item = (DiskNo, &Disk)> {
        self.known
            .numbers()
            .zip(self.known.iter())
            .filter_map(|(number, disk)| Some((number, disk.as_ref()?)))
    }

    /// Returns the numbers of all disks, in order.
    pub fn numbers(&self) -> impl Iterator<Item = DiskNo> {
        self.numbered().map(|(number, _)| number)
    }

    /// Returns the numbers that disks may currently have, in order. The iterator borrows nothing, so disks can be
    /// changed or removed while it runs; check each number with [`Disks::contains`].
    pub fn places(&self) -> impl DoubleEndedIterator<Item = DiskNo> + use<> {
        self.known.numbers()
    }

    /// Returns the disk of each number, in order; `None` if the number is free.
    pub fn slots(&self) -> impl Iterator<Item = Option<&Disk>> {
        self.known.iter().map(Option::as_ref)
    }
}

impl Index<DiskNo> for Disks {
    type Output = Disk;

    #[inline]
    fn index(&self, number: DiskNo) -> &Disk {
        self.known[number].as_ref().expect("the disk is known")
    }
}

impl IndexMut<DiskNo> for Disks {
    #[inline]
    fn index_mut(&mut self, number: DiskNo) -> &mut Disk {
        self.known[number].as_mut().expect("the disk is known")
    }
}
