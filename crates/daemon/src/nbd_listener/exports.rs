//! The exports offered to clients, and the hand-over of the chosen one.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use haversack_api::DiskState;
use haversack_engine::{Held, MessageLimit, NbdClient, tls_pump};
use haversack_model::{DiskHandle, SECTOR_BYTES};
use haversack_nbd::{BlockSize, ExportInfo, Exports, Negotiated, TransmissionFlags};
use rustls::ServerConnection;

use super::connection::Client;
use crate::daemon::{Daemon, DiskInner};

/// The attached disks, as a client sees them.
pub struct Offered {
    daemon: Arc<Daemon>,
    /// When the negotiation has to end.
    deadline: Instant,
    /// The last export looked up.
    found: Option<Found>,
}

/// An export at the time of the look-up, and its disk.
#[derive(PartialEq, Eq)]
struct Found {
    pool: String,
    disk: DiskHandle,
    export: ExportInfo,
}

impl Offered {
    /// Offers the disks of a daemon, in a negotiation with a deadline.
    pub fn new(daemon: &Arc<Daemon>, deadline: Instant) -> Offered {
        Offered { daemon: daemon.clone(), deadline, found: None }
    }

    fn names(&self) -> Vec<String> {
        let is_offered =
            |d: &mut DiskInner| d.state == DiskState::Attached && d.error.is_none() && d.config.nbd;
        self.daemon
            .disks()
            .into_iter()
            .filter(|(_, disk)| disk.with(is_offered))
            .map(|(name, _)| name)
            .collect()
    }
}

impl Exports for Offered {
    fn names(&mut self) -> Vec<String> {
        Offered::names(self)
    }

    fn lookup(&mut self, name: &str) -> Option<ExportInfo> {
        self.await_start(name);
        self.found = self.look_up(name);
        self.found.as_ref().map(|found| found.export.clone())
    }
}

impl Offered {
    /// Waits for the disk of an export that the starting daemon has not attached yet. A guest whose daemon was restarted
    /// reconnects at once, and many give up when they are refused. For the default export, waits for all disks: it exists
    /// only if there is one disk.
    fn await_start(&self, name: &str) {
        if !self.daemon.is_starting() {
            return;
        }
        let disks = self.daemon.disks();
        let is_meant = |other: &str| name.is_empty() || other == name;
        let meant = disks.into_iter().filter(|(other, _)| is_meant(other)).map(|(_, disk)| disk);
        self.daemon.await_attached(&meant.collect::<Vec<_>>(), self.deadline);
    }

    fn look_up(&self, name: &str) -> Option<Found> {
        let names = Offered::names(self);
        let name = match (name, names.as_slice()) {
            ("", [only]) => only,
            _ => names.iter().find(|n| *n == name)?,
        };
        let disk = self.daemon.disk(name).ok()?;
        let (handle, config, sectors) = disk.with(|d| Some((d.handle?, d.config.clone(), d.sectors)))?;
        let export = ExportInfo {
            name: name.clone(),
            description: format!("Haversack disk {}", disk.id),
            size_bytes: sectors * SECTOR_BYTES as u64,
            read_only: config.read_only,
            block_size: BLOCK_SIZE,
            features: FEATURES,
        };
        Some(Found { pool: config.pool, disk: handle, export })
    }
}

/// Whole sectors are allowed; cache blocks are preferred.
const BLOCK_SIZE: BlockSize = match BlockSize::new(SECTOR_BYTES as u32, 4096, 32 << 20) {
    Ok(sizes) => sizes,
    Err(_) => BlockSize::SERVER_DEFAULT,
};

const FEATURES: TransmissionFlags = TransmissionFlags::SEND_FLUSH
    .with(TransmissionFlags::SEND_FUA)
    .with(TransmissionFlags::SEND_TRIM)
    .with(TransmissionFlags::SEND_WRITE_ZEROES)
    .with(TransmissionFlags::SEND_DF)
    .with(TransmissionFlags::SEND_CACHE)
    .with(TransmissionFlags::CAN_MULTI_CONN);

/// A completed negotiation.
pub struct Done {
    pub agreed: Box<Negotiated>,
    pub exports: Offered,
    pub client: Client,
    pub tls: Option<Box<ServerConnection>>,
}

impl Done {
    /// Makes the connection a client. The negotiation waited for its client, and its result may be out of date:
    /// the export is looked up again here, and once more by the reactor, where nothing can change any more
    /// before the connection is a client. `held` is dropped when the connection has ended.
    pub fn hand_over(
        self,
        daemon: &Daemon,
        max_connections: u32,
        held: Held,
        messages: &MessageLimit,
    ) -> io::Result<()> {
        let found = self.exports.found.as_ref();
        let found = found.filter(|found| self.exports.look_up(&found.export.name).as_ref() == Some(*found));
        let Some(Found { pool, disk, .. }) = found.filter(|found| found.export == self.agreed.export) else {
            return Err(io::Error::other("the export was detached or changed during the negotiation"));
        };
        let peer = self.client.peer();
        let socket = self.client.into_fd()?;
        let socket = match self.tls {
            None => socket,
            Some(connection) => tls_pump::start((*connection).into(), socket, held.clone())?,
        };
        let agreed = &self.agreed;
        messages.tell(|| tracing::info!(disk = agreed.export.name, tls = agreed.tls, peer, "NBD client"));
        let client = NbdClient { disk: *disk, socket, negotiated: *self.agreed, max_connections, peer, held };
        let pool = daemon.pool(pool).map_err(io::Error::other)?;
        pool.backend.add_nbd_client(client).map_err(io::Error::other)
    }
}
