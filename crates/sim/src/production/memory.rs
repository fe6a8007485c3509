//! Memory with real metadata but no data: every block is zeroes, with the matching checksum. So blocks that a
//! restart reads back from [`super::media`] verify.

use haversack_core::checksum::crc32c;
use haversack_core::{DESCRIPTOR_BYTES, FrameNo, HeapMemory, Memory, NullMemory, Payloads, RequestTag};
use haversack_model::BLOCK_BYTES;

/// Memory for a simulated pool.
pub trait SimMemory: Memory + Send {
    /// Number of staging and transfer frames.
    fn of(staging_frames: u32, transfer_frames: u32) -> Self;
    /// Whether metadata in it is real, so that a pool can be opened again.
    const SURVIVES: bool;
}

impl SimMemory for NullMemory {
    fn of(staging_frames: u32, transfer_frames: u32) -> Self {
        NullMemory::new(staging_frames, transfer_frames)
    }

    const SURVIVES: bool = false;
}

/// Requests have no payload.
struct NoPayloads;

impl Payloads for NoPayloads {
    fn take(&mut self, _: RequestTag, _: usize, _: &mut [u8]) -> bool {
        true
    }

    fn give(&mut self, _: RequestTag, _: usize, _: &[u8]) {}
}

/// See the module.
pub struct PageMemory {
    heap: HeapMemory<NoPayloads>,
    zero_crc: u32,
}

impl SimMemory for PageMemory {
    fn of(staging_frames: u32, transfer_frames: u32) -> Self {
        let heap = HeapMemory::new(staging_frames, transfer_frames, NoPayloads);
        PageMemory { heap, zero_crc: crc32c(&[0; BLOCK_BYTES]) }
    }

    const SURVIVES: bool = true;
}

impl Memory for PageMemory {
    fn staging_frames(&self) -> u32 {
        self.heap.staging_frames()
    }

    fn frames(&self) -> u32 {
        self.heap.frames()
    }

    fn frame(&self, frame: FrameNo) -> &[u8; BLOCK_BYTES] {
        self.heap.frame(frame)
    }

    fn frame_mut(&mut self, frame: FrameNo) -> &mut [u8; BLOCK_BYTES] {
        self.heap.frame_mut(frame)
    }

    fn take(&mut self, _: RequestTag, _: usize, _: FrameNo, _: usize, _: usize) -> bool {
        true
    }

    fn give(&mut self, _: RequestTag, _: usize, _: FrameNo, _: usize, _: usize) {}

    fn copy(&mut self, _: FrameNo, _: FrameNo, _: usize, _: usize) {}

    fn zero(&mut self, _: FrameNo, _: usize, _: usize) {}

    fn crc(&self, _: FrameNo) -> u32 {
        self.zero_crc
    }

    fn descriptor(&self, index: u32) -> &[u8; DESCRIPTOR_BYTES] {
        self.heap.descriptor(index)
    }

    fn store_descriptor(&mut self, index: u32, bytes: &[u8; DESCRIPTOR_BYTES]) {
        self.heap.store_descriptor(index, bytes);
    }
}
