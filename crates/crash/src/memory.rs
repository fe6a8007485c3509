//! The core's memory, which can be stopped between any two stores.
//!
//! A kill inside a call into the core is simulated by letting the call finish and then reverting, from an undo list,
//! every store to surviving memory from the chosen one on.

use std::cell::RefCell;

use haversack_core::{DESCRIPTOR_BYTES, FrameNo, HeapMemory, Memory, Payloads, RequestTag};
use haversack_model::{BLOCK_BYTES, SECTOR_BYTES};

use crate::pattern::{self, Version};
use haversack_model::random::Random;

/// The guest's buffer of a request.
#[derive(Default)]
pub struct Buffer {
    /// The tag of the request that uses it, 0 when free.
    pub tag: u64,
    /// The disk that a write is for.
    pub disk: u16,
    /// First sector.
    pub sector: u64,
    /// The version that a write carries.
    pub version: Version,
    /// A part of a write's data was lost when the core asked for it.
    pub lost: bool,
    /// The data that a read returned.
    pub bytes: Vec<u8>,
    /// `bytes` is what a write carries, instead of a version.
    pub is_copy: bool,
}

/// One write in this many loses its data.
const LOST_ONE_IN: u64 = 251;

/// The guests' buffers, found by the low 16 bits of the tag.
#[derive(Default)]
pub struct Buffers(pub Vec<Buffer>);

impl Buffers {
    fn of(&mut self, tag: RequestTag) -> &mut Buffer {
        let buffer = &mut self.0[(tag.0 & 0xFFFF) as usize];
        assert_eq!(buffer.tag, tag.0, "the core touches the buffer of a request that is not in flight");
        buffer
    }
}

/// Returns from which byte on the data of a write is lost: sometimes a guest loses the memory of a write, all of it or
/// from one of its first blocks on. The bytes that the core gets instead must never become visible.
fn lost_from(tag: RequestTag) -> usize {
    let sequence = tag.0 >> 16;
    if sequence.is_multiple_of(LOST_ONE_IN) {
        (sequence / LOST_ONE_IN % 4) as usize * BLOCK_BYTES
    } else {
        usize::MAX
    }
}

impl Payloads for Buffers {
    fn take(&mut self, tag: RequestTag, at: usize, into: &mut [u8]) -> bool {
        let buffer = self.of(tag);
        assert!(
            at.is_multiple_of(SECTOR_BYTES) && into.len().is_multiple_of(SECTOR_BYTES),
            "payloads move by sectors"
        );
        if buffer.is_copy {
            into.copy_from_slice(&buffer.bytes[at..at + into.len()]);
            return true;
        }
        let first = buffer.sector + (at / SECTOR_BYTES) as u64;
        for (i, sector) in into.chunks_exact_mut(SECTOR_BYTES).enumerate() {
            pattern::fill(buffer.disk, first + i as u64, buffer.version, sector);
        }
        buffer.lost |= at >= lost_from(tag);
        if buffer.lost {
            into.fill(0xA5);
        }
        !buffer.lost
    }

    fn give(&mut self, tag: RequestTag, at: usize, from: &[u8]) {
        self.of(tag).bytes[at..at + from.len()].copy_from_slice(from);
    }
}

enum Undo {
    Bytes(FrameNo, usize, Vec<u8>),
    Descriptor(u32, [u8; DESCRIPTOR_BYTES]),
}

/// How much memory is kept for the next processes that start.
const MOST_SPARE: usize = 16;

thread_local! {
    /// Memory of processes that have ended, all zero again: most of it was never written, and it need not be allocated.
    static SPARE: RefCell<Vec<HeapMemory<Buffers>>> = const { RefCell::new(Vec::new()) };
}

/// Memory that can be reverted to any store.
pub struct SimMemory {
    inner: HeapMemory<Buffers>,
    armed: Option<u64>,
    undo: Vec<Undo>,
    /// By frame: it may have been written.
    written: Vec<bool>,
}

impl SimMemory {
    /// Makes memory with this many staging and transfer frames, all zero.
    pub fn new(staging_frames: u32, transfer_frames: u32) -> Self {
        let frames = staging_frames + transfer_frames;
        let fits = |spare: &HeapMemory<Buffers>| {
            (spare.staging_frames(), spare.frames()) == (staging_frames, frames)
        };
        let spare = SPARE
            .with_borrow_mut(|spares| spares.iter().position(fits).map(|place| spares.swap_remove(place)));
        let new = || HeapMemory::new(staging_frames, transfer_frames, Buffers::default());
        let inner = spare.unwrap_or_else(new);
        SimMemory { inner, armed: None, undo: Vec::new(), written: vec![false; frames as usize] }
    }

    fn writes(&mut self, frame: FrameNo) {
        self.written[frame.0 as usize] = true;
    }

    /// Returns the guests' buffers.
    pub fn buffers(&mut self) -> &mut Buffers {
        &mut self.inner.payloads
    }

    /// Returns a frame for the transfer of device data; not a store of the core.
    pub fn dma(&mut self, frame: FrameNo) -> &mut [u8; BLOCK_BYTES] {
        self.writes(frame);
        self.inner.frame_mut(frame)
    }

