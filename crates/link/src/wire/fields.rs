//! Little-endian fields, one after the other.

use haversack_model::{BLOCK_BYTES, BlockNo, DiskId};

use super::{MOST_ENTRIES, WireError};

/// The fields of a body.
#[derive(Debug)]
pub(super) struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let (head, rest) = self.0.split_first_chunk().ok_or(WireError::Short)?;
        self.0 = rest;
        Ok(*head)
    }

    pub fn u8(&mut self) -> Result<u8, WireError> {
        self.array().map(|[byte]| byte)
    }

    pub fn u32(&mut self) -> Result<u32, WireError> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Result<u64, WireError> {
        self.array().map(u64::from_le_bytes)
    }

    pub fn disk(&mut self) -> Result<DiskId, WireError> {
        self.array().map(DiskId)
    }

    pub fn block(&mut self) -> Result<BlockNo, WireError> {
        self.u64().map(BlockNo)
    }

    /// Returns a byte that is 0 or 1.
    pub fn flag(&mut self, field: &'static str) -> Result<bool, WireError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(WireError::Value { field, value: other.into() }),
        }
    }

    /// Returns the result of `read` if a flag is set.
    pub fn option<T>(
        &mut self,
        field: &'static str,
        read: impl FnOnce(&mut Self) -> Result<T, WireError>,
    ) -> Result<Option<T>, WireError> {
        if self.flag(field)? { read(self).map(Some) } else { Ok(None) }
    }

    /// Returns a list with entries of `entry_bytes` bytes. No memory is taken for missing entries.
    pub fn list<T, L: FromIterator<T>>(
        &mut self,
        entry_bytes: usize,
        mut read: impl FnMut(&mut Self) -> Result<T, WireError>,
    ) -> Result<L, WireError> {
        let entries = self.u32()? as usize;
        if entries > MOST_ENTRIES {
            return Err(WireError::Entries(entries));
        }
        if self.0.len() < entries * entry_bytes {
            return Err(WireError::Short);
        }
        (0..entries).map(|_| read(self)).collect()
    }

    /// Returns all that is left.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    /// Returns the rest, which must be one block.
    pub fn data(&mut self) -> Result<Vec<u8>, WireError> {
        let data = self.rest();
        check_data(data)?;
        Ok(data.to_vec())
    }

    /// Checks that nothing is left.
    pub fn end(self) -> Result<(), WireError> {
        match self.0.len() {
            0 => Ok(()),
            more => Err(WireError::Trailing(more)),
        }
    }
}

/// Checks that data is one block.
pub(super) fn check_data(data: &[u8]) -> Result<(), WireError> {
    match data.len() {
        BLOCK_BYTES => Ok(()),
        found => Err(WireError::Bytes { field: "data", found, expected: "4096" }),
    }
}

/// Checks that a list is short enough for a frame.
pub(super) fn check_entries(entries: usize) -> Result<(), WireError> {
    if entries > MOST_ENTRIES { Err(WireError::Entries(entries)) } else { Ok(()) }
}

/// Appends fields to a body.
#[derive(Debug)]
pub(super) struct Writer<'a>(pub &'a mut Vec<u8>);

impl Writer<'_> {
    pub fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    pub fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Appends a flag, and the value if there is one.
    pub fn option<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        self.u8(value.is_some().into());
        if let Some(value) = value {
            write(self, value);
        }
    }

    /// Appends the length of a list, then its entries.
    pub fn list<T>(
        &mut self,
        entries: impl ExactSizeIterator<Item = T>,
        mut write: impl FnMut(&mut Self, T),
    ) {
        self.u32(entries.len() as u32);
        for entry in entries {
            write(self, entry);
        }
    }
}
