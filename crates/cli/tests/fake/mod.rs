//! What `haversack migrate --qmp` talks to.

pub mod daemon;
pub mod qemu;
