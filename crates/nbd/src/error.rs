//! What ends a session. All other errors are answered within the protocol and the session continues.

use crate::export::BlockSizeError;

/// Why a server ends the connection: the client violates the protocol, or requested something that cannot be answered
/// with an error. Other connections are not affected.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ServerError {
    /// The client's flags have bits that the server does not know.
    #[error("client flags {found:#x}: expected only bits 0 and 1; is the peer an NBD client?")]
    ClientFlags {
        /// The flags.
        found: u32,
    },
    /// An option has the wrong magic number.
    #[error(
        "option begins with {found:#018x}, expected the magic number IHAVEOPT; is the peer an NBD client?"
    )]
    OptionMagic {
        /// What was found instead.
        found: u64,
    },
    /// A client without fixed newstyle sent an option other than `EXPORT_NAME`.
    #[error(
        "option {option} from a client without the fixed newstyle, expected EXPORT_NAME; use a newer client"
    )]
    NotFixedNewstyle {
        /// The option.
        option: u32,
    },
    /// `EXPORT_NAME`, which has no error reply, asked for a refused export.
    #[error("export {export:?}: refused to a client that used EXPORT_NAME: {reason}")]
    ExportRefused {
        /// The requested export, as far as it was readable.
        export: String,
        /// Why.
        reason: &'static str,
    },
    /// Unencrypted bytes followed the request for TLS.
    #[error(
        "{bytes} bytes in plain text after STARTTLS, expected a TLS handshake; someone may tamper with the line"
    )]
    PlainTextAfterStartTls {
        /// How many.
        bytes: usize,
    },
    /// More input after the end of negotiation.
    #[error("the negotiation is over and takes no more input")]
    NegotiationOver,
    /// A request has the wrong magic number.
    #[error(
        "request begins with {found:#010x}, expected {:#010x}; the stream is out of step",
        crate::constants::REQUEST_MAGIC
    )]
    RequestMagic {
        /// What was found instead.
        found: u32,
    },
    /// A write is too long to be skipped.
    #[error(
        "write of {length_bytes} bytes at byte {offset_bytes}: expected at most {limit_bytes}; set a smaller maximum in the client"
    )]
    PayloadTooLong {
        /// Where.
        offset_bytes: u64,
        /// How long.
        length_bytes: u32,
        /// The longest that is skipped.
        limit_bytes: u32,
    },
}

