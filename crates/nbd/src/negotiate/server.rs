//! The server's side of negotiation, fixed newstyle.
//!
//! Bytes from the client go in, bytes to send come out, and the caller looks up exports:
//!
//! ```
//! use std::io::{self, Read, Write};
//! use haversack_nbd::{Exports, Negotiated, ServerNegotiation, ServerStep, TlsPolicy};
//!
//! fn serve(stream: &mut (impl Read + Write), exports: &mut impl Exports) -> io::Result<Option<Negotiated>> {
//!     let mut output = Vec::new();
//!     let mut negotiation = ServerNegotiation::new(TlsPolicy::Off, &mut output);
//!     stream.write_all(&output)?;
//!     let mut buffer = vec![0; 8192];
//!     loop {
//!         // Reading only the wanted bytes leaves nothing over for TLS or the transmission phase.
//!         let bytes = &mut buffer[..negotiation.wanted_bytes()];
//!         stream.read_exact(bytes)?;
//!         output.clear();
//!         let step = negotiation.receive(&mut &*bytes, exports, &mut output).map_err(io::Error::other)?;
//!         stream.write_all(&output)?;
//!         match step {
//!             ServerStep::Continue => {}
//!             ServerStep::StartTls => unreachable!("the policy is off; else: wrap the stream in TLS and go on"),
//!             ServerStep::Transmission(negotiated) => return Ok(Some(*negotiated)),
//!             ServerStep::Aborted => return Ok(None),
//!         }
//!     }
//! }
//! ```
//!
//! Invariants: memory is bounded by one option of 8 KiB; a longer one is skipped and refused. At most one option is
//! answered per call, so output does not pile up. Nothing negotiated before TLS is valid after it. Timeouts for a
//! client are up to the caller.

use super::TlsPolicy;
use super::option::{InfoRequest, Malformed, MetaRequest, Replies, name};
use super::shown;
use crate::constants as c;
use crate::error::ServerError;
use crate::export::{ExportInfo, MetaContext, MetaContexts};
use crate::flags::TransmissionFlags;
use crate::transmit::{Replier, RequestRules};
use crate::wire::{Collector, Fields};

const OPTION_HEAD_BYTES: usize = 16;

/// What a server asks its owner. Each session asks again, so answers may change and differ per client.
pub trait Exports {
    /// Returns the names to list, each at most 4,096 bytes without NUL.
    fn names(&mut self) -> Vec<String>;

    /// Returns the export of that name, which may be empty for a default export.
    fn lookup(&mut self, name: &str) -> Option<ExportInfo>;
}

/// What to do next.
#[derive(Debug)]
pub enum ServerStep {
    /// Send the output; call again with the rest of the input, or with more.
    Continue,
    /// Send the output, wrap the stream in TLS, continue. A failed TLS handshake ends the connection.
    StartTls,
    /// Send the output; then the transmission phase begins, with the rest of the input.
    Transmission(Box<Negotiated>),
    /// Send the output and close: the client ended the session.
    Aborted,
}

/// What was negotiated.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Negotiated {
    /// The export as the owner described it.
    pub export: ExportInfo,
    /// The flags that were sent to the client.
    pub flags: TransmissionFlags,
    /// Whether reads are answered in chunks.
    pub structured_replies: bool,
    /// What BLOCK_STATUS reports.
    pub meta_contexts: MetaContexts,
    /// Whether the client opted out of the padding after `EXPORT_NAME`.
    pub no_zeroes: bool,
    /// Whether the client promised to comply with the block sizes.
    pub block_size_agreed: bool,
    /// Whether the session is under TLS.
    pub tls: bool,
}

impl Negotiated {
    /// Returns the rules by which requests of this session are checked.
    pub const fn rules(&self) -> RequestRules {
        RequestRules {
            size_bytes: self.export.size_bytes,
            flags: self.flags,
            block_size: self.export.block_size,
            block_status: !self.meta_contexts.is_empty(),
        }
    }

    /// Returns the writer of this session's replies.
    pub const fn replier(&self) -> Replier {
        Replier { structured: self.structured_replies }
    }
}

#[derive(Clone, Copy, Debug)]
enum State {
    ClientFlags,
    OptionHead,
    OptionData { option: u32, length: u32 },
    Skip { option: u32, left: u32 },
    Over,
}

/// A server's negotiation with one client.
#[derive(Debug)]
pub struct ServerNegotiation {
    policy: TlsPolicy,
    state: State,
    collector: Collector,
    fixed: bool,
    no_zeroes: bool,
    tls: bool,
    structured_replies: bool,
    /// The export for which contexts were selected, and the contexts.
    meta: Option<(String, MetaContexts)>,
}

impl ServerNegotiation {
    /// Starts: appends the greeting to `output`, which is to be sent first.
    pub fn new(policy: TlsPolicy, output: &mut Vec<u8>) -> Self {
        output.extend_from_slice(&c::INIT_MAGIC.to_be_bytes());
        output.extend_from_slice(&c::OPTION_MAGIC.to_be_bytes());
        output.extend_from_slice(&(c::FLAG_FIXED_NEWSTYLE | c::FLAG_NO_ZEROES).to_be_bytes());
        Self {
            policy,
            state: State::ClientFlags,
            collector: Collector::new(OPTION_HEAD_BYTES),
            fixed: false,
            no_zeroes: false,
            tls: false,
            structured_replies: false,
            meta: None,
        }
    }

