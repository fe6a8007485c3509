//! What a paper claims, and how our result compares with it: in words that follow from the numbers alone.

use serde::{Deserialize, Serialize};

use crate::measure::Measure;
use crate::outcome::Outcome;
use crate::seeds::OverSeeds;

/// A difference of less than this is none, unless a claim says otherwise.
const NOTHING: f64 = 0.005;
/// A difference is about as large as the paper's if neither is more than this factor larger.
const ALIKE: f64 = 1.25;

/// What a paper says, with its own number.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Claim {
    /// What it says, in short.
    pub says: String,
    /// Where.
    pub place: String,
    /// What it is about.
    pub measure: Measure,
    /// The system that it is about.
    pub of: String,
    /// The place on the x axis.
    #[serde(default)]
    pub x: Option<f64>,
    /// The system with which it is compared; the same if only the place or the measure differs.
    #[serde(default)]
    pub against: Option<String>,
    /// Its place on the x axis; the same if not given.
    #[serde(default)]
    pub against_x: Option<f64>,
    /// Its measure; the same if not given.
    #[serde(default)]
    pub against_measure: Option<Measure>,
    /// The paper's number.
    pub paper: Number,
    /// A difference of less than this, relative or in points, is none.
    #[serde(default = "nothing")]
    pub within: f64,
    /// Why a generated load cannot test the claim, if it cannot. Real traces can.
    #[serde(default)]
    pub needs_real_traces: Option<String>,
}

/// A paper's number.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Number {
    /// A difference relative to the other value: -0.76 is 76 % less.
    Change(f64),
    /// An upper bound of the difference, relative to the other value.
    ChangeAtMost(f64),
    /// A difference of two shares: 0.08 is 8 points more.
    Points(f64),
    /// A value.
    Value(f64),
    /// An upper bound.
    AtMost(f64),
    /// A lower bound.
    AtLeast(f64),
    /// Less than the other value; the paper gives no number.
    Less,
    /// More than the other value; the paper gives no number.
    More,
    /// At least as much as the other value; the paper gives no number.
    NoLess,
}

/// The verdict on a claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Our difference has the paper's sign, and is not much smaller; or a bound holds; or values are alike.
    Same,
    /// Our difference has the paper's sign, and is much smaller.
    Smaller,
    /// Our difference has the other sign; or a bound does not hold; or values differ.
    Other,
    /// We have no difference where the paper has one.
    None,
    /// The load cannot test the claim.
    NotTold,
    /// It was not measured.
    Missing,
}

/// A claim with our result.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Judged {
    /// What the paper says.
    pub says: String,
    /// Where.
    pub place: String,
    /// The paper's number.
    pub paper: Number,
    /// Ours, of the same kind.
    pub ours: Option<f64>,
    /// The verdict.
    pub verdict: Verdict,
    /// The same in words.
    pub words: String,
    /// The verdicts with each seed, if there were several: verdict, words and our number are then those of the least
    /// favourable seed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub over_seeds: Option<OverSeeds>,
}

impl Claim {
    /// Compares with our result. `real` says whether it is of real traces.
    pub fn judge(&self, outcome: &Outcome, real: bool) -> Judged {
        let ours = self.ours(outcome);
        let told = real || self.needs_real_traces.is_none();
        let (verdict, words) = match ours {
            None => (Verdict::Missing, format!("not measured: {}", self.measure.title())),
            Some(ours) => self.compare(ours),
        };
        let (verdict, words) = match (&self.needs_real_traces, ours) {
            (Some(why), Some(ours)) if !told => (
                Verdict::NotTold,
                format!("not judged: {why}. Here {}; paper: {}", self.number(ours), self.papers()),
            ),
            _ => (verdict, words),
        };
        let (says, place) = (self.says.clone(), self.place.clone());
        Judged { says, place, paper: self.paper, ours, verdict, words, over_seeds: None }
    }

    /// Returns where the paper's number puts the system on our scale: a difference is applied to our result for the
    /// other system. `None` if the paper has no number, or the other system was not measured.
    pub fn paper_value(&self, outcome: &Outcome) -> Option<f64> {
        match self.paper {
            Number::Value(value) | Number::AtMost(value) | Number::AtLeast(value) => Some(value),
            Number::Change(change) | Number::ChangeAtMost(change) => {
                Some(self.other(outcome)? * (1.0 + change))
            }
            Number::Points(points) => Some(self.other(outcome)? + points),
            Number::Less | Number::More | Number::NoLess => None,
        }
    }

