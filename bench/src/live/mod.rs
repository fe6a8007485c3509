//! The live data path beside its peers: the engine serving NBD and vhost-user-blk, the device itself, nbdkit's cache
//! filter and qemu-storage-daemon, in one run on the same machine and the same device.

mod contest;
mod crowd;
mod fairness;
mod groups;
mod guest;
mod idle;
pub mod load;
mod nbd;
pub mod nbd_client;
mod page;
mod peers;
mod place;
mod process;
mod processors;
mod raw;
mod serve;
mod shared;
mod spdk;
mod system_calls;
mod vhost_user;
mod zram;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Duration;

use contest::{Contender, Outcome};
use load::Client;
pub use place::Place;
use serve::{Caching, Figures, Service};

use crate::output::say;

/// Blocks of the disk that is read: 256 MiB, all of them cached.
const BLOCKS: u64 = 65_536;
/// Bytes of the cache, with room to spare.
const CACHE_BYTES: u64 = 1 << 30;
/// Time in which the engine finishes its background work after the cache was filled.
const SETTLING: Duration = Duration::from_secs(2);

/// What is asked for on the command line.
#[derive(Clone, Debug)]
pub struct Options {
    /// `nbd`, `vhost-user`, `fairness`, `idle` or `all`.
    pub what: String,
    /// One object a line, for programs.
    pub json: bool,
    /// Time of a round.
    pub round: Duration,
    /// Directories for cache, image and sockets, on the devices to be measured.
    pub places: Vec<PathBuf>,
    /// The daemon to be measured when idle, rather than the engine in a process of this program.
    pub haversackd: Option<PathBuf>,
    /// Another build of this program, whose engine is one more contender.
    pub other: Option<PathBuf>,
    /// How long the engine looks for work before it sleeps.
    pub poll_us: u32,
    /// Only the groups of loads on vhost-user-blk with this in their titles.
    pub group: Option<String>,
    /// Of these groups, only the loads with this in their names.
    pub load: Option<String>,
    /// Where to write a page with pictures of NBD and vhost-user-blk.
    pub page: Option<PathBuf>,
    /// Whether the caches of vhost-user-blk are on block devices in memory.
    pub zram: bool,
    /// SPDK's target, if it is not on the search path.
    pub spdk: Option<PathBuf>,
}

impl Options {
    /// The whole benchmark, on the temporary directory and in memory.
    pub fn new() -> Options {
        Options {
            what: "all".into(),
            json: false,
            round: Duration::from_secs(1),
            places: vec![std::env::temp_dir(), "/dev/shm".into()],
            haversackd: None,
            other: None,
            poll_us: haversack_engine::PoolSettings::new("", Vec::new()).poll_us,
            group: None,
            load: None,
            page: None,
            zram: false,
            spdk: None,
        }
    }
}

/// Serves in this process, if it was started as a server.
pub fn serve(words: &[String]) -> Result<(), Box<dyn Error>> {
    serve::run(&Service::parse(words).ok_or("'serve' is for this program's own use")?)
}

/// Measures and prints.
pub fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let wants = |part: &str| options.what == part || options.what == "all";
    if wants("vhost-user") {
        say_what_is_skipped(options);
    }
    let mut outcomes = Vec::new();
    for directory in &options.places {
        let place = Place::new(directory)?;
        if wants("nbd") {
            outcomes.push(nbd::run(options, directory, &place)?);
        }
        if wants("fairness") {
            fairness::run(options, directory, &place)?;
        }
        if wants("vhost-user") {
            outcomes.extend(vhost_user::run(options, directory, &place)?);
        }
    }
    if let Some(file) = &options.page {
        page::of(&outcomes).write(file)?;
    }
    if wants("idle") {
        idle::run(options)?;
    }
    Ok(())
}

fn say_what_is_skipped(options: &Options) {
    if spdk::find(options.spdk.as_deref()).is_none() {
        eprintln!("skipped: SPDK with OCF (no spdk_tgt or vhost on the search path; see --spdk)");
    }
    if !system_calls::is_available() {
        eprintln!("skipped: system calls (no strace: install the Debian package 'strace')");
    }
}

/// The engine with some disks on an image, with a directory of its own.
fn service(
    options: &Options,
    place: &Place,
    name: &str,
    image: &Path,
    disks: u16,
) -> std::io::Result<Service> {
    let directory = place.path(name);
    std::fs::create_dir_all(&directory)?;
    Ok(Service {
        cache: directory.join("cache"),
        directory,
        image: image.to_path_buf(),
        disk_bytes: BLOCKS * load::BLOCK_BYTES as u64,
        disks,
        cache_bytes: CACHE_BYTES,
        poll_us: options.poll_us,
        caching: Caching::WriteBack,
        arenas: 1,
    })
}

/// Reads every block once, so that all of them are cached.
fn fill(client: &mut dyn Client, blocks: u64) -> std::io::Result<()> {
    load::pass(client, load::Kind::Read, 0..blocks)
}

/// The engine's figures, asked of the process that the contender has.
fn figures(contender: &mut Contender) -> std::io::Result<Figures> {
    contender.server.as_mut().map_or(Ok(Figures::default()), serve::figures)
}

fn report(options: &Options, outcome: &Outcome, before: Figures, after: Figures) {
    if options.json {
        return outcome.print_json();
    }
    outcome.print();
    let (hits, misses) = (after.hits - before.hits, after.misses - before.misses);
    let from_flash = (after.device_bytes - before.device_bytes) / load::BLOCK_BYTES as u64;
    say!("  the engine: {hits} hits, {misses} misses, {from_flash} blocks from the cache device\n");
}
