//! The control loop: records of disks become windows, windows become decisions, and decisions become a log.
//!
//! [`Observer`] turns the records of one disk into the figures of a window. [`Control`] has an observer for
//! each disk, closes windows, and decides with `haversack-policy`. It sees the
//! pool through a [`Port`], which the daemon and the simulator implement. Everything it does is an [`Entry`] of the
//! [`log`], from which [`replay`](log::replay) repeats the decisions and [`explain`](explain::explain) explains
//! them. [`actuate`] converts a plan into the core's types.
//!
//! Nothing here does I/O or reads a clock: the time is an argument. The daemon and the simulator run the same
//! code, so the same requests at the same times lead to the same decisions.

pub mod actuate;
pub mod budget;
mod control;
pub mod counted_writes;
mod counters;
pub mod disk;
pub mod endurance;
mod error;
pub mod explain;
pub mod forecasts;
pub mod log;
mod observer;
mod port;
pub mod predictions;
mod recall;
pub mod settings;
pub mod trace;
mod wishes;

pub use control::{Control, Decision, DiskReport};
pub use counters::Counters;
pub use error::ControlError;
pub use log::Entry;
pub use observer::{Observer, ObserverConfig};
pub use port::{Cause, Port};
pub use recall::{MOST_RECALLED_LINES, recalled_lines};
pub use wishes::{NO_TENANT, Wishes, measures};
