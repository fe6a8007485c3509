//! Decides which requests go to the core, and when: disks take turns.
//!
//! Invariants
//! - In one turn of the reactor, all disks together start at most [`Limits::turn_units`] plus one request each,
//!   and move at most [`Limits::socket_bytes`] plus one piece each through sockets; so a new request waits for
//!   no more than that. A disk with nothing waiting is served in the turn in which its request arrives.
//! - While another disk is active, a disk has at most [`Limits::in_core_units`] plus one request in the core,
//!   so that its I/O does not form a long queue ahead of others. Requests that wait for the disk's own origin
//!   do not count, since they do not delay others. Nor do requests that are stuck, so a request never waits
//!   forever behind one that makes no progress.
//! - The limits are tight only while a light disk is also active, one with few requests at a time: its guest
//!   waits for each answer. Disks that all have many requests gain nothing from short queues and lose
//!   throughput.
//! - Requests of a disk start in the order in which they arrived.

use std::collections::VecDeque;

use haversack_core::{Op, Request};
use haversack_model::{DiskHandle, DiskNo, Micros, SECTOR_BYTES};

/// The unit of cost: a request costs one unit for each of these bytes, plus a constant.
const UNIT_BYTES: usize = 4096;
const UNITS_OF_A_REQUEST: u32 = 3;
/// The cost of a discard or write-zeroes, in units.
const RANGE_UNITS: u32 = 16;
/// The highest cost of a request; it must fit one byte of the tag.
const MOST_UNITS: u32 = 128;
/// The most units in the core of all disks together. The core has room for somewhat more small requests.
const UNITS_OF_ALL: u32 = 12_288;
/// A disk whose units in the core and waiting have lately not exceeded this is light: eight small requests.
const LIGHT_UNITS: u32 = 32;
/// A disk with no completion for this long is stuck: what it has in the core waits for something other than
/// processor and flash.
const STUCK_US: Micros = 5_000;
/// How long a disk counts as active after a request.
const LATELY_US: Micros = 1_000_000;

/// How much disks may do at a time.
struct Limits {
    /// Units that all disks may start in a turn, and the minimum for each disk with waiting requests.
    turn_units: i64,
    least_turn_units: i64,
    /// Units in the core of all disks with waiting requests, and the maximum and minimum of each.
    of_all_units: u32,
    in_core_units: u32,
    least_in_core_units: u32,
    /// Bytes that all disks may move through sockets in a turn.
    socket_bytes: i64,
    /// The longest part of a request that is handed to the core at once.
    part_sectors: u32,
}

const ALONE: Limits = Limits {
    turn_units: 128,
    least_turn_units: 128,
    of_all_units: UNITS_OF_ALL,
    in_core_units: UNITS_OF_ALL,
    least_in_core_units: UNITS_OF_ALL,
    socket_bytes: 2 << 20,
    part_sectors: 4 * PART_SECTORS,
};
/// Other disks are active: 512 KiB, or 32 small requests, are enough to keep flash busy.
const BESIDE: Limits = Limits {
    turn_units: 128,
    least_turn_units: 16,
    of_all_units: UNITS_OF_ALL,
    in_core_units: 128,
    least_in_core_units: 16,
    socket_bytes: 512 << 10,
    part_sectors: 4 * PART_SECTORS,
};
/// A light disk is active: 128 KiB, or 8 small requests.
const BESIDE_LIGHT: Limits = Limits {
    turn_units: 32,
    least_turn_units: 8,
    of_all_units: 64,
    in_core_units: 32,
    least_in_core_units: 8,
    socket_bytes: 64 << 10,
    part_sectors: PART_SECTORS,
};

/// Parts of requests begin at multiples of this.
pub(crate) const PART_SECTORS: u32 = 128;
/// The minimum that a disk may move through sockets in a turn.
const LEAST_SOCKET_BYTES: i64 = 16 << 10;

