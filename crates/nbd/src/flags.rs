//! Sets of bits on the wire.

macro_rules! flag_set {
    ($(#[$doc:meta])* $name:ident { $($(#[$flag_doc:meta])* $flag:ident = $bit:expr;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Hash)]
        pub struct $name(u16);

        impl $name {
            /// No flag.
            pub const NONE: Self = Self(0);
            $($(#[$flag_doc])* pub const $flag: Self = Self(1 << $bit);)*

            /// Makes flags from received bits; unknown ones are kept.
            pub const fn from_bits(bits: u16) -> Self {
                Self(bits)
            }

            /// Returns the flags as sent over the wire.
            pub const fn bits(self) -> u16 {
                self.0
            }

            /// Returns whether all of `other` are set.
            pub const fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// Returns these flags without `other`.
            #[must_use]
            pub const fn without(self, other: Self) -> Self {
                Self(self.0 & !other.0)
            }

            /// Returns these flags and `other`.
            #[must_use]
            pub const fn with(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }
        }

        impl std::ops::BitOr for $name {
            type Output = Self;

            fn bitor(self, other: Self) -> Self {
                self.with(other)
            }
        }
    };
}

flag_set! {
    /// What an export can do, sent to the client when negotiation ends.
    TransmissionFlags {
        /// Set in every set of flags on the wire.
        HAS_FLAGS = 0;
        /// Writes are refused.
        READ_ONLY = 1;
        /// FLUSH is supported.
        SEND_FLUSH = 2;
        /// FUA is honoured.
        SEND_FUA = 3;
        /// The medium rotates.
        ROTATIONAL = 4;
        /// TRIM is supported.
        SEND_TRIM = 5;
        /// WRITE_ZEROES is supported.
        SEND_WRITE_ZEROES = 6;
        /// DF is honoured.
        SEND_DF = 7;
        /// A flush on one connection covers writes of all connections.
        CAN_MULTI_CONN = 8;
        /// CACHE is supported.
        SEND_CACHE = 10;
        /// FAST_ZERO is honoured.
        SEND_FAST_ZERO = 11;
    }
}

flag_set! {
    /// Flags of a request.
    CommandFlags {
        /// Reply when the data is on stable media.
        FUA = 0;
        /// Do not turn the zeroes into a hole.
        NO_HOLE = 1;
        /// Reply in one chunk.
        DF = 2;
        /// One extent per context.
        REQ_ONE = 3;
        /// Fail with ENOTSUP rather than be as slow as a write.
        FAST_ZERO = 4;
    }
}
