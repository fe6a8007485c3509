//! Two hosts, one disk: a virtual machine moves between hosts that keep dying. One of them may die permanently.
//!
//! Everything in a run is determined by one seed.

mod force;
mod replica;
mod run;

pub use run::{most_points_of_a_run, run_seed, run_seed_with_replicas};
