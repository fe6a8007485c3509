//! Calls into a crate that panics over damaged input, which is to be an error.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

thread_local! {
    static CAUGHT: Cell<bool> = const { Cell::new(false) };
}

/// What the call gives, or nothing if it panics. Nothing is printed then. What it has changed may be in disorder.
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
