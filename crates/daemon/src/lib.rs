//! Haversack's daemon: pools, disks and front ends under one configuration and one control API.
//!
//! The data path is `haversack-engine`'s; here is what decides which pools and disks there are. No call of a client or an
//! origin passes through here once its connection is made.

pub mod backend;
pub mod config;
pub mod helper;
mod locked;
pub mod origin;
pub mod settings;
pub mod system;
