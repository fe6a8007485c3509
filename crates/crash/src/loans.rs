//! Space that the host lends to other hosts, besides its own disks. Each loan is a disk of the core that no guest has.
//!
//! Checked
//! - What is read under a loan is what was stored under it.
//! - Nothing is read from a loan that is being freed, or from one that was made before a crash or a stop.
//! - The job that frees a loan ends.

use std::collections::HashMap;

use haversack_core::{Copied, DiskConfig, JobId, ManageError, Rejected, RequestError, RequestTag};
use haversack_model::random::Random;
use haversack_model::{BLOCK_BYTES, BlockNo, DiskId, DiskNo, SECTOR_BYTES, SECTORS_PER_BLOCK};

use crate::job::Job;
use crate::memory::Buffer;
use crate::pattern::{self, Content};
use crate::run::tell;
use crate::world::{Flow, World, violation};

/// Marks the tags of requests for blocks of loans; tags of guests' requests do not have this bit.
const TAG: u64 = 1 << 63;
/// The buffers from this one on are for loans.
const FIRST_BUFFER: u64 = 1 << 12;
/// Reads at a time.
const MOST_READS: usize = 2;
/// Maximum number of loans, not counting those that are being freed.
const MOST_LOANS: usize = 3;
/// The disk number in the pattern that is stored under loans.
const LENT: u16 = u16::MAX;
/// Nothing is stored while fewer blocks are free; loans end while fewer than a third of this are free.
const KEPT_BLOCKS: u64 = 3 * 253;

/// A loan.
#[derive(Clone, Copy)]
struct Loan {
    number: u32,
    disk: DiskNo,
    blocks: u64,
    /// The block that was stored last.
    newest: u64,
    is_ending: bool,
}

/// The loans of a host, and the choices about them.
pub struct Loans {
    rng: Random,
    loans: Vec<Loan>,
    made: u32,
    /// The loan and the block that each read is of.
    reads: HashMap<RequestTag, (u32, u64)>,
    next_tag: u64,
}

impl Loans {
    /// There is none yet.
    pub fn new(rng: Random) -> Loans {
        Loans { rng, loans: Vec::new(), made: 0, reads: HashMap::new(), next_tag: 0 }
    }

    /// Called when the process has ended.
    pub fn host_ended(&mut self) {
        self.loans.clear();
        self.reads.clear();
    }

    /// Returns whether a read of a loan is under way.
    pub fn are_read(&self) -> bool {
        !self.reads.is_empty()
    }

    /// Called when the space of a loan is free.
    pub fn freed(&mut self, number: u32) {
        self.loans.retain(|loan| loan.number != number);
    }

    fn pick(&mut self, is_ending: bool) -> Option<usize> {
        let places = self.loans.iter().enumerate().filter(|(_, loan)| loan.is_ending == is_ending);
        let places: Vec<usize> = places.map(|(at, _)| at).collect();
        (!places.is_empty()).then(|| places[self.rng.below(places.len() as u64) as usize])
    }

    /// Returns a block of a loan, often one that was stored not long ago.
    fn block(&mut self, at: usize) -> u64 {
        let Loan { blocks, newest, .. } = self.loans[at];
        if self.rng.one_in(4) { self.rng.below(blocks) } else { newest.saturating_sub(self.rng.below(100)) }
    }

    /// Returns a new tag with a buffer that no read uses.
    fn tag(&mut self) -> RequestTag {
        let is_used = |place: &u64| self.reads.keys().any(|tag| tag.0 & 0xFFFF == *place);
        let place = (FIRST_BUFFER..).find(|place| !is_used(place)).expect("few are used");
        self.next_tag += 1;
        RequestTag(TAG | self.next_tag << 16 | place)
    }
}

/// Returns the identity of a loan's disk.
fn loan_id(number: u32) -> DiskId {
    let mut id = *b"lent\0\0\0\0\0\0\0\0\0\0\0\0";
    id[12..].copy_from_slice(&number.to_le_bytes());
    DiskId(id)
}

/// Returns whether a tag is of a request for a block of a loan.
pub fn is_of_loan(tag: RequestTag) -> bool {
    tag.0 & TAG != 0
}

/// Returns what is stored for a block.
fn content(number: u32, block: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK_BYTES];
    for (at, sector) in bytes.chunks_exact_mut(SECTOR_BYTES).enumerate() {
        pattern::fill(LENT, block * SECTORS_PER_BLOCK + at as u64, number, sector);
    }
    bytes
}

