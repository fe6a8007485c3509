//! Whose requests go to the core, and when: disks take turns.
//!
//! Invariants
//! - In one turn of the reactor, all disks together start at most [`Limits::turn_units`] and a request each, and move
//!   at most [`Limits::socket_bytes`] and a piece each through sockets; so whoever asks next waits for no more than that.
//!   A disk that has nothing waiting asks in the turn in which it comes.
//! - While another disk has asked lately, a disk has at most [`Limits::in_core_units`] in the core, and a request, so that
//!   its I/O is no long queue for others. What waits for the disk's own origin does not count: it is in nobody's way. Nor
//!   does what does not move: a request never waits for ever behind one that does.
//! - The limits are tight only beside a light disk, one that asks little at a time: its guest waits for each answer. Disks
//!   that all ask much gain nothing from short queues, and lose throughput.
//! - Requests of a disk start in the order in which they were asked.

use std::collections::VecDeque;

use haversack_core::{Op, Request};
use haversack_model::{DiskHandle, DiskNo, Micros, SECTOR_BYTES};

/// The unit of cost: a request costs one unit for each of these bytes, and a constant.
const UNIT_BYTES: usize = 4096;
const UNITS_OF_A_REQUEST: u32 = 3;
/// The cost of a discard or write-zeroes, in units.
const RANGE_UNITS: u32 = 16;
/// The most that a request counts for: a byte of its tag.
const MOST_UNITS: u32 = 128;
/// Units in the core of all disks: it has room for somewhat more small requests.
const UNITS_OF_ALL: u32 = 12_288;
/// A disk with no more than this in the core and waiting, at any time lately, is a light one: eight small requests.
const LIGHT_UNITS: u32 = 32;
/// When nothing of a disk was done for so long, what it has in the core waits for something else than processor and flash.
const STUCK_US: Micros = 5_000;
/// How long a disk that has asked counts as one beside.
const LATELY_US: Micros = 1_000_000;

/// How much disks may do at a time.
struct Limits {
    /// Units that all disks may start in a turn, and the least of them for each disk with requests that wait.
    turn_units: i64,
    least_turn_units: i64,
    /// Units in the core of all disks with requests that wait, and of each at most and at least.
    of_all_units: u32,
    in_core_units: u32,
    least_in_core_units: u32,
    /// Bytes that all disks may move through sockets in a turn.
    socket_bytes: i64,
    /// The longest part of a request that the core gets at once.
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
/// Others ask as well: 512 KiB, or 32 small requests, are enough to keep flash busy.
const BESIDE: Limits = Limits {
    turn_units: 128,
    least_turn_units: 16,
    of_all_units: UNITS_OF_ALL,
    in_core_units: 128,
    least_in_core_units: 16,
    socket_bytes: 512 << 10,
    part_sectors: 4 * PART_SECTORS,
};
/// A light disk asks as well: 128 KiB, or 8 small requests.
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
/// I/Os of devices are moved in pieces of this beside a light disk.
const PIECE_BYTES: usize = 128 << 10;
/// The least that a disk may move through sockets in a turn.
const LEAST_SOCKET_BYTES: i64 = 16 << 10;

/// What a request counts for.
pub(crate) fn units(op: Op, sectors: u32) -> u32 {
    let units = match op {
        Op::Read | Op::Write { .. } => (sectors as usize * SECTOR_BYTES).div_ceil(UNIT_BYTES) as u32,
        Op::Discard | Op::WriteZeroes => RANGE_UNITS,
        Op::Flush => 1,
    };
    UNITS_OF_A_REQUEST + units.min(MOST_UNITS)
}

/// The disks that have asked last, two of them: one is another than the disk in question.
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
    /// What it may still start in the turn; below zero after a request that was larger.
    credit: i64,
    turn: u64,
    /// What it may still move through sockets in the turn; the same.
    socket_bytes: i64,
    socket_turn: u64,
    /// The most units in the core and waiting, in the present window of [`LATELY_US`] and the one before it.
    peak_units: [u32; 2],
    window_us: Micros,
    in_core: u32,
    /// What of that waits for the origin, about.
    at_origin: u32,
    /// What it may have in the core besides, because it is stuck.
    besides: u32,
    /// When something of it was last done.
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

    /// Lets some more in if it is stuck.
    fn look(&mut self, most: u32, now: Micros) {
        if !self.may_start(most) && now >= self.moved_us + STUCK_US {
            self.besides = (self.besides + BESIDE.in_core_units).min(UNITS_OF_ALL);
            self.moved_us = now;
        }
    }

    /// Counts a request that is asked. True if the disk is a light one.
    fn is_light_with(&mut self, units: u32, now: Micros) -> bool {
        if now >= self.window_us + LATELY_US {
            let is_next = now < self.window_us + 2 * LATELY_US;
            self.peak_units = [0, if is_next { self.peak_units[0] } else { 0 }];
            self.window_us = now;
        }
        self.peak_units[0] = self.peak_units[0].max(self.in_core + self.waiting_units + units);
        self.peak_units.iter().all(|peak| *peak <= LIGHT_UNITS)
    }
}

