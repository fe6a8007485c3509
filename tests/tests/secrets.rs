//! Secrets do not leak into support bundles or into files that others can read. The caller of each operation is
//! recorded.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use haversack_e2e::certificates::Certificates;
use haversack_e2e::error::check;
use haversack_e2e::haversack::{Disk, Haversack, Settings};
use haversack_e2e::process::Process;
use haversack_e2e::tools::{self, PATIENCE};
use haversack_e2e::{Error, Place, Result, image, test};
use rustix::process::Pid;
use serde_json::{Value, json};

/// What every password and token of these tests begins with.
const PLANTED: &str = "planted-";
/// What stands in place of a secret.
const HIDDEN: &str = "***";
/// Disks that cannot be attached, whose origins have secrets.
const DISKS: [&str; 3] = ["server", "web", "target"];
/// What a file of the daemon's state may not be: written by its group; read, written or run by others; run at all.
const FORBIDDEN: u32 = 0o137;

/// An origin that is a QEMU block device, as it stands in the quotes of the configuration file.
fn node(device: &Value) -> String {
    format!("qemu:{device}").replace('"', "\\\"")
}

/// The disks of [`DISKS`]: nobody answers on the port, and QEMU repeats the options that it does not know.
fn disks_with_secrets(certificates: &Certificates, port: u16) -> Vec<Disk> {
    let tls = format!(
        "origin_tls = {{ ca = {:?}, certificate = {:?}, key = {:?} }}",
        certificates.path("ca-cert.pem"),
        certificates.path("client-cert.pem"),
        certificates.path("client-key.pem")
    );
    let web = json!({
        "driver": "https", "url": format!("https://user:planted-in-url@127.0.0.1:{port}/x"),
        "username": "user", "password": "planted-password", "cookie": "planted-cookie"
    });
    let target = json!({
        "driver": "raw",
        "file": {
            "driver": "iscsi", "transport": "tcp", "portal": format!("127.0.0.1:{port}"), "target": "iqn.x",
            "lun": 0, "user": "user", "password": "planted-chap"
        }
    });
    let [server_name, web_name, target_name] = DISKS;
    let server = Disk::new(server_name, format!("nbds://user:planted-nbd@127.0.0.1:{port}/x")).with(&tls);
    let disks = [server, Disk::new(web_name, node(&web)), Disk::new(target_name, node(&target))];
    disks.map(|disk| disk.with("origin_wait = \"1s\"").unattachable()).into()
}

/// A daemon with a disk that works, those of [`DISKS`], and an API over TCP with a certificate and a token.
fn start<'a>(place: &'a Place, certificates: &Certificates) -> Result<Haversack<'a>> {
    let file = image::zeroes(place, "vm1.img", 16)?;
    let mut disks = vec![Disk::new("vm1", file.display().to_string())];
    disks.extend(disks_with_secrets(certificates, tools::free_port()?));
    let token = place.path("token");
    std::fs::write(&token, "planted-token-of-an-admin\n").map_err(Error::io("the token"))?;
    let mut settings = Settings::new(64, disks);
    settings.more = format!(
        "[api]\nlisten = \"127.0.0.1:{}\"\ncertificate = {:?}\nkey = {:?}\ntoken_file = {token:?}\n",
        tools::free_port()?,
        certificates.path("server-cert.pem"),
        certificates.path("server-key.pem")
    );
    Haversack::start(place, settings)
}

/// The lines of the private keys, as they would be found wherever a key was copied to.
fn lines_of_keys(certificates: &Certificates) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    for name in ["server-key.pem", "client-key.pem"] {
        let text = std::fs::read_to_string(certificates.path(name)).map_err(Error::io(name))?;
        lines.extend(text.lines().filter(|line| !line.starts_with('-')).map(str::to_owned));
    }
    check(lines.len() > 2, "too few lines in a key: does the search still fit them?")?;
    Ok(lines)
}

/// All files in a directory and those below it.
fn files_below(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let entries = std::fs::read_dir(directory).map_err(Error::io(directory.display().to_string()))?;
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            files.extend(files_below(&path)?);
        } else {
            files.push(path);
        }
    }
    Ok(files)
}