/// Returns the cost of a request.
pub(crate) fn units(op: Op, sectors: u32) -> u32 {
    match op {
        Op::Read | Op::Write { .. } => units_of_bytes(sectors as usize * SECTOR_BYTES),
        Op::Discard | Op::WriteZeroes => UNITS_OF_A_REQUEST + RANGE_UNITS,
        Op::Flush => UNITS_OF_A_REQUEST + 1,
    }
}

/// Returns the cost of moving this number of bytes.
pub(crate) const fn units_of_bytes(bytes: usize) -> u32 {
    let units = bytes.div_ceil(UNIT_BYTES);
    UNITS_OF_A_REQUEST + if units < MOST_UNITS as usize { units as u32 } else { MOST_UNITS }
}

/// The two disks that were active last. There are two of them so that one is always another disk than the one
/// in question.
#[derive(Default)]
struct Lately([(Option<DiskHandle>, Micros); 2]);

impl Lately {
    fn note(&mut self, disk: DiskHandle, now: Micros) {
        if self.0[0].0 != Some(disk) {
            self.0[1] = self.0[0];
        }
        self.0[0] = (Some(disk), now);
    }

    fn has(&self, disk: DiskHandle, now: Micros) -> bool {
        self.0.iter().any(|(other, asked_us)| *other == Some(disk) && now < asked_us + LATELY_US)
    }

    fn has_other_than(&self, disk: DiskHandle, now: Micros) -> bool {
        let is_other = |(other, asked_us): &(Option<DiskHandle>, Micros)| {
            other.is_some_and(|other| other != disk) && now < asked_us + LATELY_US
        };
        self.0.iter().any(is_other)
    }
}

#[derive(Default)]
struct Share {
    disk: Option<DiskHandle>,
    waiting: VecDeque<(Request, u32)>,
    waiting_units: u32,
    /// Units that it may still start in this turn; negative after a request that was larger.
    credit: i64,
    turn: u64,
    /// Bytes that it may still move through sockets in this turn; negative likewise.
    socket_bytes: i64,
    socket_turn: u64,
    /// The most units in the core and waiting, in the current window of [`LATELY_US`] and in the previous one.
    peak_units: [u32; 2],
    window_us: Micros,
    in_core: u32,
    /// The part of `in_core` that waits for the origin, approximately.
    at_origin: u32,
    /// Units that it may have in the core beyond the limit, because it is stuck.
    besides: u32,
    /// When a request of the disk last completed.
    moved_us: Micros,
}

impl Share {
    fn may_start(&self, most: u32) -> bool {
        self.in_core.saturating_sub(self.at_origin) < most + self.besides && self.in_core < UNITS_OF_ALL
    }

    /// Counts a request that starts.
    fn start(&mut self, units: u32, now: Micros) {
        if self.in_core == 0 {
            self.moved_us = now;
        }
        self.credit -= i64::from(units);
        self.in_core += units;
    }

    /// Raises the disk's limit if it is stuck.
    fn look(&mut self, most: u32, now: Micros) {
        if !self.may_start(most) && now >= self.moved_us + STUCK_US {
            self.besides = (self.besides + BESIDE.in_core_units).min(UNITS_OF_ALL);
            self.moved_us = now;
        }
    }

    /// Counts a request that arrives. Returns true if the disk is light.
    fn is_light_with(&mut self, units: u32, now: Micros) -> bool {
        if now >= self.window_us + LATELY_US {
            let is_next = now < self.window_us + 2 * LATELY_US;
            self.peak_units = [0, if is_next { self.peak_units[0] } else { 0 }];
            self.window_us = now;
        }
        self.peak_units[0] = self.peak_units[0].max(self.in_core + self.waiting_units + units);
        self.is_light()
    }

    fn is_light(&self) -> bool {
        self.peak_units.iter().all(|peak| *peak <= LIGHT_UNITS)
    }
}

