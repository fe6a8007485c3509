//! Decides whether a helper may be used: when it is started, and periodically while it runs.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

/// How often a gate confirms a helper.
pub const CONFIRM_EVERY: Duration = Duration::from_secs(3600);
/// A helper that its gate has not confirmed for this many intervals is stopped, and must be admitted again. With
/// intervals of [`CONFIRM_EVERY`], this is half of the day for which `fence-rbd` blocklists a client.
const MOST_UNCONFIRMED: u32 = 12;

/// Decides at each start of a helper whether it may be used.
pub trait Gate: std::fmt::Debug + Send + Sync {
    /// Called before the helper is started.
    ///
    /// # Errors
    /// The helper must not be started.
    fn prepare(&self) -> Result<(), Refusal>;

    /// Called when the helper has opened its store, before anybody can connect to it.
    ///
    /// # Errors
    /// The helper must not be used.
    fn admit(&self) -> Result<(), Refusal>;

    /// Called periodically while the helper is used.
    ///
    /// # Errors
    /// If the refusal is final, the helper must not be used any more. Otherwise it is not known at present whether it
    /// may be.
    fn confirm(&self) -> Result<(), Refusal>;
}

/// Why a helper is not used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// For the operator.
    pub why: String,
    /// No other helper is started.
    pub is_final: bool,
}

/// When the gate last confirmed a helper, and when it will do so next.
pub(super) struct Confirmation {
    every: Duration,
    last: Instant,
    next: Instant,
}

impl Confirmation {
    /// The first confirmation is due at a time within the interval that depends on the disk, so that not all helpers of
    /// a host are confirmed at the same time.
    pub fn new(disk: &str, every: Duration) -> Confirmation {
        let mut hasher = DefaultHasher::new();
        disk.hash(&mut hasher);
        let share = (hasher.finish() >> 32) as f64 / f64::from(u32::MAX);
        let now = Instant::now();
        Confirmation { every, last: now, next: now + every.mul_f64(share) }
    }

    /// Asks the gate if it is time to. Returns why the helper is to be stopped, if it is.
    pub fn check(&mut self, gate: &dyn Gate) -> Result<(), Refusal> {
        let now = Instant::now();
        if now < self.next {
            return Ok(());
        }
        self.next = now + self.every;
        match gate.confirm() {
            Ok(()) => self.last = now,
            Err(refusal) if refusal.is_final || now - self.last >= self.every * MOST_UNCONFIRMED => {
                return Err(refusal);
            }
            Err(refusal) => tracing::warn!("cannot confirm that a helper may be used: {}", refusal.why),
        }
        Ok(())
    }
}
