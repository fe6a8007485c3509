//! A budget of flash writes over a month of simulated time.

#[expect(dead_code, reason = "other tests use the rest")]
mod common;

use common::{memory, simulate};
use haversack_control::endurance::Endurance;
use haversack_model::random::Random;
use haversack_sim::latency::LatencyModel;
use haversack_sim::{PolicyName, Pool, RestartKind, Restarts, Row, Settings, Sizes};
use haversack_trace::{Access, Op};

const DAY_NS: u64 = 86_400_000_000_000;
const DAYS: u64 = 30;
const READS_A_DAY: u64 = 10_000;

/// Skewed reads of a volume much larger than the cache. Half of each day's reads arrive within the first hour of the
/// day.
fn month() -> Vec<Access> {
    let mut rng = Random::new(9);
    let mut access = |number: u64| {
        let (day, of_day) = (number / READS_A_DAY, number % READS_A_DAY);
        let burst = of_day < READS_A_DAY / 2;
        let (from, length, part) = match burst {
            true => (0, DAY_NS / 24, of_day * 2),
            false => (DAY_NS / 24, DAY_NS / 24 * 23, of_day * 2 - READS_A_DAY),
        };
        Access {
            time_ns: day * DAY_NS + from + length / READS_A_DAY * part,
            offset_bytes: (rng.open_unit().powi(3) * 40_000.0) as u64 * 4096,
            length_bytes: 4096,
            op: Op::Read,
            ..Access::default()
        }
    };
    (0..DAYS * READS_A_DAY).map(&mut access).collect()
}

fn simulated(accesses: &[Access], bytes_a_day: Option<f64>, restarts: Option<Restarts>) -> Row {
    let settings = Settings {
        policies: vec![PolicyName::Core],
        sizes: Sizes::Blocks(vec![2024]),
        pool: Pool { endurance: bytes_a_day.map(Endurance::BytesPerDay), restarts, ..Pool::default() },
        latency: Some(LatencyModel::default()),
        ..Settings::default()
    };
    let report = simulate(&memory(accesses, &["v"]), &settings);
    report.of(PolicyName::Core).next().expect("it was simulated").clone()
}

fn bytes_a_day(row: &Row) -> f64 {
    row.flash_writes as f64 * 4096.0 / DAYS as f64
}

#[test]
fn the_average_of_thirty_days_holds_with_bursts_and_across_restarts() {
    let accesses = month();
    let free = simulated(&accesses, None, None);
    let budget = bytes_a_day(&free) / 4.0;
    let weekly = Restarts { every_ns: 7 * DAY_NS + DAY_NS / 3, kind: RestartKind::Kill };
    for restarts in [None, Some(weekly)] {
        let held = simulated(&accesses, Some(budget), restarts);
        let part = bytes_a_day(&held) / budget;
        assert!((0.9..1.04).contains(&part), "{part} of the budget, restarts {restarts:?}");
        let account = held.production.expect("the core").flash_account.expect("a budget");
        assert!(account.price_us > 0.0 && account.begun_us == 0, "{account:?}");
        // The filter `always` ignores the price of a write, so the budget limits which share of the blocks is filled.
        // With a quarter of the flash writes, the cache must keep more than 40 % of the hits.
        assert!(held.hits as f64 > 0.4 * free.hits as f64, "{} of {} hits", held.hits, free.hits);
    }
}

/// The account begins only half full, so the first burst may raise the price and cost a few hits.
#[test]
fn a_budget_that_is_large_enough_costs_next_to_nothing() {
    let accesses = month();
    let free = simulated(&accesses, None, None);
    let ample = simulated(&accesses, Some(bytes_a_day(&free) * 4.0), None);
    assert!(ample.hits.abs_diff(free.hits) * 500 < free.hits, "{} and {} hits", ample.hits, free.hits);
    let writes = (ample.flash_writes, free.flash_writes);
    assert!(writes.0.abs_diff(writes.1) * 500 < writes.1, "{writes:?}");
}