/// Makes a support bundle and unpacks it. Returns its files and what is in them.
fn bundle(place: &Place, daemon: &Haversack<'_>, name: &str) -> Result<Vec<(PathBuf, String)>> {
    let (archive, directory) = (place.path(format!("{name}.tar.gz")), place.path(name));
    let (archive, config) =
        (archive.display().to_string(), place.path("haversackd.toml").display().to_string());
    daemon.command(&["support-bundle", &archive, "--config", &config])?;
    std::fs::create_dir(&directory).map_err(Error::io("a directory"))?;
    let mut tar = tools::tool("tar")?;
    tar.args(["-xzf", &archive, "-C"]).arg(&directory);
    tools::run(tar)?;
    let read = |path: PathBuf| -> Result<(PathBuf, String)> {
        let bytes = std::fs::read(&path).map_err(Error::io(path.display().to_string()))?;
        Ok((path, String::from_utf8_lossy(&bytes).into_owned()))
    };
    files_below(&directory)?.into_iter().map(read).collect()
}

/// Fails if a file has one of the secrets.
fn have_none(files: &[(PathBuf, String)], secrets: &[String]) -> Result<()> {
    for (path, text) in files {
        let line = text.lines().find(|line| secrets.iter().any(|secret| line.contains(secret)));
        check(line.is_none(), format!("{} has a secret: {}", path.display(), line.unwrap_or_default()))?;
    }
    Ok(())
}

#[test]
fn a_support_bundle_has_no_secrets() {
    test("secrets and the support bundle", |place| {
        let certificates = Certificates::make(place, "tls")?;
        let mut daemon = start(place, &certificates)?;
        let mut secrets = lines_of_keys(&certificates)?;
        secrets.push(PLANTED.to_owned());
        for disk in DISKS {
            tools::wait_until("a disk that waits", PATIENCE, || {
                Ok(daemon.command(&["events", disk])?.contains("attach-failed"))
            })?;
            // Without a secret in the daemon, the check of the bundle would prove nothing.
            let shown = daemon.json(&["disk", "show", disk])?.to_string();
            check(shown.contains(PLANTED), format!("{disk} has no secret: {shown}"))?;
        }
        let pool = daemon.pool();
        for origin in
            ["rbd:pool/image:id=user:key=planted-key", "iscsi://user%planted-word@127.0.0.1/target/0"]
        {
            daemon.refused(&["disk", "attach", "refused", origin, "--pool", &pool])?;
        }

        let files = bundle(place, &daemon, "running")?;
        have_none(&files, &secrets)?;
        for (name, words) in [
            ("status.json", [HIDDEN, "web"]),
            ("events.json", [HIDDEN, "attach-failed"]),
            ("haversackd.toml", [HIDDEN, "token_file"]),
            // Bundles are often made of a daemon that is not ready.
            ("ready.txt", ["disk server is waiting", "disk web is waiting"]),
        ] {
            let found = files.iter().find(|(path, _)| path.ends_with(name));
            let (_, text) = found.ok_or_else(|| Error::Check(format!("no {name} in the bundle")))?;
            check(words.iter().all(|word| text.contains(word)), format!("{name} has not {words:?}: {text}"))?;
        }
        place.say(&format!("{} files without secrets", files.len()));
        daemon.kill()?;
        have_none(&bundle(place, &daemon, "killed")?, &secrets)
    });
}

