//! The vhost-user messages that a block device supports, as bytes (QEMU's `docs/interop/vhost-user.rst`).
//!
//! No I/O here. Every length is checked before a field is read; numbers are in the machine's byte order, as specified
//! in the protocol.

use crate::inflight::InflightShape;
use crate::memory::RegionDescription;
use crate::ring::RingAddresses;

/// Bytes before a message's body: request, flags, size.
pub(crate) const HEADER_BYTES: usize = 12;
/// The longest body accepted; the longest valid one is a memory table.
pub(crate) const MAX_BODY_BYTES: usize = 4096;
/// The most file descriptors that a message may carry: one for each region of a memory table.
pub(crate) const MAX_FILES: usize = 32;

const VERSION: u32 = 1;
const VERSION_MASK: u32 = 3;
const FLAG_REPLY: u32 = 4;
const FLAG_NEED_REPLY: u32 = 8;

/// The back-end message that says the configuration space has changed.
const BACKEND_CONFIG_CHANGE: u32 = 2;
const NO_FILE: u64 = 0x100;

/// A message's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub request: u32,
    pub need_reply: bool,
    pub body_bytes: usize,
}

/// A message that cannot be parsed. The connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// The header's flags.
    #[error("message {request} has flags {flags:#x}, expected version 1 of the protocol and no reply")]
    Flags {
        /// Its number.
        request: u32,
        /// Its flags.
        flags: u32,
    },
    /// The header's size.
    #[error("message {request} has {found} bytes, expected at most {MAX_BODY_BYTES}")]
    TooLong {
        /// Its number.
        request: u32,
        /// Its size.
        found: u32,
    },
    /// The body's length does not match the message.
    #[error("message {request} has a body of {found} bytes, which does not fit it")]
    Length {
        /// Its number.
        request: u32,
        /// Its size.
        found: usize,
    },
    /// A field has an invalid value.
    #[error("message {request} has {found:#x} as its {field}")]
    Field {
        /// Its number.
        request: u32,
        /// Which field.
        field: &'static str,
        /// Its value.
        found: u64,
    },
    /// A message that a block device does not support.
    #[error("message {0} is not supported by this device")]
    Unknown(u32),
    /// More or fewer file descriptors than the message needs.
    #[error("message {request} came with {found} file descriptors, expected {expected}")]
    Files {
        /// Its number.
        request: u32,
        /// How many were sent.
        found: usize,
        /// How many are needed.
        expected: usize,
    },
}

/// A request of the front end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    GetFeatures,
    SetFeatures(u64),
    SetOwner,
    ResetOwner,
    SetMemoryTable(Vec<RegionDescription>),
    SetLogBase { size_bytes: u64, file_offset: u64 },
    SetLogFile,
    SetRingSize { index: u32, size: u32 },
    SetRingAddresses { index: u32, addresses: RingAddresses },
    SetRingBase { index: u32, base: u32 },
    GetRingBase { index: u32 },
    SetRingKick { index: u8, file: bool },
    SetRingCall { index: u8, file: bool },
    SetRingError { index: u8, file: bool },
    GetProtocolFeatures,
    SetProtocolFeatures(u64),
    GetQueueNumber,
    SetRingEnable { index: u32, enable: bool },
    SetBackendChannel,
    GetConfig { offset: u32, size: u32, flags: u32 },
    SetConfig { offset: u32, bytes: Vec<u8>, migration: bool },
    GetInflight(InflightShape),
    SetInflight(InflightShape),
    ResetDevice,
    GetMaxMemorySlots,
    AddMemoryRegion(RegionDescription),
    RemoveMemoryRegion(RegionDescription),
}

impl Header {
    pub fn decode(bytes: [u8; HEADER_BYTES]) -> Result<Self, MessageError> {
        let mut fields = Fields { request: 0, all: &bytes, left: &bytes };
        let (request, flags, size) = (fields.u32()?, fields.u32()?, fields.u32()?);
        if flags & VERSION_MASK != VERSION || flags & !(VERSION_MASK | FLAG_NEED_REPLY) != 0 {
            return Err(MessageError::Flags { request, flags });
        }
        let body_bytes = size as usize;
        if body_bytes > MAX_BODY_BYTES {
            return Err(MessageError::TooLong { request, found: size });
        }
        Ok(Self { request, need_reply: flags & FLAG_NEED_REPLY != 0, body_bytes })
    }
}

