//! The directory of a cluster, over an etcd that fails in all the ways that it can.

mod daemons;
mod directory;
mod lending;
mod raw;
