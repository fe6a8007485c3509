//! Arbitrary bytes for an NBD server whose disks come, go and change meanwhile: what is agreed on is what was told
//! last, and no other disk is handed over.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    haversack_nbd::fuzz::nbd_management_bytes(data);
});
