//! A virtual machine with one disk: its requests, where it runs, and what it may read.

use std::collections::BTreeSet;
use std::ops::Range;

use haversack_core::{DiskConfig, Op, Rejected, Request, RequestError, RequestTag};
use haversack_model::{DiskNo, SECTOR_BYTES, SECTORS_PER_BLOCK, SectorNo};

use super::host::{Host, Shared};
use super::lost::{Lost, Readable};
use crate::memory::SimMemory;
use crate::oracle::{Oracle, Outcome, Tick};
use crate::pattern::Version;
use crate::run::tell;
use crate::world::{Flow, Stop, violation};

#[derive(Clone, Copy)]
struct Pending {
    tag: RequestTag,
    op: Op,
    sector: u64,
    sectors: u32,
    version: Version,
    start: Tick,
    /// When it was submitted, some of its sectors may have been lost, or other sectors of the blocks that it writes in
    /// part.
    may_fail: bool,
}

impl Pending {
    fn changes(&self) -> bool {
        !matches!(self.op, Op::Read | Op::Flush)
    }
}

/// Returns the sectors of the block that a sector of a disk is in.
pub fn block_around(disk: &DiskConfig, sector: u64) -> Range<u64> {
    let before = (SECTORS_PER_BLOCK - u64::from(disk.phase)) % SECTORS_PER_BLOCK;
    let first = (sector + before) / SECTORS_PER_BLOCK * SECTORS_PER_BLOCK;
    first.saturating_sub(before)..(first + SECTORS_PER_BLOCK - before).min(disk.sectors)
}

/// See the module documentation.
pub struct Guest {
    /// Which disk it has, also in its oracle.
    pub of: usize,
    /// The host on which the guest runs, or on which it was stopped.
    pub host: usize,
    /// The guest was stopped on that host, for a move or a rollback.
    pub is_stopped: bool,
    pending: Vec<Pending>,
    /// Requests from before the guest was powered off that are still in flight, each with its host.
    orphans: Vec<(usize, Pending)>,
    /// Sectors whose only copy was on a dead host, unless their loss was accepted.
    pub lost: Lost,
    /// The oracle.
    pub oracle: Oracle,
    /// Requests answered.
    pub requests: u64,
}

impl Guest {
    /// Returns a guest of a disk, at a host.
    pub fn new(of: usize, host: usize, oracle: Oracle) -> Guest {
        Guest {
            of,
            host,
            is_stopped: false,
            pending: Vec::new(),
            orphans: Vec::new(),
            lost: Lost::default(),
            oracle,
            requests: 0,
        }
    }

    /// Returns the number of requests in flight.
    pub fn in_flight(&self) -> usize {
        self.pending.len()
    }

    /// Forgets its requests: it has died.
    pub fn die(&mut self) {
        self.pending.clear();
    }

    /// The host that has its disk has died, or has lost power.
    pub fn crash(&mut self, power: bool) {
        self.oracle.crash(power);
        self.lost.crash(power);
    }

    /// Powers the guest off while its host continues: nobody waits for the answers to its requests.
    pub fn power_off(&mut self) {
        let host = self.host;
        self.orphans.extend(self.pending.drain(..).map(|pending| (host, pending)));
        self.oracle.crash(false);
        self.is_stopped = true;
    }

    /// A host has died, with the requests that were in flight there.
    pub fn forget_orphans(&mut self, at: usize) {
        self.orphans.retain(|(host, _)| *host != at);
    }

    /// Returns the hosts on which requests from before the guest was powered off are still in flight.
    pub fn orphans_at(&self) -> BTreeSet<usize> {
        self.orphans.iter().map(|(host, _)| *host).collect()
    }

    /// Notes that sectors are lost. Writes of them that are in flight may be carried out afterwards.
    pub fn lose(&mut self, sectors: &BTreeSet<u64>) {
        self.lost.add(sectors);
        for pending in self.pending.iter().chain(self.orphans.iter().map(|(_, pending)| pending)) {
            if pending.changes() {
                self.lost.begin_write(pending.sector, pending.sectors);
            }
        }
    }

    /// Submits a random request.
    pub fn submit_any(&mut self, shared: &mut Shared, host: &mut Host, disk: DiskNo) -> Flow {
        let size = shared.plan.disks[self.of].sectors;
        let rng = &mut shared.rng;
        let op = match rng.below(100) {
            0..40 => Op::Write { fua: rng.one_in(8) },
            40..85 => Op::Read,
            85..92 => Op::Flush,
            92..96 => Op::Discard,
            _ => Op::WriteZeroes,
        };
        let sectors = if rng.one_in(2) { 8 } else { rng.skewed(40) }.min(size);
        let first = if rng.one_in(2) { rng.below(size.min(200)) } else { rng.below(size) };
        let first = if rng.one_in(2) { first / 8 * 8 } else { first }.min(size - sectors);
        let (sector, sectors) = if op == Op::Flush { (0, 0) } else { (first, sectors as u32) };
        self.submit(shared, host, disk, op, sector, sectors)
    }

