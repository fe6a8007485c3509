//! Decides for a cluster of hosts: which VM moves where so that flash is where it is needed, and how much of each
//! host's cache each tenant gets. Where VMs cannot move, it says which hosts borrow spare flash of which others
//! ([`Balancer::loans`]).
//!
//! [`Balancer`] looks at a [`Snapshot`] of the cluster at the end of each window and makes a [`Plan`]: moves of VMs, by
//! CloudCache's rule or by expected latency, and what it should move but must not, with the reason. [`divide`] computes
//! weighted max-min shares of tenants over all hosts.
//!
//! Nothing here does I/O, reads a clock or uses random numbers, and the order of hosts and VMs in a snapshot does not
//! matter: whichever host is the leader makes the same plan.

mod balancer;
mod bounds;
mod cost;
mod error;
mod flow;
mod index;
mod latency;
mod loans;
mod outline;
mod plan;
mod queue;
mod round;
mod settings;
mod snapshot;
mod tenants;
mod variance;
mod view;
mod worth;

pub use balancer::{Balancer, MoveRecord};
pub use bounds::{Bounds, Parts, Users, parts};
pub use error::ClusterError;
pub use loans::{Borrows, FlashLoan, Lends, Offers};
pub use outline::outline;
pub use plan::{Held, Hindrance, Move, Plan, Why};
pub use settings::{Rule, Settings};
pub use snapshot::{Disk, DiskName, Host, HostName, HostState, Snapshot, TenantName, Vm, VmName};
pub use tenants::{Demand, Division, HostShare, Tenant, TenantTotal, WEIGHTS, demands, divide};
