//! What a host answers when it is asked who owns a disk, and what other hosts conclude from the answer in a forced
//! takeover.
//!
//! Invariants
//! - A report that a disk was taken over is trusted only if it comes from a host that has, or had, the disk: other
//!   hosts may have recorded a takeover that failed later.
//! - A disk is never taken from a host that answers and has the disk, or has dirty blocks of it that are needed.

use haversack_core::bugs::{Bug, planted};
use haversack_core::{Damage, DiskInfo, Moved};
use haversack_model::HostId;
use haversack_ownership::least_forced_epoch;
use serde::{Deserialize, Serialize};

use crate::write_cache::ToldWriteCache;

/// What a host has on record of a disk. The default is a host that has nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct HostRecord {
    /// Who owns it, as far as that host knows.
    pub owner: KnownOwner,
    /// Its dirty blocks there.
    pub dirty_blocks: u64,
    /// Its write mode there, if it is attached.
    pub mode: Option<String>,
    /// That host is about to take it over by force.
    pub is_taking: bool,
    /// Whether the replica that it has of another host's blocks is complete, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub has_complete_replica: Option<bool>,
    /// Which replica that is, if it is complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replica: Option<ReplicaAge>,
    /// Dirty data of the disk is lost there, as far as is known.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_losses: bool,
    /// The epochs of former records there: an operator told the host to forget the disk, or the host has noted that
    /// another host takes the disk over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<KnownBefore>,
    /// Whether its guest had its write cache on when that host knew it last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_cache: Option<ToldWriteCache>,
}

/// Which of the replicas of a disk one is. An owner has one replica at a time, and starts another only when the last
/// one is not used any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ReplicaAge {
    /// The epoch of the owner that started it.
    pub epoch: u64,
    /// The start of the owner, and the count of its replicas since. Zeros if an earlier program recorded it.
    pub session: [u64; 2],
}

impl ReplicaAge {
    /// Whether it was certainly started after another one. Once it is complete, the other one is obsolete.
    pub fn is_later_than(self, other: ReplicaAge) -> bool {
        let is_known = self.session != [0; 2] && other.session != [0; 2];
        let is_later = self.epoch == other.epoch && is_known && self.session > other.session;
        self.epoch > other.epoch || is_later
    }
}

/// The epochs of a host's former records of a disk. They never decrease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct KnownBefore {
    /// The highest epoch.
    pub epoch: u64,
    /// The highest epoch under which the host itself had the disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub had: Option<u64>,
}

impl KnownBefore {
    /// Returns the epochs to remember of a record that is about to be overwritten, if the record says anything certain.
    pub fn of(owner: KnownOwner) -> Option<KnownBefore> {
        match owner {
            // The noted takeover may have failed.
            KnownOwner::Unknown | KnownOwner::Overtaken { .. } => None,
            _ => Some(KnownBefore { epoch: owner.epoch(), had: owner.held_under() }),
        }
    }

    /// Combines both: returns the higher epoch of each kind.
    #[must_use]
    pub fn and(self, other: KnownBefore) -> KnownBefore {
        KnownBefore { epoch: self.epoch.max(other.epoch), had: self.had.max(other.had) }
    }
}

impl HostRecord {
    /// Returns the highest epoch that the host knows, or knew before it was told to forget the disk.
    pub fn epoch(&self) -> u64 {
        self.owner.epoch().max(self.before.map_or(0, |before| before.epoch))
    }

    /// Returns the epoch under which the host has the disk, or had it last.
    pub fn held_under(&self) -> Option<u64> {
        self.owner.held_under().max(self.before.and_then(|before| before.had))
    }

    /// Returns that epoch if a host that knows the epoch `known` must record it, as [`is_news`] says. If the host was
    /// told to forget the disk, only an epoch that it took by force counts: a new disk may have the same identity.
    pub fn news(&self, is_void_under_any: bool, known: u64) -> Option<u64> {
        let has = self.owner.held_under().filter(|taken| is_news(is_void_under_any, known, *taken));
        let had = self.before.and_then(|before| before.had).filter(|taken| is_news(false, known, *taken));
        has.max(had)
    }
}

