//! Error numbers of the transmission phase.

use std::fmt;

/// An error number on the wire, never 0. Servers send the named ones; clients may receive any.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Errno(u32);

impl Errno {
    /// Not permitted: a write to a read-only export.
    pub const EPERM: Self = Self(1);
    /// Input/output error.
    pub const EIO: Self = Self(5);
    /// Out of memory.
    pub const ENOMEM: Self = Self(12);
    /// The request is invalid.
    pub const EINVAL: Self = Self(22);
    /// No space, or a write past the end.
    pub const ENOSPC: Self = Self(28);
    /// The request is too long.
    pub const EOVERFLOW: Self = Self(75);
    /// Not supported: a fast zero that would be slow.
    pub const ENOTSUP: Self = Self(95);
    /// The server is shutting down.
    pub const ESHUTDOWN: Self = Self(108);

    /// Returns the error number received, or none for 0, which means success.
    pub const fn from_wire(number: u32) -> Option<Self> {
        if number == 0 { None } else { Some(Self(number)) }
    }

    /// Returns the number as sent over the wire.
    pub const fn number(self) -> u32 {
        self.0
    }

    /// Converts an error of the operating system to one for the wire; EIO for those that NBD does not have.
    pub const fn from_os(errno: i32) -> Self {
        // Linux numbers: EDQUOT and EFBIG are sent as ENOSPC, as the protocol requires.
        match errno {
            1 | 13 | 30 => Self::EPERM,
            12 => Self::ENOMEM,
            22 => Self::EINVAL,
            27 | 28 | 122 => Self::ENOSPC,
            75 => Self::EOVERFLOW,
            95 => Self::ENOTSUP,
            108 => Self::ESHUTDOWN,
            _ => Self::EIO,
        }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match *self {
            Self::EPERM => "EPERM, operation not permitted",
            Self::EIO => "EIO, input/output error",
            Self::ENOMEM => "ENOMEM, out of memory",
            Self::EINVAL => "EINVAL, invalid argument",
            Self::ENOSPC => "ENOSPC, no space left",
            Self::EOVERFLOW => "EOVERFLOW, value too large",
            Self::ENOTSUP => "ENOTSUP, not supported",
            Self::ESHUTDOWN => "ESHUTDOWN, server is shutting down",
            Self(number) => return write!(f, "error {number}"),
        };
        f.write_str(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_errors_become_those_of_the_protocol() {
        for (os, wire) in [(5, Errno::EIO), (30, Errno::EPERM), (122, Errno::ENOSPC), (71, Errno::EIO)] {
            assert_eq!(Errno::from_os(os), wire);
        }
        assert_eq!(Errno::from_wire(0), None);
        assert_eq!(Errno::from_wire(71).unwrap().to_string(), "error 71");
    }
}
