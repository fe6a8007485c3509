//! Caches driven by traces: the production core, and reference policies to compare it with.
//!
//! Start at [`run`], which plays a trace to every policy and size of its [`Settings`] and returns a
//! [`Report`].

pub mod advise;
pub mod agenda;
pub mod cell;
pub mod cluster;
pub mod compare;
pub mod compare_cluster;
pub mod compare_migration;
pub mod counts;
pub mod csv;
pub mod error;
pub mod governor;
pub mod grid;
pub mod key;
pub mod latency;
pub mod meter;
pub mod migration;
pub mod mix;
pub mod outcome;
pub mod production;
pub mod reference;
pub mod settings;
pub mod show;
pub mod sweep;
pub mod tape;

pub use error::SimError;
pub use outcome::{Report, Row};
pub use reference::PolicyName;
pub use settings::{Pool, Replacement, RestartKind, Restarts, Settings, Sizes, Traffic};
pub use sweep::{Progress, Stage, pools, run, threads};
