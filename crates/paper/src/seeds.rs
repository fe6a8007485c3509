//! A claim judged with several seeds of the generated loads: it holds only if it does with each.

use serde::Serialize;

use crate::claim::{Claim, Judged, Verdict};

/// The results of a claim with all seeds.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct OverSeeds {
    /// Our number with each seed with which it was measured.
    pub ours: Vec<f64>,
    /// Their mean.
    pub mean: f64,
    /// Number of seeds with which the result has the paper's direction or is within its bound.
    pub agreed: usize,
    /// How many there are.
    pub seeds: usize,
}

/// Verdicts, from the one that contradicts the paper least to the one that does most.
const ORDER: [Verdict; 4] = [Verdict::Same, Verdict::Smaller, Verdict::None, Verdict::Other];

/// Joins the verdicts on a claim with each seed, of which there is at least one: the result is the least favourable
/// verdict.
pub fn join(claim: &Claim, judged: &[Judged]) -> Judged {
    let seeds = judged.len();
    // A verdict outside the order comes last: a claim that the load cannot test has that verdict with every seed, and a
    // measure that is missing with one seed leaves the result unknown.
    let place =
        |one: &&Judged| ORDER.iter().position(|verdict| *verdict == one.verdict).unwrap_or(ORDER.len());
    let Some(worst) = judged.iter().max_by_key(place) else {
        return claim.judge(&crate::outcome::Outcome::default(), false);
    };
    if seeds < 2 {
        return worst.clone();
    }
    let ours: Vec<f64> = judged.iter().filter_map(|one| one.ours).collect();
    let agreed = judged.iter().filter(|one| matches!(one.verdict, Verdict::Same | Verdict::Smaller)).count();
    let mean = ours.iter().sum::<f64>() / ours.len().max(1) as f64;
    let (least, most) = (
        ours.iter().copied().fold(f64::INFINITY, f64::min),
        ours.iter().copied().fold(f64::NEG_INFINITY, f64::max),
    );
    let mut words = worst.words.clone();
    if !ours.is_empty() {
        words = format!(
            "{words}. Mean of {seeds} seeds: {}, from {} to {}",
            claim.number(mean),
            claim.bare(least),
            claim.bare(most)
        );
    }
    if worst.verdict != Verdict::NotTold {
        words = format!("{words}; as the paper says with {agreed} of {seeds}");
    }
    let over = OverSeeds { ours, mean, agreed, seeds };
    Judged { words, over_seeds: Some(over), ..worst.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::Number;
    use crate::measure::{Measure, Quantity};
    use crate::outcome::{Outcome, Point};

    fn judged(paper: Number, hits: &[f64]) -> Judged {
        let claim = Claim {
            says: "It hits".into(),
            place: "table 1".into(),
            measure: Measure::of_all(Quantity::Hits),
            of: "one".into(),
            x: None,
            against: None,
            against_x: None,
            against_measure: None,
            paper,
            within: 0.005,
            needs_real_traces: None,
        };
        let one = |hits: &f64| {
            let mut point = Point::new("one", None);
            point.set(Quantity::Hits, *hits);
            claim.judge(&Outcome { points: vec![point], ..Outcome::default() }, false)
        };
        join(&claim, &hits.iter().map(one).collect::<Vec<_>>())
    }

    #[test]
    fn a_claim_holds_only_with_every_seed() {
        let bound = Number::AtLeast(0.5);
        let all = judged(bound, &[0.6, 0.7, 0.8]);
        assert_eq!(all.verdict, Verdict::Same);
        let end = "Mean of 3 seeds: hits 70 %, from 60 % to 80 %; as the paper says with 3 of 3";
        assert!(all.words.ends_with(end), "{}", all.words);
        let some = judged(bound, &[0.6, 0.4, 0.8]);
        assert_eq!(some.verdict, Verdict::Other);
        assert!(some.words.starts_with("does not hold: here hits 40 %"), "{}", some.words);
        let over = some.over_seeds.unwrap();
        assert_eq!((over.ours, over.agreed, over.seeds), (vec![0.6, 0.4, 0.8], 2, 3));
    }

    #[test]
    fn one_seed_says_nothing_of_seeds() {
        let one = judged(Number::AtLeast(0.5), &[0.6]);
        assert_eq!(
            (one.words.as_str(), one.over_seeds),
            ("holds: here hits 60 %; paper: at least 50 %", None)
        );
    }
}