/// See the module.
#[derive(Default)]
pub(crate) struct Turns {
    /// By the disks' places.
    shares: Vec<Share>,
    /// Places with requests that wait.
    line: VecDeque<u16>,
    turn: u64,
    /// Disks that waited when the turn began.
    sharers: i64,
    lately: Lately,
    lately_light: Lately,
}

impl Turns {
    /// A turn of the reactor begins.
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

    /// A disk's part of what all may do in the turn.
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

    /// What the clients of a disk may still move through sockets in this turn, for them to count down. At least a piece may
    /// be moved while it is above zero.
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

    /// The longest part of a request of a disk that the core gets at once; a multiple of [`PART_SECTORS`].
    pub fn part_sectors(&self, disk: DiskHandle, now: Micros) -> u32 {
        self.limits(disk, now).part_sectors
    }

    fn most_in_core(&self, limits: &Limits) -> u32 {
        (limits.of_all_units / (self.line.len() as u32 + 1))
            .clamp(limits.least_in_core_units, limits.in_core_units)
    }

    /// The longest I/O of a device that others are to wait for.
    pub fn device_piece_bytes(&self, now: Micros) -> usize {
        let [(first, _), _] = self.lately.0;
        let is_light = |disk| self.lately_light.has_other_than(disk, now);
        let is_mixed = |disk| {
            self.lately.has_other_than(disk, now) && (self.lately_light.has(disk, now) || is_light(disk))
        };
        if first.is_some_and(is_mixed) { PIECE_BYTES } else { usize::MAX }
    }

    /// Whether a request may start now; it is counted then. Otherwise it waits for its turn.
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

    /// The next request whose turn it is; it is counted as started.
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

    /// Whether a request waits only for the next turn of the reactor.
    pub fn is_due(&self, now: Micros) -> bool {
        self.line.iter().any(|place| {
            let share = &self.shares[usize::from(*place)];
            share.disk.is_some_and(|disk| share.may_start(self.most_in_core(self.limits(disk, now))))
        })
    }

    /// When more of a disk that is stuck may start.
    pub fn next_us(&self) -> Option<Micros> {
        let shares = self.line.iter().map(|place| &self.shares[usize::from(*place)]);
        shares.filter(|share| share.in_core < UNITS_OF_ALL).map(|share| share.moved_us + STUCK_US).min()
    }

    fn known(&mut self, disk: DiskHandle) -> Option<&mut Share> {
        let share = self.shares.get_mut(usize::from(disk.number().0));
        share.filter(|share| share.disk == Some(disk))
    }

    /// A request that was started is done.
    pub fn ended(&mut self, disk: DiskHandle, units: u32, now: Micros) {
        if let Some(share) = self.known(disk) {
            share.moved_us = now;
            share.besides = share.besides.saturating_sub(units);
            share.in_core = share.in_core.saturating_sub(units);
        }
    }

    /// The disk's origin has something to do for guests.
    pub fn origin_started(&mut self, disk: DiskHandle, bytes: u64) {
        if let Some(share) = self.known(disk) {
            share.at_origin = share.at_origin.saturating_add(units_of_origin(bytes));
        }
    }

    /// It has done that.
    pub fn origin_ended(&mut self, disk: DiskHandle, bytes: u64) {
        if let Some(share) = self.known(disk) {
            share.at_origin = share.at_origin.saturating_sub(units_of_origin(bytes));
        }
    }

    /// What waits of a disk that goes.
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

/// One request of guests, as if it were no part of others.
fn units_of_origin(bytes: u64) -> u32 {
    UNITS_OF_A_REQUEST + bytes.div_ceil(UNIT_BYTES as u64).min(MOST_UNITS.into()) as u32
}

#[cfg(test)]
mod tests {
    use haversack_core::RequestTag;
    use haversack_model::SectorNo;

    use super::*;

    fn disk(number: u16) -> DiskHandle {
        DiskHandle::new(DiskNo(number), 1)
    }

    fn read(number: u16, sectors: u32) -> Request {
        Request { tag: RequestTag(0), disk: DiskNo(number), op: Op::Read, sector: SectorNo(0), sectors }
    }

    const SMALL: u32 = 8;

    /// Starts what may in a turn; tells how many of each of two disks.
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

    /// Units that each of two busy disks starts in 20 turns, what is started being done at once.
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
        // Whoever comes is light until it has asked for more.
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
        assert_eq!(turns.device_piece_bytes(now), usize::MAX);
        turns.starts(disk(3), &read(3, SMALL), now);
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
        assert_eq!(turns.device_piece_bytes(now), usize::MAX, "a light disk alone");
    }

    #[test]
    fn what_sockets_move_too_much_is_paid_in_later_turns() {
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
    fn what_waits_for_the_origin_is_in_nobodys_way() {
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
    fn what_does_not_move_lets_others_pass() {
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
        // What is done takes back what was granted.
        let granted = turns.of_disk(disk(1)).besides / 4;
        (0..granted).for_each(|_| turns.ended(disk(1), 4, now));
        assert_eq!(turn(&mut turns, now), [0, 0]);
        (0..8).for_each(|_| turns.ended(disk(1), 4, now));
        assert_ne!(turn(&mut turns, now), [0, 0]);
    }

    #[test]
    fn what_waits_of_a_disk_leaves_with_it() {
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
