//! The names that the daemon has: of its disks, pools and hosts.
//!
//! Invariants
//! - The daemon has [`PATIENCE`] to answer. If it does not, or denies access, there are no names.
//! - A name that a shell could take for something else is not offered.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::builder::ArgExt;
use clap::{Arg, Command, CommandFactory, ValueHint};
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use hyper::Method;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::paths;
use crate::arguments::Arguments;
use crate::client::Client;
use crate::error::Result;

/// How long a user who has pressed a key waits for the daemon.
const PATIENCE: Duration = Duration::from_millis(500);

/// What an argument names. An argument that repeats a name as a confirmation is not completed: the user must
/// type it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Names {
    /// Disks, attached or not.
    Disks,
    /// Disks that are attached, or shall be.
    AttachedDisks,
    /// Disks that only a pool knows.
    DetachedDisks,
    /// Disks that may move between hosts.
    MovableDisks,
    /// Disks whose cache is being sent to another host.
    SentDisks,
    /// Pools.
    Pools,
    /// Pools and disks.
    PoolsAndDisks,
    /// Pools and their devices.
    PoolsAndDevices,
    /// Devices of pools.
    Devices,
    /// The other hosts.
    Hosts,
    /// The hosts of the cluster.
    ClusterHosts,
    /// The tenants of the cluster.
    Tenants,
}

impl ArgExt for Names {}

/// A disk or pool, as far as it matters here.
#[derive(Deserialize)]
struct Listed {
    name: String,
    state: String,
    #[serde(default)]
    pool: Option<String>,
    #[serde(default)]
    devices: Vec<Device>,
}

#[derive(Deserialize)]
struct Device {
    path: String,
}

/// A disk that may move.
#[derive(Deserialize)]
struct Movable {
    disk: String,
    state: String,
}

/// Another host.
#[derive(Deserialize)]
struct Host {
    name: String,
    address: String,
}

/// A cluster, as far as it matters here.
#[derive(Deserialize)]
struct Cluster {
    hosts: Vec<ClusterHost>,
}

#[derive(Deserialize)]
struct ClusterHost {
    name: String,
    state: String,
}

/// A tenant.
#[derive(Deserialize)]
struct Tenant {
    name: String,
    disks: u64,
}

/// A name and its description.
type Name = (String, String);

/// Returns the command line with [`Names`] completed by the daemon that the words before the cursor name.
pub fn answered(command: Command, words: &[OsString]) -> Command {
    match socket(words) {
        Some(socket) => with_names(command, &Arc::new(socket)),
        None => command,
    }
}

/// Returns the socket of the daemon: of the command line, of the environment, or the default.
fn socket(words: &[OsString]) -> Option<PathBuf> {
    if let Some(socket) = socket_option(words) {
        return Some(socket);
    }
    // The program's name alone is an incomplete command line; it has the environment's socket, or the default.
    let matches = Arguments::command().ignore_errors(true).try_get_matches_from(words.first()).ok()?;
    matches.get_one::<PathBuf>("socket").cloned()
}

/// Returns the last `--socket` of a command line, which may be incomplete or invalid. Arguments after `--` do not
/// belong to `haversack`.
fn socket_option(words: &[OsString]) -> Option<PathBuf> {
    let words: Vec<&str> = words.iter().map(|word| word.to_str().unwrap_or_default()).collect();
    let words = words.split(|word| *word == "--").next()?;
    let value = |at: usize| match words[at].strip_prefix("--socket")? {
        "" => words.get(at + 1).copied(),
        joined => joined.strip_prefix('='),
    };
    (0..words.len()).rev().find_map(value).map(PathBuf::from)
}

fn with_names(command: Command, socket: &Arc<PathBuf>) -> Command {
    let completed = |arg: Arg| match arg.get::<Names>() {
        Some(names) => {
            let (names, socket) = (*names, socket.clone());
            let is_path = arg.get_value_hint() == ValueHint::AnyPath;
            arg.add(ArgValueCompleter::new(move |current: &std::ffi::OsStr| {
                let mut found = candidates(&socket, names, &current.to_string_lossy());
                if is_path {
                    found.extend(paths(current));
                }
                found
            }))
        }
        None => arg,
    };
    command.mut_args(completed).mut_subcommands(|inner| with_names(inner, socket))
}

fn candidates(socket: &Arc<PathBuf>, names: Names, begun: &str) -> Vec<CompletionCandidate> {
    let Ok(client) = Client::new(socket.to_path_buf(), PATIENCE) else { return Vec::new() };
    let asked = client.block_on(async { tokio::time::timeout(PATIENCE, ask(&client, names)).await });
    let mut found = asked.ok().and_then(Result::ok).unwrap_or_default();
    found.retain(|(name, _)| name.starts_with(begun) && is_plain(name));
    found.sort();
    let candidate = |(name, about): Name| CompletionCandidate::new(name).help(Some(about.into()));
    found.into_iter().map(candidate).collect()
}

/// Returns whether a name, or a device's path, means just itself in a shell.
fn is_plain(name: &str) -> bool {
    !name.starts_with('-') && name.chars().all(|c| c.is_ascii_alphanumeric() || "._-+:@,/".contains(c))
}

