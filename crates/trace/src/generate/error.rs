//! Why a trace cannot be generated.

/// A trace that cannot be generated.
#[derive(thiserror::Error, Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum GenerateError {
    /// A parameter is invalid.
    #[error("{what}: expected {expected}, found {found}")]
    Parameter {
        /// Its name.
        what: &'static str,
        /// The given value.
        found: String,
        /// The valid values.
        expected: &'static str,
    },
    /// No such preset.
    #[error("there is no preset {name:?}; there are {known}")]
    UnknownPreset {
        /// The given name.
        name: String,
        /// The existing presets.
        known: String,
    },
}

/// Returns an error unless `good`.
pub(super) fn require(
    good: bool,
    what: &'static str,
    found: &impl ToString,
    expected: &'static str,
) -> Result<(), GenerateError> {
    if good { Ok(()) } else { Err(GenerateError::Parameter { what, found: found.to_string(), expected }) }
}
