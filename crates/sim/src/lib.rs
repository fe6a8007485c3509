//! Caches driven by traces: the production core, and reference policies to compare it with.

pub mod error;
pub mod key;
pub mod reference;

pub use error::SimError;
pub use reference::PolicyName;
