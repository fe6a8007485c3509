//! The reply to BLOCK_STATUS: one chunk per metadata context, written into the caller's memory.

use super::reply::ReplyHead;
use super::request::Request;
use crate::constants as c;
use crate::export::MetaContext;
use crate::flags::CommandFlags;

const HEAD_BYTES: usize = 24;
const EXTENT_BYTES: usize = 8;
/// More would overload clients.
const MAX_EXTENTS: usize = 1 << 20;

/// A run of bytes with the same metadata.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Length in bytes.
    pub length: u32,
    /// The context's flags, such as [`STATE_ZERO`](c::STATE_ZERO) or [`STATE_DIRTY`](c::STATE_DIRTY).
    pub flags: u32,
}

/// Writes one context's chunk. Runs are added in order from the request's offset on; adjacent ones with the same flags
/// become one extent. What is beyond the request's range, what exceeds one extent if the client asked for one, and
/// what exceeds the memory is left out, as the protocol allows.
///
/// ```
/// use haversack_nbd::{Command, CommandFlags, Extent, ExtentWriter, MetaContext, Request, constants};
///
/// let request = Request {
///     flags: CommandFlags::NONE, command: Command::BlockStatus, cookie: 1, offset: 0, length: 8192,
/// };
/// let mut memory = [0; 4096];
/// let mut writer = ExtentWriter::new(&mut memory, &request, MetaContext::Cache).unwrap();
/// writer.push(Extent { length: 4096, flags: constants::STATE_CACHED });
/// writer.push(Extent { length: 4096, flags: 0 });
/// let length = writer.finish(true).unwrap();
/// assert_eq!(length, 24 + 2 * 8);
/// // memory[..length] is to be sent
/// ```
#[derive(Debug)]
pub struct ExtentWriter<'a> {
    memory: &'a mut [u8],
    cookie: u64,
    context: MetaContext,
    limit: usize,
    extents: usize,
    last: Extent,
    left: u32,
}

impl<'a> ExtentWriter<'a> {
    /// Makes a writer into `memory`, which must have room for at least one extent: 32 bytes. `None` if it has not.
    pub fn new(memory: &'a mut [u8], request: &Request, context: MetaContext) -> Option<Self> {
        let room = memory.len().checked_sub(HEAD_BYTES)? / EXTENT_BYTES;
        let limit = if request.flags.contains(CommandFlags::REQ_ONE) { 1 } else { MAX_EXTENTS };
        (room > 0).then_some(Self {
            memory,
            cookie: request.cookie,
            context,
            limit: limit.min(room),
            extents: 0,
            last: Extent { length: 0, flags: 0 },
            left: request.length,
        })
    }

    /// Adds a run. Returns whether more runs are useful.
    pub fn push(&mut self, run: Extent) -> bool {
        let length = run.length.min(self.left);
        if length > 0 && self.last.length > 0 && self.last.flags == run.flags {
            self.last.length += length;
        } else if length > 0 {
            if self.extents + usize::from(self.last.length > 0) >= self.limit {
                self.left = 0;
                return false;
            }
            self.write_last();
            self.last = Extent { length, flags: run.flags };
        }
        self.left -= length;
        self.left > 0
    }

    /// Ends the chunk; `done` if it is the last of the reply. Returns the length of what was written, or `None` if
    /// there was no run, which is invalid in a reply.
    pub fn finish(mut self, done: bool) -> Option<usize> {
        self.write_last();
        if self.extents == 0 {
            return None;
        }
        let length = HEAD_BYTES + self.extents * EXTENT_BYTES;
        let payload = (length - HEAD_BYTES + 4) as u32;
        let head = ReplyHead::chunk(self.cookie, c::REPLY_TYPE_BLOCK_STATUS, done, payload);
        self.memory[..HEAD_BYTES - 4].copy_from_slice(&head);
        self.memory[HEAD_BYTES - 4..HEAD_BYTES].copy_from_slice(&self.context.id().to_be_bytes());
        Some(length)
    }

    fn write_last(&mut self) {
        if self.last.length > 0 {
            let at = HEAD_BYTES + self.extents * EXTENT_BYTES;
            self.memory[at..at + 4].copy_from_slice(&self.last.length.to_be_bytes());
            self.memory[at + 4..at + 8].copy_from_slice(&self.last.flags.to_be_bytes());
            self.extents += 1;
            self.last.length = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transmit::Command;

    fn request(flags: CommandFlags) -> Request {
        Request { flags, command: Command::BlockStatus, cookie: 9, offset: 0, length: 1000 }
    }

    fn written(memory: &mut [u8], flags: CommandFlags, runs: &[(u32, u32)]) -> Option<Vec<(u32, u32)>> {
        let mut writer = ExtentWriter::new(memory, &request(flags), MetaContext::Cache)?;
        for &(length, flags) in runs {
            writer.push(Extent { length, flags });
        }
        let length = writer.finish(true)?;
        let number = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().unwrap());
        assert_eq!(number(&memory[16..20]) as usize, length - 20);
        assert_eq!(number(&memory[20..24]), 2);
        Some(
            memory[24..length].chunks(8).map(|extent| (number(&extent[..4]), number(&extent[4..]))).collect(),
        )
    }

    #[test]
    fn neighbours_merge_and_the_range_ends_the_reply() {
        let mut memory = [0; 100];
        let runs = [(100, 1), (100, 1), (0, 2), (300, 3), (900, 0), (5, 1)];
        let expected = Some(vec![(200, 1), (300, 3), (500, 0)]);
        assert_eq!(written(&mut memory, CommandFlags::NONE, &runs), expected);
    }

    #[test]
    fn one_extent_is_one() {
        let mut memory = [0; 100];
        let runs = [(100, 1), (100, 1), (300, 3), (400, 1)];
        assert_eq!(written(&mut memory, CommandFlags::REQ_ONE, &runs), Some(vec![(200, 1)]));
        assert_eq!(written(&mut memory[..39], CommandFlags::NONE, &runs), Some(vec![(200, 1)]));
    }

    #[test]
    fn too_little_is_none() {
        assert_eq!(written(&mut [0; 31], CommandFlags::NONE, &[(1, 1)]), None);
        assert_eq!(written(&mut [0; 32], CommandFlags::NONE, &[]), None);
    }
}
