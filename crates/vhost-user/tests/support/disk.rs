//! A disk in memory with a thread per queue, and a record of what the protocol half told it.

use std::collections::{BTreeSet, HashMap};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use haversack_vhost_user::*;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use haversack_model::random::Random;

pub const NAME: &[u8] = b"test-disk";

/// What the disk does with requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Mood {
    /// Answers at once.
    Prompt,
    /// Keeps every request until told otherwise.
    Hold,
    /// Answers some of the requests it has, in any order.
    Moody,
}

#[derive(Debug)]
enum Command {
    Update(QueueUpdate, Sender<()>),
    /// Stop; and finish the requests in flight, or leave them as a killed process would.
    Stop {
        finish: bool,
    },
}

#[derive(Debug)]
struct Worker {
    commands: Sender<Command>,
    wake: Arc<OwnedFd>,
    thread: JoinHandle<Queue>,
}

/// What the protocol half told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Started(u16),
    Stopped(u16),
    WriteCache(bool),
    Switched(bool),
    Waits,
    /// The session ended, for this reason if it was an error.
    Disconnected(Option<String>),
}

#[derive(Debug)]
struct State {
    storage: Mutex<Vec<u8>>,
    mood: AtomicU8,
    broken: Mutex<Option<Broken>>,
    /// Sectors of writes in the order in which they were taken.
    taken: Mutex<Vec<u64>>,
}

#[derive(Debug)]
pub struct TestDisk {
    state: Arc<State>,
    workers: Mutex<HashMap<u16, Worker>>,
    pub write_cache: Arc<WriteCache>,
    pub events: Mutex<Vec<Event>>,
    /// Whether stopping a queue leaves its requests in flight.
    pub killed: std::sync::atomic::AtomicBool,
}

impl TestDisk {
    pub fn new(bytes: usize) -> Arc<Self> {
        let state = State {
            storage: Mutex::new(vec![0; bytes]),
            mood: AtomicU8::new(Mood::Prompt as u8),
            broken: Mutex::default(),
            taken: Mutex::default(),
        };
        Arc::new(Self {
            state: Arc::new(state),
            workers: Mutex::default(),
            write_cache: Arc::default(),
            events: Mutex::default(),
            killed: false.into(),
        })
    }

    pub fn set_mood(&self, mood: Mood) {
        self.state.mood.store(mood as u8, Ordering::SeqCst);
        for worker in self.workers.lock().unwrap().values() {
            wake(&worker.wake);
        }
    }

    pub fn broken(&self) -> Option<Broken> {
        *self.state.broken.lock().unwrap()
    }

    pub fn taken(&self) -> Vec<u64> {
        self.state.taken.lock().unwrap().clone()
    }

    pub fn stored(&self, at: usize, len: usize) -> Vec<u8> {
        self.state.storage.lock().unwrap()[at..at + len].to_vec()
    }

    pub fn events(&self) -> Vec<Event> {
        self.events.lock().unwrap().clone()
    }

    fn record(&self, event: Event) {
        self.events.lock().unwrap().push(event);
    }
}

impl Handler for TestDisk {
    fn queue_started(&self, queue: Queue) {
        let index = queue.index();
        self.record(Event::WriteCache(queue.has_write_cache()));
        let wake = Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap());
        let (commands, received) = channel();
        let thread = std::thread::spawn({
            let (state, wake) = (self.state.clone(), wake.clone());
            move || {
                Work { queue, held: BTreeSet::new(), state, numbers: Random::new(index.into()) }
                    .run(&received, &wake)
            }
        });
        self.record(Event::Started(index));
        self.workers.lock().unwrap().insert(index, Worker { commands, wake, thread });
    }

    fn queue_updated(&self, index: u16, update: QueueUpdate) {
        let (done, answer) = channel();
        {
            let workers = self.workers.lock().unwrap();
            workers[&index].commands.send(Command::Update(update, done)).unwrap();
            wake(&workers[&index].wake);
        }
        answer.recv().unwrap();
    }

    fn queue_stopped(&self, index: u16) -> Option<Queue> {
        let worker = self.workers.lock().unwrap().remove(&index)?;
        let finish = !self.killed.load(Ordering::SeqCst);
        worker.commands.send(Command::Stop { finish }).unwrap();
        wake(&worker.wake);
        self.record(Event::Stopped(index));
        worker.thread.join().ok()
    }

    fn write_cache_switched(&self, on: bool) {
        self.record(Event::WriteCache(self.write_cache.is_on()));
        self.record(Event::Switched(on));
    }

    fn write_cache(&self) -> &Arc<WriteCache> {
        &self.write_cache
    }

    fn front_end_waits(&self) {
        self.record(Event::Waits);
    }

    fn disconnected(&self, cause: Option<SessionError>) {
        self.record(Event::Disconnected(cause.map(|e| e.to_string())));
    }
}

