//! A checkpoint: the tables of an arena as a clean stop left them, as a sequence of pieces.
//!
//! A piece is a header of [`HEADER_BYTES`] and at most [`MOST_PAYLOAD_BYTES`] of one section. The first piece is the
//! head, and the last one is the end. The pieces of the slots come in order, all others in any order. Parts of a table
//! that no piece covers are zero.
//!
//! Invariants
//! - Every byte is covered by a checksum, and the checksum of every piece but the head is bound to the identity of the
//!   stop: no piece of another checkpoint is accepted, whatever a file system leaves behind.
//! - Pieces are numbered, and the end is one of them: none can be missing.

use haversack_model::{ArenaId, ArenaNo, DeviceNo, Uuid};

use super::codec::{Reader, Writer};
use crate::bugs::{Bug, planted};
use crate::checksum::{crc32c, stop_seed};
use crate::config::MAX_DEVICES;

/// Version of the checkpoint. A program reads only its own: any other means an ordinary start.
pub const CHECKPOINT_VERSION: u32 = 2;
/// Bytes of a piece's header.
pub const HEADER_BYTES: usize = 32;
/// The most bytes of a piece after its header.
pub const MOST_PAYLOAD_BYTES: usize = 1 << 20;

const MAGIC: &[u8; 8] = b"HVCHECKP";

/// What a piece has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Section {
    /// What the checkpoint belongs to.
    Head = 1,
    /// Counts, hands and queues of the disks: see `store/checkpoint.rs`.
    State = 2,
    /// The segments.
    Segments = 3,
    /// The last uses of sampled blocks.
    Uses = 4,
    /// The slots.
    Slots = 5,
    /// The buckets of the index.
    Index = 6,
    /// The ghost lists.
    Ghosts = 7,
    /// Nothing more follows.
    End = 8,
}

const SECTIONS: [Section; 8] = [
    Section::Head,
    Section::State,
    Section::Segments,
    Section::Uses,
    Section::Slots,
    Section::Index,
    Section::Ghosts,
    Section::End,
];

/// A device of the arena, in the order of its segments in the tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct HeadDevice {
    pub number: DeviceNo,
    pub id: Uuid,
    pub segments: u32,
    pub prepared: u32,
}

/// The first piece: what the checkpoint belongs to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Head {
    /// The identity of the clean stop.
    pub stop: Uuid,
    pub arena: ArenaId,
    /// The last sequence number that was handed out. Everything up to it is durable.
    pub last_seq: u64,
    pub devices: Vec<HeadDevice>,
}

/// What the first piece is.
pub(crate) enum HeadFound {
    Valid(Head),
    OtherVersion(u32),
    Damaged,
}

impl Head {
    fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.bytes(MAGIC).u32(CHECKPOINT_VERSION).bytes(&self.stop.0);
        w.bytes(&self.arena.pool.0).u8(self.arena.number.0).u64(self.last_seq);
        w.u32(self.devices.len() as u32);
        for device in &self.devices {
            w.u8(device.number.0).bytes(&device.id.0).u32(device.segments).u32(device.prepared);
        }
        w.0
    }

    fn decode(bytes: &[u8]) -> HeadFound {
        let mut r = Reader(bytes);
        if r.array().as_ref() != Some(MAGIC) {
            return HeadFound::Damaged;
        }
        match r.u32() {
            Some(CHECKPOINT_VERSION) => Self::body(&mut r).map_or(HeadFound::Damaged, HeadFound::Valid),
            Some(other) => HeadFound::OtherVersion(other),
            None => HeadFound::Damaged,
        }
    }

    fn body(r: &mut Reader<'_>) -> Option<Head> {
        let stop = Uuid(r.array()?);
        let arena = ArenaId { pool: Uuid(r.array()?), number: ArenaNo(r.u8()?) };
        let (last_seq, count) = (r.u64()?, r.u32()? as usize);
        let device = |r: &mut Reader<'_>| {
            Some(HeadDevice {
                number: DeviceNo(r.u8()?),
                id: Uuid(r.array()?),
                segments: r.u32()?,
                prepared: r.u32()?,
            })
        };
        let count = Some(count).filter(|count| *count <= MAX_DEVICES)?;
        let devices = (0..count).map(|_| device(r)).collect::<Option<Vec<_>>>()?;
        Some(Head { stop, arena, last_seq, devices })
    }
}

/// Returns how many bytes a piece with this header has, the header included, or `None` if it is not a header.
pub fn piece_bytes(header: &[u8; HEADER_BYTES]) -> Option<usize> {
    let bytes = u32::from_le_bytes([header[4], header[5], header[6], header[7]]) as usize;
    (bytes <= MOST_PAYLOAD_BYTES).then_some(HEADER_BYTES + bytes)
}