    /// Returns how many bytes the current message lacks, at most 8,192. A caller that reads no more at a time has
    /// nothing left over when negotiation ends.
    pub fn wanted_bytes(&self) -> usize {
        match self.state {
            State::ClientFlags => self.collector.missing(4),
            State::OptionHead => self.collector.missing(OPTION_HEAD_BYTES),
            State::OptionData { length, .. } => self.collector.missing(length as usize),
            State::Skip { left, .. } => left.min(c::MAX_OPTION_BYTES) as usize,
            State::Over => 0,
        }
    }

    /// Takes bytes from the client from the front of `input`, up to the end of one option, and appends the bytes to
    /// send to `output`.
    ///
    /// # Errors
    /// The connection must be closed; nothing needs to be sent.
    pub fn receive(
        &mut self,
        input: &mut &[u8],
        exports: &mut dyn Exports,
        output: &mut Vec<u8>,
    ) -> Result<ServerStep, ServerError> {
        loop {
            match self.state {
                State::ClientFlags => {
                    if !self.collector.fill(input, 4) {
                        return Ok(ServerStep::Continue);
                    }
                    self.client_flags()?;
                }
                State::OptionHead => {
                    if !self.collector.fill(input, OPTION_HEAD_BYTES) {
                        return Ok(ServerStep::Continue);
                    }
                    self.option_head()?;
                }
                State::OptionData { option, length } => {
                    if !self.collector.fill(input, length as usize) {
                        return Ok(ServerStep::Continue);
                    }
                    let data = std::mem::replace(&mut self.collector, Collector::new(OPTION_HEAD_BYTES));
                    self.state = State::OptionHead;
                    return self.option(option, data.bytes(), input, exports, output);
                }
                State::Skip { option, left } => {
                    let skipped = left.min(u32::try_from(input.len()).unwrap_or(u32::MAX));
                    *input = &input[skipped as usize..];
                    if skipped < left {
                        self.state = State::Skip { option, left: left - skipped };
                    } else {
                        self.state = State::OptionHead;
                        self.refuse_too_long(option, output);
                    }
                    return Ok(ServerStep::Continue);
                }
                State::Over => return Err(ServerError::NegotiationOver),
            }
        }
    }

    fn client_flags(&mut self) -> Result<(), ServerError> {
        let found = Fields(self.collector.bytes()).u32().unwrap_or_default();
        self.collector.clear();
        if found & !u32::from(c::FLAG_FIXED_NEWSTYLE | c::FLAG_NO_ZEROES) != 0 {
            return Err(ServerError::ClientFlags { found });
        }
        self.fixed = found & u32::from(c::FLAG_FIXED_NEWSTYLE) != 0;
        self.no_zeroes = found & u32::from(c::FLAG_NO_ZEROES) != 0;
        self.state = State::OptionHead;
        Ok(())
    }

    fn option_head(&mut self) -> Result<(), ServerError> {
        let mut fields = Fields(self.collector.bytes());
        let found = fields.u64().unwrap_or_default();
        let option = fields.u32().unwrap_or_default();
        let length = fields.u32().unwrap_or_default();
        self.collector.clear();
        if found != c::OPTION_MAGIC {
            return Err(ServerError::OptionMagic { found });
        }
        if !self.fixed && option != c::OPT_EXPORT_NAME {
            return Err(ServerError::NotFixedNewstyle { option });
        }
        if length <= c::MAX_OPTION_BYTES {
            self.state = State::OptionData { option, length };
        } else if option == c::OPT_EXPORT_NAME {
            let reason = "the name is longer than 4096 bytes";
            return Err(ServerError::ExportRefused { export: String::new(), reason });
        } else {
            self.state = State::Skip { option, left: length };
        }
        Ok(())
    }

    fn needs_tls(&self) -> bool {
        self.policy == TlsPolicy::Required && !self.tls
    }

    fn refuse_too_long(&self, option: u32, output: &mut Vec<u8>) {
        let mut replies = Replies { option, output };
        if self.needs_tls() {
            replies.error(c::REP_ERR_TLS_REQD, "TLS is required");
        } else {
            replies.error(c::REP_ERR_TOO_BIG, "options are taken up to 8192 bytes");
        }
    }

