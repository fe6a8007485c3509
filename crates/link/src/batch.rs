//! Frames that are written together, and whether they are compressed.
//!
//! Invariants
//! - Frames are sent in the order in which they were added.
//! - Frames of different disks are not compressed together: the length of data that one guest has written reveals
//!   nothing about the data of another.

use std::ops::Range;

use haversack_model::DiskId;

use crate::class::{Class, class};
use crate::wire::{Packer, Packet};

/// Fewer bytes than this are not worth compressing.
const LEAST_BYTES: usize = 2 << 10;
/// The most pieces that are sent uncompressed after one that did not shrink, before compression is tried again.
const MOST_SKIPPED: u32 = 64;

/// What the frames of a piece have in common.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Kind {
    disk: DiskId,
    is_copy: bool,
}

impl Kind {
    fn of(packet: &Packet) -> Option<Kind> {
        let Packet::Frame(frame) = packet else { return None };
        let is_copy = class(frame) == Class::Copy;
        Some(Kind { disk: frame.disk(), is_copy })
    }
}

/// Encoded frames.
#[derive(Default, Debug)]
pub(crate) struct Batch {
    bytes: Vec<u8>,
    /// Runs of frames of one kind: the kind, if they are frames at all, and their start.
    pieces: Vec<(Option<Kind>, usize)>,
    frames: u64,
}

impl Batch {
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.pieces.clear();
        self.frames = 0;
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns its total length.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the number of its frames, without keep-alive.
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// Adds a packet, which was checked.
    pub fn add(&mut self, packet: &Packet) {
        let kind = Kind::of(packet);
        if self.pieces.last().is_none_or(|(last, _)| *last != kind) {
            self.pieces.push((kind, self.bytes.len()));
        }
        packet.encode(&mut self.bytes).expect("frames are checked before they are queued");
        self.frames += u64::from(kind.is_some());
    }

    fn pieces(&self) -> impl Iterator<Item = (Option<Kind>, Range<usize>)> {
        let ends = self.pieces.iter().skip(1).map(|(_, start)| *start).chain([self.bytes.len()]);
        self.pieces.iter().zip(ends).map(|((kind, start), end)| (*kind, *start..end))
    }
}

/// The bytes to write.
#[derive(Debug)]
pub(crate) struct Packed<'a> {
    pub bytes: &'a [u8],
    /// How many bytes of copies were saved.
    pub saved_copy_bytes: usize,
}

/// Compresses batches while the link is slower than this side. So compression only uses spare time: as soon as the
/// link waits for this side, frames are sent uncompressed.
#[derive(Debug)]
pub(crate) struct Packing {
    /// `None` if nothing may be compressed.
    packer: Option<Packer>,
    link_is_slow: bool,
    packed: Vec<u8>,
    /// Pieces still to be sent uncompressed, and how many it will be the next time.
    skip: (u32, u32),
}

impl Packing {
    pub fn new(may_compress: bool) -> Packing {
        let packer = may_compress.then(Packer::default);
        Packing { packer, link_is_slow: false, packed: Vec::new(), skip: (0, 1) }
    }

    /// Records whether the last batch had to wait for the link, or for a byte limit.
    pub fn link_was_slow(&mut self, is_slow: bool) {
        self.link_is_slow = is_slow;
    }

    /// Returns the bytes of a batch as they are to be sent.
    pub fn pack<'a>(&'a mut self, batch: &'a Batch) -> Packed<'a> {
        if !self.link_is_slow || self.packer.is_none() {
            return Packed { bytes: &batch.bytes, saved_copy_bytes: 0 };
        }
        let mut saved_copy_bytes = 0;
        self.packed.clear();
        for (kind, range) in batch.pieces() {
            let (from, frames) = (self.packed.len(), &batch.bytes[range]);
            if !self.compress(frames) {
                self.packed.extend_from_slice(frames);
            }
            if kind.is_some_and(|kind| kind.is_copy) {
                saved_copy_bytes += frames.len() - (self.packed.len() - from);
            }
        }
        Packed { bytes: &self.packed, saved_copy_bytes }
    }

