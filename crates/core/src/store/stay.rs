//! How long blocks stay after their last use: the characteristic time of the cache, which admission uses.
//!
//! Time is counted in accesses of the pool. A hash sample of the blocks is remembered with the time of their
//! last use. When one of them is evicted, its age is recorded; the mean over the last evictions is how long a
//! block stays. While nothing is evicted, blocks stay at least for the time since the last eviction. Blocks
//! on probation are evicted sooner, and count only if hardly any others are left. Disks that share the pool
//! have one such time together; every other disk has its own.
//!
//! The price of space is the saving that evicted blocks would have brought. A sampled block that is used
//! again soon after its eviction, within a quarter of the time that blocks stay, would have been a hit with
//! that much more space. The savings of such hits, for each eviction and a whole stay, are the amount that a
//! block must save to be worth its space. The savings that rejected or evicted blocks would have brought also
//! determine how strict admission should be ([`super::strictness`]), and, beside what blocks saved that the main
//! hand spared, how fast hits are forgotten ([`super::aging`]).
//!
//! Invariants
//! - Nothing is known before the first evictions, unless it was learned before a restart and the pool is
//!   full. Until the pool is full, blocks stay forever.

use haversack_model::{BlockNo, DiskNo};

use super::aging::{Aging, Savings};
use super::segment::SegmentNo;
use super::slot::SlotNo;
use super::strictness::{Gone, Strictness, WITHIN};
use super::{Store, hash};
use crate::format::codec::{Reader, Writer};

/// Blocks that are remembered.
const REMEMBERED: usize = 1 << 16;
/// The sample is so small that all its blocks in the cache take one of this many places.
const PLACES_EACH: usize = 2;
/// The mean covers about this many evictions.
const MEAN_OVER: u64 = 128;

/// Number of evictions needed for a first mean.
const LEAST_COUNTED: u64 = 16;

/// Time after an eviction in which a use counts for the price of space, as a share of a stay.
const LONGER: f64 = 0.25;
/// The price of space covers about this many evictions.
const PRICE_OVER: f32 = 512.0;
/// The mean length of a round covers about this many sweeps.
const ROUND_OVER: f64 = 64.0;

/// Bytes of the last use of a block in a checkpoint.
pub(super) const USE_BYTES: usize = 24;

/// The time of a block's last use; or of its rejection or eviction, if that was later.
#[derive(Clone, Copy, PartialEq, Default)]
pub(super) struct Use {
    hash: u64,
    /// The time, with one of the flags if the block is gone.
    at: u64,
    /// When the main hand spared the block since then, or 0.
    spared_at: u64,
}

const EVICTED: u64 = 1 << 63;
const KEPT_OUT: u64 = 1 << 62;
const TIME: u64 = KEPT_OUT - 1;

impl Use {
    /// Returns it as a checkpoint has it.
    pub(super) fn bytes(&self) -> [u8; USE_BYTES] {
        let mut bytes = [0; USE_BYTES];
        for (place, word) in bytes.as_chunks_mut().0.iter_mut().zip([self.hash, self.at, self.spared_at]) {
            *place = word.to_le_bytes();
        }
        bytes
    }

    fn of(bytes: &[u8; USE_BYTES]) -> Use {
        let word = |at: usize| u64::from_le_bytes(bytes.as_chunks().0[at]);
        Use { hash: word(0), at: word(1), spared_at: word(2) }
    }

    /// Returns why and since when the block is gone, if it is.
    fn gone(&self) -> Option<(Gone, u64)> {
        let why = match self.at & !TIME {
            0 => return None,
            EVICTED => Gone::Evicted,
            _ => Gone::KeptOut,
        };
        Some((why, self.at & TIME))
    }
}

/// The information returned for an access.
pub struct Noted {
    /// The time, in accesses of the pool.
    pub now: u64,
    /// How long a block of the disk stays, if it is known.
    pub stay: Option<u64>,
    /// The amount that a block must save to stay for that time, in microseconds.
    pub space_us: f32,
    /// The factor for the bounds of admission.
    pub strictness: f32,
}

/// Last uses of sampled blocks.
pub(super) struct LastUses {
    /// Accesses of the pool so far.
    clock: u64,
    /// A block is in the sample if these bits of its hash are 0.
    sampled: u64,
    /// Empty until a disk needs them.
    uses: Vec<Use>,
}

