//! Tenants' shares over the cluster, against another computation.

use haversack_cluster::{ClusterError, Demand, Division, HostName, Tenant, TenantName, divide};
use haversack_model::random::Random;

fn tenant(name: &str, weight: f64) -> Tenant {
    Tenant { name: name.into(), weight, reservation_blocks: 0, limit_blocks: None }
}

fn demand(tenant: &str, host: &str, blocks: u64) -> Demand {
    Demand { tenant: tenant.into(), host: host.into(), blocks }
}

fn hosts(of: &[(&str, u64)]) -> Vec<(HostName, u64)> {
    of.iter().map(|(name, blocks)| (HostName::from(*name), *blocks)).collect()
}

fn totals(division: &Division) -> Vec<u64> {
    division.totals.iter().map(|total| total.blocks).collect()
}

#[test]
fn by_hand() {
    let two = [tenant("a", 1.0), tenant("b", 1.0)];
    // b can only be on h2, so a leaves it to b and takes h1.
    let demands = [demand("a", "h1", 100), demand("a", "h2", 100), demand("b", "h2", 100)];
    let division = divide(&hosts(&[("h1", 60), ("h2", 60)]), &two, &demands, 1).unwrap();
    assert_eq!(totals(&division), [60, 60]);
    let division = divide(&hosts(&[("h1", 20), ("h2", 60)]), &two, &demands, 1).unwrap();
    assert_eq!(totals(&division), [40, 40]);
    // Weights, a limit, and a reservation that is not all demanded.
    let heavy = [tenant("a", 3.0), tenant("b", 1.0)];
    let division = divide(&hosts(&[("h1", 20), ("h2", 60)]), &heavy, &demands, 1).unwrap();
    assert_eq!(totals(&division), [60, 20]);
    let limited = [Tenant { limit_blocks: Some(30), ..heavy[0].clone() }, tenant("b", 1.0)];
    let division = divide(&hosts(&[("h1", 20), ("h2", 60)]), &limited, &demands, 1).unwrap();
    assert_eq!(totals(&division), [30, 50]);
    let reserved = [tenant("a", 3.0), Tenant { reservation_blocks: 50, ..tenant("b", 1.0) }];
    let division = divide(&hosts(&[("h1", 20), ("h2", 60)]), &reserved, &demands, 1).unwrap();
    assert_eq!(totals(&division), [30, 50]);
    let division = divide(&hosts(&[("h1", 20), ("h2", 40)]), &reserved, &demands, 1).unwrap();
    assert_eq!((totals(&division), division.totals[1].missing_blocks), (vec![20, 40], 10));
    // With enough space, each tenant gets its demand on each host. A limit is divided in proportion to the demand.
    let spread = [Tenant { limit_blocks: Some(50), ..tenant("a", 1.0) }, tenant("b", 1.0)];
    let division = divide(&hosts(&[("h1", 999), ("h2", 999)]), &spread, &demands, 1).unwrap();
    assert_eq!(division.shares.iter().map(|share| share.blocks).collect::<Vec<_>>(), [25, 25, 100]);
}

struct Case {
    hosts: Vec<(HostName, u64)>,
    tenants: Vec<Tenant>,
    demands: Vec<Demand>,
}

fn case(random: &mut Random) -> Case {
    let hosts: Vec<(HostName, u64)> =
        (0..random.range(1, 6)).map(|at| (HostName(format!("h{at}")), random.below(1000))).collect();
    let tenants: Vec<Tenant> = (0..random.range(1, 6))
        .map(|at| {
            let reservation_blocks = if random.percent(50) { random.below(500) } else { 0 };
            Tenant {
                name: TenantName(format!("t{at}")),
                weight: random.range(1, 8) as f64 / 2.0,
                reservation_blocks,
                limit_blocks: random.percent(30).then(|| reservation_blocks + random.below(800)),
            }
        })
        .collect();
    let mut demands = Vec::new();
    for tenant in &tenants {
        for (host, _) in &hosts {
            if random.percent(60) {
                demands.push(Demand {
                    tenant: tenant.name.clone(),
                    host: host.clone(),
                    blocks: random.below(900),
                });
            }
        }
    }
    Case { hosts, tenants, demands }
}

