//! Options and their replies as bytes: what a server reads and writes.

use crate::constants as c;
use crate::export::{ExportInfo, MetaContext, MetaContexts};
use crate::flags::TransmissionFlags;
use crate::wire::{Fields, cut};

/// What is wrong with an option's data.
pub(super) type Malformed = &'static str;

/// The data of INFO and GO.
pub(super) struct InfoRequest<'a> {
    pub(super) name: &'a str,
    pub(super) wants_name: bool,
    pub(super) wants_description: bool,
    pub(super) wants_block_size: bool,
}

impl<'a> InfoRequest<'a> {
    pub(super) fn parse(data: &'a [u8]) -> Result<Self, Malformed> {
        let mut fields = Fields(data);
        let name = string(&mut fields)?;
        let count = fields.u16().ok_or("the number of information requests is missing")?;
        let mut request = Self { name, wants_name: false, wants_description: false, wants_block_size: false };
        for _ in 0..count {
            match fields.u16().ok_or("there are fewer information requests than announced")? {
                c::INFO_NAME => request.wants_name = true,
                c::INFO_DESCRIPTION => request.wants_description = true,
                c::INFO_BLOCK_SIZE => request.wants_block_size = true,
                _ => {}
            }
        }
        if fields.is_empty() {
            Ok(request)
        } else {
            Err("there are more information requests than announced")
        }
    }
}

/// The data of `LIST_META_CONTEXT` and `SET_META_CONTEXT`.
pub(super) struct MetaRequest<'a> {
    pub(super) name: &'a str,
    pub(super) queries: u32,
    /// Contexts whose whole name was among the queries.
    pub(super) exact: MetaContexts,
    /// Contexts for which only the namespace was among the queries.
    pub(super) wildcard: MetaContexts,
}

impl<'a> MetaRequest<'a> {
    pub(super) fn parse(data: &'a [u8]) -> Result<Self, Malformed> {
        let mut fields = Fields(data);
        let name = string(&mut fields)?;
        let queries = fields.u32().ok_or("the number of queries is missing")?;
        let mut request =
            Self { name, queries, exact: MetaContexts::default(), wildcard: MetaContexts::default() };
        for _ in 0..queries {
            let query = string(&mut fields)?;
            if !query.contains(':') {
                return Err("a query lacks the colon after its namespace");
            }
            for context in MetaContext::ALL {
                if query == context.name() {
                    request.exact.insert(context);
                } else if context.name().strip_prefix(query).is_some_and(|_| query.ends_with(':')) {
                    request.wildcard.insert(context);
                }
            }
        }
        if fields.is_empty() { Ok(request) } else { Err("there is data after the last query") }
    }
}

/// Returns a valid name, or the reason why it is invalid.
pub(super) fn name(bytes: &[u8]) -> Result<&str, Malformed> {
    if bytes.len() > c::MAX_STRING_BYTES {
        return Err("a string is longer than 4096 bytes");
    }
    if bytes.contains(&0) {
        return Err("a string contains NUL");
    }
    str::from_utf8(bytes).map_err(|_| "a string is not UTF-8")
}

fn string<'a>(fields: &mut Fields<'a>) -> Result<&'a str, Malformed> {
    let length = fields.u32().ok_or("a string's length is missing")?;
    let bytes = fields.bytes(length as usize).ok_or("a string is longer than the option")?;
    name(bytes)
}

/// Writes replies to one option.
pub(super) struct Replies<'a> {
    pub(super) option: u32,
    pub(super) output: &'a mut Vec<u8>,
}

impl Replies<'_> {
    pub(super) fn ack(&mut self) {
        self.reply(c::REP_ACK, &[]);
    }

    /// Writes an error with a human-readable text.
    pub(super) fn error(&mut self, kind: u32, text: &str) {
        self.reply(kind, &[cut(text, c::MAX_STRING_BYTES).as_bytes()]);
    }

    pub(super) fn server(&mut self, name: &str) {
        self.reply(c::REP_SERVER, &[&(name.len() as u32).to_be_bytes(), name.as_bytes()]);
    }

    pub(super) fn meta_context(&mut self, id: u32, context: MetaContext) {
        self.reply(c::REP_META_CONTEXT, &[&id.to_be_bytes(), context.name().as_bytes()]);
    }

    /// Writes the information that the client asked for about an export.
    pub(super) fn info(&mut self, request: &InfoRequest<'_>, export: &ExportInfo, flags: TransmissionFlags) {
        let size = export.size_bytes.to_be_bytes();
        self.one_info(c::INFO_EXPORT, &[&size, &flags.bits().to_be_bytes()]);
        if request.wants_name || request.name != export.name {
            self.one_info(c::INFO_NAME, &[export.name.as_bytes()]);
        }
        if request.wants_description && !export.description.is_empty() {
            self.one_info(c::INFO_DESCRIPTION, &[cut(&export.description, c::MAX_STRING_BYTES).as_bytes()]);
        }
        let sizes = export.block_size;
        self.one_info(
            c::INFO_BLOCK_SIZE,
            &[
                &sizes.minimum_bytes().to_be_bytes(),
                &sizes.preferred_bytes().to_be_bytes(),
                &sizes.maximum_payload_bytes().to_be_bytes(),
            ],
        );
    }

    fn one_info(&mut self, kind: u16, parts: &[&[u8]]) {
        let mut payload = kind.to_be_bytes().to_vec();
        parts.iter().for_each(|part| payload.extend_from_slice(part));
        self.reply(c::REP_INFO, &[&payload]);
    }

    fn reply(&mut self, kind: u32, parts: &[&[u8]]) {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        self.output.extend_from_slice(&c::OPTION_REPLY_MAGIC.to_be_bytes());
        self.output.extend_from_slice(&self.option.to_be_bytes());
        self.output.extend_from_slice(&kind.to_be_bytes());
        self.output.extend_from_slice(&(length as u32).to_be_bytes());
        parts.iter().for_each(|part| self.output.extend_from_slice(part));
    }
}
