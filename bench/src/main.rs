//! `haversack-bench`: the core's figures, and those of the live data path, beside their goals.

mod alloc;
mod driver;
mod hits;
mod kernel;
mod live;
mod media;
mod memory;
mod migration;
mod monitor;
mod opening;
mod opening_device;
mod output;
mod spread;
mod table;
mod traces;
mod writes;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: alloc::Counting = alloc::Counting;

const USAGE: &str = "\
usage: haversack-bench [memory|hits|writes|monitor|opening|traces|all] [--traces DIR] [--staging N]
       haversack-bench engine [nbd|vhost-user|fairness|idle|all] [--json] [--seconds N] [--place DIR]... [--haversackd FILE]
                             [--poll N] [--other FILE] [--group TEXT] [--load TEXT] [--zram]
                             [--spdk FILE] [--page FILE]
       haversack-bench migration [stall|beside|all] [--moves N] [--seconds N]
       haversack-bench kernel [--json] [--requests N] [--rounds N]

  memory        RAM per cached block with 10 million cached blocks
  hits          read hits a second through the core alone
  writes        how long calls into the core take while blocks are written
  monitor       what recording requests costs
  opening       what opening a full pool costs, in memory and with a file as its device
  traces        miss ratios and metadata writes on traces
  all           all of these (the default)
  engine        the live data path beside its peers: NBD, vhost-user-blk, a disk beside hostile ones, and 100 idle disks
  migration     disks that move between two hosts with their caches; must be run as root
  kernel        beside dm-cache, bcache and dm-writecache, in a guest in QEMU's software emulation
  --traces DIR  where real traces are (default: HAVERSACK_TRACES; without either, a generated trace)
  --staging N   staging frames for the traces (default 256, at least 64)
  --json        one object a line
  --seconds N   seconds of a round (default 1; of migration without a move 8)
  --moves N     moves between hosts whose VM flushes when it stops, and as many without a flush (default 20; a fifth of
                it with the larger cache)
  --requests N  requests of each contender in a round beside the kernel's caches (default 2000)
  --rounds N    such rounds (default 5)
  --place DIR   where cache, image and sockets are put, on the device to be measured; may be repeated (default: the
                temporary directory, and /dev/shm)
  --haversackd FILE  the daemon whose idleness is measured (default: the engine in a process of this program)
  --poll N      microseconds that the engine looks for work before it sleeps (default: the engine's)
  --group TEXT  of vhost-user-blk, only the groups of loads with this in their titles
  --load TEXT   of vhost-user-blk, only the loads with this in their names
  --zram        of vhost-user-blk, caches are on block devices in memory; must be run as root
  --page FILE   writes a page with pictures of NBD and vhost-user-blk
  --spdk FILE   SPDK's spdk_tgt or vhost, built with OCF, as one more contender (default: from the search path)
  --other FILE  another build of this program, whose engine becomes one more contender";

/// Rounds may not be shorter.
const SHORTEST_ROUND: Duration = Duration::from_millis(100);

struct Arguments {
    what: String,
    traces: Option<PathBuf>,
    staging: u32,
    live: live::Options,
    migration: migration::Options,
    kernel: kernel::Options,
}

fn one_or_more(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|n| *n >= 1);
    number.ok_or(format!("'{text}' is not a number of 1 or more"))
}

fn arguments(words: &[String]) -> Result<Arguments, String> {
    let mut parsed = Arguments {
        what: "all".into(),
        traces: std::env::var_os("HAVERSACK_TRACES").map(PathBuf::from),
        staging: traces::STAGING_FRAMES,
        live: live::Options::new(),
        migration: migration::Options { what: "all".into(), moves: 20, round: Duration::from_secs(8) },
        kernel: kernel::Options::new(),
    };
    let mut words = words.iter().cloned();
    let mut places = Vec::new();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} needs a value"));
        match word.as_str() {
            "nbd" | "vhost-user" | "fairness" | "idle" | "all" if parsed.what == "engine" => {
                parsed.live.what = word;
            }
            "stall" | "beside" | "all" if parsed.what == "migration" => parsed.migration.what = word,
            "memory" | "hits" | "writes" | "monitor" | "opening" | "traces" | "all" | "engine"
            | "migration" | "kernel" => {
                parsed.what = word;
            }
            "--traces" => parsed.traces = Some(value()?.into()),
            "--json" => (parsed.live.json, parsed.kernel.json) = (true, true),
            "--place" => places.push(value()?.into()),
            "--haversackd" => parsed.live.haversackd = Some(value()?.into()),
            "--poll" => {
                let text = value()?;
                parsed.live.poll_us =
                    text.parse().map_err(|_| format!("'{text}' is not a number of microseconds"))?;
            }
            "--group" => parsed.live.group = Some(value()?),
            "--zram" => parsed.live.zram = true,
            "--load" => parsed.live.load = Some(value()?),
            "--page" => parsed.live.page = Some(value()?.into()),
            "--spdk" => parsed.live.spdk = Some(value()?.into()),
            "--other" => parsed.live.other = Some(value()?.into()),
            "--seconds" => {
                let text = value()?;
                let seconds = text.parse().ok().and_then(|n| Duration::try_from_secs_f64(n).ok());
                let seconds = seconds.filter(|time| *time >= SHORTEST_ROUND);
                let round = seconds.ok_or(format!("'{text}' is not a number of 0.1 or more"))?;
                (parsed.live.round, parsed.migration.round) = (round, round);
            }
            "--moves" => parsed.migration.moves = one_or_more(&value()?)?,
            "--requests" => parsed.kernel.requests = one_or_more(&value()?)? as u64,
            "--rounds" => parsed.kernel.rounds = one_or_more(&value()?)?,
            "--staging" => {
                let text = value()?;
                let number = text.parse().ok().filter(|n| *n >= 64);
                parsed.staging = number.ok_or(format!("'{text}' is not a number of 64 or more"))?;
            }
            other => return Err(format!("unknown argument '{other}'")),
        }
    }
    if !places.is_empty() {
        parsed.live.places = places;
    }
    Ok(parsed)
}

fn ended(result: Result<(), Box<dyn std::error::Error>>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn main() -> ExitCode {
    output::until_closed(run)
}

fn run() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [first, rest @ ..] = words.as_slice()
        && first == "serve"
    {
        return ended(live::serve(rest));
    }
    let arguments = match arguments(&words) {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("{error}\n{USAGE}");
            return ExitCode::FAILURE;
        }
    };
    if arguments.what == "engine" {
        return ended(live::run(&arguments.live));
    }
    if arguments.what == "migration" {
        return ended(migration::run(&arguments.migration));
    }
    if arguments.what == "kernel" {
        return ended(kernel::run(&arguments.kernel));
    }
    let wants = |part: &str| arguments.what == part || arguments.what == "all";
    if wants("memory") {
        memory::run();
    }
    if wants("hits") {
        hits::run();
    }
    if wants("writes") {
        writes::run();
    }
    if wants("monitor") {
        monitor::run();
    }
    if wants("opening") {
        opening::run(&arguments.live.places);
    }
    if wants("traces") {
        traces::run(arguments.traces.as_deref(), arguments.staging);
    }
    ExitCode::SUCCESS
}
