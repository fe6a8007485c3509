//! The messages about the copies and blocks of a disk that moves.

use haversack_migrate::{Message, Method, Part, Position, Question, ReplicaState, Session};

use haversack_model::BlockNo;

use super::fields::{Reader, Writer, check_data, check_entries};
use super::{WireError, grant};

pub(super) const OFFER: u8 = 32;
pub(super) const ARRIVED: u8 = 33;
pub(super) const COPY: u8 = 34;
pub(super) const WITHDRAW: u8 = 35;
pub(super) const LIST: u8 = 36;
pub(super) const LISTED: u8 = 37;
pub(super) const FETCH: u8 = 38;
pub(super) const FETCHED: u8 = 39;
pub(super) const FORGET: u8 = 40;
pub(super) const FORGOTTEN: u8 = 41;
pub(super) const ENOUGH: u8 = 42;
pub(super) const COPY_REUSED: u8 = 43;
pub(super) const ARRIVED_BUSY: u8 = 44;
pub(super) const REPLICA_OPEN: u8 = 51;
pub(super) const REPLICA_COPY: u8 = 52;
pub(super) const REPLICA_REMOVE: u8 = 53;
pub(super) const REPLICA_BEAT: u8 = 54;
pub(super) const REPLICA_END: u8 = 55;
pub(super) const REPLICA_HAS: u8 = 56;
pub(super) const REPLICA_DROPPED: u8 = 57;

pub(super) fn kind(message: &Message) -> u8 {
    match message {
        Message::Ownership(message) => grant::kind(message),
        Message::Offer { .. } => OFFER,
        Message::Arrived { is_busy: true, .. } => ARRIVED_BUSY,
        Message::Arrived { .. } => ARRIVED,
        Message::Copy { reused: true, .. } => COPY_REUSED,
        Message::Copy { .. } => COPY,
        Message::Withdraw { .. } => WITHDRAW,
        Message::List { .. } => LIST,
        Message::Listed { .. } => LISTED,
        Message::Fetch { .. } => FETCH,
        Message::Fetched { .. } => FETCHED,
        Message::Forget { .. } => FORGET,
        Message::Forgotten { .. } => FORGOTTEN,
        Message::Enough { .. } => ENOUGH,
        Message::ReplicaOpen { .. } => REPLICA_OPEN,
        Message::ReplicaCopy { .. } => REPLICA_COPY,
        Message::ReplicaRemove { .. } => REPLICA_REMOVE,
        Message::ReplicaBeat { .. } => REPLICA_BEAT,
        Message::ReplicaEnd { .. } => REPLICA_END,
        Message::ReplicaHas(_) => REPLICA_HAS,
        Message::ReplicaDropped { .. } => REPLICA_DROPPED,
    }
}

pub(super) fn check(message: &Message) -> Result<(), WireError> {
    match message {
        Message::Ownership(message) => grant::check(message),
        Message::Copy { data, .. } | Message::Fetched { data, .. } | Message::ReplicaCopy { data, .. } => {
            check_data(data)
        }
        Message::ReplicaRemove { blocks, .. } => check_entries(blocks.len()),
        Message::Listed { blocks, .. } => check_entries(blocks.len()),
        Message::Forget { blocks, .. } | Message::Forgotten { blocks, .. } => check_entries(blocks.len()),
        _ => Ok(()),
    }
}

