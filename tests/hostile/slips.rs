//! Operator mistakes: an operation that would remove data from a disk, or a disk from its guest, is refused until it is
//! confirmed.

use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::Path;

use haversack_e2e::connection::Connection;
use haversack_e2e::error::check;
use haversack_e2e::haversack::{Disk, Haversack, Settings};
use haversack_e2e::tools::{self, PATIENCE};
use haversack_e2e::{Error, Guest, MIB, Place, Result, clients, image, test};

/// Disables automatic cleaning.
const LAZY: &str = "cleaner = { low_watermark = 0.9, high_watermark = 0.95, dirty_limit = 1.0, age = \"10000h\", idle = \"10000h\" }";

fn disk(place: &Place, name: &str) -> Result<Disk> {
    let file = image::zeroes(place, &format!("{name}.img"), 64)?;
    Ok(Disk::new(name, file.display().to_string()).with(LAZY))
}

fn daemon<'a>(place: &'a Place, names: &[&str]) -> Result<Haversack<'a>> {
    let disks = names.iter().map(|name| disk(place, name)).collect::<Result<_>>()?;
    Haversack::start(place, Settings::new(256, disks))
}

/// Runs a command that must be refused, with a message that has all of these words.
fn refused(daemon: &Haversack<'_>, arguments: &[&str], words: &[&str]) -> Result<()> {
    match daemon.command(arguments) {
        Ok(said) => Err(Error::Check(format!("{arguments:?} was done: {said}"))),
        Err(error) => has_all(&format!("{arguments:?}"), &error.to_string(), words),
    }
}

fn has_all(what: &str, text: &str, words: &[&str]) -> Result<()> {
    let missing = words.iter().find(|word| !text.contains(**word));
    missing.map_or(Ok(()), |word| Err(Error::Check(format!("{what}: {word:?} is not in: {text}"))))
}

/// Waits for an event of a kind, and checks its message.
fn event(daemon: &Haversack<'_>, kind: &str, words: &[&str]) -> Result<()> {
    tools::wait_until(&format!("an event {kind}"), PATIENCE, || {
        let text = daemon.command(&["events"])?;
        Ok(text.lines().any(|line| line.contains(kind) && words.iter().all(|word| line.contains(word))))
    })
}

fn size_of(daemon: &Haversack<'_>, disk: &str) -> Result<u64> {
    Ok(daemon.json(&["disk", "show", disk])?["size_bytes"].as_u64().unwrap_or(0))
}

/// The process of the test, as a message names it.
fn own_pid() -> String {
    format!("pid {} (", std::process::id())
}

#[test]
fn a_disk_shrinks_only_by_name_and_without_clients() {
    test("shrinking", |place| {
        let daemon = daemon(place, &["vm1"])?;
        let flushed = ["write -P 0x42 40M 8M", "flush"];
        clients::qemu_io(&daemon.uri("vm1"), &flushed)?;
        let bytes = (64 * MIB).to_string();
        refused(
            &daemon,
            &["disk", "resize", "vm1", "32MiB"],
            &["vm1", &bytes, "destroys everything beyond", "--shrink"],
        )?;
        refused(&daemon, &["disk", "resize", "vm1", "32MiB", "--shrink"], &["vm1", "--confirm"])?;
        refused(
            &daemon,
            &["disk", "resize", "vm1", "32MiB", "--shrink", "--confirm", "vm2"],
            &["--confirm vm1"],
        )?;
        let shrink = ["disk", "resize", "vm1", "32MiB", "--shrink", "--confirm", "vm1"];

        let client = Connection::open(&daemon.socket("nbd.sock"), "vm1")?;
        refused(&daemon, &shrink, &["vm1", "in use by NBD client", &own_pid()])?;
        drop(client);
        let mut guest = Guest::boot(place, "guest", &[daemon.vhost_user("vm1")])?;
        refused(&daemon, &shrink, &["vm1", "in use by vhost-user front end pid", "(qemu-system-x86)"])?;
        guest.ask("open vda vm1 zeroes")?;
        refused(&daemon, &shrink, &["vm1", "in use by vhost-user front end pid", "(qemu-system-x86)"])?;
        guest.off()?;

        check(size_of(&daemon, "vm1")? == 64 * MIB, "it has shrunk")?;
        clients::qemu_io(&daemon.uri("vm1"), &["read -P 0x42 40M 8M"])?;
        wait_until_unused(&daemon, "vm1")?;
        daemon.command(&shrink)?;
        check(size_of(&daemon, "vm1")? == 32 * MIB, "it has not shrunk")?;
        event(&daemon, "shrunk", &["vm1", "from 67108864 to 33554432 bytes"])?;
        daemon.wait_for_log(&["shrunk from 67108864 to 33554432 bytes"])?;
        daemon.command(&["disk", "resize", "vm1", "64MiB"])?;
        event(&daemon, "resized", &["vm1"])
    });
}

