//! Weights of tenants from given factors, and the parts of the cache that follow (Liu, equations 2 and 3, table 2).

use haversack_policy::demand::weight::{Beta, Factors, weights};

use crate::error::Failure;
use crate::measure::Quantity;
use crate::outcome::{Outcome, Point};
use crate::recipe::Weights;

/// Computes.
pub(crate) fn run(recipe: &Weights) -> Result<Outcome, Failure> {
    let beta = Beta(recipe.beta);
    beta.check()?;
    let factors = |[priority, read_write_ratio, read_speed, hit_ratio]: &[f64; 4]| Factors {
        priority: *priority,
        read_write_ratio: *read_write_ratio,
        read_speed: *read_speed,
        hit_ratio: *hit_ratio,
    };
    let all: Vec<Factors> = recipe.tenants.values().map(factors).collect();
    let found = weights(&beta, &all);
    let sum: f64 = found.iter().sum();
    let point = |(tenant, weight): (&String, f64)| {
        let mut point = Point::new(tenant, None);
        point.set(Quantity::Weight, weight);
        point.set(Quantity::Size, weight / sum * recipe.cache.0 as f64);
        point
    };
    Ok(Outcome { points: recipe.tenants.keys().zip(found).map(point).collect(), ..Outcome::default() })
}
