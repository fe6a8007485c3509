//! libCacheSim's oracleGeneral: packed little-endian records of 24 bytes, u32 time in seconds, u64 object, u32 size in
//! bytes, i64 number of the next access to the object (-1 for none).
//!
//! Every access is a read. In block traces the object is a block number, which stands for the number of bytes given
//! as key size, 512 by default. Objects that are hashes wrap around the address space, and stay distinct as long as
//! their low bits differ.
//!
//! Source: libCacheSim, `traceReader/customizedReader/oracle/oracleGeneralBin.h`.

use super::{SECOND_NS, access};
use crate::access::{Access, Op};
use crate::bytes::{u32_at, u64_at};
use crate::records::RecordParser;
use crate::volumes::Volumes;

const RECORD_BYTES: usize = 24;

pub(crate) struct Oracle {
    key_bytes: u64,
    name: String,
}

impl Oracle {
    /// `key_bytes` is the number of bytes that an object number stands for; the file is one volume.
    pub fn new(key_bytes: u32, name: String) -> Self {
        Oracle { key_bytes: u64::from(key_bytes), name }
    }

    /// Returns whether a file begins with such records: times do not decrease, sizes are plausible, and the next
    /// access to an object comes later, and goes to the same object if it is within the records seen.
    pub fn recognises(head: &[u8]) -> bool {
        let records: Vec<_> = head.chunks_exact(RECORD_BYTES).collect();
        let next = |at: usize| i64::from_le_bytes(records[at][16..24].try_into().unwrap_or([0; 8]));
        let is_next = |at: usize| match next(at) {
            -1 | i64::MAX => true,
            // Some files count accesses from 0, some from 1.
            next if next > at as i64 => [next, next - 1].iter().any(|next| {
                records.get(*next as usize).is_none_or(|r| u64_at(r, 4) == u64_at(records[at], 4))
            }),
            _ => false,
        };
        !records.is_empty()
            && records.is_sorted_by_key(|r| u32_at(r, 0))
            && records.iter().all(|r| u32_at(r, 12) <= 1 << 30)
            && (0..records.len()).all(is_next)
    }
}

impl RecordParser for Oracle {
    fn record_bytes(&self) -> usize {
        RECORD_BYTES
    }

    fn parse(
        &mut self,
        record: &[u8],
        volumes: &mut Volumes,
        into: &mut Vec<Access>,
    ) -> Result<usize, &'static str> {
        let volume = volumes.only(&self.name);
        let length = u64::from(u32_at(record, 12));
        // Room for the length at the end of the address space.
        let offset = u64_at(record, 4).wrapping_mul(self.key_bytes).min(u64::MAX - length);
        let time_ns = u64::from(u32_at(record, 0)) * SECOND_NS;
        into.push(access(time_ns, volume, Op::Read, offset, length).ok_or("an oracleGeneral record")?);
        Ok(0)
    }
}
