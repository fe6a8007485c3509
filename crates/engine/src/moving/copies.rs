//! Buffers for what a moving disk reads from or gives to the core outside of its guest's requests: copies of blocks for
//! another host, copies from there, and reads on behalf of a host whose guest has not come yet.
//!
//! The core names such a buffer by a tag, like a client's request; its client is [`COPIES`].
//!
//! Invariant
//! - A buffer stays until the core has reported the end of what it is for.

use haversack_core::{Copied, RequestError, RequestTag};
use haversack_migrate::CopyTicket;
use haversack_model::{DiskId, HostId};

use crate::front::Tag;

/// The client of these buffers in a tag: no client of a front end has this number.
pub(crate) const COPIES: u32 = (1 << 22) - 1;

/// What a buffer is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// A copy of a block is read for another host.
    Read { disk: DiskId, ticket: CopyTicket, copied: Option<Copied> },
    /// A copy from another host is given to the core, in one call.
    Take,
    /// Sectors are read for a host that asked.
    Observe { disk: DiskId, from: HostId, question: u64 },
    /// A block is read that is lent to another host.
    Lent { ticket: u64 },
}

/// A read that has ended.
pub(crate) struct Done {
    pub purpose: Purpose,
    pub bytes: Vec<u8>,
    pub result: Result<(), RequestError>,
}

/// See the module documentation.
#[derive(Default)]
pub(crate) struct Copies {
    slots: Vec<Option<(Purpose, Vec<u8>)>>,
    done: Vec<Done>,
}

impl Copies {
    /// Keeps a buffer, and returns its tag.
    pub fn put(&mut self, purpose: Purpose, bytes: Vec<u8>) -> RequestTag {
        let slot = self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len());
        if slot == self.slots.len() {
            self.slots.push(None);
        }
        self.slots[slot] = Some((purpose, bytes));
        Tag::refused(COPIES, slot as u32).encode()
    }

    /// Drops a buffer that the core has not taken, or no longer needs.
    pub fn drop_buffer(&mut self, tag: RequestTag) {
        self.slots[Tag::decode(tag).slot as usize] = None;
    }

    /// Records which contents a copy that is being read will have.
    pub fn reads(&mut self, tag: RequestTag, what: Copied) {
        if let Some((Purpose::Read { copied, .. }, _)) = &mut self.slots[Tag::decode(tag).slot as usize] {
            *copied = Some(what);
        }
    }

    /// Returns how many bytes of a disk are being read for a host; `None` if this question is already being read.
    pub fn observed_bytes(&self, disk: DiskId, host: HostId, question: u64) -> Option<usize> {
        let mut bytes = 0;
        for (purpose, buffer) in self.slots.iter().flatten() {
            let Purpose::Observe { disk: of, from, question: other } = purpose else { continue };
            if (*of, *from) != (disk, host) {
                continue;
            }
            if *other == question {
                return None;
            }
            bytes += buffer.len();
        }
        Some(bytes)
    }

    /// Records that the core has ended a read.
    pub fn completed(&mut self, slot: u32, result: Result<(), RequestError>) {
        let (purpose, bytes) = self.slots[slot as usize].take().expect("a read ends once");
        self.done.push(Done { purpose, bytes, result });
    }

    /// Returns the reads that have ended.
    pub fn take_done(&mut self) -> Vec<Done> {
        std::mem::take(&mut self.done)
    }

    /// Copies from a buffer.
    pub fn take(&self, slot: u32, at: usize, into: &mut [u8]) {
        let (_, bytes) = self.slots[slot as usize].as_ref().expect("a buffer stays while it is used");
        into.copy_from_slice(&bytes[at..at + into.len()]);
    }

    /// Copies into a buffer.
    pub fn give(&mut self, slot: u32, at: usize, from: &[u8]) {
        let (_, bytes) = self.slots[slot as usize].as_mut().expect("a buffer stays while it is used");
        bytes[at..at + from.len()].copy_from_slice(from);
    }
}