    /// Our result for what it is compared with.
    fn other(&self, outcome: &Outcome) -> Option<f64> {
        let system = self.against.as_ref().unwrap_or(&self.of);
        let measure = self.against_measure.as_ref().unwrap_or(&self.measure);
        outcome.value(system, self.against_x.or(self.x), measure)
    }

    /// Our number.
    fn ours(&self, outcome: &Outcome) -> Option<f64> {
        let value = outcome.value(&self.of, self.x, &self.measure)?;
        match self.paper {
            Number::Change(_) | Number::ChangeAtMost(_) | Number::Less | Number::More | Number::NoLess => {
                self.other(outcome).map(|other| change(value, other))
            }
            Number::Points(_) => self.other(outcome).map(|other| value - other),
            Number::Value(_) | Number::AtMost(_) | Number::AtLeast(_) => Some(value),
        }
    }

    fn compare(&self, ours: f64) -> (Verdict, String) {
        let here = self.number(ours);
        let paper = self.papers();
        let (verdict, word) = match self.paper {
            Number::Change(theirs) | Number::Points(theirs) => direction(ours, theirs, self.within),
            Number::Less => sign(ours, -1.0, self.within),
            Number::More => sign(ours, 1.0, self.within),
            Number::NoLess if ours > -self.within => (Verdict::Same, "holds"),
            Number::Value(theirs) => values(ours, theirs),
            Number::AtMost(bound) | Number::ChangeAtMost(bound) if ours <= bound => (Verdict::Same, "holds"),
            Number::AtLeast(bound) if ours >= bound => (Verdict::Same, "holds"),
            Number::AtMost(_) | Number::ChangeAtMost(_) | Number::AtLeast(_) | Number::NoLess => {
                (Verdict::Other, "does not hold")
            }
        };
        (verdict, format!("{word}: here {here}; paper: {paper}"))
    }

    /// Our number in words.
    pub(crate) fn number(&self, ours: f64) -> String {
        match self.paper {
            Number::Change(_)
            | Number::ChangeAtMost(_)
            | Number::Points(_)
            | Number::Less
            | Number::More
            | Number::NoLess => {
                format!("{}, {}", self.measure.title(), self.difference(ours))
            }
            _ => format!("{} {}", self.measure.title(), self.measure.format(ours)),
        }
    }

    /// The paper's number in words.
    fn papers(&self) -> String {
        match self.paper {
            Number::Change(theirs) | Number::Points(theirs) => self.difference(theirs),
            Number::Value(theirs) => self.measure.format(theirs),
            Number::AtMost(bound) => format!("at most {}", self.measure.format(bound)),
            Number::AtLeast(bound) => format!("at least {}", self.measure.format(bound)),
            Number::ChangeAtMost(bound) => format!("at most {}", self.difference(bound)),
            Number::Less => self.measure.quantity.fewer().into(),
            Number::More => self.measure.quantity.more().into(),
            Number::NoLess => format!("not {}", self.measure.quantity.fewer()),
        }
    }

    /// Our number in words, without the measure.
    pub(crate) fn bare(&self, ours: f64) -> String {
        match self.paper {
            Number::Value(_) | Number::AtMost(_) | Number::AtLeast(_) => self.measure.format(ours),
            _ => self.difference(ours),
        }
    }

    fn difference(&self, difference: f64) -> String {
        let quantity = self.measure.quantity;
        let word = if difference < 0.0 { quantity.fewer() } else { quantity.more() };
        let hundredths = difference.abs() * 100.0;
        let digits = if hundredths < 9.95 { 1 } else { 0 };
        let unit = if matches!(self.paper, Number::Points(_)) { "points" } else { "%" };
        if difference.is_infinite() {
            format!("{word}, from none")
        } else if difference == 0.0 {
            "no difference".into()
        } else {
            format!("{hundredths:.digits$} {unit} {word}")
        }
    }
}

fn nothing() -> f64 {
    NOTHING
}

