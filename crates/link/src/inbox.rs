//! Room for the frames of a host that were received and are not handled yet.
//!
//! Without it, a peer that sends faster than its frames are handled would make this daemon grow without a limit. While
//! there is no room, the peer's connection is not read, so that TCP slows the peer down.
//!
//! Invariants
//! - At most [`DATA_BYTES`] of data and [`CONTROL_BYTES`] of control are not handled, or one frame that is longer.
//! - Control has room of its own, but waits behind a copy that waits for room: frames are read in order. Handling a
//!   frame never waits for another frame, so all frames are handled in the end.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::class::{Class, class, weight};
use crate::wire::Frame;

/// The most bytes of copies and answers.
pub(crate) const DATA_BYTES: usize = 1 << 20;
/// The most bytes of other frames.
pub(crate) const CONTROL_BYTES: usize = 256 << 10;

/// Until it is dropped, a frame counts as not handled.
#[derive(Debug, Default)]
pub struct Receipt {
    _room: Option<OwnedSemaphorePermit>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Inbox {
    data: Arc<Semaphore>,
    control: Arc<Semaphore>,
}

impl Default for Inbox {
    fn default() -> Inbox {
        let room = |bytes| Arc::new(Semaphore::new(bytes));
        Inbox { data: room(DATA_BYTES), control: room(CONTROL_BYTES) }
    }
}

impl Inbox {
    /// Waits until there is room for a frame.
    pub async fn receive(&self, frame: &Frame) -> Receipt {
        let (room, most) = match class(frame) {
            Class::Control => (&self.control, CONTROL_BYTES),
            Class::Answer | Class::Copy => (&self.data, DATA_BYTES),
        };
        let bytes = weight(frame).min(most) as u32;
        Receipt { _room: room.clone().acquire_many_owned(bytes).await.ok() }
    }
}
