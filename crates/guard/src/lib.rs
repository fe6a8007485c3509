//! Mapped files that somebody else may cut short.
//!
//! Whoever touches a page of a mapping that its file has no more gets SIGBUS, which ends the process unless it is
//! handled. A mapping under a [`Guard`] is looked up by the handler instead:
//!
//! - One that is not ours, such as a guest's memory, is *lost*: it is marked, and memory of zeroes takes its place, so
//!   that whoever touched it goes on. He asks [`Guard::is_lost`] before he believes what he has read.
//! - One whose loss nothing can make good ends the process, with a message that names the file.
//!
//! A fault anywhere else ends the process as without this crate.

mod handler;
mod table;
mod whole;

use std::io;
use std::sync::atomic::Ordering;

use table::Place;
pub use whole::Whole;

/// A mapping that is looked after. To be dropped before the mapping goes.
#[derive(Debug)]
pub struct Guard {
    place: Place,
    /// Told when the process ends; the table points to it.
    _message: Option<Box<str>>,
}

impl Guard {
    /// Looks after a mapping of whole pages whose loss is survived.
    ///
    /// # Errors
    /// Too many mappings are looked after, or the handler cannot be installed.
    pub fn surviving(start: *const u8, bytes: usize) -> io::Result<Self> {
        Self::new(start, bytes, None)
    }

    /// Looks after a mapping of whole pages whose loss ends the process, which says `message` before.
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

    /// Whether something of the mapping could not be had since it is looked after. What was read before this says no is
    /// what the file had.
    pub fn is_lost(&self) -> bool {
        self.place.is_lost()
    }
}

/// Whether any mapping was ever lost: the quick way to know that none is.
pub fn any_lost() -> bool {
    table::ANY_LOST.load(Ordering::Acquire)
}
