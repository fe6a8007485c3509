//! The messages about who owns a disk.

use haversack_model::HostId;
use haversack_ownership::{Grant, Message};

use super::WireError;
use super::fields::{Reader, Writer, check_entries};

pub(super) const ASK: u8 = 16;
pub(super) const GRANTED: u8 = 17;
pub(super) const GO_TO: u8 = 18;
pub(super) const NOT_YET: u8 = 19;

pub(super) fn kind(message: &Message) -> u8 {
    match message {
        Message::Ask { .. } => ASK,
        Message::Granted(_) => GRANTED,
        Message::GoTo { .. } => GO_TO,
        Message::NotYet => NOT_YET,
    }
}

pub(super) fn check(message: &Message) -> Result<(), WireError> {
    match message {
        Message::Ask { granted: Some(grant) } | Message::Granted(grant) | Message::GoTo { grant, .. } => {
            check_entries(grant.holders.len())
        }
        Message::Ask { granted: None } | Message::NotYet => Ok(()),
    }
}

pub(super) fn write(message: &Message, to: &mut Writer<'_>) {
    match message {
        Message::Ask { granted } => to.option(granted.as_ref(), write_grant),
        Message::Granted(grant) => write_grant(to, grant),
        Message::GoTo { to: host, grant } => {
            to.u64(host.0);
            write_grant(to, grant);
        }
        Message::NotYet => {}
    }
}

pub(super) fn read(kind: u8, from: &mut Reader<'_>) -> Result<Message, WireError> {
    Ok(match kind {
        ASK => Message::Ask { granted: from.option("granted", read_grant)? },
        GRANTED => Message::Granted(read_grant(from)?),
        GO_TO => Message::GoTo { to: HostId(from.u64()?), grant: read_grant(from)? },
        NOT_YET => Message::NotYet,
        other => return Err(WireError::Kind(other)),
    })
}

fn write_grant(to: &mut Writer<'_>, grant: &Grant) {
    to.u64(grant.epoch);
    to.list(grant.holders.iter(), |to, host| to.u64(host.0));
}

fn read_grant(from: &mut Reader<'_>) -> Result<Grant, WireError> {
    let epoch = from.u64()?;
    let holders: Vec<HostId> = from.list(8, |from| from.u64().map(HostId))?;
    if !holders.is_sorted_by(|one, next| one < next) {
        return Err(WireError::Order);
    }
    Ok(Grant { epoch, holders: holders.into_iter().collect() })
}