    fn compress(&mut self, frames: &[u8]) -> bool {
        let Some(packer) = self.packer.as_mut().filter(|_| frames.len() >= LEAST_BYTES) else {
            return false;
        };
        let (left, next) = &mut self.skip;
        if *left > 0 {
            *left -= 1;
            return false;
        }
        let is_shorter = packer.pack(frames, &mut self.packed);
        self.skip = if is_shorter { (0, 1) } else { (*next, (*next * 2).min(MOST_SKIPPED)) };
        is_shorter
    }
}

#[cfg(test)]
mod tests {
    use haversack_migrate::{Message, Position, Session};
    use haversack_model::{BLOCK_BYTES, BlockNo};

    use super::*;
    use crate::wire::{Frame, HEADER_BYTES, Header, Unpacker};

    fn copy(disk: u8, order: u64, data: Vec<u8>) -> Packet {
        let message = Message::Copy {
            session: Session { incarnation: 1, count: 1 },
            taker: 1,
            at: Position { round: 0, next: order },
            block: BlockNo(order),
            mask: 0xff,
            reused: false,
            data,
        };
        Packet::Frame(Frame::Migrate { disk: DiskId([disk; 16]), message })
    }

    fn noise(seed: u64) -> Vec<u8> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        };
        (0..BLOCK_BYTES).map(|_| next()).collect()
    }

    fn batch(packets: &[Packet]) -> Batch {
        let mut batch = Batch::default();
        packets.iter().for_each(|packet| batch.add(packet));
        batch
    }

    /// Returns the number of packed frames, and of all packets.
    fn read(mut bytes: &[u8]) -> (usize, Vec<Packet>) {
        let (mut packed, mut packets, mut unpacker) = (0, Vec::new(), Unpacker::default());
        while let Some((header, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() {
            let header = Header::read(*header).unwrap();
            let (body, rest) = rest.split_at(header.body_bytes());
            if header.is_packed() {
                packed += 1;
                let mut frames = unpacker.unpack(&header, body).unwrap();
                while !frames.is_empty() {
                    let (packet, more) = Packet::decode_first(frames).unwrap();
                    packets.push(packet);
                    frames = more;
                }
            } else {
                packets.push(Packet::decode(&header, body).unwrap());
            }
            bytes = rest;
        }
        (packed, packets)
    }

    fn slow() -> Packing {
        let mut packing = Packing::new(true);
        packing.link_was_slow(true);
        packing
    }

    #[test]
    fn a_slow_link_gets_fewer_bytes_and_the_same_frames() {
        let packets: Vec<Packet> = (0..40).map(|order| copy(1, order, vec![7; BLOCK_BYTES])).collect();
        let batch = batch(&packets);
        let mut packing = slow();
        let packed = packing.pack(&batch);
        assert!(packed.bytes.len() < batch.bytes() / 10, "{}", packed.bytes.len());
        assert_eq!(packed.saved_copy_bytes, batch.bytes() - packed.bytes.len());
        assert_eq!(read(packed.bytes), (1, packets));
    }

    #[test]
    fn a_fast_link_gets_frames_as_they_are() {
        let batch = batch(&[copy(1, 1, vec![7; BLOCK_BYTES])]);
        let mut packing = slow();
        packing.link_was_slow(false);
        assert_eq!(packing.pack(&batch).bytes, &batch.bytes[..]);
        let mut never = Packing::new(false);
        never.link_was_slow(true);
        assert_eq!(never.pack(&batch).bytes, &batch.bytes[..]);
    }

    #[test]
    fn disks_are_not_compressed_together() {
        let packets: Vec<Packet> =
            [1, 1, 2, 2, 1].iter().map(|disk| copy(*disk, 1, vec![7; BLOCK_BYTES])).collect();
        let batch = batch(&packets);
        assert_eq!(read(slow().pack(&batch).bytes), (3, packets));
    }

    #[test]
    fn what_cannot_be_compressed_is_tried_ever_more_rarely() {
        let mut packing = slow();
        let batch = batch(&[copy(1, 1, noise(1)), Packet::Ping(1)]);
        let tried: Vec<usize> = (0..20)
            .filter(|_| {
                let tries = packing.skip.0 == 0;
                let packed = packing.pack(&batch);
                assert_eq!((packed.bytes, packed.saved_copy_bytes), (&batch.bytes[..], 0));
                tries
            })
            .collect();
        assert_eq!(tried, [0, 2, 5, 10, 19]);
    }
}
