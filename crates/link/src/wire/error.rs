//! Why bytes are not a valid frame, or a frame cannot be sent.

use super::{MOST_BODY_BYTES, MOST_ENTRIES};

/// A frame that breaks the rules of the protocol.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WireError {
    /// The body is longer than any frame's.
    #[error("a frame of {0} bytes: expected at most {MOST_BODY_BYTES}")]
    TooLong(usize),
    /// The checksum does not match.
    #[error("a frame's checksum is {found:#010x}: expected {expected:#010x}")]
    Checksum {
        /// The checksum in the frame.
        found: u32,
        /// The checksum of its bytes.
        expected: u32,
    },
    /// The kind is unknown.
    #[error("a frame of unknown kind {0}")]
    Kind(u8),
    /// The frame ends too early.
    #[error("a frame ends in the middle of a field")]
    Short,
    /// There are bytes after the frame's last field.
    #[error("a frame has {0} bytes too many")]
    Trailing(usize),
    /// A field has an invalid value.
    #[error("a frame's field '{field}' is {value}")]
    Value {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// A list is too long.
    #[error("a list of {0} entries in a frame: expected at most {MOST_ENTRIES}")]
    Entries(usize),
    /// Data or text is too short or too long.
    #[error("'{field}' of {found} bytes in a frame: expected {expected}")]
    Bytes {
        /// The field.
        field: &'static str,
        /// Its length.
        found: usize,
        /// The valid lengths.
        expected: &'static str,
    },
    /// Packed frames cannot be unpacked.
    #[error("a packed frame cannot be unpacked: {0}")]
    Packed(String),
    /// Hosts are not in ascending order, each once.
    #[error("a list of hosts in a frame is not in ascending order")]
    Order,
}
