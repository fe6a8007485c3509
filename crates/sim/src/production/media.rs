//! Cache devices in memory that keep only metadata: every block of data is zeroes, as in [`super::memory`].

use std::collections::HashMap;

use haversack_core::format::geometry::{self, SEGMENT_PAGES};
use haversack_core::{IoFailure, Media, PageRead};
use haversack_model::BLOCK_BYTES;

/// Bytes of a word of a page.
const WORD: usize = 8;

/// The words of a page that are not zero, with their places: a fresh pool's pages have few.
type Packed = Box<[(u16, [u8; WORD])]>;

/// See the module.
pub struct PageMedia {
    capacity_bytes: u64,
    devices: Vec<HashMap<u64, Packed>>,
}

/// Whether a page of a device is metadata.
fn is_metadata(offset_bytes: u64) -> bool {
    let first = geometry::metadata_bytes(0, 0);
    offset_bytes < first || (offset_bytes - first) / BLOCK_BYTES as u64 % SEGMENT_PAGES < 2
}

impl PageMedia {
    /// This many identical devices of zeroes.
    pub fn new(devices: u32, capacity_bytes: u64) -> Self {
        PageMedia { capacity_bytes, devices: (0..devices).map(|_| HashMap::new()).collect() }
    }

    /// Keeps a page if it is metadata.
    pub fn store(&mut self, device: usize, offset_bytes: u64, page: &[u8]) {
        if !is_metadata(offset_bytes) {
            return;
        }
        let words = page.as_chunks::<WORD>().0.iter().enumerate();
        let packed = words.filter(|(_, word)| **word != [0; WORD]).map(|(at, word)| (at as u16, *word));
        self.devices[device].insert(offset_bytes, packed.collect());
    }
}

impl Media for PageMedia {
    fn devices(&self) -> usize {
        self.devices.len()
    }

    fn name(&self, device: usize) -> String {
        format!("simulated device {device}")
    }

    fn capacity_bytes(&self, _: usize) -> u64 {
        self.capacity_bytes
    }

    fn read_batch(&mut self, reads: &mut [PageRead<'_>]) {
        for read in reads {
            read.page.fill(0);
            for (at, word) in self.devices[read.device].get(&read.offset_bytes).into_iter().flatten() {
                let at = usize::from(*at) * WORD;
                read.page[at..at + WORD].copy_from_slice(word);
            }
            read.result = Ok(());
        }
    }

    fn write(&mut self, device: usize, offset_bytes: u64, pages: &[u8]) -> Result<(), IoFailure> {
        let offsets = (offset_bytes..).step_by(BLOCK_BYTES);
        for (offset, page) in offsets.zip(pages.chunks_exact(BLOCK_BYTES)) {
            self.store(device, offset, page);
        }
        Ok(())
    }

    fn flush(&mut self, _: usize) -> Result<(), IoFailure> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_kept_and_data_is_zero() {
        let mut media = PageMedia::new(2, 1 << 30);
        let page = [7u8; BLOCK_BYTES];
        for (offset, kept) in [
            (geometry::superblock_bytes(1), true),
            (geometry::metadata_bytes(3, 0), true),
            (geometry::metadata_bytes(3, 1), true),
            (geometry::slot_bytes(3, 0), false),
            (geometry::slot_bytes(3, 252), false),
        ] {
            media.write(1, offset, &page).unwrap();
            let mut found = [1; BLOCK_BYTES];
            media.read(1, offset, &mut found).unwrap();
            assert_eq!(found, if kept { page } else { [0; BLOCK_BYTES] }, "{offset}");
            media.read(0, offset, &mut found).unwrap();
            assert_eq!(found, [0; BLOCK_BYTES]);
        }
    }
}
