//! Seeds that once showed a violation. What they do changes with the simulator; that none fails does not.

use haversack_crash::{Options, run_seed};

const ONCE_FAILED: &[u64] = &[
    2, 8, 11, 29, 42, 71, 74, 76, 95, 130, 156, 165, 402, 514, 580, 620, 668, 698, 779, 801, 811, 894, 932,
    1030, 1323, 1624, 1729, 1779, 1861, 1907, 1972, 2111, 2727, 5190, 5486, 5487, 5682, 6017, 200212, 201365,
    202112, 202222, 203212, 300239, 300899, 300933, 301463, 302264, 400241, 400468, 401123, 401187, 401729,
    402406, 500220, 500276, 500725, 501352, 502065, 502164, 503282, 600654, 600722, 600876, 601085, 601160,
    601488, 601619, 601886, 601909, 601980, 602502, 602728, 603792, 604164, 604674, 604820, 605223, 700080,
    1150, 2642, 3402, 3560, 801028, 801995, 902941, 1004280, 1004485, 1005506, 1008130, 3002124, 3002396,
    3009676, 50000100, 50000442, 1789, 30003638, 62000454, 1805403, 1702297, 305092, 404995, 4735, 822, 1409,
    1554, 704880, 5006687, 2440, 1000380, 3778, 1004186, 458, 3300253, 565, 20554, 20646, 20951, 934, 1448,
    1794, 303516, 402461, 403551, 500877, 100155, 105018, 105288, 200072, 601001, 2003988, 2102131, 5804161,
    6101617, 7105534, 7503163, 8203731, 8204621, 8601567, 8802774, 9102432,
];

#[test]
fn seeds_that_once_failed_hold() {
    let hold = |seeds: &[u64]| -> Vec<String> {
        seeds.iter().flat_map(|seed| run_seed(*seed, &Options::default()).violations).collect()
    };
    let violations: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = ONCE_FAILED
            .chunks(ONCE_FAILED.len().div_ceil(4))
            .map(|part| scope.spawn(|| hold(part)))
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a run does not panic")).collect()
    });
    assert!(violations.is_empty(), "{}", violations.join("\n"));
}
