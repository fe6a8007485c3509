//! Why a trace cannot be generated.

/// A trace that cannot be generated.
#[derive(thiserror::Error, Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum GenerateError {
    /// A parameter is invalid.
    #[error("{what}: expected {expected}, found {found}")]
    Parameter {
        /// Which.
        what: &'static str,
        /// What was given.
        found: String,
        /// What can be given.
        expected: &'static str,
    },
    /// No such preset.
    #[error("there is no preset {name:?}; there are {known}")]
    UnknownPreset {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
}

/// An error unless `good`.
pub(super) fn require(
    good: bool,
    what: &'static str,
    found: &impl ToString,
    expected: &'static str,
) -> Result<(), GenerateError> {
    if good { Ok(()) } else { Err(GenerateError::Parameter { what, found: found.to_string(), expected }) }
}