/// Waits until no client is connected: the daemon may notice the end of a connection a moment after the client has
/// closed it.
fn wait_until_unused(daemon: &Haversack<'_>, disk: &str) -> Result<()> {
    tools::wait_until("the last client's end", PATIENCE, || {
        Ok(daemon.json(&["disk", "show", disk])?["clients"] == 0)
    })
}

#[test]
fn a_reload_shrinks_no_disk() {
    test("a smaller size in the file", |place| {
        let daemon = daemon(place, &["vm1"])?;
        clients::qemu_io(&daemon.uri("vm1"), &["write -P 0x42 40M 8M", "flush"])?;
        // The disk was attached with its origin's size.
        daemon.reload(&format!("{}size = \"32MiB\"\n", daemon.configuration()))?;
        daemon.wait_for_log(&["a reload does not shrink a disk", "vm1"])?;
        event(&daemon, "not-shrunk", &["vm1"])?;
        check(size_of(&daemon, "vm1")? == 64 * MIB, "it has shrunk")?;
        clients::qemu_io(&daemon.uri("vm1"), &["read -P 0x42 40M 8M"]).map(|_| ())
    });
}

#[test]
fn an_origin_that_has_become_smaller_takes_nothing_along() {
    test("a truncated origin", |place| {
        let mut daemon = daemon(place, &["vm1"])?;
        clients::qemu_io(&daemon.uri("vm1"), &["write -P 0x42 40M 8M", "flush"])?;
        let truncate = |mib: u64| {
            let file = std::fs::OpenOptions::new().write(true).open(place.path("vm1.img"));
            file.and_then(|file| file.set_len(mib * MIB)).map_err(Error::io("vm1.img"))
        };
        truncate(16)?;
        clients::qemu_io(&daemon.uri("vm1"), &["read -P 0x42 40M 8M"])?;
        daemon.kill()?;
        daemon.settings().disks[0].attachable = false;
        daemon.start_again()?;
        daemon.wait_for_log(&["not attached", "16777216 bytes, the disk needs 67108864", "enlarge"])?;
        truncate(64)?;
        tools::wait_until("vm1 attached", PATIENCE, || {
            Ok(daemon.json(&["disk", "show", "vm1"])?["state"] == "attached")
        })?;
        clients::qemu_io(&daemon.uri("vm1"), &["read -P 0x42 40M 8M"]).map(|_| ())
    });
}

#[test]
fn a_disk_in_use_is_detached_only_by_force() {
    test("detaching under clients", |place| {
        let daemon = daemon(place, &["vm1"])?;
        let client = Connection::open(&daemon.socket("nbd.sock"), "vm1")?;
        let detach = ["disk", "detach", "vm1"];
        refused(&daemon, &detach, &["vm1", "in use by NBD client", &own_pid(), "--force"])?;
        drop(client);
        let mut guest = Guest::boot(place, "guest", &[daemon.vhost_user("vm1")])?;
        refused(&daemon, &detach, &["vm1", "in use by vhost-user front end pid", "(qemu-system-x86)"])?;
        guest.ask("open vda vm1 zeroes")?;
        guest.ask("write vda 1 10")?;
        check(daemon.json(&["disk", "show", "vm1"])?["state"] == "attached", "it was detached")?;
        daemon.command(&["disk", "detach", "vm1", "--force"])?;
        check(daemon.json(&["disk", "show", "vm1"])?["state"] == "detached", "--force does not help")
    });
}

#[test]
fn a_waiting_disk_with_dirty_data_is_given_up_only_by_force() {
    test("detaching a disk that waits", |place| {
        let mut daemon = daemon(place, &["vm1"])?;
        clients::qemu_io(&daemon.uri("vm1"), &["write -P 0x42 4M 8M", "flush"])?;
        daemon.kill()?;
        let (image, away) = (place.path("vm1.img"), place.path("away.img"));
        std::fs::rename(&image, &away).map_err(Error::io("vm1.img"))?;
        daemon.settings().disks[0].attachable = false;
        daemon.start_again()?;
        daemon.wait_for_log(&["not attached", "vm1.img"])?;
        refused(&daemon, &["disk", "detach", "vm1"], &["vm1", "8388608 dirty bytes", "origin"])?;
        daemon.command(&["disk", "detach", "vm1", "--force"])?;
        let shown = daemon.command(&["disk", "list"])?;
        has_all("the list", &shown, &["vm1", "detached", "8388608 dirty bytes"])
    });
}

