//! Two hosts, one disk: a virtual machine moves between hosts that keep dying, over a network that loses, delays,
//! repeats and reorders messages. An oracle knows what each read may return, and who may write the origin when.
//!
//! Everything in a run is determined by one seed.

mod base;
mod force;
mod guest;
mod host;
mod network;
mod plan;
mod replica;
mod run;

pub use run::{most_points_of_a_run, run_seed};
