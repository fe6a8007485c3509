//! Numbers of things, as a person would write them.

/// Returns a noun as it stands behind a number: `plural(2, "disk")` is `disks`.
#[must_use]
pub fn plural(count: u64, noun: &str) -> String {
    if count == 1 { noun.into() } else { format!("{noun}s") }
}

/// Formats a number of things: `1 device`, `2 devices`.
#[must_use]
pub fn counted(count: u64, noun: &str) -> String {
    format!("{count} {}", plural(count, noun))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thing_is_singular() {
        for (count, text) in [(0, "0 devices"), (1, "1 device"), (2, "2 devices")] {
            assert_eq!(counted(count, "device"), text);
        }
    }
}