/// See the module documentation.
#[derive(Default)]
pub(crate) struct Turns {
    /// Indexed by disk number.
    shares: Vec<Share>,
    /// Numbers of the disks with waiting requests.
    line: VecDeque<u16>,
    turn: u64,
    /// Number of disks that were waiting when the turn began.
    sharers: i64,
    lately: Lately,
    lately_light: Lately,
}

impl Turns {
    /// Begins a turn of the reactor.
    pub fn next_turn(&mut self) {
        self.turn += 1;
        self.sharers = self.line.len() as i64;
    }

    fn limits(&self, disk: DiskHandle, now: Micros) -> &'static Limits {
        if self.lately_light.has_other_than(disk, now) {
            &BESIDE_LIGHT
        } else if self.lately.has_other_than(disk, now) {
            &BESIDE
        } else {
            &ALONE
        }
    }

    fn of_disk(&mut self, disk: DiskHandle) -> &mut Share {
        let at = usize::from(disk.number().0);
        if self.shares.len() <= at {
            self.shares.resize_with(at + 1, Share::default);
        }
        let share = &mut self.shares[at];
        if share.disk != Some(disk) {
            *share = Share { disk: Some(disk), ..Share::default() };
        }
        share
    }

    /// Returns a disk's part of what all disks may do in the turn.
    fn part_of(&self, all: i64, least: i64) -> i64 {
        (all / self.sharers.max(1)).max(least)
    }

    fn share(&mut self, disk: DiskHandle, limits: &Limits) -> &mut Share {
        let (turn, quantum) = (self.turn, self.part_of(limits.turn_units, limits.least_turn_units));
        let share = self.of_disk(disk);
        if share.turn != turn {
            share.turn = turn;
            share.credit = (share.credit + quantum).min(quantum);
        }
        share
    }

    /// Returns the bytes that a disk's clients may still move through sockets in this turn, for them to count
    /// down. At least one piece may be moved while it is positive.
    pub fn socket_bytes(&mut self, disk: DiskHandle, now: Micros) -> &mut i64 {
        let quantum = self.part_of(self.limits(disk, now).socket_bytes, LEAST_SOCKET_BYTES);
        let turn = self.turn;
        let share = self.of_disk(disk);
        if share.socket_turn != turn {
            share.socket_turn = turn;
            share.socket_bytes = (share.socket_bytes + quantum).min(quantum);
        }
        &mut share.socket_bytes
    }

    /// Returns the longest part of a disk's request that is handed to the core at once, a multiple of
    /// [`PART_SECTORS`].
    pub fn part_sectors(&self, disk: DiskHandle, now: Micros) -> u32 {
        self.limits(disk, now).part_sectors
    }

    fn most_in_core(&self, limits: &Limits) -> u32 {
        (limits.of_all_units / (self.line.len() as u32 + 1))
            .clamp(limits.least_in_core_units, limits.in_core_units)
    }

    /// Returns whether a light disk and another one are active, so that device I/Os are paced.
    pub fn paces_devices(&self, now: Micros) -> bool {
        let [(first, _), _] = self.lately.0;
        let is_light = |disk| self.lately_light.has_other_than(disk, now);
        let is_mixed = |disk| {
            self.lately.has_other_than(disk, now) && (self.lately_light.has(disk, now) || is_light(disk))
        };
        first.is_some_and(is_mixed)
    }

    /// Returns whether a disk is light, so that its device I/Os need not wait for those of others.
    pub fn is_light(&self, disk: DiskHandle) -> bool {
        let share = self.shares.get(usize::from(disk.number().0)).filter(|share| share.disk == Some(disk));
        share.is_some_and(Share::is_light)
    }

    /// Counts and starts a request if it may start now; otherwise it waits for its turn, and this returns
    /// false.
    pub fn starts(&mut self, disk: DiskHandle, request: &Request, now: Micros) -> bool {
        let units = units(request.op, request.sectors);
        let is_light = self.of_disk(disk).is_light_with(units, now);
        self.lately.note(disk, now);
        if is_light {
            self.lately_light.note(disk, now);
        }
        let limits = self.limits(disk, now);
        let most = self.most_in_core(limits);
        let share = self.share(disk, limits);
        if share.waiting.is_empty() && share.credit > 0 && share.may_start(most) {
            share.start(units, now);
            return true;
        }
        share.waiting.push_back((*request, units));
        share.waiting_units += units;
        if share.waiting.len() == 1 {
            self.line.push_back(disk.number().0);
        }
        false
    }

    /// Returns the next request whose turn it is, and counts it as started.
    pub fn next(&mut self, now: Micros) -> Option<(DiskHandle, Request)> {
        for _ in 0..self.line.len() {
            let place = self.line.pop_front()?;
            let disk = self.shares[usize::from(place)].disk?;
            let limits = self.limits(disk, now);
            let most = self.most_in_core(limits);
            let share = self.share(disk, limits);
            share.look(most, now);
            let starts = share.credit > 0 && share.may_start(most);
            let started = if starts { share.waiting.pop_front() } else { None };
            if let Some((_, units)) = started {
                share.waiting_units -= units;
                share.start(units, now);
            }
            if !share.waiting.is_empty() {
                self.line.push_back(place);
            }
            if let Some((request, _)) = started {
                return Some((disk, request));
            }
        }
        None
    }

    /// Returns whether a request waits only for the reactor's next turn.
    pub fn is_due(&self, now: Micros) -> bool {
        self.line.iter().any(|place| {
            let share = &self.shares[usize::from(*place)];
            share.disk.is_some_and(|disk| share.may_start(self.most_in_core(self.limits(disk, now))))
        })
    }

    /// Returns when a stuck disk may start more.
    pub fn next_us(&self) -> Option<Micros> {
        let shares = self.line.iter().map(|place| &self.shares[usize::from(*place)]);
        shares.filter(|share| share.in_core < UNITS_OF_ALL).map(|share| share.moved_us + STUCK_US).min()
    }

    fn known(&mut self, disk: DiskHandle) -> Option<&mut Share> {
        let share = self.shares.get_mut(usize::from(disk.number().0));
        share.filter(|share| share.disk == Some(disk))
    }

    /// Counts the end of a request that was started.
    pub fn ended(&mut self, disk: DiskHandle, units: u32, now: Micros) {
        if let Some(share) = self.known(disk) {
            share.moved_us = now;
            share.besides = share.besides.saturating_sub(units);
            share.in_core = share.in_core.saturating_sub(units);
        }
    }

    /// Counts a request of guests that starts at the disk's origin.
    pub fn origin_started(&mut self, disk: DiskHandle, bytes: u64) {
        if let Some(share) = self.known(disk) {
            share.at_origin = share.at_origin.saturating_add(units_of_bytes(bytes as usize));
        }
    }

    /// Counts the end of such a request.
    pub fn origin_ended(&mut self, disk: DiskHandle, bytes: u64) {
        if let Some(share) = self.known(disk) {
            share.at_origin = share.at_origin.saturating_sub(units_of_bytes(bytes as usize));
        }
    }

    /// Removes a disk and returns its waiting requests.
    pub fn remove(&mut self, disk: DiskHandle) -> impl Iterator<Item = Request> + use<> {
        let DiskNo(place) = disk.number();
        let share = self.shares.get_mut(usize::from(place)).filter(|share| share.disk == Some(disk));
        let waiting = share.map(std::mem::take).unwrap_or_default().waiting;
        if !waiting.is_empty() {
            self.line.retain(|other| *other != place);
        }
        waiting.into_iter().map(|(request, _)| request)
    }
}

