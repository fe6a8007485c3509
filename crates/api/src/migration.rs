//! Disks that move between hosts, and the hosts.

use std::path::PathBuf;

pub use haversack_migrate::Method;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::status::LostRange;
use crate::units::Span;

/// Starts to send a disk's cache to another host.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StartMigration {
    /// Name of the host.
    pub to: String,
    /// Method; the configured one if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "pre-copy")]
    pub method: Option<Method>,
    /// The migration is cancelled if it is not kept alive for this long, see [`KeepMigration`]; never if not
    /// given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep: Option<Span>,
}

/// Keeps a migration alive that is cancelled when the program that drives it is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct KeepMigration {
    /// For how long; until it ends or is cancelled if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep: Option<Span>,
}

/// Attaches a disk here and requests it from the host that has it, because its VM is about to arrive. One of the fields
/// names the disk.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExpectDisk {
    /// Its name, which is also that of its NBD export.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its vhost-user socket, the same on both hosts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub vhost_user: Option<PathBuf>,
}

/// Where a disk that can move is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MigrationState {
    /// This host has it.
    Here,
    /// This host has it, and it is about to move: what the method sends ahead is being sent.
    Sending,
    /// This host has it, and some of its blocks are still on the host that it came from.
    Arriving,
    /// The disk waits here for its guest. The other host owns it.
    Waiting,
    /// Another host has it, and needs blocks that are here.
    Leaving,
    /// Another host has it.
    Away,
    /// Another host has taken it over by force.
    Overtaken,
}

impl std::fmt::Display for MigrationState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            MigrationState::Here => "here",
            MigrationState::Sending => "sending",
            MigrationState::Arriving => "arriving",
            MigrationState::Waiting => "waiting",
            MigrationState::Leaving => "leaving",
            MigrationState::Away => "away",
            MigrationState::Overtaken => "overtaken",
        })
    }
}

/// Progress of a disk that can move.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct MigrationStatus {
    /// Name of the disk.
    pub disk: String,
    /// Where it is.
    pub state: MigrationState,
    /// The other host: the one that it is sent to, came from, or went to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The method of its migration to this host while anything is still arriving here, otherwise of its migration from
    /// here.
    #[schema(value_type = String, example = "pre-copy")]
    pub method: Method,
    /// The guest uses it here.
    pub guest_is_here: bool,
    /// Number of its vhost-user queues that run here. Missing if none has run since this daemon got the disk: its guest
    /// uses NBD, or has not reconnected yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vhost_user_queues: Option<u64>,
    /// Requests are served here.
    pub is_serving: bool,
    /// Bytes that were sent ahead, or have arrived ahead.
    pub sent_bytes: u64,
    /// Bytes that are still to be sent ahead, of those found so far.
    pub left_bytes: u64,
    /// Upper bound of the dirty part of that.
    pub dirty_left_bytes: u64,
    /// Bytes that are sent ahead per second, as measured recently.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent_bytes_per_s: Option<f64>,
    /// Seconds until the bytes left have been sent at that rate; missing if nothing arrives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eta_s: Option<f64>,
    /// Seconds that the guest would wait for the hosts to agree, if it moved now: the round trips of their messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_stall_s: Option<f64>,
    /// Number of times that all cached blocks were searched for blocks to send.
    pub passes: u32,
    /// A switchover now leaves little to fetch.
    pub is_ready: bool,
    /// Bytes that only the host it came from has.
    pub needed_bytes: u64,
    /// Bytes of clean blocks that are still to follow it here, of those known so far.
    pub following_bytes: u64,
    /// Bytes that have to be written to the origin before the disk may leave, if the method wants that.
    pub dirty_bytes: u64,
    /// Why it cannot be attached or taken over here, although it should be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Another host.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct HostStatus {
    /// Its name.
    pub name: String,
    /// Its address.
    pub address: String,
    /// It is connected.
    pub is_connected: bool,
    /// Round-trip time of a message, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round_trip_s: Option<f64>,
    /// Bytes sent to it.
    pub sent_bytes: u64,
    /// Bytes that were not sent, thanks to compression.
    #[serde(default)]
    pub saved_bytes: u64,
    /// Bytes received from it.
    pub received_bytes: u64,
    /// Why it is not connected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Takes a disk over from a host that is permanently dead.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OwnDisk {
    /// The disk's name, repeated.
    pub confirm: String,
    /// The disk's name, repeated, to accept the loss of data that only the dead host has: reads then return the
    /// origin's data. Without this, reads of those blocks fail until they are written again, if it is known which
    /// blocks they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accept_loss: Option<String>,
    /// Do not fence these hosts of [`Takeover::fenced_first`]: they are off, and stay off. The others are fenced.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub without_fence: Vec<String>,
    /// The owner stopped before it could continue without the replica that this host has: it died, or was fenced,
    /// within five seconds after it was last heard. Then a complete replica is used although this host cannot be
    /// certain of it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub owner_stopped: bool,
}