/// Who owns a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KnownOwner {
    /// Nothing is on record.
    #[default]
    Unknown,
    /// The host itself.
    Me {
        /// Under this epoch.
        epoch: u64,
    },
    /// Another one, to which it was released.
    Released {
        /// That host.
        to: u64,
        /// The epoch that it was granted.
        epoch: u64,
        /// The answering host never had the disk: it passed its grant on.
        passed_on: bool,
    },
    /// Another one, which has taken it by force.
    Overtaken {
        /// That host.
        by: u64,
        /// Under this epoch.
        epoch: u64,
    },
}

impl KnownOwner {
    /// Returns who owns a disk according to a pool's record of it.
    pub fn of(info: &DiskInfo) -> KnownOwner {
        let epoch = info.epoch;
        match info.moved {
            _ if info.owned => KnownOwner::Me { epoch },
            Moved::Away { to, holder } => {
                KnownOwner::Released { to: to.0, epoch, passed_on: holder.is_some() }
            }
            Moved::Peer { to } | Moved::Replica { of: to, .. } => {
                KnownOwner::Released { to: to.0, epoch, passed_on: false }
            }
            Moved::Overtaken { to } => KnownOwner::Overtaken { by: to.0, epoch },
            Moved::No | Moved::Depends { .. } | Moved::Replicates { .. } => KnownOwner::Unknown,
        }
    }

    /// Returns the highest epoch that is known.
    pub fn epoch(self) -> u64 {
        match self {
            KnownOwner::Unknown => 0,
            KnownOwner::Me { epoch }
            | KnownOwner::Released { epoch, .. }
            | KnownOwner::Overtaken { epoch, .. } => epoch,
        }
    }

    /// Returns the epoch under which the answering host has the disk, or last had it.
    pub fn held_under(self) -> Option<u64> {
        match self {
            KnownOwner::Me { epoch } => Some(epoch),
            // It had the disk before it let it go.
            KnownOwner::Released { epoch, passed_on: false, .. } => Some(epoch.saturating_sub(1)),
            KnownOwner::Released { passed_on: true, .. }
            | KnownOwner::Unknown
            | KnownOwner::Overtaken { .. } => None,
        }
    }

    /// Returns the host that, according to the answering host, has the disk or had it later, if that is under a higher
    /// epoch than `known`.
    pub fn lead(self, known: u64) -> Option<HostId> {
        match self {
            KnownOwner::Released { to: host, epoch, .. } | KnownOwner::Overtaken { by: host, epoch }
                if epoch > known =>
            {
                Some(HostId(host))
            }
            _ => None,
        }
    }

    /// Returns which other host was about to take the disk over, and under which epoch.
    pub fn rumour(self) -> Option<(HostId, u64)> {
        match self {
            KnownOwner::Overtaken { by, epoch } => Some((HostId(by), epoch)),
            _ => None,
        }
    }
}

/// Returns the highest epoch under which any host has the disk, or may have had it, according to the hosts that answer.
/// A takeover that a host has only noted counts, unless the host that began the takeover is `me` or answers as well:
/// then only what that host says of itself counts, since the takeover may have failed.
pub fn newest_epoch(me: HostId, answers: &[(HostId, HostRecord)]) -> u64 {
    answers.iter().map(|(_, record)| counted_epoch(me, answers, record)).max().unwrap_or(0)
}

fn counted_epoch(me: HostId, answers: &[(HostId, HostRecord)], record: &HostRecord) -> u64 {
    let has_answered = |host: HostId| host == me || answers.iter().any(|(answering, _)| *answering == host);
    let is_void = record.owner.rumour().is_some_and(|(by, _)| has_answered(by));
    if is_void { record.before.map_or(0, |before| before.epoch) } else { record.epoch() }
}

/// Another host's knowledge that a disk was taken over by force, or may have been.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaterTakeover {
    /// The host that knows of it.
    pub known_to: HostId,
    /// The host that has the disk, or may have it, if that is on record.
    pub by: Option<HostId>,
}

/// Returns who knows of a takeover of the disk by force since host `me` had it, or released it, under the epoch
/// `known`. Dirty blocks on host `me` would then replace newer data. Which answers count is as in [`newest_epoch`].
pub fn later_takeover(me: HostId, known: u64, answers: &[(HostId, HostRecord)]) -> Option<LaterTakeover> {
    let counted = |answer: &&(HostId, HostRecord)| counted_epoch(me, answers, &answer.1);
    let (known_to, record) = answers.iter().max_by_key(counted)?;
    let epoch = counted_epoch(me, answers, record);
    let by = record.owner.lead(known).filter(|by| *by != me && record.owner.epoch() == epoch);
    (epoch >= least_forced_epoch(known)).then_some(LaterTakeover { known_to: *known_to, by })
}