#[test]
fn an_empty_or_shortened_file_takes_no_disk() {
    test("shortened configurations", |place| {
        let mut daemon = daemon(place, &["vm1", "vm2"])?;
        clients::qemu_io(&daemon.uri("vm2"), &["write -P 0x42 4M 8M", "flush"])?;
        wait_until_unused(&daemon, "vm2")?;
        let whole = daemon.configuration();
        let without_vm2 = whole.rfind("\n[[disk]]").map_or("", |at| &whole[..=at]).to_owned();
        let without_disks = whole.find("\n[[disk]]").map_or("", |at| &whole[..=at]).to_owned();
        let shortened = [
            ("", ["[[pool]]", "complete"]),
            ("# nothing\n", ["[[pool]]", "complete"]),
            (&without_disks, ["'vm1', 'vm2'", "remove_disks"]),
            (&without_vm2, ["'vm2'", "remove_disks"]),
        ];
        for (text, words) in shortened {
            let refusals = refusals(&daemon).len();
            daemon.reload(text)?;
            tools::wait_until("the refusal", PATIENCE, || Ok(self::refusals(&daemon).len() > refusals))?;
            has_all("the refusal", self::refusals(&daemon).last().map_or("", |line| line), &words)?;
            for disk in ["vm1", "vm2"] {
                let state = daemon.json(&["disk", "show", disk])?["state"].clone();
                check(state == "attached", format!("{disk} is {state} after: {text}"))?;
            }
        }
        event(&daemon, "reload-refused", &["vm2"])?;
        place.say("no disk was taken");

        // Removing the disk on purpose is refused, too, while a client is connected.
        daemon.settings().daemon = "remove_disks = [\"vm2\"]\n".to_owned();
        daemon.settings().disks.truncate(1);
        let on_purpose = daemon.configuration();
        let client = Connection::open(&daemon.socket("nbd.sock"), "vm2")?;
        daemon.reload(&on_purpose)?;
        daemon.wait_for_log(&["reload refused", "'vm2'", "in use by NBD client", &own_pid()])?;
        drop(client);
        wait_until_unused(&daemon, "vm2")?;
        daemon.reload(&on_purpose)?;
        tools::wait_until("vm2 detached", PATIENCE, || {
            Ok(daemon.json(&["disk", "show", "vm2"])?["state"] == "detached")
        })?;
        let image = place.path("vm2.img").display().to_string();
        clients::qemu_io(&image, &["read -P 0x42 4M 8M"]).map(|_| ())
    });
}

fn refusals(daemon: &Haversack<'_>) -> Vec<String> {
    daemon.log().lines().filter(|line| line.contains("reload refused")).map(String::from).collect()
}

/// A file that is cut short anywhere is not applied, wherever the cut is: the last disk would get defaults.
#[test]
fn a_file_that_is_cut_short_changes_nothing() {
    test("cut configurations", |place| {
        let mut daemon = daemon(place, &["vm1", "vm2"])?;
        let last = &mut daemon.settings().disks[1];
        last.mode = "wt".into();
        last.more += "target = \"64MiB\"\nnbd = true\n";
        let whole = daemon.configuration();
        daemon.reload(&whole)?;
        let mode = || Ok::<_, Error>(daemon.json(&["disk", "show", "vm2"])?["config"]["mode"].clone());
        tools::wait_until("the other mode", PATIENCE, || Ok(mode()? == "wt"))?;
        let cuts = (0..whole.len()).filter(|cut| cut % 40 == 0 || *cut > whole.len() - 120);
        for cut in cuts {
            let refusals = refusals(&daemon).len();
            daemon.reload(&whole[..cut])?;
            let what = format!("the refusal of what ends with: {}", &whole[cut.saturating_sub(60)..cut]);
            tools::wait_until(&what, PATIENCE, || Ok(self::refusals(&daemon).len() > refusals))?;
        }
        check(mode()? == "wt", format!("vm2 has the mode {}", mode()?))?;
        has_all(
            "a refusal",
            &refusals(&daemon).join("\n"),
            &["disk 'vm2', has no nbd any more", "in the middle of a line"],
        )?;

        // A daemon does not start with such a file either, unless the cut is at the end of a line; then it reports what
        // is different.
        daemon.stop()?;
        let start = |text: &str| -> Result<tools::Output> {
            let path = place.path("cut.toml");
            std::fs::write(&path, text).map_err(Error::io("cut.toml"))?;
            let mut check_config = tools::own("haversackd")?;
            check_config.arg("--check-config").arg("--config").arg(&path);
            tools::output(check_config)
        };
        let cut = start(&whole[..whole.len() - 1])?;
        check(!cut.status.success(), "a cut file is taken for a whole one")?;
        has_all("the refusal", &cut.stderr, &["cut.toml", "in the middle of a line", "complete"])?;
        let at = whole.rfind("mode = ").unwrap_or_default();
        check(start(&whole[..at])?.status.success(), "a file that ends with a line's end is refused")?;
        daemon.settings().disks[1].mode = "auto".into();
        daemon.start_again()?;
        daemon.wait_for_log(&["WARN", "vm2", "write mode differs from the last start", "auto", "wt"])
    });
}

