//! The control API of a daemon with a fake data path.

mod api;
mod budget;
mod dashboard;
mod fake;
mod metrics;
mod roles;
mod start;