/// Writes a checkpoint piece by piece.
pub(crate) struct PieceWriter<'a, E> {
    seed: u32,
    number: u32,
    piece: Vec<u8>,
    sink: &'a mut dyn FnMut(&[u8]) -> Result<(), E>,
}

impl<'a, E> PieceWriter<'a, E> {
    /// Writes the head.
    pub fn start(head: &Head, sink: &'a mut dyn FnMut(&[u8]) -> Result<(), E>) -> Result<Self, E> {
        let mut writer = PieceWriter { seed: 0, number: 0, piece: Vec::new(), sink };
        writer.bytes(Section::Head, &head.encode())?;
        writer.seed = stop_seed(head.stop);
        Ok(writer)
    }

    fn begin(&mut self) {
        self.piece.clear();
        self.piece.resize(HEADER_BYTES, 0);
    }

    fn end(&mut self, section: Section, offset_bytes: u64) -> Result<(), E> {
        let bytes = (self.piece.len() - HEADER_BYTES) as u32;
        self.piece[4..8].copy_from_slice(&bytes.to_le_bytes());
        self.piece[8..12].copy_from_slice(&(section as u32).to_le_bytes());
        self.piece[12..16].copy_from_slice(&self.number.to_le_bytes());
        self.piece[16..24].copy_from_slice(&offset_bytes.to_le_bytes());
        let crc = crc32c(&self.piece[4..]) ^ self.seed;
        self.piece[..4].copy_from_slice(&crc.to_le_bytes());
        self.number += 1;
        (self.sink)(&self.piece)
    }

    /// Writes a section as it is.
    pub fn bytes(&mut self, section: Section, bytes: &[u8]) -> Result<(), E> {
        for (at, part) in bytes.chunks(MOST_PAYLOAD_BYTES).enumerate() {
            self.begin();
            self.piece.extend_from_slice(part);
            self.end(section, (at * MOST_PAYLOAD_BYTES) as u64)?;
        }
        Ok(())
    }

    /// Writes a table of `len` items as a section, each item as `N` bytes. If `skip_zeroes`, parts whose bytes are all
    /// zero are left out.
    pub fn table<const N: usize>(
        &mut self,
        section: Section,
        len: usize,
        skip_zeroes: bool,
        encode: impl Fn(usize) -> [u8; N],
    ) -> Result<(), E> {
        let at_a_time = MOST_PAYLOAD_BYTES / N;
        for start in (0..len).step_by(at_a_time) {
            let part = start..(start + at_a_time).min(len);
            self.begin();
            self.piece.resize(HEADER_BYTES + part.len() * N, 0);
            let (places, _) = self.piece[HEADER_BYTES..].as_chunks_mut::<N>();
            let mut is_zero = true;
            for (place, at) in places.iter_mut().zip(part) {
                *place = encode(at);
                is_zero &= *place == [0; N];
            }
            if !(skip_zeroes && is_zero) {
                self.end(section, (start * N) as u64)?;
            }
        }
        Ok(())
    }

    /// Writes the end.
    pub fn finish(mut self) -> Result<(), E> {
        self.begin();
        self.end(Section::End, 0)
    }
}

/// Where a checkpoint is read from, piece by piece.
pub trait CheckpointSource {
    /// Returns the next piece, or `None` if there is none or it cannot be read.
    fn next(&mut self) -> Option<&[u8]>;
}

/// A checkpoint in memory, for tests, simulators and benchmarks.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MemoryCheckpoint {
    /// Its pieces, in order.
    pub pieces: Vec<Vec<u8>>,
    next: usize,
}

impl From<Vec<Vec<u8>>> for MemoryCheckpoint {
    fn from(pieces: Vec<Vec<u8>>) -> MemoryCheckpoint {
        MemoryCheckpoint { pieces, next: 0 }
    }
}

impl MemoryCheckpoint {
    /// Adds a piece.
    pub fn push(&mut self, piece: &[u8]) {
        self.pieces.push(piece.to_vec());
    }

    /// Reads it from its beginning again.
    pub fn rewind(&mut self) {
        self.next = 0;
    }
}

impl CheckpointSource for MemoryCheckpoint {
    fn next(&mut self) -> Option<&[u8]> {
        self.next += 1;
        self.pieces.get(self.next - 1).map(Vec::as_slice)
    }
}

/// A piece whose checksum matches.
pub(crate) struct Piece<'a> {
    pub section: Section,
    pub offset_bytes: u64,
    pub payload: &'a [u8],
}

/// Checks the pieces of a checkpoint.
pub(crate) struct PieceReader<'a> {
    seed: u32,
    number: u32,
    source: &'a mut dyn CheckpointSource,
}

/// Why there is no next piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NoPiece {
    /// Nothing is left.
    Missing,
    /// What is there is not this piece, as far as its checksum tells.
    Damaged,
}

