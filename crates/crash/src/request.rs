//! Guest requests: submission, completion, checking.

use haversack_core::{Op, Rejected, Request, RequestError, RequestTag};
use haversack_model::{SECTOR_BYTES, SectorNo};

use crate::job::Job;
use crate::loans::{Loans, is_of_loan};
use crate::memory::Buffer;
use crate::oracle::{Outcome, Tick};
use crate::pattern::Version;
use crate::run::tell;
use crate::world::{CrashKind, Flow, Life, Stop, World, violation};

/// A request in flight.
#[derive(Clone, Copy, Debug)]
pub struct Pending {
    /// Its tag.
    pub tag: RequestTag,
    /// The disk.
    pub disk: usize,
    /// What it does.
    pub op: Op,
    /// First sector.
    pub sector: u64,
    /// Number of sectors.
    pub sectors: u32,
    start: Tick,
    version: Version,
    /// The disk's number of mode changes at submission, if the cache can take all writes of the disk.
    deferred_since: Option<u64>,
}

/// Steps of a wait that count as a hang.
const MOST_STEPS: u32 = 600_000;

impl World {
    /// Submits a request; returns false if the core is too busy to accept it.
    pub fn submit(&mut self, disk: usize, op: Op, sector: u64, sectors: u32) -> Flow<bool> {
        self.submit_and(disk, op, sector, sectors, false)
    }

    /// Submits a request as soon as the core accepts it; gives up if the disk goes away in the meantime.
    pub fn push(&mut self, disk: usize, op: Op, sector: u64, sectors: u32) -> Flow {
        for _ in 0..300_000 {
            if self.disks[disk].life != Life::Attached || self.submit(disk, op, sector, sectors)? {
                return Ok(());
            }
            if !self.advance()? {
                break;
            }
        }
        violation!(
            "hang: {op:?} of disk {disk} is not taken; {} requests in flight, jobs {:?}",
            self.pending,
            self.jobs
        )
    }

    /// Submits a request and kills the process within the call.
    pub fn submit_and_die(&mut self, disk: usize, op: Op, sector: u64, sectors: u32) -> Flow<bool> {
        self.submit_and(disk, op, sector, sectors, true)
    }

    fn submit_and(&mut self, disk: usize, op: Op, sector: u64, sectors: u32, die: bool) -> Flow<bool> {
        let Some(no) = self.disks[disk].no else {
            return Ok(false);
        };
        let slot = self.requests.iter().position(Option::is_none).unwrap_or(self.requests.len());
        if slot == self.requests.len() {
            self.requests.push(None);
        }
        self.sequence += 1;
        let tag = RequestTag(self.sequence << 16 | slot as u64);
        let changes = !matches!(op, Op::Read | Op::Flush);
        let zero = matches!(op, Op::Discard | Op::WriteZeroes);
        let version = if changes { self.oracle.new_version(disk, sector, sectors, zero) } else { 0 };
        let buffers = self.memory().buffers();
        while buffers.0.len() <= slot {
            buffers.0.push(Buffer::default());
        }
        let buffer = &mut buffers.0[slot];
        (buffer.tag, buffer.disk, buffer.sector, buffer.version) = (tag.0, disk as u16, sector, version);
        (buffer.lost, buffer.is_copy) = (false, false);
        if op == Op::Read {
            buffer.bytes.resize(sectors as usize * SECTOR_BYTES, 0);
            for one in buffer.bytes.chunks_exact_mut(SECTOR_BYTES) {
                one[..8].fill(0xEE);
            }
        }
        let start = match op {
            Op::Read => self.oracle.begin_read(disk),
            _ => self.oracle.begin_flush(),
        };
        let now = self.now;
        if die {
            self.arm();
        }
        let request = Request { tag, disk: no, op, sector: SectorNo(sector), sectors };
        tell(|| format!("{now:>10} {request:?} version {version}"));
        let taken = self.core().submit(now, request);
        if taken.is_ok() {
            if changes {
                self.oracle.begin_write(version);
                self.disks[disk].note_write(sector, u64::from(sectors));
            }
            let deferred_since = self.defers(disk).then_some(self.disks[disk].mode_changes);
            self.requests[slot] =
                Some(Pending { tag, disk, op, sector, sectors, start, version, deferred_since });
            self.pending += 1;
        } else {
            self.memory().buffers().0[slot].tag = 0;
            if op == Op::Read {
                self.oracle.drop_read(disk, start);
            }
        }
        if die {
            return Err(Stop::Crash(CrashKind::Kill));
        }
        self.pump()?;
        let lends = self.loans.as_ref().is_some_and(Loans::are_read);
        let leaving = self.disks[disk].life != Life::Attached;
        match taken {
            Ok(()) => Ok(true),
            Err(Rejected::Busy) if self.pending > 0 || lends => Ok(false),
            Err(Rejected::NotOwner | Rejected::NoSuchDisk(_)) if leaving => Ok(false),
            Err(why) => violation!(
                "{op:?} of disk {disk} at {sector}+{sectors} was rejected with {} requests in flight: {why}",
                self.pending
            ),
        }
    }

