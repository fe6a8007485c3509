//! One request of a trace.

use std::ops::RangeInclusive;

/// A volume's index in its source's list of volumes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct VolumeNo(pub u32);

/// What a request does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Op {
    /// A read.
    #[default]
    Read,
    /// A write.
    Write,
    /// A flush; its offset and length have no meaning.
    Flush,
    /// A discard.
    Discard,
}

impl Op {
    /// The letter that stands for it in text: `R`, `W`, `F` or `D`.
    pub fn letter(self) -> char {
        match self {
            Op::Read => 'R',
            Op::Write => 'W',
            Op::Flush => 'F',
            Op::Discard => 'D',
        }
    }
}

/// One request of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Access {
    /// When it was issued: nanoseconds on the trace's clock. Traces without time count requests instead.
    pub time_ns: u64,
    /// Where it begins.
    pub offset_bytes: u64,
    /// How long it is; 0 for a flush.
    pub length_bytes: u32,
    /// Which volume it goes to.
    pub volume: VolumeNo,
    /// What it does.
    pub op: Op,
}

impl Access {
    /// The blocks that it touches, on a grid of `block_bytes`. A request without length touches the block at its
    /// offset.
    pub fn blocks(&self, block_bytes: u64) -> RangeInclusive<u64> {
        let last = self.offset_bytes.saturating_add(u64::from(self.length_bytes).saturating_sub(1));
        self.offset_bytes / block_bytes..=last / block_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_a_misaligned_request() {
        let access = Access { offset_bytes: 4095, length_bytes: 4098, ..Access::default() };
        assert_eq!(access.blocks(4096), 0..=2);
        assert_eq!(Access { length_bytes: 1, ..access }.blocks(4096), 0..=0);
        assert_eq!(Access { length_bytes: 0, ..access }.blocks(4096), 0..=0);
    }
}
