//! Which requests an export supports, and the error for the others. Both sides use the same rules: servers for
//! incoming requests, clients for outgoing ones.

use super::request::{Command, Request};
use crate::constants::DEFAULT_MAX_PAYLOAD_BYTES;
use crate::errno::Errno;
use crate::error::ServerError;
use crate::export::BlockSize;
use crate::flags::{CommandFlags, TransmissionFlags};

/// What an export supports in one session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestRules {
    /// Size in bytes; may change during a session when a disk is resized.
    pub size_bytes: u64,
    /// What the export can do.
    pub flags: TransmissionFlags,
    /// What requests comply with.
    pub block_size: BlockSize,
    /// Whether metadata contexts were selected.
    pub block_status: bool,
}

/// What to do with a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Serve it. Its range is within the export; only FLUSH has an empty one.
    Serve,
    /// Its range is empty: just reply with success.
    Nothing,
    /// Reply with an error. A payload is to be skipped.
    Refuse(Refusal),
    /// The client ends the session: finish what is in flight, then close.
    Disconnect,
}

/// Why a request is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// The error number to reply.
    pub errno: Errno,
    /// The human-readable reason.
    pub reason: &'static str,
}

const fn refuse(errno: Errno, reason: &'static str) -> Result<(), Refusal> {
    Err(Refusal { errno, reason })
}

impl RequestRules {
    /// Checks a request.
    ///
    /// # Errors
    /// The payload of a write is longer than both 32 MiB and the largest allowed, too long to be skipped: the
    /// connection must be closed.
    pub fn check(&self, request: &Request) -> Result<Verdict, ServerError> {
        if request.command == Command::Disconnect {
            return Ok(Verdict::Disconnect);
        }
        let limit_bytes = self.block_size.maximum_payload_bytes().max(DEFAULT_MAX_PAYLOAD_BYTES);
        if request.payload_bytes() > limit_bytes {
            return Err(ServerError::PayloadTooLong {
                offset_bytes: request.offset,
                length_bytes: request.length,
                limit_bytes,
            });
        }
        let judged = self
            .check_command(request)
            .and_then(|()| self.check_flags(request))
            .and_then(|()| self.check_range(request))
            .and_then(|()| self.check_length(request));
        Ok(match judged {
            Err(refusal) => Verdict::Refuse(refusal),
            Ok(()) if request.length == 0 && request.command != Command::Flush => Verdict::Nothing,
            Ok(()) => Verdict::Serve,
        })
    }

    fn check_command(&self, request: &Request) -> Result<(), Refusal> {
        use TransmissionFlags as F;
        let read_only = self.flags.contains(F::READ_ONLY);
        let needed = match request.command {
            Command::Write | Command::WriteZeroes | Command::Trim if read_only => {
                return refuse(Errno::EPERM, "the export is read-only");
            }
            Command::Read | Command::Write | Command::Disconnect => F::NONE,
            Command::Flush => F::SEND_FLUSH,
            Command::Trim => F::SEND_TRIM,
            Command::Cache => F::SEND_CACHE,
            Command::WriteZeroes => F::SEND_WRITE_ZEROES,
            Command::BlockStatus if self.block_status => F::NONE,
            Command::BlockStatus => return refuse(Errno::EINVAL, "no metadata context was chosen"),
            Command::Other(_) => return refuse(Errno::EINVAL, "the command is unknown"),
        };
        if self.flags.contains(needed) {
            Ok(())
        } else {
            refuse(Errno::EINVAL, "the export does not offer the command")
        }
    }

