//! vhost-user-blk: the same guests on each back end, under groups of loads. Each group has back ends of its own, set up
//! alike: one disk or many, one way to cache, an image that the cache holds or one that is always missed.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::contest::{self, Contender, Event, Outcome};
use super::crowd::Crowd;
use super::guest::{Guest, Waiting};
use super::load::{BLOCK_BYTES, Client, Kind, Load, MOST_BLOCKS, MOST_DEPTH, Order};
use super::place::Place;
use super::process::Process;
use super::raw::RawClient;
use super::serve::{Caching, Service};
use super::spdk::{self, CacheDevice, Mode};
use super::zram::Zram;
use super::{BLOCKS, CACHE_BYTES, Options, SETTLING, figures, fill, peers, report, service};

/// Blocks that are written: 16 MiB, so that little is dirty and the cleaner has no reason to work.
const WRITTEN_BLOCKS: u64 = 4096;
/// The number of writes that fit in the staging area, and the pause in which they are committed to flash.
const BURST: (u64, Duration) = (4096, Duration::from_millis(200));
/// Blocks of a disk that is always missed: 1 TiB, of which 1 GiB fits in the cache. Its image is sparse, so a miss costs what the
/// caches do about it.
const MISSED_BLOCKS: u64 = 1 << 28;

/// The contenders, by how their guests wait: the engine with one reactor and with two, another build of it, SPDK with its cache
/// in a file and in its own memory.
const NAMES: [(Waiting, [&str; 5]); 2] = [
    (
        Waiting::Interrupt,
        ["haversack", "haversack-2", "haversack, other build", "SPDK with OCF", "SPDK with OCF in memory"],
    ),
    (
        Waiting::Polling,
        [
            "haversack, guest polling",
            "haversack, 2 reactors, guest polling",
            "haversack, other build, guest polling",
            "SPDK with OCF, guest polling",
            "SPDK with OCF in memory, guest polling",
        ],
    ),
];

/// What the back ends of a contest serve.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// How disks are cached.
    pub caching: Caching,
    /// How many there are.
    pub disks: u16,
    /// Blocks of each disk.
    pub blocks: u64,
}

impl Setup {
    /// Bytes of a disk.
    pub fn disk_bytes(&self) -> u64 {
        self.blocks * BLOCK_BYTES as u64
    }

    /// Whether the cache holds all blocks.
    fn is_cached(&self) -> bool {
        self.blocks * u64::from(self.disks) <= BLOCKS
    }

    /// Whether blocks have their numbers in them.
    fn has_numbers(&self) -> bool {
        self.disks == 1 && self.is_cached()
    }
}

/// A contest: back ends that are set up alike, and loads.
struct Group {
    title: &'static str,
    setup: Setup,
    events: Vec<Event>,
}

fn one(caching: Caching, blocks: u64) -> Setup {
    Setup { caching, disks: 1, blocks }
}

fn many(disks: u16) -> Setup {
    Setup { caching: Caching::WriteBack, disks, blocks: BLOCKS / u64::from(disks) }
}

