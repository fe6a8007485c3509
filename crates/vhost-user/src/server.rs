//! A disk's socket: one thread that accepts front ends, and one thread per front end.

use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, Scope};
use std::time::Duration;

use rustix::net::Shutdown;

use crate::config::{ConfigError, DeviceConfig};
use crate::front_ends::FrontEnds;
use crate::queue::{Queue, QueueUpdate};
use crate::quota::Quota;
use crate::session::{Session, SessionError};
use crate::socket::{self, BoundSocket, SocketError};
use crate::write_cache::WriteCache;

/// How long to wait after the system refused a connection, most likely because of too few file descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// The owner of the queues. Called from the protocol threads of the disk's front ends. All calls about queues
/// come from the one whose queues run, one at a time.
pub trait Handler: Send + Sync {
    /// Starts serving a queue; requests may be in it already, also without a kick.
    fn queue_started(&self, queue: Queue);

    /// Returns once [`Queue::update`] was called with the change. An error of that call affects only the queue.
    fn queue_updated(&self, index: u16, update: QueueUpdate);

    /// Takes no more requests from the queue, completes those in flight, interrupts the guest, and returns the queue.
    /// `None` ends the session.
    fn queue_stopped(&self, index: u16) -> Option<Queue>;

    /// Returns the setting of the write cache, which the guest may switch.
    fn write_cache(&self) -> &Arc<WriteCache>;

    /// The guest has switched its write cache on or off. That takes effect, and the guest is answered, when this
    /// returns. A later server of the disk must begin with that: QEMU does not repeat it.
    fn write_cache_switched(&self, on: bool);

    /// Reports that a front end wants to start its queues and waits until those of another have stopped.
    fn front_end_waits(&self);

    /// Reports that a front end is gone and its queues are stopped.
    fn disconnected(&self, cause: Option<SessionError>);
}

/// Why a disk cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The configuration cannot be offered.
    #[error("the disk at {0}: {1}")]
    Config(PathBuf, #[source] ConfigError),
    /// The socket cannot be made.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The system refused.
    #[error("cannot serve {0}: {1}")]
    Serve(PathBuf, #[source] io::Error),
}

/// What the protocol threads share with each other and with the disk's owner.
#[derive(Debug)]
pub(crate) struct Shared {
    config: Mutex<DeviceConfig>,
    pub front_ends: FrontEnds,
    pub quota: Quota,
}

impl Shared {
    pub fn config(&self) -> MutexGuard<'_, DeviceConfig> {
        self.config.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A served disk. Dropping it stops the service, after the queues have stopped.
#[derive(Debug)]
pub struct Server {
    socket: BoundSocket,
    shared: Arc<Shared>,
    listener: Arc<UnixListener>,
    thread: Option<JoinHandle<()>>,
}

/// Serves a disk on a socket with permissions `mode`, such as 0o600, replacing a socket that no process serves.
///
/// # Errors
/// The configuration is invalid, the path is taken, or the system refuses.
pub fn serve(
    path: &Path,
    mode: u32,
    config: DeviceConfig,
    handler: Arc<dyn Handler>,
) -> Result<Server, ServeError> {
    config.check().map_err(|e| ServeError::Config(path.into(), e))?;
    let (listener, socket) = socket::bind(path, mode)?;
    let listener = Arc::new(listener);
    let shared = Arc::new(Shared {
        config: Mutex::new(config),
        front_ends: FrontEnds::default(),
        quota: Quota::default(),
    });
    let thread = std::thread::Builder::new().name("vhost-user".into()).spawn({
        let (listener, shared) = (listener.clone(), shared.clone());
        move || accept_loop(&listener, &shared, &*handler)
    });
    let thread = thread.inspect_err(|_| socket.remove()).map_err(|e| ServeError::Serve(path.into(), e))?;
    Ok(Server { socket, shared, listener, thread: Some(thread) })
}

/// Accepts front ends; returns when all sessions have ended.
fn accept_loop(listener: &UnixListener, shared: &Shared, handler: &dyn Handler) {
    std::thread::scope(|scope| {
        while shared.front_ends.has_room() {
            let served =
                listener.accept().and_then(|(socket, _)| serve_front_end(scope, socket, shared, handler));
            match served {
                Err(_) if shared.front_ends.is_stopping() => return,
                Err(e) => {
                    handler.disconnected(Some(e.into()));
                    std::thread::sleep(ACCEPT_RETRY);
                }
                Ok(()) => {}
            }
        }
    });
}

fn serve_front_end<'scope>(
    scope: &'scope Scope<'scope, '_>,
    socket: UnixStream,
    shared: &'scope Shared,
    handler: &'scope dyn Handler,
) -> io::Result<()> {
    let Some(id) = shared.front_ends.admit(socket.try_clone()?) else { return Ok(()) };
    let session = move || {
        let ended = Session::new(shared, handler, id, socket).run();
        shared.front_ends.leave(id);
        handler.disconnected(ended.err());
    };
    let started = std::thread::Builder::new().name("vhost-front-end".into()).spawn_scoped(scope, session);
    started.map(|_| ()).inspect_err(|_| shared.front_ends.leave(id))
}

impl Server {
    /// Changes the disk's size and notifies every connected front end.
    ///
    /// # Errors
    /// The size cannot be offered.
    pub fn resize(&self, capacity_sectors: u64) -> Result<(), ConfigError> {
        let mut config = self.shared.config().clone();
        config.capacity_sectors = capacity_sectors;
        config.check()?;
        self.shared.config().capacity_sectors = capacity_sectors;
        self.shared.front_ends.tell_config_change();
        Ok(())
    }

    /// Returns the socket's path.
    pub fn path(&self) -> &Path {
        self.socket.path()
    }

    /// Returns the processes that are connected as front ends, as in `pid 17 (qemu-system-x86)`.
    pub fn connected(&self) -> Vec<String> {
        self.shared.front_ends.peers()
    }

    /// Admits no front end while the returned value lives: one that connects waits.
    ///
    /// # Errors
    /// The processes that are connected, if there are any; then others are still admitted.
    pub fn close_if_unused(&self) -> Result<Closed, Vec<String>> {
        self.shared.front_ends.close_if_unused().map(|()| Closed(self.shared.clone()))
    }
}

/// Admits no front end until it is dropped.
#[derive(Debug)]
pub struct Closed(Arc<Shared>);

impl Drop for Closed {
    fn drop(&mut self) {
        self.0.front_ends.reopen();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.front_ends.stop();
        self.socket.remove();
        // An error means that it has already been stopped.
        let _ = rustix::net::shutdown(&*self.listener, Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
