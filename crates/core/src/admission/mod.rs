//! Which blocks may enter the cache. One policy per file.
//!
//! A policy is asked once for each block that a request touches and that is not cached. It keeps bounded
//! memory and is deterministic.

mod always;
mod reuse;
pub mod sequential;

use haversack_model::BlockNo;

use crate::config::AdmissionConfig;
pub use always::Always;
pub use reuse::Reuse;

/// An admission policy of one disk.
pub trait Admission: Send {
    /// A block that is not cached is accessed: may it enter now?
    fn admit(&mut self, block: BlockNo) -> bool;
    /// Bytes of memory it takes.
    fn bytes(&self) -> usize;
}

/// The policy that a configuration names.
pub fn of(config: AdmissionConfig) -> Box<dyn Admission> {
    match config {
        AdmissionConfig::Always => Box::new(Always),
        AdmissionConfig::Reuse { n, addresses } => Box::new(Reuse::new(n, addresses)),
    }
}