#[test]
fn an_empty_file_starts_no_daemon() {
    test("an empty configuration", |place| {
        let path = place.path("empty.toml");
        std::fs::write(&path, "").map_err(Error::io("empty.toml"))?;
        let mut check_config = tools::own("haversackd")?;
        check_config.arg("--check-config").arg("--config").arg(&path);
        let output = tools::output(check_config)?;
        check(!output.status.success(), "an empty configuration is taken for a good one")?;
        has_all("the refusal", &output.stderr, &["empty.toml", "[[pool]]"])
    });
}

#[test]
fn dirty_disks_missing_from_the_file_are_reported() {
    test("a disk left out while stopped", |place| {
        let mut daemon = daemon(place, &["vm1", "vm2"])?;
        for disk in ["vm1", "vm2"] {
            clients::qemu_io(&daemon.uri(disk), &["write -P 0x42 4M 8M", "flush"])?;
        }
        daemon.stop()?;
        daemon.settings().disks.truncate(1);
        daemon.start_again()?;
        daemon.wait_for_log(&["WARN", "vm2", "8388608 dirty bytes", "the disk is not attached"])?;
        event(&daemon, "left-dirty", &["vm2", "8388608"])?;
        let list = daemon.command(&["disk", "list"])?;
        has_all("the list", &list, &["vm2", "detached", "8388608 dirty bytes"])?;
        has_all("the pool", &daemon.command(&["pool", "status"])?, &["vm2", "8388608 dirty bytes"])?;
        check(!list.contains("vm1 has"), format!("vm1 is told of as well: {list}"))
    });
}

