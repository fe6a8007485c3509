//! Headers of replies, made without allocation. Data follows its header.

use super::request::{Command, Request};
use crate::constants as c;
use crate::errno::Errno;
use crate::wire::cut;

const CAPACITY: usize = 128;
const ERROR_BYTES: usize = 26;

/// The header of a reply, or a whole one without data. Dereferences to the bytes to send.
#[derive(Clone, Copy, Debug)]
pub struct ReplyHead {
    bytes: [u8; CAPACITY],
    length: u8,
}

impl std::ops::Deref for ReplyHead {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

impl ReplyHead {
    const fn new() -> Self {
        Self { bytes: [0; CAPACITY], length: 0 }
    }

    fn push(mut self, bytes: &[u8]) -> Self {
        let start = usize::from(self.length);
        self.bytes[start..start + bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len() as u8;
        self
    }

    fn simple(cookie: u64, error: u32) -> Self {
        Self::new()
            .push(&c::SIMPLE_REPLY_MAGIC.to_be_bytes())
            .push(&error.to_be_bytes())
            .push(&cookie.to_be_bytes())
    }

    pub(super) fn chunk(cookie: u64, kind: u16, done: bool, payload_bytes: u32) -> Self {
        let flags = if done { c::REPLY_FLAG_DONE } else { 0 };
        Self::new()
            .push(&c::STRUCTURED_REPLY_MAGIC.to_be_bytes())
            .push(&flags.to_be_bytes())
            .push(&kind.to_be_bytes())
            .push(&cookie.to_be_bytes())
            .push(&payload_bytes.to_be_bytes())
    }
}

/// Makes the replies of one session, simple or structured as negotiated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Replier {
    /// Whether structured replies were negotiated.
    pub structured: bool,
}

impl Replier {
    /// Replies that the request is done and has no data: a write, flush and so on, or an empty read.
    pub fn success(self, request: &Request) -> ReplyHead {
        match request.command {
            Command::Read | Command::BlockStatus if self.structured => self.done(request.cookie),
            _ => ReplyHead::simple(request.cookie, 0),
        }
    }

    /// Replies with the whole data of a read; it follows this header.
    pub fn read_data(self, request: &Request) -> ReplyHead {
        if self.structured {
            self.data_chunk(request.cookie, request.offset, request.length, true)
        } else {
            ReplyHead::simple(request.cookie, 0)
        }
    }

    /// Replies that the request failed. With structured replies the human-readable reason is included, cut to about
    /// 100 bytes. A structured error may follow chunks of data; after data of a simple reply, the only option is to
    /// close the connection.
    pub fn error(self, request: &Request, errno: Errno, reason: &str) -> ReplyHead {
        if !self.structured {
            return ReplyHead::simple(request.cookie, errno.number());
        }
        let reason = cut(reason, CAPACITY - ERROR_BYTES).as_bytes();
        ReplyHead::chunk(request.cookie, c::REPLY_TYPE_ERROR, true, 6 + reason.len() as u32)
            .push(&errno.number().to_be_bytes())
            .push(&(reason.len() as u16).to_be_bytes())
            .push(reason)
    }

    /// Returns the header of one chunk of a read's data; `length` bytes (at least 1) follow it. For structured
    /// replies.
    pub fn data_chunk(self, cookie: u64, offset: u64, length: u32, done: bool) -> ReplyHead {
        ReplyHead::chunk(cookie, c::REPLY_TYPE_OFFSET_DATA, done, length.saturating_add(8))
            .push(&offset.to_be_bytes())
    }

    /// Returns one chunk of a read that is zeroes, at least 1 byte. For structured replies.
    pub fn hole_chunk(self, cookie: u64, offset: u64, length: u32, done: bool) -> ReplyHead {
        ReplyHead::chunk(cookie, c::REPLY_TYPE_OFFSET_HOLE, done, 12)
            .push(&offset.to_be_bytes())
            .push(&length.to_be_bytes())
    }

    /// Ends a reply whose chunks were sent before. For structured replies.
    pub fn done(self, cookie: u64) -> ReplyHead {
        ReplyHead::chunk(cookie, c::REPLY_TYPE_NONE, true, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::CommandFlags;

    const COOKIE: u64 = 0x0102_0304_0506_0708;

    fn request(command: Command) -> Request {
        Request { flags: CommandFlags::NONE, command, cookie: COOKIE, offset: 0x1000, length: 0x200 }
    }

    #[test]
    fn simple_replies() {
        let simple = Replier { structured: false };
        let read = request(Command::Read);
        let good = [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
        assert_eq!((&*simple.read_data(&read), &*simple.success(&read)), (&good[..], &good[..]));
        let mut failed = good;
        failed[7] = 5;
        assert_eq!(*simple.error(&read, Errno::EIO, "unseen"), failed);
    }

    #[test]
    fn structured_replies() {
        let structured = Replier { structured: true };
        let read = request(Command::Read);
        let head = |kind: [u8; 2], length: u8| {
            let mut bytes = vec![0x66, 0x8e, 0x33, 0xef, 0, 1, kind[0], kind[1]];
            bytes.extend([1, 2, 3, 4, 5, 6, 7, 8, 0, 0, if kind == [0, 1] { 2 } else { 0 }, length]);
            bytes
        };
        assert_eq!(*structured.success(&read), head([0, 0], 0));
        assert_eq!(*structured.read_data(&read), [head([0, 1], 8), vec![0, 0, 0, 0, 0, 0, 0x10, 0]].concat());
        let hole = structured.hole_chunk(COOKIE, 0x1000, 0x200, true);
        assert_eq!(*hole, [head([0, 2], 12), vec![0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 2, 0]].concat());
        let failed = structured.error(&read, Errno::EIO, "why");
        assert_eq!(*failed, [head([0x80, 1], 9), vec![0, 0, 0, 5, 0, 3], b"why".to_vec()].concat());
        assert_eq!(structured.success(&request(Command::Write)).len(), 16);
        assert_eq!(structured.data_chunk(COOKIE, 0, 1, false)[5], 0);
    }

    #[test]
    fn long_reasons_are_cut() {
        let long = "é".repeat(400);
        let head = Replier { structured: true }.error(&request(Command::Read), Errno::EIO, &long);
        let text = str::from_utf8(&head[ERROR_BYTES..]).unwrap();
        assert!(long.starts_with(text) && text.len() > 90);
    }
}
