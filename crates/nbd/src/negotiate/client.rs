//! The client's side of negotiation: TLS if wanted, structured replies if there are any, a metadata context if wanted,
//! then GO, or `EXPORT_NAME` with servers that do not know GO.
//!
//! ```
//! use std::io::{self, Read, Write};
//! use haversack_nbd::{ClientNegotiation, ClientStep, Connected, TlsPolicy};
//!
//! fn connect(stream: &mut (impl Read + Write), export: &str) -> io::Result<Connected> {
//!     let mut negotiation = ClientNegotiation::new(export, TlsPolicy::Off).map_err(io::Error::other)?;
//!     let mut output = Vec::new();
//!     let mut buffer = vec![0; 8192];
//!     loop {
//!         // Reading only the wanted bytes leaves nothing over for TLS or the transmission phase.
//!         let bytes = &mut buffer[..negotiation.wanted_bytes()];
//!         stream.read_exact(bytes).map_err(|_| io::Error::other(negotiation.closed()))?;
//!         let step = negotiation.receive(&mut &*bytes, &mut output);
//!         stream.write_all(&output)?; // even after an error: it may be a farewell
//!         output.clear();
//!         match step.map_err(io::Error::other)? {
//!             ClientStep::Continue => {}
//!             ClientStep::StartTls => {
//!                 // Wrap the stream in TLS here.
//!                 negotiation.tls_started(&mut output);
//!                 stream.write_all(&output)?;
//!                 output.clear();
//!             }
//!             ClientStep::Connected(connected) => return Ok(connected),
//!         }
//!     }
//! }
//! ```
//!
//! Invariants: memory is bounded by one reply of 8 KiB; a longer one is an error. Nothing but STARTTLS is sent before
//! TLS when TLS is required.

use super::{TlsPolicy, shown};
use crate::constants as c;
use crate::error::ClientError;
use crate::export::BlockSize;
use crate::flags::TransmissionFlags;
use crate::transmit::RequestRules;
use crate::wire::{Collector, Fields};

const GREETING_BYTES: usize = 18;
const REPLY_HEAD_BYTES: usize = 20;

/// What to do next.
#[derive(Debug)]
pub enum ClientStep {
    /// Send the output; call again with the rest of the input, or with more.
    Continue,
    /// Wrap the stream in TLS, then call [`ClientNegotiation::tls_started`] and continue.
    StartTls,
    /// The transmission phase begins, with the rest of the input.
    Connected(Connected),
}

/// What was negotiated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Connected {
    /// Size of the export in bytes.
    pub size_bytes: u64,
    /// What the export can do.
    pub flags: TransmissionFlags,
    /// What requests comply with: as the server announced, else [`BlockSize::CLIENT_DEFAULT`].
    pub block_size: BlockSize,
    /// Whether reads are answered in chunks.
    pub structured_replies: bool,
    /// The server's number for the metadata context, if one was requested and the export has it.
    pub context_id: Option<u32>,
    /// Whether the session is under TLS.
    pub tls: bool,
}

