//! Hosts between which the disks of virtual machines move: hosts that keep dying, over a network that loses, delays,
//! repeats and reorders messages. An oracle knows what each read may return, and who may write the origin when.
//!
//! The simulators of two hosts and of a cluster decide what happens on them.

pub(crate) mod base;
pub(crate) mod guest;
pub(crate) mod host;
mod io;
pub(crate) mod lost;
pub(crate) mod machines;
pub(crate) mod network;
pub(crate) mod plan;
