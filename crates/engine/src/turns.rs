//! Whose requests go to the core, and when: disks take turns.
//!
//! Invariants
//! - In one turn of the reactor, all disks together start at most `TURN_UNITS` and a request each; so whoever asks next
//!   waits for no more than that. A disk that has nothing waiting asks in the turn in which it comes.
//! - While another disk has asked lately, a disk has at most `UNITS_BESIDE` in the core, and a request: what is on its way
//!   in devices and origins is no long queue for others.
//! - Requests of a disk start in the order in which they were asked.

use std::collections::VecDeque;

use haversack_core::{Op, Request};
use haversack_model::{DiskHandle, DiskNo, Micros, SECTOR_BYTES};

/// Requests are counted in units of so many bytes.
const UNIT_BYTES: usize = 4096;
/// What changes ranges without data costs as much as so many units.
const RANGE_UNITS: u32 = 16;
/// The longest part of a request that the core gets at once.
pub(crate) const PART_SECTORS: u32 = 1024;
/// Units started in a turn: 512 KiB, or 128 small requests.
const TURN_UNITS: i64 = 128;
/// The least of them for each disk with requests that wait.
const LEAST_UNITS: i64 = 16;
/// Units in the core with others beside: 2 MiB, or 512 small requests.
const UNITS_BESIDE: u32 = 512;
const LEAST_UNITS_BESIDE: u32 = 16;
/// Units in the core of all disks: the core has room for somewhat more small requests.
const UNITS_OF_ALL: u32 = 3072;
/// How long a disk that has asked counts as one beside.
const LATELY_US: Micros = 1_000_000;

/// What a request counts for.
pub(crate) fn units(op: Op, sectors: u32) -> u32 {
    match op {
        Op::Read | Op::Write { .. } => {
            (sectors as usize * SECTOR_BYTES).div_ceil(UNIT_BYTES).clamp(1, TURN_UNITS as usize) as u32
        }
        Op::Discard | Op::WriteZeroes => RANGE_UNITS,
        Op::Flush => 1,
    }
}

#[derive(Default)]
struct Share {
    disk: Option<DiskHandle>,
    waiting: VecDeque<(Request, u32)>,
    /// What it may still start in the turn; below zero after a request that was larger.
    credit: i64,
    turn: u64,
    in_core: u32,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Turns {
    /// By the disks' places.
    shares: Vec<Share>,
    /// Places with requests that wait.
    line: VecDeque<u16>,
    turn: u64,
    /// The two disks that have asked last.
    lately: [(Option<DiskHandle>, Micros); 2],
}

impl Turns {
    /// A turn of the reactor begins.
    pub fn next_turn(&mut self) {
        self.turn += 1;
    }

    fn share(&mut self, disk: DiskHandle) -> &mut Share {
        let at = usize::from(disk.number().0);
        if self.shares.len() <= at {
            self.shares.resize_with(at + 1, Share::default);
        }
        let (quantum, turn) = (self.quantum(), self.turn);
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

    fn quantum(&self) -> i64 {
        (TURN_UNITS / self.line.len().max(1) as i64).max(LEAST_UNITS)
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
        if share.waiting.is_empty() && share.credit > 0 && share.in_core < most {
            share.credit -= i64::from(units);
            share.in_core += units;
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
            let starts = share.credit > 0 && share.in_core < most;
            let started = if starts { share.waiting.pop_front() } else { None };
            if let Some((_, units)) = started {
                share.credit -= i64::from(units);
                share.in_core += units;
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
            share.disk.is_some_and(|disk| share.in_core < self.most_in_core(disk, now))
        })
    }

    /// A request that was started is done.
    pub fn ended(&mut self, disk: DiskHandle, units: u32) {
        if let Some(share) = self.shares.get_mut(usize::from(disk.number().0))
            && share.disk == Some(disk)
        {
            share.in_core = share.in_core.saturating_sub(units);
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

    #[test]
    fn a_turn_is_bounded_and_a_quiet_disk_starts_at_once() {
        let mut turns = Turns::default();
        turns.next_turn();
        let started = (0..1000).filter(|_| turns.starts(disk(1), &read(1, 8), 0)).count();
        assert_eq!(started, 128);
        assert!(turns.next(0).is_none() && turns.is_due(0));
        assert!(turns.starts(disk(2), &read(2, 8), 0));
        turns.next_turn();
        let (mut next, mut of_first) = (turns.next(0), 0);
        while let Some((from, _)) = next {
            assert_eq!(from, disk(1));
            of_first += 1;
            next = turns.next(0);
        }
        assert_eq!(of_first, 128);
    }

    #[test]
    fn busy_disks_start_alternately_and_large_requests_are_paid_for_later() {
        let mut turns = Turns::default();
        turns.next_turn();
        for _ in 0..100 {
            turns.starts(disk(1), &read(1, PART_SECTORS), 0);
            turns.starts(disk(2), &read(2, 8), 0);
        }
        let (mut large, mut small) = (0, 0);
        for _ in 0..64 {
            turns.next_turn();
            while let Some((from, request)) = turns.next(0) {
                *(if from == disk(1) { &mut large } else { &mut small }) +=
                    units(request.op, request.sectors);
                turns.ended(from, units(request.op, request.sectors));
            }
        }
        assert_eq!(small, 0, "they were started when they came");
        assert!(large >= 10 * 128, "{large}");
    }

    #[test]
    fn beside_others_little_of_a_disk_is_in_the_core() {
        let mut turns = Turns::default();
        let mut in_core = |beside: bool, now: Micros| {
            let mut count = 0;
            for _ in 0..200 {
                turns.next_turn();
                if beside {
                    turns.starts(disk(2), &read(2, 8), now);
                    turns.ended(disk(2), 1);
                }
                count += u32::from(turns.starts(disk(1), &read(1, PART_SECTORS), now)) * 128;
                while turns.next(now).is_some() {
                    count += 128;
                }
            }
            turns.remove(disk(1)).for_each(drop);
            count
        };
        assert!((512..=1024).contains(&in_core(true, 0)));
        assert!(in_core(false, 2 * LATELY_US) >= UNITS_OF_ALL);
    }

    #[test]
    fn what_waits_of_a_disk_leaves_with_it() {
        let mut turns = Turns::default();
        turns.next_turn();
        for _ in 0..200 {
            turns.starts(disk(1), &read(1, 8), 0);
        }
        assert_eq!(turns.remove(disk(1)).count(), 72);
        turns.next_turn();
        assert!(turns.next(0).is_none() && !turns.is_due(0));
    }
}
