//! Clusters of hosts between which VMs move: small ones request by request ([`traced`]), large ones by models of their
//! VMs ([`model`]).
//!
//! Both decide by `haversack-cluster`, as the daemon's leader does.

pub mod balance;
pub mod model;
pub mod system;
pub mod table;
pub mod traced;

pub use system::System;
pub use table::{BalancingTable, ClusterTable};

/// The population variance; 0 without values.
pub(crate) fn variance(values: &[f64]) -> f64 {
    let count = values.len().max(1) as f64;
    let mean = values.iter().sum::<f64>() / count;
    values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count
}
