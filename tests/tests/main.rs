//! End-to-end tests: real guests, clients and servers around the daemon. One program, since each one takes long to
//! link.
//!
//! `cargo test --release -p haversack-e2e --test e2e NAME` runs those whose names contain NAME.

mod ansible;
mod checkpoint;
mod command_line;
mod controller;
mod decisions;
mod detached;
mod devices;
mod documentation;
mod documented;
mod documented_commands;
mod file_systems;
mod first_start;
mod harness;
mod helper_hosts;
mod hosts;
mod knowledge;
mod libvirt_hook;
mod migration;
mod monitoring;
mod nbd;
mod network;
mod order;
mod origins;
mod outages;
mod policy;
mod pools;
mod proxmox;
mod quiesce;
mod rbd_hosts;
mod ready;
mod reattach;
mod refusals;
mod replication;
mod resize;
mod secrets;
mod service;
mod shared_base;
mod simulator;
mod takeover;
mod tls;
mod ublk;
mod vhost_user;
mod write_cache;
