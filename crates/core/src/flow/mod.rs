//! The ways of the core, one file each: how requests and background work go from step to step.

mod around;
pub mod clean;
pub mod commit;
pub mod device;
pub mod flush;
pub mod intent;
pub mod lifecycle;
mod read;
pub mod record;
pub mod request;
mod restage;
mod space;
mod write;
