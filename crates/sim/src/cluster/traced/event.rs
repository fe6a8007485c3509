//! What happens in the simulated world.

use haversack_core::IoId;

use crate::migration::link::Parcel;
use crate::production::reads::Read;

/// An event.
pub enum What {
    /// An I/O to a cache device or an origin is done.
    IoDone { host: usize, io: IoId, read: Option<Read> },
    /// A host's link to another one is free.
    LinkFree { from: usize, to: usize },
    /// A message arrives.
    Arrives { from: usize, to: usize, parcel: Parcel },
    /// A host looks at its timers.
    Look { host: usize },
    /// A window of the control loops ends.
    Window,
    /// A VM's memory has been copied: it stops as soon as its cache is ready too.
    Stop { volume: usize },
    /// A VM runs at its destination.
    Resume { volume: usize },
}