/// Asks the daemon.
async fn ask(client: &Client, names: Names) -> Result<Vec<Name>> {
    match names {
        Names::Disks => disks(client, |_| true).await,
        Names::AttachedDisks => disks(client, |state| state != "detached").await,
        Names::DetachedDisks => disks(client, |state| state == "detached").await,
        Names::MovableDisks => movable(client, |_| true).await,
        Names::SentDisks => movable(client, |state| state == "sending").await,
        Names::Pools => pools(client).await,
        Names::PoolsAndDisks => Ok([pools(client).await?, disks(client, |_| true).await?].concat()),
        Names::PoolsAndDevices => Ok([pools(client).await?, devices(client).await?].concat()),
        Names::Devices => devices(client).await,
        Names::Hosts => {
            let hosts: Vec<Host> = list(client, "/v1/hosts").await?;
            Ok(hosts.into_iter().map(|host| (host.name, host.address)).collect())
        }
        Names::ClusterHosts => {
            let cluster: Cluster = client.ask(Method::GET, "/v1/cluster").await?;
            Ok(cluster.hosts.into_iter().map(|host| (host.name, host.state)).collect())
        }
        Names::Tenants => {
            let tenants: Vec<Tenant> = list(client, "/v1/cluster/tenants").await?;
            Ok(tenants.into_iter().map(|tenant| (tenant.name, format!("{} disks", tenant.disks))).collect())
        }
    }
}

async fn list<T: DeserializeOwned>(client: &Client, path: &str) -> Result<Vec<T>> {
    client.ask(Method::GET, path).await
}

async fn disks(client: &Client, wanted: fn(&str) -> bool) -> Result<Vec<Name>> {
    let disks: Vec<Listed> = list(client, "/v1/disks").await?;
    let about = |disk: &Listed| format!("{}, pool {}", disk.state, disk.pool.as_deref().unwrap_or("unknown"));
    Ok(disks.into_iter().filter(|d| wanted(&d.state)).map(|disk| (disk.name.clone(), about(&disk))).collect())
}

async fn movable(client: &Client, wanted: fn(&str) -> bool) -> Result<Vec<Name>> {
    let disks: Vec<Movable> = list(client, "/v1/migrations").await?;
    Ok(disks.into_iter().filter(|d| wanted(&d.state)).map(|disk| (disk.disk, disk.state)).collect())
}

async fn pools(client: &Client) -> Result<Vec<Name>> {
    let pools: Vec<Listed> = list(client, "/v1/pools").await?;
    Ok(pools.into_iter().map(|pool| (pool.name, format!("pool, {}", pool.state))).collect())
}

