//! What the program says. Errors are ignored: a device is served although the terminal is closed.

use std::fmt::Display;
use std::io::Write;

/// Prints a message to stderr.
pub fn say(message: impl Display) {
    let _ = writeln!(std::io::stderr(), "haversack-ublk: {message}");
}

/// Prints the one line of output: the path of the device.
pub fn print(path: &str) {
    let _ = writeln!(std::io::stdout(), "{path}");
}
