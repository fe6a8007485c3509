//! The numbers on the wire, named as in the protocol document without the prefix `NBD_`.

/// First eight bytes sent by a server: `NBDMAGIC`.
pub const INIT_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Second eight bytes sent by a newstyle server, and start of every option: `IHAVEOPT`.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Second eight bytes sent by an oldstyle server.
pub const OLDSTYLE_MAGIC: u64 = 0x0000_4202_8186_1253;
/// Start of every reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Start of a request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Start of a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Start of a chunk of a structured reply.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Handshake and client flag: options get replies.
pub const FLAG_FIXED_NEWSTYLE: u16 = 1 << 0;
/// Handshake and client flag: no padding after the reply to `OPT_EXPORT_NAME`.
pub const FLAG_NO_ZEROES: u16 = 1 << 1;

/// Select an export and start transmission; errors get no reply.
pub const OPT_EXPORT_NAME: u32 = 1;
/// End the session.
pub const OPT_ABORT: u32 = 2;
/// List the exports.
pub const OPT_LIST: u32 = 3;
/// Continue under TLS.
pub const OPT_STARTTLS: u32 = 5;
/// Query an export.
pub const OPT_INFO: u32 = 6;
/// Query an export and start transmission.
pub const OPT_GO: u32 = 7;
/// Answer reads in chunks.
pub const OPT_STRUCTURED_REPLY: u32 = 8;
/// List metadata contexts.
pub const OPT_LIST_META_CONTEXT: u32 = 9;
/// Select metadata contexts.
pub const OPT_SET_META_CONTEXT: u32 = 10;

/// The option is done.
pub const REP_ACK: u32 = 1;
/// The name of an export.
pub const REP_SERVER: u32 = 2;
/// A piece of information about an export.
pub const REP_INFO: u32 = 3;
/// A metadata context.
pub const REP_META_CONTEXT: u32 = 4;
/// Bit that distinguishes errors from other replies.
pub const REP_ERROR_BIT: u32 = 1 << 31;
/// The option is unknown.
pub const REP_ERR_UNSUP: u32 = REP_ERROR_BIT + 1;
/// The server's configuration forbids it.
pub const REP_ERR_POLICY: u32 = REP_ERROR_BIT + 2;
/// The option is malformed or comes at the wrong time.
pub const REP_ERR_INVALID: u32 = REP_ERROR_BIT + 3;
/// The server's platform lacks it.
pub const REP_ERR_PLATFORM: u32 = REP_ERROR_BIT + 4;
/// TLS is required first.
pub const REP_ERR_TLS_REQD: u32 = REP_ERROR_BIT + 5;
/// There is no such export.
pub const REP_ERR_UNKNOWN: u32 = REP_ERROR_BIT + 6;
/// The server is shutting down.
pub const REP_ERR_SHUTDOWN: u32 = REP_ERROR_BIT + 7;
/// The client must ask for block sizes.
pub const REP_ERR_BLOCK_SIZE_REQD: u32 = REP_ERROR_BIT + 8;
/// The option is too long.
pub const REP_ERR_TOO_BIG: u32 = REP_ERROR_BIT + 9;

/// Size and transmission flags.
pub const INFO_EXPORT: u16 = 0;
/// Canonical name.
pub const INFO_NAME: u16 = 1;
/// Human-readable description.
pub const INFO_DESCRIPTION: u16 = 2;
/// Block sizes.
pub const INFO_BLOCK_SIZE: u16 = 3;

/// The last chunk of a reply.
pub const REPLY_FLAG_DONE: u16 = 1 << 0;
/// A chunk without payload.
pub const REPLY_TYPE_NONE: u16 = 0;
/// A chunk of data.
pub const REPLY_TYPE_OFFSET_DATA: u16 = 1;
/// A chunk of zeroes.
pub const REPLY_TYPE_OFFSET_HOLE: u16 = 2;
/// A chunk of extents.
pub const REPLY_TYPE_BLOCK_STATUS: u16 = 5;
/// Bit that distinguishes error chunks from others.
pub const REPLY_TYPE_ERROR_BIT: u16 = 1 << 15;
/// An error.
pub const REPLY_TYPE_ERROR: u16 = REPLY_TYPE_ERROR_BIT + 1;
/// An error at an offset.
pub const REPLY_TYPE_ERROR_OFFSET: u16 = REPLY_TYPE_ERROR_BIT + 2;

/// Flag of a `base:allocation` extent: not allocated.
pub const STATE_HOLE: u32 = 1 << 0;
/// Flag of a `base:allocation` extent: reads as zeroes.
pub const STATE_ZERO: u32 = 1 << 1;
/// Flag of a `haversack:cache` extent: the cache holds it.
pub const STATE_CACHED: u32 = 1 << 0;
/// Flag of a `haversack:cache` extent: the cache holds it and the origin does not have it yet.
pub const STATE_DIRTY: u32 = 1 << 1;

/// The default port of NBD.
pub const DEFAULT_PORT: u16 = 10809;
/// Longest name, description or message: 4,096 bytes.
pub const MAX_STRING_BYTES: usize = 4096;
/// Longest option that a server accepts, and longest reply that a client accepts: 8 KiB.
pub const MAX_OPTION_BYTES: u32 = 8 << 10;
/// Every server must accept payloads of this length: 32 MiB.
pub const DEFAULT_MAX_PAYLOAD_BYTES: u32 = 32 << 20;