pub(super) fn write(message: &Message, to: &mut Writer<'_>) {
    match message {
        Message::Ownership(message) => grant::write(message, to),
        Message::Offer { session, from } => {
            write_session(to, *session);
            write_position(to, *from);
        }
        Message::Arrived { session, taker, until, is_busy: _ } => {
            write_session(to, *session);
            to.u64(*taker);
            write_position(to, *until);
        }
        Message::Copy { session, taker, at, block, mask, reused: _, data } => {
            write_session(to, *session);
            to.u64(*taker);
            write_position(to, *at);
            to.u64(block.0);
            to.u8(*mask);
            to.bytes(data);
        }
        Message::Withdraw { session } => write_session(to, *session),
        Message::List { question, epoch, session, part } => {
            write_question(to, *question);
            to.u64(*epoch);
            to.option(*session, write_session);
            write_part(to, *part);
        }
        Message::Listed { question, knows_session, method, part, blocks, next } => {
            write_question(to, *question);
            to.u8((*knows_session).into());
            write_method(to, *method);
            write_part(to, *part);
            to.option(*next, write_part);
            to.list(blocks.iter(), |to, (block, mask)| {
                to.u64(block.0);
                to.u8(*mask);
            });
        }
        Message::Fetch { question, epoch, block } => {
            write_question(to, *question);
            to.u64(*epoch);
            to.u64(block.0);
        }
        Message::Fetched { question, mask, data } => {
            write_question(to, *question);
            to.u8(*mask);
            to.bytes(data);
        }
        Message::Forget { epoch, blocks } | Message::Forgotten { epoch, blocks } => {
            to.u64(*epoch);
            to.list(blocks.iter(), |to, block| to.u64(block.0));
        }
        Message::Enough { epoch } => to.u64(*epoch),
        Message::ReplicaOpen { session, taker, epoch, sectors, from } => {
            write_session(to, *session);
            to.option(*taker, |to, taker| to.u64(taker));
            to.u64(*epoch);
            to.u64(*sectors);
            write_position(to, *from);
        }
        Message::ReplicaCopy { session, taker, echo, at, block, mask, data } => {
            write_replica(to, *session, *taker, *echo);
            write_position(to, *at);
            to.u64(block.0);
            to.u8(*mask);
            to.bytes(data);
        }
        Message::ReplicaRemove { session, taker, echo, number, blocks } => {
            write_replica(to, *session, *taker, *echo);
            to.u64(*number);
            to.list(blocks.iter(), |to, block| to.u64(block.0));
        }
        Message::ReplicaBeat { session, taker, echo, completes } => {
            write_replica(to, *session, *taker, *echo);
            to.u8((*completes).into());
        }
        Message::ReplicaEnd { session, taker } => {
            write_session(to, *session);
            to.option(*taker, |to, taker| to.u64(taker));
        }
        Message::ReplicaHas(state) => {
            write_session(to, state.session);
            to.u64(state.taker);
            to.u8(state.is_known.into());
            write_position(to, state.until);
            to.u64(state.removed);
            to.u64(state.beat);
            to.u8(state.is_complete.into());
        }
        Message::ReplicaDropped { session } => write_session(to, *session),
    }
}

fn write_replica(to: &mut Writer<'_>, session: Session, taker: u64, echo: u64) {
    write_session(to, session);
    to.u64(taker);
    to.u64(echo);
}