/// Encodes a whole reply to message `request`.
pub(crate) fn encode_reply(request: u32, body: &[u8]) -> Vec<u8> {
    encode(request, VERSION | FLAG_REPLY, body)
}

/// Encodes the notification that the configuration space has changed, for the back-end channel; no reply is requested.
pub(crate) fn encode_config_change() -> Vec<u8> {
    encode(BACKEND_CONFIG_CHANGE, VERSION, &[])
}

fn encode(request: u32, flags: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len());
    for word in [request, flags, body.len() as u32] {
        bytes.extend_from_slice(&word.to_ne_bytes());
    }
    bytes.extend_from_slice(body);
    bytes
}

impl Request {
    pub fn decode(request: u32, body: &[u8]) -> Result<Self, MessageError> {
        let mut fields = Fields { request, all: body, left: body };
        let decoded = match request {
            1 => Self::GetFeatures,
            2 => Self::SetFeatures(fields.u64()?),
            3 => Self::SetOwner,
            4 => Self::ResetOwner,
            5 => Self::SetMemoryTable(fields.memory_table()?),
            6 => Self::SetLogBase { size_bytes: fields.u64()?, file_offset: fields.u64()? },
            7 => Self::SetLogFile,
            8 => Self::SetRingSize { index: fields.u32()?, size: fields.u32()? },
            9 => fields.ring_addresses()?,
            10 => Self::SetRingBase { index: fields.u32()?, base: fields.u32()? },
            11 => {
                let (index, _) = (fields.u32()?, fields.u32()?);
                Self::GetRingBase { index }
            }
            12 => fields.ring_file(|index, file| Self::SetRingKick { index, file })?,
            13 => fields.ring_file(|index, file| Self::SetRingCall { index, file })?,
            14 => fields.ring_file(|index, file| Self::SetRingError { index, file })?,
            15 => Self::GetProtocolFeatures,
            16 => Self::SetProtocolFeatures(fields.u64()?),
            17 => Self::GetQueueNumber,
            18 => {
                let (index, enable) = (fields.u32()?, fields.u32()?);
                fields.check("enable flag", enable.into(), enable <= 1)?;
                Self::SetRingEnable { index, enable: enable == 1 }
            }
            21 => Self::SetBackendChannel,
            24 => {
                let (offset, size, flags) = fields.config()?;
                Self::GetConfig { offset, size, flags }
            }
            25 => {
                let (offset, _, flags) = fields.config()?;
                let bytes = std::mem::take(&mut fields.left).to_vec();
                Self::SetConfig { offset, bytes, migration: flags != 0 }
            }
            31 => Self::GetInflight(fields.inflight()?),
            32 => Self::SetInflight(fields.inflight()?),
            34 => Self::ResetDevice,
            36 => Self::GetMaxMemorySlots,
            37 => Self::AddMemoryRegion(fields.single_region()?),
            38 => Self::RemoveMemoryRegion(fields.single_region()?),
            other => return Err(MessageError::Unknown(other)),
        };
        // The content of a configuration-space read request is ignored.
        if !fields.left.is_empty() && !matches!(decoded, Self::GetConfig { .. }) {
            return Err(fields.wrong_length());
        }
        Ok(decoded)
    }

    /// Returns how many file descriptors are sent with it; `None`: any are accepted and closed.
    pub fn files(&self) -> Option<usize> {
        match self {
            Self::SetMemoryTable(regions) => Some(regions.len()),
            Self::SetRingKick { file, .. }
            | Self::SetRingCall { file, .. }
            | Self::SetRingError { file, .. } => Some(usize::from(*file)),
            Self::SetLogBase { .. }
            | Self::SetLogFile
            | Self::SetBackendChannel
            | Self::SetInflight(_)
            | Self::AddMemoryRegion(_) => Some(1),
            Self::RemoveMemoryRegion(_) => None,
            _ => Some(0),
        }
    }
}

