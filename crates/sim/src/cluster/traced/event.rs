//! Events and their order.

use std::cmp::Ordering;

use haversack_core::IoId;

use super::host::Read;
use crate::migration::link::Parcel;

/// What happens.
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

/// See the module.
pub struct Event {
    pub time_ns: u64,
    /// Orders events at the same time.
    pub number: u64,
    pub what: What,
}

impl PartialEq for Event {
    fn eq(&self, other: &Event) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Event {}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Event) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Event {
    /// Reversed: the earliest event is the greatest, which a heap returns first.
    fn cmp(&self, other: &Event) -> Ordering {
        (other.time_ns, other.number).cmp(&(self.time_ns, self.number))
    }
}
