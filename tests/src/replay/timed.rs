//! A replay to a pool whose I/Os take time by a model.

use std::ops::Range;

use haversack_trace::{Access, Op};
use serde_json::Value;

use super::{Replay, command, range};
use crate::Result;
use crate::error::check;
use crate::tools::PATIENCE;

/// What was sent, and what comes next.
#[derive(Debug)]
pub struct Timed {
    /// When the next I/O ends or the pool looks at its timers.
    next_us: u64,
    /// I/Os that have not ended.
    ios: u64,
    /// Requests sent so far.
    sent: u64,
    /// The requests of each disk that were not answered yet.
    unanswered: Vec<Vec<Unanswered>>,
}

#[derive(Debug)]
struct Unanswered {
    cookie: u64,
    access: Access,
    /// What a read must find, except where something is written at the same time.
    expected: Vec<u8>,
    written: Vec<Range<usize>>,
}

impl Unanswered {
    fn read_bytes(&self) -> usize {
        if self.access.op == Op::Read { self.access.length_bytes as usize } else { 0 }
    }

    fn writes(&self) -> bool {
        matches!(self.access.op, Op::Write | Op::Discard)
    }

    fn check(&self, read: &[u8]) -> Result<()> {
        let is_unsure = |at: usize| self.written.iter().any(|written| written.contains(&at));
        let start = range(&self.access).start;
        let wrong = (0..read.len()).find(|at| read[*at] != self.expected[*at] && !is_unsure(start + at));
        check(wrong.is_none(), format!("wrong byte {wrong:?}: {:?}", self.access))
    }
}

impl Timed {
    /// The state for this number of disks before any request was sent.
    pub fn new(disks: usize) -> Timed {
        Timed { next_us: 0, ios: 0, sent: 0, unanswered: (0..disks).map(|_| Vec::new()).collect() }
    }

    fn read_bytes(&self, disk: usize, cookie: u64) -> usize {
        let asked = self.unanswered[disk].iter().find(|asked| asked.cookie == cookie);
        asked.map_or(0, Unanswered::read_bytes)
    }

    /// Takes the status of the pool. Returns whether the pool has taken all requests and has nothing left to do at this
    /// time.
    pub fn is_at_rest(&mut self, now_us: u64, told: &Value) -> bool {
        let number = |what: &str| told[what].as_u64().unwrap_or(0);
        (self.next_us, self.ios) = (number("next_us"), number("ios"));
        self.next_us > now_us && number("requests") == self.sent
    }
}

impl Replay {
    fn comes_next(&mut self) -> &mut Timed {
        self.timed.as_mut().expect("I/Os take time")
    }

    pub(super) fn play_timed(&mut self, accesses: &[Access]) -> Result<()> {
        for disk in &mut self.disks {
            disk.wait_at_most(PATIENCE)?;
        }
        self.rest()?;
        for access in accesses.iter().filter(|access| access.op == Op::Flush || access.length_bytes > 0) {
            self.pass_to(access.time_ns / 1000)?;
            self.send(access)?;
            self.rest()?;
            (0..self.disks.len()).try_for_each(|disk| self.take_answers(disk))?;
        }
        while self.comes_next().ios > 0 {
            let next_us = self.comes_next().next_us;
            self.advance(next_us)?;
        }
        for disk in 0..self.disks.len() {
            while !self.comes_next().unanswered[disk].is_empty() {
                let timed = self.timed.as_ref().expect("I/Os take time");
                let answer = self.disks[disk].answer(|cookie| timed.read_bytes(disk, cookie))?;
                self.answered(disk, answer)?;
            }
        }
        Ok(())
    }

    fn send(&mut self, access: &Access) -> Result<()> {
        let (disk, range) = (access.volume.0 as usize, range(access));
        self.write(access);
        let data = self.contents[disk][range.clone()].to_vec();
        let written = if access.op == Op::Write { &data[..] } else { &[] };
        let cookie =
            self.disks[disk].send(command(access), range.start as u64, range.len() as u32, written)?;
        let timed = self.comes_next();
        timed.sent += 1;
        let of_disk = &mut timed.unanswered[disk];
        let writes = of_disk.iter().filter(|other| other.writes()).map(|other| super::range(&other.access));
        let sent = Unanswered { cookie, access: *access, expected: data, written: writes.collect() };
        if sent.writes() {
            of_disk.iter_mut().for_each(|other| other.written.push(range.clone()));
        }
        of_disk.push(sent);
        Ok(())
    }

    /// Takes the answers of a disk that have come.
    fn take_answers(&mut self, disk: usize) -> Result<()> {
        loop {
            let timed = self.timed.as_ref().expect("I/Os take time");
            let answer = self.disks[disk].answer_if_any(|cookie| timed.read_bytes(disk, cookie))?;
            let Some(answer) = answer else { return Ok(()) };
            self.answered(disk, answer)?;
        }
    }

    fn answered(&mut self, disk: usize, (cookie, read): (u64, Vec<u8>)) -> Result<()> {
        let of_disk = &mut self.comes_next().unanswered[disk];
        let at = of_disk.iter().position(|asked| asked.cookie == cookie);
        check(at.is_some(), format!("an answer to request {cookie}, which was not sent"))?;
        at.map_or(Ok(()), |at| of_disk.remove(at).check(&read))
    }

    /// Advances the clock to a request, and stops for the orders and ends of windows before it.
    fn pass_to(&mut self, to_us: u64) -> Result<()> {
        loop {
            let end_us = self.window_end_us().unwrap_or(u64::MAX);
            let order_us = self.orders.front().map_or(u64::MAX, |order| order.at_us);
            if end_us.min(order_us) > to_us {
                return self.advance(to_us);
            }
            if order_us <= end_us {
                self.advance(order_us)?;
                self.give_order()?;
            } else {
                // The daemon's policy acts as soon as the clock shows the end of a window.
                self.advance(end_us - 1)?;
                let next_us = self.comes_next().next_us;
                check(
                    next_us != end_us,
                    format!("something else happens at {end_us} us, when a window ends"),
                )?;
                self.end_window(end_us)?;
            }
        }
    }

    /// Advances the clock step by step, while the pool handles the events that are due by then.
    fn advance(&mut self, to_us: u64) -> Result<()> {
        while self.comes_next().next_us <= to_us {
            let next_us = self.comes_next().next_us;
            self.clock.set(next_us)?;
            self.rest()?;
        }
        if self.clock.now_us < to_us {
            self.clock.set(to_us)?;
            self.rest()?;
        }
        Ok(())
    }
}
