//! The dirty-page log of a live migration: one bit per 4 KiB page of guest memory, shared with the front end.
//!
//! A page is marked after it was written, always with an atomic read-modify-write: the front end clears bits and then
//! copies pages, so the other side must never see a mark before the data.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::mapping::{Mapping, Window};
use crate::quota::Quota;

/// Guest memory per bit, in bytes.
const PAGE_BYTES: u64 = 4096;

/// A mapped dirty-page log.
#[derive(Debug)]
pub struct DirtyLog {
    window: Window,
}

impl DirtyLog {
    /// Maps the log of `len` bytes at `offset` in `file`.
    ///
    /// # Errors
    /// The range is not within the file, the quota is used up, or the kernel refuses.
    pub fn new(file: impl AsFd, offset: u64, len: u64, quota: &Quota) -> io::Result<Self> {
        let mapping = Arc::new(Mapping::new(file, offset, len, quota)?);
        let whole = Window::new(&mapping, 0, mapping.len());
        Ok(Self { window: whole.ok_or(io::ErrorKind::InvalidInput)? })
    }

    /// Returns the first guest address that the log has no bit for.
    pub fn end_address(&self) -> u64 {
        (self.window.len() as u64).saturating_mul(8 * PAGE_BYTES)
    }

    /// Returns whether a part of it was lost.
    pub(crate) fn is_lost(&self) -> bool {
        self.window.is_lost()
    }

    /// Marks the pages of `len` bytes that were written at a guest address; those beyond the log are left out.
    pub(crate) fn mark(&self, guest_address: u64, len: u64) {
        if len == 0 {
            return;
        }
        let last_byte = guest_address.saturating_add(len - 1).min(self.end_address().saturating_sub(1));
        for page in guest_address / PAGE_BYTES..=last_byte / PAGE_BYTES {
            self.window.u8((page / 8) as usize).fetch_or(1 << (page % 8), Ordering::SeqCst);
        }
    }
}
