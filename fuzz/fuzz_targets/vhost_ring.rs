//! Arbitrary bytes as a virtqueue, its buffers and its in-flight region: never a panic, a hang, or an access outside.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| haversack_vhost_user::fuzz::vhost_ring(data));
