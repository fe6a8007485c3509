//! `make run-cluster`: three hosts on this machine. One of them has VMs that demand more than its cache; the balancer
//! of the cluster moves some of them to the others.
//!
//! All of it is real: daemons, etcd, guests in QEMU (software emulation) with a load, a program that moves them with
//! `haversack migrate`. Loads and moves are what the cluster says, hits and latencies what the daemons have counted. It
//! ends with everything that it has started.

mod hosts;
mod moment;
mod table;

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use haversack_e2e::{Error, Place, Result};

use self::hosts::{Cluster, VMS};
use self::moment::Moment;

/// Hosts have too much demand above this load: the balancer's threshold.
const THRESHOLD: f64 = 0.9;
/// Figures are those of this time.
const MEASURED: Duration = Duration::from_secs(6);
/// How long the load must be even before it is shown: the caches have to get warm.
const SETTLED: Duration = Duration::from_secs(20);
/// How long the cluster is looked at between two answers to the program that moves VMs.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const ANSWER_EVERY: Duration = Duration::from_millis(50);
/// The part of the demand before that the hosts must have measured again afterwards: it varies.
const MOST: f64 = 0.75;
/// How long the balancer may take.
const LIMIT: Duration = Duration::from_secs(180);

/// Shows it. With `exits` it ends when the load is even, otherwise at an interrupt.
///
/// # Errors
/// Something does not start, or the load does not become even.
pub fn show(exits: bool, interrupted: &AtomicBool) -> Result<()> {
    let place = Place::scratch()?;
    let shown = course(&place, exits, interrupted);
    if shown.is_err() && !interrupted.load(Ordering::Relaxed) {
        place.print_logs();
    }
    shown
}

fn course(place: &Place, exits: bool, interrupted: &AtomicBool) -> Result<()> {
    println!("{}", hosts::introduction());
    let places = hosts::places(place)?;
    let mut cluster = Cluster::start(place, &places)?;
    println!("\n{}", cluster.dashboards());
    for (name, host, _) in &VMS {
        stop_if(interrupted)?;
        cluster.boot(name, *host)?;
    }
    cluster.begin_load()?;
    println!("\nThe VMs begin to work:\n");
    let mut course = Course { cluster, moments: Vec::new(), said: Vec::new(), start: Instant::now() };
    let before = course.until_moving(interrupted)?;
    println!(
        "\nBefore, the cache of {} was too small for what its VMs demand:\n\n{}",
        hosts::NAMES[0],
        table::now(&before)
    );
    course.until_even(interrupted, before.hosts.iter().map(|host| host.load).sum())?;
    let after = course.figures();
    println!("\nBefore and after:\n\n{}", table::comparison(&before, &after));
    if exits {
        return Ok(());
    }
    println!("{}", course.cluster.hint());
    while !interrupted.load(Ordering::Relaxed) {
        course.cluster.manager.attend()?;
        std::thread::sleep(ANSWER_EVERY);
    }
    Ok(())
}

fn stop_if(interrupted: &AtomicBool) -> Result<()> {
    if interrupted.load(Ordering::Relaxed) { Err(Error::Check("interrupted".into())) } else { Ok(()) }
}

struct Course<'a> {
    cluster: Cluster<'a>,
    moments: Vec<Moment>,
    /// Events that were shown.
    said: Vec<String>,
    start: Instant,
}

impl Course<'_> {
    /// Answers the program that moves VMs for a while, then looks at the cluster.
    fn look(&mut self, interrupted: &AtomicBool) -> Result<()> {
        let next = self.moments.last().map_or(Instant::now(), |moment| moment.at + LOOK_EVERY);
        loop {
            stop_if(interrupted)?;
            self.cluster.manager.attend()?;
            if Instant::now() >= next {
                break;
            }
            std::thread::sleep(ANSWER_EVERY);
        }
        if self.start.elapsed() > LIMIT {
            return Err(Error::TimedOut { what: "an even load".into(), limit: LIMIT });
        }
        self.moments.push(self.cluster.moment()?);
        for message in self.cluster.balancing()? {
            if !self.said.contains(&message) {
                println!("           {message}");
                self.said.push(message);
            }
        }
        std::io::stdout().flush().map_err(Error::io("the terminal"))
    }

    /// Waits until the balancer moves a VM. Returns what was measured right before.
    fn until_moving(&mut self, interrupted: &AtomicBool) -> Result<table::Figures> {
        let mut before = table::Figures::default();
        while !self.is_moving() {
            before = self.figures();
            self.look(interrupted)?;
        }
        Ok(before)
    }

    fn is_moving(&self) -> bool {
        self.moments.last().is_some_and(|moment| moment.is_moving)
            || self.cluster.manager.vms().iter().any(|vm| vm.moves_to().is_some())
            || !self.said.is_empty()
    }

    fn is_overloaded(&self) -> bool {
        self.moments.last().is_some_and(|moment| moment.loads.iter().any(|load| *load > THRESHOLD))
    }

    /// What was measured in the last seconds.
    fn figures(&self) -> table::Figures {
        let (Some(last), Some(first)) = (self.moments.last(), self.moments.first()) else {
            return table::Figures::default();
        };
        let from = self.moments.iter().rev().find(|moment| last.at - moment.at >= MEASURED);
        last.since(from.unwrap_or(first))
    }

    /// Waits until no host has too much demand, no VM is being moved, and what was moved is measured where it is now.
    fn until_even(&mut self, interrupted: &AtomicBool, demand_before: f64) -> Result<()> {
        let mut since = None;
        loop {
            self.look(interrupted)?;
            let Some(last) = self.moments.last() else { continue };
            let moves = last.is_moving || self.cluster.manager.vms().iter().any(|vm| vm.moves_to().is_some());
            let is_measured = last.loads.iter().sum::<f64>() > demand_before * MOST;
            if moves || !is_measured || self.is_overloaded() {
                since = None;
            } else if since.get_or_insert_with(Instant::now).elapsed() > SETTLED {
                return Ok(());
            }
        }
    }
}
