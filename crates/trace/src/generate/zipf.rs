//! Zipf: the block of rank k is accessed in proportion to 1 / k^theta.
//!
//! Ranks are drawn by rejection-inversion, at the same cost for any number of blocks and any theta, and are spread over
//! the volume, so that blocks of similar popularity are not neighbours.
//!
//! Source: Hörmann and Derflinger, "Rejection-inversion to generate variates from monotone discrete distributions",
//! ACM TOMACS 6(3), 1996.

use super::error::{GenerateError, require};
use super::mix::Place;
use super::random::Random;

/// Ranks from 0, the most popular.
#[derive(Clone)]
pub(super) struct Ranks {
    theta: f64,
    from: f64,
    to: f64,
    sure: f64,
    count: u64,
}

impl Ranks {
    pub fn new(count: u64, theta: f64) -> Result<Self, GenerateError> {
        require(theta.is_finite() && theta >= 0.0, "theta", &theta, "0 (uniform) or more")?;
        let mut ranks = Ranks { theta, from: 0.0, to: 0.0, sure: 0.0, count };
        ranks.from = ranks.integral(1.5) - 1.0;
        ranks.to = ranks.integral(count as f64 + 0.5);
        ranks.sure = 2.0 - ranks.inverse(ranks.integral(2.5) - 2f64.powf(-theta));
        Ok(ranks)
    }

    pub fn draw(&self, random: &mut Random) -> u64 {
        loop {
            let area = self.to + random.unit() * (self.from - self.to);
            let x = self.inverse(area);
            let rank = x.round().clamp(1.0, self.count as f64);
            if rank - x <= self.sure || area >= self.integral(rank + 0.5) - rank.powf(-self.theta) {
                return rank as u64 - 1;
            }
        }
    }

    /// The integral of x^-theta from 1.
    fn integral(&self, x: f64) -> f64 {
        let log = x.ln();
        let power = (1.0 - self.theta) * log;
        if power.abs() < 1e-9 { log } else { log * power.exp_m1() / power }
    }

    fn inverse(&self, area: f64) -> f64 {
        let scaled = ((1.0 - self.theta) * area).max(-1.0);
        if scaled.abs() < 1e-9 { area.exp() } else { (area * scaled.ln_1p() / scaled).exp() }
    }
}

/// Scatters ranks: a multiplication that maps no two ranks to the same result.
#[derive(Clone)]
pub(super) struct Spread {
    factor: u64,
    count: u64,
}

impl Spread {
    pub fn new(count: u64) -> Self {
        // Near the golden ratio, neighbours end up far apart.
        let mut factor = (count as f64 * 0.618_033_988_749_895) as u64;
        factor = factor.clamp(1, count);
        while gcd(factor, count) != 1 {
            factor += 1;
        }
        Spread { factor, count }
    }

    pub fn place(&self, rank: u64) -> u64 {
        (u128::from(rank) * u128::from(self.factor) % u128::from(self.count)) as u64
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

pub(super) struct Zipf {
    ranks: Ranks,
    spread: Spread,
}

impl Zipf {
    pub fn new(blocks: u64, theta: f64) -> Result<Self, GenerateError> {
        Ok(Zipf { ranks: Ranks::new(blocks, theta)?, spread: Spread::new(blocks) })
    }
}

impl Place for Zipf {
    fn place(&mut self, _: u32, _: f64, random: &mut Random) -> u64 {
        self.spread.place(self.ranks.draw(random))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_as_popular_as_they_should_be() {
        const DRAWS: u64 = 400_000;
        for theta in [0.0, 0.5, 0.99, 1.0, 1.3, 3.0] {
            let ranks = Ranks::new(1000, theta).unwrap();
            let mut random = Random::new(5, 0);
            let mut counts = [0u64; 1000];
            (0..DRAWS).for_each(|_| counts[ranks.draw(&mut random) as usize] += 1);
            let sum: f64 = (1..=1000).map(|rank| f64::from(rank).powf(-theta)).sum();
            for (rank, count) in counts.iter().enumerate().take(20) {
                let wanted = DRAWS as f64 * ((rank + 1) as f64).powf(-theta) / sum;
                let off = (*count as f64 - wanted).abs();
                assert!(off < 5.0 * wanted.sqrt() + 1.0, "theta {theta} rank {rank}: {count}, not {wanted}");
            }
        }
        assert!(Ranks::new(10, -0.1).is_err() && Ranks::new(10, f64::NAN).is_err());
    }

    #[test]
    fn every_place_is_taken_once() {
        for count in [1, 2, 3, 10, 97, 1000] {
            let spread = Spread::new(count);
            let mut places: Vec<u64> = (0..count).map(|rank| spread.place(rank)).collect();
            places.sort_unstable();
            assert!(places.iter().copied().eq(0..count), "{count}");
        }
    }
}