/// Whether a takeover by another host concerns a host with this record: the host owns the disk, or has blocks for its
/// owner.
pub fn is_concerned(info: &DiskInfo, dirty_blocks: u64) -> bool {
    let holds = matches!(info.moved, Moved::Peer { .. } | Moved::Replica { .. });
    info.owned || holds && dirty_blocks > 0
}

/// Whether a host with this record may note that another host takes the disk over. A replica does not prevent that if it
/// is of no use: it is incomplete, or the other host has a later complete one, `theirs`.
pub fn may_yield(info: &DiskInfo, dirty_blocks: u64, theirs: Option<ReplicaAge>) -> bool {
    let is_older =
        complete_replica(info).is_some_and(|mine| theirs.is_some_and(|theirs| theirs.is_later_than(mine)));
    !is_concerned(info, dirty_blocks)
        || has_complete_replica(info) == Some(false)
        || is_older
        || has_complete_replica(info).is_some() && planted(Bug::YieldReplica)
}

/// Whether everything that a host with this record has of the disk is void once another host has the disk under a
/// higher epoch. Blocks that the host keeps for the host to which it has released the disk are not void: if that host
/// has passed the disk on without taking it, the next owner needs them. A replica is void also if it has no blocks:
/// its owner may have forgotten the disk, and then nothing else ends it.
pub fn is_void_under_any(info: &DiskInfo, dirty_blocks: u64) -> bool {
    let is_kept = matches!(info.moved, Moved::Peer { .. }) && !planted(Bug::VoidKept);
    let is_replica = matches!(info.moved, Moved::Replica { .. });
    (is_concerned(info, dirty_blocks) || is_replica) && !is_kept
}

/// Whether a host that knows the epoch `known` must record that another host has, or had, the disk under the epoch
/// `taken`. A released disk gets higher epochs as it moves on; only an epoch taken by force voids the release.
/// `is_void_under_any` is the result of [`is_void_under_any`].
pub fn is_news(is_void_under_any: bool, known: u64, taken: u64) -> bool {
    let is_forced = taken >= least_forced_epoch(known);
    taken > known && (is_void_under_any || is_forced) && !planted(Bug::MissTakeover)
}

/// Whether a host with this record may take the disk over only if no other host has had it by force since: the host
/// owns the disk, or its dirty blocks would count as the newest ones.
pub fn relies_on_epoch(info: &DiskInfo, dirty_blocks: u64) -> bool {
    info.owned || matches!(info.moved, Moved::Peer { .. }) && dirty_blocks > 0
}

/// Whether the replica that a host with this record has of another host's blocks is complete, if it has one.
pub fn has_complete_replica(info: &DiskInfo) -> Option<bool> {
    match info.moved {
        Moved::Replica { is_complete, .. } => Some(is_complete && info.damage == Damage::None),
        _ => None,
    }
}

/// Returns which replica a host with this record has, if that is complete.
pub fn complete_replica(info: &DiskInfo) -> Option<ReplicaAge> {
    match info.moved {
        Moved::Replica { session, .. } if has_complete_replica(info) == Some(true) => {
            Some(ReplicaAge { epoch: info.epoch, session })
        }
        _ => None,
    }
}

/// Returns why a disk cannot be taken over if a host answers with this record, and what to do instead. `mine` is the
/// complete replica of the host that is to take the disk over.
pub fn objection(record: &HostRecord, mine: Option<ReplicaAge>) -> Option<(&'static str, &'static str)> {
    let take_over_there = "take it over there, then move it here with 'haversack migrate'";
    let is_older = record.replica.is_some_and(|theirs| mine.is_some_and(|mine| mine.is_later_than(theirs)));
    let is_later = record.replica.is_some_and(|theirs| mine.is_none_or(|mine| theirs.is_later_than(mine)));
    match record.owner {
        _ if record.is_taking => Some(("is taking it over as well", "wait for that")),
        KnownOwner::Me { .. } => Some(("has it", "move it from there with 'haversack migrate'")),
        // What is dirty there is obsolete.
        KnownOwner::Overtaken { .. } => None,
        _ if record.dirty_blocks == 0 || planted(Bug::TakeFromHolder) => None,
        _ => match record.has_complete_replica {
            // The replica was not finished, and cannot be used.
            Some(false) => None,
            Some(true) if is_older || planted(Bug::YieldReplica) => None,
            Some(true) if is_later || mine.is_none() => {
                Some(("has a complete replica of it", take_over_there))
            }
            Some(true) => Some((
                "has a complete replica of it, as this host has, and it is not known which of them was started later",
                "take it over on the host that had the replica last (with [cluster], 'haversack cluster status --disks' shows it), after 'haversack disk forget' on the other one",
            )),
            None => Some(("has dirty blocks of it", take_over_there)),
        },
    }
}

