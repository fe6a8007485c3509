//! Arbitrary bytes as a trace of any format: reading never panics, and what is read is in order and of named volumes.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    haversack_trace::fuzz::trace_bytes(data);
});
