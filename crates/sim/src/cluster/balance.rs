//! The balancer of a simulated cluster: `haversack-cluster` itself, on the simulation's clock.

use haversack_cluster::{Balancer, MoveRecord, Plan, Settings, Snapshot};
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

    /// Notes that a proposed move was begun.
    pub fn begun(&mut self, now_us: Micros, moved: &haversack_cluster::Move) {
        self.balancer.record(MoveRecord::of(now_us, moved));
    }
}
