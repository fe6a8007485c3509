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

            /// The flags as they came over the wire; unknown ones are kept.
            pub const fn from_bits(bits: u16) -> Self {
                Self(bits)
            }

            /// The flags as they go over the wire.
            pub const fn bits(self) -> u16 {
                self.0
            }

            /// Whether all of `other` are set.
            pub const fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// These flags without `other`.
            #[must_use]
            pub const fn without(self, other: Self) -> Self {
                Self(self.0 & !other.0)
            }

            /// These flags and `other`.
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
    /// What an export can do, told to the client when negotiation ends.
    TransmissionFlags {
        /// Set in every set of flags on the wire.
        HAS_FLAGS = 0;
        /// Writes are refused.
        READ_ONLY = 1;
        /// FLUSH is served.
        SEND_FLUSH = 2;
        /// FUA is honoured.
        SEND_FUA = 3;
        /// The medium rotates.
        ROTATIONAL = 4;
        /// TRIM is served.
        SEND_TRIM = 5;
        /// WRITE_ZEROES is served.
        SEND_WRITE_ZEROES = 6;
        /// DF is honoured.
        SEND_DF = 7;
        /// A flush on one connection covers what all connections wrote.
        CAN_MULTI_CONN = 8;
        /// CACHE is served.
        SEND_CACHE = 10;
        /// FAST_ZERO is honoured.
        SEND_FAST_ZERO = 11;
    }
}

flag_set! {
    /// Flags of a request.
    CommandFlags {
        /// Answer when the data is on stable media.
        FUA = 0;
        /// Do not make a hole of the zeroes.
        NO_HOLE = 1;
        /// Answer in one chunk.
        DF = 2;
        /// One extent per context.
        REQ_ONE = 3;
        /// Fail with ENOTSUP rather than be as slow as a write.
        FAST_ZERO = 4;
    }
}
