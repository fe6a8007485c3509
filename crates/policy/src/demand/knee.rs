//! How long a window should be: the knee of hit ratio against window length.
//!
//! A disk's accesses are replayed (`trial.rs`) for each length, here from a trace, and in
//! [`running_knee`](super::running_knee) while the disk runs. The knee is the point farthest above the straight line
//! from the shortest window to the longest, with a logarithmic time axis and both axes scaled to 1. If it is less than
//! [`CLEAR`] above the line, there is no clear knee, and the shortest window is chosen.
//!
//! Source: CloudCache (Arteaga), section 3.4.1 and figure 3.3: the point "where the hit ratio starts to
//! flatten out"; without one "the window size should be set to a small value". The knee is found by the rule
//! of Satopaa et al., "Finding a Kneedle in a Haystack", 2011, without its smoothing. If the hit ratio gains
//! less than [`FLAT`] over all lengths, there is nothing to choose.

use haversack_model::Micros;
use serde::{Deserialize, Serialize};

use super::trial::Trial;
use super::working_set_window::{MOST_REUSES, WorkingSetWindow};
use crate::error::PolicyError;

/// A knee is clear if it is this far above the straight line, where the whole rise is 1.
pub const CLEAR: f64 = 0.1;
/// A hit ratio that rises by less than this over all lengths has no knee.
pub const FLAT: f64 = 0.01;

/// The result of windows of one length.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct LengthTried {
    /// The length.
    pub length_us: Micros,
    /// The share of accesses that would hit.
    pub hit_ratio: f64,
    /// The mean allocated size, in blocks.
    pub mean_blocks: f64,
}

/// Replays accesses in order of time, each a time and a block, with windows of one length.
///
/// # Errors
/// The errors of [`WorkingSetWindow::new`], and `BadFigure` for more reuses than [`MOST_REUSES`].
pub fn try_length(
    accesses: &[(Micros, u64)],
    length_us: Micros,
    reuses: u8,
    places: u32,
) -> Result<LengthTried, PolicyError> {
    check_reuses(reuses)?;
    let start_us = accesses.first().map_or(0, |access| access.0);
    let mut trial = Trial::new(WorkingSetWindow::new(length_us, start_us, places)?, reuses);
    let (mut hits, mut sizes, mut windows) = (0u64, 0u64, 0u64);
    for (now_us, block) in accesses {
        trial.pass(*now_us, |blocks| {
            sizes += blocks;
            windows += 1;
        });
        hits += u64::from(trial.access(*block));
    }
    Ok(LengthTried {
        length_us,
        hit_ratio: hits as f64 / accesses.len().max(1) as f64,
        mean_blocks: sizes as f64 / windows.max(1) as f64,
    })
}

/// Checks the number of reuses that make a block demand.
pub(super) fn check_reuses(reuses: u8) -> Result<(), PolicyError> {
    if (1..=MOST_REUSES).contains(&reuses) {
        return Ok(());
    }
    let (what, found) = ("the number of reuses".into(), reuses.to_string());
    Err(PolicyError::BadFigure { what, found, expected: "a number from 1 to 4" })
}

/// Returns the length to choose among those tried; `None` if none was tried.
pub fn choose_length(tried: &[LengthTried]) -> Option<Micros> {
    let mut tried = tried.to_vec();
    tried.sort_by_key(|length| length.length_us);
    let (first, last) = (tried.first()?, tried.last()?);
    let lowest = tried.iter().map(|length| length.hit_ratio).fold(f64::INFINITY, f64::min);
    let highest = tried.iter().map(|length| length.hit_ratio).fold(0.0, f64::max);
    let span = log2(last.length_us) - log2(first.length_us);
    if highest - lowest < FLAT || span <= 0.0 {
        return Some(first.length_us);
    }
    let above = |length: &LengthTried| {
        let rise = (length.hit_ratio - lowest) / (highest - lowest);
        rise - (log2(length.length_us) - log2(first.length_us)) / span
    };
    let mut best = (CLEAR, first.length_us);
    for length in &tried {
        if above(length) > best.0 {
            best = (above(length), length.length_us);
        }
    }
    Some(best.1)
}

/// Returns the logarithm, linear between powers of two: accurate enough for an axis, and the same on every
/// machine.
fn log2(value: u64) -> f64 {
    let value = value.max(1);
    let whole = 63 - value.leading_zeros();
    f64::from(whole) + value as f64 / (1u64 << whole) as f64 - 1.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tried(ratios: &[f64]) -> Vec<LengthTried> {
        let length = |(at, hit_ratio): (usize, &f64)| LengthTried {
            length_us: 1 << at,
            hit_ratio: *hit_ratio,
            mean_blocks: 0.0,
        };
        ratios.iter().enumerate().map(length).collect()
    }

    #[test]
    fn the_knee_is_where_it_flattens_out() {
        assert_eq!(choose_length(&tried(&[0.1, 0.3, 0.6, 0.62, 0.63, 0.64])), Some(4));
    }

    #[test]
    fn without_a_clear_knee_the_shortest_is_taken() {
        assert_eq!(choose_length(&tried(&[0.1, 0.2, 0.3, 0.4, 0.5])), Some(1));
        assert_eq!(choose_length(&tried(&[0.5, 0.505, 0.505])), Some(1));
        assert_eq!(choose_length(&tried(&[0.0, 0.0])), Some(1));
        assert_eq!(choose_length(&[]), None);
    }

    /// Twelve blocks one after the other, one a second: a window must hold more than one round to see a reuse.
    #[test]
    fn windows_shorter_than_a_round_see_no_reuse() {
        let accesses: Vec<(u64, u64)> = (0..1200).map(|second| (second * 1_000_000, second % 12)).collect();
        let short = try_length(&accesses, 8_000_000, 1, 1024).unwrap();
        assert_eq!((short.hit_ratio, short.mean_blocks), (0.0, 0.0));
        let long = try_length(&accesses, 48_000_000, 1, 1024).unwrap();
        assert_eq!(long.mean_blocks, 12.0);
        assert!(long.hit_ratio > 0.9, "{long:?}");
        assert!(try_length(&accesses, 1, 0, 1024).is_err());
    }
}
