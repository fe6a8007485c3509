//! Front ends that truncate their shared memory while requests are in flight: their connection ends, the daemon and all
//! other clients continue, and a disk never contains anything but written data.

#[path = "../../crates/vhost-user/tests/support/mod.rs"]
mod support;

use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use haversack_e2e::connection::{Command, Connection};
use haversack_e2e::error::check;
use haversack_e2e::haversack::{Disk, Haversack, Settings};
use haversack_e2e::nbdkit::Nbdkit;
use haversack_e2e::tools::{PATIENCE, wait_until};
use haversack_e2e::{Error, Result, image, test};
use haversack_model::random::Random;
use haversack_vhost_user::feature;
use vhost::{VhostBackend, VhostUserDirtyLogRegion, VhostUserMemoryRegionInfo};

use crate::nbd::SLACK;
use support::client::{Client, Inflight, region};
use support::driver::{self, BUFFERS, Driver};
use support::{RAM_BYTES, Ram, memory_file};

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 64;
const QUEUE_SIZE: u16 = 128;
const LOG_BYTES: u64 = RAM_BYTES / 4096 / 8;

/// What a hostile front end cuts short.
#[derive(Clone, Copy, Debug)]
enum Target {
    Rings,
    Buffers,
    Inflight,
    Log,
}

const TARGETS: [Target; 4] = [Target::Rings, Target::Buffers, Target::Inflight, Target::Log];

/// A disk that is attacked, and the number that each of its blocks may be full of.
struct Victim {
    name: &'static str,
    may_be: Vec<Vec<u8>>,
}

impl Victim {
    fn new(name: &'static str) -> Self {
        Self { name, may_be: vec![vec![0]; BLOCKS as usize] }
    }

    /// Reads all blocks: each must be filled with one of its allowed numbers, which is the only allowed one from then
    /// on.
    fn verify(&mut self, daemon: &Haversack) -> Result<()> {
        let mut connection = Connection::open(&daemon.socket("nbd.sock"), self.name)?;
        for (block, may_be) in self.may_be.iter_mut().enumerate() {
            let mut data = [0; BLOCK as usize];
            connection.ask(Command::Read, block as u64 * BLOCK, BLOCK as u32, &mut data)?;
            let found = data[0];
            let what = format!(
                "{}: block {block} starts with {found}, expected all of one of {may_be:?}",
                self.name
            );
            check(may_be.contains(&found) && data == [found; BLOCK as usize], what)?;
            *may_be = vec![found];
        }
        Ok(())
    }
}

struct Attack<'a> {
    daemon: &'a Haversack<'a>,
    numbers: Random,
    version: u8,
}

