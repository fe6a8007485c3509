//! The size with which a staging file was created, found from its own header. The header follows the
//! descriptors, so its offset shows how many there are.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use haversack_core::DESCRIPTOR_BYTES;
use haversack_core::format::descriptor::StagingHeader;

use crate::memory::staging_file_bytes;

/// Bytes read at a time, a multiple of a descriptor's size.
const CHUNK_BYTES: usize = DESCRIPTOR_BYTES << 14;

/// Returns the size with which the file was created; `None` if it has no valid header.
pub(crate) fn by_header(file: &File) -> io::Result<Option<u64>> {
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut passed = 0;
    loop {
        let bytes = file.read_at(&mut chunk, passed * DESCRIPTOR_BYTES as u64)?;
        let whole = chunk[..bytes].as_chunks().0;
        if let Some(at) = whole.iter().position(|bytes| StagingHeader::decode(bytes).is_some()) {
            let frames = u32::try_from(passed + at as u64);
            return Ok(frames.ok().map(staging_file_bytes));
        }
        if whole.is_empty() {
            return Ok(None);
        }
        passed += whole.len() as u64;
    }
}
