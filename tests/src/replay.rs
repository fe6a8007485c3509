//! Replays a trace to a daemon in the trace's own time: one request at a time, and the clock advances only when
//! everything that the last step has caused is complete. So what the daemon does depends on the trace alone.
//!
//! The daemon's pool has a clock that is a file (`clock_file`). Its reactor checks its timers once a millisecond, so
//! the clock advances by a millisecond. If I/Os take time by a model (`io_times`), the pool reports when its next event
//! is due, and the clock advances to that time, in the same order as in the simulator: first I/Os that end, one by one,
//! then timers, then orders and the ends of windows, then requests. No request waits for the answer to another one.

mod timed;

use std::collections::VecDeque;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use haversack_trace::{Access, Op};
use serde_json::Value;

use self::timed::Timed;
use crate::connection::{Command, Connection};
use crate::control::Control;
use crate::error::check;
use crate::tools::PATIENCE;
use crate::{Error, Place, Result};

/// The step by which the clock advances, in microseconds.
pub const STEP_US: u64 = 1000;
/// How often it is looked whether a window has ended.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// A clock that advances only when it is told to.
#[derive(Debug)]
pub struct SteppedClock {
    path: PathBuf,
    file: File,
    now_us: u64,
}

impl SteppedClock {
    /// A clock at 0, a file in the place.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn new(place: &Place) -> Result<Self> {
        let path = place.path("clock");
        let file = File::create(&path).map_err(Error::io(path.display().to_string()))?;
        let mut clock = Self { path, file, now_us: 0 };
        clock.set(0)?;
        Ok(clock)
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn set(&mut self, now_us: u64) -> Result<()> {
        self.now_us = now_us;
        let path = || self.path.display().to_string();
        self.file.write_all_at(&now_us.to_le_bytes(), 0).map_err(|error| Error::io(path())(error))
    }
}

/// A request of the control API in the midst of a replay: an event of a disk, or a change of its settings.
#[derive(Debug, Clone)]
pub struct Order {
    /// When, in microseconds. Not on a whole millisecond and not at the end of a window, for the reason that
    /// [`Replay::in_windows`] gives.
    pub at_us: u64,
    /// The method of the request, such as `POST`.
    pub method: &'static str,
    /// Its path.
    pub path: String,
    /// Its body.
    pub body: Value,
}

/// A daemon that is played to.
#[derive(Debug)]
pub struct Replay {
    clock: SteppedClock,
    control: Control,
    pool: String,
    disks: Vec<Connection>,
    /// What each disk must contain.
    contents: Vec<Vec<u8>>,
    writes: u64,
    /// Time between two decisions of the daemon's policy, if it has one.
    window_us: Option<u64>,
    /// If I/Os take time: what was sent and what comes next.
    timed: Option<Timed>,
    /// What is still to be ordered, in order of time.
    orders: VecDeque<Order>,
}

impl Replay {
    /// A replay to disks that contain zeroes, in the order of the trace's volumes.
    pub fn new(clock: SteppedClock, control: Control, pool: String, disks: Vec<Connection>) -> Self {
        let contents = disks.iter().map(|disk| vec![0; disk.size_bytes as usize]).collect();
        Self {
            clock,
            control,
            pool,
            disks,
            contents,
            writes: 0,
            window_us: None,
            timed: None,
            orders: VecDeque::new(),
        }
    }

    /// The replay to a pool whose I/Os take time.
    #[must_use]
    pub fn timed(self) -> Self {
        Self { timed: Some(Timed::new(self.disks.len())), ..self }
    }

    /// Adds orders, sorted by time, to the replay. They must not change what a disk contains.
    #[must_use]
    pub fn with_orders(self, orders: Vec<Order>) -> Self {
        Self { orders: orders.into(), ..self }
    }

    /// The replay to a daemon whose policy, set at time 0, decides at this interval: the clock stops at the end of
    /// every window until the decision is made. A window must not end on a whole millisecond: the reactor checks its
    /// timers at that time, sometimes before the decision and sometimes after it.
    #[must_use]
    pub fn in_windows(self, window_us: u64) -> Self {
        Self { window_us: Some(window_us), ..self }
    }

    /// Plays accesses whose times are whole milliseconds. If I/Os take time, the first that asks for anything comes
    /// after 0, when the daemon attaches its disks. Ends when no request and no I/O is in flight.
    ///
    /// # Errors
    /// If a request fails or reads wrong bytes, or the daemon does not come to rest.
    pub fn play(&mut self, accesses: &[Access]) -> Result<()> {
        if self.timed.is_some() {
            return self.play_timed(accesses);
        }
        for access in accesses {
            while self.clock.now_us * 1000 < access.time_ns {
                let step_us = (self.clock.now_us / STEP_US + 1) * STEP_US;
                self.stop_before(step_us)?;
                self.clock.set(step_us)?;
                self.rest()?;
            }
            self.ask(access)?;
            self.rest()?;
        }
        Ok(())
    }

    /// When the present window ends.
    fn window_end_us(&self) -> Option<u64> {
        self.window_us.map(|window_us| (self.clock.now_us / window_us + 1) * window_us)
    }

