//! Reading and writing little-endian fields.

/// What is wrong with bytes of another host.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Malformed {
    /// They end too early.
    #[error("a frame ends in the middle of a field")]
    TooShort,
    /// There are more than expected.
    #[error("a frame has {0} bytes after its last field")]
    TooLong(usize),
    /// A field has a value that it cannot have.
    #[error("a frame has {value} as {field}")]
    Value {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
}

/// Reads fields.
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    /// Takes the next bytes.
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Malformed::TooShort)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        Ok(self.take(N)?.try_into().expect("that many were taken"))
    }

    pub fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.array::<1>()?[0])
    }

    pub fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    pub fn id(&mut self) -> Result<[u8; 16], Malformed> {
        self.array()
    }

    /// Reads a byte that is 0 or 1.
    pub fn flag(&mut self, field: &'static str) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            value => Err(Malformed::Value { field, value: value.into() }),
        }
    }

    /// Reads a count of at most `most`.
    pub fn count(&mut self, field: &'static str, most: usize) -> Result<usize, Malformed> {
        let value = self.u32()?;
        if value as usize > most {
            return Err(Malformed::Value { field, value: value.into() });
        }
        Ok(value as usize)
    }

    /// Checks that nothing is left.
    pub fn end(self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed::TooLong(self.0.len())) }
    }
}

/// Appends fields.
pub trait Put {
    fn put(&mut self, bytes: &[u8]);

    fn put_u8(&mut self, value: u8) {
        self.put(&[value]);
    }

    fn put_u32(&mut self, value: u32) {
        self.put(&value.to_le_bytes());
    }

    fn put_u64(&mut self, value: u64) {
        self.put(&value.to_le_bytes());
    }
}

impl Put for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}
