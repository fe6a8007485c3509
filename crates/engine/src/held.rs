//! I/Os with modelled durations, for tests with their own clock. An I/O is carried out immediately; the core receives
//! its completion when the clock reaches the modelled end time.
//!
//! Invariants
//! - I/Os end in the order of their modelled end times. I/Os with the same end time end in the order in which the core
//!   requested them. No I/O ends before it has been carried out, and none overtakes an I/O that has not been carried
//!   out.
//! - I/Os requested while the clock is at zero take no time, so that a pool can be opened. After `let_go`, no I/O takes
//!   time.

use std::collections::{BTreeMap, HashMap};

use haversack_core::{Action, IoId};
use haversack_latency::{IoKind, Looks, Stations, WholeTimes};
use haversack_model::{DeviceNo, DiskHandle, Micros};

use crate::origin::OriginAnswer;
use crate::ring::Completion;

/// Stations for every number that a device may have.
const DEVICES: usize = 256;

/// An I/O that has been carried out.
pub(crate) enum Ended {
    /// On a cache device.
    Device { io: IoId, device: DeviceNo, completion: Completion },
    /// On a disk's origin.
    Origin { disk: DiskHandle, answer: OriginAnswer },
}

impl Ended {
    fn io(&self) -> IoId {
        match self {
            Ended::Device { io, .. } => *io,
            Ended::Origin { answer, .. } => answer.request.io,
        }
    }
}

/// See the module documentation.
pub(crate) struct Held {
    stations: Stations,
    /// I/Os by the time at which they end and the order in which they were asked for.
    due: BTreeMap<(Micros, u64), IoId>,
    /// I/Os that have been carried out.
    ended: HashMap<IoId, Ended>,
    asked: u64,
    /// When timers are checked.
    looks: Looks,
    /// Requests of clients so far.
    pub requests: u64,
    is_let_go: bool,
}

fn nanoseconds(us: Micros) -> u64 {
    us.saturating_mul(1000)
}

impl Held {
    /// Creates the state in which all devices and origins are idle.
    pub fn new(times: &WholeTimes) -> Held {
        Held {
            stations: Stations::new(&times.model(), DEVICES, 0),
            due: BTreeMap::new(),
            ended: HashMap::new(),
            asked: 0,
            looks: Looks::new(0),
            requests: 0,
            is_let_go: false,
        }
    }

    /// Records that the core requests an I/O now.
    pub fn asked(&mut self, now: Micros, action: &Action) {
        let now_ns = nanoseconds(now);
        // The amount does not count: transfers take no time.
        let mut device = |device: DeviceNo, kind| self.stations.device(now_ns, device.0.into(), kind, 0);
        let (io, done_ns) = match *action {
            Action::Complete { .. } | Action::Event(_) => return,
            Action::ReadPeer { io, .. } => (io, now_ns),
            _ if now == 0 || self.is_let_go => (action_io(action), now_ns),
            Action::ReadDevice { io, device: at, .. } => (io, device(at, IoKind::Read)),
            Action::WriteDevice { io, device: at, .. } => (io, device(at, IoKind::Write)),
            Action::FlushDevice { io, device: at } => (io, device(at, IoKind::Flush)),
            Action::ReadOrigin { io, .. } => (io, self.stations.origin(now_ns, IoKind::Read, 0)),
            Action::WriteOrigin { io, .. } | Action::ZeroOrigin { io, .. } => {
                (io, self.stations.origin(now_ns, IoKind::Write, 0))
            }
            Action::FlushOrigin { io, .. } => (io, self.stations.origin(now_ns, IoKind::Flush, 0)),
        };
        self.hold(done_ns / 1000, io);
    }

    fn hold(&mut self, until_us: Micros, io: IoId) {
        self.asked += 1;
        self.due.insert((until_us, self.asked), io);
    }

    /// Records that an I/O has been carried out. An unknown I/O, which is a retry, ends now.
    pub fn ended(&mut self, now: Micros, ended: Ended) {
        let io = ended.io();
        if !self.due.values().any(|held| *held == io) {
            self.hold(now, io);
        }
        self.ended.insert(io, ended);
    }

    /// Returns how many I/Os have not ended.
    pub fn ios(&self) -> usize {
        self.due.len()
    }

    /// Returns how many I/Os have been carried out and have not ended.
    pub fn carried_out(&self) -> usize {
        self.ended.len()
    }

    /// Returns the I/O that ends now, if one does.
    pub fn next(&mut self, now: Micros) -> Option<Ended> {
        let first = self.due.first_entry()?;
        if first.key().0 > now && !self.is_let_go {
            return None;
        }
        let ended = self.ended.remove(first.get())?;
        first.remove();
        self.looks.soon(nanoseconds(now));
        Some(ended)
    }

    /// Records that a client has sent a request, or that settings have changed.
    pub fn stirred(&mut self, now: Micros) {
        self.looks.soon(nanoseconds(now));
    }

