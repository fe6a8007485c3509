//! Analysis of traces: reuse distances, miss-ratio curves, working sets, popularity, sequentiality.
//!
//! [`analyze`] processes a whole trace. Its parts can be used alone as well: [`Stack`] gives exact reuse distances
//! access by access, [`Parallel`] on several cores, and [`Sampler`] estimates all of it in bounded memory without any
//! I/O, so that a running cache can analyse itself.
//!
//! The *reuse distance* of an access is the number of distinct other blocks accessed since the last access to its
//! block: an LRU cache of `c` blocks hits if and only if it is below `c`. After a discard a block counts as never
//! accessed: the next access to it is cold.

mod analysis;
mod block;
mod error;
mod histogram;
mod intervals;
mod order;
mod orders;
mod page;
mod parallel;
mod passes;
mod popularity;
mod profile;
mod profiles;
mod reference;
mod results;
mod sampler;
mod sequentiality;
mod stack;
mod table;
mod tables;
mod windows;

pub use analysis::{Depth, Options, analyze};
pub use error::AnalyzeError;
pub use histogram::Histogram;
pub use intervals::Interval;
pub use parallel::Parallel;
pub use popularity::{Popularity, TopShare};
pub use profile::{Class, Distances, Profile};
pub use reference::{Kind, Reference};
pub use results::{Analysis, Classes, CurvePoint, Intensity, Traffic, VolumeAnalysis};
pub use sampler::Sampler;
pub use sequentiality::{Runs, Sequentiality};
pub use stack::{Outcome, Stack};
pub use windows::{Window, Windows};