    fn check_flags(&self, request: &Request) -> Result<(), Refusal> {
        use {CommandFlags as C, TransmissionFlags as F};
        let offered = |feature, flag| if self.flags.contains(feature) { flag } else { C::NONE };
        // Clients are known to set FUA on any command.
        let allowed = offered(F::SEND_FUA, C::FUA)
            | match request.command {
                Command::Read => offered(F::SEND_DF, C::DF),
                Command::WriteZeroes => C::NO_HOLE | offered(F::SEND_FAST_ZERO, C::FAST_ZERO),
                Command::BlockStatus => C::REQ_ONE,
                _ => C::NONE,
            };
        if allowed.contains(request.flags) {
            Ok(())
        } else {
            refuse(Errno::EINVAL, "a flag is unknown or not offered for the command")
        }
    }

    fn check_range(&self, request: &Request) -> Result<(), Refusal> {
        if request.command == Command::Flush {
            return if (request.offset, request.length) == (0, 0) {
                Ok(())
            } else {
                refuse(Errno::EINVAL, "a flush has no range")
            };
        }
        let end = request.offset.checked_add(u64::from(request.length));
        if end.is_none_or(|end| end > self.size_bytes) {
            let errno = match request.command {
                Command::Write | Command::WriteZeroes => Errno::ENOSPC,
                _ => Errno::EINVAL,
            };
            return refuse(errno, "the range ends beyond the export");
        }
        let minimum = self.block_size.minimum_bytes();
        if request.offset.is_multiple_of(u64::from(minimum)) && request.length.is_multiple_of(minimum) {
            Ok(())
        } else {
            refuse(Errno::EINVAL, "the range is not aligned to the minimum block size")
        }
    }

