//! What a VM and its neighbours on both hosts notice of a move, and how soon the cache serves as before.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use haversack_e2e::MIB;

use super::processors;
use super::scene::{Scene, blocks, run_until};
use super::{Failure, Figure, Options, Size, share};
use crate::live::load::{Kind, Load, Round};
use crate::output::say;

/// Rounds, each with a move; the figure in the middle counts.
const ROUNDS: usize = 3;
const IOPS_GOAL: f64 = 95.0;
const NEIGHBOUR_GOAL: f64 = 1.1;
const WARM_GOAL_S: f64 = 5.0;
/// The share of the earlier hit ratio at which a cache counts as warm.
const WARM: f64 = 0.9;
/// The length of the window in which a hit ratio is measured.
const WINDOW: Duration = Duration::from_millis(200);
/// A cache that is not warm after this time counts as never warm.
const COLD: Duration = Duration::from_secs(60);
/// The number of reads that the VM keeps in flight, and the number of writes between two pauses.
const READS: usize = 8;
const WRITES: (u64, Duration) = (16, Duration::from_millis(10));

/// How the guests on both hosts send their requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Guests {
    /// In bursts with pauses, so that the processors are idle some of the time.
    Pausing,
    /// Without pauses: the processors are never idle.
    Saturating,
}

impl Guests {
    /// How the VM reads: pauses after a number of requests.
    fn reads(self) -> Option<(u64, Duration)> {
        (self == Guests::Pausing).then_some((64, Duration::from_millis(3)))
    }

    /// How neighbours read.
    fn neighbours(self) -> Option<(u64, Duration)> {
        (self == Guests::Pausing).then_some((4, Duration::from_millis(1)))
    }

    /// What they are called.
    pub fn name(self) -> &'static str {
        match self {
            Guests::Pausing => "that pause",
            Guests::Saturating => "that never pause",
        }
    }
}

/// What was measured at the same time.
struct Beside {
    iops: f64,
    neighbours_p99_us: [f64; 2],
}

struct Outcome {
    before: Beside,
    during: Beside,
    sent_mib_per_s: f64,
    warm_s: f64,
}

/// Measures.
pub fn run(
    scene: &Scene<'_>,
    size: &Size,
    options: &Options,
    guests: Guests,
) -> Result<Vec<Figure>, Failure> {
    for (host, daemon) in scene.daemons.iter().enumerate() {
        processors::give_process(host, daemon.process()?.id())?;
    }
    scene.write(0, 0..blocks(size.cached_mib))?;
    scene.flush(0)?;
    (0..2).try_for_each(|host| scene.fill_neighbour(host))?;
    let results: Vec<Outcome> = (0..ROUNDS)
        .map(|round| one(scene, size, options, guests, round % 2))
        .collect::<Result<_, Failure>>()?;
    let middle = |of: &dyn Fn(&Outcome) -> f64| share(&results.iter().map(of).collect::<Vec<_>>(), 0.5);
    let neighbour =
        |host: usize| middle(&|it| it.during.neighbours_p99_us[host] / it.before.neighbours_p99_us[host]);
    say!(
        "  without a move: the VM {:.0} requests a second, neighbours' p99 {:.0} and {:.0} us; in a move {:.1} MiB/s are sent",
        middle(&|it| it.before.iops),
        middle(&|it| it.before.neighbours_p99_us[0]),
        middle(&|it| it.before.neighbours_p99_us[1]),
        middle(&|it| it.sent_mib_per_s),
    );
    Ok(vec![
        Figure::at_least(
            "the VM's requests a second",
            "%",
            IOPS_GOAL,
            middle(&|it| it.during.iops / it.before.iops * 100.0),
        ),
        Figure::at_most("p99 of a neighbour at the source", "times", NEIGHBOUR_GOAL, neighbour(0)),
        Figure::at_most("p99 of a neighbour at the destination", "times", NEIGHBOUR_GOAL, neighbour(1)),
        Figure::at_most("until 90 % of the hit ratio before", "s", WARM_GOAL_S, middle(&|it| it.warm_s)),
    ])
}

fn one(
    scene: &Scene<'_>,
    size: &Size,
    options: &Options,
    guests: Guests,
    from: usize,
) -> Result<Outcome, Failure> {
    let before = measure(scene, size, guests, from, || {
        std::thread::sleep(options.round);
        Ok(())
    })?;
    let hits_before = ratio(scene, size, from)?;
    let (begun, sent_bytes) = (Instant::now(), scene.sent_bytes(from)?);
    let during = measure(scene, size, guests, from, || scene.send_ahead(from))?;
    let moved = Instant::now();
    let sent_mib = (scene.sent_bytes(from)? - sent_bytes) as f64 / MIB as f64;
    let sent_mib_per_s = sent_mib / (moved - begun).as_secs_f64();
    scene.write(1 - from, 0..1)?;
    while ratio(scene, size, 1 - from)? < hits_before * WARM && moved.elapsed() < COLD {}
    let warm_s = (moved.elapsed() - WINDOW.min(moved.elapsed())).as_secs_f64();
    scene.wait_until_moved(from)?;
    Ok(Outcome { before, during, sent_mib_per_s, warm_s })
}

/// The share of reads in a window that hit.
fn ratio(scene: &Scene<'_>, size: &Size, host: usize) -> Result<f64, Failure> {
    let before = scene.hits(host)?;
    let mut client = scene.client(host)?;
    let load = Load::random(Kind::Read, READS, blocks(size.cached_mib));
    crate::live::load::run(&mut client, load, WINDOW, &mut haversack_model::random::Random::new(7))?;
    let after = scene.hits(host)?;
    let [hits, misses] = [0, 1].map(|at| (after[at] - before[at]) as f64);
    if hits + misses == 0.0 {
        return Err("nothing was read in a window".into());
    }
    Ok(hits / (hits + misses))
}

/// The VM's requests, and its neighbours', while something is done.
fn measure(
    scene: &Scene<'_>,
    size: &Size,
    guests: Guests,
    from: usize,
    what: impl FnOnce() -> Result<(), Failure>,
) -> Result<Beside, Failure> {
    let (ends, begun) = (AtomicBool::new(false), Instant::now());
    let vm = |kind, depth, burst| -> std::io::Result<Round> {
        processors::give_this_thread(from)?;
        let load = Load { burst, ..Load::random(kind, depth, blocks(size.cached_mib)) };
        run_until(&mut scene.client(from)?, load, &ends)
    };
    let (done, rounds) = std::thread::scope(|scope| {
        let ends = &ends;
        let neighbour = |host| {
            processors::give_this_thread(host)?;
            scene.neighbour(host, guests.neighbours(), ends)
        };
        let neighbours = [from, 1 - from].map(|host| scope.spawn(move || neighbour(host)));
        let reads = scope.spawn(|| vm(Kind::Read, READS, guests.reads()));
        let writes = scope.spawn(|| vm(Kind::Write, 1, Some(WRITES)));
        let done = what();
        ends.store(true, Ordering::Relaxed);
        let [source, destination] = neighbours;
        let all = [source, destination, reads, writes];
        (done, all.map(|thread| thread.join().map_err(|_| "a client panicked")))
    });
    let seconds = begun.elapsed().as_secs_f64();
    done?;
    let mut all = Vec::new();
    for round in rounds {
        all.push(round??);
    }
    let requests = (all[2].requests + all[3].requests) as f64;
    Ok(Beside {
        iops: requests / seconds,
        neighbours_p99_us: [all[0].latency_us(0.99), all[1].latency_us(0.99)],
    })
}
