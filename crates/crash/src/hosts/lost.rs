//! Sectors of a disk that are lost: only a dead host had them, and the operator has not accepted that. Reads of them
//! fail until they are written again.
//!
//! Invariants
//! - A sector that was lost stays listed until a write of it is durable: a power cut may undo the write.

use std::collections::{BTreeMap, BTreeSet};

use crate::oracle::Tick;

/// What is known of a sector that was lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// It is lost.
    Lost,
    /// The host has been restarted since. It may have forgotten the loss: the operator has accepted that.
    Unknown,
    /// A write of it has begun, and may have failed.
    Rewritten,
    /// A write of it was acknowledged at this time.
    Written(Tick),
}

/// How a read may end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Readable {
    /// It succeeds.
    Yes,
    /// It succeeds, or fails with the error that data is lost.
    Perhaps,
    /// It fails with that error.
    No,
}

/// See the module documentation.
#[derive(Default)]
pub struct Lost {
    sectors: BTreeMap<u64, State>,
}

impl Lost {
    /// Notes that sectors are lost.
    pub fn add(&mut self, sectors: &BTreeSet<u64>) {
        self.sectors.extend(sectors.iter().map(|sector| (*sector, State::Lost)));
    }

    /// Notes that sectors may be lost. The host knows whether they are.
    pub fn suspect(&mut self, sectors: &BTreeSet<u64>) {
        self.sectors.extend(sectors.iter().map(|sector| (*sector, State::Unknown)));
    }

    /// Nothing is lost any more: another host has the disk, or the loss was accepted.
    pub fn clear(&mut self) {
        self.sectors.clear();
    }

    /// Whether no sector is lost, and no power cut can make a sector lost again.
    pub fn is_empty(&self) -> bool {
        self.sectors.is_empty()
    }

    /// Returns a sector that may be lost.
    pub fn first(&self) -> Option<u64> {
        let is_lost = |(_, state): &(&u64, &State)| !matches!(state, State::Written(_));
        self.sectors.iter().find(is_lost).map(|(sector, _)| *sector)
    }

    /// A write has begun.
    pub fn begin_write(&mut self, first: u64, sectors: u32) {
        for (_, state) in self.sectors.range_mut(first..first + u64::from(sectors)) {
            if !matches!(state, State::Written(_)) {
                *state = State::Rewritten;
            }
        }
    }

    /// A write was acknowledged at that time.
    pub fn end_write(&mut self, first: u64, sectors: u32, is_durable: bool, now: Tick) {
        let written = first..first + u64::from(sectors);
        if is_durable {
            self.sectors.retain(|sector, _| !written.contains(sector));
        } else {
            self.sectors.range_mut(written).for_each(|(_, state)| *state = State::Written(now));
        }
    }

    /// A flush was acknowledged that began at that time.
    pub fn end_flush(&mut self, start: Tick) {
        self.sectors.retain(|_, state| !matches!(state, State::Written(at) if *at < start));
    }

    /// The host that has the disk has died, or has lost power.
    pub fn crash(&mut self, power: bool) {
        for state in self.sectors.values_mut().filter(|state| power || !matches!(state, State::Written(_))) {
            *state = State::Unknown;
        }
    }

    /// The host has attached the disk again, and says which sectors are lost.
    ///
    /// # Errors
    /// A sector that was never lost, or that was written durably since.
    pub fn found(&mut self, lost: &BTreeSet<u64>) -> Result<(), u64> {
        if let Some(sector) = lost.iter().find(|sector| !self.sectors.contains_key(sector)) {
            return Err(*sector);
        }
        self.sectors.retain(|sector, state| *state != State::Unknown || lost.contains(sector));
        for state in self.sectors.values_mut().filter(|state| **state == State::Unknown) {
            *state = State::Lost;
        }
        Ok(())
    }

    /// Returns how a read may end.
    pub fn readable(&self, first: u64, sectors: u32) -> Readable {
        let mut readable = Readable::Yes;
        for (_, state) in self.sectors.range(first..first + u64::from(sectors)) {
            match state {
                State::Lost => return Readable::No,
                State::Unknown | State::Rewritten => readable = Readable::Perhaps,
                State::Written(_) => {}
            }
        }
        readable
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_sector_fails_until_it_is_written_and_a_power_cut_may_undo_that() {
        let mut lost = Lost::default();
        lost.add(&BTreeSet::from([3, 4]));
        assert_eq!(lost.readable(0, 4), Readable::No);
        assert_eq!(lost.readable(5, 4), Readable::Yes);
        lost.begin_write(3, 1);
        assert_eq!((lost.readable(3, 1), lost.readable(3, 2)), (Readable::Perhaps, Readable::No));
        lost.end_write(3, 1, false, 7);
        assert_eq!(lost.readable(3, 1), Readable::Yes);
        lost.crash(true);
        assert_eq!(lost.readable(3, 1), Readable::Perhaps);
        assert_eq!(lost.found(&BTreeSet::from([3])), Ok(()));
        assert_eq!((lost.readable(3, 1), lost.readable(4, 1)), (Readable::No, Readable::Yes));
    }

    #[test]
    fn what_was_flushed_is_never_lost_again() {
        let mut lost = Lost::default();
        lost.add(&BTreeSet::from([3]));
        lost.begin_write(3, 1);
        lost.end_write(3, 1, false, 7);
        lost.end_flush(7);
        assert!(!lost.is_empty());
        lost.end_flush(8);
        assert!(lost.is_empty());
        assert_eq!(lost.found(&BTreeSet::from([3])), Err(3));
    }
}
