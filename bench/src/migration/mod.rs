//! What a move between hosts costs the VM, its neighbours, and the link: two daemons in network namespaces, 1 Gbit/s
//! between them, TLS, an origin that takes 2 ms for a request, clients over NBD that check what they read.

mod beside;
mod processors;
mod scene;
mod stall;

use std::time::Duration;

use haversack_e2e::Place;

use crate::output::say;
use crate::table;
use beside::Guests;
use scene::{LINK_MBITS, Scene};

/// Why it ends.
pub type Failure = Box<dyn std::error::Error>;

/// A cache size, and how much of the disk is cached.
pub struct Size {
    /// What it is called.
    name: &'static str,
    /// The cache device of each host.
    cache_mib: u64,
    /// The disk, all of it cached.
    cached_mib: u64,
}

/// What is written after the cache was sent ahead and before the VM stops.
const DIRTY_MIB: u64 = 64;
const SMALL: Size = Size { name: "small cache", cache_mib: 256, cached_mib: 64 };
/// The cache that is sent while a VM and its neighbours are measured: large enough for sending to take a while at the
/// lowest rate.
const BESIDE: Size = Size { name: "beside guests", cache_mib: 1024, cached_mib: 256 };
const LARGE: Size = Size { name: "16 times larger", cache_mib: 4096, cached_mib: 1024 };

/// What is asked for on the command line.
#[derive(Clone, Debug)]
pub struct Options {
    /// What is measured: `stall`, `beside` or `all`.
    pub what: String,
    /// Moves with the small cache with a flush when the VM stops, and as many without; with the larger cache, a fifth
    /// of that.
    pub moves: usize,
    /// Time of each measurement without a move.
    pub round: Duration,
}

/// A figure beside its goal.
struct Figure {
    what: String,
    goal: String,
    measured: String,
    is_met: bool,
}

impl Figure {
    fn at_most(what: &str, unit: &str, goal: f64, measured: f64) -> Figure {
        let text = |figure: f64| format!("{figure:.3} {unit}");
        Figure {
            what: what.into(),
            goal: format!("at most {}", text(goal)),
            measured: text(measured),
            is_met: measured <= goal,
        }
    }

    fn at_least(what: &str, unit: &str, goal: f64, measured: f64) -> Figure {
        let goal_text = format!("at least {goal:.3} {unit}");
        Figure { goal: goal_text, is_met: measured >= goal, ..Figure::at_most(what, unit, goal, measured) }
    }
}

/// The figure that a share of all does not exceed.
fn share(figures: &[f64], share: f64) -> f64 {
    let mut sorted = figures.to_owned();
    sorted.sort_by(f64::total_cmp);
    sorted[((sorted.len() - 1) as f64 * share).ceil() as usize]
}

/// Measures and prints.
pub fn run(options: &Options) -> Result<(), Failure> {
    say!(
        "moves between two hosts, {LINK_MBITS} Mbit/s between them, {DIRTY_MIB} MiB written just before the VM stops"
    );
    if options.what != "beside" {
        for (size, moves) in [(&SMALL, options.moves), (&LARGE, options.moves.div_ceil(5))] {
            let (place, places) = places()?;
            let scene = Scene::start(&place, &places, size)?;
            print(
                &format!("{}: twice {moves} moves, {} MiB cached", size.name, size.cached_mib),
                stall::run(&scene, size, moves)?,
            );
        }
    }
    if options.what != "stall" {
        say!(
            "the VM, its neighbours, and a cache of {} MiB on its way, each host with half of the processors",
            BESIDE.cached_mib
        );
        for guests in [Guests::Pausing, Guests::Saturating] {
            let (place, places) = places()?;
            let scene = Scene::start(&place, &places, &BESIDE)?;
            let figures = beside::run(&scene, &BESIDE, options, guests)?;
            print(&format!("guests {}", guests.name()), figures);
        }
    }
    Ok(())
}

fn places() -> Result<(Place, [Place; 2]), Failure> {
    let place = Place::scratch()?;
    let places = [place.host("a")?, place.host("b")?];
    Ok((place, places))
}

fn print(title: &str, figures: Vec<Figure>) {
    let mut rows = vec![table::row(["", "goal", "measured", ""])];
    rows.extend(figures.into_iter().map(|Figure { what, goal, measured, is_met }| {
        vec![what, goal, measured, if is_met { "met" } else { "missed" }.into()]
    }));
    table::print(title, &rows);
}
