//! vhost-user-blk: the same guests on each back end, under groups of loads. Each group has back ends of its own, set up
//! alike: one disk or many, one way to cache, an image that the cache holds or one that is always missed.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};

use super::contest::{self, Contender, Outcome};
use super::crowd::Crowd;
use super::groups::{Group, Setup, groups};
use super::guest::{Guest, Waiting};
use super::load::Client;
use super::place::Place;
use super::process::Process;
use super::raw::RawClient;
use super::serve::{Caching, Service};
use super::spdk::{self, CacheDevice, Mode};
use super::zram::Zram;
use super::{CACHE_BYTES, Options, SETTLING, figures, fill, peers, report, service};

/// A contender's name, which says how its guests wait.
fn name(what: &str, waiting: Waiting) -> String {
    match waiting {
        Waiting::Interrupt => what.to_string(),
        Waiting::Polling => format!("{what}, guest polling"),
    }
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
        name: &str,
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

    fn engine(&self, what: &str, arenas: u8, program: &Path, waiting: Waiting) -> io::Result<Contender> {
        let name = name(what, waiting);
        let (device, service) = (self.device()?, self.service(&name, arenas)?);
        let cache = device.as_ref().map_or_else(|| service.cache.clone(), Zram::path);
        let service = Service { cache, ..service };
        let sockets: Vec<PathBuf> =
            (0..self.setup.disks).map(|disk| service.vhost_user_socket(disk)).collect();
        Ok(self.contender(&name, service.start_with(program)?, &sockets, waiting)?.on(device))
    }

    fn storage_daemon(&self) -> io::Result<Contender> {
        let socket = self.place.path("storage-daemon");
        let server = peers::storage_daemon_vhost_user(&self.image("storage-daemon")?, &socket)?;
        self.contender("qemu-storage-daemon, direct I/O", server, &[socket], Waiting::Interrupt)
    }

    /// SPDK, if it can cache like that and was found. Its cache is in its own memory, or where the others have theirs.
    fn spdk(&self, what: &str, in_memory: bool, waiting: Waiting) -> io::Result<Option<Contender>> {
        let name = name(what, waiting);
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
        let directory = self.place.path(&name);
        let (disk_bytes, disks) = (self.setup.disk_bytes(), self.setup.disks);
        let setup = spdk::Setup { directory, image: self.image(&name)?, disk_bytes, disks, cache, mode };
        let server = spdk::vhost_user(&program, contest::SERVER_CORE, &setup)?;
        let sockets: Vec<PathBuf> = (0..disks).map(|disk| setup.socket(disk)).collect();
        Ok(Some(self.contender(&name, server, &sockets, waiting)?.on(device)))
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
        Ok([raw.on(device), self.storage_daemon()?])
    }

    fn contenders(&self) -> io::Result<Vec<Contender>> {
        let this = std::env::current_exe()?;
        let mut contenders = Vec::new();
        for waiting in [Waiting::Interrupt, Waiting::Polling] {
            // One thread can drive many guests only by polling.
            if self.setup.disks > 1 && waiting == Waiting::Interrupt {
                continue;
            }
            contenders.push(self.engine("haversack", 1, &this, waiting)?);
            if self.setup.disks > 1 {
                contenders.push(self.engine("haversack, 2 reactors", 2, &this, waiting)?);
            }
            if let Some(program) = &self.options.other {
                contenders.push(self.engine("haversack, other build", 1, program, waiting)?);
            }
            contenders.extend(self.spdk("SPDK with OCF", false, waiting)?);
            if waiting == Waiting::Polling {
                contenders.extend(self.spdk("SPDK with OCF in memory", true, waiting)?);
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