    pub(crate) fn completed(&mut self, tag: RequestTag, result: Result<(), RequestError>) -> Flow {
        if is_of_loan(tag) {
            return self.lent_read_done(tag, result);
        }
        let slot = (tag.0 & 0xFFFF) as usize;
        let Some(request) = self.requests.get(slot).copied().flatten().filter(|r| r.tag == tag) else {
            return violation!("a completion for {tag:?}, which is not in flight");
        };
        self.requests[slot] = None;
        self.pending -= 1;
        self.counts.requests += 1;
        let disk = request.disk;
        let lost = self.memory().buffers().0[slot].lost;
        match result {
            Err(error) => {
                self.counts.errors += 1;
                self.judge_error(&request, error, lost)?;
            }
            Ok(()) if lost => return violation!("{request:?} succeeded, although its data was lost"),
            Ok(()) => {}
        }
        match request.op {
            Op::Read => {
                let buffer = &mut self.memory().buffers().0[slot];
                buffer.tag = 0;
                if result.is_err() {
                    self.oracle.drop_read(disk, request.start);
                    return Ok(());
                }
                let bytes = std::mem::take(&mut buffer.bytes);
                let verdict = self.oracle.end_read(disk, request.start, request.sector, &bytes);
                self.memory().buffers().0[slot].bytes = bytes;
                verdict.map_err(Stop::Violation)
            }
            Op::Flush => {
                self.memory().buffers().0[slot].tag = 0;
                if result.is_ok() {
                    self.oracle.end_flush(disk, request.start);
                    let d = &mut self.disks[disk];
                    d.volatile_until = d.volatile_until.max(request.start);
                    self.forget_repaired(disk, request.start);
                }
                Ok(())
            }
            op => {
                self.memory().buffers().0[slot].tag = 0;
                let outcome = match (result, op) {
                    (Err(_), _) => Outcome::Unknown,
                    (Ok(()), Op::Write { fua: true }) => Outcome::DoneDurable,
                    (Ok(()), _) => Outcome::Done,
                };
                self.oracle.end_write(request.version, outcome);
                if self.recent.len() >= 256 {
                    let at = self.rng.below(256) as usize;
                    self.recent.swap_remove(at);
                }
                self.recent.push((disk, request.sector, request.sectors));
                Ok(())
            }
        }
    }

    fn judge_error(&mut self, request: &Pending, error: RequestError, lost: bool) -> Flow {
        let disk = &self.disks[request.disk];
        let fair = match error {
            RequestError::Origin => {
                let needs_origin = match request.op {
                    Op::Read => true,
                    Op::Flush => disk.volatile_since > disk.volatile_until,
                    // Force unit access includes a flush.
                    _ => {
                        request.deferred_since != Some(disk.mode_changes)
                            || request.op == Op::Write { fua: true }
                                && disk.volatile_since > disk.volatile_until
                    }
                };
                disk.last_error > request.start && needs_origin
            }
            RequestError::DataLost => {
                let mut sectors = request.sector..request.sector + u64::from(request.sectors);
                if request.op != Op::Read {
                    // A write that leaves lost sectors of a block unwritten is refused, whichever other sectors it
                    // writes.
                    sectors = disk.whole_blocks(sectors);
                }
                let lost = if self.plan.faults.name_what_is_lost() {
                    sectors.any(|at| disk.lost.contains(&at))
                } else {
                    disk.may_be_dirty(request.sector, u64::from(request.sectors))
                };
                self.unprotected_fault && (request.op == Op::Flush || lost && self.is_named(request))
            }
            RequestError::NotOwner => matches!(disk.life, Life::Releasing | Life::Released),
            RequestError::Detached => matches!(disk.life, Life::Leaving | Life::Detached),
            RequestError::PayloadLost => lost,
            RequestError::PeerLost => false,
        };
        if fair {
            return Ok(());
        }
        violation!(
            "{:?} of disk {} at {}+{} failed without cause: {error} (disk {:?}, last origin error at {}, request began {}, unprotected fault: {})",
            request.op,
            request.disk,
            request.sector,
            request.sectors,
            disk.life,
            disk.last_error,
            request.start,
            self.unprotected_fault
        )
    }

    /// Returns whether the core names lost sectors that the request touches. It does, unless a device fails reads or
    /// the sectors were written since.
    fn is_named(&self, request: &Pending) -> bool {
        let (Some(core), Some(no)) = (&self.core, self.disks[request.disk].no) else { return false };
        let end = request.sector + u64::from(request.sectors) + 8;
        let mut runs = core.lost_runs(no).into_iter();
        self.plan.faults.read_errors
            || !self.oracle.quiet_since(request.disk, request.start)
            || runs.any(|(first, sectors)| first.0 < end && request.sector < first.0 + sectors + 8)
    }

    /// Returns whether the cache takes all writes of a disk, so that none needs the origin: it does as long as there
    /// is a device for them. With redundancy there may be room for one copy but not for the mirrored one.
    fn defers(&self, disk: usize) -> bool {
        let changing = self.jobs.iter().any(|(_, job)| matches!(job, Job::Mode(of, _) if *of == disk));
        self.disks[disk].config.mode.defers_origin()
            && !changing
            && !self.plan.redundancy
            && !self.plan.faults.of_devices()
            && self.losses.is_none()
    }

    /// Advances time until no request is in flight.
    pub fn drain(&mut self) -> Flow {
        self.wait("requests", |world| world.pending == 0)
    }

    /// Advances time until `ready`; taking too long is a violation.
    pub(crate) fn wait(&mut self, what: &str, ready: impl Fn(&World) -> bool) -> Flow {
        let mut steps = 0u32;
        let begin = self.now;
        while !ready(self) {
            steps += 1;
            if steps == MOST_STEPS / 2 {
                // Waiting for an origin that stays away, while other requests are retried, is not a hang.
                self.heal();
            }
            let faults_over = self.disks.iter().all(|d| d.outage_until <= begin);
            let late = steps > MOST_STEPS || (faults_over && self.now > begin + 900_000_000);
            if late || !self.advance()? {
                let pending: Vec<_> = self.requests.iter().flatten().take(8).collect();
                return violation!(
                    "hang: {what} not done after {steps} steps and {} virtual ms; requests {pending:?}; jobs {:?}; {} I/Os in flight",
                    (self.now - begin) / 1000,
                    self.jobs,
                    self.due.len()
                );
            }
        }
        Ok(())
    }
}