    fn option(
        &mut self,
        option: u32,
        data: &[u8],
        input: &[u8],
        exports: &mut dyn Exports,
        output: &mut Vec<u8>,
    ) -> Result<ServerStep, ServerError> {
        let mut replies = Replies { option, output };
        match option {
            c::OPT_EXPORT_NAME => return self.export_name(data, exports, replies.output),
            c::OPT_ABORT => {
                replies.ack();
                self.state = State::Over;
                return Ok(ServerStep::Aborted);
            }
            c::OPT_STARTTLS => return self.start_tls(data, input, &mut replies),
            _ if self.needs_tls() => replies.error(c::REP_ERR_TLS_REQD, "TLS is required"),
            c::OPT_LIST if data.is_empty() => {
                exports.names().iter().for_each(|name| replies.server(name));
                replies.ack();
            }
            c::OPT_STRUCTURED_REPLY if data.is_empty() => {
                self.structured_replies = true;
                replies.ack();
            }
            c::OPT_LIST | c::OPT_STRUCTURED_REPLY => {
                replies.error(c::REP_ERR_INVALID, "the option takes no data");
            }
            c::OPT_INFO | c::OPT_GO => match InfoRequest::parse(data) {
                Ok(request) => return Ok(self.info(&request, exports, &mut replies)),
                Err(malformed) => replies.error(c::REP_ERR_INVALID, malformed),
            },
            c::OPT_LIST_META_CONTEXT | c::OPT_SET_META_CONTEXT => self.meta(data, exports, &mut replies),
            _ => replies.error(c::REP_ERR_UNSUP, "the option is unknown"),
        }
        Ok(ServerStep::Continue)
    }

    fn export_name(
        &mut self,
        data: &[u8],
        exports: &mut dyn Exports,
        output: &mut Vec<u8>,
    ) -> Result<ServerStep, ServerError> {
        let refused = |reason: Malformed| ServerError::ExportRefused { export: shown(data), reason };
        if self.needs_tls() {
            return Err(refused("TLS is required"));
        }
        let name = name(data).map_err(refused)?;
        let export = exports.lookup(name).ok_or_else(|| refused("there is no such export"))?;
        let negotiated = self.finish(export, false);
        output.extend_from_slice(&negotiated.export.size_bytes.to_be_bytes());
        output.extend_from_slice(&negotiated.flags.bits().to_be_bytes());
        if !self.no_zeroes {
            output.extend_from_slice(&[0; 124]);
        }
        Ok(ServerStep::Transmission(Box::new(negotiated)))
    }

    fn start_tls(
        &mut self,
        data: &[u8],
        input: &[u8],
        replies: &mut Replies<'_>,
    ) -> Result<ServerStep, ServerError> {
        if self.policy == TlsPolicy::Off {
            replies.error(c::REP_ERR_POLICY, "TLS is not set up on this server");
        } else if self.tls {
            replies.error(c::REP_ERR_INVALID, "the session is under TLS already");
        } else if !data.is_empty() {
            replies.error(c::REP_ERR_INVALID, "the option takes no data");
        } else if !input.is_empty() {
            return Err(ServerError::PlainTextAfterStartTls { bytes: input.len() });
        } else {
            replies.ack();
            self.tls = true;
            self.structured_replies = false;
            self.meta = None;
            return Ok(ServerStep::StartTls);
        }
        Ok(ServerStep::Continue)
    }

    fn info(
        &mut self,
        request: &InfoRequest<'_>,
        exports: &mut dyn Exports,
        replies: &mut Replies<'_>,
    ) -> ServerStep {
        let Some(export) = exports.lookup(request.name) else {
            replies.error(c::REP_ERR_UNKNOWN, "there is no such export");
            return ServerStep::Continue;
        };
        replies.info(request, &export, export.transmission_flags(self.structured_replies));
        replies.ack();
        if replies.option == c::OPT_INFO {
            return ServerStep::Continue;
        }
        ServerStep::Transmission(Box::new(self.finish(export, request.wants_block_size)))
    }

    fn meta(&mut self, data: &[u8], exports: &mut dyn Exports, replies: &mut Replies<'_>) {
        let set = replies.option == c::OPT_SET_META_CONTEXT;
        if set {
            self.meta = None;
        }
        if !self.structured_replies {
            return replies.error(c::REP_ERR_INVALID, "structured replies come first");
        }
        let request = match MetaRequest::parse(data) {
            Ok(request) => request,
            Err(malformed) => return replies.error(c::REP_ERR_INVALID, malformed),
        };
        let Some(export) = exports.lookup(request.name) else {
            return replies.error(c::REP_ERR_UNKNOWN, "there is no such export");
        };
        let mut contexts = request.exact;
        if !set {
            request.wildcard.iter().for_each(|context| contexts.insert(context));
            if request.queries == 0 {
                MetaContext::ALL.into_iter().for_each(|context| contexts.insert(context));
            }
        }
        for context in contexts.iter() {
            replies.meta_context(if set { context.id() } else { 0 }, context);
        }
        replies.ack();
        if set {
            self.meta = Some((export.name, contexts));
        }
    }

    fn finish(&mut self, export: ExportInfo, block_size_agreed: bool) -> Negotiated {
        self.state = State::Over;
        let chosen = self.meta.take().filter(|(name, _)| *name == export.name);
        Negotiated {
            flags: export.transmission_flags(self.structured_replies),
            export,
            structured_replies: self.structured_replies,
            meta_contexts: chosen.map(|(_, contexts)| contexts).unwrap_or_default(),
            no_zeroes: self.no_zeroes,
            block_size_agreed,
            tls: self.tls,
        }
    }
}
