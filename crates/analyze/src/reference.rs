//! References: one access to one block, packed into eight bytes.

pub(crate) use haversack_model::place::{mix, spread};
use haversack_trace::{Access, Op};

use crate::error::AnalyzeError;
use crate::table::KEY_BITS;

/// The effect of a reference on its block.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Kind {
    /// Reads it.
    Read = 0,
    /// Writes it.
    Write = 1,
    /// The block counts as never accessed.
    Discard = 2,
}

/// One access to one block. The key identifies a block among those of all volumes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reference(u64);

/// Bits of a key that identify a block in its volume: those above are the volume.
pub(crate) const BLOCK_BITS: u32 = 42;
/// The most volumes that keys can distinguish.
pub(crate) const VOLUMES: u64 = 1 << (KEY_BITS - BLOCK_BITS);

impl Reference {
    /// Makes a reference to the block of a key below 2^60.
    pub fn new(key: u64, kind: Kind) -> Reference {
        debug_assert!(key >> KEY_BITS == 0, "keys have {KEY_BITS} bits");
        Reference(key << 2 | kind as u64)
    }

    /// Returns the block.
    pub fn key(self) -> u64 {
        self.0 >> 2
    }

    /// Returns the operation.
    pub fn kind(self) -> Kind {
        match self.0 & 3 {
            0 => Kind::Read,
            1 => Kind::Write,
            _ => Kind::Discard,
        }
    }
}

/// Returns the volume of a block.
#[inline]
pub(crate) fn volume_of(key: u64) -> usize {
    (key >> BLOCK_BITS) as usize
}

/// Returns the references of an access; none for a flush.
///
/// # Errors
/// `TooFarOut` or `TooManyVolumes` if it has no key.
pub(crate) fn split(
    access: &Access,
    block_bytes: u64,
) -> Result<impl Iterator<Item = Reference>, AnalyzeError> {
    let volume = u64::from(access.volume.0);
    if volume >= VOLUMES {
        return Err(AnalyzeError::TooManyVolumes { limit: VOLUMES });
    }
    let blocks = access.blocks(block_bytes);
    let (mut first, mut end) = (*blocks.start(), *blocks.end() + 1);
    let kind = match access.op {
        Op::Read => Kind::Read,
        Op::Write => Kind::Write,
        Op::Discard | Op::Flush => Kind::Discard,
    };
    if access.op == Op::Flush {
        end = first;
    }
    if access.op == Op::Discard {
        // A block that is discarded in part is kept.
        first = access.offset_bytes.div_ceil(block_bytes);
        end = access.offset_bytes.saturating_add(u64::from(access.length_bytes)) / block_bytes;
    }
    if first < end && (end - 1) >> BLOCK_BITS != 0 {
        return Err(AnalyzeError::TooFarOut {
            volume: volume.to_string(),
            offset_bytes: access.offset_bytes,
            length_bytes: access.length_bytes,
            block_bytes,
            limit_bytes: block_bytes << BLOCK_BITS,
        });
    }
    let base = volume << BLOCK_BITS;
    Ok((first..end).map(move |block| Reference::new(base | block, kind)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use haversack_trace::VolumeNo;

    #[test]
    fn an_access_makes_a_reference_a_block() {
        let access =
            Access { offset_bytes: 4095, length_bytes: 4098, volume: VolumeNo(3), ..Access::default() };
        let references: Vec<_> = split(&access, 4096).unwrap().collect();
        let keys = references.iter().map(|r| (r.key() >> BLOCK_BITS, r.key() & 0xff, r.kind()));
        assert!(keys.eq([(3, 0, Kind::Read), (3, 1, Kind::Read), (3, 2, Kind::Read)]));
        let count = |op| split(&Access { op, ..access }, 4096).unwrap().count();
        assert_eq!(count(Op::Discard), 1, "only whole blocks are discarded");
        assert_eq!(count(Op::Flush), 0, "a flush makes none");
    }

    #[test]
    fn what_keys_cannot_hold_is_an_error() {
        let far = Access { offset_bytes: u64::MAX - 1, length_bytes: 4096, ..Access::default() };
        let many = Access { volume: VolumeNo(u32::MAX), ..Access::default() };
        assert!(matches!(split(&far, 4096).map(drop), Err(AnalyzeError::TooFarOut { .. })));
        assert!(matches!(split(&many, 4096).map(drop), Err(AnalyzeError::TooManyVolumes { .. })));
    }
}
