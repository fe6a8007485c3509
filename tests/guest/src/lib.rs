//! What the guest of the end-to-end tests writes, and how it knows what it must read back.
//!
//! The guest program (`main.rs`) is process 1 of a Linux guest and carries out commands from a serial line. The
//! harness outside uses the same [`pattern`] to prepare origins and to judge disks from the host.

pub mod commands;
pub mod disk;
pub mod files;
pub mod load;
pub mod measure;
pub mod oracle;
pub mod pattern;
pub mod scribble;
pub mod tally;
