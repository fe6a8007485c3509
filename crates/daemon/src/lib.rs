//! Haversack's daemon: pools, disks and front ends under one configuration and one control API.
//!
//! The data path is `haversack-engine`; this crate decides which pools and disks exist. Clients' requests do
//! not pass through here once their connection is made.

mod attach;
pub mod backend;
pub mod bases;
pub mod budget;
pub mod closed;
pub mod cluster;
pub mod config;
pub mod control;
pub mod daemon;
pub mod descriptors;
pub mod error;
pub mod events;
mod exclusive;
mod filters;
pub mod governed;
pub mod helper;
pub mod history;
pub mod hosts;
pub mod jobs;
mod last_use;
pub mod learned;
pub mod limits;
mod line_log;
mod locked;
mod manage;
pub mod metrics;
pub mod nbd_listener;
pub mod origin;
mod origin_checks;
mod overview;
mod part;
pub mod policy;
pub mod pool;
pub mod program;
mod rbd;
mod redacted_log;
pub mod reload;
pub mod run;
pub mod sandbox;
mod sealed;
pub mod settings;
pub mod start;
pub mod state;
mod state_lock;
pub mod status;
pub mod system;
pub mod tls;
mod turns;
pub mod uses;
mod write_cache;
