//! `make run`: four disks on a slow store, first without the cache, then through it.
//!
//! | variable | meaning |
//! |---|---|
//! | `DEMO_SECONDS` | seconds through the cache; 60 if not set |
//! | `DEMO_DIR` | where everything lies; `/tmp/haversack-demo` if not set |
//! | `DEMO_EXIT` | 1: stop and remove everything at the end |
//! | `DEMO_CHART` | a file for a picture of the run, as SVG |
//!
//! With the argument `stop` it stops and removes what an earlier run left up. With the argument `cluster` it is
//! `make run-cluster`: three hosts, whose load a balancer evens out ([`cluster`]).
//!
//! Every figure comes from fio or from the daemon: loads are measured by fio, with and without the cache; hits,
//! shares and I/Os at the origin are the daemon's.

mod cluster;
mod course;
mod fio;
mod servers;
mod table;
mod workload;

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use haversack_e2e::{Error, Result};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::course::Course;
use crate::fio::{Done, Fio};
use crate::servers::{DELAY_MS, Place, RATE_MIB};
use crate::table::Moment;
use crate::workload::{DISK_MIB, WORKLOADS};

/// How long the loads run without the cache.
const UNCACHED_SECONDS: u64 = 5;
/// How many of fio's reports lie between two tables when nobody looks at a terminal.
const REPORTS_A_TABLE: u64 = 10;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("demo: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let seconds = match std::env::var("DEMO_SECONDS") {
        Ok(text) => text.parse().ok().filter(|seconds| *seconds > 0).ok_or_else(|| {
            Error::Check(format!("DEMO_SECONDS is '{text}': expected a whole number of seconds, at least 1"))
        })?,
        Err(_) => 60,
    };
    let exits = std::env::var("DEMO_EXIT").is_ok_and(|text| text == "1");
    let directory = std::env::var_os("DEMO_DIR").unwrap_or("/tmp/haversack-demo".into());
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, interrupted.clone()).map_err(Error::io("a signal handler"))?;
    }
    let place = Place::new(directory.into())?;
    match std::env::args().nth(1).as_deref() {
        None => place.make()?,
        Some("stop") => return place.clear(),
        Some("cluster") => return cluster::show(exits, &interrupted),
        Some(other) => {
            return Err(Error::Check(format!(
                "unknown argument '{other}': expected 'cluster', 'stop' or none"
            )));
        }
    }
    let shown = show(&place, seconds, &interrupted);
    if exits || shown.is_err() {
        keep_logs(&place, &shown);
        place.clear()?;
    } else {
        hint(&place);
    }
    shown
}

/// The demo itself.
fn show(place: &Place, seconds: u64, interrupted: &AtomicBool) -> Result<()> {
    println!(
        "Four disks of {DISK_MIB} MiB at a slow store: {DELAY_MS} ms each I/O, {RATE_MIB} MiB/s for all."
    );
    place.start_origin()?;
    println!("Without the cache, {UNCACHED_SECONDS} seconds ...");
    let mut course = Course::default();
    let uncached = uncached(place, &mut course, interrupted)?;
    course.next_run();
    let cached_from_seconds = UNCACHED_SECONDS as f64;
    place.start_daemon()?;
    println!("Through the cache, {seconds} seconds, with an empty cache at first:\n");
    let end = cached(place, seconds, &uncached, &mut course, interrupted)?;
    println!("\nThe whole run, the cold start included:\n\n{}", table::comparison(&uncached, &end));
    if let Some(path) = std::env::var_os("DEMO_CHART") {
        std::fs::write(&path, course.to_svg(cached_from_seconds))
            .map_err(Error::io(path.display().to_string()))?;
    }
    Ok(())
}

/// Runs the loads at the origin itself.
fn uncached(place: &Place, course: &mut Course, interrupted: &AtomicBool) -> Result<Vec<Done>> {
    let text = workload::job_file(&place.origin_socket(), UNCACHED_SECONDS);
    let mut fio = Fio::start(&place.write("uncached.fio", &text)?, &place.path("uncached.log"))?;
    let mut done = vec![Done::default(); WORKLOADS.len()];
    while let Some(report) = fio.next()? {
        if interrupted.load(Ordering::Relaxed) {
            return Err(Error::Check("interrupted".into()));
        }
        course.add(&report);
        done = report;
    }
    Ok(done)
}

/// Runs the loads at the daemon and shows how they go. An interrupt ends it early.
fn cached(
    place: &Place,
    seconds: u64,
    uncached: &[Done],
    course: &mut Course,
    interrupted: &AtomicBool,
) -> Result<Moment> {
    let text = workload::job_file(&place.nbd_socket(), seconds);
    let mut before = Moment { loads: vec![Done::default(); WORKLOADS.len()], status: place.status()? };
    let mut now = before.clone();
    let mut fio = Fio::start(&place.write("cached.fio", &text)?, &place.path("cached.log"))?;
    let is_terminal = std::io::stdout().is_terminal();
    let reports_a_table = if is_terminal { 1 } else { REPORTS_A_TABLE };
    let mut reports = 0;
    while let Some(loads) = fio.next()? {
        course.add(&loads);
        now = Moment { loads, status: place.status()? };
        reports += 1;
        if reports % reports_a_table == 0 {
            let table = format!("{reports:3} s\n{}", table::live(uncached, &before, &now));
            print(&table, is_terminal && reports > 1)?;
            before = now.clone();
        }
        if interrupted.load(Ordering::Relaxed) {
            break;
        }
    }
    Ok(now)
}

/// Prints a table, on a terminal in the place of the one before.
fn print(table: &str, in_place: bool) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let up = if in_place { format!("\x1b[{}A", table.lines().count()) } else { String::new() };
    // Each line is cleared first: the one that it replaces may have been longer.
    let lines: String = table
        .lines()
        .map(|line| if in_place { format!("\x1b[2K{line}\n") } else { format!("{line}\n") })
        .collect();
    let end = if in_place || out.is_terminal() { "" } else { "\n" };
    write!(out, "{up}{lines}{end}").and_then(|()| out.flush()).map_err(Error::io("the terminal"))
}

/// Prints what the servers said if something went wrong: their logs are about to go.
fn keep_logs(place: &Place, shown: &Result<()>) {
    if shown.is_ok() {
        return;
    }
    for name in ["haversackd.log", "uncached.log", "cached.log"] {
        if let Ok(text) = std::fs::read_to_string(place.path(name)).map(|text| text.trim().to_owned())
            && !text.is_empty()
        {
            eprintln!("--- {name}\n{text}");
        }
    }
}

/// How to go on with what is left running.
fn hint(place: &Place) {
    let haversack =
        format!("{} --socket {}", place.program("haversack").display(), place.control_socket().display());
    let uri = workload::uri(&place.nbd_socket(), "web");
    println!("Origin and daemon are still up, in {}. To go on:\n", place.path("").display());
    println!("  {haversack} status");
    println!("  {haversack} top");
    println!("  fio {}", place.path("cached.fio").display());
    println!("  nbdinfo '{uri}'");
    println!(
        "  qemu-system-x86_64 ... -blockdev driver=nbd,node-name=web,server.type=unix,server.path={},export=web \\",
        place.nbd_socket().display()
    );
    println!(
        "      -device virtio-blk-pci,drive=web      (docs/qemu-libvirt.md has more, vhost-user-blk too)\n"
    );
    println!("'make stop' stops both and removes the directory; so does the next 'make run'.");
}