impl LastUses {
    pub(super) fn new() -> LastUses {
        LastUses { clock: 0, sampled: 0, uses: Vec::new() }
    }

    /// Adapts the sample to a pool of this many blocks.
    pub(super) fn resize(&mut self, blocks: usize) {
        let one_in = (blocks * PLACES_EACH / REMEMBERED).max(1).next_power_of_two();
        self.sampled = one_in as u64 - 1;
    }

    pub(super) fn bytes(&self) -> usize {
        self.uses.capacity() * size_of::<Use>()
    }

    /// Returns the time in accesses of the pool, and the last uses.
    pub(super) fn all(&self) -> (u64, &[Use]) {
        (self.clock, &self.uses)
    }

    /// Continues from a time.
    pub(super) fn resume(&mut self, clock: u64) {
        self.clock = clock;
    }

    /// Fills part of the last uses, from the index `at` on. Returns false if there is no such part.
    pub(super) fn fill(&mut self, at: usize, from: &[[u8; USE_BYTES]]) -> bool {
        if self.uses.is_empty() {
            self.uses = vec![Use::default(); REMEMBERED];
        }
        let Some(to) = self.uses.get_mut(at..).and_then(|to| to.get_mut(..from.len())) else { return false };
        to.iter_mut().zip(from).for_each(|(to, bytes)| *to = Use::of(bytes));
        true
    }

    fn place(&self, hash: u64) -> Option<usize> {
        (hash & self.sampled == 0).then_some((hash >> 40) as usize % REMEMBERED)
    }
}

/// The mean age of evicted blocks.
#[derive(Default)]
pub(super) struct Stay {
    mean: f64,
    counted: u64,
    evicted_at: u64,
    /// The savings that evicted blocks would have brought by staying longer, per eviction.
    regret_us: f32,
    strictness: Strictness,
    /// The mean time between two sweeps of a segment: a round of the main hand.
    round: f64,
    /// Sampled blocks that were evicted, and what they would have saved within a round.
    evicted: Savings,
}

impl Stay {
    fn add(&mut self, age: u64) {
        self.counted += 1;
        self.mean += (age as f64 - self.mean) / self.counted.min(MEAN_OVER) as f64;
        self.regret_us -= self.regret_us / PRICE_OVER;
    }

    /// Notes that a block that has been gone for this long is used again.
    fn used_again(&mut self, why: Gone, gone_for: u64, saved_us: f32) {
        let is_within = |share: f64| gone_for as f64 <= self.mean * share;
        if why == Gone::Evicted && is_within(LONGER) {
            self.regret_us += saved_us / PRICE_OVER;
        }
        if is_within(WITHIN) {
            self.strictness.used_again(why, saved_us);
        }
        if why == Gone::Evicted && gone_for as f64 <= self.round {
            self.evicted.used(saved_us);
        }
    }

    /// Writes it for a checkpoint.
    pub(super) fn put(&self, w: &mut Writer) {
        w.u64(self.mean.to_bits()).u64(self.counted).u64(self.evicted_at).u32(self.regret_us.to_bits());
        w.u64(self.round.to_bits());
        self.strictness.put(w);
        self.evicted.put(w);
    }

    /// Reads what [`Stay::put`] wrote. `now` is the time in accesses of the pool.
    pub(super) fn take(r: &mut Reader<'_>, now: u64) -> Option<Stay> {
        let (mean, counted, evicted_at) = (f64::from_bits(r.u64()?), r.u64()?, r.u64()?);
        let (regret_us, round) = (f32::from_bits(r.u32()?), f64::from_bits(r.u64()?));
        let (strictness, evicted) = (Strictness::take(r)?, Savings::take(r)?);
        (evicted_at <= now).then_some(Stay {
            mean,
            counted,
            evicted_at,
            regret_us,
            strictness,
            round,
            evicted,
        })
    }

    fn space_us(&self) -> f32 {
        self.regret_us / LONGER as f32
    }

    fn at(&self, now: u64) -> Option<u64> {
        (self.counted >= LEAST_COUNTED).then(|| (self.mean as u64).max(now - self.evicted_at).max(1))
    }
}

/// How long blocks stay, as bytes: the mean in accesses of the pool (f64), the savings that evicted blocks
/// would have brought (f32), the number of evictions in the mean (u8), the share of the disk's blocks that are
/// counted down, in 255ths (u8; 0 if it is not known), and how strict admission is, in ten-thousandths (u16; 0 if
/// it is not known), little-endian.
pub const STAY_BYTES: usize = 16;

