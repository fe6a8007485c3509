//! The frames that hosts send each other.

use haversack_migrate::Message;
use haversack_model::{DiskId, SECTOR_BYTES, SectorNo};

use super::fields::{Reader, Writer};
use super::{MOST_NOTE_BYTES, MOST_OBSERVED_SECTORS, WireError, lend, message};

const OBSERVE_READ: u8 = 48;
const OBSERVED: u8 = 49;
const NOTE: u8 = 50;

/// A frame, always about one disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Frame {
    /// A message of the migration protocol.
    Migrate {
        /// The disk.
        disk: DiskId,
        /// The message.
        message: Message,
    },
    /// A host whose guest has not come yet asks the owner of the disk to read sectors for it.
    ObserveRead {
        /// Identifies the question.
        question: u64,
        /// The disk.
        disk: DiskId,
        /// The first sector.
        sector: SectorNo,
        /// Their number: 1 to [`MOST_OBSERVED_SECTORS`].
        sectors: u32,
    },
    /// The answer to [`Frame::ObserveRead`].
    Observed {
        /// The question.
        question: u64,
        /// The disk.
        disk: DiskId,
        /// The sectors' bytes.
        result: Result<Vec<u8>, ObserveError>,
    },
    /// A question of a daemon about a disk, or an answer.
    Note {
        /// The disk.
        disk: DiskId,
        /// JSON of at most [`MOST_NOTE_BYTES`] bytes.
        text: Vec<u8>,
    },
    /// A message between a host that lends flash and one that borrows it. Only for a host that has said, on the present
    /// connection, that it lends.
    Lend {
        /// The borrower's disk.
        disk: DiskId,
        /// The message.
        message: haversack_lend::Message,
    },
}

/// Why an observer gets no data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ObserveError {
    /// The asked host does not own the disk.
    #[error("the host does not own the disk")]
    NotOwner,
    /// The disk ends before these sectors.
    #[error("the sectors are beyond the end of the disk")]
    OutOfRange,
    /// The read failed.
    #[error("the read failed")]
    Failed,
    /// The host cannot answer now: ask again.
    #[error("the host is busy")]
    Busy,
}

impl ObserveError {
    const ALL: [(u8, ObserveError); 4] = [
        (1, ObserveError::NotOwner),
        (2, ObserveError::OutOfRange),
        (3, ObserveError::Failed),
        (4, ObserveError::Busy),
    ];

    fn code(self) -> u8 {
        let found = Self::ALL.iter().find(|(_, error)| *error == self);
        found.expect("every error has a code").0
    }

    fn from_code(code: u8) -> Result<Self, WireError> {
        let found = Self::ALL.iter().find(|(known, _)| *known == code);
        found.map(|(_, error)| *error).ok_or(WireError::Value { field: "error", value: code.into() })
    }
}

impl Frame {
    /// Returns the disk.
    pub fn disk(&self) -> DiskId {
        match self {
            Frame::Migrate { disk, .. }
            | Frame::ObserveRead { disk, .. }
            | Frame::Observed { disk, .. }
            | Frame::Note { disk, .. }
            | Frame::Lend { disk, .. } => *disk,
        }
    }

    /// Whether it is about a replica of the disk's dirty blocks.
    pub fn is_of_replica(&self) -> bool {
        (message::REPLICA_OPEN..=message::REPLICA_DROPPED).contains(&self.kind())
    }

    /// Checks that the frame can be sent.
    ///
    /// # Errors
    /// A list, data or a text in it has a length that the protocol does not allow.
    pub fn check(&self) -> Result<(), WireError> {
        match self {
            Frame::Migrate { message, .. } => message::check(message),
            Frame::ObserveRead { sectors, .. } => check_sectors(*sectors),
            Frame::Observed { result: Ok(data), .. } => check_observed(data),
            Frame::Observed { result: Err(_), .. } => Ok(()),
            Frame::Note { text, .. } => check_note(text),
            Frame::Lend { message, .. } => lend::check(message),
        }
    }

    pub(super) fn kind(&self) -> u8 {
        match self {
            Frame::Migrate { message, .. } => message::kind(message),
            Frame::ObserveRead { .. } => OBSERVE_READ,
            Frame::Observed { .. } => OBSERVED,
            Frame::Note { .. } => NOTE,
            Frame::Lend { message, .. } => lend::kind(message),
        }
    }

    pub(super) fn write(&self, to: &mut Writer<'_>) {
        to.bytes(&self.disk().0);
        match self {
            Frame::Migrate { message, .. } => message::write(message, to),
            Frame::ObserveRead { question, sector, sectors, .. } => {
                to.u64(*question);
                to.u64(sector.0);
                to.u32(*sectors);
            }
            Frame::Observed { question, result, .. } => {
                to.u64(*question);
                match result {
                    Ok(data) => {
                        to.u8(0);
                        to.bytes(data);
                    }
                    Err(error) => to.u8(error.code()),
                }
            }
            Frame::Note { text, .. } => to.bytes(text),
            Frame::Lend { message, .. } => lend::write(message, to),
        }
    }

    pub(super) fn read(kind: u8, from: &mut Reader<'_>) -> Result<Frame, WireError> {
        let disk = from.disk()?;
        let frame = match kind {
            OBSERVE_READ => Frame::ObserveRead {
                question: from.u64()?,
                disk,
                sector: SectorNo(from.u64()?),
                sectors: from.u32()?,
            },
            OBSERVED => {
                let question = from.u64()?;
                let result = match from.u8()? {
                    0 => Ok(from.rest().to_vec()),
                    code => Err(ObserveError::from_code(code)?),
                };
                Frame::Observed { question, disk, result }
            }
            NOTE => Frame::Note { disk, text: from.rest().to_vec() },
            kind if lend::is_kind(kind) => Frame::Lend { disk, message: lend::read(kind, from)? },
            other => Frame::Migrate { disk, message: message::read(other, from)? },
        };
        frame.check()?;
        Ok(frame)
    }
}

fn check_sectors(sectors: u32) -> Result<(), WireError> {
    match sectors {
        1..=MOST_OBSERVED_SECTORS => Ok(()),
        other => Err(WireError::Value { field: "sectors", value: other.into() }),
    }
}

fn check_observed(data: &[u8]) -> Result<(), WireError> {
    let sectors = data.len() / SECTOR_BYTES;
    let fits =
        data.len().is_multiple_of(SECTOR_BYTES) && (1..=MOST_OBSERVED_SECTORS as usize).contains(&sectors);
    if fits {
        return Ok(());
    }
    Err(WireError::Bytes { field: "data", found: data.len(), expected: "1 to 512 sectors" })
}

fn check_note(text: &[u8]) -> Result<(), WireError> {
    if text.len() <= MOST_NOTE_BYTES {
        return Ok(());
    }
    Err(WireError::Bytes { field: "note", found: text.len(), expected: "at most 16384" })
}