    /// Submits a request.
    pub fn submit(
        &mut self,
        shared: &mut Shared,
        host: &mut Host,
        disk: DiskNo,
        op: Op,
        sector: u64,
        sectors: u32,
    ) -> Flow {
        let changes = !matches!(op, Op::Read | Op::Flush);
        let zero = matches!(op, Op::Discard | Op::WriteZeroes);
        let version = if changes { self.oracle.new_version(self.of, sector, sectors, zero) } else { 0 };
        let (tag, buffer) = host.buffer();
        (buffer.disk, buffer.sector, buffer.version) = (self.of as u16, sector, version);
        if op == Op::Read {
            buffer.bytes.clear();
            buffer.bytes.resize(sectors as usize * SECTOR_BYTES, 0xEE);
        }
        let start = if op == Op::Read { self.oracle.begin_read(self.of) } else { self.oracle.begin_flush() };
        let request = Request { tag, disk, op, sector: SectorNo(sector), sectors };
        tell(|| format!("{:>10} host {} {request:?} version {version}", shared.now, host.place));
        let Some(running) = &mut host.running else { return Ok(()) };
        match running.core.with(&mut running.memory).submit(shared.now, request) {
            Ok(()) => {}
            Err(Rejected::Busy) => {
                running.memory.buffers().0[(tag.0 & 0xFFFF) as usize].tag = 0;
                running.note_wakeup();
                if op == Op::Read {
                    self.oracle.drop_read(self.of, start);
                }
                return Ok(());
            }
            Err(why) => return violation!("{request:?} was rejected on host {}: {why}", host.place),
        }
        let may_fail = self.may_fail(&shared.plan.disks[self.of], op, sector, sectors);
        if changes {
            self.oracle.begin_write(version);
            self.lost.begin_write(sector, sectors);
        }
        self.pending.push(Pending { tag, op, sector, sectors, version, start, may_fail });
        host.pump(shared)?;
        self.take_answers(host)
    }

    /// Whether a request may fail because of lost sectors. A block with lost sectors is only written as a whole.
    fn may_fail(&self, disk: &DiskConfig, op: Op, sector: u64, sectors: u32) -> bool {
        let is_lost = |range: Range<u64>| {
            self.lost.readable(range.start, (range.end - range.start) as u32) != Readable::Yes
        };
        let end = sector + u64::from(sectors);
        match op {
            Op::Flush => false,
            Op::Read => is_lost(sector..end),
            _ => [sector, end - 1]
                .map(|at| block_around(disk, at))
                .into_iter()
                .any(|block| (block.start < sector || block.end > end) && is_lost(block)),
        }
    }

    /// Takes the answers to its requests and checks them.
    pub fn take_answers(&mut self, host: &mut Host) -> Flow {
        let Some(running) = &mut host.running else { return Ok(()) };
        if running.answers.is_empty() {
            return Ok(());
        }
        let answers = std::mem::take(&mut running.answers);
        let (mine, others): (Vec<_>, Vec<_>) =
            answers.into_iter().partition(|(tag, _)| self.has(*tag, &mut running.memory));
        running.answers = others;
        for (tag, result) in mine {
            let is_orphan = |(at, pending): &(usize, Pending)| *at == host.place && pending.tag == tag;
            let orphan = self.orphans.iter().position(is_orphan);
            if let Some(orphan) = orphan {
                self.orphans.swap_remove(orphan);
                running.memory.buffers().0[(tag.0 & 0xFFFF) as usize].tag = 0;
                continue;
            }
            let Some(place) = self.pending.iter().position(|pending| pending.tag == tag) else {
                return violation!("an answer to {tag:?}, which is not in flight");
            };
            let pending = self.pending.swap_remove(place);
            let buffer = &mut running.memory.buffers().0[(tag.0 & 0xFFFF) as usize];
            buffer.tag = 0;
            self.requests += 1;
            self.answered(pending, result, &buffer.bytes, buffer.lost)?;
        }
        Ok(())
    }

    /// Whether a request is this guest's, by its buffer.
    fn has(&self, tag: RequestTag, memory: &mut SimMemory) -> bool {
        usize::from(memory.buffers().0[(tag.0 & 0xFFFF) as usize].disk) == self.of
    }

    fn answered(
        &mut self,
        pending: Pending,
        result: Result<(), RequestError>,
        bytes: &[u8],
        lost: bool,
    ) -> Flow {
        let Pending { op, sector, sectors, version, start, may_fail, .. } = pending;
        if op == Op::Read {
            let has_failed = result == Err(RequestError::DataLost);
            let must_fail = self.lost.readable(sector, sectors) == Readable::No;
            if must_fail || may_fail && has_failed {
                self.oracle.drop_read(self.of, start);
                if !has_failed {
                    return violation!(
                        "sectors of {sector}+{sectors}, which are lost, were read: {result:?}"
                    );
                }
                return Ok(());
            }
        }
        if let Err(error) = result
            && !(error == RequestError::PayloadLost && lost)
            && !(error == RequestError::DataLost && may_fail)
        {
            return violation!("{op:?} at {sector} failed without cause: {error}");
        }
        match op {
            Op::Read => self.oracle.end_read(self.of, start, sector, bytes).map_err(Stop::Violation)?,
            Op::Flush => {
                self.oracle.end_flush(self.of, start);
                self.lost.end_flush(start);
            }
            _ if result.is_err() => self.oracle.end_write(version, Outcome::Unknown),
            _ => {
                let is_durable = op == Op::Write { fua: true };
                let outcome = if is_durable { Outcome::DoneDurable } else { Outcome::Done };
                self.oracle.end_write(version, outcome);
                let now = self.oracle.now();
                self.lost.end_write(sector, sectors, is_durable, now);
            }
        }
        Ok(())
    }
}
