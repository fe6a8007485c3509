//! The control API of a daemon whose data path is not there.

mod api;
mod budget;
mod dashboard;
mod fake;
mod metrics;
mod roles;
