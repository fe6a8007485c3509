//! Standard output, which a reader such as `head` may close before the end.

use std::any::Any;
use std::fmt::Arguments;
use std::io::{ErrorKind, Write};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::ExitCode;

/// Nobody reads any more.
struct Closed;

/// Writes a line. If nobody reads it, [`until_closed`] ends.
pub fn line(text: Arguments) {
    let mut out = std::io::stdout().lock();
    match out.write_fmt(text).and_then(|()| out.write_all(b"\n")) {
        Ok(()) => {}
        // Unwinding ends the processes that were started.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => resume_unwind(Box::new(Closed)),
        Err(error) => panic!("cannot write to stdout: {error}"),
    }
}

/// Runs something that writes lines, to its end or until nobody reads them.
pub fn until_closed(run: impl FnOnce() -> ExitCode) -> ExitCode {
    let is_closed = |panic: &Box<dyn Any + Send>| panic.is::<Closed>();
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(code) => code,
        Err(panic) if is_closed(&panic) => ExitCode::SUCCESS,
        Err(panic) => resume_unwind(panic),
    }
}

/// As `println!`, with [`line()`].
macro_rules! say {
    ($($text:tt)*) => {
        $crate::output::line(format_args!($($text)*))
    };
}

pub(crate) use say;
