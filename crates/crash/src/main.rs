//! `haversack-crash`: runs crash points until there are enough, and reports how many invariants broke.

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use haversack_crash::plan::Plan;
use haversack_crash::run::{self, Options, RunReport, run_seed};
use haversack_crash::world::Counts;
use haversack_crash::{cluster, twin};
use haversack_model::random::Random;

const DEFAULT_SEED: u64 = 1;
const MOST_VIOLATIONS: usize = 20;

const USAGE: &str = "\
usage: haversack-crash [--points N] [--seed S] [--runs N] [--threads T] [--bug NAME] [--twin [--replicas] | --cluster [--replicas] [--brief]] [--learned] [--verbose] [--trace]
       haversack-crash --demo

  --points N    crash points to try (default 10000)
  --seed S      first seed (default 1); seed S, S+1, ... make one run each
  --runs N      seeds to run, instead of a number of points
  --threads T   threads, one run each at a time (default 2)
  --bug NAME    plant a mistake (needs the feature bug-zoo)
  --twin        two hosts between which a disk moves
  --replicas    with --twin or --cluster: disks have replicas of their dirty blocks on other hosts
  --cluster     five hosts, whose VMs the balancer moves, and an etcd that fails
  --brief       with --cluster: ends a run after 8000 requests, so that there are more crash points in the same time
  --learned     every admission filter is the one that learns
  --verbose     a line for every run
  --trace       a line for everything that happens: for one run
  --demo        a short run, told step by step";

struct Arguments {
    points: u64,
    seed: u64,
    runs: u64,
    threads: usize,
    bug: Option<String>,
    learned: bool,
    twin: bool,
    replicas: bool,
    cluster: bool,
    brief: bool,
    verbose: bool,
    demo: bool,
}

fn arguments() -> Result<Arguments, String> {
    let mut parsed = Arguments {
        points: 10_000,
        seed: DEFAULT_SEED,
        runs: u64::MAX,
        threads: 2,
        bug: None,
        learned: false,
        twin: false,
        replicas: false,
        cluster: false,
        brief: false,
        verbose: false,
        demo: false,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} needs a value"));
        let number = |text: String| text.parse::<u64>().map_err(|_| format!("'{text}' is not a number"));
        match word.as_str() {
            "--points" => parsed.points = number(value()?)?,
            "--seed" => parsed.seed = number(value()?)?,
            "--runs" => (parsed.runs, parsed.points) = (number(value()?)?, u64::MAX),
            "--threads" => parsed.threads = number(value()?)?.clamp(1, 256) as usize,
            "--bug" => parsed.bug = Some(value()?),
            "--verbose" => parsed.verbose = true,
            "--twin" => parsed.twin = true,
            "--replicas" => parsed.replicas = true,
            "--cluster" => parsed.cluster = true,
            "--brief" => parsed.brief = true,
            "--learned" => parsed.learned = true,
            "--trace" => haversack_crash::trace(),
            "--demo" => parsed.demo = true,
            "--help" | "-h" => return Err(String::new()),
            other => return Err(format!("unknown option '{other}'")),
        }
    }
    if parsed.replicas && !parsed.twin && !parsed.cluster {
        return Err("--replicas goes with --twin or --cluster".into());
    }
    if parsed.brief && !parsed.cluster {
        return Err("--brief goes with --cluster".into());
    }
    Ok(parsed)
}

