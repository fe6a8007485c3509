//! Origins: where a disk's data is stored. Each kind of store has its own file here, behind [`Origin`].
//!
//! Invariant
//! - A request's memory stays in place until the request is answered; each request is answered once.

mod borrowed;
mod connector;
mod extents;
mod file;
mod file_lock;
mod link;
mod nbd;
mod offline_nbd;
mod wire;

pub(crate) use self::borrowed::{BorrowedOrigin, Port};
pub use self::extents::{Descent, Layers};
use self::file::{FileOrigin, OpenFile};
use haversack_core::{IoFailure, IoId, OriginMedia, Writer};
use haversack_lend::{AtLender, BorrowerFigures, Message};
use haversack_model::{DiskHandle, DiskId, HostId, Micros};

use self::file_lock::Users;
use crate::arena::ArenaHandle;
use crate::config::{DiskSpec, OriginSpec};
use crate::error::{EngineError, Result};
use crate::event::EngineEvent;
use crate::ring::{Completion, Ring};

/// An operation on an origin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OriginOp {
    Read,
    Write,
    /// Zeroes; `discard` lets the store free the space.
    Zero {
        discard: bool,
    },
    Flush,
}

/// An origin I/O. Its memory stays in place until it is answered.
pub(crate) struct OriginRequest {
    pub io: IoId,
    pub op: OriginOp,
    pub writer: Writer,
    /// The written data must be durable when the request is answered. If the store refuses the request, the cache keeps
    /// the data, so a store that is known to be unreachable refuses it soon.
    pub durable: bool,
    pub offset_bytes: u64,
    pub len_bytes: u64,
    pub iovecs: Vec<libc::iovec>,
    /// When the core requested it.
    pub started_us: Micros,
}

/// An answer: the request, returned for its memory and times, and its result.
pub(crate) struct OriginAnswer {
    pub request: OriginRequest,
    pub result: std::result::Result<(), IoFailure>,
}

/// What an origin may use while it acts.
pub(crate) struct OriginContext<'a> {
    pub ring: &'a mut Ring,
    pub disk: DiskHandle,
    /// The disk's permanent identity.
    pub id: DiskId,
    pub now: Micros,
    pub answers: &'a mut Vec<OriginAnswer>,
    pub events: &'a mut Vec<EngineEvent>,
}

/// A store that the reactor drives. It answers each request once, in any order; it may hold a request while the
/// store is unreachable.
pub(crate) trait Origin {
    /// Starts its first I/O.
    fn begin(&mut self, _: &mut OriginContext<'_>) {}
    /// Starts a request.
    fn start(&mut self, context: &mut OriginContext<'_>, request: OriginRequest);
    /// Handles the completion of one of its own I/Os.
    fn completed(&mut self, context: &mut OriginContext<'_>, token: u64, completion: Completion);
    /// Advances the time. Called by [`Origin::next_wakeup`] at the latest.
    fn tick(&mut self, _: &mut OriginContext<'_>) {}
    /// Handles the growth of the disk to a size that the store already has.
    fn grown(&mut self, _: &mut OriginContext<'_>, _needed_bytes: u64) {}
    /// Returns when it must be ticked next.
    fn next_wakeup(&self) -> Option<Micros> {
        None
    }
    /// Returns whether the store is reachable.
    fn is_up(&self) -> bool {
        true
    }
    /// Ends its I/O: the disk is gone. No request is left.
    fn close(&mut self, _: &mut OriginContext<'_>) {}
    /// Returns whether none of its own I/O is in flight.
    fn is_closed(&self) -> bool {
        true
    }
    /// Handles a message of a host that lends flash to this one.
    fn lender_said(&mut self, _: &mut OriginContext<'_>, _from: HostId, _: Message) {}
    /// Stops using anything that was sent to lenders so far.
    fn void_lent(&mut self, _: &mut OriginContext<'_>) {}
    /// Restricts borrowing to these hosts, and gives back all loans of others.
    fn choose_lenders(&mut self, _: &mut OriginContext<'_>, _hosts: &[HostId]) {}
    /// Returns what is borrowed, in all and by lender, if the disk borrows.
    fn borrowed(&self, _now: Micros) -> Option<(BorrowerFigures, Vec<AtLender>)> {
        None
    }
}

/// An opened and checked origin, to be moved to the reactor.
pub(crate) struct OpenOrigin {
    /// Makes the origin on the reactor's thread.
    pub make: Box<dyn FnOnce(DiskHandle) -> Box<dyn Origin> + Send>,
}

/// Opens a disk's origin and checks that it is large enough.
pub(crate) fn open(spec: &DiskSpec, handle: &ArenaHandle) -> Result<OpenOrigin> {
    let needed_bytes = spec.config.sectors * 512;
    match &spec.origin {
        OriginSpec::File { path } => {
            if !spec.origin_holds_pool {
                OpenFile::examine(path, true)?.refuse_cache_device(path)?;
            }
            let users = match (spec.read_only, spec.moves) {
                (true, _) => Users::Readers,
                (false, Some(_)) => Users::Hosts,
                (false, None) => Users::One,
            };
            let opened = OpenFile::open(path, users)?;
            check_size(&path.display().to_string(), opened.size_bytes, needed_bytes)?;
            Ok(OpenOrigin { make: Box::new(move |_| Box::new(FileOrigin::new(opened))) })
        }
        OriginSpec::Nbd { .. } => nbd::open(spec, needed_bytes, handle),
    }
}

/// Checks that a disk may grow to this size: its origin must already have it.
pub(crate) fn check_growth(spec: &DiskSpec, needed_bytes: u64) -> Result<()> {
    let name = match &spec.origin {
        OriginSpec::File { path } => path.display().to_string(),
        OriginSpec::Nbd { uri, .. } => uri.clone(),
    };
    check_size(&name, size_bytes(&spec.origin, spec.origin_wait)?, needed_bytes)
}

fn check_size(origin: &str, found_bytes: u64, needed_bytes: u64) -> Result<()> {
    if found_bytes < needed_bytes {
        return Err(EngineError::OriginTooSmall { origin: origin.to_string(), found_bytes, needed_bytes });
    }
    Ok(())
}

/// Returns the size of an origin in bytes.
///
/// # Errors
/// The origin cannot be opened.
pub fn size_bytes(origin: &OriginSpec, wait: std::time::Duration) -> Result<u64> {
    match origin {
        OriginSpec::File { path } => Ok(OpenFile::examine(path, true)?.size_bytes),
        OriginSpec::Nbd { uri, tls, .. } => nbd::size_bytes(uri, tls, wait),
    }
}

/// Opens an origin for work without a reactor.
pub(crate) fn open_offline(origin: &OriginSpec) -> Result<Box<dyn OriginMedia>> {
    match origin {
        OriginSpec::File { path } => {
            OpenFile::examine(path, true)?.refuse_cache_device(path)?;
            Ok(Box::new(OpenFile::buffered(path)?))
        }
        OriginSpec::Nbd { uri, tls, .. } => nbd::open_offline(uri, tls),
    }
}
