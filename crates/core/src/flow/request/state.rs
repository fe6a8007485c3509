//! The state of a request in flight.

use haversack_model::{BlockNo, DiskNo};

use crate::action::{Op, RequestError};
use crate::flow::base::Parent;
use crate::memory::RequestTag;

/// What a request waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Park {
    /// Nothing, or its own I/Os.
    #[default]
    None,
    /// The lock of a block, on which another I/O is in flight.
    Lock(BlockNo),
    /// Transfer frames.
    Frames,
    /// Staging frames.
    Staging,
    /// Dirty blocks to be cleaned.
    Dirty,
    /// The conditions for writing the origin past the cache.
    Around,
    /// A flush.
    Flush,
}

/// A request in flight.
pub(crate) struct RequestState {
    /// The caller's tag.
    pub tag: RequestTag,
    pub disk: DiskNo,
    pub op: Op,
    /// First sector, and number of sectors.
    pub sector: u64,
    pub sectors: u32,
    /// The next block to start, and the one after the last.
    pub next: u64,
    pub end: u64,
    /// I/Os in flight.
    pub outstanding: u32,
    /// The first error, with which the request will be completed.
    pub error: Option<RequestError>,
    /// What it waits for.
    pub park: Park,
    /// It is in the queue of requests to run.
    pub queued: bool,
    /// Parts of blocks to read again: block and sector mask.
    pub retries: Vec<(BlockNo, u8)>,
    /// The last block for which it requested a fetch from the previous owner.
    pub fetched: Option<BlockNo>,
    /// The sequential cut-off or the admission filter sends it past the cache.
    pub bypass: bool,
    /// It bypasses the cache up to this block, because too much is dirty.
    pub overflow_end: Option<u64>,
    /// The request of another disk that it is a part of.
    pub parent: Option<Parent>,
    /// It reads a copy of one block for another host.
    pub is_copy: bool,
    /// It continues an earlier one. Recorded only for admission filters that use this.
    pub continues: bool,
    /// Its writes past the cache are durable at the origin when they complete.
    pub durable: bool,
    /// The origin refused its zeroes: the rest of them is staged.
    pub stages_zeroes: bool,
    /// The last commit that must be clean before the request goes past the cache. Set at the first check.
    pub order_until: Option<u64>,
    /// The state of its window past the cache.
    pub phase: AroundPhase,
    /// Blocks from `next` on that the I/O past the cache covers.
    pub window: u64,
    /// Which of these blocks were cached: bit 0 is block `next`. Not used for zeroes.
    pub cached: u64,
}

impl Default for RequestState {
    fn default() -> Self {
        RequestState {
            tag: RequestTag(0),
            disk: DiskNo(0),
            op: Op::Flush,
            sector: 0,
            sectors: 0,
            next: 0,
            end: 0,
            outstanding: 0,
            error: None,
            park: Park::None,
            queued: false,
            retries: Vec::new(),
            fetched: None,
            bypass: false,
            overflow_end: None,
            parent: None,
            is_copy: false,
            continues: false,
            durable: false,
            stages_zeroes: false,
            order_until: None,
            phase: AroundPhase::Check,
            window: 0,
            cached: 0,
        }
    }
}

/// The state of a request's window.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum AroundPhase {
    /// Not started.
    #[default]
    Check,
    /// The origin is being written.
    Origin,
    /// The origin is being flushed, for zeroes over dirty blocks.
    Flush,
    /// Dirty entries are leaving the durable pages.
    Purge,
}
