//! What runs on the host: the origins, Haversack, and the files that are the cache devices of the kernel's caches; and the
//! disks that the guest has of them.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

use haversack_e2e::haversack::{Disk, Haversack, Settings};
use haversack_e2e::nbdkit::Nbdkit;
use haversack_e2e::{Attachment, MIB, Place, image};

use super::{CACHE_MIB, DISK_MIB, Failure, ORIGIN_MS, STAGING_MIB};

/// Haversack's disk.
pub const DISK: &str = "vm1";
/// What bcache keeps for itself at the start of its origin.
const BCACHE_BYTES: u64 = 8192;

/// A way to access an origin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Haversack, over vhost-user-blk.
    Haversack,
    /// dm-cache with the smq policy.
    DmCache,
    /// bcache.
    Bcache,
    /// dm-writecache.
    Writecache,
    /// The origin itself.
    Bare,
}

/// In the order of the tables: the first one is compared with the others.
const KINDS: [Kind; 5] = [Kind::Haversack, Kind::DmCache, Kind::Bcache, Kind::Writecache, Kind::Bare];

impl Kind {
    /// What it is called in tables.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Haversack => "haversack",
            Kind::DmCache => "dm-cache (smq)",
            Kind::Bcache => "bcache",
            Kind::Writecache => "dm-writecache",
            Kind::Bare => "no cache",
        }
    }

    /// A short name for files and sockets.
    fn key(self) -> &'static str {
        match self {
            Kind::Haversack => "haversack",
            Kind::DmCache => "dmcache",
            Kind::Bcache => "bcache",
            Kind::Writecache => "writecache",
            Kind::Bare => "bare",
        }
    }

    /// Whether it is a cache of the guest's kernel.
    fn is_in_the_kernel(self) -> bool {
        matches!(self, Kind::DmCache | Kind::Bcache | Kind::Writecache)
    }
}

/// A contender, and the names that its disks have in the guest.
#[derive(Clone, Debug)]
pub struct Contender {
    /// What it is.
    pub kind: Kind,
    /// The device under load, in `/dev`.
    pub device: String,
    /// The disk that is its origin, or Haversack's.
    pub disk: String,
    /// The disk that is its cache device; the kernel's caches have one.
    pub cache: Option<String>,
    /// The log of its origin's requests.
    pub log: std::path::PathBuf,
}

/// Everything that runs on the host.
pub struct Hosts<'a> {
    /// Haversack.
    pub daemon: Haversack<'a>,
    place: &'a Place,
    origins: Vec<Nbdkit>,
}

impl<'a> Hosts<'a> {
    /// Starts it.
    pub fn start(place: &'a Place) -> Result<Self, Failure> {
        let mut origins = Vec::new();
        for kind in KINDS {
            origins.push(origin(place, kind)?);
            if kind.is_in_the_kernel() {
                cache_device(&cache_path(place, kind))?;
            }
        }
        let disk = Disk::new(DISK, origins[0].uri());
        let settings = Settings { staging_mib: STAGING_MIB, ..Settings::new(CACHE_MIB, vec![disk]) };
        Ok(Self { daemon: Haversack::start(place, settings)?, place, origins })
    }

    /// The disks of the guest, in the order that [`Hosts::contenders`] expects.
    pub fn disks(&self) -> Vec<Attachment> {
        let mut disks = Vec::new();
        for (kind, origin) in KINDS.into_iter().zip(&self.origins) {
            disks.push(match kind {
                Kind::Haversack => self.daemon.vhost_user(DISK),
                _ => Attachment::Nbd {
                    socket: origin.socket().to_owned(),
                    export: String::new(),
                    reconnect_s: 0,
                },
            });
            if kind.is_in_the_kernel() {
                disks.push(Attachment::File(cache_path(self.place, kind)));
            }
        }
        disks
    }

    /// All contenders, with the guest's names of their disks.
    pub fn contenders(&self) -> Vec<Contender> {
        let mut names = ('a'..='z').map(|letter| format!("vd{letter}"));
        let mut contenders = Vec::new();
        for kind in KINDS {
            let disk = names.next().unwrap_or_default();
            let cache = if kind.is_in_the_kernel() { names.next() } else { None };
            let device = match kind {
                Kind::Haversack | Kind::Bare => disk.clone(),
                Kind::Bcache => "bcache0".to_owned(),
                Kind::DmCache | Kind::Writecache => format!("mapper/{}", kind.key()),
            };
            let log = log_path(self.place, kind);
            contenders.push(Contender { kind, device, disk, cache, log });
        }
        contenders
    }
}

fn cache_path(place: &Place, kind: Kind) -> std::path::PathBuf {
    place.path(format!("{}-cache.img", kind.key()))
}

fn log_path(place: &Place, kind: Kind) -> std::path::PathBuf {
    place.path(format!("{}-requests.txt", kind.key()))
}

/// Starts an origin: a file in the page cache, whose server waits before each read and write, and logs it.
fn origin(place: &Place, kind: Kind) -> Result<Nbdkit, Failure> {
    let skipped = if kind == Kind::Bcache { BCACHE_BYTES } else { 0 };
    let file = image::numbered(place, &format!("{}.img", kind.key()), DISK_MIB, skipped)?;
    let file = file.display().to_string();
    let log = format!("logfile={}", log_path(place, kind).display());
    let delays = ["rdelay", "wdelay"].map(|delay| format!("{delay}={ORIGIN_MS}ms"));
    let words = ["--filter=log", "--filter=delay", "file", &file, &log, &delays[0], &delays[1]];
    Ok(Nbdkit::start(place, &format!("{}-origin", kind.key()), &words)?)
}

/// Makes a cache device as `haversack pool create` makes its own: allocated, and full of zeroes.
fn cache_device(path: &Path) -> std::io::Result<()> {
    let file = File::create(path)?;
    let bytes = (CACHE_MIB * MIB) as libc::off_t;
    // SAFETY: the descriptor is open.
    match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, bytes) } {
        0 => Ok(()),
        error => Err(std::io::Error::from_raw_os_error(error)),
    }
}