fn wake(fd: &OwnedFd) {
    rustix::io::write(fd, &1u64.to_ne_bytes()).unwrap();
}

struct Work {
    queue: Queue,
    held: BTreeSet<u16>,
    state: Arc<State>,
    numbers: Random,
}

impl Work {
    fn run(mut self, commands: &Receiver<Command>, wake: &OwnedFd) -> Queue {
        loop {
            for command in commands.try_iter() {
                match command {
                    Command::Update(update, done) => {
                        if let Err(broken) = self.queue.update(update) {
                            *self.state.broken.lock().unwrap() = Some(broken);
                        }
                        done.send(()).unwrap();
                    }
                    Command::Stop { finish } => {
                        while let Some(head) = self.held.pop_first().filter(|_| finish) {
                            self.queue.complete(head, Status::Ok);
                        }
                        self.queue.notify_if_needed();
                        return self.queue;
                    }
                }
            }
            self.queue.set_notification(false);
            self.work();
            self.queue.notify_if_needed();
            self.queue.set_notification(true);
            if !self.queue.has_work() {
                self.wait(wake);
            }
        }
    }

    fn wait(&self, wake: &OwnedFd) {
        let kick = self.queue.kick_fd();
        let mut polled = vec![PollFd::new(wake, PollFlags::IN)];
        polled.extend(kick.as_ref().map(|kick| PollFd::new(kick, PollFlags::IN)));
        // Without a kick eventfd, and with requests to be answered at a whim, look again after a while.
        let mood = self.state.mood.load(Ordering::SeqCst);
        let idle = kick.is_some() && (self.held.is_empty() || mood == Mood::Hold as u8);
        let timeout = rustix::event::Timespec { tv_sec: 0, tv_nsec: 100_000 };
        poll(&mut polled, (!idle).then_some(&timeout)).unwrap();
        for fd in kick.into_iter().chain([wake.as_fd()]) {
            let _ = rustix::io::read(fd, &mut [0; 8]);
        }
    }

    fn work(&mut self) {
        let mood = self.state.mood.load(Ordering::SeqCst);
        loop {
            let request = match self.queue.next() {
                Ok(Some(request)) => request,
                Ok(None) => break,
                Err(broken) => {
                    *self.state.broken.lock().unwrap() = Some(broken);
                    break;
                }
            };
            let status = self.carry_out(&request);
            match status {
                Status::Ok => {
                    self.held.insert(request.head);
                }
                failed => self.queue.complete(request.head, failed),
            }
        }
        while mood != Mood::Hold as u8 && !self.held.is_empty() {
            if mood == Mood::Moody as u8 && self.numbers.below(3) == 0 {
                return;
            }
            let at = self.numbers.below(self.held.len() as u64) as usize;
            let head = *self.held.iter().nth(at).unwrap();
            self.held.remove(&head);
            self.queue.complete(head, Status::Ok);
        }
    }

    fn carry_out(&mut self, request: &BlkRequest) -> Status {
        let mut storage = self.state.storage.lock().unwrap();
        let (at, len) = (request.sector as usize * 512, request.len_bytes as usize);
        match request.operation {
            Operation::Read | Operation::Write if at + len > storage.len() => return Status::IoError,
            Operation::Read => self.queue.copy_to_guest(request.head, 0, &storage[at..at + len]),
            Operation::Write => {
                self.state.taken.lock().unwrap().push(request.sector);
                let mut bytes = vec![0; len];
                if !self.queue.copy_from_guest(request.head, 0, &mut bytes) {
                    return Status::IoError;
                }
                storage[at..at + len].copy_from_slice(&bytes);
            }
            Operation::Discard | Operation::WriteZeroes => {
                for range in self.queue.ranges(request.head) {
                    let at = range.sector as usize * 512;
                    let end = at + range.sectors as usize * 512;
                    let Some(range) = storage.get_mut(at..end) else { return Status::IoError };
                    range.fill(0);
                }
            }
            Operation::Flush => {}
            Operation::GetId => {
                let mut name = [0; ID_BYTES as usize];
                name[..NAME.len()].copy_from_slice(NAME);
                self.queue.copy_to_guest(request.head, 0, &name[..len]);
            }
            Operation::Unsupported(_) => return Status::Unsupported,
        }
        Status::Ok
    }
}
