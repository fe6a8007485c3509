//! One seed, one run.

use std::cell::RefCell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::checkpoint::Checkpoints;
use crate::loans::Loans;
use crate::plan::Plan;
use crate::script;
use crate::world::{Counts, Flow, Stop, World};
use haversack_model::random::Random;

/// One run in this many has its crashes while the pool record is being written.
const RUNS_WITH_RECORD_CRASHES: u64 = 4;
/// One run in this many loses a device of a pool without redundancy, one any device of a pool with it, and one has
/// media that rot.
const RUNS_WITH_LOSSES: u64 = 10;
/// One run in this many has disks that all share one pool.
const RUNS_WITH_SHARING: u64 = 4;

/// One run in this many leaves checkpoints when it stops.
const RUNS_WITH_CHECKPOINTS: u64 = 3;

/// One run in this many prepares segments while it runs, on devices that are not blank.
pub(crate) const RUNS_THAT_PREPARE: u64 = 3;

/// One run in this many has disks that share blocks with their base.
const RUNS_WITH_BASES: u64 = 5;

/// One run in this many lends space to other hosts.
const RUNS_THAT_LEND: u64 = 5;

/// One run in this many has disks whose blocks are cleaned in the order of their guests' flushes.
const RUNS_IN_ORDER: u64 = 6;

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Maximum number of crash points of a run.
    pub most_points: u64,
    /// Percentage of runs that are scripts.
    pub script_percent: u64,
    /// Every admission filter is the learning one; all other choices of a seed stay the same.
    pub learned: bool,
    /// No run has bases or loans, leaves checkpoints or cleans in order; all other choices of a seed stay the same.
    pub plain: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options { most_points: 400, script_percent: 20, learned: false, plain: false }
    }
}

/// The result of a run.
#[derive(Clone, Default, Debug)]
pub struct RunReport {
    /// Crash points tried.
    pub points: u64,
    /// Broken invariants and panics: what, where, how to reproduce it.
    pub violations: Vec<String>,
    /// Counters.
    pub counts: Counts,
}

thread_local! {
    static LAST_PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

static TRACE: AtomicBool = AtomicBool::new(false);

/// Prints everything that happens in the runs from now on.
pub fn trace() {
    TRACE.store(true, Ordering::Relaxed);
}

/// Prints a line if runs are traced.
pub(crate) fn tell(line: impl FnOnce() -> String) {
    if TRACE.load(Ordering::Relaxed) {
        eprintln!("{}", line());
    }
}

/// Records panics instead of printing them, so that they can be reported with their seed.
pub fn quiet_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        panic::set_hook(Box::new(|info| {
            let text = info.to_string().replace('\n', " ");
            LAST_PANIC.with(|last| *last.borrow_mut() = Some(text));
        }));
    });
}

impl Counts {
    /// Adds a world's counters.
    pub fn add(&mut self, world: &World) {
        self.merge(&Counts { sectors: world.oracle.sectors_checked, ..world.counts });
    }

    /// Adds counters.
    pub fn merge(&mut self, other: &Counts) {
        self.points += other.points;
        self.kills += other.kills;
        self.cuts += other.cuts;
        self.crashes_in_open += other.crashes_in_open;
        self.checkpoints += other.checkpoints;
        self.ios += other.ios;
        self.requests += other.requests;
        self.jobs += other.jobs;
        self.shared += other.shared;
        self.lent += other.lent;
        self.lent_reads += other.lent_reads;
        self.freed_loans += other.freed_loans;
        self.replicas += other.replicas;
        self.takeovers += other.takeovers;
        self.losses += other.losses;
        self.errors += other.errors;
        self.faults += other.faults;
        self.sectors += other.sectors;
    }
}

/// Runs everything determined by one seed. A violation or a panic ends the run.
pub fn run_seed(seed: u64, options: &Options) -> RunReport {
    let learned = if options.learned { "--learned " } else { "" };
    reported(seed, learned, |report| one_run(seed, options, &mut report.counts))
}

