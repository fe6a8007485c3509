//! Arbitrary bytes for an NBD client: it never panics, loops or takes what the protocol does not allow.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    haversack_nbd::fuzz::nbd_client_bytes(data);
});