fn groups() -> Vec<Group> {
    let reads = |depth| Load::random(Kind::Read, depth, BLOCKS);
    let writes = |depth| Load::random(Kind::Write, depth, WRITTEN_BLOCKS);
    let mixed = |depth, blocks| Load { reads_percent: 70, ..Load::random(Kind::Read, depth, blocks) };
    let flushed = |depth| Load { flushes: true, ..writes(depth) };
    let runs = Load { order: Order::Sequential, request_blocks: MOST_BLOCKS, ..reads(8) };
    let misses = |depth| Load::random(Kind::Read, depth, MISSED_BLOCKS);
    let missed = ["miss QD1", "miss QD8", "miss QD32"];
    let missed = || missed.into_iter().zip([1, 8, MOST_DEPTH].map(misses));
    let events =
        |of: Vec<(&'static str, Load)>| of.into_iter().map(|(name, load)| Event::new(name, load)).collect();
    vec![
        Group {
            title: "one disk, write-back",
            setup: one(Caching::WriteBack, BLOCKS),
            events: events(vec![
                ("read hit QD1", reads(1)),
                ("read hit QD8", reads(8)),
                ("read hit QD32", reads(MOST_DEPTH)),
                ("read hit 128 KiB sequential QD8", runs),
                ("write QD1 in bursts of 16 MiB", Load { burst: Some(BURST), ..writes(1) }),
                ("write QD1", writes(1)),
                ("write QD8", writes(8)),
                ("write QD32", writes(MOST_DEPTH)),
                ("write and flush QD1", flushed(1)),
                ("write and flush QD8", flushed(8)),
                ("70 % reads QD1", mixed(1, BLOCKS)),
                ("70 % reads QD8", mixed(8, BLOCKS)),
                ("70 % reads QD32", mixed(MOST_DEPTH, BLOCKS)),
            ]),
        },
        Group {
            title: "one disk, write-through",
            setup: one(Caching::WriteThrough, BLOCKS),
            events: events(vec![
                ("write QD1", writes(1)),
                ("write QD8", writes(8)),
                ("write QD32", writes(MOST_DEPTH)),
                ("70 % reads QD8", mixed(8, BLOCKS)),
            ]),
        },
        Group {
            title: "one disk, misses that enter",
            setup: one(Caching::WriteBack, MISSED_BLOCKS),
            events: events(missed().collect()),
        },
        Group {
            title: "one disk, misses that are kept out",
            setup: one(Caching::OnSecondMiss, MISSED_BLOCKS),
            events: events(missed().collect()),
        },
        Group {
            title: "4 disks",
            setup: many(4),
            events: events(vec![
                ("read hit QD8 each", Load::random(Kind::Read, 4 * 8, many(4).blocks)),
                ("70 % reads QD8 each", mixed(4 * 8, many(4).blocks)),
            ]),
        },
        Group {
            title: "100 disks",
            setup: many(100),
            events: events(vec![
                ("read hit QD1 each", Load::random(Kind::Read, 100, many(100).blocks)),
                ("70 % reads QD1 each", mixed(100, many(100).blocks)),
            ]),
        },
    ]
}

/// What is needed to set up the contenders of a group.
struct Scene<'a> {
    options: &'a Options,
    place: &'a Place,
    setup: Setup,
}

