//! Converts accesses of a trace to requests to the core, and tracks requests in flight.

use std::collections::VecDeque;

use haversack_core::{MAX_REQUEST_SECTORS, Op as CoreOp, Request, RequestTag};
use haversack_model::{DiskNo, SECTOR_BYTES, SectorNo};
use haversack_trace::{Access, Op};

use crate::latency::IoKind;

/// The requests of an access: one, or several if the access is longer than the maximum request. Sectors
/// accessed in part are requested whole.
pub fn of(access: &Access) -> impl Iterator<Item = Request> + use<> {
    let (disk, bytes) = (DiskNo(access.volume.0 as u16), SECTOR_BYTES as u64);
    let (op, length) = match access.op {
        Op::Read => (CoreOp::Read, u64::from(access.length_bytes).max(1)),
        Op::Write => (CoreOp::Write { fua: false }, u64::from(access.length_bytes).max(1)),
        Op::Discard => (CoreOp::Discard, u64::from(access.length_bytes)),
        Op::Flush => (CoreOp::Flush, 0),
    };
    let flush = op == CoreOp::Flush;
    let (mut at, end) =
        (access.offset_bytes / bytes, access.offset_bytes.saturating_add(length).div_ceil(bytes));
    let mut more = flush || length > 0;
    std::iter::from_fn(move || {
        if !std::mem::take(&mut more) {
            return None;
        }
        let sectors = if flush { 0 } else { (end - at).min(u64::from(MAX_REQUEST_SECTORS)) };
        let sector = SectorNo(if flush { 0 } else { at });
        at += sectors;
        more = !flush && at < end;
        Some(Request { tag: RequestTag(0), disk, op, sector, sectors: sectors as u32 })
    })
}

/// A request with its arrival time.
#[derive(Clone, Copy)]
pub struct Arrived {
    /// The request; its tag is its place among those in flight.
    pub request: Request,
    /// Its arrival time.
    pub time_ns: u64,
}

/// The category under which a request's latency is counted.
pub fn kind(op: CoreOp) -> IoKind {
    match op {
        CoreOp::Read => IoKind::Read,
        CoreOp::Write { .. } => IoKind::Write,
        CoreOp::Flush | CoreOp::Discard | CoreOp::WriteZeroes => IoKind::Flush,
    }
}

/// Requests that the core has, and those that it did not accept yet.
#[derive(Default)]
pub struct Requests {
    slots: Vec<Option<Arrived>>,
    free: Vec<u32>,
    /// Not accepted yet, in the order of arrival.
    pub waiting: VecDeque<Arrived>,
}

impl Requests {
    /// Assigns a tag to a request.
    pub fn begin(&mut self, mut arrived: Arrived) -> Request {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            (self.slots.len() - 1) as u32
        });
        arrived.request.tag = RequestTag(u64::from(slot));
        self.slots[slot as usize] = Some(arrived);
        arrived.request
    }

    /// Removes a request that is done, or was not accepted.
    ///
    /// # Panics
    /// If it is not in flight.
    pub fn end(&mut self, tag: RequestTag) -> Arrived {
        let arrived = self.slots[tag.0 as usize].take().expect("a request in flight");
        self.free.push(tag.0 as u32);
        arrived
    }

    /// The core is gone: all requests wait again, those in flight first.
    pub fn restart(&mut self) {
        let mut all: Vec<_> = self.slots.drain(..).flatten().collect();
        self.free.clear();
        all.sort_by_key(|arrived| arrived.time_ns);
        all.into_iter().rev().for_each(|arrived| self.waiting.push_front(arrived));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sectors(access: Access) -> Vec<(u64, u32)> {
        of(&access).map(|request| (request.sector.0, request.sectors)).collect()
    }

    #[test]
    fn accesses_become_whole_sectors_in_pieces_that_fit() {
        let read = Access { offset_bytes: 1000, length_bytes: 100, ..Access::default() };
        assert_eq!(sectors(read), [(1, 2)]);
        assert_eq!(sectors(Access { length_bytes: 0, ..read }), [(1, 1)]);
        assert_eq!(sectors(Access { length_bytes: 0, op: Op::Discard, ..read }), []);
        assert_eq!(sectors(Access { length_bytes: 0, op: Op::Flush, ..read }), [(0, 0)]);
        let long = Access { offset_bytes: 0, length_bytes: (32 << 20) + 1, ..Access::default() };
        assert_eq!(sectors(long), [(0, 65_536), (65_536, 1)]);
    }
}
