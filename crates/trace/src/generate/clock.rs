//! Arrival times of requests.

use super::error::{GenerateError, require};
use super::random::Random;

const SECOND_NS: f64 = 1e9;
/// The most gaps that are drawn before any is repeated.
const DECK: usize = 4096;

/// Gaps between requests, drawn from a shuffled deck: after each complete pass through the deck their mean is exact.
pub(super) struct Clock {
    deck: Vec<f64>,
    next: usize,
    now_ns: f64,
    wave: Option<Wave>,
}

/// A rate that varies periodically.
#[derive(Clone, Copy)]
pub(super) struct Wave {
    /// The amplitude, as a fraction of the mean rate.
    pub amplitude: f64,
    pub period_s: f64,
}

impl Clock {
    /// Makes at least n gaps with this mean: exponential, or lognormal if their median is known.
    pub fn new(mean_s: f64, median_s: Option<f64>, gaps: u64) -> Self {
        let cards = DECK.min(gaps as usize);
        let quantiles = (0..cards).map(|at| (at as f64 + 0.5) / cards as f64);
        // Of a lognormal distribution, mean / median = exp(sigma^2 / 2).
        let sigma = median_s.map(|median_s| (2.0 * (mean_s / median_s).ln()).max(0.0).sqrt());
        let mut deck: Vec<f64> = match sigma {
            Some(sigma) if sigma.is_finite() => {
                quantiles.map(|q| (sigma * normal_quantile(q)).exp()).collect()
            }
            _ => quantiles.map(|q| -(1.0 - q).ln()).collect(),
        };
        let sum: f64 = deck.iter().sum();
        deck.iter_mut().for_each(|gap| *gap *= mean_s * SECOND_NS * cards as f64 / sum);
        Clock { deck, next: cards, now_ns: 0.0, wave: None }
    }

    /// Poisson arrivals with this number of requests per second.
    pub fn of_rate(rate: f64) -> Result<Self, GenerateError> {
        require(
            rate.is_finite() && rate >= 1e-6,
            "rate",
            &rate,
            "at least one request in 1,000,000 seconds",
        )?;
        Ok(Clock::new(1.0 / rate, None, u64::MAX))
    }

    /// As above, with a rate that varies periodically.
    pub fn with_wave(self, wave: Wave) -> Self {
        Clock { wave: Some(wave), ..self }
    }

    /// Seconds since the start.
    pub fn now_s(&self) -> f64 {
        self.now_ns / SECOND_NS
    }

    /// The time of the next request, ns since the start; the first is at 0.
    pub fn next_ns(&mut self, random: &mut Random) -> u64 {
        let time_ns = self.now_ns as u64;
        if self.next == self.deck.len() {
            for at in (1..self.deck.len()).rev() {
                self.deck.swap(at, random.below(at as u64 + 1) as usize);
            }
            self.next = 0;
        }
        let rate = self.wave.map_or(1.0, |wave| {
            let turn = self.now_s() / wave.period_s * std::f64::consts::TAU;
            // It begins at the minimum, as at night.
            1.0 - wave.amplitude * turn.cos()
        });
        self.now_ns += self.deck[self.next] / rate;
        self.next += 1;
        time_ns
    }
}

/// Returns the point below which a share `q` of a standard normal distribution lies, with an error of at most 4.5e-4.
///
/// Source: Abramowitz and Stegun, "Handbook of Mathematical Functions", 26.2.23.
fn normal_quantile(q: f64) -> f64 {
    let t = (-2.0 * q.min(1.0 - q).ln()).sqrt();
    let tail = t
        - (2.515517 + t * (0.802853 + t * 0.010328)) / (1.0 + t * (1.432788 + t * (0.189269 + t * 0.001308)));
    if q < 0.5 { -tail } else { tail }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_and_median_are_as_asked() {
        for median_s in [None, Some(0.01)] {
            let (mut clock, mut random) = (Clock::new(0.1, median_s, u64::MAX), Random::new(1, 0));
            let times: Vec<u64> = (0..=4 * DECK).map(|_| clock.next_ns(&mut random)).collect();
            assert!((times[4 * DECK] as f64 / (4 * DECK) as f64 / 1e8 - 1.0).abs() < 1e-3);
            let mut gaps: Vec<u64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
            gaps.sort_unstable();
            let wanted = median_s.unwrap_or(0.1 * 2f64.ln()) * 1e9;
            let found = gaps[gaps.len() / 2] as f64;
            // The deck's mean is made exact. With a tail of rare long gaps this shifts the median.
            assert!((found / wanted - 1.0).abs() < 0.05, "{found} {wanted}");
        }
    }

    #[test]
    fn few_gaps_have_the_mean_as_well() {
        let (mut clock, mut random) = (Clock::new(0.1, Some(0.01), 10), Random::new(1, 0));
        let last = (0..=10).map(|_| clock.next_ns(&mut random)).last().unwrap();
        assert!((last as f64 / 1e9 - 1.0).abs() < 1e-6, "{last}");
    }

    #[test]
    fn a_wave_keeps_the_mean_and_has_its_swing() {
        let mut clock = Clock::of_rate(1000.0).unwrap().with_wave(Wave { amplitude: 0.8, period_s: 10.0 });
        let mut random = Random::new(1, 0);
        let mut counts = [0; 10];
        while clock.now_s() < 100.0 {
            counts[(clock.next_ns(&mut random) / 1_000_000_000 % 10) as usize] += 1;
        }
        assert!((95_000..105_000).contains(&counts.iter().sum::<i32>()), "{counts:?}");
        assert!(counts[0] < 3_500 && counts[5] > 16_000, "{counts:?}");
    }
}