/// How much more a value is than another, relative to it; infinite if the other is 0 and it is not.
fn change(value: f64, other: f64) -> f64 {
    match (value == other, other == 0.0) {
        (true, _) => 0.0,
        (false, true) => f64::INFINITY.copysign(value),
        (false, false) => value / other - 1.0,
    }
}

/// Compares the sign of two differences, then their sizes.
fn direction(ours: f64, theirs: f64, within: f64) -> (Verdict, &'static str) {
    let none = |difference: f64| difference.abs() < within;
    match (none(ours), none(theirs)) {
        (true, true) => (Verdict::Same, "no difference, as in the paper"),
        (true, false) => (Verdict::None, "no difference"),
        (false, true) => (Verdict::Other, "a difference, where the paper has none"),
        (false, false) if ours.is_sign_negative() != theirs.is_sign_negative() => {
            (Verdict::Other, "opposite direction")
        }
        _ if ours.abs() > theirs.abs() * ALIKE => (Verdict::Same, "same direction, larger difference"),
        _ if ours.abs() * ALIKE < theirs.abs() => (Verdict::Smaller, "same direction, smaller difference"),
        _ => (Verdict::Same, "same direction, about as much"),
    }
}

/// Compares the sign of a difference.
fn sign(ours: f64, theirs: f64, within: f64) -> (Verdict, &'static str) {
    match direction(ours, theirs, within).0 {
        Verdict::Same | Verdict::Smaller => (Verdict::Same, "same direction"),
        Verdict::None => (Verdict::None, "no difference"),
        other => (other, "opposite direction"),
    }
}

