//! A budget of flash writes for a simulated pool: the daemon's pacer, on the simulation's clock.

use haversack_control::budget::{Account, Budget, Pacer};
use haversack_model::BLOCK_BYTES;

use super::driver::Driver;
use super::memory::SimMemory;
use crate::counts::Counts;
use crate::error::SimError;

/// Number of updates of the account in the time that it takes to fill: one per minute if that is a day.
const LOOKS_A_BURST: u64 = 1440;

/// See the module.
pub struct Pacing {
    pacer: Pacer,
    interval_us: u64,
    due_us: u64,
}

fn written_bytes<M: SimMemory>(driver: &Driver<M>) -> u64 {
    driver.counts().iter().map(Counts::flash_writes).sum::<u64>() * BLOCK_BYTES as u64
}

fn unfit(error: impl std::fmt::Display) -> SimError {
    SimError::Settings(error.to_string())
}

impl Pacing {
    /// Starts at time 0.
    ///
    /// # Errors
    /// The budget cannot be kept.
    pub fn new(budget: Budget) -> Result<Pacing, SimError> {
        let interval_us = (budget.burst_us / LOOKS_A_BURST).max(1);
        let pacer = Pacer::new(budget, 0, 0).map_err(unfit)?;
        Ok(Pacing { pacer, interval_us, due_us: interval_us })
    }

    /// When the account is updated next.
    pub fn due_ns(&self) -> u64 {
        self.due_us.saturating_mul(1000)
    }

    /// Updates the account and applies the result to the pool.
    pub fn pace<M: SimMemory>(&mut self, driver: &mut Driver<M>) {
        self.pacer.note(self.due_us, written_bytes(driver));
        self.due_us += self.interval_us;
        self.tell(driver);
    }

    /// Continues after a restart with the account that was kept.
    ///
    /// # Errors
    /// The budget cannot be kept.
    pub fn restart<M: SimMemory>(&mut self, now_us: u64, driver: &mut Driver<M>) -> Result<(), SimError> {
        let written = written_bytes(driver);
        self.pacer.note(now_us, written);
        let (budget, account) = (self.pacer.budget(), self.pacer.account());
        self.pacer = Pacer::resume(budget, account, now_us, written).map_err(unfit)?;
        self.tell(driver);
        Ok(())
    }

    fn tell<M: SimMemory>(&self, driver: &mut Driver<M>) {
        let share = self.pacer.fill_share(driver.mean_origin_read_us());
        driver.set_write_price(self.pacer.write_price_us(), share);
    }

    /// The account at the end.
    pub fn end(self) -> Account {
        self.pacer.account()
    }
}