/// The helper waits for a server that does not answer, so that there is time to look at it.
#[test]
fn passwords_of_origins_are_in_no_command_line_and_not_in_the_log() {
    test("secrets and helpers", |place| {
        let certificates = Certificates::make(place, "tls")?;
        let mut daemon = start(place, &certificates)?;
        let silent = TcpListener::bind("127.0.0.1:0").map_err(Error::io("a server"))?;
        let port = silent.local_addr().map_err(Error::io("its address"))?.port();
        silent.set_nonblocking(true).map_err(Error::io("a server"))?;
        let web = json!({ "driver": "https", "url": format!("https://user:planted-in-url@127.0.0.1:{port}/x"), "timeout": 60 });
        let attach =
            ["disk", "attach", "slow", &format!("qemu:{web}"), "--read-only", "--pool", &daemon.pool()];
        let _attaching = Process::start(place, "attach", &daemon.command_line(&attach)?)?;
        let commands = || -> Result<Vec<String>> {
            let read = |pid: Pid| std::fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).ok();
            let found = daemon.process()?.children()?.into_iter().filter_map(read);
            Ok(found.map(|bytes| String::from_utf8_lossy(&bytes).replace('\0', " ")).collect())
        };
        let is_of_slow = |command: &String| command.contains("qemu-storage-daemon");
        tools::wait_until("the helper", PATIENCE, || Ok(commands()?.iter().any(is_of_slow)))?;
        let mut connection = None;
        tools::wait_until("the helper's connection", PATIENCE, || {
            connection = silent.accept().ok();
            Ok(connection.is_some())
        })?;
        for command in commands()? {
            check(!command.contains(PLANTED), format!("a command line has a secret: {command}"))?;
        }
        for disk in DISKS {
            tools::wait_until("a disk that waits", PATIENCE, || {
                Ok(daemon.command(&["events", disk])?.contains("attach-failed"))
            })?;
        }
        let pool = daemon.pool();
        for origin in
            ["rbd:pool/image:id=user:key=planted-key", "iscsi://user%planted-word@127.0.0.1/target/0"]
        {
            let said = daemon.refused(&["disk", "attach", "refused", origin, "--pool", &pool])?;
            // The text before that is the command line of the test.
            let error = said.split_once("\nhaversack: ").map(|(_, error)| error);
            let error = error.ok_or_else(|| Error::Check(format!("no error of the command: {said}")))?;
            check(!error.contains(PLANTED), format!("an error has a secret: {error}"))?;
        }
        daemon.stop()?;
        let log = daemon.log();
        let line = log.lines().find(|line| line.contains(PLANTED));
        check(line.is_none(), format!("the log has a secret: {}", line.unwrap_or_default()))?;
        check(log.contains("web"), "the log does not name the disk: does the search still fit it?")
    });
}

/// Fails if somebody else than the daemon's user and group can read a file of the daemon's state, or if one of
/// `expected` is not there.
fn is_private(state: &Path, expected: &[&str]) -> Result<()> {
    let files = files_below(state)?;
    for file in &files {
        let metadata = match std::fs::symlink_metadata(file) {
            // It was a new version of a file, and has just replaced the old one.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            found => found.map_err(Error::io(file.display().to_string()))?,
        };
        let mode = metadata.permissions().mode() & 0o7777;
        check(mode & FORBIDDEN == 0, format!("{} has mode {mode:o}", file.display()))?;
    }
    for name in expected {
        let is_there = files.iter().any(|file| file.to_string_lossy().contains(name));
        check(is_there, format!("no {name} in {files:?}"))?;
    }
    Ok(())
}

#[test]
fn what_the_daemon_keeps_is_not_for_everybody() {
    test("modes of the daemon's files", |place| {
        let [first, second] = [image::zeroes(place, "vm1.img", 16)?, image::zeroes(place, "vm2.img", 16)?];
        let disk = Disk::new("vm1", first.display().to_string()).with("admission = \"auto\"");
        let mut daemon = Haversack::start(place, Settings::new(64, vec![disk]))?;
        let pool = daemon.pool();
        daemon.command(&["disk", "attach", "vm2", &second.display().to_string(), "--pool", &pool])?;
        daemon.command(&["policy", "set", "equal"])?;
        let (state, decisions) = (daemon.socket("state"), format!("policy-{pool}.log"));
        tools::wait_until("a decision", PATIENCE, || Ok(state.join(&decisions).exists()))?;
        is_private(&state, &["state.json", "uses.json", "events.log", "history", &decisions])?;
        daemon.stop()?;
        is_private(&state, &["checkpoint-"])
    });
}

#[test]
fn who_asked_for_what_is_known_after_a_kill() {
    test("audit events", |place| {
        let file = image::zeroes(place, "vm1.img", 16)?;
        let disks = vec![Disk::new("vm1", file.display().to_string())];
        let mut daemon = Haversack::start(place, Settings::new(64, disks))?;
        daemon.command(&["disk", "flush", "vm1"])?;
        daemon.refused(&["disk", "forget", "vm1"])?;
        daemon.kill()?;
        daemon.start_again()?;
        let mut id = tools::tool("id")?;
        id.arg("-un");
        let user = tools::run(id)?;
        let who = format!("audit  vm1: {} (process ", user.trim());
        let events = daemon.command(&["events", "vm1", "--last", "100"])?;
        for what in ["): POST /v1/disks/vm1/flush: 202", "): POST /v1/disks/vm1/forget: 409"] {
            let is_there = events.lines().any(|line| line.contains(&who) && line.ends_with(what));
            check(is_there, format!("no event with {who:?} and {what:?}: {events}"))?;
        }
        Ok(())
    });
}