impl Store {
    /// Returns the time in accesses of the pool.
    pub fn clock(&self) -> u64 {
        self.last_uses.clock
    }

    /// Returns how long the blocks of a disk stay, to continue from after a restart.
    pub fn saved_stay(&self, disk: DiskNo) -> [u8; STAY_BYTES] {
        let space = &self.disks[disk];
        let stay = if space.shares { &self.common.stay } else { &space.stay };
        let mut bytes = [0; STAY_BYTES];
        // If nothing was evicted for a while, the stay is longer than the mean.
        let stays = stay.at(self.last_uses.clock).map_or(stay.mean, |stays| stay.mean.max(stays as f64));
        bytes[..8].copy_from_slice(&stays.to_le_bytes());
        bytes[8..12].copy_from_slice(&stay.regret_us.to_le_bytes());
        bytes[12] = stay.counted.min(MEAN_OVER) as u8;
        bytes[13] = space.aging.map_or(0, |aging| aging.saved());
        let strictness = (stay.strictness.factor() * 10_000.0).round() as u16;
        bytes[14..].copy_from_slice(&strictness.to_le_bytes());
        bytes
    }

    /// Continues from that state, if nothing is known yet and the pool is full. While the pool is not full,
    /// blocks stay forever.
    pub fn resume_stay(&mut self, disk: DiskNo, saved: &[u8; STAY_BYTES]) {
        let mean = f64::from_le_bytes(saved[..8].try_into().expect("it has 16 bytes"));
        let regret_us = f32::from_le_bytes(saved[8..12].try_into().expect("it has 16 bytes"));
        let (counted, aging) = (saved[12], Aging::resumed(saved[13]));
        let strictness = match u16::from_le_bytes([saved[14], saved[15]]) {
            0 => Strictness::default(),
            factor => Strictness::new(f32::from(factor) / 10_000.0),
        };
        let is_valid = mean.is_finite() && mean >= 0.0 && regret_us.is_finite() && regret_us >= 0.0;
        let is_full = self.free_segments(None) == 0 && self.unprepared_segments(None) == 0;
        let evicted_at = self.last_uses.clock;
        if is_full {
            self.disks[disk].aging = Some(aging);
        }
        let stay = self.stay(disk);
        if is_valid && is_full && stay.counted == 0 {
            let counted = u64::from(counted).min(MEAN_OVER);
            *stay = Stay { mean, counted, evicted_at, regret_us, strictness, ..Stay::default() };
        }
    }

    /// Notes an access to a block, cached or not, with its saving if it is a hit.
    #[inline]
    pub fn note_use(&mut self, disk: DiskNo, block: BlockNo, saved_us: f32) -> Noted {
        let last = &mut self.last_uses;
        last.clock += 1;
        let hash = hash(disk, block);
        let (mut gone, mut spared_at) = (None, None);
        if let Some(place) = last.place(hash) {
            if last.uses.is_empty() {
                last.uses = vec![Use::default(); REMEMBERED];
            }
            let used = Use { hash, at: last.clock, spared_at: 0 };
            let before = Some(std::mem::replace(&mut last.uses[place], used)).filter(|b| b.hash == hash);
            gone = before.and_then(|before| before.gone());
            spared_at = before.map(|before| before.spared_at).filter(|at| *at > 0);
        }
        let now = last.clock;
        let stay = self.stay(disk);
        if let Some((why, at)) = gone {
            stay.used_again(why, now - at, saved_us);
        }
        let (round, strictness) = (stay.round as u64, stay.strictness.factor());
        let noted = Noted { now, stay: stay.at(now), space_us: stay.space_us(), strictness };
        self.disks[disk].aging.get_or_insert_default();
        if let Some(at) = spared_at {
            self.count_spared(disk, if now - at <= round { saved_us } else { 0.0 });
        }
        noted
    }

    fn stay(&mut self, disk: DiskNo) -> &mut Stay {
        let space = &mut self.disks[disk];
        if space.shares { &mut self.common.stay } else { &mut space.stay }
    }