impl Attack<'_> {
    fn connect(&self, disk: &str, ram: &Ram) -> Client {
        Client::new(&self.daemon.socket(&format!("{disk}.sock")), ram, 0)
    }

    /// Writes blocks full of the next number, from these buffers; does not wait for answers.
    fn submit(&mut self, client: &mut Client, victim: &mut Victim, buffers: Range<u64>) {
        self.version = self.version % 250 + 1;
        let version = self.version;
        for place in buffers {
            let (block, buffer) = (self.numbers.below(BLOCKS), BUFFERS + place * BLOCK);
            client.ram.write(buffer, &[version; BLOCK as usize]);
            if client.queues[0].submit(driver::WRITE, block * 8, &[(buffer, BLOCK as u32)]).is_some() {
                victim.may_be[block as usize].push(version);
            }
        }
    }

    /// A front end that writes, and takes something away.
    fn cut_short(&mut self, victim: &mut Victim, target: Target) -> Result<()> {
        let ram = Ram::new();
        let mut client = self.connect(victim.name, &ram);
        let inflight = matches!(target, Target::Inflight).then(|| {
            let Inflight(shape, ours) = client.new_inflight(1, QUEUE_SIZE);
            Inflight(shape, memory_file(ours.metadata().map_or(0, |file| file.len())))
        });
        client.start(vec![Driver::new(&ram, 0, QUEUE_SIZE)], inflight.as_ref());
        let log = memory_file(LOG_BYTES);
        if matches!(target, Target::Log) {
            let region = VhostUserDirtyLogRegion {
                mmap_size: LOG_BYTES,
                mmap_offset: 0,
                mmap_handle: log.as_raw_fd(),
            };
            client.frontend.set_log_base(0, Some(region)).expect("the log is taken");
            client.frontend.set_features(client.features | feature::LOG_ALL).expect("and used");
        }
        let count = 1 + self.numbers.below(20);
        self.submit(&mut client, victim, 0..count);
        std::thread::sleep(Duration::from_micros(self.numbers.below(1500)));
        let cut = match target {
            Target::Rings => ram.file.set_len(0),
            Target::Buffers => ram.file.set_len(BUFFERS + self.numbers.below(20) * BLOCK),
            Target::Inflight => inflight.as_ref().map_or(Ok(()), |region| region.1.set_len(0)),
            Target::Log => log.set_len(0),
        };
        cut.map_err(haversack_e2e::Error::io("cut short"))?;
        match target {
            Target::Rings => client.queues[0].kick.write(1).expect("rung"),
            Target::Buffers => {
                let beyond = (BUFFERS + 64 * BLOCK, BLOCK as u32);
                client.queues[0].submit(driver::WRITE, 0, &[beyond]);
            }
            Target::Inflight | Target::Log => self.submit(&mut client, victim, 30..31),
        }
        wait_until(&format!("the end of a connection that lost its {target:?}"), PATIENCE, || {
            Ok(client.frontend.get_features().is_err())
        })
    }

    /// A front end that behaves is served by the same socket.
    fn behave(&mut self, victim: &mut Victim) -> Result<()> {
        let ram = Ram::new();
        let mut client = self.connect(victim.name, &ram);
        client.start(vec![Driver::new(&ram, 0, QUEUE_SIZE)], None);
        let (from, to) = (BUFFERS, BUFFERS + BLOCK);
        ram.write(from, &[255; BLOCK as usize]);
        check(client.queues[0].run(driver::WRITE, 8, &[(from, BLOCK as u32)]) == 0, "a write fails")?;
        check(client.queues[0].run(driver::READ, 8, &[(to, BLOCK as u32)]) == 0, "a read fails")?;
        check(ram.bytes(to, BLOCK as usize) == [255; BLOCK as usize], "a read is wrong")?;
        victim.may_be[1] = vec![255];
        Ok(())
    }
}

/// Writes and reads another disk until told to end; every request must succeed promptly.
fn neighbour(daemon: &Haversack, ends: &AtomicBool) -> Result<()> {
    let mut connection = Connection::open(&daemon.socket("nbd.sock"), "neighbour")?;
    for round in 0u64.. {
        let (offset, value) = (round % 512 * BLOCK, (round % 251) as u8);
        let start = Instant::now();
        connection.ask(Command::Write, offset, BLOCK as u32, &mut [value; BLOCK as usize])?;
        let mut data = [0; BLOCK as usize];
        connection.ask(Command::Read, offset, BLOCK as u32, &mut data)?;
        check(data == [value; BLOCK as usize], format!("the neighbour's block at {offset} is wrong"))?;
        check(start.elapsed() < SLACK, "the neighbour waits")?;
        if ends.load(Ordering::Relaxed) {
            break;
        }
    }
    Ok(())
}

#[test]
fn a_front_end_that_unmaps_its_memory_ends_only_its_own_connection() {
    test("front ends that cut their files short", |place| {
        let files = ["wb", "pt", "neighbour"].map(|name| image::zeroes(place, &format!("{name}.img"), 16));
        let [wb, pt, other] = files;
        let disk = |name: &str, file: std::path::PathBuf| Disk::new(name, file.display().to_string());
        let disks =
            vec![disk("wb", wb?), Disk { mode: "pt".into(), ..disk("pt", pt?) }, disk("neighbour", other?)];
        let daemon = Haversack::start(place, Settings::new(128, disks))?;
        let mut attack = Attack {
            daemon: &daemon,
            numbers: Random::new(crate::seed("front ends that cut short")),
            version: 0,
        };
        let mut victims = [Victim::new("wb"), Victim::new("pt")];
        let ends = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let neighbour = scope.spawn(|| neighbour(&daemon, &ends));
            let attacked = crate::rounds(|round| {
                let victim = &mut victims[(round % 2) as usize];
                for target in TARGETS {
                    attack.cut_short(victim, target)?;
                    victim.verify(&daemon)?;
                }
                attack.behave(victim)
            });
            ends.store(true, Ordering::Relaxed);
            attacked.and(neighbour.join().expect("no panic"))
        })?;
        for what in ["guest memory", "in-flight region", "dirty log"] {
            daemon.wait_for_log(&[&format!("the {what} is lost")])?;
        }
        Ok(())
    });
}

