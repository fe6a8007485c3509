//! The harness of the end-to-end tests: guests, servers and clients around the daemon, all of them real.
//!
//! | module | what |
//! |---|---|
//! | [`place`] | a test's own directory, and its turn: tests run one at a time |
//! | [`process`] | servers that are started, paused, killed, and never outlive their test |
//! | [`guest`], [`qmp`] | Linux in QEMU, its commands and answers; QEMU's monitor |
//! | [`nbdkit`], [`storage_daemon`], [`tgt`], [`haversack`] | servers of disks |
//! | [`clients`], [`connection`] | NBD clients |
//! | [`control`] | the control API, for tests that make many calls |
//! | [`verify`], [`traveller`] | NBD clients that know what they must read; one that moves between hosts as a VM does |
//! | [`written`] | one that knows what was flushed |
//! | [`replay`] | traces, played in their own time |
//! | [`hosts`] | daemons between which disks move |
//! | [`etcd`] | the directory of a cluster |
//! | [`manager`] | a VM manager, which moves VMs for the balancer of a cluster |
//! | [`network`] | hosts on a network of their own, whose links are slow or cut |
//! | [`documents`] | the commands that the documents show |
//! | [`certificates`] | authorities and certificates for TLS |
//! | [`image`] | disk images that tell what they must contain |
//! | [`scenario`] | what guests do to a disk, whoever serves it |
//!
//! The tests in `tests/harness.rs` prove the harness itself against QEMU's and nbdkit's servers: that it passes what
//! works, and that it notices wrong bytes and errors. The others are about `haversackd`.

pub mod ceph;
pub mod certificates;
pub mod clients;
pub mod connection;
pub mod control;
pub mod documents;
pub mod error;
pub mod etcd;
pub mod guest;
pub mod haversack;
pub mod hosts;
pub mod image;
pub mod manager;
pub mod nbdkit;
pub mod network;
pub mod place;
pub mod process;
pub mod qmp;
pub mod replay;
pub mod scenario;
pub mod storage_daemon;
pub mod tgt;
pub mod tools;
pub mod traveller;
pub mod verify;
pub mod written;

pub use error::{Error, Result};
pub use guest::{Answer, Attachment, Guest};
pub use place::{Place, test, test_alone};

/// Bytes of a mebibyte.
pub const MIB: u64 = 1 << 20;
