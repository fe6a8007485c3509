//! Block memory: the frames that hold data in transit, and the staging area that survives the process.
//!
//! The core moves block data only through [`Memory`]. So the live engine can keep frames in registered shared
//! memory, the crash simulator can stop between any two stores, and a trace simulation can run without data.
//!
//! Invariants
//! - Frames `0..staging_frames()` and their descriptors survive the death of the process, but not a power
//!   loss.
//! - A descriptor is stored after its frame's content, so a valid descriptor never names an incomplete block.

use haversack_model::BLOCK_BYTES;

use crate::checksum;

/// One 4 KiB buffer. Staging frames come first, transfer frames follow.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct FrameNo(pub u32);

/// The caller's name for a request and for the buffer that came with it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct RequestTag(pub u64);

/// Bytes of a staging descriptor and of the staging header.
pub const DESCRIPTOR_BYTES: usize = 64;

/// The memory that the core works in. See the module's invariants.
pub trait Memory {
    /// Returns the number of frames that survive the process. They come first.
    fn staging_frames(&self) -> u32;
    /// Returns the number of all frames, staging and transfer.
    fn frames(&self) -> u32;
    /// Returns a frame's bytes.
    fn frame(&self, frame: FrameNo) -> &[u8; BLOCK_BYTES];
    /// Returns a frame's bytes, to change. For metadata pages; block data goes through the methods below.
    fn frame_mut(&mut self, frame: FrameNo) -> &mut [u8; BLOCK_BYTES];
    /// Copies part of a write request's payload into a frame. Positions and length are in bytes. Returns
    /// false if the payload is lost; the frame's content must not be used then.
    fn take(
        &mut self,
        tag: RequestTag,
        payload_at: usize,
        frame: FrameNo,
        frame_at: usize,
        len: usize,
    ) -> bool;
    /// Copies part of a frame into a read request's buffer.
    fn give(&mut self, tag: RequestTag, payload_at: usize, frame: FrameNo, frame_at: usize, len: usize);
    /// Copies part of a frame to the same place in another.
    fn copy(&mut self, from: FrameNo, to: FrameNo, at: usize, len: usize);
    /// Fills part of a frame with zeroes.
    fn zero(&mut self, frame: FrameNo, at: usize, len: usize);
    /// Returns the CRC-32C of a whole frame. Memory that holds no data returns a constant.
    fn crc(&self, frame: FrameNo) -> u32;
    /// Returns the descriptor of a staging frame. Index `staging_frames()` is the staging header.
    fn descriptor(&self, index: u32) -> &[u8; DESCRIPTOR_BYTES];
    /// Stores a descriptor. The store may be torn by the death of the process.
    fn store_descriptor(&mut self, index: u32, bytes: &[u8; DESCRIPTOR_BYTES]);
}

/// The payloads of requests: the front end's side of [`HeapMemory`].
pub trait Payloads {
    /// Copies from the request's payload. Returns false if it is lost, for example because its client took
    /// the memory away.
    fn take(&mut self, tag: RequestTag, at: usize, into: &mut [u8]) -> bool;
    /// Copies into the request's buffer.
    fn give(&mut self, tag: RequestTag, at: usize, from: &[u8]);
}

/// Plain heap memory with real bytes.
pub struct HeapMemory<P> {
    /// All frames, one after the other. Requested as zeroed bytes, so pages that are never used cost nothing.
    bytes: Vec<u8>,
    /// By staging frame; the staging header comes last.
    descriptors: Vec<[u8; DESCRIPTOR_BYTES]>,
    staging_frames: u32,
    /// The requests' payloads.
    pub payloads: P,
}

impl<P> HeapMemory<P> {
    /// Returns memory with this many staging and transfer frames, all zero.
    pub fn new(staging_frames: u32, transfer_frames: u32, payloads: P) -> Self {
        HeapMemory {
            bytes: vec![0; (staging_frames + transfer_frames) as usize * BLOCK_BYTES],
            descriptors: vec![[0; DESCRIPTOR_BYTES]; staging_frames as usize + 1],
            staging_frames,
            payloads,
        }
    }

    fn all(&self) -> &[[u8; BLOCK_BYTES]] {
        self.bytes.as_chunks().0
    }

