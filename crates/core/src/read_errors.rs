//! Failed reads of a cache device: decides when there are too many to keep using it.
//!
//! A place that fails repeatedly counts once: one bad block must not cost a device, and with it every dirty
//! block that has no mirrored copy. Old errors are forgotten: a device that loses a block a year is a good one.

use haversack_model::Micros;

use crate::store::slot::SlotNo;

/// Places of a device where reads recently failed.
#[derive(Default)]
pub(crate) struct ReadErrors {
    /// Each place, and when a read of it last failed.
    places: Vec<(SlotNo, Micros)>,
}

impl ReadErrors {
    /// Records a failed read at a place. Returns true when at least `limit` places have failed within the window.
    pub fn note(&mut self, place: SlotNo, now: Micros, window_us: Micros, limit: u32) -> bool {
        self.places.retain(|(other, when)| *other != place && *when + window_us > now);
        self.places.push((place, now));
        self.places.len() >= limit as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_count_once_and_for_a_while() {
        let mut errors = ReadErrors::default();
        for now in 0..100 {
            assert!(!errors.note(SlotNo(7), now, 1000, 3));
        }
        assert!(!errors.note(SlotNo(8), 1050, 1000, 3));
        assert!(!errors.note(SlotNo(9), 1100, 1000, 3), "the first is forgotten");
        assert!(errors.note(SlotNo(10), 1101, 1000, 3));
    }
}
