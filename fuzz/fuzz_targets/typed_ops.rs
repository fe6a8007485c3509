//! Requests, mode changes, kills and power cuts read from bytes: no invariant breaks.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| haversack_crash::fuzz::typed_ops(data));