#[cfg(test)]
mod tests {
    use haversack_core::RequestTag;
    use haversack_model::{ArenaNo, SectorNo};

    use super::*;

    fn disk(number: u16) -> DiskHandle {
        DiskHandle::new(ArenaNo(0), DiskNo(number), 1)
    }

    fn read(number: u16, sectors: u32) -> Request {
        Request { tag: RequestTag(0), disk: DiskNo(number), op: Op::Read, sector: SectorNo(0), sectors }
    }

    const SMALL: u32 = 8;

    /// Starts what may start in a turn; returns how many requests of each of two disks.
    fn turn(turns: &mut Turns, now: Micros) -> [u32; 2] {
        turns.next_turn();
        let mut counts = [0; 2];
        while let Some((from, _)) = turns.next(now) {
            counts[usize::from(from != disk(1))] += 1;
        }
        counts
    }

    #[test]
    fn a_turn_is_bounded_and_a_quiet_disk_starts_at_once() {
        let mut turns = Turns::default();
        turns.next_turn();
        let started = (0..1000).filter(|_| turns.starts(disk(1), &read(1, SMALL), 0)).count();
        assert_eq!(started, 32);
        assert!(turns.next(0).is_none() && turns.is_due(0));
        assert_eq!(turn(&mut turns, 0), [32, 0]);
        assert!(turns.starts(disk(2), &read(2, SMALL), 0));
        assert_eq!(turn(&mut turns, 0), [0, 0], "64 are in the core, which is enough beside another");
        assert_eq!(turn(&mut turns, 2 * LATELY_US), [32, 0]);
    }

