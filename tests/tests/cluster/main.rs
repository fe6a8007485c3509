//! The directory of a cluster, over an etcd that fails in all the ways that it can; and clusters at work.

mod daemons;
mod demand;
mod directory;
mod lending;
mod live;
mod raw;
mod rbd;
mod spare;
mod witness;
