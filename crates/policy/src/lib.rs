//! Decides how much of the cache each disk gets, and which blocks are admitted.
//!
//! Five research systems answered this question differently. Each idea has its own file here, behind a small
//! trait: what a disk [demands](demand), what it will demand next ([forecast]), how a pool is
//! [divided](allocate), which [write mode](write_mode) fits, and what is [admitted](haversack_admission).
//! [`decide`] combines them into a [`Plan`] from [`Inputs`] that can be logged and replayed; [`Controller`]
//! keeps the state between windows.
//!
//! Nothing here does I/O, reads a clock or uses unseeded random numbers: the same inputs give the same plan in
//! the daemon, in the simulator and in a replay.

pub mod allocate;
mod config;
mod controller;
mod curve;
mod decide;
pub mod demand;
mod error;
pub mod forecast;
mod history;
mod newcomer;
mod plan;
mod systems;
mod tenants;
mod window;
pub mod write_mode;

pub use haversack_admission as admission;

pub use config::{
    AdmissionRule, AllocatorRule, Config, DemandRule, OwnWindow, SolverRule, Staging, Unaligned,
};
pub use controller::{Controller, DiskFacts, Event, KEPT_WINDOWS};
pub use curve::Curve;
pub use decide::decide;
pub use error::PolicyError;
pub use history::History;
pub use plan::{DiskInput, DiskPlan, DiskState, Inputs, Plan, WindowStage};
pub use systems::{SYSTEMS, named};
pub use tenants::TenantBounds;
pub use window::{DiskWindow, Intensity};