    /// Returns the units that each of two busy disks starts in 20 turns, if everything completes at once.
    fn units_of_20_turns(turns: &mut Turns, now: Micros) -> [u32; 2] {
        let mut counts = [0; 2];
        for _ in 0..20 {
            turns.next_turn();
            while let Some((from, request)) = turns.next(now) {
                let units = units(request.op, request.sectors);
                counts[usize::from(from != disk(1))] += units;
                turns.ended(from, units, now);
            }
        }
        counts
    }

    #[test]
    fn busy_disks_share_turns() {
        let mut turns = Turns::default();
        turns.next_turn();
        // A new disk is light until it has sent more requests.
        for now in [0, LATELY_US] {
            for _ in 0..2000 {
                turns.starts(disk(1), &read(1, PART_SECTORS), now);
                turns.starts(disk(2), &read(2, SMALL), now);
            }
        }
        for number in [1, 2] {
            turns.ended(disk(number), UNITS_OF_ALL, LATELY_US);
        }
        let [large, small] = units_of_20_turns(&mut turns, LATELY_US);
        assert!(small >= 20 * 60 && large >= 20 * 60 && large.abs_diff(small) < 200, "{large} and {small}");
        turns.starts(disk(3), &read(3, SMALL), LATELY_US);
        let [large, small] = units_of_20_turns(&mut turns, LATELY_US);
        assert!(small <= 20 * 24 && large <= 20 * 24, "{large} and {small}");
        assert!(small >= 20 * 8 && large.abs_diff(small) < 100, "{large} and {small}");
    }