/// A parser of a body's fields.
struct Fields<'a> {
    request: u32,
    all: &'a [u8],
    left: &'a [u8],
}

impl Fields<'_> {
    fn wrong_length(&self) -> MessageError {
        MessageError::Length { request: self.request, found: self.all.len() }
    }

    fn check(&self, field: &'static str, found: u64, good: bool) -> Result<(), MessageError> {
        if good { Ok(()) } else { Err(MessageError::Field { request: self.request, field, found }) }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], MessageError> {
        let (first, left) = self.left.split_first_chunk().ok_or_else(|| self.wrong_length())?;
        self.left = left;
        Ok(*first)
    }

    fn u16(&mut self) -> Result<u16, MessageError> {
        self.array().map(u16::from_ne_bytes)
    }

    fn u32(&mut self) -> Result<u32, MessageError> {
        self.array().map(u32::from_ne_bytes)
    }

    fn u64(&mut self) -> Result<u64, MessageError> {
        self.array().map(u64::from_ne_bytes)
    }

    fn region(&mut self) -> Result<RegionDescription, MessageError> {
        Ok(RegionDescription {
            guest_address: self.u64()?,
            size_bytes: self.u64()?,
            user_address: self.u64()?,
            file_offset: self.u64()?,
        })
    }

    fn memory_table(&mut self) -> Result<Vec<RegionDescription>, MessageError> {
        let (count, _padding) = (self.u32()?, self.u32()?);
        self.check("number of memory regions", count.into(), count as usize <= MAX_FILES)?;
        (0..count).map(|_| self.region()).collect()
    }

    fn single_region(&mut self) -> Result<RegionDescription, MessageError> {
        let _padding = self.u64()?;
        self.region()
    }

    fn ring_addresses(&mut self) -> Result<Request, MessageError> {
        let (index, flags) = (self.u32()?, self.u32()?);
        self.check("flags", flags.into(), flags <= 1)?;
        let (descriptors, used, available, log) = (self.u64()?, self.u64()?, self.u64()?, self.u64()?);
        let addresses = RingAddresses { descriptors, available, used, used_log: (flags == 1).then_some(log) };
        Ok(Request::SetRingAddresses { index, addresses })
    }

    fn ring_file(&mut self, make: impl FnOnce(u8, bool) -> Request) -> Result<Request, MessageError> {
        let value = self.u64()?;
        self.check("ring index and flags", value, value < 2 * NO_FILE)?;
        Ok(make(value as u8, value & NO_FILE == 0))
    }

    fn config(&mut self) -> Result<(u32, u32, u32), MessageError> {
        let (offset, size, flags) = (self.u32()?, self.u32()?, self.u32()?);
        // The front end includes a buffer of the same size, also when it reads.
        if self.left.len() != size as usize {
            return Err(self.wrong_length());
        }
        Ok((offset, size, flags))
    }

    /// The C structure's padding is part of the message.
    fn inflight(&mut self) -> Result<InflightShape, MessageError> {
        let (size_bytes, file_offset) = (self.u64()?, self.u64()?);
        let (queues, queue_size, _padding) = (self.u16()?, self.u16()?, self.u32()?);
        Ok(InflightShape { size_bytes, file_offset, queues, queue_size })
    }
}

/// Encodes the body of a reply that is one number.
pub(crate) fn number(value: u64) -> Vec<u8> {
    value.to_ne_bytes().to_vec()
}

/// Encodes the body of a reply that is two 32-bit numbers: a ring's index and its state.
pub(crate) fn ring_state(index: u32, state: u32) -> Vec<u8> {
    [index.to_ne_bytes(), state.to_ne_bytes()].concat()
}

/// Encodes the body of a reply with a part of the configuration space.
pub(crate) fn config(offset: u32, flags: u32, bytes: &[u8]) -> Vec<u8> {
    let size = (bytes.len() as u32).to_ne_bytes();
    [&offset.to_ne_bytes(), &size, &flags.to_ne_bytes(), bytes].concat()
}

