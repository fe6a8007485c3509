//! Random worlds of borrowers, one lender and origins: whatever is lost, repeated, reordered, changed on its way,
//! forgotten or restarted, a read returns what the origin had at some moment while the read was under way.

use std::collections::{BTreeMap, HashMap};

use haversack_lend::{
    BLOCK_BYTES, Borrower, BorrowerSettings, Lender, LenderOutput, LoanNo, Message, Outcome, ReadTicket,
};
use haversack_model::random::Random;
use haversack_model::{DiskId, HostId};

/// Few blocks, so that all kinds of races are frequent.
const BLOCKS: u64 = 48;
const LENDER: HostId = HostId(9);

/// A block's data, from which its disk, number and version can be read.
fn data(disk: DiskId, block: u64, version: u64) -> Vec<u8> {
    let mut data = vec![disk.0[0]; BLOCK_BYTES];
    data[8..16].copy_from_slice(&block.to_le_bytes());
    data[16..24].copy_from_slice(&version.to_le_bytes());
    data
}

fn number(data: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(data[at..at + 8].try_into().unwrap())
}

/// An operation of a disk that is under way.
enum Op {
    /// A read that lenders answer.
    Lent { first: u64, last: u64, began: u64 },
    /// A read of the origin: what it has found, once it has looked.
    Read { first: u64, last: u64, ticket: ReadTicket, found: Option<Vec<u64>> },
    /// A write: whether the origin has it.
    Write { first: u64, last: u64, is_done: bool },
}

struct Disk {
    id: DiskId,
    host: HostId,
    borrower: Borrower,
    /// For each block the versions that it has had, and since when.
    origin: Vec<Vec<(u64, u64)>>,
    versions: u64,
    ops: BTreeMap<u64, Op>,
    next_token: u64,
    served: u64,
}

#[derive(Default)]
struct Totals {
    served: u64,
    missing: u64,
    bad: u64,
    overtaken: u64,
    late: u64,
    given_back: u64,
}

struct World {
    random: Random,
    now: u64,
    disks: Vec<Disk>,
    lender: Lender,
    /// What the lender's flash has.
    flash: HashMap<(LoanNo, u64), Vec<u8>>,
    reads: Vec<(LoanNo, u64, u64)>,
    /// Messages on their way, in both directions.
    to_lender: Vec<(HostId, DiskId, Message)>,
    to_disks: Vec<(HostId, DiskId, Message)>,
    loss_percent: u64,
    write_percent: u64,
    spare: u64,
    totals: Totals,
}

