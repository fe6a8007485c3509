//! The length of a disk's window, chosen while the disk runs: the [knee](super::knee) of hit ratio against length.
//!
//! Lengths of 1, 2, 4 and so on up to [`MOST_WINDOWS`] windows of the policy are on trial (`trial.rs`) side by side, on
//! a sample of the disk's blocks: one in 2^shift, of which there are at most as many as there are places in the longest
//! of these windows. A choice is made when the time observed has doubled, and after each [`MOST_WINDOWS`] windows of
//! the policy. It uses the hits since the previous choice. It considers only lengths of which two windows had ended
//! when counting began: the first window determines the size of the trial cache, and the second fills it.
//!
//! Invariants
//! - The present length is kept until longer ones can be compared, since the longest is never a knee. It is also kept
//!   if there were too few accesses.
//! - When the sample holds too few blocks, the trials begin again with a denser sample. The present choice is kept
//!   meanwhile.
//!
//! Source: CloudCache (Arteaga), sections 3.4.1 and 3.4.3.

use haversack_model::Micros;
use haversack_model::place::spread;
use serde::{Deserialize, Serialize};

use super::knee::{LengthTried, choose_length};
use super::trial::Trial;
use super::working_set_window::WorkingSetWindow;
use crate::error::PolicyError;

/// The longest window that is tried, in windows of the policy.
pub const MOST_WINDOWS: u64 = 64;
/// Blocks of the sample. With three tables for each length it takes about 600 KiB.
const PLACES: u32 = 1024;
/// The sample is too thin if the longest window has fewer blocks.
const LEAST_PLACES: u32 = PLACES / 8;
/// Fewer accesses to blocks of the sample do not make a choice.
const LEAST_ACCESSES: u64 = 100;
/// Hit ratios are rounded to a millionth: anything finer is noise of the sample.
const RATIO_STEPS: f64 = 1e6;

/// A length that was chosen.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Knee {
    /// The length.
    pub length_us: Micros,
    /// What it was chosen from, shortest first.
    pub tried: Vec<LengthTried>,
}

/// A length on trial.
struct Length {
    /// In windows of the policy.
    windows: u64,
    trial: Trial,
    hits: u64,
    /// The sum of the sizes of windows that have ended, and their number.
    sizes: u64,
    ended: u64,
}

/// See the module documentation.
pub struct RunningKnee {
    lengths: Vec<Length>,
    /// One block in 2 to this power is passed in.
    recorded_shift: u8,
    /// One block in 2 to this power is in the sample.
    shift: u8,
    /// Windows of the policy observed.
    observed: u64,
    /// The value of `observed` when counting began.
    counted_from: u64,
    accesses: u64,
    /// The largest number of blocks of the sample in the longest window since it began.
    most_used: u32,
    present: Option<Knee>,
}

impl RunningKnee {
    /// Begins at the start of a window of the policy. Blocks that are reused at least `reuses` times, 1 to 4, count as
    /// demand. The caller passes in one block in 2^`shift`: those with the smallest [`spread`]. Until there is a new
    /// choice, `present` holds.
    ///
    /// # Errors
    /// `BadFigure` for another number of reuses.
    pub fn new(reuses: u8, shift: u8, present: Option<Knee>) -> Result<RunningKnee, PolicyError> {
        super::knee::check_reuses(reuses)?;
        let windows = (0..=MOST_WINDOWS.ilog2()).map(|power| 1 << power);
        let length = |windows| {
            // The clock of a trial counts windows of the policy.
            let trial = Trial::new(WorkingSetWindow::new(windows, 0, PLACES)?, reuses);
            Ok(Length { windows, trial, hits: 0, sizes: 0, ended: 0 })
        };
        let mut knee = RunningKnee {
            lengths: windows.map(length).collect::<Result<_, _>>()?,
            recorded_shift: shift,
            shift,
            observed: 0,
            counted_from: 0,
            accesses: 0,
            most_used: 0,
            present,
        };
        knee.begin(shift);
        Ok(knee)
    }