    /// Stops the clock for orders and for the end of a window, if they are due before this time.
    fn stop_before(&mut self, step_us: u64) -> Result<()> {
        loop {
            let end_us = self.window_end_us().unwrap_or(u64::MAX);
            match self.orders.front().map(|order| order.at_us) {
                Some(at_us) if at_us < step_us && at_us < end_us => self.give_order()?,
                _ if end_us < step_us => self.end_window(end_us)?,
                _ => return Ok(()),
            }
        }
    }

    fn give_order(&mut self) -> Result<()> {
        let Some(Order { at_us, method, path, body }) = self.orders.pop_front() else { return Ok(()) };
        self.clock.set(at_us)?;
        let job = self.control.send(method, &path, Some(&body))?["id"].clone();
        let start = Instant::now();
        while self.jobs_run(&job)? || self.policy()?.1 > 0 {
            check(start.elapsed() < PATIENCE, format!("a job does not end: {path} at {at_us} us"))?;
            std::thread::sleep(LOOK_EVERY);
        }
        self.rest()
    }

    fn end_window(&mut self, end_us: u64) -> Result<()> {
        let before = self.policy()?.0;
        self.clock.set(end_us)?;
        let start = Instant::now();
        loop {
            let (decisions, left) = self.policy()?;
            if decisions != before && left == 0 && !self.jobs_run(&Value::Null)? {
                return self.rest();
            }
            check(start.elapsed() < PATIENCE, format!("nothing is decided at {end_us} us"))?;
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// The number of decisions of the policy so far, including refused ones, and of changes that were decided but not
    /// started.
    fn policy(&mut self) -> Result<(u64, u64)> {
        let policy = self.control.get("/v1/policy")?;
        let count = |what: &str| policy["pools"][0][what].as_u64().unwrap_or(0);
        Ok((count("decisions") + count("refusals"), policy["orders"].as_u64().unwrap_or(0)))
    }

    /// Returns whether the job is still running. If I/Os take no time, any running job counts; otherwise other jobs may
    /// still wait for their I/Os.
    fn jobs_run(&mut self, job: &Value) -> Result<bool> {
        let jobs = self.control.get("/v1/jobs")?;
        let counts = |other: &&Value| self.timed.is_none() || other["id"] == *job;
        let mut jobs = jobs.as_array().into_iter().flatten().filter(counts);
        Ok(jobs.any(|job| job["state"] == "running"))
    }

    /// What the API tells of the pool.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn pool(&mut self) -> Result<Value> {
        self.control.get(&format!("/v1/pools/{}", self.pool))
    }

    /// What the API tells of a disk.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn disk(&mut self, name: &str) -> Result<Value> {
        self.control.get(&format!("/v1/disks/{name}"))
    }

    /// Waits until all that is due has been begun and no I/O is in flight.
    fn rest(&mut self) -> Result<()> {
        let start = Instant::now();
        let now_us = self.clock.now_us;
        let looked_at_us = now_us / STEP_US * STEP_US;
        loop {
            let pool = self.pool()?;
            let is_at_rest = match &mut self.timed {
                None => pool["time_us"] == looked_at_us && pool["ios_in_flight"] == 0,
                Some(timed) => pool["time_us"] == now_us && timed.is_at_rest(now_us, &pool["stepped"]),
            };
            if is_at_rest {
                return Ok(());
            }
            check(start.elapsed() < PATIENCE, format!("no rest at {} us: {pool}", self.clock.now_us))?;
        }
    }

    /// Asks and waits for the answer.
    fn ask(&mut self, access: &Access) -> Result<()> {
        let disk = access.volume.0 as usize;
        self.write(access);
        let (range, mut read) = (range(access), Vec::new());
        let data = match access.op {
            Op::Read => {
                read.resize(range.len(), 0);
                &mut read[..]
            }
            _ => &mut self.contents[disk][range.clone()],
        };
        self.disks[disk].ask(command(access), range.start as u64, range.len() as u32, data)?;
        let is_right = access.op != Op::Read || read == self.contents[disk][range];
        check(is_right, format!("wrong bytes: {access:?}"))
    }

    /// Notes what a disk contains after a request.
    fn write(&mut self, access: &Access) {
        let contents = &mut self.contents[access.volume.0 as usize][range(access)];
        match access.op {
            Op::Write => {
                self.writes += 1;
                let words = self.writes..self.writes + u64::from(access.length_bytes / 8);
                let bytes = words.flat_map(u64::to_le_bytes);
                contents.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
            }
            Op::Discard => contents.fill(0),
            Op::Read | Op::Flush => {}
        }
    }
}

fn command(access: &Access) -> Command {
    match access.op {
        Op::Read => Command::Read,
        Op::Write => Command::Write,
        Op::Discard => Command::Trim,
        Op::Flush => Command::Flush,
    }
}

/// The bytes of an access on its disk. A flush has none.
fn range(access: &Access) -> Range<usize> {
    if access.op == Op::Flush {
        return 0..0;
    }
    let start = access.offset_bytes as usize;
    start..start + access.length_bytes as usize
}