    fn all_mut(&mut self) -> &mut [[u8; BLOCK_BYTES]] {
        self.bytes.as_chunks_mut().0
    }
}

impl<P: Payloads> Memory for HeapMemory<P> {
    fn staging_frames(&self) -> u32 {
        self.staging_frames
    }

    fn frames(&self) -> u32 {
        self.all().len() as u32
    }

    fn frame(&self, frame: FrameNo) -> &[u8; BLOCK_BYTES] {
        &self.all()[frame.0 as usize]
    }

    fn frame_mut(&mut self, frame: FrameNo) -> &mut [u8; BLOCK_BYTES] {
        &mut self.all_mut()[frame.0 as usize]
    }

    fn take(
        &mut self,
        tag: RequestTag,
        payload_at: usize,
        frame: FrameNo,
        frame_at: usize,
        len: usize,
    ) -> bool {
        let into =
            &mut self.bytes.as_chunks_mut::<BLOCK_BYTES>().0[frame.0 as usize][frame_at..frame_at + len];
        self.payloads.take(tag, payload_at, into)
    }

    fn give(&mut self, tag: RequestTag, payload_at: usize, frame: FrameNo, frame_at: usize, len: usize) {
        let from = &self.bytes.as_chunks::<BLOCK_BYTES>().0[frame.0 as usize][frame_at..frame_at + len];
        self.payloads.give(tag, payload_at, from);
    }

    fn copy(&mut self, from: FrameNo, to: FrameNo, at: usize, len: usize) {
        let [source, target] = self
            .all_mut()
            .get_disjoint_mut([from.0 as usize, to.0 as usize])
            .expect("a copy is between two different frames that exist");
        target[at..at + len].copy_from_slice(&source[at..at + len]);
    }

    fn zero(&mut self, frame: FrameNo, at: usize, len: usize) {
        self.frame_mut(frame)[at..at + len].fill(0);
    }

    fn crc(&self, frame: FrameNo) -> u32 {
        checksum::crc32c(self.frame(frame))
    }

    fn descriptor(&self, index: u32) -> &[u8; DESCRIPTOR_BYTES] {
        &self.descriptors[index as usize]
    }

    fn store_descriptor(&mut self, index: u32, bytes: &[u8; DESCRIPTOR_BYTES]) {
        self.descriptors[index as usize] = *bytes;
    }
}

/// Memory without data, for simulation from traces: every block has the same content and checksum.
pub struct NullMemory {
    staging_frames: u32,
    frames: u32,
    page: Box<[u8; BLOCK_BYTES]>,
    descriptor: [u8; DESCRIPTOR_BYTES],
}

impl NullMemory {
    /// Returns memory with this many staging and transfer frames, none of which takes space.
    pub fn new(staging_frames: u32, transfer_frames: u32) -> Self {
        NullMemory {
            staging_frames,
            frames: staging_frames + transfer_frames,
            page: Box::new([0; BLOCK_BYTES]),
            descriptor: [0; DESCRIPTOR_BYTES],
        }
    }
}

impl Memory for NullMemory {
    fn staging_frames(&self) -> u32 {
        self.staging_frames
    }

    fn frames(&self) -> u32 {
        self.frames
    }

    fn frame(&self, _: FrameNo) -> &[u8; BLOCK_BYTES] {
        &self.page
    }

    fn frame_mut(&mut self, _: FrameNo) -> &mut [u8; BLOCK_BYTES] {
        &mut self.page
    }

    fn take(&mut self, _: RequestTag, _: usize, _: FrameNo, _: usize, _: usize) -> bool {
        true
    }

    fn give(&mut self, _: RequestTag, _: usize, _: FrameNo, _: usize, _: usize) {}

    fn copy(&mut self, _: FrameNo, _: FrameNo, _: usize, _: usize) {}

    fn zero(&mut self, _: FrameNo, _: usize, _: usize) {}

    fn crc(&self, _: FrameNo) -> u32 {
        0
    }

    fn descriptor(&self, _: u32) -> &[u8; DESCRIPTOR_BYTES] {
        &self.descriptor
    }

    fn store_descriptor(&mut self, _: u32, _: &[u8; DESCRIPTOR_BYTES]) {}
}