    fn check_length(&self, request: &Request) -> Result<(), Refusal> {
        let too_long = request.length > self.block_size.maximum_payload_bytes();
        match request.command {
            Command::BlockStatus if request.length == 0 => {
                refuse(Errno::EINVAL, "an empty range has no metadata")
            }
            // The protocol has EOVERFLOW for reads only where DF is offered.
            Command::Read if too_long && self.flags.contains(TransmissionFlags::SEND_DF) => {
                refuse(Errno::EOVERFLOW, "the read is longer than the maximum payload")
            }
            Command::Read | Command::Write if too_long => {
                refuse(Errno::EINVAL, "the request is longer than the maximum payload")
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use CommandFlags as C;
    use TransmissionFlags as F;

    const ALL: F = F::from_bits(0xfff & !(1 << 1));

    fn rules(flags: F) -> RequestRules {
        let block_size = BlockSize::new(512, 4096, 1 << 20).unwrap();
        RequestRules { size_bytes: 8 << 20, flags, block_size, block_status: true }
    }

    fn request(command: Command, flags: C, offset: u64, length: u32) -> Request {
        Request { flags, command, cookie: 1, offset, length }
    }

    fn errno(rules: &RequestRules, request: Request) -> Option<Errno> {
        match rules.check(&request).unwrap() {
            Verdict::Refuse(refusal) => Some(refusal.errno),
            Verdict::Serve => None,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_command_is_served_when_offered_only() {
        use Command as K;
        for command in [K::Read, K::Write, K::Trim, K::Cache, K::WriteZeroes, K::BlockStatus] {
            assert_eq!(errno(&rules(ALL), request(command, C::FUA, 512, 1024)), None);
        }
        for command in [K::Trim, K::Cache, K::WriteZeroes, K::Other(8), K::Other(0xffff)] {
            assert_eq!(errno(&rules(F::HAS_FLAGS), request(command, C::NONE, 0, 512)), Some(Errno::EINVAL));
        }
        assert_eq!(errno(&rules(ALL), request(K::Flush, C::NONE, 0, 0)), None);
        assert_eq!(errno(&rules(F::HAS_FLAGS), request(K::Flush, C::NONE, 0, 0)), Some(Errno::EINVAL));
        assert_eq!(errno(&rules(ALL), request(K::Flush, C::NONE, 512, 0)), Some(Errno::EINVAL));
        let chosen_none = RequestRules { block_status: false, ..rules(ALL) };
        assert_eq!(errno(&chosen_none, request(K::BlockStatus, C::NONE, 0, 512)), Some(Errno::EINVAL));
        assert_eq!(errno(&rules(ALL), request(K::BlockStatus, C::NONE, 0, 0)), Some(Errno::EINVAL));
    }

    #[test]
    fn flags_belong_to_commands() {
        use Command as K;
        let good =
            [(K::Read, C::DF), (K::WriteZeroes, C::NO_HOLE | C::FAST_ZERO), (K::BlockStatus, C::REQ_ONE)];
        for (command, flags) in good {
            assert_eq!(errno(&rules(ALL), request(command, flags, 0, 512)), None);
            assert_eq!(errno(&rules(ALL), request(K::Write, flags, 0, 512)), Some(Errno::EINVAL));
        }
        let few = rules(F::HAS_FLAGS | F::SEND_WRITE_ZEROES);
        for (command, flags) in [(K::Read, C::DF), (K::WriteZeroes, C::FAST_ZERO), (K::Write, C::FUA)] {
            assert_eq!(errno(&few, request(command, flags, 0, 512)), Some(Errno::EINVAL));
        }
        assert_eq!(errno(&rules(ALL), request(K::Read, C::from_bits(1 << 5), 0, 512)), Some(Errno::EINVAL));
    }

    #[test]
    fn read_only_exports_refuse_writing() {
        let rules = rules(ALL | F::READ_ONLY);
        for command in [Command::Write, Command::WriteZeroes, Command::Trim] {
            assert_eq!(errno(&rules, request(command, C::NONE, 0, 512)), Some(Errno::EPERM));
        }
    }

    #[test]
    fn ranges_lie_within_the_export() {
        use Command as K;
        let end = 8 << 20;
        for (command, expected) in [
            (K::Read, Errno::EINVAL),
            (K::Trim, Errno::EINVAL),
            (K::Cache, Errno::EINVAL),
            (K::BlockStatus, Errno::EINVAL),
            (K::Write, Errno::ENOSPC),
            (K::WriteZeroes, Errno::ENOSPC),
        ] {
            for offset in [end - 512, end, u64::MAX - 1023, u64::MAX - 511] {
                assert_eq!(errno(&rules(ALL), request(command, C::NONE, offset, 1024)), Some(expected));
            }
            assert_eq!(errno(&rules(ALL), request(command, C::NONE, end - 512, 512)), None);
            for (offset, length) in [(1, 512), (512, 511)] {
                assert_eq!(
                    errno(&rules(ALL), request(command, C::NONE, offset, length)),
                    Some(Errno::EINVAL)
                );
            }
        }
    }

    #[test]
    fn payloads_have_a_limit_and_ranges_have_not() {
        use Command as K;
        let over = (1 << 20) + 512;
        assert_eq!(errno(&rules(ALL), request(K::Read, C::NONE, 0, over)), Some(Errno::EOVERFLOW));
        let simple = rules(ALL.without(F::SEND_DF));
        assert_eq!(errno(&simple, request(K::Read, C::NONE, 0, over)), Some(Errno::EINVAL));
        assert_eq!(errno(&rules(ALL), request(K::Write, C::NONE, 0, over)), Some(Errno::EINVAL));
        for command in [K::Trim, K::WriteZeroes, K::Cache, K::BlockStatus] {
            assert_eq!(errno(&rules(ALL), request(command, C::NONE, 0, 8 << 20)), None);
        }
        let huge = request(K::Write, C::NONE, 0, (32 << 20) + 1);
        assert!(matches!(rules(ALL).check(&huge), Err(ServerError::PayloadTooLong { .. })));
    }

    #[test]
    fn empty_ranges_need_nothing() {
        let nothing = request(Command::Write, C::NONE, 512, 0);
        assert_eq!(rules(ALL).check(&nothing), Ok(Verdict::Nothing));
        assert_eq!(rules(ALL).check(&Request::disconnect()), Ok(Verdict::Disconnect));
    }
}