/// The reported mean latency must not exceed the time for which the guest has waited and, where writes go to the
/// origin, must not be less than the origin's delay.
#[test]
fn latencies_are_what_the_guest_waits_for() {
    test("latencies over vhost-user", |place| {
        let wb = image::zeroes(place, "wb.img", 16)?;
        let slow = image::zeroes(place, "slow.img", 16)?;
        let file = slow.display().to_string();
        let origin = Nbdkit::start(place, "slow", &["--filter=delay", "file", &file, "wdelay=30ms"])?;
        let pt = Disk { mode: "pt".into(), ..Disk::new("pt", origin.uri()) };
        let disks = vec![Disk::new("wb", wb.display().to_string()), pt];
        let daemon = Haversack::start(place, Settings::new(128, disks))?;
        for (name, least_us) in [("wb", 1.0), ("pt", 30_000.0)] {
            let ram = Ram::new();
            let mut client = Client::new(&daemon.socket(&format!("{name}.sock")), &ram, 0);
            client.start(vec![Driver::new(&ram, 0, QUEUE_SIZE)], None);
            let start = Instant::now();
            for write in 0..50 {
                let status = client.queues[0].run(driver::WRITE, write * 8, &[(BUFFERS, BLOCK as u32)]);
                check(status == 0, "a write fails")?;
            }
            let waited_us = start.elapsed().as_micros() as f64 / 50.0;
            let shown = daemon.json(&["disk", "show", name])?;
            let write = &shown["vhost_user_latency"]["write"];
            let mean_us = write["mean_us"].as_f64().unwrap_or_default();
            place.say(&format!("{name}: {mean_us} us, the guest waited for {waited_us} us a write: {write}"));
            check((least_us..waited_us).contains(&mean_us), format!("{name}: a mean of {mean_us} us"))?;
        }
        Ok(())
    });
}

/// A kick that is a blocking eventfd, which the front end reads as well: the pool's thread is notified of a kick, and
/// must not block until the next one.
#[test]
fn a_front_end_that_reads_its_own_kicks_delays_no_other() {
    test("a front end that steals its kicks", |place| {
        let disk = |name: &str| -> Result<Disk> {
            let file = image::zeroes(place, &format!("{name}.img"), 16)?;
            Ok(Disk::new(name, file.display().to_string()))
        };
        let daemon = Haversack::start(place, Settings::new(128, vec![disk("wb")?, disk("neighbour")?]))?;
        let ends = AtomicBool::new(false);
        let ram = Ram::new();
        let mut client = Client::new(&daemon.socket("wb.sock"), &ram, 0);
        client.start(vec![Driver::new(&ram, 0, QUEUE_SIZE)], None);
        let kick = client.queues[0].kick.try_clone().map_err(Error::io("the kick"))?;
        // SAFETY: the eventfd is open until the end of the block.
        let blocking = unsafe { std::os::fd::BorrowedFd::borrow_raw(kick.as_raw_fd()) };
        rustix::fs::fcntl_setfl(blocking, rustix::fs::OFlags::RDWR).expect("it can be made blocking");
        std::thread::scope(|scope| {
            let neighbour = scope.spawn(|| neighbour(&daemon, &ends));
            let thief = scope.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    let _ = kick.read();
                }
            });
            let start = Instant::now();
            while start.elapsed() < crate::seconds() && !neighbour.is_finished() {
                client.queues[0].kick.write(1).expect("rung");
                std::thread::sleep(Duration::from_micros(200));
            }
            ends.store(true, Ordering::Relaxed);
            let neighbour = neighbour.join().expect("no panic");
            while !thief.is_finished() {
                client.queues[0].kick.write(1).expect("rung");
                std::thread::sleep(Duration::from_millis(1));
            }
            neighbour
        })
    });
}

