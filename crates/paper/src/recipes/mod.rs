//! The kinds of recipes, one file each.

pub mod clients;
pub mod distances;
pub mod intervals;
pub mod moves;
pub mod pools;
pub mod rings;
pub mod weights;
pub mod windows;
