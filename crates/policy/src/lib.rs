//! Who gets how much of the cache, and what may enter it.
//!
//! Five research systems judged this differently. Each idea has a file of its own here, behind a small trait: what a
//! disk [demands](demand), what it will demand next ([forecast]), how a pool is [divided](allocate), which
//! [write mode](write_mode) fits, what may [enter](haversack_admission). [`decide`] joins them into a [`Plan`] from [`Inputs`] that
//! can be logged and decided again; [`Controller`] carries what lasts from window to window.
//!
//! Nothing here does I/O, reads a clock or draws numbers that no seed determines: the same inputs give the same plan,
//! in the daemon, in the simulator and in a replay.

pub mod allocate;
mod config;
mod controller;
mod curve;
mod decide;
pub mod demand;
mod error;
pub mod forecast;
mod plan;
mod window;
pub mod write_mode;

pub use haversack_admission as admission;

pub use config::{AdmissionRule, AllocatorRule, Config, DemandRule, SolverRule, Staging, named};
pub use controller::{Controller, DiskFacts, Event};
pub use curve::Curve;
pub use decide::decide;
pub use error::PolicyError;
pub use plan::{DiskInput, DiskPlan, DiskState, Inputs, Plan};
pub use window::{DiskWindow, Intensity};
