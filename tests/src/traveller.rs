//! An NBD client that runs in the background and moves between hosts like a VM: it stops at one host with nothing in
//! flight, and continues at another.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::tools::{PATIENCE, wait_until};
use crate::verify::Verifier;
use crate::{Error, Result};

/// The pause of one that has stopped, or whose server is gone.
const PAUSE: Duration = Duration::from_millis(2);

/// See the module. The client runs until it is told to end.
#[derive(Debug)]
pub struct Traveller {
    disk: String,
    shared: Arc<Shared>,
    thread: JoinHandle<Result<Verifier>>,
}

#[derive(Debug)]
struct Shared {
    /// Where the VM runs, or is to run; `None` if it is to stop.
    at: Mutex<Option<PathBuf>>,
    has_stopped: AtomicBool,
    ends: AtomicBool,
    answered: AtomicU64,
}

impl Shared {
    fn at(&self) -> std::sync::MutexGuard<'_, Option<PathBuf>> {
        self.at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, mut verifier: Verifier) -> Result<Verifier> {
        let mut here = None;
        while !self.ends.load(Ordering::Acquire) {
            let wanted = self.at().clone();
            match wanted {
                // A hypervisor repeats unanswered requests; its VM has stopped only when all are answered.
                None if here.is_none() || verifier.is_answered() => {
                    verifier.disconnect();
                    here = None;
                    self.has_stopped.store(true, Ordering::Release);
                    std::thread::sleep(PAUSE);
                    continue;
                }
                Some(socket) if here.as_ref() != Some(&socket) => {
                    verifier.move_to(&socket);
                    here = Some(socket);
                }
                _ => {}
            }
            verifier.step()?;
            if verifier.is_answered() {
                self.answered.fetch_add(1, Ordering::Relaxed);
            } else {
                std::thread::sleep(PAUSE);
            }
        }
        Ok(verifier)
    }
}

impl Traveller {
    /// Begins at a host's NBD socket.
    pub fn begin(socket: &Path, disk: &str, verifier: Verifier) -> Self {
        let shared = Arc::new(Shared {
            at: Mutex::new(Some(socket.to_owned())),
            has_stopped: AtomicBool::new(false),
            ends: AtomicBool::new(false),
            answered: AtomicU64::new(0),
        });
        let its = shared.clone();
        let thread = std::thread::spawn(move || its.run(verifier));
        Self { disk: disk.to_owned(), shared, thread }
    }

    /// Stops with nothing in flight and no connection.
    ///
    /// # Errors
    /// It has met an error, or is not answered.
    pub fn stop(&self) -> Result<()> {
        self.shared.has_stopped.store(false, Ordering::Release);
        *self.shared.at() = None;
        self.wait_until("the stop", || self.shared.has_stopped.load(Ordering::Acquire))
    }

    /// Goes on at a host's NBD socket.
    pub fn go_on(&self, socket: &Path) {
        *self.shared.at() = Some(socket.to_owned());
    }

    /// Waits until `more` requests are answered.
    ///
    /// # Errors
    /// It has met an error, or is not answered.
    pub fn advance(&self, more: u64) -> Result<()> {
        let answered = || self.shared.answered.load(Ordering::Relaxed);
        let goal = answered() + more;
        self.wait_until("requests", || answered() >= goal)
    }

    /// Returns whether it has met an error or wrong bytes.
    pub fn has_failed(&self) -> bool {
        self.thread.is_finished()
    }

    /// Returns how many requests were answered.
    pub fn answered(&self) -> u64 {
        self.shared.answered.load(Ordering::Relaxed)
    }

    fn wait_until(&self, what: &str, question: impl Fn() -> bool) -> Result<()> {
        wait_until(&format!("{what} of the VM of disk '{}'", self.disk), PATIENCE, || {
            // `end` returns the client's error.
            Ok(question() || self.has_failed())
        })
    }

    /// Ends it and returns the client, which knows all that it has written.
    ///
    /// # Errors
    /// It has met an error or wrong bytes.
    pub fn end(self) -> Result<Verifier> {
        self.shared.ends.store(true, Ordering::Release);
        self.thread.join().map_err(|_| Error::Check(format!("the VM of disk '{}' panicked", self.disk)))?
    }
}
