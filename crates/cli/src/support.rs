//! The support bundle: everything that remote support needs to diagnose a problem, in one compressed archive.
//!
//! Invariants
//! - Nothing of a disk's content is in it, and no secret that [`redact`] knows.
//! - Whatever cannot be collected is listed with the reason, and the rest is collected anyway: the daemon may
//!   be what is broken.
//! - No file is overwritten, and only its owner can read it.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use clap::Args;
use flate2::Compression;
use flate2::write::GzEncoder;
use haversack_api::{Status, redact};
use serde_json::{Value, json};

use crate::client::Client;
use crate::error::{CliError, Result};
use crate::output::{self, counted};

/// What the daemon is asked for: file in the bundle, path of the request.
const ASKED: [(&str, &str); 8] = [
    ("status.json", "/v1/status"),
    ("policy.json", "/v1/policy"),
    ("jobs.json", "/v1/jobs"),
    ("events.json", "/v1/events?after=0&wait=0s"),
    ("history.json", "/v1/history"),
    ("overview.json", "/v1/overview"),
    ("metrics.txt", "/metrics"),
    ("ready.txt", "/readyz"),
];
/// Entries of each pool's log of decisions.
const DECISIONS: u32 = 500;
/// Commands that are run on the host: file in the bundle, and the command.
const COMMANDS: [(&str, &[&str]); 9] = [
    ("host/uname.txt", &["uname", "-a"]),
    ("host/os-release.txt", &["cat", "/etc/os-release"]),
    ("host/processors.txt", &["lscpu"]),
    ("host/memory.txt", &["cat", "/proc/meminfo"]),
    ("host/block-devices.txt", &["lsblk", "-o", "NAME,TYPE,SIZE,ROTA,LOG-SEC,MODEL,FSTYPE,MOUNTPOINT"]),
    ("host/file-systems.txt", &["df", "-h", "--local"]),
    ("host/service.txt", &["systemctl", "--no-pager", "--full", "status", "haversackd"]),
    ("host/log.txt", &["journalctl", "--no-pager", "-u", "haversackd", "-n", "5000"]),
    ("host/kernel-log.txt", &["journalctl", "--no-pager", "-k", "-n", "500"]),
];
/// How long a command may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// See the fields' help texts.
#[derive(Args)]
pub struct SupportBundle {
    /// The archive to write. Default: haversack-support-HOST-TIME.tar.gz in the current directory.
    file: Option<PathBuf>,
    /// The daemon's configuration file.
    #[arg(long, default_value = "/etc/haversack/haversackd.toml")]
    config: PathBuf,
}

/// The archive in progress.
struct Bundle {
    directory: String,
    archive: tar::Builder<GzEncoder<File>>,
    time: DateTime<Utc>,
    files: usize,
    /// What could not be had, and why.
    missing: Vec<(String, String)>,
    /// The daemon has not answered in time, so no further requests are sent to it.
    is_silent: bool,
}

/// What has been written.
struct Written {
    bytes: u64,
    files: usize,
    missing: Vec<(String, String)>,
}

/// Collects everything and writes the bundle.
pub fn run(client: &Client, arguments: &SupportBundle, as_json: bool) -> Result<()> {
    let time = Utc::now();
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let directory = format!("haversack-support-{}-{}", host.trim(), time.format("%Y%m%d-%H%M%S"));
    let path = arguments.file.clone().unwrap_or_else(|| format!("{directory}.tar.gz").into());
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
    let file = file.map_err(|error| failed(&path, &error))?;
    let archive = tar::Builder::new(GzEncoder::new(file, Compression::default()));
    let mut bundle = Bundle { directory, archive, time, files: 0, missing: Vec::new(), is_silent: false };
    let written = bundle.fill(client, arguments).and_then(|()| bundle.end()).map_err(|error| {
        // An incomplete bundle is useless.
        let _ = std::fs::remove_file(&path);
        failed(&path, &error)
    });
    let Written { bytes, files, missing } = written?;
    let names: Vec<&str> = missing.iter().map(|(name, _)| &**name).collect();
    let mut text = format!(
        "{} created: {}, {} KiB. Secrets are replaced by {}; check the files before you send them.\n",
        path.display(),
        counted(files as u64, "file"),
        bytes.div_ceil(1024),
        redact::HIDDEN
    );
    if !names.is_empty() {
        text += &format!("Not available: {}. missing.txt says why.\n", names.join(", "));
    }
    let shown = json!({ "file": path, "bytes": bytes, "files": files, "missing": names });
    output::print(as_json, &shown, &text)
}

fn failed(path: &Path, error: &std::io::Error) -> CliError {
    CliError::Failed(format!("{}: {error}", path.display()))
}