    /// Starts to record how to revert all stores after the next `stores`.
    pub fn arm(&mut self, stores: u64) {
        self.armed = Some(stores);
        self.undo.clear();
    }

    /// Reverts nothing: the process continues.
    pub fn disarm(&mut self) {
        self.armed = None;
        self.undo.clear();
    }

    /// Kills the process at the armed store; `torn` lets a part of that store happen. Transfer frames are lost.
    pub fn kill(&mut self, torn: bool, rng: &mut Random) {
        let mut undo = std::mem::take(&mut self.undo);
        while let Some(store) = undo.pop() {
            let last = undo.is_empty();
            let (old, now) = match &store {
                Undo::Bytes(frame, at, old) => {
                    (&old[..], &mut self.inner.frame_mut(*frame)[*at..*at + old.len()])
                }
                Undo::Descriptor(index, old) => {
                    let mut mixed = *self.inner.descriptor(*index);
                    take_back(old, &mut mixed, last && torn, rng);
                    self.inner.store_descriptor(*index, &mixed);
                    continue;
                }
            };
            take_back(old, now, last && torn, rng);
        }
        self.armed = None;
        for frame in self.inner.staging_frames()..self.inner.frames() {
            self.dma(FrameNo(frame)).fill(0xDB);
        }
        self.inner.payloads.0.iter_mut().for_each(|buffer| buffer.tag = 0);
    }

    fn note(&mut self, frame: FrameNo, at: usize, len: usize) {
        self.writes(frame);
        if self.armed.is_some() && frame.0 < self.inner.staging_frames() && self.due() {
            let old = self.inner.frame(frame)[at..at + len].to_vec();
            self.undo.push(Undo::Bytes(frame, at, old));
        }
    }

    fn due(&mut self) -> bool {
        match &mut self.armed {
            None => false,
            Some(0) => true,
            Some(stores) => {
                *stores -= 1;
                false
            }
        }
    }
}

impl Drop for SimMemory {
    /// Keeps the memory for another process.
    fn drop(&mut self) {
        let mut inner = std::mem::replace(&mut self.inner, HeapMemory::new(0, 0, Buffers::default()));
        for frame in (0..inner.frames()).filter(|frame| self.written[*frame as usize]) {
            inner.frame_mut(FrameNo(frame)).fill(0);
        }
        for index in 0..=inner.staging_frames() {
            inner.store_descriptor(index, &[0; DESCRIPTOR_BYTES]);
        }
        inner.payloads = Buffers::default();
        SPARE.with_borrow_mut(|spares| {
            if spares.len() >= MOST_SPARE {
                spares.remove(0);
            }
            spares.push(inner);
        });
    }
}

/// Restores `old`; of a torn store, words or a prefix of the new bytes stay.
fn take_back(old: &[u8], now: &mut [u8], torn: bool, rng: &mut Random) {
    if !torn {
        now.copy_from_slice(old);
        return;
    }
    let head = if rng.one_in(2) { Some(rng.below(old.len() as u64 / 8 + 1) as usize) } else { None };
    for (i, (old, now)) in old.chunks(8).zip(now.chunks_mut(8)).enumerate() {
        let stays = match head {
            Some(words) => i < words,
            None => rng.one_in(2),
        };
        if !stays {
            now.copy_from_slice(old);
        }
    }
}

impl Memory for SimMemory {
    fn staging_frames(&self) -> u32 {
        self.inner.staging_frames()
    }

    fn frames(&self) -> u32 {
        self.inner.frames()
    }

    fn frame(&self, frame: FrameNo) -> &[u8; BLOCK_BYTES] {
        self.inner.frame(frame)
    }

    fn frame_mut(&mut self, frame: FrameNo) -> &mut [u8; BLOCK_BYTES] {
        self.note(frame, 0, BLOCK_BYTES);
        self.inner.frame_mut(frame)
    }

    fn take(
        &mut self,
        tag: RequestTag,
        payload_at: usize,
        frame: FrameNo,
        frame_at: usize,
        len: usize,
    ) -> bool {
        self.note(frame, frame_at, len);
        self.inner.take(tag, payload_at, frame, frame_at, len)
    }

    fn give(&mut self, tag: RequestTag, payload_at: usize, frame: FrameNo, frame_at: usize, len: usize) {
        self.inner.give(tag, payload_at, frame, frame_at, len);
    }

    fn copy(&mut self, from: FrameNo, to: FrameNo, at: usize, len: usize) {
        self.note(to, at, len);
        self.inner.copy(from, to, at, len);
    }

    fn zero(&mut self, frame: FrameNo, at: usize, len: usize) {
        self.note(frame, at, len);
        self.inner.zero(frame, at, len);
    }

    fn crc(&self, frame: FrameNo) -> u32 {
        self.inner.crc(frame)
    }

    fn descriptor(&self, index: u32) -> &[u8; DESCRIPTOR_BYTES] {
        self.inner.descriptor(index)
    }

    fn store_descriptor(&mut self, index: u32, bytes: &[u8; DESCRIPTOR_BYTES]) {
        if self.due() {
            let old = *self.inner.descriptor(index);
            self.undo.push(Undo::Descriptor(index, old));
        }
        self.inner.store_descriptor(index, bytes);
    }
}
