//! The payload of a request: memory in pieces that are allocated as data arrives and freed as it leaves.
//!
//! Invariants
//! - Memory is allocated and freed one piece at a time, however long the request is.
//! - A request never sees data of another one: a kept piece is overwritten before it is sent, because a read's
//!   reply is sent only if the core has supplied all of it.

/// The size of a piece.
pub(super) const PIECE_BYTES: usize = 64 << 10;

/// See the module documentation.
#[derive(Default)]
pub(super) struct Payload {
    /// Empty ones are not allocated yet, or already freed.
    pieces: Vec<Box<[u8]>>,
    len: usize,
}

impl Payload {
    /// Begins a payload of `len` bytes. Reuses memory kept from an earlier one.
    pub fn begin(&mut self, len: usize) {
        self.len = len;
        self.pieces.resize_with(len.div_ceil(PIECE_BYTES).max(self.pieces.len().min(1)), Box::default);
    }

    /// Returns the bytes of memory that it holds.
    pub fn memory_bytes(&self) -> usize {
        self.pieces.iter().map(|piece| piece.len()).sum()
    }

    /// Returns the bytes from `at` to the end of its piece.
    pub fn piece_from(&mut self, at: usize) -> &mut [u8] {
        let number = at / PIECE_BYTES;
        let len = (self.len - number * PIECE_BYTES).min(PIECE_BYTES);
        let piece = &mut self.pieces[number];
        if piece.len() < len {
            *piece = vec![0; len].into_boxed_slice();
        }
        &mut piece[at % PIECE_BYTES..len]
    }

    /// Copies into the payload, starting at byte `at`.
    pub fn put(&mut self, mut at: usize, mut from: &[u8]) {
        while !from.is_empty() {
            let into = self.piece_from(at);
            let count = into.len().min(from.len());
            into[..count].copy_from_slice(&from[..count]);
            (at, from) = (at + count, &from[count..]);
        }
    }

    /// Copies out of the payload, starting at byte `at`.
    pub fn get(&mut self, mut at: usize, mut into: &mut [u8]) {
        while !into.is_empty() {
            let from = self.piece_from(at);
            let count = from.len().min(into.len());
            into[..count].copy_from_slice(&from[..count]);
            (at, into) = (at + count, &mut into[count..]);
        }
    }

    /// Frees the pieces before byte `end`, which are no longer needed. The first piece stays, for the next
    /// request.
    pub fn has_left(&mut self, end: usize) {
        let gone = if end == self.len { self.pieces.len() } else { end / PIECE_BYTES };
        for piece in self.pieces.iter_mut().take(gone).skip(1).rev() {
            if piece.is_empty() {
                break;
            }
            *piece = Box::default();
        }
    }

    /// Frees all memory, except for the first piece if `keeps_piece`.
    pub fn end(&mut self, keeps_piece: bool) {
        self.pieces.truncate(usize::from(keeps_piece));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_read_back_across_pieces() {
        let mut payload = Payload::default();
        for len in [512, PIECE_BYTES, 3 * PIECE_BYTES + 512, 1024] {
            payload.begin(len);
            let bytes: Vec<u8> = (0..len).map(|at| (at / 512) as u8 ^ at as u8).collect();
            for (number, part) in bytes.chunks(4096 + 512).enumerate() {
                payload.put(number * (4096 + 512), part);
            }
            let mut got = vec![0; len];
            for (number, part) in got.chunks_mut(10_000).enumerate() {
                payload.get(number * 10_000, part);
            }
            assert!(got == bytes, "{len}");
            payload.end(true);
        }
    }

    #[test]
    fn memory_comes_as_data_does_and_goes_as_it_leaves() {
        let mut payload = Payload::default();
        payload.begin(10 * PIECE_BYTES);
        assert_eq!(payload.memory_bytes(), 0);
        payload.put(PIECE_BYTES - 1, &[1, 2]);
        assert_eq!(payload.memory_bytes(), 2 * PIECE_BYTES);
        payload.put(0, &vec![7; 10 * PIECE_BYTES]);
        payload.has_left(3 * PIECE_BYTES + 1);
        assert_eq!(payload.memory_bytes(), 8 * PIECE_BYTES);
        payload.has_left(10 * PIECE_BYTES);
        assert_eq!(payload.memory_bytes(), PIECE_BYTES);
        payload.end(false);
        assert_eq!(payload.memory_bytes(), 0);
    }
}