/// Returns why the owner of a disk, under the epoch `owned`, cannot give up the blocks of a dead host if a third host
/// answers with this record, and what to do instead. Blocks that the third host has from former owners do not matter.
pub fn objection_of_third(record: &HostRecord, owned: u64) -> Option<(&'static str, &'static str)> {
    if record.news(true, owned).is_some() {
        return Some(("has had it since", "see 'haversack migrate status' there"));
    }
    objection(record, None).filter(|_| record.is_taking)
}

/// Returns why host `me`, the owner of a disk, cannot give up the blocks that it needs from a host that answers with
/// this record, and what to do instead. A host that has released the disk to `me` sends it all blocks, even if none is
/// left: if it noted a takeover instead, and that failed, the owner would wait for it for ever. But lost blocks never
/// arrive.
pub fn objection_of_peer(record: &HostRecord, me: HostId) -> Option<(&'static str, &'static str)> {
    match record.owner {
        KnownOwner::Released { to, passed_on: false, .. }
            if to == me.0 && record.has_losses && !record.is_taking =>
        {
            None
        }
        KnownOwner::Released { to, passed_on: false, .. } if to == me.0 => Some((
            "is sending its blocks to this host",
            "wait until they have arrived, see 'haversack migrate status'; if that host goes away again, take the disk over then",
        )),
        _ => objection(record, None),
    }
}

#[cfg(test)]
mod tests {
    use haversack_model::{DiskId, WriteMode};
    use haversack_ownership::forced_epoch;

    use super::*;

    #[test]
    fn a_host_that_has_let_a_disk_go_had_it_before() {
        assert_eq!(KnownOwner::Unknown.held_under(), None);
        assert_eq!(KnownOwner::Me { epoch: 7 }.held_under(), Some(7));
        assert_eq!(KnownOwner::Released { to: 9, epoch: 7, passed_on: false }.held_under(), Some(6));
        assert_eq!(KnownOwner::Released { to: 9, epoch: 7, passed_on: true }.held_under(), None);
        assert_eq!(KnownOwner::Overtaken { by: 9, epoch: 7 }.held_under(), None);
    }

    #[test]
    fn what_was_known_before_counts() {
        let before = KnownBefore::of(KnownOwner::Me { epoch: 7 }).unwrap();
        let released = KnownBefore::of(KnownOwner::Released { to: 9, epoch: 9, passed_on: true }).unwrap();
        assert_eq!(before.and(released), KnownBefore { epoch: 9, had: Some(7) });
        assert_eq!(KnownBefore::of(KnownOwner::Overtaken { by: 2, epoch: 99 }), None, "that is a rumour");
        let record = HostRecord { before: Some(before), ..HostRecord::default() };
        assert_eq!((record.epoch(), record.held_under()), (7, Some(7)));
    }

    #[test]
    fn a_recreated_disk_is_not_taken_away_by_a_host_that_has_forgotten_the_old_one() {
        let forgotten = |had| {
            let before = Some(KnownBefore { epoch: had, had: Some(had) });
            HostRecord { before, ..HostRecord::default() }
        };
        assert_eq!(forgotten(10).news(true, 1), None);
        let forced = least_forced_epoch(1);
        assert_eq!(
            forgotten(forced).news(true, 1),
            Some(forced),
            "an owner that was dead learns of a takeover"
        );
        let has = HostRecord { owner: KnownOwner::Me { epoch: 10 }, ..forgotten(2) };
        assert_eq!((has.news(true, 1), has.news(true, 10), has.news(false, 1)), (Some(10), None, None));
    }