    /// Returns whether to check timers now: timers are due, and no I/O ends now.
    pub fn is_time_to_look(&self, now: Micros) -> bool {
        self.looks.next_ns() <= nanoseconds(now) && self.due.keys().next().is_none_or(|(us, _)| *us > now)
    }

    /// Records that timers have been checked, and that the next timer expires at `due`.
    pub fn looked(&mut self, now: Micros, due: Option<Micros>) {
        self.looks.looked(nanoseconds(now), due.map(nanoseconds));
    }

    /// Returns the time of the next end of an I/O or check of timers. Without external input, nothing happens before
    /// that time.
    pub fn next_us(&self) -> Micros {
        let ends_us = self.due.keys().next().map_or(Micros::MAX, |(us, _)| *us);
        ends_us.min(self.looks.next_ns().div_ceil(1000))
    }

    /// From now on, I/Os take no time: the pool stops, and the clock does not advance.
    pub fn let_go(&mut self) {
        self.is_let_go = true;
    }
}

fn action_io(action: &Action) -> IoId {
    match *action {
        Action::ReadDevice { io, .. }
        | Action::WriteDevice { io, .. }
        | Action::FlushDevice { io, .. }
        | Action::ReadOrigin { io, .. }
        | Action::WriteOrigin { io, .. }
        | Action::ZeroOrigin { io, .. }
        | Action::ReadPeer { io, .. }
        | Action::FlushOrigin { io, .. } => io,
        Action::Complete { .. } | Action::Event(_) => unreachable!("they are no I/Os"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::Owner;

    const TIMES: WholeTimes = WholeTimes {
        device_read_us: 10,
        device_write_us: 20,
        device_flush_us: 50,
        device_servers: 1,
        origin_read_us: 100,
        origin_write_us: 200,
        origin_flush_us: 300,
        origin_servers: 1,
    };

    fn ask(held: &mut Held, now: Micros, io: u32) {
        held.asked(now, &Action::FlushDevice { io: IoId(io), device: DeviceNo(0) });
    }

    fn carry_out(held: &mut Held, now: Micros, io: u32) {
        let (io, device) = (IoId(io), DeviceNo(0));
        let completion = Completion { owner: Owner::Device { io, device }, result: Ok(0), started_us: now };
        held.ended(now, Ended::Device { io, device, completion });
    }

    fn next(held: &mut Held, now: Micros) -> Option<u32> {
        held.next(now).map(|ended| ended.io().0)
    }

    #[test]
    fn an_io_ends_in_its_turn_when_it_is_done_and_the_clock_has_come_so_far() {
        let mut held = Held::new(&TIMES);
        let read = Action::ReadDevice { io: IoId(2), device: DeviceNo(1), offset_bytes: 0 };
        ask(&mut held, 5, 1);
        held.asked(5, &read);
        ask(&mut held, 5, 3);
        carry_out(&mut held, 5, 1);
        carry_out(&mut held, 5, 2);
        assert_eq!((held.carried_out(), held.next_us()), (2, 15));
        assert_eq!(next(&mut held, 14), None);
        assert_eq!((next(&mut held, 15), next(&mut held, 54)), (Some(2), None));
        assert_eq!((next(&mut held, 55), next(&mut held, 105)), (Some(1), None), "not carried out");
        assert!(!held.is_time_to_look(5_000), "an I/O is late");
        carry_out(&mut held, 5, 3);
        assert_eq!((next(&mut held, 105), held.carried_out()), (Some(3), 0));
        assert!(held.is_time_to_look(5_000));
    }

    #[test]
    fn those_that_end_together_end_in_the_order_of_asking() {
        let mut held = Held::new(&TIMES);
        let read =
            |io, device| Action::ReadDevice { io: IoId(io), device: DeviceNo(device), offset_bytes: 0 };
        [read(9, 1), read(4, 0)].iter().for_each(|action| held.asked(1, action));
        carry_out(&mut held, 1, 4);
        assert_eq!(next(&mut held, 11), None, "it does not overtake");
        carry_out(&mut held, 1, 9);
        assert_eq!([next(&mut held, 11), next(&mut held, 11)], [Some(9), Some(4)]);
    }

    #[test]
    fn at_zero_and_at_the_end_nothing_takes_time() {
        let mut held = Held::new(&TIMES);
        ask(&mut held, 0, 1);
        carry_out(&mut held, 0, 1);
        assert_eq!(next(&mut held, 0), Some(1));
        ask(&mut held, 7, 2);
        carry_out(&mut held, 7, 2);
        assert_eq!((held.next_us(), next(&mut held, 7)), (57, None));
        held.let_go();
        ask(&mut held, 7, 3);
        carry_out(&mut held, 7, 3);
        assert_eq!([next(&mut held, 7), next(&mut held, 7)], [Some(3), Some(2)]);
    }

    #[test]
    fn one_that_is_tried_again_ends_at_once() {
        let mut held = Held::new(&TIMES);
        carry_out(&mut held, 30, 8);
        assert_eq!(next(&mut held, 30), Some(8));
    }
}