/// Encodes the body of a reply with two 64-bit numbers.
pub(crate) fn pair(first: u64, second: u64) -> Vec<u8> {
    [first.to_ne_bytes(), second.to_ne_bytes()].concat()
}

/// Encodes the body of a reply that describes an in-flight region, padded like the C structure.
pub(crate) fn inflight(shape: &InflightShape) -> Vec<u8> {
    let mut body = pair(shape.size_bytes, shape.file_offset);
    body.extend_from_slice(&shape.queues.to_ne_bytes());
    body.extend_from_slice(&shape.queue_size.to_ne_bytes());
    body.extend_from_slice(&[0; 4]);
    body
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn words(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    #[test]
    fn bodies_as_qemu_sends_them() {
        let region = |at| RegionDescription {
            guest_address: at,
            size_bytes: at + 1,
            user_address: at + 2,
            file_offset: at + 3,
        };
        let decode = |request, body: &[u64]| Request::decode(request, &words(body)).unwrap();
        let table = decode(5, &[2, 10, 11, 12, 13, 20, 21, 22, 23]);
        assert_eq!(table, Request::SetMemoryTable(vec![region(10), region(20)]));
        assert_eq!(table.files(), Some(2));
        assert_eq!(decode(37, &[0, 10, 11, 12, 13]), Request::AddMemoryRegion(region(10)));
        let addresses =
            RingAddresses { descriptors: 0x10, used: 0x20, available: 0x30, used_log: Some(0x40) };
        let expected = Request::SetRingAddresses { index: 3, addresses };
        assert_eq!(decode(9, &[3 | 1 << 32, 0x10, 0x20, 0x30, 0x40]), expected);
        assert_eq!(decode(12, &[0x102]), Request::SetRingKick { index: 2, file: false });
        assert_eq!(decode(13, &[2]).files(), Some(1));
        assert_eq!(decode(18, &[1 | 1 << 32]), Request::SetRingEnable { index: 1, enable: true });
        let shape = InflightShape { size_bytes: 0, file_offset: 0, queues: 4, queue_size: 128 };
        assert_eq!(decode(31, &[0, 0, 4 | 128 << 16]), Request::GetInflight(shape));
        assert_eq!(Request::decode(31, &inflight(&shape)), Ok(Request::GetInflight(shape)));
        let write_cache = config(32, 0, &[1]);
        let expected = Request::SetConfig { offset: 32, bytes: vec![1], migration: false };
        assert_eq!(Request::decode(25, &write_cache), Ok(expected));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let wrong = |request, body: &[u8]| Request::decode(request, body).unwrap_err();
        assert_eq!(wrong(2, &[0; 7]), MessageError::Length { request: 2, found: 7 });
        assert_eq!(wrong(3, &[0; 1]), MessageError::Length { request: 3, found: 1 });
        assert_eq!(wrong(24, &config(0, 0, &[])[..11]), MessageError::Length { request: 24, found: 11 });
        assert_eq!(wrong(19, &[0; 8]), MessageError::Unknown(19));
        let regions = MAX_FILES as u64 + 1;
        let field = "number of memory regions";
        assert_eq!(wrong(5, &words(&[regions])), MessageError::Field { request: 5, field, found: regions });
        let header = |flags: u32, size: u32| {
            let mut bytes = [0; HEADER_BYTES];
            bytes[..4].copy_from_slice(&7u32.to_ne_bytes());
            bytes[4..8].copy_from_slice(&flags.to_ne_bytes());
            bytes[8..].copy_from_slice(&size.to_ne_bytes());
            Header::decode(bytes)
        };
        assert_eq!(header(9, 40), Ok(Header { request: 7, need_reply: true, body_bytes: 40 }));
        assert_eq!(header(2, 0), Err(MessageError::Flags { request: 7, flags: 2 }));
        assert_eq!(header(1, 4097), Err(MessageError::TooLong { request: 7, found: 4097 }));
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_or_refused(request in 0u32..48, body in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(decoded) = Request::decode(request, &body) {
                prop_assert!(decoded.files().unwrap_or(0) <= MAX_FILES);
            }
        }
    }
}