/// The paths of a daemon's Unix sockets.
fn socket_places(place: &Place) -> [(&'static str, std::path::PathBuf); 3] {
    ["control.sock", "nbd.sock", "vm1.sock"].map(|name| (name, place.path("run").join(name)))
}

#[test]
fn only_stale_sockets_are_replaced() {
    test("files where sockets are to be", |place| {
        let mut daemon = daemon(place, &["vm1"])?;
        daemon.stop()?;
        for (name, path) in socket_places(place) {
            // What the last start may have left there.
            let _ = std::fs::remove_file(&path);
            precious(&path)?;
            fails_to_serve(&mut daemon, name, &["not a socket"])?;
            is_precious(&path)?;
            let new = path.with_extension("sock.new");
            std::fs::rename(&path, &new).map_err(Error::io(name))?;
            fails_to_serve(&mut daemon, name, &["sock.new", "not a socket"])?;
            is_precious(&new)?;
            std::fs::remove_file(&new).map_err(Error::io(name))?;

            let target = place.path("target");
            precious(&target)?;
            std::os::unix::fs::symlink(&target, &path).map_err(Error::io(name))?;
            fails_to_serve(&mut daemon, name, &["not a socket"])?;
            is_precious(&target)?;
            std::fs::remove_file(&path).map_err(Error::io(name))?;

            // The command line would wait for the answer of a listener on the control socket.
            if name != "control.sock" {
                let other = UnixListener::bind(&path).map_err(Error::io(name))?;
                fails_to_serve(&mut daemon, name, &["another process serves this socket"])?;
                UnixStream::connect(&path).map_err(Error::io(name))?;
                drop(other);
                std::fs::remove_file(&path).map_err(Error::io(name))?;
            }
            let _other = UnixDatagram::bind(&path).map_err(Error::io(name))?;
            fails_to_serve(&mut daemon, name, &["another process serves this socket"])?;
        }
        // Nobody serves them any more.
        daemon.settings().disks[0].attachable = true;
        daemon.start_again()?;
        clients::qemu_io(&daemon.uri("vm1"), &["read -P 0 0 1M"]).map(|_| ())
    });
}

fn precious(path: &Path) -> Result<()> {
    std::fs::write(path, "precious").map_err(Error::io(path.display().to_string()))
}

fn is_precious(path: &Path) -> Result<()> {
    let found = std::fs::read(path).map_err(Error::io(path.display().to_string()))?;
    check(found == b"precious", format!("{} was written", path.display()))
}

/// A start that cannot create the socket of this name must say why. For a disk's socket, the disk waits; for others,
/// the daemon exits.
fn fails_to_serve(daemon: &mut Haversack<'_>, name: &str, words: &[&str]) -> Result<()> {
    daemon.settings().disks[0].attachable = false;
    let is_disk = name.starts_with("vm");
    match daemon.start_again() {
        Err(error) if !is_disk => has_all(name, &error.to_string(), &[&[name], words].concat()),
        Err(error) => Err(error),
        Ok(()) if !is_disk => Err(Error::Check(format!("the daemon serves {name}"))),
        Ok(()) => {
            let shown = daemon.json(&["disk", "show", "vm1"])?;
            let why = shown["error"].as_str().unwrap_or_default().to_owned();
            daemon.stop()?;
            has_all(name, &why, &[&[name], words].concat())
        }
    }
}

#[test]
fn a_failed_attach_leaves_nothing_behind() {
    test("failed attaches", |place| {
        let daemon = daemon(place, &["vm1"])?;
        let image = image::zeroes(place, "vm2.img", 64)?.display().to_string();
        let taken = place.path("taken.sock");
        precious(&taken)?;
        let (pool, socket) = (daemon.pool(), taken.display().to_string());
        let attach = ["disk", "attach", "vm2", &image, "--pool", &pool];
        let badly = [&attach[..], &["--vhost-user", &socket]].concat();
        let disks = |count: usize| {
            let disks = daemon.json(&["disk", "list"])?;
            let found = disks.as_array().map_or(0, Vec::len);
            check(found == count, format!("{found} disks, expected {count}: {disks}"))
        };
        refused(&daemon, &badly, &["taken.sock", "not a socket"])?;
        is_precious(&taken)?;
        disks(1)?;
        refused(&daemon, &["disk", "forget", "vm2"], &["no disk 'vm2'"])?;

        // A disk that existed before is unchanged.
        daemon.command(&attach)?;
        clients::qemu_io(&daemon.uri("vm2"), &["write -P 0x42 4M 8M", "flush"])?;
        daemon.detach("vm2")?;
        refused(&daemon, &badly, &["taken.sock", "not a socket"])?;
        disks(2)?;
        let shown = daemon.json(&["disk", "show", "vm2"])?;
        check(shown["state"] == "detached", format!("vm2 after a failed attach: {shown}"))?;
        daemon.command(&["disk", "forget", "vm2"])?;
        disks(1)
    });
}

#[test]
fn a_staging_file_that_was_cut_is_called_so() {
    test("a cut staging file", |place| {
        let mut daemon = daemon(place, &["vm1"])?;
        clients::qemu_io(&daemon.uri("vm1"), &["write -P 0x42 4M 8M", "flush"])?;
        daemon.kill()?;
        let path = crate::staging::staging_file(place)?;
        let what = path.display().to_string();
        let file = std::fs::OpenOptions::new().write(true).open(&path).map_err(Error::io(what.clone()))?;
        let bytes = file.metadata().map_err(Error::io(what.clone()))?.len();
        for (cut, said) in [(bytes - 4096, "was cut from"), (8192, "was cut or written over")] {
            file.set_len(cut).map_err(Error::io(what.clone()))?;
            let error = daemon.start_again().err().map(|error| error.to_string()).unwrap_or_default();
            has_all("the start", &error, &[&what, said, &bytes.to_string(), "remove the file"])?;
            check(!error.contains("set the configured size back"), "the configuration is blamed")?;
        }
        std::fs::remove_file(&path).map_err(Error::io(what))?;
        daemon.start_again()?;
        clients::qemu_io(&daemon.uri("vm1"), &["read -P 0x42 4M 8M"]).map(|_| ())
    });
}