fn values(ours: f64, theirs: f64) -> (Verdict, &'static str) {
    let (small, large) = (ours.min(theirs), ours.max(theirs));
    if large - small <= NOTHING || (small > 0.0 && large <= small * ALIKE) {
        (Verdict::Same, "about the same")
    } else if ours < theirs {
        (Verdict::Other, "lower")
    } else {
        (Verdict::Other, "higher")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Quantity;
    use crate::outcome::Point;

    fn claim(paper: Number) -> Claim {
        Claim {
            says: "RWSS uses less".into(),
            place: "section 3.4.4".into(),
            measure: Measure::of_all(Quantity::Usage),
            of: "RWSS".into(),
            x: None,
            against: Some("WSS".into()),
            against_x: None,
            against_measure: None,
            paper,
            within: NOTHING,
            needs_real_traces: None,
        }
    }

    fn outcome(rwss: f64, wss: f64) -> Outcome {
        let point = |system, value| {
            let mut point = Point::new(system, None);
            point.set(Quantity::Usage, value);
            point
        };
        Outcome { points: vec![point("RWSS", rwss), point("WSS", wss)], ..Outcome::default() }
    }

    fn words(paper: Number, rwss: f64, wss: f64) -> (Verdict, String) {
        let judged = claim(paper).judge(&outcome(rwss, wss), false);
        (judged.verdict, judged.words)
    }

    #[test]
    fn words_follow_from_the_numbers() {
        let less = Number::Change(-0.76);
        let (verdict, text) = words(less, 62.0, 100.0);
        assert_eq!(verdict, Verdict::Smaller);
        assert_eq!(
            text,
            "same direction, smaller difference: here cache in use, 38 % less; paper: 76 % less"
        );
        let (verdict, text) = words(less, 100.0, 62.0);
        assert_eq!(verdict, Verdict::Other);
        assert_eq!(text, "opposite direction: here cache in use, 61 % more; paper: 76 % less");
        let (verdict, text) = words(less, 100.0, 100.1);
        assert_eq!(verdict, Verdict::None);
        assert!(text.starts_with("no difference: here cache in use, 0.1 % less"), "{text}");
        assert!(words(less, 24.0, 100.0).1.starts_with("same direction, about as much"));
        assert!(words(Number::Change(-0.1), 24.0, 100.0).1.starts_with("same direction, larger difference"));
    }

    #[test]
    fn the_papers_number_has_a_place_on_our_scale() {
        let place = |paper| claim(paper).paper_value(&outcome(62.0, 100.0));
        assert_eq!(place(Number::Change(-0.76)), Some(24.0));
        assert_eq!(place(Number::Points(8.0)), Some(108.0));
        assert_eq!(place(Number::AtMost(50.0)), Some(50.0));
        assert_eq!(place(Number::Less), None);
        assert_eq!(claim(Number::Change(0.1)).paper_value(&Outcome::default()), None);
    }

    #[test]
    fn a_paper_without_a_difference_is_contradicted_by_one() {
        assert_eq!(words(Number::Change(0.0), 100.0, 100.0).0, Verdict::Same);
        assert_eq!(words(Number::Change(0.0), 90.0, 100.0).0, Verdict::Other);
    }

    #[test]
    fn a_direction_needs_no_number() {
        let (verdict, text) = words(Number::Less, 62.0, 100.0);
        assert_eq!(
            (verdict, text.as_str()),
            (Verdict::Same, "same direction: here cache in use, 38 % less; paper: less")
        );
        assert_eq!(words(Number::More, 62.0, 100.0).0, Verdict::Other);
        assert_eq!(words(Number::More, 100.0, 100.0).0, Verdict::None);
        let (verdict, text) = words(Number::More, 100.0, 0.0);
        assert_eq!(
            (verdict, text.as_str()),
            (Verdict::Same, "same direction: here cache in use, more, from none; paper: more")
        );
    }

    #[test]
    fn at_least_as_much_holds_without_a_difference() {
        for (ours, verdict) in
            [(120.0, Verdict::Same), (100.0, Verdict::Same), (99.7, Verdict::Same), (90.0, Verdict::Other)]
        {
            let (found, text) = words(Number::NoLess, ours, 100.0);
            assert_eq!(found, verdict, "{text}");
        }
        assert_eq!(
            words(Number::NoLess, 90.0, 100.0).1,
            "does not hold: here cache in use, 10 % less; paper: not less"
        );
    }

    #[test]
    fn a_claim_says_what_counts_as_no_difference() {
        let claim = Claim { within: 0.05, ..claim(Number::Change(0.0)) };
        assert_eq!(claim.judge(&outcome(97.0, 100.0), false).verdict, Verdict::Same);
        assert_eq!(claim.judge(&outcome(90.0, 100.0), false).verdict, Verdict::Other);
    }

    #[test]
    fn a_change_may_have_a_bound() {
        assert_eq!(words(Number::ChangeAtMost(0.09), 104.0, 100.0).0, Verdict::Same);
        let (verdict, text) = words(Number::ChangeAtMost(0.09), 120.0, 100.0);
        assert_eq!(verdict, Verdict::Other);
        assert_eq!(text, "does not hold: here cache in use, 20 % more; paper: at most 9.0 % more");
    }

    #[test]
    fn bounds_and_values_hold_or_not() {
        assert_eq!(words(Number::AtMost(10.0), 9.0, 0.0).0, Verdict::Same);
        assert_eq!(words(Number::AtMost(10.0), 11.0, 0.0), {
            (Verdict::Other, "does not hold: here cache in use 11 B; paper: at most 10 B".into())
        });
        assert_eq!(words(Number::AtLeast(10.0), 9.0, 0.0).0, Verdict::Other);
        assert_eq!(words(Number::Value(10.0), 11.0, 0.0).0, Verdict::Same);
        assert!(words(Number::Value(10.0), 20.0, 0.0).1.starts_with("higher"));
        assert!(words(Number::Value(10.0), 5.0, 0.0).1.starts_with("lower"));
    }

    #[test]
    fn what_a_generated_load_assumes_is_not_judged() {
        let mut claim = claim(Number::Change(-0.76));
        claim.needs_real_traces = Some("distances are assumed".into());
        let judged = claim.judge(&outcome(62.0, 100.0), false);
        assert_eq!(judged.verdict, Verdict::NotTold);
        assert!(judged.words.starts_with("not judged: distances are assumed. Here"), "{}", judged.words);
        assert_eq!(claim.judge(&outcome(62.0, 100.0), true).verdict, Verdict::Smaller);
    }

    #[test]
    fn what_was_not_measured_is_said() {
        let judged = claim(Number::Change(-0.76)).judge(&Outcome::default(), true);
        assert_eq!((judged.verdict, judged.ours), (Verdict::Missing, None));
    }
}