    #[test]
    fn limits_are_tight_beside_a_light_disk_only() {
        let mut turns = Turns::default();
        let mut now = 0;
        let busy = |turns: &mut Turns, number, now| {
            (0..64).for_each(|_| {
                turns.starts(disk(number), &read(number, SMALL), now);
            });
        };
        busy(&mut turns, 1, now);
        assert_eq!(turns.part_sectors(disk(1), now), ALONE.part_sectors);
        busy(&mut turns, 2, now);
        assert_eq!(turns.part_sectors(disk(1), now), PART_SECTORS, "at first it was light");
        now += LATELY_US;
        busy(&mut turns, 1, now);
        busy(&mut turns, 2, now);
        turns.next_turn();
        assert_eq!(*turns.socket_bytes(disk(1), now), BESIDE.socket_bytes / 2, "the other one waits, too");
        assert!(!turns.paces_devices(now) && !turns.is_light(disk(1)));
        turns.starts(disk(3), &read(3, SMALL), now);
        assert!(turns.paces_devices(now) && turns.is_light(disk(3)) && !turns.is_light(disk(2)));
        turns.next_turn();
        assert!(*turns.socket_bytes(disk(1), now) <= BESIDE_LIGHT.socket_bytes);
        assert_eq!(
            turns.part_sectors(disk(3), now),
            BESIDE.part_sectors,
            "those beside the light one are busy"
        );
        now += 3 * LATELY_US;
        assert_eq!(turns.part_sectors(disk(1), now), ALONE.part_sectors);
        turns.starts(disk(3), &read(3, SMALL), now);
        assert!(!turns.paces_devices(now), "a light disk alone");
    }

    #[test]
    fn bytes_over_the_limit_are_deducted_from_later_turns() {
        let mut turns = Turns::default();
        turns.next_turn();
        *turns.socket_bytes(disk(1), 0) -= 5 << 20;
        turns.next_turn();
        assert!(*turns.socket_bytes(disk(1), 0) < 0);
        turns.next_turn();
        assert_eq!(*turns.socket_bytes(disk(1), 0), 1 << 20);
        assert_eq!(*turns.socket_bytes(disk(1), 0), 1 << 20);
        turns.next_turn();
        assert_eq!(*turns.socket_bytes(disk(1), 0), 2 << 20);
    }

    #[test]
    fn requests_that_wait_for_the_origin_do_not_count() {
        let mut turns = Turns::default();
        turns.next_turn();
        turns.starts(disk(2), &read(2, SMALL), 0);
        (0..200).for_each(|_| {
            turns.starts(disk(1), &read(1, SMALL), 0);
        });
        assert_eq!(turn(&mut turns, 0), [0, 0]);
        (0..8).for_each(|_| turns.origin_started(disk(1), 4096));
        assert_eq!(turn(&mut turns, 0), [8, 0]);
        (0..8).for_each(|_| turns.origin_ended(disk(1), 4096));
        assert_eq!(turn(&mut turns, 0), [0, 0]);
    }

    #[test]
    fn a_blocked_disk_does_not_block_others() {
        let mut turns = Turns::default();
        let mut now = 0;
        turns.next_turn();
        (0..200).for_each(|_| {
            turns.starts(disk(2), &read(2, SMALL), now);
            turns.starts(disk(1), &read(1, SMALL), now);
        });
        assert_eq!(turn(&mut turns, now), [0, 0]);
        for _ in 0..5 {
            assert_eq!(turns.next_us(), Some(now + STUCK_US));
            now += STUCK_US;
            let started = (0..10).fold([0; 2], |sum: [u32; 2], _| {
                let [first, second] = turn(&mut turns, now);
                [sum[0] + first, sum[1] + second]
            });
            assert!(started.iter().all(|count| (28..=32).contains(count)), "{started:?}");
            assert_eq!(turn(&mut turns, now), [0, 0]);
        }
        // Completions take back what was granted.
        let granted = turns.of_disk(disk(1)).besides / 4;
        (0..granted).for_each(|_| turns.ended(disk(1), 4, now));
        assert_eq!(turn(&mut turns, now), [0, 0]);
        (0..8).for_each(|_| turns.ended(disk(1), 4, now));
        assert_ne!(turn(&mut turns, now), [0, 0]);
    }

    #[test]
    fn removing_a_disk_removes_its_waiting_requests() {
        let mut turns = Turns::default();
        turns.next_turn();
        for _ in 0..200 {
            turns.starts(disk(1), &read(1, SMALL), 0);
        }
        assert_eq!(turns.remove(disk(1)).count(), 168);
        turns.next_turn();
        assert!(turns.next(0).is_none() && !turns.is_due(0));
    }
}
