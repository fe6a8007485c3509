//! Events and their order.

use std::cmp::Ordering;

use haversack_core::IoId;
use haversack_model::SectorNo;
use haversack_trace::VolumeNo;

use crate::latency::IoKind;
use crate::migration::link::Parcel;

/// What happens.
pub enum What {
    DeviceDone { host: usize, io: IoId, device: usize, first: usize, kind: IoKind },
    OriginDone { host: usize, io: IoId, does: OriginIo },
    LinkFree { from: usize },
    Arrives { to: usize, parcel: Parcel },
    Look { host: usize },
    Comes { vm: usize },
    Frees { vm: usize },
    Begin,
    Stop,
    Resume,
    Mark,
    Sample,
}

/// An I/O to the origin.
#[derive(Clone, Copy)]
pub enum OriginIo {
    Read(VolumeNo, SectorNo, u32),
    Write(VolumeNo, SectorNo),
    Zero(VolumeNo, SectorNo, u32),
    Flush,
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