impl Connected {
    /// Returns the rules that requests of this session follow.
    pub const fn rules(&self) -> RequestRules {
        RequestRules {
            size_bytes: self.size_bytes,
            flags: self.flags,
            block_size: self.block_size,
            block_status: self.context_id.is_some(),
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum State {
    Greeting,
    ReplyHead { option: u32 },
    ReplyData { option: u32, kind: u32, length: u32 },
    ExportName,
    Over,
}

/// A client's negotiation with one server.
#[derive(Debug)]
pub struct ClientNegotiation {
    export: String,
    policy: TlsPolicy,
    state: State,
    collector: Collector,
    no_zeroes: bool,
    tls: bool,
    structured_replies: bool,
    context: Option<String>,
    context_id: Option<u32>,
    size_and_flags: Option<(u64, TransmissionFlags)>,
    block_size: BlockSize,
}

impl ClientNegotiation {
    /// Starts; the server sends first.
    ///
    /// # Errors
    /// The export's name is longer than 4,096 bytes or contains NUL.
    pub fn new(export: &str, policy: TlsPolicy) -> Result<Self, ClientError> {
        if export.len() > c::MAX_STRING_BYTES || export.contains('\0') {
            return Err(ClientError::ExportName { length_bytes: export.len() });
        }
        Ok(Self {
            export: export.to_owned(),
            policy,
            state: State::Greeting,
            collector: Collector::new(GREETING_BYTES),
            no_zeroes: false,
            tls: false,
            structured_replies: false,
            context: None,
            context_id: None,
            size_and_flags: None,
            block_size: BlockSize::CLIENT_DEFAULT,
        })
    }

    /// Requests a metadata context, such as `qemu:allocation-depth`, for BLOCK_STATUS. The export need not have it.
    ///
    /// # Errors
    /// The name is longer than 4,096 bytes or contains NUL.
    pub fn with_context(mut self, context: &str) -> Result<Self, ClientError> {
        if context.len() > c::MAX_STRING_BYTES || context.contains('\0') {
            return Err(ClientError::ExportName { length_bytes: context.len() });
        }
        self.context = Some(context.to_owned());
        Ok(self)
    }

    /// Returns how many bytes the current message lacks, at most 8,192. A caller that reads no more at a time has
    /// nothing left over when negotiation ends.
    pub fn wanted_bytes(&self) -> usize {
        match self.state {
            State::Greeting => self.collector.missing(GREETING_BYTES),
            State::ReplyHead { .. } => self.collector.missing(REPLY_HEAD_BYTES),
            State::ReplyData { length, .. } => self.collector.missing(length as usize),
            State::ExportName => self.collector.missing(self.export_name_bytes()),
            State::Over => 0,
        }
    }

    /// Returns the error for a connection that the server closed at this point.
    pub fn closed(&self) -> ClientError {
        let reason = match self.state {
            State::Greeting => "it closed the connection without a greeting",
            State::ExportName => "it closed the connection, as old servers do when there is no such export",
            State::ReplyHead { .. } | State::ReplyData { .. } => {
                "it closed the connection during negotiation"
            }
            State::Over => "it closed the connection after negotiation",
        };
        ClientError::Refused { export: self.export.clone(), reason: reason.to_owned() }
    }

    /// Continues after the stream was wrapped in TLS: appends the bytes to send to `output`.
    pub fn tls_started(&mut self, output: &mut Vec<u8>) {
        self.tls = true;
        self.send(c::OPT_STRUCTURED_REPLY, &[], output);
    }

    /// Takes bytes from the server from the front of `input`, up to the end of one reply, and appends the bytes to
    /// send to `output`.
    ///
    /// # Errors
    /// The connection must be closed, after sending the output.
    pub fn receive(&mut self, input: &mut &[u8], output: &mut Vec<u8>) -> Result<ClientStep, ClientError> {
        loop {
            match self.state {
                State::Greeting => {
                    if self.collector.fill(input, GREETING_BYTES) {
                        self.greeting(output)?;
                    }
                    return Ok(ClientStep::Continue);
                }
                State::ReplyHead { option } => {
                    if !self.collector.fill(input, REPLY_HEAD_BYTES) {
                        return Ok(ClientStep::Continue);
                    }
                    self.reply_head(option)?;
                }
                State::ReplyData { option, kind, length } => {
                    if !self.collector.fill(input, length as usize) {
                        return Ok(ClientStep::Continue);
                    }
                    let data = std::mem::replace(&mut self.collector, Collector::new(REPLY_HEAD_BYTES));
                    self.state = State::ReplyHead { option };
                    let step = self.reply(option, kind, data.bytes(), input, output);
                    if step.is_err() {
                        self.send(c::OPT_ABORT, &[], output);
                        self.state = State::Over;
                    }
                    return step;
                }
                State::ExportName => {
                    if !self.collector.fill(input, self.export_name_bytes()) {
                        return Ok(ClientStep::Continue);
                    }
                    let mut fields = Fields(self.collector.bytes());
                    let size = fields.u64().unwrap_or_default();
                    let flags = fields.u16().unwrap_or_default();
                    return Ok(self.connected(size, TransmissionFlags::from_bits(flags)));
                }
                State::Over => return Err(ClientError::NegotiationOver),
            }
        }
    }

    fn export_name_bytes(&self) -> usize {
        if self.no_zeroes { 10 } else { 134 }
    }

    fn greeting(&mut self, output: &mut Vec<u8>) -> Result<(), ClientError> {
        let mut fields = Fields(self.collector.bytes());
        let (first, second) = (fields.u64().unwrap_or_default(), fields.u64().unwrap_or_default());
        let flags = fields.u16().unwrap_or_default();
        self.collector.clear();
        if first != c::INIT_MAGIC {
            return Err(ClientError::NotNbd { found: first });
        }
        if second != c::OPTION_MAGIC {
            return Err(ClientError::Oldstyle { found: second });
        }
        let known = flags & (c::FLAG_FIXED_NEWSTYLE | c::FLAG_NO_ZEROES);
        self.no_zeroes = known & c::FLAG_NO_ZEROES != 0;
        let fixed = known & c::FLAG_FIXED_NEWSTYLE != 0;
        if !fixed && self.policy == TlsPolicy::Required {
            let reason = "it does not know the fixed newstyle".to_owned();
            return Err(ClientError::TlsRefused { export: self.export.clone(), reason });
        }
        output.extend_from_slice(&u32::from(known).to_be_bytes());
        match (fixed, self.policy) {
            (false, _) => self.send_export_name(output),
            (true, TlsPolicy::Off) => self.send(c::OPT_STRUCTURED_REPLY, &[], output),
            (true, TlsPolicy::Allowed | TlsPolicy::Required) => self.send(c::OPT_STARTTLS, &[], output),
        }
        Ok(())
    }

    fn reply_head(&mut self, option: u32) -> Result<(), ClientError> {
        let mut fields = Fields(self.collector.bytes());
        let found = fields.u64().unwrap_or_default();
        let answered = fields.u32().unwrap_or_default();
        let kind = fields.u32().unwrap_or_default();
        let length = fields.u32().unwrap_or_default();
        self.collector.clear();
        if found != c::OPTION_REPLY_MAGIC {
            return Err(ClientError::OptionReplyMagic { option, found });
        }
        if answered != option {
            return Err(ClientError::OtherOption { expected: option, found: answered });
        }
        if length > c::MAX_OPTION_BYTES {
            let limit_bytes = c::MAX_OPTION_BYTES;
            return Err(ClientError::OptionReplyTooLong { option, length_bytes: length, limit_bytes });
        }
        self.state = State::ReplyData { option, kind, length };
        Ok(())
    }

    fn reply(
        &mut self,
        option: u32,
        kind: u32,
        data: &[u8],
        input: &[u8],
        output: &mut Vec<u8>,
    ) -> Result<ClientStep, ClientError> {
        let failed = kind & c::REP_ERROR_BIT != 0;
        if kind == c::REP_ACK && !data.is_empty() {
            return Err(ClientError::OptionReply { option, kind, reason: "an ACK has no data" });
        }
        match option {
            c::OPT_STARTTLS if kind == c::REP_ACK => {
                if !input.is_empty() {
                    return Err(ClientError::PlainTextAfterStartTls { bytes: input.len() });
                }
                return Ok(ClientStep::StartTls);
            }
            c::OPT_STARTTLS if failed && self.policy == TlsPolicy::Required => {
                let reason = error_text(kind, data);
                return Err(ClientError::TlsRefused { export: self.export.clone(), reason });
            }
            c::OPT_STARTTLS if failed => self.send(c::OPT_STRUCTURED_REPLY, &[], output),
            _ if kind == c::REP_ERR_TLS_REQD => {
                return Err(ClientError::TlsRequired { export: self.export.clone() });
            }
            c::OPT_STRUCTURED_REPLY if failed || kind == c::REP_ACK => {
                self.structured_replies = !failed;
                match self.context.take().filter(|_| self.structured_replies) {
                    Some(context) => self.send_set_context(&context, output),
                    None => self.send_go(output),
                }
            }
            c::OPT_SET_META_CONTEXT if kind == c::REP_META_CONTEXT => {
                let id = Fields(data).u32();
                let reason = "the number of the context is missing";
                self.context_id = Some(id.ok_or(ClientError::OptionReply { option, kind, reason })?);
            }
            c::OPT_SET_META_CONTEXT if failed || kind == c::REP_ACK => {
                self.context_id = self.context_id.filter(|_| !failed);
                self.send_go(output);
            }
            c::OPT_GO if kind == c::REP_INFO => self.info(data)?,
            c::OPT_GO if kind == c::REP_ACK => {
                let (size_bytes, flags) = self.size_and_flags.ok_or(ClientError::OptionReply {
                    option,
                    kind,
                    reason: "the export's size and flags did not come before it",
                })?;
                return Ok(self.connected(size_bytes, flags));
            }
            c::OPT_GO if kind == c::REP_ERR_UNSUP => self.send_export_name(output),
            c::OPT_GO if failed => {
                let reason = error_text(kind, data);
                return Err(ClientError::Refused { export: self.export.clone(), reason });
            }
            _ => {
                return Err(ClientError::OptionReply {
                    option,
                    kind,
                    reason: "this kind does not answer the option",
                });
            }
        }
        Ok(ClientStep::Continue)
    }

    fn info(&mut self, data: &[u8]) -> Result<(), ClientError> {
        let malformed = |reason| ClientError::OptionReply { option: c::OPT_GO, kind: c::REP_INFO, reason };
        let mut fields = Fields(data);
        match fields.u16().ok_or_else(|| malformed("the kind of information is missing"))? {
            c::INFO_EXPORT => {
                let (Some(size), Some(flags), true) = (fields.u64(), fields.u16(), fields.is_empty()) else {
                    return Err(malformed("size and flags have 12 bytes"));
                };
                self.size_and_flags = Some((size, TransmissionFlags::from_bits(flags)));
            }
            c::INFO_BLOCK_SIZE => {
                let (Some(minimum), Some(preferred), Some(maximum), true) =
                    (fields.u32(), fields.u32(), fields.u32(), fields.is_empty())
                else {
                    return Err(malformed("block sizes have 14 bytes"));
                };
                self.block_size = BlockSize::new(minimum, preferred, maximum)
                    .map_err(|source| ClientError::BlockSize { export: self.export.clone(), source })?;
            }
            _ => {}
        }
        Ok(())
    }

    fn connected(&mut self, size_bytes: u64, flags: TransmissionFlags) -> ClientStep {
        self.state = State::Over;
        let flags = if self.structured_replies { flags } else { flags.without(TransmissionFlags::SEND_DF) };
        ClientStep::Connected(Connected {
            size_bytes,
            flags,
            block_size: self.block_size,
            structured_replies: self.structured_replies,
            context_id: self.context_id,
            tls: self.tls,
        })
    }

    fn send_set_context(&mut self, context: &str, output: &mut Vec<u8>) {
        let mut data = (self.export.len() as u32).to_be_bytes().to_vec();
        data.extend_from_slice(self.export.as_bytes());
        data.extend_from_slice(&1_u32.to_be_bytes());
        data.extend_from_slice(&(context.len() as u32).to_be_bytes());
        data.extend_from_slice(context.as_bytes());
        self.send(c::OPT_SET_META_CONTEXT, &data, output);
    }

    fn send_go(&mut self, output: &mut Vec<u8>) {
        let mut data = (self.export.len() as u32).to_be_bytes().to_vec();
        data.extend_from_slice(self.export.as_bytes());
        data.extend_from_slice(&1_u16.to_be_bytes());
        data.extend_from_slice(&c::INFO_BLOCK_SIZE.to_be_bytes());
        self.send(c::OPT_GO, &data, output);
    }

    fn send_export_name(&mut self, output: &mut Vec<u8>) {
        let name = self.export.clone();
        self.send(c::OPT_EXPORT_NAME, name.as_bytes(), output);
        self.state = State::ExportName;
    }

    fn send(&mut self, option: u32, data: &[u8], output: &mut Vec<u8>) {
        output.extend_from_slice(&c::OPTION_MAGIC.to_be_bytes());
        output.extend_from_slice(&option.to_be_bytes());
        output.extend_from_slice(&(data.len() as u32).to_be_bytes());
        output.extend_from_slice(data);
        self.state = State::ReplyHead { option };
    }
}

/// Returns an error reply's human-readable message.
fn error_text(kind: u32, data: &[u8]) -> String {
    let name = match kind {
        c::REP_ERR_UNSUP => "not supported",
        c::REP_ERR_POLICY => "forbidden by its configuration",
        c::REP_ERR_INVALID => "invalid request",
        c::REP_ERR_PLATFORM => "not supported on its platform",
        c::REP_ERR_TLS_REQD => "TLS required",
        c::REP_ERR_UNKNOWN => "no such export",
        c::REP_ERR_SHUTDOWN => "it is shutting down",
        c::REP_ERR_BLOCK_SIZE_REQD => "block sizes must be asked for",
        c::REP_ERR_TOO_BIG => "request too long",
        _ => "unknown error",
    };
    if data.is_empty() { name.to_owned() } else { format!("{name}: {}", shown(data)) }
}