    #[test]
    fn a_take_over_counts_unless_the_host_that_began_it_denies_it() {
        let (me, beta, gamma) = (HostId(1), HostId(2), HostId(3));
        let record = |owner, before| HostRecord { owner, before, ..HostRecord::default() };
        let noted = |by: HostId| (gamma, record(KnownOwner::Overtaken { by: by.0, epoch: 99 }, None));
        let says = |owner| (beta, record(owner, None));
        let left = KnownOwner::Released { to: 9, epoch: 100, passed_on: false };
        let forgotten = Some(KnownBefore { epoch: 50, had: None });
        for (answers, expected) in [
            (vec![], 0),
            (vec![noted(beta)], 99),
            (vec![noted(me)], 0),
            (vec![noted(beta), says(KnownOwner::Unknown)], 0),
            (vec![noted(beta), says(KnownOwner::Me { epoch: 7 })], 7),
            (vec![noted(beta), says(left)], 100),
            (vec![(gamma, record(KnownOwner::Overtaken { by: 1, epoch: 99 }, forgotten))], 50),
        ] {
            assert_eq!(newest_epoch(me, &answers), expected, "{answers:?}");
        }
    }

    #[test]
    fn a_host_that_was_given_up_does_not_use_its_blocks_while_another_one_knows() {
        let (me, owner, third, known) = (HostId(1), HostId(2), HostId(3), 5);
        let epoch = forced_epoch(known, 1_700_000_000, owner);
        let record = |owner, before| HostRecord { owner, before, ..HostRecord::default() };
        let noted = |by: HostId, epoch| (third, record(KnownOwner::Overtaken { by: by.0, epoch }, None));
        let owns = |epoch| (owner, record(KnownOwner::Me { epoch }, None));
        let before = Some(KnownBefore { epoch, had: None });
        let left = |to: HostId| KnownOwner::Released { to: to.0, epoch: epoch + 1, passed_on: false };
        let known_to = |known_to, by| Some(LaterTakeover { known_to, by });
        for (answers, expected) in [
            (vec![], None),
            (vec![noted(owner, epoch)], known_to(third, Some(owner))),
            (vec![noted(me, epoch)], None),
            (vec![noted(owner, known + 1)], None),
            (vec![noted(owner, epoch), owns(known)], None),
            (vec![noted(owner, epoch), owns(epoch)], known_to(owner, None)),
            (vec![(third, record(KnownOwner::Unknown, before))], known_to(third, None)),
            (
                vec![noted(me, epoch), (owner, record(left(HostId(4)), None))],
                known_to(owner, Some(HostId(4))),
            ),
            (vec![(third, record(left(me), None))], known_to(third, None)),
        ] {
            assert_eq!(later_takeover(me, known, &answers), expected, "{answers:?}");
        }
    }

    #[test]
    fn what_former_owners_have_left_on_a_third_host_does_not_keep_an_owner_from_giving_up_a_dead_one() {
        let owned = 5;
        let says =
            |owner, is_taking| HostRecord { owner, dirty_blocks: 7, is_taking, ..HostRecord::default() };
        let left = |epoch| KnownOwner::Released { to: 9, epoch, passed_on: false };
        for harmless in [KnownOwner::Me { epoch: 4 }, left(4), KnownOwner::Overtaken { by: 2, epoch: 99 }] {
            assert_eq!(objection_of_third(&says(harmless, false), owned), None, "{harmless:?}");
        }
        for newer in [KnownOwner::Me { epoch: 6 }, left(7)] {
            assert!(objection_of_third(&says(newer, false), owned).is_some(), "{newer:?}");
        }
        assert!(objection_of_third(&says(left(4), true), owned).is_some(), "it is taking the disk over");
    }

    #[test]
    fn a_host_that_is_back_is_not_given_up_while_it_is_the_peer() {
        let me = HostId(2);
        let says = |owner, dirty_blocks| HostRecord { owner, dirty_blocks, ..HostRecord::default() };
        let released = |to| KnownOwner::Released { to, epoch: 3, passed_on: false };
        for dirty_blocks in [0, 7] {
            assert!(objection_of_peer(&says(released(2), dirty_blocks), me).is_some(), "{dirty_blocks}");
        }
        let with_losses = |to| HostRecord { has_losses: true, ..says(released(to), 7) };
        assert_eq!(objection_of_peer(&with_losses(2), me), None, "what is lost there never comes");
        assert!(objection_of_peer(&with_losses(9), me).is_some(), "it has blocks for another host");
        for empty in [KnownOwner::Unknown, KnownOwner::Overtaken { by: 2, epoch: 99 }, released(9)] {
            assert_eq!(objection_of_peer(&says(empty, 0), me), None, "{empty:?}");
        }
    }