/// What a takeover of a disk would mean.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Takeover {
    /// Name of the disk.
    pub disk: String,
    /// The host that the disk, or what this host needs of it, would come from.
    pub host: String,
    /// Whether that host answers, and has lost the disk and its dirty blocks. If not, the host does not answer.
    #[serde(default)]
    pub has_nothing: bool,
    /// This host has the disk already, and needs blocks of the other one.
    pub depends: bool,
    /// Bytes that only that host has; missing if it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost_bytes: Option<u64>,
    /// Where they are, in order.
    pub ranges: Vec<LostRange>,
    /// Ranges that are not listed because there are too many.
    pub more_ranges: u64,
    /// What it last reported, since this daemon was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_known: Option<LastKnown>,
    /// Dirty bytes of the disk that this host has, and keeps.
    pub kept_bytes: u64,
    /// The replica of the owner's dirty blocks that this host has. Its blocks are not counted in `kept_bytes`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replica: Option<KeptReplica>,
    /// The host that does not answer and had a complete replica, as far as the directory of a cluster says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replica_elsewhere: Option<String>,
    /// The hosts that are fenced first: those that do not answer and may have the disk.
    pub fenced_first: Vec<String>,
    /// The program that does that, if one is configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<String>,
}

/// What a host last reported about a disk.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct LastKnown {
    /// Its write mode there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Its dirty bytes there.
    pub dirty_bytes: u64,
    /// How long ago that was, in seconds.
    pub age_s: f64,
}

/// The progress of a disk's replica on another host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ReplicaState {
    /// There is none: its host is unreachable, or cannot have one.
    Missing,
    /// It is being filled. Flushes do not wait for it yet.
    Filling,
    /// It has everything that was flushed.
    Complete,
    /// The replica is being given up. Flushes wait until it is certain that it can no longer be used.
    Ending,
}

impl std::fmt::Display for ReplicaState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            ReplicaState::Missing => "missing",
            ReplicaState::Filling => "filling",
            ReplicaState::Complete => "complete",
            ReplicaState::Ending => "ending",
        })
    }
}

/// The replica of a disk's dirty blocks on another host.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct ReplicaStatus {
    /// That host.
    pub host: String,
    /// Its progress.
    pub state: ReplicaState,
    /// How long it has been in that state, in seconds.
    pub since_s: f64,
    /// Bytes of blocks that the host lacks.
    pub behind_bytes: u64,
    /// Bytes of blocks that it has.
    pub kept_bytes: u64,
    /// Whether the disk writes through until the replica is complete.
    pub writes_through: bool,
    /// Why there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A replica that this host has of another host's dirty blocks.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct KeptReplica {
    /// The owner.
    pub of: String,
    /// The dirty blocks, in bytes.
    pub bytes: u64,
    /// It had everything that was flushed when the owner was last heard.
    pub is_complete: bool,
    /// It certainly has everything that was flushed: the owner cannot have continued without it.
    pub is_certain: bool,
    /// Seconds since the owner was last heard; missing if it has not been heard since this daemon was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heard_s: Option<f64>,
    /// Whether a later epoch of the disk is known here, so that the replica is useless.
    #[serde(default)]
    pub is_void: bool,
}

impl KeptReplica {
    /// Whether a takeover can use it at all.
    pub fn is_usable(&self) -> bool {
        self.is_complete && !self.is_void
    }

    /// Whether a takeover uses it. One that is not certain is used only if the operator says that the owner has stopped
    /// before it could continue without it.
    pub fn is_used(&self, owner_stopped: bool) -> bool {
        self.is_usable() && (self.is_certain || owner_stopped)
    }
}