impl<'a> PieceReader<'a> {
    pub fn new(source: &'a mut dyn CheckpointSource) -> PieceReader<'a> {
        PieceReader { seed: 0, number: 0, source }
    }

    /// Reads the head, to which the other pieces must belong.
    pub fn head(&mut self) -> Result<HeadFound, NoPiece> {
        let piece = self.next()?;
        let found =
            if piece.section == Section::Head { Head::decode(piece.payload) } else { HeadFound::Damaged };
        if let HeadFound::Valid(head) = &found {
            self.seed = stop_seed(head.stop);
        }
        Ok(found)
    }

    /// Returns the number of the next piece.
    pub fn next_number(&self) -> u32 {
        self.number
    }

    /// Returns the next piece.
    pub fn next(&mut self) -> Result<Piece<'_>, NoPiece> {
        let number = self.number;
        self.number += 1;
        let piece = self.source.next().ok_or(NoPiece::Missing)?;
        checked(piece, number, self.seed).ok_or(NoPiece::Damaged)
    }
}

fn checked(piece: &[u8], number: u32, seed: u32) -> Option<Piece<'_>> {
    let (header, payload) = piece.split_first_chunk::<HEADER_BYTES>()?;
    if piece_bytes(header)? != piece.len() {
        return None;
    }
    let mut r = Reader(header);
    let (crc, _bytes, section, found) = (r.u32()?, r.u32()?, r.u32()?, r.u32()?);
    let is_whole = crc32c(&piece[4..]) ^ seed == crc || planted(Bug::TrustCheckpoint);
    let section = SECTIONS.into_iter().find(|known| *known as u32 == section)?;
    (is_whole && found == number).then_some(Piece { section, offset_bytes: r.u64()?, payload })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(stop: u8) -> Head {
        let device = HeadDevice { number: DeviceNo(3), id: Uuid([7; 16]), segments: 9, prepared: 5 };
        let arena = ArenaId { pool: Uuid([6; 16]), number: ArenaNo(1) };
        Head { stop: Uuid([stop; 16]), arena, last_seq: 1 << 40, devices: vec![device; 2] }
    }

    fn written(stop: u8, items: &[u64]) -> Vec<Vec<u8>> {
        let mut pieces = Vec::new();
        let mut sink = |piece: &[u8]| {
            pieces.push(piece.to_vec());
            Ok::<(), ()>(())
        };
        let mut writer = PieceWriter::start(&head(stop), &mut sink).expect("memory takes it");
        writer
            .table(Section::Slots, items.len(), true, |at| items[at].to_le_bytes())
            .expect("memory takes it");
        writer.finish().expect("memory takes it");
        pieces
    }

    /// Reads everything; returns the table, or why there is none and at which piece.
    fn read(pieces: Vec<Vec<u8>>, len: usize) -> Result<Vec<u64>, (NoPiece, u32)> {
        let mut checkpoint = MemoryCheckpoint::from(pieces);
        let mut reader = PieceReader::new(&mut checkpoint);
        let mut items = vec![0; len];
        assert!(matches!(reader.head().map_err(|e| (e, 0))?, HeadFound::Valid(found) if found == head(1)));
        loop {
            let number = reader.number;
            let piece = reader.next().map_err(|error| (error, number))?;
            if piece.section == Section::End {
                return Ok(items);
            }
            let first = piece.offset_bytes as usize / 8;
            for (item, bytes) in items[first..].iter_mut().zip(piece.payload.as_chunks().0) {
                *item = u64::from_le_bytes(*bytes);
            }
        }
    }

    #[test]
    fn blank_parts_take_no_space() {
        let each = MOST_PAYLOAD_BYTES / 8;
        let mut items = vec![0u64; 4 * each + 3];
        (items[each], items[4 * each + 2]) = (5, 6);
        let pieces = written(1, &items);
        assert_eq!(pieces.len(), 4, "head, two parts, end");
        assert_eq!(read(pieces, items.len()), Ok(items));
    }

    #[test]
    fn every_byte_counts_and_no_piece_may_be_missing_or_of_another_stop() {
        let items: Vec<u64> = (1..40).collect();
        let (pieces, other) = (written(1, &items), written(2, &items));
        assert_eq!(read(pieces.clone(), 40).map(|items| items.len()), Ok(40));
        for at in 0..pieces.len() {
            for byte in 0..pieces[at].len() {
                let mut pieces = pieces.clone();
                pieces[at][byte] ^= 0x10;
                assert_eq!(read(pieces, 40), Err((NoPiece::Damaged, at as u32)), "byte {byte} of piece {at}");
            }
            let mut short = pieces.clone();
            short.truncate(at);
            assert_eq!(read(short, 40), Err((NoPiece::Missing, at as u32)));
            let mut without = pieces.clone();
            without.remove(at);
            assert!(read(without, 40).is_err());
            let mut mixed = pieces.clone();
            mixed[at] = other[at].clone();
            assert!(at == 0 || read(mixed, 40) == Err((NoPiece::Damaged, at as u32)));
        }
    }
}
