//! Clusters of hosts between which VMs move: small ones request by request ([`traced`]), large ones by models of their VMs
//! ([`model`]).
//!
//! Both decide by `haversack-cluster`, as the daemon's leader does.

pub mod balance;
pub mod model;
pub mod system;
pub mod table;
pub mod traced;

pub use system::System;
pub use table::{BalancingTable, ClusterTable};
