//! A few threads that carry out tasks in the order of their arrival. A task that panics ends alone.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};

use crate::locked::Locked;

type Task = Box<dyn FnOnce() + Send>;

/// See the module. The threads end when this is dropped and nothing is left to do.
pub(super) struct Workers(SyncSender<Task>);

impl Workers {
    /// Starts the threads. At most `most_waiting` tasks wait for a free one.
    pub fn start(name: &str, threads: usize, most_waiting: usize) -> Workers {
        let (sender, tasks) = sync_channel::<Task>(most_waiting);
        let tasks = Arc::new(Mutex::new(tasks));
        for _ in 0..threads {
            let tasks: Arc<Mutex<Receiver<Task>>> = tasks.clone();
            let run = move || {
                while let Some(task) = next(&tasks) {
                    // The panic itself is on standard error already.
                    let _ = catch_unwind(AssertUnwindSafe(task));
                }
            };
            if let Err(error) = std::thread::Builder::new().name(name.into()).spawn(run) {
                tracing::error!(name, "cannot start a thread: {error}");
            }
        }
        Workers(sender)
    }

    /// Queues a task without waiting. Returns false if too many tasks wait already.
    pub fn give(&self, task: impl FnOnce() + Send + 'static) -> bool {
        self.0.try_send(Box::new(task)).is_ok()
    }
}

/// Waits for a task. The lock is held meanwhile, so that one thread waits for the channel and the others for the lock.
fn next(tasks: &Mutex<Receiver<Task>>) -> Option<Task> {
    tasks.locked().recv().ok()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn tasks_are_done_by_a_few_threads_and_too_many_are_refused() {
        let workers = Workers::start("test", 2, 1);
        let (blocker, blocked) = channel::<()>();
        let blocked = Arc::new(Mutex::new(blocked));
        let (done, results) = channel();
        let begin = |number: u32| {
            let (blocked, done) = (blocked.clone(), done.clone());
            move || {
                done.send(number).unwrap();
                let _ = blocked.locked().recv();
            }
        };
        for number in 0..2 {
            while !workers.give(begin(number)) {
                std::thread::yield_now();
            }
        }
        let mut begun: Vec<u32> = results.iter().take(2).collect();
        begun.sort_unstable();
        assert_eq!(begun, [0, 1], "two at a time");
        assert!(workers.give(begin(2)), "it waits");
        assert!(!workers.give(begin(3)), "that is one too many");
        drop(blocker);
        assert_eq!(results.recv(), Ok(2));
    }

    #[test]
    fn a_task_that_panics_leaves_its_thread_to_the_next() {
        let workers = Workers::start("test", 1, 2);
        let (done, results) = channel();
        assert!(workers.give(|| panic!("as a task may")));
        assert!(workers.give(move || done.send(1).unwrap()));
        assert_eq!(results.recv(), Ok(1));
    }
}
