//! What a decision needs of the pool that it is about, and the order in which it is made: the same in the daemon and
//! in the simulator.
//!
//! Invariants
//! - Every decision and every refusal is logged before it is carried out.
//! - A refused decision changes nothing: the previous plan stays in effect.

use haversack_model::Micros;
use haversack_policy::DiskPlan;

use crate::control::{Control, Decision, DiskReport};
use crate::error::ControlError;
use crate::log::Entry;

/// A pool under control: the daemon's, or a simulated one.
pub trait Port {
    /// Why a plan cannot be carried out.
    type Error;

    /// Returns the pool's blocks, and a report of each disk that may take part. Latencies in it are those since the
    /// last window. `None`: the pool is not available.
    fn reports(&mut self) -> Option<(u64, Vec<DiskReport>)>;

    /// Keeps entries of the log.
    fn write_log(&mut self, entries: &[Entry]);

    /// Carries out what was decided for a disk.
    ///
    /// # Errors
    /// The data path refuses.
    fn carry_out(&mut self, disk: &str, plan: &DiskPlan) -> Result<(), Self::Error>;
}

/// Why a decision is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause<'a> {
    /// The window has ended.
    Window,
    /// Something has happened between windows; in words.
    Event(&'a str),
}

impl Control {
    /// Decides about a pool, logs that and carries it out. `None`: the pool is not available.
    ///
    /// # Errors
    /// The decision is refused, see [`Control::close`] and [`Control::decide`]; or the port's error.
    pub fn turn<P: Port>(
        &mut self,
        port: &mut P,
        now_us: Micros,
        cause: Cause<'_>,
    ) -> Result<Option<Result<Decision, ControlError>>, P::Error> {
        let Some((pool_blocks, mut reports)) = port.reports() else { return Ok(None) };
        reports.retain(|report| self.state(&report.facts.name).is_some());
        let decided = match cause {
            Cause::Window => self.close(now_us, pool_blocks, &reports),
            Cause::Event(cause) => self.decide(now_us, cause, pool_blocks, &reports),
        };
        port.write_log(&self.take_log());
        if let Ok(decision) = &decided {
            for report in &reports {
                if let Some(plan) = decision.plan.disks.get(&report.facts.name) {
                    port.carry_out(&report.facts.name, plan)?;
                }
            }
        }
        Ok(Some(decided))
    }
}