/// A call eventfd that blocks and is full: the pool's thread must not wait until somebody reads it.
#[test]
fn a_front_end_with_a_full_call_keeps_nobody_waiting() {
    test("a front end with a full call", |place| {
        let disk = |name: &str| -> Result<Disk> {
            let file = image::zeroes(place, &format!("{name}.img"), 16)?;
            Ok(Disk::new(name, file.display().to_string()))
        };
        let daemon = Haversack::start(place, Settings::new(128, vec![disk("wb")?, disk("neighbour")?]))?;
        let ram = Ram::new();
        let mut client = Client::new(&daemon.socket("wb.sock"), &ram, 0);
        client.start(vec![Driver::new(&ram, 0, QUEUE_SIZE)], None);
        let call = client.queues[0].call.try_clone().map_err(Error::io("the call"))?;
        let _ = call.read();
        call.write(u64::MAX - 1).map_err(Error::io("the call"))?;
        // SAFETY: the eventfd is open until the end of the block.
        let blocking = unsafe { std::os::fd::BorrowedFd::borrow_raw(call.as_raw_fd()) };
        rustix::fs::fcntl_setfl(blocking, rustix::fs::OFlags::RDWR).expect("it can be made blocking");
        for _ in 0..5 {
            client.queues[0].submit(driver::FLUSH, 0, &[]).expect("room");
        }
        neighbour(&daemon, &AtomicBool::new(true))?;
        wait_until("the answers", PATIENCE, || {
            while client.queues[0].driver.completed().is_some() {}
            Ok(client.queues[0].driver.in_flight() == 0)
        })?;
        neighbour(&daemon, &AtomicBool::new(true))
    });
}

/// Memory tables that are replaced while requests use them stay mapped, up to the limit of the disk's front ends. The
/// front ends of another disk are not affected.
#[test]
fn a_front_end_that_keeps_replacing_its_memory_takes_no_mappings_of_others() {
    test("a front end with many tables of memory", |place| {
        const QUEUES: u16 = 16;
        const QUEUE_SIZE: u16 = 256;
        const BUFFER: u64 = RAM_BYTES - BLOCK;
        /// More tables than a process can have mapped, and a quarter of the mappings that it may have.
        const TABLES: usize = 3000;
        const A_FOURTH: usize = 4096;
        let origin = Nbdkit::file(place, "origin", &image::zeroes(place, "pt.img", 16)?)?;
        let other = image::zeroes(place, "neighbour.img", 16)?.display().to_string();
        let disks =
            vec![Disk { mode: "pt".into(), ..Disk::new("pt", origin.uri()) }, Disk::new("neighbour", other)];
        let daemon = Haversack::start(place, Settings::new(128, disks))?;
        let ram = Ram::new();
        let mut client = Client::new(&daemon.socket("pt.sock"), &ram, 0);
        let driver = |queue| Driver { indirect: true, ..Driver::new(&ram, queue, QUEUE_SIZE) };
        client.start((0..QUEUES).map(driver).collect(), None);
        let more = memory_file(6 * BLOCK);
        let more = (0..6).map(|at| VhostUserMemoryRegionInfo {
            guest_phys_addr: (1 << 40) + at * BLOCK,
            memory_size: BLOCK,
            userspace_addr: (1 << 40) + at * BLOCK,
            mmap_offset: at * BLOCK,
            mmap_handle: more.as_raw_fd(),
        });
        let regions: Vec<_> = [region(0, &ram), region(1, &ram)].into_iter().chain(more).collect();
        let taken = (0..TABLES).take_while(|table| {
            let queue = &mut client.queues[table % usize::from(QUEUES)];
            queue.submit(driver::READ, 0, &[(BUFFER, BLOCK as u32)]);
            // Long enough for the request to be taken.
            std::thread::sleep(Duration::from_millis(1));
            client.frontend.set_mem_table(&regions).is_ok()
        });
        origin.process().pause()?;
        let mappings = taken.count() * regions.len();
        place.say(&format!("{mappings} mappings"));
        check(mappings <= A_FOURTH, format!("a front end has got {mappings} mappings"))?;

        let ram = Ram::new();
        let mut other = Client::new(&daemon.socket("neighbour.sock"), &ram, 0);
        other.start(vec![Driver::new(&ram, 0, QUEUE_SIZE)], None);
        check(other.queues[0].run(driver::WRITE, 0, &[(BUFFER, BLOCK as u32)]) == 0, "a write fails")?;
        // Once its requests have ended, its own disk can be used again.
        origin.process().resume()?;
        daemon.wait_for_log(&["memory region", "cannot be mapped", "mappings"])?;
        let mut again = Client::new(&daemon.socket("pt.sock"), &ram, 0);
        again.start(vec![Driver::new(&ram, 1, QUEUE_SIZE)], None);
        check(again.queues[0].run(driver::WRITE, 0, &[(BUFFER, BLOCK as u32)]) == 0, "a write fails")
    });
}