async fn devices(client: &Client) -> Result<Vec<Name>> {
    let pools: Vec<Listed> = list(client, "/v1/pools").await?;
    let of_pool = |pool: Listed| {
        let about = format!("device of pool {}", pool.name);
        pool.devices.into_iter().map(move |device| (device.path, about.clone()))
    };
    Ok(pools.into_iter().flat_map(of_pool).collect())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::path::Path;
    use std::time::Instant;

    use clap_complete::engine;

    use super::*;

    const DISKS: &str = r#"[{"name": "vm1", "state": "attached", "pool": "main"}, {"name": "web", "state": "waiting"},
        {"name": "old", "state": "detached", "pool": "main"}, {"name": "$(reboot)", "state": "attached"}]"#;
    const POOLS: &str = r#"[{"name": "main", "state": "ok", "devices": [{"path": "/dev/disk/by-path/pci-0:1"}]},
        {"name": "fast", "state": "ok"}]"#;
    const MIGRATIONS: &str = r#"[{"disk": "vm1", "state": "sending"}, {"disk": "web", "state": "here"}]"#;
    const HOSTS: &str =
        r#"[{"name": "beta", "address": "10.0.0.2:7600"}, {"name": "gamma", "address": "10.0.0.3:7600"}]"#;

    const CLUSTER: &str =
        r#"{"hosts": [{"name": "alpha", "state": "alive"}, {"name": "beta", "state": "away"}], "disks": []}"#;
    const TENANTS: &str = r#"[{"name": "shop", "disks": 3}]"#;

    /// Answers a request as a daemon does.
    fn answer(mut stream: UnixStream) {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).unwrap();
        let body = match head.split(' ').nth(1).unwrap() {
            "/v1/disks" => DISKS,
            "/v1/pools" => POOLS,
            "/v1/migrations" => MIGRATIONS,
            "/v1/hosts" => HOSTS,
            "/v1/cluster" => CLUSTER,
            "/v1/cluster/tenants" => TENANTS,
            other => panic!("{other}"),
        };
        write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
    }

    fn daemon(socket: &Path) {
        let listener = UnixListener::bind(socket).unwrap();
        std::thread::spawn(move || listener.incoming().for_each(|stream| answer(stream.unwrap())));
    }

    fn fitting(socket: &Path, text: &str) -> Vec<String> {
        let text = format!("haversack --socket {} {text}", socket.display());
        let words: Vec<OsString> = text.split(' ').map(OsString::from).collect();
        let last = words.len() - 1;
        let mut command = answered(Arguments::command(), &words[..last]);
        let found = engine::complete(&mut command, words, last, None).unwrap();
        let values = found.iter().map(|one| one.get_value().to_string_lossy().into_owned());
        values.filter(|value| !value.starts_with("--") && !["-h", "-q"].contains(&value.as_str())).collect()
    }

    #[test]
    fn each_argument_has_its_names() {
        let place = tempfile::tempdir().unwrap();
        let socket = place.path().join("control.sock");
        daemon(&socket);
        for (text, fits) in [
            ("disk show ", &["old", "vm1", "web"][..]),
            ("disk show v", &["vm1"]),
            ("disk detach ", &["vm1", "web"]),
            ("disk attach ", &["old"]),
            ("disk forget ", &["old"]),
            ("disk resize v", &["vm1"]),
            ("disk quiesce vm1 w", &["web"]),
            ("disk attach x /x --base ", &["vm1", "web"]),
            ("disk attach x /x --from ", &["beta", "gamma"]),
            ("disk attach x /x --pool ", &["fast", "main"]),
            ("disk own vm1 --without-fence beta,g", &["beta,gamma"]),
            ("policy explain ", &["old", "vm1", "web"]),
            ("policy log --pool m", &["main"]),
            ("pool status ", &["fast", "main"]),
            ("pool remove main ", &["/dev/disk/by-path/pci-0:1"]),
            ("pool remove ", &["/dev/disk/by-path/pci-0:1", "fast", "main"]),
            ("events ", &["fast", "main", "old", "vm1", "web"]),
            ("migrate w", &["web"]),
            ("migrate vm1 --to ", &["beta", "gamma"]),
            ("migrate status ", &["vm1", "web"]),
            ("migrate abort ", &["vm1"]),
            ("migrate expect w", &["web"]),
            ("trace record v", &["vm1"]),
            ("host drain ", &["alpha", "beta"]),
            ("host undrain a", &["alpha"]),
            ("tenant set ", &["shop"]),
            ("tenant show s", &["shop"]),
            ("tenant remove ", &["shop"]),
            // What is repeated to confirm something is to be typed.
            ("disk forget old --confirm ", &[]),
        ] {
            assert_eq!(fitting(&socket, text), fits, "{text}");
        }
        let pools = fitting(&socket, "pool add ");
        assert!(pools.starts_with(&["fast".into(), "main".into()]), "{pools:?}");
    }

    /// Each argument whose name is that of a kind of object of the daemon is completed.
    #[test]
    fn no_argument_is_forgotten() {
        const CALLED: [&str; 9] =
            ["name", "disk", "disks", "pool", "pool_or_device", "subject", "to", "from", "without_fence"];
        // Not of this daemon.
        const OTHERS: [&str; 4] = ["compare:", "pool create", "sim:", "trace cut"];
        fn forgotten(command: &Command, path: &str, found: &mut Vec<String>) {
            for arg in command.get_arguments() {
                let is_called = CALLED.contains(&arg.get_id().as_str()) && arg.get_action().takes_values();
                if is_called && arg.get::<Names>().is_none() {
                    found.push(format!("{path}: {}", arg.get_id()));
                }
            }
            for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
                forgotten(inner, format!("{path} {}", inner.get_name()).trim_start(), found);
            }
        }
        let mut found = Vec::new();
        forgotten(&Arguments::command(), "", &mut found);
        found.retain(|one| !OTHERS.iter().any(|other| one.starts_with(other)));
        assert!(found.is_empty(), "{found:?}");
    }

    #[test]
    fn the_socket_is_found_in_unfinished_command_lines() {
        for text in [
            "haversack --socket /x/s disk show",
            "haversack --socket=/x/s disk",
            "haversack disk show --socket /x/s",
            "haversack disk attach vm1 --nonsense --socket /x/s",
            "haversack --socket /x/s disk attach vm1 /x --pool",
            "haversack --socket /x/s migrate vm1 --to",
            "haversack --socket /x/s --socket",
            "haversack disk resize vm1 nonsense --socket /x/s",
        ] {
            let words: Vec<OsString> = text.split(' ').map(OsString::from).collect();
            assert_eq!(socket(&words).as_deref(), Some(Path::new("/x/s")), "{text}");
        }
        let quiesce = "haversack disk quiesce vm1 -- backup --socket /x/s";
        let words: Vec<OsString> = quiesce.split(' ').map(OsString::from).collect();
        assert_ne!(socket(&words).as_deref(), Some(Path::new("/x/s")));
        assert!(socket(&words).is_some());
    }

    #[test]
    fn a_daemon_that_does_not_answer_is_not_waited_for() {
        let place = tempfile::tempdir().unwrap();
        let socket = place.path().join("control.sock");
        // The kernel accepts this connection, and nobody reads from it.
        let _silent = UnixListener::bind(&socket).unwrap();
        let begin = Instant::now();
        assert_eq!(fitting(&socket, "events "), [""; 0]);
        let took = begin.elapsed();
        assert!(took >= PATIENCE && took < PATIENCE * 4, "{took:?}");
    }
}