/// Returns the maximum that a set of tenants can have together, if each tenant has at most `most`. This is the minimum
/// over all subsets of the set: what the hosts have for the tenants in the subset, plus `most` of the other tenants.
fn rank(case: &Case, set: usize, most: &[f64]) -> f64 {
    let count = case.tenants.len();
    let of_hosts = |subset: usize| -> f64 {
        let demand = |host: &HostName| -> u64 {
            let is_in = |tenant: &TenantName| {
                subset >> case.tenants.iter().position(|other| other.name == *tenant).unwrap() & 1 == 1
            };
            let here = case.demands.iter().filter(|demand| demand.host == *host && is_in(&demand.tenant));
            here.map(|demand| demand.blocks).sum()
        };
        case.hosts.iter().map(|(host, blocks)| demand(host).min(*blocks) as f64).sum()
    };
    let subsets = (0..1usize << count).filter(|subset| subset & !set == 0);
    subsets
        .map(|subset| {
            let others =
                (0..count).filter(|at| (set & !subset) >> at & 1 == 1).map(|at| most[at]).sum::<f64>();
            of_hosts(subset) + others
        })
        .fold(f64::INFINITY, f64::min)
}

/// Weighted max-min by raising a level until some set of tenants has all that it can have, without flows.
fn fair(case: &Case, weights: &[f64], least: &[f64], most: &[f64]) -> Vec<f64> {
    let count = weights.len();
    let ranks: Vec<f64> = (0..1usize << count).map(|set| rank(case, set, most)).collect();
    let mut fixed: Vec<Option<f64>> = vec![None; count];
    loop {
        let at_level = |level: f64| -> Vec<f64> {
            (0..count)
                .map(|at| {
                    fixed[at]
                        .unwrap_or_else(|| (level * weights[at]).max(least[at]).min(most[at].max(least[at])))
                })
                .collect()
        };
        let sum =
            |of: &[f64], set: usize| (0..count).filter(|at| set >> at & 1 == 1).map(|at| of[at]).sum::<f64>();
        let is_possible = |level: f64| {
            let all = at_level(level);
            (0..1usize << count).all(|set| sum(&all, set) <= ranks[set] + 1e-7)
        };
        if is_possible(1e9) {
            return at_level(1e9);
        }
        let (mut low, mut high) = (0.0, 1e9);
        for _ in 0..100 {
            let middle = (low + high) / 2.0;
            if is_possible(middle) { low = middle } else { high = middle }
        }
        let (now, higher) = (at_level(low), at_level(high * 1.0001 + 0.01));
        for (set, rank) in ranks.iter().enumerate() {
            if sum(&higher, set) > rank + 1e-7 && sum(&now, set) > rank - 1e-4 {
                (0..count).filter(|at| set >> at & 1 == 1).for_each(|at| fixed[at] = Some(now[at]));
            }
        }
        if fixed.iter().all(Option::is_some) {
            return now;
        }
    }
}

#[test]
fn totals_are_those_of_another_computation() {
    for seed in 0..1500 {
        let case = case(&mut Random::new(seed));
        let division = divide(&case.hosts, &case.tenants, &case.demands, 1).unwrap();
        let demanded = |tenant: &Tenant| -> f64 {
            case.demands
                .iter()
                .filter(|demand| demand.tenant == tenant.name)
                .map(|demand| demand.blocks as f64)
                .sum()
        };
        let zeros = vec![0.0; case.tenants.len()];
        let reservations: Vec<f64> =
            case.tenants.iter().map(|tenant| tenant.reservation_blocks as f64).collect();
        let reserved: Vec<f64> = case
            .tenants
            .iter()
            .map(|tenant| demanded(tenant).min(tenant.reservation_blocks as f64))
            .collect();
        let least = fair(&case, &reservations, &zeros, &reserved);
        let weights: Vec<f64> = case.tenants.iter().map(|tenant| tenant.weight).collect();
        let most: Vec<f64> = case
            .tenants
            .iter()
            .map(|tenant| demanded(tenant).min(tenant.limit_blocks.unwrap_or(u64::MAX) as f64))
            .collect();
        let expected = fair(&case, &weights, &least, &most);
        for ((total, expected), least) in division.totals.iter().zip(&expected).zip(&least) {
            let off = (total.blocks as f64 - expected).abs();
            assert!(off <= 2.0 + 1e-3, "seed {seed}: {total:?} instead of {expected}");
            assert!(total.blocks as f64 >= least - 2.0, "seed {seed}: {total:?}, reserved {least}");
        }
    }
}

