//! The balancer of a simulated cluster: `haversack-cluster` itself, on the simulation's clock.

use haversack_cluster::{Balancer, FlashLoan, HostName, MoveRecord, Offers, Plan, Settings, Snapshot};
use haversack_model::Micros;

use crate::error::SimError;

/// See the module.
pub struct Balance {
    balancer: Balancer,
}

impl From<haversack_cluster::ClusterError> for SimError {
    fn from(error: haversack_cluster::ClusterError) -> Self {
        SimError::Settings(error.to_string())
    }
}

impl Balance {
    /// A balancer that knows nothing yet.
    ///
    /// # Errors
    /// A setting is invalid.
    pub fn new(settings: Settings) -> Result<Balance, SimError> {
        Ok(Balance { balancer: Balancer::new(settings)? })
    }

    /// What should move at the end of a window.
    ///
    /// # Errors
    /// The snapshot contradicts itself.
    pub fn round(&mut self, now_us: Micros, snapshot: &Snapshot) -> Result<Plan, SimError> {
        Ok(self.balancer.round(now_us, snapshot)?)
    }

    /// Who is to borrow from whom, with the moves of a plan.
    ///
    /// # Errors
    /// The snapshot contradicts itself.
    pub fn loans(
        &self,
        snapshot: &Snapshot,
        plan: &Plan,
        offers: &Offers,
    ) -> Result<Vec<FlashLoan>, SimError> {
        Ok(self.balancer.loans(snapshot, plan, offers)?)
    }

    /// Whether a host may be among the borrowers.
    pub fn may_borrow(&self, host: &HostName, borrows: bool) -> bool {
        self.balancer.may_borrow(host, borrows)
    }

    /// Called when a proposed move was begun.
    pub fn begun(&mut self, now_us: Micros, moved: &haversack_cluster::Move) {
        self.balancer.record(MoveRecord::of(now_us, moved));
    }
}
