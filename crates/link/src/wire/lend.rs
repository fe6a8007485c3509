//! The messages between a host that lends flash and one that borrows it.

use haversack_lend::{Loan, Message};

use super::WireError;
use super::fields::{Reader, Writer, check_data};

const OPEN: u8 = 64;
const OPENED: u8 = 65;
const ENDED: u8 = 66;
const CLOSE: u8 = 67;
const PUT: u8 = 68;
const GET: u8 = 69;
const GOT: u8 = 70;

/// Returns whether a kind is of these messages.
pub(super) fn is_kind(kind: u8) -> bool {
    (OPEN..=GOT).contains(&kind)
}

pub(super) fn kind(message: &Message) -> u8 {
    match message {
        Message::Open { .. } => OPEN,
        Message::Opened { .. } => OPENED,
        Message::Ended { .. } => ENDED,
        Message::Close { .. } => CLOSE,
        Message::Put { .. } => PUT,
        Message::Get { .. } => GET,
        Message::Got { .. } => GOT,
    }
}

pub(super) fn check(message: &Message) -> Result<(), WireError> {
    match message {
        Message::Put { data, .. } | Message::Got { found: Some((_, data)), .. } => check_data(data),
        _ => Ok(()),
    }
}

pub(super) fn write(message: &Message, to: &mut Writer<'_>) {
    let loan = message.loan();
    to.u64(loan.epoch);
    to.u64(loan.number);
    match message {
        Message::Open { blocks, disk_blocks, .. } => {
            to.u32(*blocks);
            to.u64(*disk_blocks);
        }
        Message::Opened { .. } | Message::Ended { .. } | Message::Close { .. } => {}
        Message::Put { block, crc, data, .. } => {
            to.u64(*block);
            to.u32(*crc);
            to.bytes(data);
        }
        Message::Get { block, question, .. } => {
            to.u64(*block);
            to.u64(*question);
        }
        Message::Got { block, question, found, .. } => {
            to.u64(*block);
            to.u64(*question);
            to.u8(found.is_some().into());
            if let Some((crc, data)) = found {
                to.u32(*crc);
                to.bytes(data);
            }
        }
    }
}

pub(super) fn read(kind: u8, from: &mut Reader<'_>) -> Result<Message, WireError> {
    let loan = Loan { epoch: from.u64()?, number: from.u64()? };
    Ok(match kind {
        OPEN => Message::Open { loan, blocks: from.u32()?, disk_blocks: from.u64()? },
        OPENED => Message::Opened { loan },
        ENDED => Message::Ended { loan },
        CLOSE => Message::Close { loan },
        PUT => Message::Put { loan, block: from.u64()?, crc: from.u32()?, data: from.data()? },
        GET => Message::Get { loan, block: from.u64()?, question: from.u64()? },
        GOT => {
            let (block, question) = (from.u64()?, from.u64()?);
            let found = from.option("found", |from| Ok((from.u32()?, from.data()?)))?;
            Message::Got { loan, block, question, found }
        }
        other => return Err(WireError::Kind(other)),
    })
}
