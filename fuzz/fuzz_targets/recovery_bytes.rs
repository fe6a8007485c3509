//! Arbitrary bytes on the devices of a pool: opening and reading never panic and never show wrong data.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| haversack_crash::fuzz::recovery_bytes(data));