impl Scene<'_> {
    /// An image of its own for a contender: an image has one writer.
    fn image(&self, contender: &str) -> io::Result<PathBuf> {
        let name = format!("{contender} image");
        if self.setup.is_cached() {
            return self.place.image(&name, self.setup.blocks);
        }
        let path = self.place.path(&name);
        std::fs::File::create(&path)?.set_len(self.setup.disk_bytes())?;
        Ok(path)
    }

    /// Boots guests on the sockets of a server, and has them read what the cache is to hold.
    fn boot(
        &self,
        server: &mut Process,
        sockets: &[PathBuf],
        waiting: Waiting,
    ) -> io::Result<Box<dyn Client>> {
        let checks = self.setup.has_numbers();
        let mut guests = Vec::new();
        for socket in sockets {
            let mut guest = server.patiently(|| Guest::boot(socket, waiting, checks))?;
            if self.setup.is_cached() {
                fill(&mut guest, self.setup.blocks)?;
            }
            guests.push(guest);
        }
        match guests.pop() {
            Some(guest) if guests.is_empty() => Ok(Box::new(guest)),
            last => Ok(Box::new(Crowd::new(guests.into_iter().chain(last).collect()))),
        }
    }

    fn contender(
        &self,
        name: &'static str,
        mut server: Process,
        sockets: &[PathBuf],
        waiting: Waiting,
    ) -> io::Result<Contender> {
        let client = self
            .boot(&mut server, sockets, waiting)
            .map_err(|error| io::Error::new(error.kind(), format!("{name}: {error}")))?;
        Ok(Contender::new(name, client, Some(server)))
    }

    fn service(&self, name: &str, arenas: u8) -> io::Result<Service> {
        let service = service(self.options, self.place, name, &self.image(name)?, self.setup.disks)?;
        let (caching, disk_bytes) = (self.setup.caching, self.setup.disk_bytes());
        Ok(Service { caching, disk_bytes, arenas, ..service })
    }

    /// A device for a cache, if it is not a file.
    fn device(&self) -> io::Result<Option<Zram>> {
        self.options.zram.then(|| Zram::new(CACHE_BYTES)).transpose()
    }

    fn engine(
        &self,
        name: &'static str,
        service: Service,
        program: &Path,
        waiting: Waiting,
    ) -> io::Result<Contender> {
        let device = self.device()?;
        let cache = device.as_ref().map_or_else(|| service.cache.clone(), Zram::path);
        let service = Service { cache, ..service };
        let sockets: Vec<PathBuf> =
            (0..self.setup.disks).map(|disk| service.vhost_user_socket(disk)).collect();
        let contender = self.contender(name, service.start_with(program)?, &sockets, waiting)?;
        Ok(Contender { _device: device, ..contender })
    }

    fn storage_daemon(&self) -> io::Result<Contender> {
        let socket = self.place.path("storage-daemon");
        let server = peers::storage_daemon_vhost_user(&self.image("storage-daemon")?, &socket)?;
        self.contender("qemu-storage-daemon, direct I/O", server, &[socket], Waiting::Interrupt)
    }

    /// SPDK, if it can cache like that and was found. Its cache is in its own memory, or where the others have theirs.
    fn spdk(&self, name: &'static str, in_memory: bool, waiting: Waiting) -> io::Result<Option<Contender>> {
        let mode = match self.setup.caching {
            Caching::WriteBack => Mode::WriteBack,
            Caching::WriteThrough => Mode::WriteThrough,
            Caching::OnSecondMiss => return Ok(None),
        };
        let Some(program) = spdk::find(self.options.spdk.as_deref()) else { return Ok(None) };
        let device = if in_memory { None } else { self.device()? };
        let file = || self.place.path(&format!("{name} cache"));
        let cache = match in_memory {
            true => CacheDevice::Memory(CACHE_BYTES),
            false => CacheDevice::File(device.as_ref().map_or_else(file, Zram::path), CACHE_BYTES),
        };
        let directory = self.place.path(name);
        let (disk_bytes, disks) = (self.setup.disk_bytes(), self.setup.disks);
        let setup = spdk::Setup { directory, image: self.image(name)?, disk_bytes, disks, cache, mode };
        let server = spdk::vhost_user(&program, contest::SERVER_CORE, &setup)?;
        let sockets: Vec<PathBuf> = (0..disks).map(|disk| setup.socket(disk)).collect();
        let contender = self.contender(name, server, &sockets, waiting)?;
        Ok(Some(Contender { _device: device, ..contender }))
    }

    /// The device itself, with the image on it, and a server that does not cache.
    fn uncached(&self) -> io::Result<[Contender; 2]> {
        let (image, device) = (self.image("raw")?, self.device()?);
        if let Some(device) = &device {
            std::fs::copy(&image, device.path())?;
        }
        let path = device.as_ref().map_or(image, Zram::path);
        let raw =
            Contender::new("the device itself, io_uring", Box::new(RawClient::open(&path, true)?), None);
        Ok([Contender { _device: device, ..raw }, self.storage_daemon()?])
    }

    fn contenders(&self) -> io::Result<Vec<Contender>> {
        let this = std::env::current_exe()?;
        let mut contenders = Vec::new();
        for (waiting, names) in NAMES {
            // One thread can drive many guests only by polling.
            if self.setup.disks > 1 && waiting == Waiting::Interrupt {
                continue;
            }
            let [ours, two, other, spdk, spdk_memory] = names;
            contenders.push(self.engine(ours, self.service(ours, 1)?, &this, waiting)?);
            if self.setup.disks > 1 {
                contenders.push(self.engine(two, self.service(two, 2)?, &this, waiting)?);
            }
            if let Some(program) = &self.options.other {
                contenders.push(self.engine(other, self.service(other, 1)?, program, waiting)?);
            }
            contenders.extend(self.spdk(spdk, false, waiting)?);
            if waiting == Waiting::Polling {
                contenders.extend(self.spdk(spdk_memory, true, waiting)?);
            }
        }
        if self.setup.has_numbers() && self.setup.caching == Caching::WriteBack {
            contenders.extend(self.uncached()?);
        }
        Ok(contenders)
    }
}

fn contest(options: &Options, place: &Place, title: &str, group: &Group) -> Result<Outcome, Box<dyn Error>> {
    let scene = Scene { options, place, setup: group.setup };
    let mut contenders = scene.contenders()?;
    std::thread::sleep(SETTLING);
    let before = figures(&mut contenders[0])?;
    let outcome = contest::hold(title, &mut contenders, &group.events, options.round)?;
    report(options, &outcome, before, figures(&mut contenders[0])?);
    Ok(outcome)
}

/// Measures and prints.
pub fn run(options: &Options, directory: &Path, place: &Place) -> Result<Vec<Outcome>, Box<dyn Error>> {
    let has =
        |text: &str, part: &Option<String>| part.as_ref().is_none_or(|part| text.contains(part.as_str()));
    let caches = if options.zram { ", caches on zram" } else { "" };
    let mut outcomes = Vec::new();
    for mut group in groups().into_iter().filter(|group| has(group.title, &options.group)) {
        group.events.retain(|event| has(event.name, &options.load));
        if !group.events.is_empty() {
            let title = format!("vhost-user-blk on {}{caches}, {}", directory.display(), group.title);
            outcomes.push(contest(options, place, &title, &group)?);
        }
    }
    Ok(outcomes)
}