    /// Begins with a sample of one block in 2^`shift`.
    fn begin(&mut self, shift: u8) {
        self.lengths.iter_mut().for_each(|length| length.trial.begin_again(shift));
        (self.shift, self.observed, self.most_used) = (shift, 0, 0);
        self.count();
    }

    /// Counts from zero.
    fn count(&mut self) {
        for length in &mut self.lengths {
            (length.hits, length.sizes, length.ended) = (0, 0, 0);
        }
        (self.accesses, self.counted_from) = (0, self.observed);
    }

    /// Returns the present choice; `None` for a window of the policy.
    pub fn present(&self) -> Option<&Knee> {
        self.present.as_ref()
    }

    /// From now on, expects accesses to one block in 2^`shift`.
    pub fn thin_out(&mut self, shift: u8) {
        if shift != self.recorded_shift {
            self.recorded_shift = shift;
            self.begin(shift);
        }
    }

    /// Records an access to a block.
    pub fn access(&mut self, block: u64) {
        if spread(block).leading_zeros() < self.shift.into() {
            return;
        }
        let used = self.longest_used();
        if used == PLACES && self.shift < 63 {
            self.shift += 1;
            let shift = self.shift;
            self.lengths.iter_mut().for_each(|length| length.trial.narrow(shift));
            return self.access(block);
        }
        self.most_used = self.most_used.max(used);
        self.accesses += 1;
        for length in &mut self.lengths {
            length.hits += u64::from(length.trial.access(block));
        }
    }

    /// Returns how many blocks of the sample were used in the longest window so far. The shorter ones began later.
    fn longest_used(&self) -> u32 {
        self.lengths.last().map_or(0, |longest| longest.trial.window().places().0)
    }

    /// Ends a window of the policy, of this length, and chooses if it is time.
    pub fn turn(&mut self, window_us: Micros) {
        self.observed += 1;
        let observed = self.observed;
        for Length { trial, sizes, ended, .. } in &mut self.lengths {
            trial.pass(observed, |blocks| {
                *sizes += blocks;
                *ended += 1;
            });
        }
        if observed.is_power_of_two() || observed.is_multiple_of(MOST_WINDOWS) {
            self.choose(window_us);
            if observed.is_multiple_of(MOST_WINDOWS) {
                self.check_sample();
            }
        }
    }

    /// Chooses by what was counted, and restarts counting.
    fn choose(&mut self, window_us: Micros) {
        let (accesses, counted_from) = (self.accesses, self.counted_from);
        let tried = |length: &Length| LengthTried {
            length_us: length.windows.saturating_mul(window_us),
            hit_ratio: (length.hits as f64 / accesses as f64 * RATIO_STEPS).round() / RATIO_STEPS,
            mean_blocks: (length.sizes as f64 / length.ended.max(1) as f64).round(),
        };
        let is_ready = |length: &&Length| length.windows * 2 <= counted_from;
        let reached = self.lengths.iter().rfind(is_ready).map_or(0, |length| length.windows);
        // A choice by another policy may be longer than all that are tried.
        let present_us = self.present.as_ref().map_or(0, |knee| knee.length_us);
        let reaches = reached == MOST_WINDOWS || reached.saturating_mul(window_us) > present_us;
        if accesses >= LEAST_ACCESSES && reaches {
            let tried: Vec<LengthTried> = self.lengths.iter().filter(is_ready).map(tried).collect();
            if let Some(length_us) = choose_length(&tried) {
                self.present = Some(Knee { length_us, tried });
            }
        }
        self.count();
    }

    /// Begins again with a denser sample if the sample has too few blocks. It may have been narrowed because of blocks
    /// that are no longer used.
    fn check_sample(&mut self) {
        let used = std::mem::take(&mut self.most_used);
        if (1..LEAST_PLACES).contains(&used) && self.shift > self.recorded_shift {
            let denser = (PLACES / 2 / used).ilog2() as u8;
            self.begin(self.shift.saturating_sub(denser).max(self.recorded_shift));
        }
    }
}

#[cfg(test)]
mod tests;
