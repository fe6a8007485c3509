//! Block traces: readers of the field's formats, our own compact form, and generators.
//!
//! Every supplier of accesses is a [`Source`]: a file in any format, a generator, several of them merged. This crate
//! knows nothing about caches.

mod access;
mod bytes;
mod create;
mod cut;
mod error;
mod fields;
mod formats;
pub mod fuzz;
pub mod generate;
mod input;
mod lines;
mod merged;
mod open;
mod output;
mod records;
mod sorted;
mod source;
mod summary;
mod text;
#[cfg(feature = "parquet")]
mod unwind;
mod volumes;

pub use access::{Access, Op, VolumeNo};
pub use create::{Target, Written, create};
pub use cut::{Cut, Selection};
pub use error::{BadLine, Damage, TraceError};
pub use formats::Format;
pub use merged::{MergeOptions, Merged};
pub use open::{OpenOptions, open};
pub use source::{MemorySource, Source};
pub use summary::{Sizes, Summaries, Summary};
