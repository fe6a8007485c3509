//! A host's connection to etcd, which holds the directory of a cluster. The crate `haversack-directory` decides what is
//! written there and what follows from it.
//!
//! [`Directory`] runs one thread. It keeps a connection to one member of etcd, a lease that says that this host is
//! alive, and a watch that keeps the [`View`](haversack_directory::View) up to date. When anything fails it connects to
//! the next member, again and again.
//!
//! - A report ([`Directory::report`]) is what this host wants to have in the directory. It replaces the one before, and
//!   the thread brings etcd in line with it when it can: what waits is bounded, and nobody waits for it.
//! - Changes that a caller needs the result of, such as an intent, are calls: refused at once while etcd cannot be
//!   reached, and answered in bounded time otherwise.
//!
//! Invariant
//! - No method of [`Directory`] waits for etcd, except the calls, which say how long.

mod backoff;
mod call;
mod config;
mod connect;
mod directory;
mod error;
mod lease;
mod session;
mod status;
mod transaction;
mod watch;

pub use config::{Config, TlsFiles};
pub use directory::Directory;
pub use status::Status;
