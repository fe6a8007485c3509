//! The directory of a cluster as a witness of who had a disk.
//!
//! The owner of a disk publishes its epoch there once its record is durable. So an entry is proof that its host has had
//! the disk under its epoch, however old the entry is, and whatever has happened since. An entry that is missing, or
//! older than what other hosts know, proves nothing.
//!
//! Only an epoch that was taken by force counts, as for a host that was told to forget the disk ([`HostRecord::news`]):
//! a new disk with the same identity begins with a low epoch, while the directory may still have the entry of the old
//! disk. Only a takeover by force can go unnoticed: when a disk moves by agreement, the former owner has a record of
//! that.
//!
//! [`HostRecord::news`]: crate::HostRecord::news

use crate::known::{KnownBefore, is_news};

/// What a host must do when it reads another host's entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Heed {
    /// Durably remember that the disk was owned under this epoch: the host neither takes nor passes on a grant of this
    /// epoch or a lower one.
    pub floor: Option<KnownBefore>,
    /// Record that the disk was taken over, as if the entry's host had said so.
    pub is_overtaken: bool,
}

/// Returns what a host must do if, according to the directory, another host has had a disk under the epoch `taken`.
/// `before` is what the host remembers apart from its record of the disk. `recorded` is the epoch of that record, if
/// there is one.
pub fn heed(taken: u64, before: Option<KnownBefore>, recorded: Option<u64>) -> Heed {
    let known = before.map_or(0, |before| before.epoch);
    let floor = is_news(false, known, taken).then_some(KnownBefore { epoch: taken, had: None });
    Heed { floor, is_overtaken: recorded.is_some_and(|recorded| is_news(false, recorded, taken)) }
}

#[cfg(test)]
mod tests {
    use haversack_ownership::{forced_epoch, least_forced_epoch};

    use super::*;
    use crate::HostId;

    #[test]
    fn only_an_epoch_that_was_taken_by_force_counts() {
        let forced = forced_epoch(7, 1_700_000_000, HostId(1));
        let floor = Some(KnownBefore { epoch: forced, had: None });
        assert_eq!(heed(forced, None, Some(7)), Heed { floor, is_overtaken: true });
        assert_eq!(heed(forced, None, None), Heed { floor, is_overtaken: false }, "nothing is on record");
        assert_eq!(heed(8, None, Some(7)), Heed::default(), "the disk may have been created again here");
        assert_eq!(heed(8, None, None), Heed::default());
        let made_anew = Some(1);
        assert!(heed(least_forced_epoch(1), None, made_anew).is_overtaken);
    }

    #[test]
    fn what_is_known_already_changes_nothing() {
        let forced = forced_epoch(7, 1_700_000_000, HostId(1));
        let known = |epoch| Some(KnownBefore { epoch, had: Some(epoch) });
        assert_eq!(heed(forced, known(forced), Some(forced)), Heed::default());
        // The disk has moved on by agreement since.
        assert_eq!(heed(forced + 3, known(forced), Some(forced)), Heed::default());
        assert_eq!(heed(forced, known(forced + 3), Some(forced + 3)), Heed::default());
        // It was taken over again.
        let later = forced_epoch(forced, 1_700_000_001, HostId(2));
        let heeded = heed(later, known(forced), Some(forced));
        assert_eq!(heeded, Heed { floor: Some(KnownBefore { epoch: later, had: None }), is_overtaken: true });
    }
}