pub(super) fn read(kind: u8, from: &mut Reader<'_>) -> Result<Message, WireError> {
    Ok(match kind {
        OFFER => Message::Offer { session: read_session(from)?, from: read_position(from)? },
        ARRIVED | ARRIVED_BUSY => Message::Arrived {
            session: read_session(from)?,
            taker: from.u64()?,
            until: read_position(from)?,
            is_busy: kind == ARRIVED_BUSY,
        },
        COPY | COPY_REUSED => Message::Copy {
            session: read_session(from)?,
            taker: from.u64()?,
            at: read_position(from)?,
            block: from.block()?,
            mask: from.u8()?,
            reused: kind == COPY_REUSED,
            data: from.data()?,
        },
        WITHDRAW => Message::Withdraw { session: read_session(from)? },
        LIST => Message::List {
            question: read_question(from)?,
            epoch: from.u64()?,
            session: from.option("session", read_session)?,
            part: read_part(from)?,
        },
        LISTED => {
            let (question, knows_session) = (read_question(from)?, from.flag("knows session")?);
            let method = read_method(from)?;
            let (part, next) = (read_part(from)?, from.option("next", read_part)?);
            let blocks = from.list(9, |from| Ok((from.block()?, from.u8()?)))?;
            Message::Listed { question, knows_session, method, part, blocks, next }
        }
        FETCH => Message::Fetch { question: read_question(from)?, epoch: from.u64()?, block: from.block()? },
        FETCHED => Message::Fetched { question: read_question(from)?, mask: from.u8()?, data: from.data()? },
        FORGET => Message::Forget { epoch: from.u64()?, blocks: from.list(8, Reader::block)? },
        FORGOTTEN => Message::Forgotten { epoch: from.u64()?, blocks: from.list(8, Reader::block)? },
        ENOUGH => Message::Enough { epoch: from.u64()? },
        REPLICA_OPEN => Message::ReplicaOpen {
            session: read_session(from)?,
            taker: from.option("taker", Reader::u64)?,
            epoch: from.u64()?,
            sectors: from.u64()?,
            from: read_position(from)?,
        },
        REPLICA_COPY => Message::ReplicaCopy {
            session: read_session(from)?,
            taker: from.u64()?,
            echo: from.u64()?,
            at: read_position(from)?,
            block: from.block()?,
            mask: from.u8()?,
            data: from.data()?,
        },
        REPLICA_REMOVE => Message::ReplicaRemove {
            session: read_session(from)?,
            taker: from.u64()?,
            echo: from.u64()?,
            number: from.u64()?,
            blocks: from.list(8, Reader::block)?,
        },
        REPLICA_BEAT => Message::ReplicaBeat {
            session: read_session(from)?,
            taker: from.u64()?,
            echo: from.u64()?,
            completes: from.flag("completes")?,
        },
        REPLICA_END => {
            Message::ReplicaEnd { session: read_session(from)?, taker: from.option("taker", Reader::u64)? }
        }
        REPLICA_HAS => Message::ReplicaHas(ReplicaState {
            session: read_session(from)?,
            taker: from.u64()?,
            is_known: from.flag("is known")?,
            until: read_position(from)?,
            removed: from.u64()?,
            beat: from.u64()?,
            is_complete: from.flag("is complete")?,
        }),
        REPLICA_DROPPED => Message::ReplicaDropped { session: read_session(from)? },
        other => Message::Ownership(grant::read(other, from)?),
    })
}

fn write_session(to: &mut Writer<'_>, session: Session) {
    to.u64(session.incarnation);
    to.u64(session.count);
}

fn read_session(from: &mut Reader<'_>) -> Result<Session, WireError> {
    Ok(Session { incarnation: from.u64()?, count: from.u64()? })
}

fn write_question(to: &mut Writer<'_>, question: Question) {
    to.u64(question.incarnation);
    to.u64(question.count);
}

fn read_question(from: &mut Reader<'_>) -> Result<Question, WireError> {
    Ok(Question { incarnation: from.u64()?, count: from.u64()? })
}

fn write_position(to: &mut Writer<'_>, position: Position) {
    to.u64(position.round);
    to.u64(position.next);
}

fn read_position(from: &mut Reader<'_>) -> Result<Position, WireError> {
    Ok(Position { round: from.u64()?, next: from.u64()? })
}

/// The byte of a method is its index in [`Method::ALL`].
fn write_method(to: &mut Writer<'_>, method: Method) {
    let place = Method::ALL.iter().position(|known| *known == method);
    to.u8(place.expect("all methods are there") as u8);
}

fn read_method(from: &mut Reader<'_>) -> Result<Method, WireError> {
    let place = from.u8()?;
    let method = Method::ALL.get(usize::from(place)).copied();
    method.ok_or(WireError::Value { field: "method", value: place.into() })
}

fn write_part(to: &mut Writer<'_>, part: Part) {
    let (which, from) = match part {
        Part::Held(block) => (0, block.0),
        Part::Outdated(block) => (1, block.0),
        Part::Clean(place) => (2, place),
    };
    to.u8(which);
    to.u64(from);
}

fn read_part(from: &mut Reader<'_>) -> Result<Part, WireError> {
    let (which, at) = (from.u8()?, from.u64()?);
    match which {
        0 => Ok(Part::Held(BlockNo(at))),
        1 => Ok(Part::Outdated(BlockNo(at))),
        2 => Ok(Part::Clean(at)),
        other => Err(WireError::Value { field: "part", value: other.into() }),
    }
}
