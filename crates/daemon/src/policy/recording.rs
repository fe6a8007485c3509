//! Streams a disk's requests to a client that asked for a trace: rows in the common form.
//!
//! Invariants
//! - Requests for which a slow reader leaves no room are counted, not kept: the daemon's memory does not grow
//!   with them.
//! - The last row says how many requests are missing from the trace, if any.

use std::fmt::Write;
use std::io;

use axum::body::Bytes;
use haversack_control::trace::accesses;
use haversack_core::Records;
use haversack_model::Micros;
use haversack_trace::VolumeNo;
use http_body_util::channel::{Channel, Sender};
use hyper::body::Frame;

/// The most pieces that wait for a slow reader.
const PIECES: usize = 64;
/// The heading of the common form.
const HEADING: &str = "timestamp_ns,volume,op,offset_bytes,length_bytes\n";

/// The reader's side.
pub type Rows = Channel<Bytes, io::Error>;

/// See the module documentation.
pub struct Recording {
    sender: Sender<Bytes, io::Error>,
    from_us: Micros,
    until_us: Micros,
    lost: u64,
}

impl Recording {
    /// Makes a recording that starts now and ends at a time on the reactors' clock.
    pub fn new(from_us: Micros, until_us: Micros) -> (Recording, Rows) {
        let (sender, rows) = Channel::new(PIECES);
        let mut recording = Recording { sender, from_us, until_us, lost: 0 };
        recording.send(HEADING.into(), 0);
        (recording, rows)
    }

    /// Returns when it ends.
    pub fn until_us(&self) -> Micros {
        self.until_us
    }

    /// Sends what was recorded; times count from the recording's start. Returns false when nobody reads any
    /// more.
    pub fn note(&mut self, disk: &str, records: &Records) -> bool {
        self.lost += records.lost();
        let (mut text, mut rows) = (String::new(), 0);
        let (from_ns, until_ns) = (self.from_us.saturating_mul(1000), self.until_us.saturating_mul(1000));
        for access in accesses(records, VolumeNo(0)).filter(|access| access.time_ns < until_ns) {
            // A mark can be up to a millisecond older than the records after it.
            let time_ns = access.time_ns.saturating_sub(from_ns);
            let (op, offset, length) = (access.op.letter(), access.offset_bytes, access.length_bytes);
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{time_ns},{disk},{op},{offset},{length}");
            rows += 1;
        }
        self.send(text, rows)
    }

    /// Sends the last row.
    pub fn finish(mut self) {
        if self.lost > 0 {
            let lost = format!("#lost,{}\n", self.lost);
            self.send(lost, 0);
        }
    }

    /// Sends a piece. An empty piece is sent too: the reader does not see it, but it shows whether there is a
    /// reader.
    fn send(&mut self, text: String, rows: u64) -> bool {
        if self.sender.try_send(Frame::data(text.into())).is_ok() {
            return true;
        }
        self.lost += rows;
        // The channel is full, not closed.
        self.sender.capacity() == 0
    }
}