impl World {
    /// Makes, fills, reads or ends a loan, if the host lends.
    pub(crate) fn lend_something(&mut self) -> Flow {
        let Some(mut loans) = self.loans.take() else { return Ok(()) };
        let done = if loans.rng.one_in(4) { self.lend_step(&mut loans) } else { Ok(()) };
        self.loans = Some(loans);
        done?;
        self.pump()
    }

    fn lend_step(&mut self, loans: &mut Loans) -> Flow {
        let free_blocks = self.core.as_ref().map_or(0, |core| core.free_blocks().0);
        if free_blocks < KEPT_BLOCKS / 3 {
            return self.end_loan(loans);
        }
        match loans.rng.below(20) {
            0 => self.make_loan(loans),
            1 => self.end_loan(loans),
            2..10 if free_blocks >= KEPT_BLOCKS => self.store_lent(loans),
            10..16 => self.read_lent(loans),
            _ => self.read_ended(loans),
        }
    }

    fn make_loan(&mut self, loans: &mut Loans) -> Flow {
        if loans.loans.iter().filter(|loan| !loan.is_ending).count() >= MOST_LOANS {
            return Ok(());
        }
        let (number, blocks, now) = (loans.made, loans.rng.range(1, 2000), self.now);
        loans.made += 1;
        let config = DiskConfig::new(loan_id(number), blocks * SECTORS_PER_BLOCK);
        match self.core().lend_space(now, &config) {
            Ok(disk) => loans.loans.push(Loan { number, disk, blocks, newest: 0, is_ending: false }),
            Err(ManageError::Stopping) => {}
            Err(error) => return violation!("lending space was refused: {error}"),
        }
        Ok(())
    }

    fn end_loan(&mut self, loans: &mut Loans) -> Flow {
        let (now, Some(at)) = (self.now, loans.pick(false)) else { return Ok(()) };
        let Loan { number, disk, .. } = loans.loans[at];
        match self.core().end_loan(now, disk) {
            Ok(job) => {
                loans.loans[at].is_ending = true;
                self.frees_loan(job, number);
            }
            Err(ManageError::Stopping) => {}
            Err(error) => return violation!("ending a loan was refused: {error}"),
        }
        Ok(())
    }

    /// Records a job without looking at what the core wants done: the caller does that.
    fn frees_loan(&mut self, job: JobId, number: u32) {
        tell(|| format!("{:>10} {job:?} frees loan {number}", self.now));
        self.jobs.push((job, Job::EndLoan(number)));
    }

    /// Ends all loans.
    pub(crate) fn end_loans(&mut self) -> Flow {
        let Some(mut loans) = self.loans.take() else { return Ok(()) };
        let mut ended = Ok(());
        for _ in 0..loans.loans.len() {
            ended = ended.and_then(|()| self.end_loan(&mut loans));
        }
        self.loans = Some(loans);
        ended?;
        self.pump()
    }

    fn store_lent(&mut self, loans: &mut Loans) -> Flow {
        let (now, Some(at)) = (self.now, loans.pick(false)) else { return Ok(()) };
        let Loan { number, disk, blocks, .. } = loans.loans[at];
        let next = (loans.loans[at].newest + 1) % blocks;
        let first = if loans.rng.one_in(8) { loans.rng.below(blocks) } else { next };
        for block in first..(first + loans.rng.range(1, 40)).min(blocks) {
            loans.loans[at].newest = block;
            let tag = loans.tag();
            *self.lent_buffer(tag) =
                Buffer { tag: tag.0, bytes: content(number, block), is_copy: true, ..Buffer::default() };
            let copied = Copied { mask: u8::MAX, reused: false };
            let stored = self.core().take_copy(now, tag, disk, BlockNo(block), copied);
            self.lent_buffer(tag).tag = 0;
            match stored {
                Ok(is_stored) => self.counts.lent += u64::from(is_stored),
                Err(ManageError::Stopping) => {}
                Err(error) => return violation!("a block of loan {number} was refused: {error}"),
            }
        }
        Ok(())
    }

    fn lent_buffer(&mut self, tag: RequestTag) -> &mut Buffer {
        let at = (tag.0 & 0xFFFF) as usize;
        let buffers = &mut self.memory().buffers().0;
        if buffers.len() <= at {
            buffers.resize_with(at + 1, Buffer::default);
        }
        &mut buffers[at]
    }

