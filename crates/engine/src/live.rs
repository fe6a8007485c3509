//! Devices and disks as the reactor runs them: their I/O in flight and their figures.
//!
//! Invariant
//! - A retired device stays open until its last I/O has completed.

use std::time::Instant;

use haversack_core::{IoFailure, IoId, Op};
use haversack_model::{DeviceNo, DiskHandle, Micros};

use crate::config::DiskSpec;
use crate::device::CacheDevice;
use crate::faults::DeviceOp;
use crate::front::ClientKind;
use crate::origin::{Origin, OriginOp, OriginRequest};
use crate::reactor::Finished;
use crate::slow::{SLOW_US, Slow};
use crate::snapshot::{DeviceSnapshot, Latencies};

#[derive(Clone, Copy)]
struct InFlight {
    offset_bytes: u64,
    bytes: u64,
    op: DeviceOp,
}

/// A cache device in use.
pub(crate) struct LiveDevice {
    pub device: CacheDevice,
    in_flight: Vec<InFlight>,
    inflight: u32,
    /// The pool no longer uses it.
    pub retired: bool,
    pub errors: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
    pub latency: Latencies,
    slow: Slow,
    told_cut: bool,
}

impl LiveDevice {
    pub fn new(device: CacheDevice) -> LiveDevice {
        LiveDevice {
            device,
            in_flight: Vec::new(),
            inflight: 0,
            retired: false,
            errors: 0,
            read_bytes: 0,
            written_bytes: 0,
            latency: Latencies::default(),
            slow: Slow::default(),
            told_cut: false,
        }
    }

    /// Records an I/O that starts now.
    pub fn start(&mut self, io: IoId, op: DeviceOp, offset_bytes: u64, bytes: u64) {
        let (at, started) = (io.0 as usize, InFlight { offset_bytes, bytes, op });
        if self.in_flight.len() <= at {
            self.in_flight.resize(at + 1, started);
        }
        self.in_flight[at] = started;
        self.inflight += 1;
    }

    /// Returns whether it can be closed.
    pub fn is_over(&self) -> bool {
        self.retired && self.inflight == 0
    }

    pub fn snapshot(&self, device: DeviceNo) -> DeviceSnapshot {
        DeviceSnapshot {
            device,
            path: self.device.path.display().to_string(),
            capacity_bytes: self.device.capacity_bytes,
            errors: self.errors,
            read_bytes: self.read_bytes,
            written_bytes: self.written_bytes,
            latency: self.latency.clone(),
        }
    }

    /// Logs, once, that an I/O failed because the file was truncated.
    fn tell_cut(&mut self) {
        if self.told_cut {
            return;
        }
        if let Some(left_bytes) = self.device.cut_to_bytes() {
            self.told_cut = true;
            let (path, bytes) = (self.device.path.display(), self.device.capacity_bytes);
            tracing::error!(
                "{path}: the file was truncated from {bytes} to {left_bytes} bytes; the data beyond is lost"
            );
        }
    }

    /// Counts a completed I/O. An error is returned with the byte offset of the I/O.
    pub fn completed(
        &mut self,
        io: IoId,
        result: Result<usize, i32>,
        took_us: Micros,
    ) -> Result<(), (i32, u64)> {
        if took_us >= SLOW_US
            && let Some((count, worst_us)) = self.slow.note(Instant::now(), took_us)
        {
            tracing::warn!(device = %self.device.path.display(), count, worst_us, "slow I/Os of a cache device");
        }
        self.inflight -= 1;
        let InFlight { offset_bytes, bytes, op } = self.in_flight[io.0 as usize];
        if let Err(errno) = result {
            self.errors += 1;
            self.tell_cut();
            return Err((errno, offset_bytes));
        }
        match op {
            DeviceOp::Read => {
                self.read_bytes += bytes;
                self.latency.read.record(took_us);
            }
            DeviceOp::Write => {
                self.written_bytes += bytes;
                self.latency.write.record(took_us);
            }
            DeviceOp::Flush => self.latency.flush.record(took_us),
        }
        Ok(())
    }
}

/// An attached disk, or one whose origin is shutting down.
pub(crate) struct LiveDisk {
    pub handle: DiskHandle,
    pub spec: DiskSpec,
    pub origin: Box<dyn Origin>,
    pub origin_errors: u64,
    pub origin_latency: Latencies,
    origin_slow: Slow,
    pub nbd_latency: Latencies,
    pub vhost_user_latency: Latencies,
}

impl LiveDisk {
    pub fn new(handle: DiskHandle, spec: DiskSpec, origin: Box<dyn Origin>) -> LiveDisk {
        LiveDisk {
            handle,
            spec,
            origin,
            origin_errors: 0,
            origin_latency: Latencies::default(),
            origin_slow: Slow::default(),
            nbd_latency: Latencies::default(),
            vhost_user_latency: Latencies::default(),
        }
    }

    /// Counts an origin's answer.
    pub fn answered(&mut self, request: &OriginRequest, result: Result<(), IoFailure>, now: Micros) {
        if result.is_err() {
            self.origin_errors += 1;
            return;
        }
        let took_us = now.saturating_sub(request.started_us);
        if took_us >= SLOW_US
            && let Some((count, worst_us)) = self.origin_slow.note(Instant::now(), took_us)
        {
            tracing::warn!(disk = self.spec.name, count, worst_us, "slow I/Os of an origin");
        }
        match request.op {
            OriginOp::Read => self.origin_latency.read.record(took_us),
            OriginOp::Write | OriginOp::Zero { .. } => self.origin_latency.write.record(took_us),
            OriginOp::Flush => self.origin_latency.flush.record(took_us),
        }
    }

    /// Counts a finished request of a client.
    pub fn client_latency(&mut self, kind: ClientKind, done: Finished, now: Micros) {
        let latencies = match kind {
            ClientKind::Nbd => &mut self.nbd_latency,
            ClientKind::VhostUser => &mut self.vhost_user_latency,
        };
        let took_us = now.saturating_sub(done.started_us);
        match done.op {
            Op::Read => latencies.read.record(took_us),
            Op::Write { .. } | Op::Discard | Op::WriteZeroes => latencies.write.record(took_us),
            Op::Flush => latencies.flush.record(took_us),
        }
    }
}
