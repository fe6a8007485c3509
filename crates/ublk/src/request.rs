//! A request of the block device, as the kernel describes it and as the daemon gets it.

use haversack_nbd::{Command, CommandFlags, Errno};

use crate::abi::{self, Descriptor};

/// The kernel's unit of addresses.
pub const SECTOR_BYTES: u64 = 512;

/// The operation.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Operation {
    #[default]
    Read,
    Write,
    Flush,
    Discard,
    WriteZeroes,
    /// An operation that the protocol does not have.
    Unknown,
}

/// See the module documentation.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct BlockRequest {
    pub operation: Operation,
    pub offset_bytes: u64,
    pub bytes: u32,
    /// The data must be durable before the answer.
    pub is_durable: bool,
    /// Zeroes must occupy space.
    pub keeps_space: bool,
}

impl BlockRequest {
    /// Reads the kernel's description. What does not fit in a request of the protocol is of an unknown operation.
    pub fn from_descriptor(descriptor: &Descriptor) -> Self {
        let operation = match descriptor.op_flags as u8 {
            abi::OP_READ => Operation::Read,
            abi::OP_WRITE => Operation::Write,
            abi::OP_FLUSH => Operation::Flush,
            abi::OP_DISCARD => Operation::Discard,
            abi::OP_WRITE_ZEROES => Operation::WriteZeroes,
            _ => Operation::Unknown,
        };
        let is_durable = descriptor.op_flags & abi::IO_FUA != 0;
        let keeps_space = descriptor.op_flags & abi::IO_NO_UNMAP != 0;
        let bytes = u32::try_from(u64::from(descriptor.sectors) * SECTOR_BYTES);
        let offset_bytes = descriptor.start_sector.checked_mul(SECTOR_BYTES);
        match (operation, bytes, offset_bytes) {
            // A flush has no range, whatever the descriptor has.
            (Operation::Flush, ..) => Self { operation, ..Self::default() },
            (_, Ok(bytes), Some(offset_bytes)) => {
                Self { operation, offset_bytes, bytes, is_durable, keeps_space }
            }
            _ => Self { operation: Operation::Unknown, ..Self::default() },
        }
    }

    /// Returns the command of the protocol and its flags.
    pub fn command(&self) -> Option<(Command, CommandFlags)> {
        let durable = if self.is_durable { CommandFlags::FUA } else { CommandFlags::NONE };
        Some(match self.operation {
            Operation::Read => (Command::Read, CommandFlags::NONE),
            Operation::Write => (Command::Write, durable),
            Operation::Flush => (Command::Flush, CommandFlags::NONE),
            Operation::Discard => (Command::Trim, durable),
            Operation::WriteZeroes if self.keeps_space => {
                (Command::WriteZeroes, durable | CommandFlags::NO_HOLE)
            }
            Operation::WriteZeroes => (Command::WriteZeroes, durable),
            Operation::Unknown => return None,
        })
    }

    /// Returns how many bytes of the tag's memory go with the request or come with its answer.
    pub fn data_bytes(&self) -> usize {
        match self.operation {
            Operation::Read | Operation::Write => self.bytes as usize,
            _ => 0,
        }
    }

    /// Returns the kernel's result of a success.
    pub fn success(&self) -> i32 {
        // The driver takes at most 32 MiB in a request with data.
        self.data_bytes() as i32
    }
}

/// Returns the kernel's result of a failure. The block layer knows few errors; all others are input/output errors
/// there.
pub fn failure(errno: Errno) -> i32 {
    match errno {
        Errno::ENOSPC => -libc::ENOSPC,
        Errno::ENOTSUP => -libc::EOPNOTSUPP,
        _ => -libc::EIO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(op_flags: u32, start_sector: u64, sectors: u32) -> BlockRequest {
        BlockRequest::from_descriptor(&Descriptor { op_flags, sectors, start_sector, addr: 0 })
    }

    #[test]
    fn requests_become_commands() {
        use {Command as C, CommandFlags as F};
        let write = request(1 | abi::IO_FUA, 8, 16);
        assert_eq!((write.offset_bytes, write.bytes, write.success()), (4096, 8192, 8192));
        assert_eq!(write.command(), Some((C::Write, F::FUA)));
        assert_eq!(request(0, 8, 16).command(), Some((C::Read, F::NONE)));
        assert_eq!(request(3, 0, 1 << 17).command(), Some((C::Trim, F::NONE)));
        assert_eq!(request(5, 0, 8).command(), Some((C::WriteZeroes, F::NONE)));
        assert_eq!(request(5 | abi::IO_NO_UNMAP, 0, 8).command(), Some((C::WriteZeroes, F::NO_HOLE)));
        assert_eq!(request(5, 0, 8).success(), 0);
    }

    #[test]
    fn a_flush_has_no_range() {
        let flush = request(2, u64::MAX, 0);
        assert_eq!((flush.command(), flush.bytes), (Some((Command::Flush, CommandFlags::NONE)), 0));
        assert_eq!(flush.offset_bytes, 0);
    }

    #[test]
    fn what_cannot_be_sent_has_no_command() {
        for unknown in [request(4, 0, 8), request(13, 0, 8), request(3, 0, 1 << 23), request(0, 1 << 60, 8)] {
            assert_eq!(unknown.command(), None);
        }
    }

    #[test]
    fn errors_are_those_that_the_block_layer_knows() {
        assert_eq!(failure(Errno::ENOSPC), -libc::ENOSPC);
        assert_eq!(failure(Errno::ENOTSUP), -libc::EOPNOTSUPP);
        assert_eq!(failure(Errno::EINVAL), -libc::EIO);
    }
}
