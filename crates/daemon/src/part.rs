//! A part of a thread's work that may panic: the daemon and the thread's other parts continue.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use crate::error::{DaemonError, Result};

/// How long a part rests after a panic.
const AFTER_PANIC: Duration = Duration::from_secs(60);

/// See the module.
pub struct Part {
    what: &'static str,
    rests_until: Option<Instant>,
}

impl Part {
    /// Makes a part. `what` describes its work for the operator.
    pub fn new(what: &'static str) -> Part {
        Part { what, rests_until: None }
    }

    /// Runs the part, unless it has panicked a short time ago. Returns a message for the operator if it panics.
    pub fn run(&mut self, now: Instant, act: &mut dyn FnMut()) -> Option<String> {
        if self.rests_until.is_some_and(|until| now < until) {
            return None;
        }
        self.rests_until = None;
        let panic = catch_unwind(AssertUnwindSafe(act)).err()?;
        self.rests_until = Some(now + AFTER_PANIC);
        Some(panicked(&*panic, self.what))
    }
}

/// Runs work that other work waits for.
///
/// # Errors
/// The work failed or panicked.
pub fn caught<R>(work: impl FnOnce() -> Result<R>) -> Result<R> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let what = format!("an internal error: {}", text_of(&*panic));
        Err(DaemonError::conflict(what, "see the daemon's log, and report it"))
    })
}

/// Returns the message of a panic.
fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().map(str::to_owned);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}

fn panicked(panic: &(dyn Any + Send), what: &str) -> String {
    let text = text_of(panic);
    tracing::error!("{what} has failed: {text}");
    format!("an internal error in {what}: {text}. It is tried again in {} s", AFTER_PANIC.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_told() {
        let acts: [fn(); 2] = [|| panic!("plain"), || panic!("{} words", 2)];
        for act in acts {
            let panic = catch_unwind(act).unwrap_err();
            let text = panicked(&*panic, "balancing");
            assert!(text.contains("in balancing: plain") || text.contains("in balancing: 2 words"), "{text}");
            assert!(text.contains("again in 60 s"), "{text}");
        }
    }

    #[test]
    fn what_panics_rests_and_nothing_else_does() {
        let (mut bad, mut good, now) = (Part::new("this"), Part::new("that"), Instant::now());
        let (mut tried, mut done) = (0, 0);
        for half_seconds in 0..240 {
            let at = now + Duration::from_millis(500) * half_seconds;
            let told = bad.run(at, &mut || {
                tried += 1;
                panic!("again");
            });
            assert_eq!(told.is_some(), half_seconds % 120 == 0, "{half_seconds}");
            assert_eq!(good.run(at, &mut || done += 1), None);
        }
        assert_eq!((tried, done), (2, 240));
    }
}