/// Why a client ends the connection: the server violates the protocol or refuses the export.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ClientError {
    /// The server's first bytes are not those of an NBD server.
    #[error(
        "server begins with {found:#018x}, expected the magic number NBDMAGIC; is the address that of an NBD server?"
    )]
    NotNbd {
        /// What was found instead.
        found: u64,
    },
    /// The server does not support options.
    #[error(
        "server speaks the oldstyle protocol ({found:#018x}), expected newstyle; use a server newer than 2011"
    )]
    Oldstyle {
        /// The second magic number.
        found: u64,
    },
    /// The reply to an option has the wrong magic number.
    #[error(
        "reply to option {option} begins with {found:#018x}, expected {:#018x}",
        crate::constants::OPTION_REPLY_MAGIC
    )]
    OptionReplyMagic {
        /// The option.
        option: u32,
        /// What was found instead.
        found: u64,
    },
    /// The reply belongs to another option.
    #[error("reply to option {found}, expected one to option {expected}")]
    OtherOption {
        /// The option sent.
        expected: u32,
        /// The option replied to.
        found: u32,
    },
    /// The reply to an option is too long.
    #[error("reply of {length_bytes} bytes to option {option}, expected at most {limit_bytes}")]
    OptionReplyTooLong {
        /// The option.
        option: u32,
        /// Its length.
        length_bytes: u32,
        /// The longest that is accepted.
        limit_bytes: u32,
    },
    /// The reply to an option is malformed or of the wrong type.
    #[error("reply of kind {kind:#x} to option {option}: {reason}")]
    OptionReply {
        /// The option.
        option: u32,
        /// The type of reply.
        kind: u32,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The server has no TLS, and the client requires it.
    #[error(
        "export {export:?}: the server refuses TLS ({reason}), which this client requires; set up TLS there"
    )]
    TlsRefused {
        /// The export.
        export: String,
        /// The server's message.
        reason: String,
    },
    /// The server requires TLS, and the client must not use it.
    #[error("export {export:?}: the server requires TLS; use nbds:// or nbds+unix:// and give certificates")]
    TlsRequired {
        /// The export.
        export: String,
    },
    /// The server refuses the export.
    #[error("export {export:?}: the server refuses it: {reason}")]
    Refused {
        /// The export.
        export: String,
        /// The server's message.
        reason: String,
    },
    /// The export's name cannot be sent.
    #[error("export name of {length_bytes} bytes, expected at most 4096 without NUL; choose another name")]
    ExportName {
        /// Its length.
        length_bytes: usize,
    },
    /// The server's block sizes are not allowed.
    #[error("export {export:?}: {source}")]
    BlockSize {
        /// The export.
        export: String,
        /// What is wrong with them.
        source: BlockSizeError,
    },
    /// Unencrypted bytes followed the agreement on TLS.
    #[error(
        "{bytes} bytes in plain text after STARTTLS, expected a TLS handshake; someone may tamper with the line"
    )]
    PlainTextAfterStartTls {
        /// How many.
        bytes: usize,
    },
    /// More input after the end of negotiation.
    #[error("the negotiation is over and takes no more input")]
    NegotiationOver,
    /// A reply has a magic number that is not valid in this session.
    #[error("reply begins with {found:#010x}, expected a simple reply or a chunk; the stream is out of step")]
    ReplyMagic {
        /// What was found instead.
        found: u32,
    },
    /// A chunk, though structured replies were not negotiated.
    #[error("structured reply to request {cookie:#x}, expected a simple one as negotiated")]
    UnexpectedChunk {
        /// The request.
        cookie: u64,
    },
    /// A simple reply to a read, though structured replies were negotiated.
    #[error("simple reply to read {cookie:#x}, expected a structured one as negotiated")]
    UnexpectedSimpleReply {
        /// The request.
        cookie: u64,
    },
    /// No such request is in flight.
    #[error("reply to request {cookie:#x}, which is not in flight")]
    UnknownCookie {
        /// The cookie.
        cookie: u64,
    },
    /// A chunk of a type that is not valid for the request, or malformed.
    #[error("chunk of kind {kind:#x} and {length_bytes} bytes for request {cookie:#x}: {reason}")]
    Chunk {
        /// The request.
        cookie: u64,
        /// The type of chunk.
        kind: u16,
        /// Length of the payload.
        length_bytes: u32,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A chunk reaches outside its request.
    #[error(
        "{length_bytes} bytes at byte {offset_bytes} for request {cookie:#x}, which are outside the request"
    )]
    OutsideRequest {
        /// The request.
        cookie: u64,
        /// Where.
        offset_bytes: u64,
        /// How much.
        length_bytes: u32,
    },
    /// A chunk repeats data of another chunk.
    #[error(
        "{length_bytes} bytes at byte {offset_bytes} for request {cookie:#x}, part of which was received before"
    )]
    Overlap {
        /// The request.
        cookie: u64,
        /// Where.
        offset_bytes: u64,
        /// How much.
        length_bytes: u32,
    },
    /// The chunks of a reply are more scattered than a client can track.
    #[error("reply to request {cookie:#x} leaves more than {limit} gaps at a time")]
    TooFragmented {
        /// The request.
        cookie: u64,
        /// How many are tracked.
        limit: usize,
    },
    /// A read ends without an error and without all its data.
    #[error("read {cookie:#x} ends with {missing_bytes} bytes missing")]
    Incomplete {
        /// The request.
        cookie: u64,
        /// How much is missing.
        missing_bytes: u32,
    },
}