    #[test]
    fn a_lead_goes_to_a_later_host_only() {
        let released = KnownOwner::Released { to: 9, epoch: 7, passed_on: false };
        assert_eq!((released.lead(6), released.lead(7)), (Some(HostId(9)), None));
        assert_eq!(KnownOwner::Overtaken { by: 2, epoch: 7 }.lead(3), Some(HostId(2)));
        assert_eq!((KnownOwner::Me { epoch: 7 }.lead(1), KnownOwner::Unknown.lead(0)), (None, None));
    }

    #[test]
    fn a_host_that_has_released_a_disk_is_told_of_a_take_over_but_not_of_moves() {
        assert!(is_news(true, 5, 6) && !is_news(true, 5, 5));
        assert!(!is_news(false, 5, 6), "it has moved on");
        assert!(
            is_news(false, 5, least_forced_epoch(5))
                && is_news(false, 5, forced_epoch(3, 1_700_000_000, HostId(1)))
        );
    }

    #[test]
    fn a_host_that_answers_and_has_nothing_is_no_objection() {
        let answer = |owner, dirty_blocks, is_taking| {
            let record = HostRecord { owner, dirty_blocks, is_taking, ..HostRecord::default() };
            objection(&record, None)
        };
        let (released, overtaken) = (
            KnownOwner::Released { to: 2, epoch: 3, passed_on: false },
            KnownOwner::Overtaken { by: 2, epoch: 3 },
        );
        for owner in [KnownOwner::Unknown, released, overtaken] {
            assert_eq!(answer(owner, 0, false), None, "{owner:?}");
            assert!(answer(owner, 0, true).is_some(), "{owner:?}");
        }
        assert!(answer(KnownOwner::Me { epoch: 3 }, 0, false).is_some());
        assert!(answer(released, 1, false).is_some() && answer(KnownOwner::Unknown, 1, false).is_some());
        assert_eq!(answer(overtaken, 1, false), None, "what is dirty there is obsolete");
    }

    #[test]
    fn only_a_host_with_the_latest_complete_replica_is_the_one_to_go_to() {
        let age = |epoch, start, count| ReplicaAge { epoch, session: [start, count] };
        let answer = |complete, replica: Option<ReplicaAge>, mine| {
            let record = HostRecord {
                owner: KnownOwner::Released { to: 2, epoch: 3, passed_on: false },
                dirty_blocks: 1,
                has_complete_replica: Some(complete),
                replica,
                ..HostRecord::default()
            };
            objection(&record, mine)
        };
        let theirs = age(3, 5, 2);
        let (what, hint) = answer(true, Some(theirs), None).unwrap();
        assert!(what.contains("complete replica") && hint.contains("there, then"));
        assert_eq!(answer(false, None, None), None);
        for later in [age(3, 5, 3), age(3, 6, 1), age(4, 1, 1), age(4, 0, 0)] {
            assert_eq!(answer(true, Some(theirs), Some(later)), None, "{later:?}");
            let (_, hint) = answer(true, Some(later), Some(theirs)).unwrap();
            assert!(hint.contains("there, then"), "{later:?}");
        }
        for unknown in [Some(age(3, 0, 0)), None] {
            let (what, hint) = answer(true, unknown, Some(theirs)).unwrap();
            assert!(what.contains("not known") && hint.contains("forget"), "{unknown:?}");
        }
    }

    #[test]
    fn only_a_host_with_an_older_replica_yields_to_one_with_a_complete_replica() {
        let disk = DiskInfo {
            id: DiskId([1; 16]),
            sectors: 8,
            phase: 0,
            mode: WriteMode::WriteBack,
            writes_through: false,
            attached: false,
            owned: false,
            epoch: 3,
            damage: Damage::None,
            moved: Moved::No,
            busy: false,
            left_clean: false,
        };
        let info = |session, is_complete| {
            let moved = Moved::Replica { of: HostId(2), session, is_complete };
            DiskInfo { moved, ..disk }
        };
        let theirs = Some(ReplicaAge { epoch: 3, session: [5, 2] });
        assert!(may_yield(&info([5, 1], true), 1, theirs));
        assert!(may_yield(&info([5, 3], false), 1, theirs), "it is of no use");
        for kept in [info([5, 3], true), info([0, 0], true)] {
            assert!(!may_yield(&kept, 1, theirs), "{:?}", kept.moved);
        }
        assert!(!may_yield(&info([5, 1], true), 1, None));
    }
}
