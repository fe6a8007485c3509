//! The data paths of the core, one file each: the steps that requests and background work go through.

mod around;
pub mod clean;
pub mod commit;
pub mod damage;
mod detach;
pub mod device;
pub mod drain;
pub mod flush;
mod forget;
pub mod intent;
pub mod job;
pub mod leave;
pub mod mark;
mod monitoring;
mod overflow;
mod ownership;
pub mod pool_job;
pub mod purge;
mod read;
pub mod record;
pub mod request;
pub mod resize;
mod restage;
mod retreat;
mod settings;
mod space;
mod write;