/// Does one run, and returns its report, with the violation or panic that has ended it. `options` are those that do it
/// again.
pub(crate) fn reported(
    seed: u64,
    options: &str,
    run: impl FnOnce(&mut RunReport) -> Result<(), String>,
) -> RunReport {
    let mut report = RunReport::default();
    let failure = match panic::catch_unwind(AssertUnwindSafe(|| run(&mut report))) {
        Ok(outcome) => outcome.err(),
        Err(payload) => Some(panic_text(payload.as_ref())),
    };
    report.counts.points += u64::from(failure.is_some());
    report.points = report.counts.points;
    report.violations.extend(failure.map(|what| {
        format!(
            "VIOLATION at seed {seed}, point {}: {what}\n  again: cargo run --release -p haversack-crash -- {options}--seed {seed} --runs 1",
            report.points
        )
    }));
    report
}

/// Returns whether a run of a plan has shown a mistake.
pub(crate) fn outcome(flow: Flow, plan: &str) -> Result<(), String> {
    match flow {
        Ok(()) | Err(Stop::End) => Ok(()),
        Err(Stop::Violation(what)) => Err(format!("{what}\n  plan: {plan}")),
        Err(Stop::Crash(_)) => Err("a crash that nobody planned".into()),
    }
}

/// Returns what a panic said.
fn panic_text(payload: &(dyn std::any::Any + Send)) -> String {
    let told = LAST_PANIC.with(|last| last.borrow_mut().take());
    let text = payload.downcast_ref::<String>().cloned();
    let text = text.or_else(|| payload.downcast_ref::<&str>().map(|s| (*s).to_string()));
    told.or(text).unwrap_or_else(|| "panicked".into())
}

fn one_run(seed: u64, options: &Options, counts: &mut Counts) -> Result<(), String> {
    let mut rng = Random::scrambled(seed);
    if rng.percent(options.script_percent) {
        return script::sweep(&mut rng, counts, options.most_points);
    }
    let mut plan = Plan::random(&mut rng);
    let points = rng.range(3, 40).min(options.most_points);
    // Drawn separately, so that the other runs do not change.
    let mut apart = Random::scrambled(seed.rotate_left(32));
    let (mut losses, mut damages) = (None, None);
    match apart.below(RUNS_WITH_LOSSES) {
        0 => plan.without_second_copies(&mut apart),
        1 => {
            plan.losing_any(&mut apart);
            losses = Some(apart);
        }
        2 => {
            plan.damaging(&mut apart);
            damages = Some(apart);
        }
        _ => {}
    }
    let mut apart = Random::scrambled(seed.rotate_left(16));
    if apart.one_in(RUNS_WITH_SHARING) {
        plan.sharing(&mut apart);
    }
    let mut apart = Random::scrambled(seed.rotate_left(48));
    if apart.one_in(RUNS_THAT_PREPARE) {
        plan.preparing(&mut apart);
    }
    let mut apart = Random::scrambled(seed.rotate_left(8));
    if apart.one_in(RUNS_WITH_BASES) && !options.plain {
        plan.basing(&mut apart);
    }
    let mut apart = Random::scrambled(seed.rotate_left(56));
    if apart.one_in(RUNS_IN_ORDER) && !options.plain {
        plan.ordering(losses.is_none() && damages.is_none(), &mut apart);
    }
    if options.learned {
        plan.learning();
    }
    let told = format!("{plan:?}");
    let mut world = World::new(plan, rng).map_err(|stop| format!("{stop:?}"))?;
    (world.losses, world.damages) = (losses, damages);
    let mut apart = Random::scrambled(!seed);
    world.record_crashes = apart.one_in(RUNS_WITH_RECORD_CRASHES).then_some(apart);
    let mut apart = Random::scrambled((!seed).rotate_left(16));
    let leaves = apart.one_in(RUNS_WITH_CHECKPOINTS) && !options.plain;
    world.checkpoints = leaves.then(|| Checkpoints::new(apart));
    let mut apart = Random::scrambled((!seed).rotate_left(32));
    let lends = apart.one_in(RUNS_THAT_LEND) && !options.plain;
    world.loans = lends.then(|| Loans::new(apart));
    let result = panic::catch_unwind(AssertUnwindSafe(|| world.long_run(points)));
    counts.add(&world);
    outcome(result.unwrap_or_else(|payload| panic::resume_unwind(payload)), &told)
}
