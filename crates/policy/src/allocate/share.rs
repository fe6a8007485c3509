//! Sharing in proportion to weights, with a minimum and a maximum for each share: the arithmetic used by
//! every rule.
//!
//! There is one level at which the sum is right: any share that would be below its minimum gets the minimum,
//! and any that would be above its maximum gets the maximum. This is weighted max-min fairness with floors.
//!
//! Invariants
//! - least <= share <= most for all; the sum is at most the whole.
//! - A share is the minimum plus whole units, or the maximum. Less than a unit, or space that no share with a
//!   weight may take, is left over.

/// A participant.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Share {
    /// The weight; 0 for no more than the minimum.
    pub weight: f64,
    /// The minimum.
    pub least: u64,
    /// The maximum; not below the minimum.
    pub most: u64,
}

/// Shares `whole` in units. The sum of the minimums must not exceed it.
pub fn share(whole: u64, unit: u64, all: &[Share]) -> Vec<u64> {
    let unit = unit.max(1);
    let level = level_shares(whole, all);
    let rounded = |(ideal, share): (&f64, &Share)| match *ideal {
        ideal if ideal >= share.most as f64 => share.most,
        ideal => (share.least + (ideal as u64).saturating_sub(share.least) / unit * unit).min(share.most),
    };
    let mut shares: Vec<u64> = level.iter().zip(all).map(rounded).collect();
    take_back_rounding(whole, all, &mut shares);
    hand_out_rest(whole, unit, all, &level, &mut shares);
    shares
}

/// Removes the excess that floating-point rounding has added to the sum, from the first shares that can spare
/// it.
fn take_back_rounding(whole: u64, all: &[Share], shares: &mut [u64]) {
    let mut over = shares.iter().sum::<u64>().saturating_sub(whole);
    for (got, share) in shares.iter_mut().zip(all) {
        let back = over.min(*got - share.least);
        *got -= back;
        over -= back;
    }
}

/// Gives units left by rounding to the shares that lost most by it.
fn hand_out_rest(whole: u64, unit: u64, all: &[Share], level: &[f64], shares: &mut [u64]) {
    let mut rest = whole.saturating_sub(shares.iter().sum());
    let mut order: Vec<usize> = (0..all.len()).filter(|at| all[*at].weight > 0.0).collect();
    let lost = |at: usize| level[at] - shares[at] as f64;
    order.sort_by(|a, b| lost(*b).total_cmp(&lost(*a)));
    loop {
        let before = rest;
        for &at in &order {
            let more = unit.min(all[at].most - shares[at]);
            if more <= rest {
                shares[at] += more;
                rest -= more;
            }
        }
        if rest == before || rest == 0 {
            return;
        }
    }
}

/// Returns the exact shares. In each round all open shares are in proportion. Then either those below their
/// minimum or those above their maximum are fixed, whichever sums to more; so each round fixes at least one.
fn level_shares(whole: u64, all: &[Share]) -> Vec<f64> {
    let mut shares: Vec<f64> = all.iter().map(|share| share.least as f64).collect();
    let mut open: Vec<usize> = (0..all.len()).filter(|at| all[*at].weight > 0.0).collect();
    let mut rest = whole as f64;
    rest -= all.iter().filter(|share| share.weight <= 0.0).map(|share| share.least as f64).sum::<f64>();
    while !open.is_empty() {
        let weights: f64 = open.iter().map(|at| all[*at].weight).sum();
        let (mut lacking, mut beyond) = (0.0, 0.0);
        for &at in &open {
            let ideal = rest * (all[at].weight / weights);
            lacking += (all[at].least as f64 - ideal).max(0.0);
            beyond += (ideal - all[at].most as f64).max(0.0);
            shares[at] = ideal;
        }
        if lacking == 0.0 && beyond == 0.0 {
            break;
        }
        let fix_least = lacking > beyond;
        open.retain(|&at| {
            let (least, most) = (all[at].least as f64, all[at].most as f64);
            let fixed = if fix_least {
                (shares[at] < least).then_some(least)
            } else {
                (shares[at] > most).then_some(most)
            };
            if let Some(fixed) = fixed {
                shares[at] = fixed;
                rest -= fixed;
            }
            fixed.is_none()
        });
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(weight: f64, least: u64, most: u64) -> Share {
        Share { weight, least, most }
    }

    #[test]
    fn by_hand() {
        assert_eq!(share(100, 1, &[of(1.0, 0, 100), of(3.0, 0, 100)]), [25, 75]);
        assert_eq!(share(100, 1, &[of(1.0, 40, 100), of(3.0, 0, 100)]), [40, 60]);
        assert_eq!(share(100, 1, &[of(1.0, 0, 100), of(3.0, 0, 30)]), [70, 30]);
        assert_eq!(share(100, 1, &[of(1.0, 0, 10), of(3.0, 0, 30)]), [10, 30]);
        assert_eq!(share(100, 1, &[of(0.0, 5, 100), of(1.0, 0, 100)]), [5, 95]);
        assert_eq!(share(10, 1, &[of(1.0, 0, 10); 3]), [4, 3, 3]);
        assert_eq!(share(10, 4, &[of(1.0, 0, 10), of(1.0, 1, 10)]), [4, 5]);
        assert_eq!(share(100, 1, &[of(0.0, 0, 100); 2]), [0, 0]);
    }

    fn shares() -> impl Strategy<Value = (u64, Vec<Share>)> {
        let one = (0.0..5.0f64, 0u64..1000, 0u64..5000);
        let all = prop::collection::vec(one, 1..12);
        (all, 0u64..20_000).prop_map(|(all, more)| {
            let all: Vec<_> = all.into_iter().map(|(w, least, room)| of(w, least, least + room)).collect();
            (all.iter().map(|share| share.least).sum::<u64>() + more, all)
        })
    }

    proptest! {
        #[test]
        fn bounds_and_sums_hold((whole, all) in shares(), unit in 1u64..300) {
            let got = share(whole, unit, &all);
            prop_assert!(got.iter().sum::<u64>() <= whole);
            for (got, share) in got.iter().zip(&all) {
                prop_assert!((share.least..=share.most).contains(got));
                prop_assert!((got - share.least) % unit == 0 || *got == share.most);
            }
        }

        #[test]
        fn nothing_is_left_while_somebody_may_have_it((whole, all) in shares()) {
            let got = share(whole, 1, &all);
            let open = got.iter().zip(&all).any(|(got, share)| share.weight > 0.0 && *got < share.most);
            prop_assert!(!open || got.iter().sum::<u64>() == whole);
        }

        #[test]
        fn a_larger_whole_takes_from_nobody((whole, all) in shares(), more in 0u64..1000) {
            let (before, after) = (share(whole, 1, &all), share(whole + more, 1, &all));
            for (before, after) in before.iter().zip(&after) {
                prop_assert!(*after + 1 >= *before, "{} then {}", before, after);
            }
        }

        #[test]
        fn a_larger_weight_takes_nothing_from_its_owner((whole, all) in shares(), factor in 1.0..4.0f64) {
            let mut raised = all.clone();
            raised[0].weight *= factor;
            prop_assert!(share(whole, 1, &raised)[0] + 1 >= share(whole, 1, &all)[0]);
        }
    }
}