fn borrower(id: DiskId, epoch: u64) -> Borrower {
    Borrower::new(BorrowerSettings { disk: id, disk_blocks: BLOCKS, epoch, lenders: vec![LENDER] })
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = Random::scrambled(seed);
        let disk = |at: u8, epoch| {
            let id = DiskId([at; 16]);
            Disk {
                id,
                host: HostId(u64::from(at % 2)),
                borrower: borrower(id, epoch),
                origin: vec![vec![(0, 0)]; BLOCKS as usize],
                versions: 0,
                ops: BTreeMap::new(),
                next_token: 0,
                served: 0,
            }
        };
        let disks = (1..=3).map(|at| disk(at, random.bits())).collect();
        let loss_percent = [0, 1, 10][random.below(3) as usize];
        let write_percent = [10, 50, 100][random.below(3) as usize];
        World {
            random,
            now: 0,
            disks,
            lender: Lender::new(4096),
            flash: HashMap::new(),
            reads: Vec::new(),
            to_lender: Vec::new(),
            to_disks: Vec::new(),
            loss_percent,
            write_percent,
            spare: 1000,
            totals: Totals::default(),
        }
    }

    fn range(&mut self) -> (u64, u64) {
        let first = self.random.below(BLOCKS);
        let count = [1, 1, 1, 2, 5][self.random.below(5) as usize];
        (first, (first + count - 1).min(BLOCKS - 1))
    }

    fn step(&mut self) {
        // Timers of seconds end too.
        self.now += if self.random.below(300) == 0 { 3_000_000 } else { self.random.below(200) };
        let at = self.random.below(self.disks.len() as u64) as usize;
        match self.random.below(100) {
            0..35 => self.read(at),
            35..42 if self.random.percent(self.write_percent) => self.write(at),
            35..67 => self.advance(at),
            67..79 => self.deliver_to_lender(),
            79..91 => self.deliver_to_disk(),
            91..98 => self.read_flash(),
            98 if self.random.percent(30) => self.mishap(at),
            _ => self.disks[at].borrower.tick(self.now),
        }
        self.drain();
    }

    fn read(&mut self, at: usize) {
        let (first, last) = self.range();
        let (disk, now) = (&mut self.disks[at], self.now);
        disk.next_token += 1;
        let token = disk.next_token;
        if disk.borrower.read(now, token, first, last, &|_| true) {
            disk.ops.insert(token, Op::Lent { first, last, began: now });
        } else {
            let ticket = disk.borrower.read_begins(now);
            disk.ops.insert(token, Op::Read { first, last, ticket, found: None });
        }
    }

    fn write(&mut self, at: usize) {
        let (first, mut last) = self.range();
        if self.random.percent(1) {
            last = BLOCKS - 1;
        }
        let disk = &mut self.disks[at];
        disk.next_token += 1;
        disk.borrower.write_begins(first, last);
        disk.ops.insert(disk.next_token, Op::Write { first, last, is_done: false });
    }

    /// Something happens to an operation at the origin.
    fn advance(&mut self, at: usize) {
        let (now, room) = (self.now, self.random.below(4) as usize + 1);
        let disk = &mut self.disks[at];
        let count = disk.ops.len() as u64;
        if count == 0 {
            return;
        }
        let token = *disk.ops.keys().nth(self.random.below(count) as usize).unwrap();
        match disk.ops.get_mut(&token).unwrap() {
            Op::Lent { .. } => {}
            Op::Read { first, last, found: found @ None, .. } => {
                let newest = |block: u64| disk.origin[block as usize].last().unwrap().1;
                *found = Some((*first..=*last).map(newest).collect());
            }
            Op::Read { first, last, ticket, found: Some(found) } => {
                let (id, first, last) = (disk.id, *first, *last);
                disk.borrower.read_ended(now, *ticket, (first, last), &|_| room, &|_| true, |block| {
                    data(id, block, found[(block - first) as usize])
                });
                disk.ops.remove(&token);
            }
            Op::Write { first, last, is_done: is_done @ false } => {
                *is_done = true;
                disk.versions += 1;
                for block in *first..=*last {
                    disk.origin[block as usize].push((now, disk.versions));
                }
            }
            Op::Write { first, last, is_done: true } => {
                disk.borrower.write_ended(*first, *last);
                disk.ops.remove(&token);
            }
        }
    }

    /// Takes a message from the way, which keeps no order; sometimes it is lost, or comes again later.
    fn take<T: Clone>(random: &mut Random, loss_percent: u64, way: &mut Vec<T>) -> Option<T> {
        if way.is_empty() {
            return None;
        }
        let at = random.below((way.len() as u64).min(4)) as usize;
        let message = if random.percent(2) { way[at].clone() } else { way.remove(at) };
        (!random.percent(loss_percent)).then_some(message)
    }

    fn deliver_to_lender(&mut self) {
        let taken = Self::take(&mut self.random, self.loss_percent, &mut self.to_lender);
        let Some((host, disk, mut message)) = taken else { return };
        if let Message::Put { data, .. } = &mut message
            && self.random.percent(1)
        {
            data[100] ^= 1;
        }
        self.lender.heard(self.now, host, disk, message, self.spare);
    }

    fn deliver_to_disk(&mut self) {
        let taken = Self::take(&mut self.random, self.loss_percent, &mut self.to_disks);
        let Some((host, id, mut message)) = taken else { return };
        if let Message::Got { found: Some((_, data)), .. } = &mut message
            && self.random.percent(1)
        {
            let version = number(data, 16);
            data[16..24].copy_from_slice(&version.saturating_sub(1).to_le_bytes());
            data[40] ^= 1;
        }
        let disk = self.disks.iter_mut().find(|disk| disk.id == id).unwrap();
        assert_eq!(disk.host, host);
        disk.borrower.heard(self.now, LENDER, message);
    }

    /// The lender's flash answers. It may have lost the block, or find it damaged, which its own checksums show.
    fn read_flash(&mut self) {
        if self.reads.is_empty() {
            return;
        }
        let (no, block, ticket) = self.reads.remove(self.random.below(self.reads.len() as u64) as usize);
        if self.random.percent(5) {
            self.flash.remove(&(no, block));
        }
        let found = self.flash.get(&(no, block)).cloned();
        self.lender.read_done(ticket, found);
    }

    fn mishap(&mut self, at: usize) {
        match self.random.below(5) {
            // The borrower's daemon starts again.
            0 => {
                let epoch = self.random.bits();
                let disk = &mut self.disks[at];
                disk.borrower = borrower(disk.id, epoch);
                disk.ops.clear();
            }
            // The disk was at another host meanwhile.
            1 => {
                let disk = &mut self.disks[at];
                for block in 0..BLOCKS as usize {
                    disk.versions += 1;
                    disk.origin[block].push((self.now, disk.versions));
                }
                disk.borrower.void_all(self.now);
            }
            // The lender's daemon starts again.
            2 => {
                self.lender = Lender::new(4096);
                self.flash.clear();
                self.reads.clear();
            }
            3 => {
                self.lender.give_back();
            }
            _ => self.spare = [0, 1000][self.random.below(2) as usize],
        }
    }

    fn drain(&mut self) {
        for at in 0..self.disks.len() {
            while let Some(outcome) = self.disks[at].borrower.poll() {
                let disk = &mut self.disks[at];
                match outcome {
                    Outcome::Send(to, message) => {
                        assert_eq!(to, LENDER);
                        self.to_lender.push((disk.host, disk.id, message));
                    }
                    Outcome::FallBack { token, ticket } => {
                        let op = disk.ops.remove(&token).expect("a read has one outcome");
                        let Op::Lent { first, last, .. } = op else { panic!("not a lent read") };
                        disk.ops.insert(token, Op::Read { first, last, ticket, found: None });
                    }
                    Outcome::Serve { token, blocks } => {
                        let op = disk.ops.remove(&token).expect("a read has one outcome");
                        let Op::Lent { first, last, began } = op else { panic!("not a lent read") };
                        assert_eq!(blocks.len() as u64, last - first + 1);
                        for (block, found) in (first..=last).zip(&blocks) {
                            disk.check(block, found, began, self.now);
                        }
                        disk.served += 1;
                    }
                }
            }
        }
        while let Some(output) = self.lender.poll() {
            match output {
                LenderOutput::Send(host, disk, message) => self.to_disks.push((host, disk, message)),
                LenderOutput::Make { no, .. } if self.random.percent(3) => self.lender.failed(no),
                LenderOutput::Make { .. } => {}
                LenderOutput::Drop(no) => self.flash.retain(|(of, _), _| *of != no),
                LenderOutput::Store { no, block, data } => drop(self.flash.insert((no, block), data)),
                LenderOutput::Read { no, block, ticket } => self.reads.push((no, block, ticket)),
            }
        }
        // A connection holds a bounded number of messages.
        for way in [&mut self.to_lender, &mut self.to_disks] {
            let excess = way.len().saturating_sub(400);
            way.drain(..excess);
        }
    }

    fn count(&mut self) {
        for disk in &self.disks {
            let figures = disk.borrower.figures();
            self.totals.served += disk.served;
            self.totals.missing += figures.missing_blocks;
            self.totals.bad += figures.bad_blocks;
            self.totals.overtaken += figures.overtaken_reads;
            self.totals.late += figures.late_reads;
        }
        self.totals.given_back += self.lender.figures().given_back;
    }
}

