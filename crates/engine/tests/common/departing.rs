//! An NBD server that is shutting down: while `leaves` is set, it answers every request with ESHUTDOWN.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use haversack_nbd::{Command, Errno, REQUEST_BYTES, Replier, Request};

use super::greet;

/// See the module.
pub struct Departing {
    data: Mutex<Vec<u8>>,
    /// Whether it is about to go.
    pub leaves: AtomicBool,
    /// Connections that were made.
    pub connections: AtomicU32,
    /// Requests that were answered with ESHUTDOWN.
    pub refused: AtomicU32,
}

impl Departing {
    /// Serves these bytes on a socket, as long as the process lives.
    pub fn serve(data: Vec<u8>, socket: &Path) -> Arc<Departing> {
        let listener = UnixListener::bind(socket).unwrap();
        let (leaves, connections, refused) = (AtomicBool::new(false), AtomicU32::new(0), AtomicU32::new(0));
        let server = Arc::new(Departing { data: Mutex::new(data), leaves, connections, refused });
        let serving = server.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (serving, stream) = (serving.clone(), stream.unwrap());
                serving.connections.fetch_add(1, Ordering::Relaxed);
                // A client that disconnects ends only its own connection.
                std::thread::spawn(move || serving.converse(stream));
            }
        });
        server
    }

    fn converse(&self, mut stream: UnixStream) -> Option<()> {
        let size_bytes = self.data.lock().unwrap().len() as u64;
        let negotiated = greet(&mut stream, size_bytes)?;
        let replier = Replier { structured: negotiated.structured_replies };
        loop {
            let mut head = [0; REQUEST_BYTES];
            stream.read_exact(&mut head).ok()?;
            let request = Request::parse(&head).ok()?;
            let range = request.offset as usize..request.offset as usize + request.length as usize;
            let mut payload = vec![0; if request.command == Command::Write { range.len() } else { 0 }];
            stream.read_exact(&mut payload).ok()?;
            if self.leaves.load(Ordering::Relaxed) {
                let reply = replier.error(&request, Errno::ESHUTDOWN, "backend shutting down");
                stream.write_all(&reply).ok()?;
                self.refused.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            let mut data = self.data.lock().unwrap();
            match request.command {
                Command::Read => {
                    stream.write_all(&replier.read_data(&request)).ok()?;
                    stream.write_all(&data[range]).ok()?;
                    continue;
                }
                Command::Write => data[range].copy_from_slice(&payload),
                Command::Trim | Command::WriteZeroes => data[range].fill(0),
                _ => {}
            }
            stream.write_all(&replier.success(&request)).ok()?;
        }
    }
}