#[test]
fn bounds_hold_with_chunks() {
    for seed in 0..1500 {
        let mut random = Random::new(seed);
        let case = case(&mut random);
        let chunk_blocks = random.range(1, 64);
        let exact = divide(&case.hosts, &case.tenants, &case.demands, 1).unwrap();
        let division = divide(&case.hosts, &case.tenants, &case.demands, chunk_blocks).unwrap();
        for (host, blocks) in &case.hosts {
            let here: u64 =
                division.shares.iter().filter(|share| share.host == *host).map(|share| share.blocks).sum();
            assert!(here <= *blocks, "seed {seed}: {host} has {blocks}, not {here}");
        }
        assert_eq!(division.shares.len(), case.demands.len());
        for (share, before) in division.shares.iter().zip(&exact.shares) {
            let asked =
                case.demands.iter().find(|demand| demand.host == share.host && demand.tenant == share.tenant);
            assert!(share.blocks <= asked.unwrap().blocks, "seed {seed}: {share:?}");
            assert!(
                share.blocks.abs_diff(before.blocks) <= chunk_blocks,
                "seed {seed}: {before:?} to {share:?}"
            );
        }
        for ((total, before), tenant) in division.totals.iter().zip(&exact.totals).zip(&case.tenants) {
            let sum: u64 = division
                .shares
                .iter()
                .filter(|share| share.tenant == total.tenant)
                .map(|share| share.blocks)
                .sum();
            assert_eq!(total.blocks, sum, "seed {seed}: {total:?}");
            assert!(
                tenant.limit_blocks.is_none_or(|limit| sum <= limit),
                "seed {seed}: {total:?} and {tenant:?}"
            );
            let reserved = tenant.reservation_blocks.min(before.blocks);
            assert!(sum >= reserved, "seed {seed}: {total:?} and {tenant:?}");
        }
    }
}

#[test]
fn the_order_does_not_matter() {
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let mut case = case(&mut random);
        let division = divide(&case.hosts, &case.tenants, &case.demands, 16).unwrap();
        random.shuffle(&mut case.hosts);
        random.shuffle(&mut case.tenants);
        random.shuffle(&mut case.demands);
        assert_eq!(division, divide(&case.hosts, &case.tenants, &case.demands, 16).unwrap(), "seed {seed}");
    }
}

#[test]
fn what_contradicts_itself_is_refused() {
    let (one, all) = (hosts(&[("h", 10)]), [tenant("a", 1.0)]);
    let unknown = divide(&one, &all, &[demand("b", "h", 1)], 1);
    assert!(matches!(unknown, Err(ClusterError::UnknownTenant { .. })));
    assert!(matches!(divide(&one, &all, &[demand("a", "g", 1)], 1), Err(ClusterError::UnknownHost { .. })));
    let twice = [demand("a", "h", 1), demand("a", "h", 2)];
    assert!(matches!(divide(&one, &all, &twice, 1), Err(ClusterError::TwiceThere { kind: "demand", .. })));
    for bad in [
        tenant("a", 0.0),
        tenant("a", f64::NAN),
        Tenant { reservation_blocks: 2, limit_blocks: Some(1), ..tenant("a", 1.0) },
    ] {
        assert!(matches!(divide(&one, &[bad], &[], 1), Err(ClusterError::BadTenant { .. })));
    }
    assert_eq!(divide(&[], &[], &[], 1).unwrap(), Division::default());
}
