//! The control loop: what is recorded of disks becomes windows, windows become decisions, decisions a log.
//!
//! [`Observer`] turns the records of one disk into the figures of a window. [`Control`] has one for each disk, closes
//! windows and decides with `haversack-policy`. Whatever it does is an [`Entry`] of the [`log`], from which
//! [`replay`](log::replay) decides again and [`explain`](explain::explain) tells in words. [`actuate`] says a plan in the
//! core's terms.
//!
//! Nothing here does I/O or reads a clock: time comes as an argument. The daemon and the simulator run the same code, so
//! the same requests at the same times lead to the same decisions.

pub mod actuate;
mod control;
mod counters;
mod error;
pub mod explain;
pub mod log;
mod observer;
mod recall;
pub mod trace;
mod wishes;

pub use control::{Control, Decision, DiskReport};
pub use counters::Counters;
pub use error::ControlError;
pub use log::Entry;
pub use observer::{Observer, ObserverConfig};
pub use recall::RECALLED_LINES;
pub use wishes::{Wishes, measures};