impl Disk {
    fn check(&self, block: u64, found: &[u8], began: u64, now: u64) {
        let version = number(found, 16);
        assert!(*found == data(self.id, block, version), "the data is of another block or changed");
        assert_eq!(number(found, 8), block);
        let history = &self.origin[block as usize];
        let at = history.iter().position(|(_, of)| *of == version).expect("the origin had it");
        // It was the newest at some moment from `began` to `now`.
        let until = history.get(at + 1).map_or(u64::MAX, |(since, _)| *since);
        assert!(
            until >= began && history[at].0 <= now,
            "disk {} block {block}: version {version} is old",
            self.id
        );
        // More than that: no write was under way since the copy was made.
        assert_eq!(history.last().unwrap().1, version);
    }
}

#[test]
fn a_lent_read_is_what_the_origin_has() {
    let (worlds, steps) = (1_000, 6_000);
    let mut totals = Totals::default();
    for seed in 0..worlds {
        let mut world = World::new(seed);
        (0..steps).for_each(|_| world.step());
        world.count();
        let its = &world.totals;
        totals.served += its.served;
        totals.missing += its.missing;
        totals.bad += its.bad;
        totals.overtaken += its.overtaken;
        totals.late += its.late;
        totals.given_back += its.given_back;
    }
    // The worlds have reached what they are to check.
    let Totals { served, missing, bad, overtaken, late, given_back } = totals;
    let all = format!(
        "served {served}, missing {missing}, bad {bad}, overtaken {overtaken}, late {late}, back {given_back}"
    );
    assert!(served > 10_000 && missing > 500 && bad > 50, "{all}");
    assert!(overtaken > 50 && late > 50 && given_back > 100, "{all}");
}
