//! Arbitrary bytes for an NBD server: it never panics, loops or takes what the protocol does not allow.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    haversack_nbd::fuzz::nbd_server_bytes(data);
});