impl Bundle {
    fn fill(&mut self, client: &Client, arguments: &SupportBundle) -> std::io::Result<()> {
        let version =
            format!("haversack {}\nmade at {}\n", env!("CARGO_PKG_VERSION"), self.time.to_rfc3339());
        self.add("version.txt", &version)?;
        for (name, request) in ASKED {
            self.ask(client, name, request)?;
        }
        let status: Option<Status> = if self.is_silent { None } else { client.get("/v1/status").ok() };
        for pool in status.iter().flat_map(|status| &status.pools) {
            let request = format!("/v1/policy/log?pool={}&last={DECISIONS}", pool.name);
            self.ask(client, &format!("decisions/{}.json", pool.name), &request)?;
        }
        match configuration(&arguments.config) {
            Ok(text) => self.add("haversackd.toml", &text)?,
            Err(why) => self.misses("haversackd.toml", why),
        }
        for (name, command) in COMMANDS {
            match output_of(command) {
                Ok(text) => self.add(name, &redact::text(&text))?,
                Err(why) => self.misses(name, why),
            }
        }
        Ok(())
    }

    /// Adds the daemon's answer, without secrets.
    fn ask(&mut self, client: &Client, name: &str, request: &str) -> std::io::Result<()> {
        if self.is_silent {
            self.misses(name, "not requested, because the daemon does not respond".to_owned());
            return Ok(());
        }
        let answer = match client.look(request) {
            Ok(answer) => answer,
            Err(error) => {
                self.is_silent = matches!(error, CliError::Silent { .. });
                self.misses(name, error.to_string());
                return Ok(());
            }
        };
        let text = match serde_json::from_slice::<Value>(&answer) {
            Ok(mut value) => {
                redact::json(&mut value);
                format!("{value:#}\n")
            }
            Err(_) => redact::text(&String::from_utf8_lossy(&answer)),
        };
        self.add(name, &text)
    }

    fn misses(&mut self, name: &str, why: String) {
        self.missing.push((name.to_owned(), why));
    }

    fn add(&mut self, name: &str, text: &str) -> std::io::Result<()> {
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(self.time.timestamp().try_into().unwrap_or(0));
        self.files += 1;
        self.archive.append_data(&mut header, format!("{}/{name}", self.directory), text.as_bytes())
    }

    /// Ends the archive.
    fn end(&mut self) -> std::io::Result<Written> {
        let missing = std::mem::take(&mut self.missing);
        if !missing.is_empty() {
            let lines: String = missing.iter().map(|(name, why)| format!("{name}: {why}\n")).collect();
            self.add("missing.txt", &redact::text(&lines))?;
        }
        self.archive.finish()?;
        let compressed = self.archive.get_mut();
        compressed.try_finish()?;
        let file = compressed.get_mut();
        file.flush()?;
        file.sync_all()?;
        Ok(Written { bytes: file.metadata()?.len(), files: self.files, missing })
    }
}

/// Returns the configuration without secrets and comments.
fn configuration(path: &Path) -> std::result::Result<String, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    // The message of a syntax error would quote the line.
    let mut value: toml::Value =
        toml::from_str(&text).map_err(|_| format!("{} is not valid TOML", path.display()))?;
    redact::toml(&mut value);
    toml::to_string(&value).map_err(|error| error.to_string())
}

/// Returns what a command writes, to either output. It is ended if it takes too long.
fn output_of(command: &[&str]) -> std::result::Result<String, String> {
    let why = |error: std::io::Error| format!("{}: {error}", command[0]);
    let mut child = Command::new(command[0])
        .args(&command[1..])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(why)?;
    let (mut out, mut errors) = (child.stdout.take(), child.stderr.take());
    let reader = std::thread::spawn(move || read_all(&mut out));
    let error_reader = std::thread::spawn(move || read_all(&mut errors));
    let begin = Instant::now();
    while child.try_wait().map_err(why)?.is_none() {
        if begin.elapsed() > PATIENCE {
            // Not waited for: a process that waits for a dead file server cannot be ended.
            let _ = child.kill();
            return Err(format!("{} took more than {} s", command[0], PATIENCE.as_secs()));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let [out, errors] = [reader, error_reader].map(|reader| reader.join().unwrap_or_default());
    Ok(out + &errors)
}

fn read_all(from: &mut Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    if let Some(from) = from {
        // Output that was read before an error is still useful.
        let _ = from.read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_has_no_secrets_and_no_comments() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("haversackd.toml");
        std::fs::write(&path, "# password: abc\n[[disk]]\nname = 'a'\norigin = 'iscsi://u%abc@h/iqn/0'\n")
            .unwrap();
        let text = configuration(&path).unwrap();
        assert!(text.contains("iscsi://u%***@h/iqn/0") && !text.contains("abc"), "{text}");
        std::fs::write(&path, "password = abc\n").unwrap();
        let why = configuration(&path).unwrap_err();
        assert!(why.contains("not valid TOML") && !why.contains("abc"), "{why}");
    }

    #[test]
    fn commands_that_fail_say_why() {
        assert_eq!(output_of(&["sh", "-c", "echo a; echo b >&2; exit 3"]).unwrap(), "a\nb\n");
        assert!(output_of(&["no-such-command"]).unwrap_err().starts_with("no-such-command: "));
    }
}
