//! A cache device that exists only while a pool is made and opened: it keeps what was written, packed.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use haversack_core::{IoFailure, Media, PageRead, Task};
use haversack_engine::ask_for_large_pages;
use haversack_model::BLOCK_BYTES;

/// Bytes of a word of a page.
const WORD: usize = 8;

/// The words of a page that are not zero, with their places.
type Packed = Box<[(u16, [u8; WORD])]>;

/// One device. Of each page only the words that are not zero are kept: a fresh pool's pages have few.
pub struct SparseMedia {
    capacity_bytes: u64,
    pages: HashMap<u64, Packed>,
    /// On how many threads the tasks of an opening run.
    pub threads: usize,
}

impl SparseMedia {
    /// A device of zeroes.
    pub fn new(capacity_bytes: u64) -> Self {
        SparseMedia { capacity_bytes, pages: HashMap::new(), threads: 1 }
    }
}

impl SparseMedia {
    /// Writes what it keeps to a new file of the same size.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        let file = File::create_new(path)?;
        file.set_len(self.capacity_bytes)?;
        for (offset_bytes, words) in &self.pages {
            file.write_all_at(&unpacked(words), *offset_bytes)?;
        }
        file.sync_all()
    }
}

fn unpacked(words: &[(u16, [u8; WORD])]) -> [u8; BLOCK_BYTES] {
    let mut page = [0; BLOCK_BYTES];
    for (at, word) in words {
        let at = usize::from(*at) * WORD;
        page[at..at + WORD].copy_from_slice(word);
    }
    page
}

impl Media for SparseMedia {
    fn devices(&self) -> usize {
        1
    }

    fn name(&self, _: usize) -> String {
        "null".into()
    }

    fn capacity_bytes(&self, _: usize) -> u64 {
        self.capacity_bytes
    }

    fn read_batch(&mut self, reads: &mut [PageRead<'_>]) {
        for read in reads {
            *read.page = self.pages.get(&read.offset_bytes).map_or([0; BLOCK_BYTES], |words| unpacked(words));
            read.result = Ok(());
        }
    }

    fn read_batch_while(&mut self, reads: &mut [PageRead<'_>], tasks: Vec<Task<'_>>) {
        let threads = self.threads.min(tasks.len());
        let tasks = Mutex::new(tasks.into_iter());
        let next = || std::iter::from_fn(|| tasks.lock().unwrap_or_else(PoisonError::into_inner).next());
        std::thread::scope(|scope| {
            for _ in 1..threads {
                scope.spawn(|| next().for_each(|task| task()));
            }
            self.read_batch(reads);
            next().for_each(|task| task());
        });
    }

    fn will_fill(&mut self, tables: &[Range<usize>]) {
        tables.iter().for_each(ask_for_large_pages);
    }

    fn write(&mut self, _: usize, offset_bytes: u64, pages: &[u8]) -> Result<(), IoFailure> {
        let offsets = (offset_bytes..).step_by(BLOCK_BYTES);
        for (offset, page) in offsets.zip(pages.chunks_exact(BLOCK_BYTES)) {
            let words = page.as_chunks::<WORD>().0.iter().enumerate();
            let packed = words.filter(|(_, word)| **word != [0; WORD]).map(|(at, word)| (at as u16, *word));
            self.pages.insert(offset, packed.collect());
        }
        Ok(())
    }

    fn flush(&mut self, _: usize) -> Result<(), IoFailure> {
        Ok(())
    }
}
