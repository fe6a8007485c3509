//! Haversack beside the kernel's caches (dm-cache, bcache, dm-writecache) in one guest in QEMU's software emulation.
//!
//! Each contender has its own origin of the same size and delay (nbdkit on a file), and its own cache device of the same
//! size: a file on the same file system, accessed past the page cache. The kernel's caches run in the guest, on QEMU's NBD
//! client and on a virtio disk; Haversack runs on the host as `haversackd`, and the guest has its disk over vhost-user-blk.
//!
//! What the kernel's caches execute is emulated, and what Haversack executes is not, so times favour Haversack. Hits and I/O
//! of origins and cache devices do not depend on it.

mod caches;
mod contenders;
mod counters;
mod events;
mod report;

use std::path::PathBuf;
use std::process::Command;

use haversack_e2e::{Guest, Place, tools};

use contenders::{Contender, Hosts};
use events::EVENTS;

/// Why it ends.
pub type Failure = Box<dyn std::error::Error>;

/// The disk, in MiB.
const DISK_MIB: u64 = 256;
/// Each cache device, with all that the cache keeps for itself on it, in MiB.
const CACHE_MIB: u64 = 128;
/// Haversack's staging area, which the others do not have, in MiB.
const STAGING_MIB: u64 = 8;
/// How long every origin takes for a read or a write, in milliseconds.
const ORIGIN_MS: u64 = 2;

/// Most requests of a round: the guest prepares all requests of a load in its memory.
const MOST_REQUESTS: u64 = 20_000;

/// Programs that must be there; the script that builds the guest names what it needs itself.
const PROGRAMS: [&str; 2] = ["qemu-system-x86_64", "nbdkit"];

/// What is asked for on the command line.
#[derive(Clone, Debug)]
pub struct Options {
    /// One object a line, for programs.
    pub json: bool,
    /// Requests of each contender in a round.
    pub requests: u64,
    /// Rounds of each load.
    pub rounds: usize,
}

impl Options {
    /// The benchmark as it is described.
    pub fn new() -> Options {
        Options { json: false, requests: 2000, rounds: 5 }
    }
}

/// Measures and prints.
pub fn run(options: &Options) -> Result<(), Failure> {
    if options.requests > MOST_REQUESTS {
        return Err(format!("--requests can be at most {MOST_REQUESTS}: use more rounds instead").into());
    }
    for program in PROGRAMS {
        if let Err(error) = tools::tool(program) {
            eprintln!("the kernel's caches are skipped: {error}");
            return Ok(());
        }
    }
    let image = image()?;
    let place = Place::scratch()?.quiet();
    // Dropped, and so stopped, after the guest.
    let hosts = Hosts::start(&place)?;
    let mut guest = Guest::boot_image(&place, "guest", &hosts.disks(), &image)?;
    let kernel = guest.ask("get /proc/sys/kernel/osrelease")?.to_string();
    let contenders = set_up(&hosts, &mut guest);
    report::introduce(options, &kernel);
    for (number, event) in (1..).zip(&EVENTS) {
        let outcome = events::hold(event, number, options, &hosts, &mut guest, &contenders)?;
        outcome.print(options.json);
    }
    Ok(guest.off()?)
}

/// Builds the guest with the kernel's caches, once.
fn image() -> Result<PathBuf, Failure> {
    let mut script = Command::new(tools::workspace().join("scripts/peer-guest"));
    script.current_dir(tools::workspace());
    Ok(PathBuf::from(tools::run_within(script, tools::BUILD_LIMIT)?.trim()))
}

/// Sets up what can be: a kernel without one of its caches is no reason not to measure the others.
fn set_up(hosts: &Hosts, guest: &mut Guest) -> Vec<Contender> {
    let mut there = Vec::new();
    for candidate in hosts.contenders() {
        match caches::set_up(guest, &candidate) {
            Ok(()) => there.push(candidate),
            Err(error) => eprintln!(
                "{} is skipped: {error}\n  (its driver is in the kernel of the Debian package linux-image-cloud-amd64)",
                candidate.kind.name()
            ),
        }
    }
    there
}