    /// Notes that a block is evicted for others.
    pub(super) fn note_eviction(&mut self, number: SlotNo) {
        if self.last_uses.uses.is_empty() {
            return;
        }
        let (disk, block) = (self.owner_of(number), self.slot(number).block());
        let (hash, now) = (hash(disk, block), self.last_uses.clock);
        let used = self.last_uses.place(hash).map(|place| &mut self.last_uses.uses[place]);
        let is_known = |used: &&mut Use| used.hash == hash && used.at > 0 && used.gone().is_none();
        let known = used.filter(is_known).map(|used| {
            let (age, was_spared) = (now - used.at, used.spared_at > 0);
            (used.at, used.spared_at) = (now | EVICTED, 0);
            (age, was_spared)
        });
        let stay = self.stay(disk);
        stay.evicted_at = now;
        if let Some((age, was_spared)) = known {
            stay.add(age);
            stay.strictness.gone(Gone::Evicted);
            if stay.round > 0.0 {
                stay.evicted.evicted();
            }
            if was_spared {
                self.count_spared(disk, 0.0);
            }
        }
    }

    /// Counts a spared block with what it saved within a round.
    fn count_spared(&mut self, disk: DiskNo, saved_us: f32) {
        let evicted = self.stay(disk).evicted;
        if let Some(aging) = &mut self.disks[disk].aging {
            aging.spared(saved_us, &evicted);
        }
    }

    /// Forgets how fast the hits of a disk's blocks are forgotten: its last uses are no longer noted.
    pub fn stop_aging(&mut self, disk: DiskNo) {
        self.disks[disk].aging = None;
    }

    /// Notes that the main hand begins to sweep a segment; returns when it swept it before, or 0.
    pub(super) fn note_sweep(&mut self, segment: SegmentNo) -> u64 {
        let now = self.last_uses.clock;
        let before = std::mem::replace(&mut self.swept[segment], now);
        if before > 0 {
            let stay = self.stay(DiskNo(self.segments[segment].owner));
            let took = (now - before) as f64;
            stay.round += (took - stay.round) / if stay.round > 0.0 { ROUND_OVER } else { 1.0 };
        }
        before
    }

    /// Returns the hits that a block has left after the sweep of its segment, which was swept before at
    /// `swept_before`.
    pub(super) fn hits_left(&mut self, number: SlotNo, hits: u8, swept_before: u64) -> u8 {
        let (disk, block) = (self.owner_of(number), self.slot(number).block());
        let (hash, now) = (hash(disk, block), self.last_uses.clock);
        let Some(aging) = &self.disks[disk].aging else { return hits.saturating_sub(1) };
        let left = aging.hits_left(disk, block, hits);
        let used = self.last_uses.place(hash).and_then(|place| self.last_uses.uses.get_mut(place));
        let is_unused =
            |used: &&mut Use| used.hash == hash && used.gone().is_none() && used.at < swept_before;
        if let Some(used) = used.filter(is_unused)
            && std::mem::replace(&mut used.spared_at, now) > 0
        {
            self.count_spared(disk, 0.0);
        }
        left
    }

    /// Notes that admission rejects a block whose use was just noted.
    pub fn note_kept_out(&mut self, disk: DiskNo, block: BlockNo) {
        let hash = hash(disk, block);
        let Some(place) = self.last_uses.place(hash) else { return };
        let Some(used) = self.last_uses.uses.get_mut(place).filter(|used| used.hash == hash) else { return };
        used.at = (used.at & TIME) | KEPT_OUT;
        self.stay(disk).strictness.gone(Gone::KeptOut);
    }

