//! The life of the program: connect, create the device, serve it until a signal arrives, remove it.
//!
//! Invariants
//! - From the moment that the block device can be used, only a signal removes it. After any error it stays, and its
//!   requests wait for the next server.
//! - It is removed only when nothing has it mounted and the daemon has all that was written to it, unless a second
//!   signal says that nobody needs that.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};
use sd_notify::NotifyState;

use crate::control::Control;
use crate::device::{Device, Plan};
use crate::error::{UblkError, UpstreamError};
use crate::flusher;
use crate::properties::properties;
use crate::queue::{Queue, Shared};
use crate::report;
use crate::request::SECTOR_BYTES;
use crate::stop::Stop;
use crate::upstream::{Connection, Pauses, Upstream, takes_several};

/// What the user wants.
#[derive(Debug)]
pub struct Wishes {
    pub upstream: Upstream,
    pub number: Option<u32>,
    pub queues: u16,
    pub depth: u16,
    pub is_read_only: bool,
    pub wait: Duration,
}

/// What happens while a device is served.
enum Event {
    Signal,
    /// A queue asks for requests.
    Ready,
    /// The thread of this queue has ended.
    Over(usize),
}

/// Reports that a thread has ended, whatever the cause.
struct Farewell(usize, Sender<Event>);

impl Drop for Farewell {
    fn drop(&mut self) {
        // Nobody listens when the program ends.
        let _ = self.1.send(Event::Over(self.0));
    }
}

/// Serves a device until SIGTERM or SIGINT.
pub fn serve(wishes: &Wishes) -> Result<(), UblkError> {
    let mut control = Control::open()?;
    let new_stop = || Stop::new().map(Arc::new).map_err(UblkError::system("eventfd"));
    let (asked, stop) = (new_stop()?, new_stop()?);
    let (sender, events) = mpsc::channel();
    watch_signals(Arc::clone(&asked), Arc::clone(&stop), sender.clone())?;
    if let Err(error) = flusher::become_flusher() {
        report::say(format_args!("the kernel may wait for this program when memory is short: {error}"));
    }
    let Some(connection) = first_connection(wishes, &asked)? else { return Ok(()) };
    let device = Device::prepare(&mut control, &plan(wishes, &connection)?)?;
    let session = Session::start(&device, &wishes.upstream, asked, stop, connection, &sender)?;
    session.run(&mut control, &device, &events)
}

