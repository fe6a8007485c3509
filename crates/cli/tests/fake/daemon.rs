//! The control socket of a daemon with one disk, whose VM uses it over vhost-user.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};

/// How often it looks whether it is to do something.
const PAUSE: Duration = Duration::from_millis(1);

/// What the daemon says.
pub struct Told {
    /// The disk's state.
    pub state: &'static str,
    /// Queues that run.
    pub queues: u64,
    /// The state of the job that sends it.
    pub job: &'static str,
    /// It says nothing, as if it were stopped.
    pub is_silent: bool,
    looks: usize,
    has_ended: bool,
    /// Those that are open; of a silent one all.
    connections: BTreeMap<usize, UnixStream>,
}

/// A daemon.
pub struct Daemon {
    path: PathBuf,
    told: Arc<Mutex<Told>>,
    thread: Option<JoinHandle<()>>,
}

fn lock(told: &Mutex<Told>) -> MutexGuard<'_, Told> {
    told.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Daemon {
    /// Starts one.
    pub fn start(path: PathBuf) -> Daemon {
        let told = Arc::new(Mutex::new(Told {
            state: "here",
            queues: 1,
            job: "running",
            is_silent: false,
            looks: 0,
            has_ended: false,
            connections: BTreeMap::new(),
        }));
        let (listener, shared) = (UnixListener::bind(&path).unwrap(), told.clone());
        let thread = Some(std::thread::spawn(move || accept(&listener, &shared)));
        Daemon { path, told, thread }
    }

    /// Changes what it says.
    pub fn told(&self, change: impl FnOnce(&mut Told)) {
        change(&mut lock(&self.told));
    }

    /// Returns how often it has said how far the disk is.
    pub fn looks(&self) -> usize {
        lock(&self.told).looks
    }

    /// It is killed: its sockets end.
    pub fn end(&mut self) {
        lock(&self.told).has_ended = true;
        self.thread.take().unwrap().join().unwrap();
        remove(&self.path);
        for connection in lock(&self.told).connections.values() {
            // Its peer may have closed it.
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}

fn remove(path: &Path) {
    std::fs::remove_file(path).unwrap();
}

fn accept(listener: &UnixListener, told: &Arc<Mutex<Told>>) {
    listener.set_nonblocking(true).unwrap();
    for number in 0.. {
        let stream = loop {
            if lock(told).has_ended {
                return;
            }
            match listener.accept() {
                Ok((stream, _)) => break stream,
                Err(_) => std::thread::sleep(PAUSE),
            }
        };
        stream.set_nonblocking(false).unwrap();
        lock(told).connections.insert(number, stream.try_clone().unwrap());
        let told = told.clone();
        std::thread::spawn(move || {
            let _ = serve(stream, &told);
            let mut told = lock(&told);
            if !told.is_silent {
                told.connections.remove(&number);
            }
        });
    }
}

/// Answers one request. A connection without one stays open until its peer ends it.
fn serve(stream: UnixStream, told: &Mutex<Told>) -> Option<()> {
    let mut stream = BufReader::new(stream);
    let (mut first, mut line, mut body_bytes) = (String::new(), String::new(), 0);
    stream.read_line(&mut first).ok().filter(|bytes| *bytes > 0)?;
    while stream.read_line(&mut line).is_ok_and(|bytes| bytes > 2) {
        if let Some(length) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            body_bytes = length.trim().parse().ok()?;
        }
        line.clear();
    }
    stream.read_exact(&mut vec![0; body_bytes]).ok()?;
    let answer = {
        let mut told = lock(told);
        if told.is_silent {
            return None;
        }
        told.answer(&first).to_string()
    };
    let length = answer.len();
    let text = format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{answer}");
    stream.get_mut().write_all(text.as_bytes()).ok()?;
    stream.get_mut().shutdown(Shutdown::Both).ok()
}

impl Told {
    fn answer(&mut self, first: &str) -> Value {
        let words: Vec<_> = first.split(' ').collect();
        match (words[0], words[1]) {
            ("GET", "/v1/disks/vm1/migration") => {
                self.looks += 1;
                json!({
                    "disk": "vm1", "state": self.state, "host": "beta", "method": "pre-copy", "guest_is_here": true,
                    "vhost_user_queues": self.queues, "is_serving": true, "sent_bytes": 4096, "left_bytes": 4096,
                    "dirty_left_bytes": 0, "passes": 1, "is_ready": false, "needed_bytes": 0, "following_bytes": 0,
                    "dirty_bytes": 0,
                })
            }
            ("POST", _) => {
                self.state = "sending";
                self.job()
            }
            ("GET", "/v1/jobs") => json!([self.job()]),
            ("GET", _) => self.job(),
            _ => Value::Null,
        }
    }

    fn job(&self) -> Value {
        json!({ "id": 1, "kind": "migrate", "subject": "vm1", "state": self.job, "elapsed_s": 1.0 })
    }
}