fn main() -> ExitCode {
    let arguments = match arguments() {
        Ok(arguments) => arguments,
        Err(why) => {
            if !why.is_empty() {
                eprintln!("{why}");
            }
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    if let Some(name) = &arguments.bug
        && let Err(why) = plant(name)
    {
        eprintln!("{why}");
        return ExitCode::from(2);
    }
    run::quiet_panics();
    let total = if arguments.demo { demo() } else { many(&arguments) };
    println!("points: {}, violations: {}", total.points, total.violations.len());
    ExitCode::from(u8::from(!total.violations.is_empty()))
}

#[cfg(feature = "bug-zoo")]
fn plant(name: &str) -> Result<(), String> {
    use haversack_crash::zoo::{Bug, all};
    let found = all().find(|bug| bug.to_string() == name);
    let known = || all().map(|bug| bug.to_string()).collect::<Vec<_>>().join(", ");
    Bug::plant(Some(found.ok_or_else(|| format!("unknown bug '{name}'; there are {}", known()))?));
    Ok(())
}

#[cfg(not(feature = "bug-zoo"))]
fn plant(_: &str) -> Result<(), String> {
    Err("--bug needs a build with --features bug-zoo".into())
}

fn many(arguments: &Arguments) -> RunReport {
    let total = Mutex::new(RunReport::default());
    let (next, points, over) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let options = Options { learned: arguments.learned, ..Options::default() };
    let begin = Instant::now();
    let work = || {
        if let Some(name) = &arguments.bug {
            drop(plant(name));
        }
        while points.load(Ordering::Relaxed) < arguments.points {
            let run = next.fetch_add(1, Ordering::Relaxed);
            if run >= arguments.runs {
                break;
            }
            let seed = arguments.seed.wrapping_add(run);
            let report = match (arguments.cluster, arguments.twin) {
                (true, _) => {
                    let Arguments { brief, replicas, .. } = *arguments;
                    cluster::run(seed, cluster::Options { brief, replicas })
                }
                (_, true) if arguments.replicas => twin::run_seed_with_replicas(seed),
                (_, true) => twin::run_seed(seed),
                _ => run_seed(seed, &options),
            };
            points.fetch_add(report.points, Ordering::Relaxed);
            for violation in &report.violations {
                println!("{violation}");
            }
            if arguments.verbose {
                eprintln!("seed {seed}: {:?}", report.counts);
            }
            let mut total = total.lock().expect("no thread panics with the lock");
            total.points += report.points;
            total.counts.merge(&report.counts);
            total.violations.extend(report.violations);
            if total.violations.len() >= MOST_VIOLATIONS {
                points.store(u64::MAX / 2, Ordering::Relaxed);
            }
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..arguments.threads).map(|_| scope.spawn(work)).collect();
        scope.spawn(|| {
            let mut told = Instant::now();
            while !over.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(50));
                if told.elapsed() > Duration::from_secs(5) {
                    told = Instant::now();
                    let total = total.lock().expect("no thread panics with the lock");
                    eprintln!(
                        "{:>5} s  {} points, {} violations, {} I/Os",
                        begin.elapsed().as_secs(),
                        total.points,
                        total.violations.len(),
                        total.counts.ios
                    );
                }
            }
        });
        for worker in workers {
            worker.join().expect("a run's panics are caught");
        }
        over.store(true, Ordering::Relaxed);
    });
    let total = total.into_inner().expect("no thread panics with the lock");
    tell(&total.counts, begin.elapsed());
    total
}

fn tell(counts: &Counts, time: Duration) {
    println!(
        "{} kills and {} power cuts ({} while opening), {} starts from a checkpoint, {} I/Os, {} requests ({} failed by faults), {} management jobs, {} times blocks of a base shared, {} blocks lent, {} of them read and {} loans freed, {} owners replaced by complete replicas, {} takeovers in a cluster of which {} recorded a loss, {} faults, {} sectors verified, {:.1} s",
        counts.kills,
        counts.cuts,
        counts.crashes_in_open,
        counts.checkpoints,
        counts.ios,
        counts.requests,
        counts.errors,
        counts.jobs,
        counts.shared,
        counts.lent,
        counts.lent_reads,
        counts.freed_loans,
        counts.replicas,
        counts.takeovers,
        counts.losses,
        counts.faults,
        counts.sectors,
        time.as_secs_f64()
    );
}

fn demo() -> RunReport {
    println!("Haversack crash simulator: virtual disks on a simulated host that keeps dying.");
    println!("Every sector says which write made it; an oracle knows what each read may return.\n");
    let mut total = RunReport::default();
    let begin = Instant::now();
    let options = Options { script_percent: 0, ..Options::default() };
    for seed in 1..=12 {
        let mut rng = Random::scrambled(seed);
        rng.percent(0);
        let plan = Plan::random(&mut rng);
        let modes: Vec<_> = plan.disks.iter().map(|d| d.mode.name()).collect();
        println!(
            "run {seed}: {} cache device(s) of {:?} MiB, {} disk(s) in mode {}, up to {} requests in flight",
            plan.devices.len(),
            plan.devices,
            plan.disks.len(),
            modes.join(" "),
            plan.depth
        );
        let report = run_seed(seed, &options);
        let c = &report.counts;
        println!(
            "  {} crashes survived: {} kills, {} power cuts, {} of them while opening the pool",
            c.points, c.kills, c.cuts, c.crashes_in_open
        );
        println!(
            "  {} guest requests, {} device and origin I/Os, {} management jobs, {} injected faults",
            c.requests, c.ios, c.jobs, c.faults
        );
        println!(
            "  {} sectors read back: {}",
            c.sectors,
            if report.violations.is_empty() { "all right" } else { "WRONG" }
        );
        for violation in &report.violations {
            println!("{violation}");
        }
        total.points += report.points;
        total.counts.merge(&report.counts);
        total.violations.extend(report.violations);
    }
    println!();
    tell(&total.counts, begin.elapsed());
    total
}
