//! Whose requests go to the core, and when: disks take turns.
//!
//! Invariants
//! - In one turn of the reactor, all disks together start at most `TURN_UNITS` and a request each; so whoever asks next
//!   waits for no more than that. A disk that has nothing waiting asks in the turn in which it comes.
//! - While another disk has asked lately, a disk has at most `UNITS_BESIDE` in the core, and a request, so that its I/O is
//!   no long queue for others. What waits for the disk's own origin does not count: it is in nobody's way. Nor does
//!   what does not move: a request never waits for ever behind one that does.
//! - Requests of a disk start in the order in which they were asked.

use std::collections::VecDeque;

use haversack_core::{Op, Request};
use haversack_model::{DiskHandle, DiskNo, Micros, SECTOR_BYTES};

/// The unit of cost: a request costs one unit for each of these bytes, and a constant.
const UNIT_BYTES: usize = 4096;
const UNITS_OF_A_REQUEST: u32 = 3;
/// The cost of a discard or write-zeroes, in units.
const RANGE_UNITS: u32 = 16;
/// The longest part of a request that the core gets at once.
pub(crate) const PART_SECTORS: u32 = 512;
/// Units started in a turn: nearly 512 KiB, or 32 small requests.
const TURN_UNITS: i64 = 128;
/// The least of them for each disk with requests that wait.
const LEAST_UNITS: i64 = 16;
/// Units in the core with others beside: 512 KiB, or 32 small requests, are enough to keep flash busy.
const UNITS_BESIDE: u32 = 128;
const LEAST_UNITS_BESIDE: u32 = 16;
/// Units in the core of all disks: it has room for somewhat more small requests.
const UNITS_OF_ALL: u32 = 12_288;
/// When nothing of a disk was done for so long, what it has in the core waits for something else than processor and flash.
const STUCK_US: Micros = 5_000;
/// How long a disk that has asked counts as one beside.
const LATELY_US: Micros = 1_000_000;

/// What a request counts for.
pub(crate) fn units(op: Op, sectors: u32) -> u32 {
    let units = match op {
        Op::Read | Op::Write { .. } => (sectors as usize * SECTOR_BYTES).div_ceil(UNIT_BYTES) as u32,
        Op::Discard | Op::WriteZeroes => RANGE_UNITS,
        Op::Flush => 1,
    };
    UNITS_OF_A_REQUEST + units.min(TURN_UNITS as u32)
}

#[derive(Default)]
struct Share {
    disk: Option<DiskHandle>,
    waiting: VecDeque<(Request, u32)>,
    /// What it may still start in the turn; below zero after a request that was larger.
    credit: i64,
    turn: u64,
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
            self.besides = (self.besides + UNITS_BESIDE).min(UNITS_OF_ALL);
            self.moved_us = now;
        }
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
    /// What each disk may start in the turn.
    quantum: i64,
    /// The two disks that have asked last.
    lately: [(Option<DiskHandle>, Micros); 2],
}

impl Turns {
    /// A turn of the reactor begins.
    pub fn next_turn(&mut self) {
        self.turn += 1;
        self.quantum = (TURN_UNITS / self.line.len().max(1) as i64).max(LEAST_UNITS);
    }

    fn share(&mut self, disk: DiskHandle) -> &mut Share {
        let at = usize::from(disk.number().0);
        if self.shares.len() <= at {
            self.shares.resize_with(at + 1, Share::default);
        }
        let (quantum, turn) = (self.quantum, self.turn);
        let share = &mut self.shares[at];
        if share.disk != Some(disk) {
            *share = Share { disk: Some(disk), ..Share::default() };
        }
        if share.turn != turn {
            share.turn = turn;
            share.credit = (share.credit + quantum).min(quantum);
        }
        share
    }

    /// A disk asks.
    fn note(&mut self, disk: DiskHandle, now: Micros) {
        if self.lately[0].0 != Some(disk) {
            self.lately[1] = self.lately[0];
        }
        self.lately[0] = (Some(disk), now);
    }

    fn most_in_core(&self, disk: DiskHandle, now: Micros) -> u32 {
        let is_beside = |(other, asked_us): &(Option<DiskHandle>, Micros)| {
            other.is_some_and(|other| other != disk) && now < asked_us + LATELY_US
        };
        if !self.lately.iter().any(is_beside) {
            return UNITS_OF_ALL;
        }
        (UNITS_OF_ALL / (self.line.len() as u32 + 1)).clamp(LEAST_UNITS_BESIDE, UNITS_BESIDE)
    }

    /// Whether a request may start now; it is counted then. Otherwise it waits for its turn.
    pub fn starts(&mut self, disk: DiskHandle, request: &Request, now: Micros) -> bool {
        let units = units(request.op, request.sectors);
        self.note(disk, now);
        let most = self.most_in_core(disk, now);
        let share = self.share(disk);
        if share.waiting.is_empty() && share.credit > 0 && share.may_start(most) {
            share.start(units, now);
            return true;
        }
        share.waiting.push_back((*request, units));
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
            let most = self.most_in_core(disk, now);
            let share = self.share(disk);
            share.look(most, now);
            let starts = share.credit > 0 && share.may_start(most);
            let started = if starts { share.waiting.pop_front() } else { None };
            if let Some((_, units)) = started {
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
            share.disk.is_some_and(|disk| share.may_start(self.most_in_core(disk, now)))
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
    UNITS_OF_A_REQUEST + bytes.div_ceil(UNIT_BYTES as u64).min(TURN_UNITS as u64) as u32
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

    #[test]
    fn busy_disks_share_turns() {
        let mut turns = Turns::default();
        turns.next_turn();
        for _ in 0..1000 {
            for request in [read(1, PART_SECTORS), read(2, SMALL)] {
                let from = DiskHandle::new(request.disk, 1);
                if turns.starts(from, &request, 0) {
                    turns.ended(from, units(request.op, request.sectors), 0);
                }
            }
        }
        let mut counts = [0; 2];
        for _ in 0..20 {
            turns.next_turn();
            while let Some((from, request)) = turns.next(0) {
                counts[usize::from(from != disk(1))] += units(request.op, request.sectors);
                turns.ended(from, units(request.op, request.sectors), 0);
            }
        }
        let [large, small] = counts;
        assert!(small >= 20 * 60 && large >= 20 * 60 && large.abs_diff(small) < 200, "{large} and {small}");
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
        (0..32).for_each(|_| turns.origin_started(disk(1), 4096));
        assert_eq!(turn(&mut turns, 0), [32, 0]);
        (0..32).for_each(|_| turns.origin_ended(disk(1), 4096));
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
            assert_eq!(turn(&mut turns, now), [16, 16]);
            assert_eq!(turn(&mut turns, now), [16, 16]);
            assert_eq!(turn(&mut turns, now), [0, 0]);
        }
        // What is done takes back what was granted.
        (0..5 * 32).for_each(|_| turns.ended(disk(1), 4, now));
        assert_eq!(turn(&mut turns, now), [0, 0]);
        turns.ended(disk(1), 4, now);
        assert_eq!(turn(&mut turns, now), [1, 0]);
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
