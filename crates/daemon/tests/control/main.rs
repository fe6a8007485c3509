//! The control API of a daemon whose data path is not there.

mod api;
mod dashboard;
mod fake;
mod metrics;
