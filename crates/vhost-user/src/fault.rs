//! Faults of a virtqueue.

/// A queue whose driver broke the rules, or whose memory does not match them. It serves no further requests until the
/// driver resets it; other queues and disks are not affected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("queue {queue} is broken: {fault}; the guest must reset the device")]
pub struct Broken {
    /// Which queue of the disk.
    pub queue: u16,
    /// What was found.
    pub fault: Fault,
}

/// An invalid state that was found in a virtqueue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The queue's size.
    #[error("its size is {0}, not a power of two of at most {max}", max = crate::queue::MAX_QUEUE_SIZE)]
    Size(u16),
    /// A ring is not within one region of guest memory, or not aligned.
    #[error(
        "its {part} at user address {address:#x} is not aligned or not within one region of shared memory; QEMU must share the guest's memory (share=on)"
    )]
    RingAddress {
        /// Which of the three parts.
        part: &'static str,
        /// Where the front end says it is.
        address: u64,
    },
    /// More buffers were made available than the queue has.
    #[error("available index {found} is more than the queue's size ahead of {expected}")]
    AvailableIndex {
        /// The index in guest memory.
        found: u16,
        /// The next index to be taken.
        expected: u16,
    },
    /// A descriptor index at or beyond the table's end.
    #[error("descriptor {index} is beyond the table of {table}")]
    DescriptorIndex {
        /// The index.
        index: u16,
        /// Entries in the table.
        table: u16,
    },
    /// A head that is in flight was made available again.
    #[error("descriptor {0} was made available while it is in flight")]
    InFlight(u16),
    /// A chain has more descriptors than its table.
    #[error("the chain from descriptor {0} has a loop")]
    Loop(u16),
    /// A chain has more pieces than any request needs.
    #[error("the chain from descriptor {0} has too many buffers")]
    TooLong(u16),
    /// A buffer without bytes.
    #[error("the chain from descriptor {0} has a buffer of zero bytes")]
    ZeroLength(u16),
    /// A buffer outside guest memory.
    #[error("buffer of {len} bytes at guest address {address:#x} is not in guest memory")]
    Unmapped {
        /// Where.
        address: u64,
        /// Its length.
        len: u32,
    },
    /// An indirect table that is nested, continued, not negotiated, or of an invalid size.
    #[error("descriptor {head} has a wrong indirect table of {len} bytes")]
    Indirect {
        /// First descriptor of the chain.
        head: u16,
        /// The table's length.
        len: u32,
    },
    /// A device-readable buffer after a device-writable one.
    #[error("the chain from descriptor {0} has a readable buffer after a writable one")]
    Order(u16),
    /// The chain has no room for a request's header or status.
    #[error("the chain from descriptor {0} has no header of 16 bytes or no status byte")]
    Frame(u16),
    /// Shared memory in use can no longer be accessed.
    #[error("the {0} is lost: its file was cut short, or the memory has failed")]
    Lost(&'static str),
    /// The in-flight region has another layout, or does not belong to this ring.
    #[error("the in-flight region does not fit: {what} is {found}, expected {expected}")]
    InflightRegion {
        /// Which field.
        what: &'static str,
        /// Its value.
        found: u64,
        /// The expected value or maximum.
        expected: u64,
    },
}