    /// Makes sure that a block is protected when it comes in.
    pub fn protect_in_advance(&mut self, disk: DiskNo, block: BlockNo) {
        self.remember(disk, block);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stay_is_the_mean_age_or_the_time_without_evictions() {
        let mut stay = Stay::default();
        for age in 0..15 {
            stay.add(age);
            assert_eq!(stay.at(100), None);
        }
        stay.add(15);
        stay.evicted_at = 100;
        assert_eq!((stay.at(100), stay.at(107), stay.at(108)), (Some(7), Some(7), Some(8)));
        (0..MEAN_OVER * 10).for_each(|_| stay.add(1000));
        assert!((999..=1000).contains(&stay.at(100).expect("known")), "{:?}", stay.at(100));
    }

    #[test]
    fn the_price_of_space_is_what_a_longer_stay_would_have_saved() {
        let mut stay = Stay::default();
        (0..512).for_each(|_| stay.add(1000));
        assert_eq!(stay.space_us(), 0.0, "nothing that was evicted is used again");
        // Of four evicted blocks one is used again within a quarter of a stay, so that it would have saved 800 us: a
        // whole stay would save four times as much.
        for _ in 0..5000 {
            (0..4).for_each(|_| stay.add(1000));
            stay.used_again(Gone::Evicted, 250, 800.0);
            stay.used_again(Gone::Evicted, 251, 800.0);
            stay.used_again(Gone::KeptOut, 0, 800.0);
        }
        assert!((stay.space_us() - 800.0).abs() < 10.0, "{}", stay.space_us());
    }

    /// A block whose region is one of the first that are no longer counted down.
    const HOT: BlockNo = BlockNo(583);

    /// A store with a disk that has one block, with three hits, in slot 0 of its only segment.
    fn with_a_hot_block() -> (Store, DiskNo, SlotNo) {
        let (mut store, disk) = (Store::new(), DiskNo(0));
        store.add_disk(disk);
        store.add_device(haversack_model::DeviceNo(0), haversack_model::Uuid([0; 16]), 1, 1);
        store.take_this(SegmentNo(0), disk);
        let number = store.slots_of(SegmentNo(0)).next().expect("a segment has slots");
        store.install(number, super::super::Live::new(HOT, 255, 0, 1).with_protected(true), 0);
        (store, disk, number)
    }

    #[test]
    fn spared_blocks_count_when_it_is_known_what_they_save() {
        let (mut store, disk, number) = with_a_hot_block();
        let counted = |store: &Store| store.disks[disk].aging.expect("uses are noted").counted();
        store.note_use(disk, HOT, 1000.0);
        store.last_uses.clock += 100;
        let first = store.note_sweep(SegmentNo(0));
        assert_eq!((store.hits_left(number, 3, first), counted(&store)), (2, (0.0, 0.0)));
        store.last_uses.clock += 100;
        let second = store.note_sweep(SegmentNo(0));
        assert_eq!((store.hits_left(number, 2, second), counted(&store)), (1, (0.0, 0.0)), "spared");
        store.note_use(disk, HOT, 1000.0);
        assert_eq!(counted(&store), (1.0, 1000.0), "used within the round");
        for _ in 0..3 {
            store.last_uses.clock += 100;
            let before = store.note_sweep(SegmentNo(0));
            store.hits_left(number, 3, before);
        }
        assert_eq!(counted(&store), (2.0, 1000.0), "spared twice, and not used in between");
        store.note_eviction(number);
        assert_eq!(counted(&store), (3.0, 1000.0), "spared and evicted");
    }

    #[test]
    fn how_fast_hits_are_forgotten_outlives_a_restart() {
        let (mut store, disk, number) = with_a_hot_block();
        store.note_use(disk, HOT, 1000.0);
        store.disks[disk].aging = Some(Aging::resumed(16));
        let saved = store.saved_stay(disk);
        let (mut next, ..) = with_a_hot_block();
        next.resume_stay(disk, &saved);
        assert_eq!((next.hits_left(number, 3, 0), next.saved_stay(disk)[13]), (0, 16));
        let mut earlier = saved;
        earlier[13] = 0;
        next.resume_stay(disk, &earlier);
        assert_eq!(next.hits_left(number, 3, 0), 2, "an earlier build did not save it");
    }

    #[test]
    fn hits_are_counted_down_where_last_uses_are_no_longer_noted() {
        let (mut store, disk, number) = with_a_hot_block();
        store.note_use(disk, HOT, 1000.0);
        let mut gone = Savings::default();
        (0..1000).for_each(|_| {
            gone.evicted();
            gone.used(1000.0);
            store.disks[disk].aging.as_mut().expect("uses are noted").spared(0.0, &gone);
        });
        assert_eq!(store.hits_left(number, 3, 0), 0, "all hits are forgotten at once");
        store.stop_aging(disk);
        assert_eq!(store.hits_left(number, 3, 0), 2);
        assert!(store.disks[disk].aging.is_none());
    }

    #[test]
    fn the_sample_shrinks_as_the_pool_grows() {
        let mut uses = LastUses::new();
        let sampled = |uses: &LastUses| (0..1 << 16).filter(|hash| uses.place(*hash).is_some()).count();
        uses.resize(REMEMBERED / PLACES_EACH);
        assert_eq!(sampled(&uses), 1 << 16);
        uses.resize(16 * REMEMBERED / PLACES_EACH);
        assert_eq!(sampled(&uses), 1 << 12);
    }
}