/// Has the first SIGTERM or SIGINT ask for the end of the program, and the second one stop the queues. No thread that is
/// started later receives them.
fn watch_signals(asked: Arc<Stop>, stop: Arc<Stop>, events: Sender<Event>) -> Result<(), UblkError> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGTERM);
    signals.add(Signal::SIGINT);
    signals.thread_block().map_err(|errno| UblkError::system("signals")(errno.into()))?;
    let watch = move || {
        for request in [asked, stop] {
            if signals.wait().is_ok() {
                request.request();
                // Nobody listens when the program ends.
                let _ = events.send(Event::Signal);
            }
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(watch).map_err(UblkError::system("thread"))?;
    Ok(())
}

/// Connects, for as long as the user wants to wait. Returns none if the program is about to end.
fn first_connection(wishes: &Wishes, stop: &Stop) -> Result<Option<Connection>, UblkError> {
    let (start, mut pauses) = (Instant::now(), Pauses::new());
    loop {
        let error = match wishes.upstream.connect() {
            Ok(connection) => return Ok(Some(connection)),
            Err(UpstreamError::Nbd(error)) => return Err(UblkError::Export(error)),
            Err(error) => error,
        };
        let pause = pauses.next();
        if start.elapsed() + pause > wishes.wait {
            let (socket, wait_s) = (wishes.upstream.socket(), wishes.wait.as_secs());
            return Err(UblkError::Away { socket, wait_s, source: error });
        }
        if stop.wait(pause) {
            return Ok(None);
        }
    }
}

fn plan(wishes: &Wishes, connection: &Connection) -> Result<Plan, UblkError> {
    let connected = &connection.connected;
    let params = properties(wishes.upstream.export(), connected, wishes.is_read_only)?;
    let takes_several = takes_several(connected);
    Ok(Plan {
        export: wishes.upstream.export().to_owned(),
        takes_several,
        is_read_only: wishes.is_read_only,
        number: wishes.number,
        queues: if takes_several { wishes.queues } else { 1 },
        depth: wishes.depth,
        max_io_bytes: params.max_sectors * SECTOR_BYTES as u32,
        params,
        identity: wishes.upstream.identity(),
    })
}

/// The threads of a device's queues.
struct Session {
    shared: Arc<Shared>,
    /// Whether a signal has asked for the end.
    asked: Arc<Stop>,
    threads: Vec<JoinHandle<Result<(), UblkError>>>,
}

impl Session {
    fn start(
        device: &Device,
        upstream: &Upstream,
        asked: Arc<Stop>,
        stop: Arc<Stop>,
        connection: Connection,
        events: &Sender<Event>,
    ) -> Result<Self, UblkError> {
        let shared = Arc::new(Shared {
            upstream: upstream.clone(),
            device: device.open()?,
            queues: device.info.queues,
            depth: device.info.depth,
            max_io_bytes: device.info.max_io_bytes,
            size_bytes: device.params.device_sectors * SECTOR_BYTES,
            stop,
        });
        let (mut threads, mut connection) = (Vec::new(), Some(connection));
        for number in 0..shared.queues {
            let (shared, connection) = (Arc::clone(&shared), connection.take());
            let (farewell, events) = (Farewell(usize::from(number), events.clone()), events.clone());
            let work = move || {
                let _farewell = farewell;
                let queue = Queue::start(number, shared)?;
                let _ = events.send(Event::Ready);
                queue.run(connection)
            };
            let spawned = std::thread::Builder::new().name(format!("queue-{number}")).spawn(work);
            // Threads that have been started end with the program.
            threads.push(spawned.map_err(UblkError::system("thread"))?);
        }
        Ok(Self { shared, asked, threads })
    }

    /// Makes the block device available, and removes it after a signal.
    fn run(
        mut self,
        control: &mut Control,
        device: &Device,
        events: &Receiver<Event>,
    ) -> Result<(), UblkError> {
        // The threads have the device's file open until the program ends, so after an error a new device is left to the
        // next server of this disk, which removes it.
        self.wait_for_queues(events)?;
        device.start(control)?;
        self.announce(device);
        while !self.asked.is_requested() {
            if let Ok(Event::Over(number)) = events.recv() {
                return Err(self.failure(number));
            }
        }
        let held = match device.settle(&self.shared.stop) {
            Err(error) if self.shared.stop.is_requested() => {
                report::say(format_args!("{error}; what was not written to it by now is lost"));
                None
            }
            held => Some(held?),
        };
        self.shared.stop.request();
        device.stop(control)?;
        drop(held);
        self.join();
        device.delete(control)
    }

    fn wait_for_queues(&mut self, events: &Receiver<Event>) -> Result<(), UblkError> {
        let mut missing = self.threads.len();
        while missing > 0 {
            match events.recv() {
                Ok(Event::Ready) => missing -= 1,
                Ok(Event::Over(number)) => return Err(self.failure(number)),
                Ok(Event::Signal) => {}
                Err(_) => return Err(UblkError::Thread),
            }
        }
        Ok(())
    }

    /// Returns why the thread of a queue has ended.
    fn failure(&mut self, number: usize) -> UblkError {
        match self.threads.remove(number).join() {
            Ok(Ok(())) => UblkError::Removed,
            Ok(Err(error)) => error,
            Err(_) => UblkError::Thread,
        }
    }

    /// Waits for all threads, and closes the device.
    fn join(self) {
        for thread in self.threads {
            // The kernel gives no more requests: errors of a thread have no consequence now.
            let _ = thread.join();
        }
    }

    fn announce(&self, device: &Device) {
        if device.is_taken_over() {
            report::say(format_args!("{} taken over; it had no server", device.path()));
        }
        report::print(&device.path());
        let status = format!("{} is {}", device.path(), self.shared.upstream.export());
        if let Err(error) = sd_notify::notify(&[NotifyState::Ready, NotifyState::Status(&status)]) {
            report::say(format_args!("cannot notify systemd: {error}"));
        }
    }
}
