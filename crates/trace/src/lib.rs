//! Block traces: readers of the field's formats, our own compact form, and generators.
//!
//! Everything that gives accesses is a [`Source`]: a file of any format, a generator, several of them merged.
//! What a cache makes of the accesses is not known here.

mod access;
mod error;
mod source;

pub use access::{Access, Op, VolumeNo};
pub use error::TraceError;
pub use source::{MemorySource, Source};
