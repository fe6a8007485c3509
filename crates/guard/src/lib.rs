//! Mapped files that another process may truncate.
//!
//! Access to a page of a mapping that its file no longer has raises SIGBUS, which ends the process unless it is
//! handled. The handler looks up mappings that are under a [`Guard`]:
//!
//! - A mapping that another process controls, such as a guest's memory, is *lost*: it is marked and replaced by
//!   zeroed memory, so that the faulting thread can continue. The thread must check [`Guard::is_lost`] before
//!   it trusts what it has read.
//! - A mapping whose loss cannot be repaired ends the process, with a message that names the file.
//!
//! A fault anywhere else ends the process, as it would without this crate.

mod handler;
mod table;
mod whole;

use std::io;
use std::sync::atomic::Ordering;

use table::Place;
pub use whole::Whole;

/// A guarded mapping. Must be dropped before the mapping is unmapped.
#[derive(Debug)]
pub struct Guard {
    place: Place,
    /// Written when the process ends; the table points to it.
    _message: Option<Box<str>>,
}

impl Guard {
    /// Guards a mapping of whole pages whose loss is survived.
    ///
    /// # Errors
    /// Too many mappings are guarded, or the handler cannot be installed.
    pub fn surviving(start: *const u8, bytes: usize) -> io::Result<Self> {
        Self::new(start, bytes, None)
    }

    /// Guards a mapping of whole pages whose loss ends the process, after writing `message`.
    ///
    /// # Errors
    /// As for [`Guard::surviving`].
    pub fn ending(start: *const u8, bytes: usize, message: &str) -> io::Result<Self> {
        Self::new(start, bytes, Some(format!("{message}\n").into_boxed_str()))
    }

    fn new(start: *const u8, bytes: usize, message: Option<Box<str>>) -> io::Result<Self> {
        handler::install()?;
        let place = Place::take(start as usize, bytes, message.as_deref())?;
        Ok(Self { place, _message: message })
    }

    /// Returns whether an access to the mapping has failed since it was guarded. Data read before this returns
    /// false is the file's data.
    pub fn is_lost(&self) -> bool {
        self.place.is_lost()
    }
}

/// Returns whether any mapping was ever lost: a quick check for the usual case that none was.
pub fn any_lost() -> bool {
    table::ANY_LOST.load(Ordering::Acquire)
}
