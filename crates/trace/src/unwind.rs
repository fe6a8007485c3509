//! Calls into a crate that panics on damaged input, which must become an error.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

thread_local! {
    static CAUGHT: Cell<bool> = const { Cell::new(false) };
}

/// Returns the result of the call; `None` if it panics. Nothing is printed then. State that it has changed may be
/// inconsistent.
pub(crate) fn caught<T>(call: impl FnOnce() -> T) -> Option<T> {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |panicked| {
            if !CAUGHT.get() {
                before(panicked);
            }
        }));
    });
    CAUGHT.set(true);
    let result = panic::catch_unwind(AssertUnwindSafe(call));
    CAUGHT.set(false);
    result.ok()
}
