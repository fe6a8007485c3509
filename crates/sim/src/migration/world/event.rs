//! What happens in the simulated world.

use haversack_core::IoId;
use haversack_model::SectorNo;
use haversack_trace::VolumeNo;

use crate::latency::IoKind;
use crate::migration::link::Parcel;

/// An event.
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