    /// Begins to read a block of a loan. Returns whether there is one.
    fn begin_lent_read(&mut self, tag: RequestTag, disk: DiskNo, block: u64) -> Result<bool, Rejected> {
        let now = self.now;
        *self.lent_buffer(tag) = Buffer { tag: tag.0, bytes: vec![0xEE; BLOCK_BYTES], ..Buffer::default() };
        let begun = self.core().read_copy(now, tag, disk, BlockNo(block), 0);
        let is_there = begun.map(|copied| copied.is_some());
        if is_there != Ok(true) {
            self.lent_buffer(tag).tag = 0;
        }
        is_there
    }

    fn read_lent(&mut self, loans: &mut Loans) -> Flow {
        let Some(at) = loans.pick(false).filter(|_| loans.reads.len() < MOST_READS) else { return Ok(()) };
        let Loan { number, disk, .. } = loans.loans[at];
        let (block, tag) = (loans.block(at), loans.tag());
        match self.begin_lent_read(tag, disk, block) {
            Ok(true) => drop(loans.reads.insert(tag, (number, block))),
            Ok(false) | Err(Rejected::Busy) => {}
            Err(error) => return violation!("a read of loan {number} was refused: {error}"),
        }
        Ok(())
    }

    /// Tries to read a loan that is being freed.
    fn read_ended(&mut self, loans: &mut Loans) -> Flow {
        let Some(at) = loans.pick(true).filter(|_| loans.reads.is_empty()) else { return Ok(()) };
        let (Loan { number, disk, .. }, block, tag) = (loans.loans[at], loans.block(at), loans.tag());
        if let Ok(true) = self.begin_lent_read(tag, disk, block) {
            return violation!("block {block} of loan {number} is read although the loan has ended");
        }
        Ok(())
    }

    /// Checks the end of a read of a loan. The block may have been dropped in the meantime.
    pub(crate) fn lent_read_done(&mut self, tag: RequestTag, result: Result<(), RequestError>) -> Flow {
        let read = self.loans.as_mut().and_then(|loans| loans.reads.remove(&tag));
        let Some((number, block)) = read else {
            return violation!("a read of a loan ended that never began, or had ended before: {tag:?}");
        };
        let buffer = self.lent_buffer(tag);
        buffer.tag = 0;
        let bytes = std::mem::take(&mut buffer.bytes);
        if result.is_err() {
            return Ok(());
        }
        self.counts.lent_reads += 1;
        for (at, bytes) in bytes.chunks_exact(SECTOR_BYTES).enumerate() {
            let (sector, found) = (block * SECTORS_PER_BLOCK + at as u64, pattern::recognise(bytes));
            if found != (Content::Data { disk: LENT, sector, version: number }) {
                return violation!("a read of sector {sector} of loan {number} returned {found}");
            }
        }
        Ok(())
    }

    /// Returns whether a disk is that of a loan.
    pub(crate) fn is_loan(&self, id: DiskId) -> bool {
        self.loans.is_some() && id.0.starts_with(b"lent")
    }

    /// Forgets loans from before the start, and checks that nothing can be read from them.
    pub(crate) fn forget_loans(&mut self) -> Flow {
        let Some(mut loans) = self.loans.take() else { return Ok(()) };
        let numbers: Vec<DiskNo> = self.core.iter().flat_map(|core| core.disk_numbers()).collect();
        let mut done = Ok(());
        for disk in numbers {
            let info = self.core.as_ref().and_then(|core| core.disk_info(disk));
            let Some(info) = info.filter(|info| info.id.0.starts_with(b"lent")) else { continue };
            done = done.and_then(|()| self.forget_loan(&mut loans, disk, info.id));
        }
        self.loans = Some(loans);
        done
    }

    fn forget_loan(&mut self, loans: &mut Loans, disk: DiskNo, id: DiskId) -> Flow {
        let (now, tag, block) = (self.now, loans.tag(), loans.rng.below(100));
        if let Ok(true) = self.begin_lent_read(tag, disk, block) {
            return violation!("block {block} of loan {id} is read after a start");
        }
        match self.core().forget(now, disk, None) {
            Ok(job) => self.frees_loan(job, u32::MAX),
            Err(error) => return violation!("loan {id} cannot be forgotten: {error}"),
        }
        Ok(())
    }
}
