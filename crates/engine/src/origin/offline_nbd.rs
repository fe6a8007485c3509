//! An NBD server as the origin of an offline flush: one request at a time.

use std::fs::File;
use std::io::{Read, Write};

use haversack_core::{IoFailure, OriginMedia};
use haversack_nbd::{ClientSession, Command, CommandFlags, Event};

use super::connector::Connection;

/// See the module documentation.
pub(super) struct OfflineNbd {
    socket: File,
    session: ClientSession,
    sectors: u64,
}

impl OfflineNbd {
    pub fn new(connection: Connection) -> OfflineNbd {
        let session = ClientSession::new(&connection.connected, 1);
        let sectors = connection.connected.size_bytes / 512;
        OfflineNbd { socket: File::from(connection.socket), session, sectors }
    }

    fn ask(&mut self, command: Command, offset: u64, length: u32, payload: &[u8]) -> Result<(), IoFailure> {
        let (_, head) =
            self.session.start(command, CommandFlags::NONE, offset, length).map_err(|_| IoFailure::Error)?;
        let gone = |_| IoFailure::Gone;
        self.socket.write_all(&head).and_then(|()| self.socket.write_all(payload)).map_err(gone)?;
        let mut buffer = [0; 4096];
        loop {
            let bytes = self.socket.read(&mut buffer).map_err(gone)?;
            if bytes == 0 {
                return Err(IoFailure::Gone);
            }
            let mut input = &buffer[..bytes];
            while let Some(event) = self.session.receive(&mut input).map_err(|_| IoFailure::Gone)? {
                if let Event::Done { result, .. } = event {
                    return result.map_err(|_| IoFailure::Error);
                }
            }
        }
    }
}

impl OriginMedia for OfflineNbd {
    fn capacity_sectors(&self) -> u64 {
        self.sectors
    }

    fn write(&mut self, sector: u64, bytes: &[u8]) -> Result<(), IoFailure> {
        self.ask(Command::Write, sector * 512, bytes.len() as u32, bytes)
    }

    fn flush(&mut self) -> Result<(), IoFailure> {
        self.ask(Command::Flush, 0, 0, &[])
    }
}
