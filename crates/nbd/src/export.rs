//! An export: size, block sizes, features and metadata contexts.
//! A [`BlockSize`] always follows the protocol's rules, however it was made.

use crate::constants::DEFAULT_MAX_PAYLOAD_BYTES;
use crate::flags::TransmissionFlags;

/// An export as the server's owner describes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExportInfo {
    /// Its own name, at most 4,096 bytes. A client may have asked for it under another, such as the empty one.
    pub name: String,
    /// Human-readable text, empty for none; cut after 4,096 bytes.
    pub description: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Sizes that requests must and should comply with.
    pub block_size: BlockSize,
    /// What the export can do. `HAS_FLAGS` and `READ_ONLY` are added, and what the session rules out is removed: DF
    /// without structured replies, write commands on a read-only export.
    pub features: TransmissionFlags,
}

impl ExportInfo {
    /// Returns the flags that are sent to a client.
    pub fn transmission_flags(&self, structured_replies: bool) -> TransmissionFlags {
        use TransmissionFlags as F;
        let mut flags = self.features | F::HAS_FLAGS;
        if !structured_replies {
            flags = flags.without(F::SEND_DF);
        }
        if self.read_only {
            flags = flags.with(F::READ_ONLY).without(F::SEND_TRIM | F::SEND_WRITE_ZEROES);
        }
        if !flags.contains(F::SEND_WRITE_ZEROES) {
            flags = flags.without(F::SEND_FAST_ZERO);
        }
        flags
    }
}

/// Sizes in bytes that a client complies with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockSize {
    minimum_bytes: u32,
    preferred_bytes: u32,
    maximum_payload_bytes: u32,
}

impl BlockSize {
    /// What a server accepts if nothing was negotiated: any alignment, payloads of at most 32 MiB.
    pub const SERVER_DEFAULT: Self =
        Self { minimum_bytes: 1, preferred_bytes: 4096, maximum_payload_bytes: DEFAULT_MAX_PAYLOAD_BYTES };
    /// What a client complies with if nothing was negotiated: 512-byte alignment, payloads of at most 32 MiB.
    pub const CLIENT_DEFAULT: Self =
        Self { minimum_bytes: 512, preferred_bytes: 4096, maximum_payload_bytes: DEFAULT_MAX_PAYLOAD_BYTES };

    /// Checks sizes in bytes and returns them.
    ///
    /// # Errors
    /// The minimum is not a power of two or over 65,536; the preferred size is not a power of two or below the minimum
    /// or 512; the maximum is below the preferred size.
    pub const fn new(minimum: u32, preferred: u32, maximum_payload: u32) -> Result<Self, BlockSizeError> {
        let fits = minimum.is_power_of_two()
            && minimum <= 65_536
            && preferred.is_power_of_two()
            && preferred >= minimum
            && preferred >= 512
            && maximum_payload >= preferred;
        if fits {
            Ok(Self {
                minimum_bytes: minimum,
                preferred_bytes: preferred,
                maximum_payload_bytes: maximum_payload,
            })
        } else {
            Err(BlockSizeError { minimum, preferred, maximum_payload })
        }
    }

    /// Returns the number of bytes of which offsets and lengths are multiples.
    pub const fn minimum_bytes(self) -> u32 {
        self.minimum_bytes
    }

    /// Returns the number of bytes whose multiples are fast.
    pub const fn preferred_bytes(self) -> u32 {
        self.preferred_bytes
    }

    /// Returns the most bytes of a read or write.
    pub const fn maximum_payload_bytes(self) -> u32 {
        self.maximum_payload_bytes
    }
}

/// Block sizes that the protocol does not allow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "block sizes of minimum {minimum}, preferred {preferred}, maximum {maximum_payload} bytes: expected powers of \
     two with minimum <= 65536, preferred >= minimum and >= 512, and maximum >= preferred"
)]
pub struct BlockSizeError {
    /// Minimum in bytes.
    pub minimum: u32,
    /// Preferred in bytes.
    pub preferred: u32,
    /// Maximum payload in bytes.
    pub maximum_payload: u32,
}

/// A metadata context that BLOCK_STATUS reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MetaContext {
    /// `base:allocation`: holes and zeroes.
    Allocation,
    /// `haversack:cache`: what the cache holds, and which of it is dirty.
    Cache,
}

impl MetaContext {
    /// Every context.
    pub const ALL: [Self; 2] = [Self::Allocation, Self::Cache];

    /// Returns its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allocation => "base:allocation",
            Self::Cache => "haversack:cache",
        }
    }

    /// Returns its id in replies of this server, the same in every session.
    pub const fn id(self) -> u32 {
        match self {
            Self::Allocation => 1,
            Self::Cache => 2,
        }
    }
}

/// The metadata contexts that a client selected.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct MetaContexts {
    /// `base:allocation`.
    pub allocation: bool,
    /// `haversack:cache`.
    pub cache: bool,
}

impl MetaContexts {
    /// Returns whether none was selected.
    pub const fn is_empty(self) -> bool {
        !self.allocation && !self.cache
    }

    /// Returns those selected, in the order of their ids.
    pub fn iter(self) -> impl Iterator<Item = MetaContext> {
        MetaContext::ALL.into_iter().filter(move |context| match context {
            MetaContext::Allocation => self.allocation,
            MetaContext::Cache => self.cache,
        })
    }

    /// Adds one.
    pub const fn insert(&mut self, context: MetaContext) {
        match context {
            MetaContext::Allocation => self.allocation = true,
            MetaContext::Cache => self.cache = true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_sizes_obey_the_protocol() {
        assert!(BlockSize::new(512, 4096, 32 << 20).is_ok());
        assert!(BlockSize::new(1, 512, 512).is_ok());
        for (minimum, preferred, maximum) in
            [(0, 4096, 4096), (3, 4096, 8192), (131_072, 131_072, 1 << 20), (1, 256, 4096), (4096, 512, 8192)]
        {
            assert!(BlockSize::new(minimum, preferred, maximum).is_err());
        }
        let error = BlockSize::new(1, 4096, 512).unwrap_err();
        assert!(error.to_string().contains("maximum 512"));
    }

    #[test]
    fn flags_follow_the_session() {
        use TransmissionFlags as F;
        let mut export = ExportInfo {
            name: String::new(),
            description: String::new(),
            size_bytes: 0,
            read_only: false,
            block_size: BlockSize::SERVER_DEFAULT,
            features: F::SEND_DF | F::SEND_TRIM | F::SEND_WRITE_ZEROES | F::SEND_FAST_ZERO | F::SEND_FLUSH,
        };
        assert_eq!(export.transmission_flags(true), export.features | F::HAS_FLAGS);
        assert!(!export.transmission_flags(false).contains(F::SEND_DF));
        export.read_only = true;
        assert_eq!(export.transmission_flags(false), F::HAS_FLAGS | F::READ_ONLY | F::SEND_FLUSH);
    }
}
