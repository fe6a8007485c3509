//! The error of a time that cannot be read.

/// A service time is invalid. It says what was found and what was expected.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
#[error("{0}")]
pub struct LatencyError(pub String);
