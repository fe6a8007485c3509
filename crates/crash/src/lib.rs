//! The crash simulator: it runs the core on fake devices, kills it and cuts its power at any moment, and
//! compares every read with an oracle that knows every acknowledged write.
//!
//! Everything in a run is determined by one seed. See [`run_seed`] for a run, [`fuzz`] for the fuzz targets.

mod base;
pub mod checkpoint;
pub mod cluster;
pub mod crash;
pub mod created;
mod damage;
pub mod device;
pub mod fuzz;
mod hosts;
pub mod io;
pub mod job;
pub mod loans;
pub mod loss;
pub mod manage;
pub mod media;
pub mod memory;
pub mod oracle;
mod order;
pub mod pattern;
pub mod plan;
pub mod remains;
pub mod request;
pub mod run;
pub mod script;
pub mod twin;
pub mod verify;
pub mod workload;
pub mod world;
#[cfg(feature = "bug-zoo")]
pub mod zoo;

pub use run::{Options, RunReport, run_seed, trace};
