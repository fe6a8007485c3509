//! A fixed hasher for small integer keys: the same in every run.

use std::hash::Hasher;

use crate::checksum::mix;

/// Hashes integers with [`mix`].
#[derive(Default)]
pub struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u16(&mut self, number: u16) {
        self.write_u64(u64::from(number));
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = mix(self.0.rotate_left(5) ^ number);
    }
}
