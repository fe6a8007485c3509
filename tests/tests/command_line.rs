//! `haversack`: every command that the other tests do not use, what it prints, how it ends.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

use haversack_e2e::error::check;
use haversack_e2e::haversack::{Disk, Haversack, Settings};
use haversack_e2e::nbdkit::Nbdkit;
use haversack_e2e::place::Place;
use haversack_e2e::process::Process;
use haversack_e2e::tools::{self, Output, PATIENCE};
use haversack_e2e::{Error, MIB, Result, clients, image, scenario, test};
use rustix::process::Signal;
use serde_json::Value;

/// A disk of which nothing is written back until somebody asks.
fn lazy(name: &str, origin: &str) -> Disk {
    Disk::new(name, origin).with("cleaner = { low_watermark = 0.9, high_watermark = 0.95, dirty_limit = 1.0, age = \"10000h\", idle = \"10000h\" }")
}

fn run(daemon: &Haversack<'_>, arguments: &[&str]) -> Result<Output> {
    tools::output(daemon.command_line(arguments)?)
}

/// Fails unless the command ended with this exit code. Returns what it wrote to stderr.
fn ends_with(output: &Output, code: i32) -> Result<&str> {
    let right = output.status.code() == Some(code);
    check(right, format!("expected exit code {code}, got {output:?}"))?;
    Ok(&output.stderr)
}

/// Fails unless the command complained in JSON with this exit code and word.
fn complains(output: &Output, code: i32, word: &str) -> Result<()> {
    let body: Value = serde_json::from_str(ends_with(output, code)?)
        .map_err(|error| Error::Check(format!("the complaint is no JSON ({error}): {output:?}")))?;
    let right = body["code"] == word && body["exit_code"] == code && body["error"].is_string();
    check(right && output.stdout.is_empty(), format!("expected {code} and {word}, got {output:?}"))
}

fn dirty_bytes(daemon: &Haversack<'_>, disk: &str) -> Result<u64> {
    let shown = daemon.json(&["disk", "show", disk])?;
    shown["usage"]["dirty_bytes"].as_u64().ok_or_else(|| Error::Check(format!("no dirty bytes in {shown}")))
}

#[test]
fn a_support_bundle_has_what_is_needed_with_and_without_a_daemon() {
    test("support-bundle", |place| {
        let origin = image::zeroes(place, "vm1.img", 32)?.display().to_string();
        let mut daemon = Haversack::start(place, Settings::new(64, vec![lazy("vm1", &origin)]))?;
        let (config, file) = (place.path("haversackd.toml"), place.path("bundle.tar.gz"));
        let (config, file) = (config.display().to_string(), file.display().to_string());
        let made = daemon.json(&["support-bundle", &file, "--config", &config])?;
        let private = std::fs::metadata(&file).map_err(Error::io("the bundle"))?.permissions().mode() & 0o777;
        check(private == 0o600, format!("others may read the bundle: {private:o}"))?;
        let names = unpack(place, &file)?;
        check(made["files"] == names.len(), format!("{made} of {names:?}"))?;
        let text = |name: &str| {
            let path = names.iter().find(|path| path.ends_with(name));
            let path = path.ok_or_else(|| Error::Check(format!("no {name} in {names:?}")))?;
            std::fs::read_to_string(place.path(path)).map_err(Error::io(path.clone()))
        };
        for (name, word) in [
            ("status.json", "vm1"),
            ("haversackd.toml", "vm1"),
            ("events.json", "vm1"),
            ("metrics.txt", "haversack_build_info"),
            ("host/uname.txt", "Linux"),
        ] {
            check(text(name)?.contains(word), format!("{name} does not have {word}: {}", text(name)?))?;
        }
        let again = run(&daemon, &["--json", "support-bundle", &file])?;
        complains(&again, 1, "failed")?;

        daemon.kill()?;
        let file = place.path("without.tar.gz").display().to_string();
        let made = daemon.json(&["support-bundle", &file, "--config", &config])?;
        let missing = made["missing"]
            .as_array()
            .is_some_and(|missing| missing.iter().any(|name| name == "status.json"));
        check(missing, format!("status.json is not missing without a daemon: {made}"))?;
        let names = unpack(place, &file)?;
        check(names.iter().any(|name| name.ends_with("missing.txt")), format!("{names:?}"))?;

        // The command waits only once for a daemon that accepts connections and never answers, not for each of its
        // eight requests.
        let (socket, file) = (place.path("silent.sock"), place.path("silent.tar.gz").display().to_string());
        let _silent = UnixListener::bind(&socket).map_err(Error::io("a socket"))?;
        let mut ask = tools::own("haversack")?;
        ask.arg("--socket").arg(socket).args([
            "--timeout",
            "1s",
            "support-bundle",
            &file,
            "--config",
            &config,
        ]);
        tools::run(ask)?;
        let names = unpack(place, &file)?;
        let missing = names.iter().find(|name| name.ends_with("missing.txt"));
        let missing = missing.ok_or_else(|| Error::Check(format!("nothing is missing: {names:?}")))?;
        let missing = std::fs::read_to_string(place.path(missing)).map_err(Error::io("missing.txt"))?;
        let [waited, skipped] =
            ["has not answered", "not requested"].map(|words| missing.matches(words).count());
        check(waited == 1 && skipped == 7, format!("asked {waited} times, skipped {skipped}: {missing}"))?;
        daemon.start_again()
    });
}

/// Unpacks an archive where the test runs. Returns the names of its files.
fn unpack(place: &Place, archive: &str) -> Result<Vec<String>> {
    let mut tar = tools::tool("tar")?;
    tar.args(["-xvzf", archive, "-C"]).arg(place.path(""));
    Ok(tools::run(tar)?.lines().map(str::to_owned).collect())
}

#[test]
fn devices_come_and_go() {
    test("pool add, remove, check", |place| {
        let file = image::zeroes(place, "vm1.img", 32)?;
        let origin = file.display().to_string();
        let mut daemon = Haversack::start(place, Settings::new(64, vec![lazy("vm1", &origin)]))?;
        let (pool, second) = (daemon.pool(), place.path("second.img").display().to_string());
        let source = image::pattern(place, "source.img", "vm1", 32)?;
        clients::nbdcopy(&source.display().to_string(), &daemon.uri("vm1"))?;

        daemon.command(&["pool", "add", &pool, &second, "--size", "64M"])?;
        let devices = || -> Result<usize> {
            Ok(daemon.json(&["pool", "status", &pool])?["devices"].as_array().map_or(0, Vec::len))
        };
        check(devices()? == 2, "the second device is not in the pool")?;
        let twice = run(&daemon, &["--json", "pool", "add", &pool, &second])?;
        complains(&twice, 4, "device").or(complains(&twice, 4, "conflict"))?;
        let first = place.path("cache.img").display().to_string();
        daemon.command(&["pool", "remove", &pool, &first])?;
        check(devices()? == 1, "the first device is still in the pool")?;
        complains(&run(&daemon, &["--json", "pool", "remove", &pool, &first])?, 2, "usage")?;
        let last = run(&daemon, &["--json", "pool", "remove", &pool, &second])?;
        complains(&last, 4, "conflict")?;
        // While there was little room for it, some of it may have been written to the origin instead.
        let moved = dirty_bytes(&daemon, "vm1")?;
        check(moved > 24 * MIB, format!("only {moved} dirty bytes have moved"))?;
        clients::compare(&daemon.uri("vm1"), &source.display().to_string())?;
        place.say("one device added, the other emptied and removed");

        let busy = run(&daemon, &["--json", "pool", "check", &second])?;
        complains(&busy, 1, "failed")?;
        check(busy.stderr.contains("in use"), format!("a device in use: {busy:?}"))?;
        daemon.stop()?;
        daemon.settings().devices = vec!["second.img".to_owned()];
        let report = daemon.json(&["pool", "check", &second, "--thorough"])?;
        check(
            report["clean_stop"] == true && report["disks"][0]["dirty_blocks"] == moved / 4096,
            report.to_string(),
        )?;
        daemon.start_again()?;
        clients::compare(&daemon.uri("vm1"), &source.display().to_string())?;
        daemon.stop()?;

        // The middle of the device is data of the disk.
        image::put(Path::new(&second), 10 * MIB, &vec![0x5a; 20 << 20])?;
        let damaged = run(&daemon, &["--json", "pool", "check", &second, "--thorough"])?;
        check(damaged.stdout.contains("bad_blocks"), format!("no report: {damaged:?}"))?;
        ends_with(&damaged, 7).map(|_| ())
    });
}

#[test]
fn dirty_blocks_of_a_dead_host_are_saved() {
    test("flush-offline", |place| {
        let files = [image::zeroes(place, "vm1.img", 16)?, image::zeroes(place, "vm2.img", 16)?];
        let origin = Nbdkit::file(place, "origin", &files[1])?;
        let path = files[0].display().to_string();
        let settings = Settings::new(256, vec![lazy("vm1", &path), lazy("vm2", &origin.uri())]);
        let mut daemon = Haversack::start(place, settings)?;
        let sources = [
            image::pattern(place, "source1.img", "vm1", 16)?,
            image::pattern(place, "source2.img", "vm2", 16)?,
        ];
        for (source, disk) in sources.iter().zip(["vm1", "vm2"]) {
            clients::nbdcopy(&source.display().to_string(), &daemon.uri(disk))?;
            clients::qemu_io(&daemon.uri(disk), &["flush"])?;
            check(dirty_bytes(&daemon, disk)? == 16 * MIB, format!("{disk} is not dirty"))?;
        }
        let device = place.path("cache.img").display().to_string();
        let early = run(&daemon, &["--json", "flush-offline", "vm1", "--origin", &path, &device])?;
        complains(&early, 1, "failed")?;
        check(early.stderr.contains("in use"), format!("a running daemon's device: {early:?}"))?;

        daemon.kill()?;
        // The host is dead: what was in its memory is gone.
        let staging = format!("/dev/shm/haversack-{}", daemon.pool());
        std::fs::remove_file(&staging).map_err(Error::io(staging))?;
        let nobody = run(&daemon, &["--json", "flush-offline", "vm3", "--origin", &path, &device])?;
        complains(&nobody, 1, "failed")?;
        let small = image::zeroes(place, "small.img", 8)?.display().to_string();
        let smaller = ["--json", "flush-offline", "vm1", "--origin", &small, "--confirm", "vm1", &device];
        let other = run(&daemon, &smaller)?;
        complains(&other, 1, "failed")?;
        check(other.stderr.contains("--different-origin vm1"), format!("another origin: {other:?}"))?;
        let small = run(&daemon, &[&smaller[..], &["--different-origin", "vm1"]].concat())?;
        complains(&small, 1, "failed")?;
        check(small.stderr.contains("32768 sectors"), format!("an origin that is too small: {small:?}"))?;
        let unconfirmed = run(&daemon, &["--json", "flush-offline", "vm1", &device])?;
        complains(&unconfirmed, 6, "not-confirmed")?;
        let listed = daemon.json(&["flush-offline", "--list", &device])?;
        let of_disk =
            |name: &str| listed.as_array().and_then(|d| d.iter().find(|d| d["name"] == name).cloned());
        let vm1 = of_disk("vm1").unwrap_or_default();
        check(vm1["dirty_bytes"] == 16 * MIB && vm1["origin"] == path, format!("the list: {listed}"))?;
        let planned = daemon.json(&["flush-offline", "vm1", "--dry-run", &device])?;
        check(planned["blocks"] == 4096 && planned["origin"] == path, format!("the plan: {planned}"))?;
        let flushed = daemon.json(&["flush-offline", "vm1", "--confirm", "vm1", &device])?;
        check(flushed["blocks"] == 4096, format!("not all of vm1: {flushed}"))?;
        let confirmed = ["--origin", &origin.uri(), "--confirm", "vm2"];
        let text = daemon.command(&[&["flush-offline", "vm2"], &confirmed[..], &[&device]].concat())?;
        check(text.contains("4096 blocks"), format!("not all of vm2: {text}"))?;
        for (file, source) in files.iter().zip(&sources) {
            scenario::same_digest(file, &image::digest(source)?)?;
        }
        place.say("saved to a file and to an NBD server");
        daemon.start_again()?;
        clients::compare(&daemon.uri("vm1"), &sources[0].display().to_string())?;
        clients::compare(&daemon.uri("vm2"), &sources[1].display().to_string())
    });
}

#[test]
fn ctrl_c_cancels() {
    test("Ctrl-C", |place| {
        let file = image::zeroes(place, "vm1.img", 32)?;
        let path = file.display().to_string();
        // At 1 MiB a second, much is left when the command is cancelled. The filter lets two seconds' worth through at
        // once.
        let slow = Nbdkit::start(place, "origin", &["--filter=rate", "file", &path, "rate=8M"])?;
        let daemon = Haversack::start(place, Settings::new(64, vec![lazy("vm1", &slow.uri())]))?;
        let source = image::pattern(place, "source.img", "vm1", 32)?;
        clients::nbdcopy(&source.display().to_string(), &daemon.uri("vm1"))?;
        for (number, verb) in ["flush", "detach"].into_iter().enumerate() {
            let before = dirty_bytes(&daemon, "vm1")?;
            let log = format!("cancelled-{number}");
            let mut command = Process::start(place, &log, &daemon.command_line(&["disk", verb, "vm1"])?)?;
            tools::wait_until("a handler of Ctrl-C", PATIENCE, || command.handles(Signal::INT))?;
            tools::wait_until("progress", PATIENCE, || Ok(dirty_bytes(&daemon, "vm1")? < before))?;
            command.interrupt()?;
            let code = command.wait(PATIENCE)?.code();
            check(code == Some(5), format!("disk {verb} ended with {code:?} after Ctrl-C"))?;
            let shown = daemon.json(&["disk", "show", "vm1"])?;
            check(shown["state"] == "attached", format!("not attached after a cancelled {verb}"))?;
            let after = dirty_bytes(&daemon, "vm1")?;
            check(0 < after && after < before, format!("{before} bytes dirty before, {after} after"))?;
            clients::qemu_io(&daemon.uri("vm1"), &["read 0 4k", "write -P 1 0 4k"])?;
        }
        place.say("flush and detach cancelled");

        let attach = ["disk", "attach", "vm2", "nbd+unix:///x?socket=/nowhere", "--pool", &daemon.pool()];
        let mut command = Process::start(place, "left", &daemon.command_line(&attach)?)?;
        tools::wait_until("the job", PATIENCE, || {
            Ok(daemon.json(&["disk", "show", "vm2"]).is_ok_and(|shown| shown["state"] == "attaching"))
        })?;
        let said = || std::fs::read_to_string(place.path("left.log")).unwrap_or_default();
        tools::wait_until("a handler of Ctrl-C", PATIENCE, || command.handles(Signal::INT))?;
        command.interrupt()?;
        tools::wait_until("the first Ctrl-C", PATIENCE, || Ok(said().contains("cancelling")))?;
        command.interrupt()?;
        let code = command.wait(PATIENCE)?.code();
        let said = said();
        check(code == Some(5) && said.contains("continues"), format!("{code:?} after two Ctrl-C: {said}"))
    });
}

/// Runs a command on a terminal, with something typed.
fn on_terminal(command: &Command, typed: &str) -> Result<Output> {
    use std::io::{Seek, Write};
    let failed = Error::io("a file to type from");
    let mut file = tempfile::tempfile().map_err(Error::io("a temporary file"))?;
    file.write_all(typed.as_bytes()).and_then(|()| file.rewind()).map_err(failed)?;
    let mut script = tools::tool("script")?;
    script.args([
        "--quiet",
        "--return",
        "--echo",
        "never",
        "--command",
        &tools::line_of(command),
        "/dev/null",
    ]);
    tools::output_from(script, file)
}

#[test]
fn dirty_data_is_destroyed_only_by_name() {
    test("forget", |place| {
        let file = image::zeroes(place, "vm1.img", 16)?;
        let other = image::zeroes(place, "vm2.img", 16)?.display().to_string();
        let path = file.display().to_string();
        let settings = Settings::new(64, vec![lazy("vm1", &path), lazy("vm2", &other)]);
        let mut daemon = Haversack::start(place, settings)?;
        for disk in ["vm1", "vm2"] {
            clients::qemu_io(&daemon.uri(disk), &["write -P 0x42 0 4M", "flush"])?;
        }
        complains(&run(&daemon, &["--json", "disk", "forget", "vm1"])?, 4, "conflict")?;
        // Taken out of the configuration of a daemon that does not run, disks stay dirty.
        daemon.kill()?;
        let disks = std::mem::take(&mut daemon.settings().disks);
        daemon.start_again()?;
        tools::wait_until("the daemon", PATIENCE, || Ok(daemon.command(&["status"]).is_ok()))?;
        for disk in ["vm1", "vm2"] {
            check(dirty_bytes(&daemon, disk)? == 4 * MIB, format!("{disk} is not dirty"))?;
        }

        complains(&run(&daemon, &["--json", "disk", "forget", "vm1"])?, 6, "not-confirmed")?;
        complains(
            &run(&daemon, &["--json", "disk", "forget", "vm1", "--confirm", "vm2"])?,
            6,
            "not-confirmed",
        )?;
        let forget = daemon.command_line(&["disk", "forget", "vm1"])?;
        ends_with(&on_terminal(&forget, "yes\n")?, 6)?;
        check(dirty_bytes(&daemon, "vm1")? == 4 * MIB, "dirty data is gone without its name typed")?;
        ends_with(&on_terminal(&forget, "vm1\n")?, 0)?;
        complains(&run(&daemon, &["--json", "disk", "show", "vm1"])?, 4, "not-found")?;
        daemon.command(&["disk", "forget", "vm2", "--confirm", "vm2"])?;
        complains(&run(&daemon, &["--json", "disk", "show", "vm2"])?, 4, "not-found")?;
        place.say("forgotten, once typed and once confirmed");

        daemon.stop()?;
        daemon.settings().disks = disks;
        daemon.start_again()?;
        clients::qemu_io(&daemon.uri("vm1"), &["read -P 0 0 16M"]).map(|_| ())
    });
}

/// Twenty blocks are read in turns of ten seconds: a window needs two turns to see all of them again.
#[test]
fn the_window_is_at_the_knee() {
    test("trace window", |place| {
        let row = |at: u64| format!("{},vol,R,{},4096\n", at * 500_000_000, at % 20 * 4096);
        let rows = (0..400).map(row).collect::<String>();
        let file = place.path("turns.csv");
        let text = format!("timestamp_ns,volume,op,offset_bytes,length_bytes\n{rows}");
        std::fs::write(&file, text).map_err(Error::io("the trace"))?;
        let mut find = tools::own("haversack")?;
        find.args(["trace", "window", "--json", "--lengths", "80s,40s,20s,15s,5s,1h"]).arg(&file);
        let found = tools::run(find)?;
        let found: Value = serde_json::from_str(&found).map_err(|error| Error::Check(error.to_string()))?;
        let tried = found[0]["tried"].as_array().map_or(0, Vec::len);
        let chosen_us = found[0]["chosen_us"].as_u64();
        check(tried == 5 && chosen_us == Some(20_000_000), format!("{found}"))
    });
}

/// Commands that do not name the pool, relative paths, and the messages.
#[test]
fn what_is_done_is_said() {
    test("success", |place| {
        image::zeroes(place, "vm1.img", 16)?;
        let vm2 = image::zeroes(place, "vm2.img", 16)?.display().to_string();
        let daemon = Haversack::start(place, Settings::new(64, vec![lazy("vm2", &vm2)]))?;
        let pool = daemon.pool();
        let here = |arguments: &[&str]| -> Result<String> {
            let mut command = daemon.command_line(arguments)?;
            command.current_dir(place.path(""));
            tools::run(command)
        };
        let path = |name: &str| place.path(name).display().to_string();
        for (arguments, said) in [
            (&["disk", "attach", "vm1", "./vm1.img"][..], format!("vm1: attached to pool {pool}\n")),
            (&["disk", "set", "vm1", "--mode", "wt", "--quiet"][..], String::new()),
            (&["disk", "set", "vm1", "--mode", "wb"][..], "vm1: settings changed\n".into()),
            (&["-q", "disk", "flush", "vm1"][..], String::new()),
            (&["disk", "flush", "vm1"][..], "vm1: flushed\n".into()),
            (&["disk", "detach", "vm1"][..], "vm1: detached\n".into()),
            (&["disk", "forget", "vm1"][..], "vm1: forgotten\n".into()),
            (&["disk", "attach", "vm1", "file:vm1.img"][..], format!("vm1: attached to pool {pool}\n")),
            (&["disk", "detach", "vm1"][..], "vm1: detached\n".into()),
            (&["disk", "attach", "vm1", "vm1.img", "-q", "--vhost-user", "vm1.sock"][..], String::new()),
            (
                &["pool", "add", "second.img", "--size", "64MiB"][..],
                format!("{}: added to pool {pool}\n", path("second.img")),
            ),
            (
                &["pool", "remove", "second.img"][..],
                format!("{}: removed from pool {pool}\n", path("second.img")),
            ),
        ] {
            let found = here(arguments)?;
            check(found == said, format!("{arguments:?} printed {found:?}, not {said:?}"))?;
        }
        let shown = daemon.json(&["disk", "show", "vm1"])?;
        let sent = &shown["config"];
        check(
            sent["origin"] == path("vm1.img") && sent["vhost_user"] == path("vm1.sock"),
            shown.to_string(),
        )?;
        let listed = daemon.command(&["pool", "list"])?;
        let lines: Vec<&str> = listed.lines().collect();
        let right = lines.len() == 2 && lines[0].starts_with("POOL") && lines[1].starts_with(&pool);
        check(right && daemon.json(&["pool", "list"])?[0]["name"] == *pool, listed)?;

        let add = run(&daemon, &["pool", "add", &pool])?;
        check(ends_with(&add, 2)?.contains("is a pool"), format!("a pool without a device: {add:?}"))?;
        let odd = run(&daemon, &["disk", "resize", "vm1", "1000"])?;
        let help = "see 'haversack disk resize --help'";
        check(ends_with(&odd, 4)?.contains(help), format!("no help named: {odd:?}"))?;
        check(here(&["stop"])? == "haversackd is stopping\n", "what stop says")?;
        tools::wait_until("the stop", PATIENCE, || Ok(!daemon.socket("control.sock").exists()))?;
        let away = run(&daemon, &["disk", "list"])?;
        check(ends_with(&away, 3)?.contains("Is haversackd running?"), format!("without a daemon: {away:?}"))
    });
}

/// A shell, its options, and a script that prints what it offers when a user presses TAB. The script's arguments are
/// the file with the completions and the words of the command line.
type Shell = (&'static str, &'static [&'static str], &'static str);

const SHELLS: [Shell; 3] = [
    (
        "bash",
        &["--norc", "-c"],
        r#"source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); word=${COMP_WORDS[COMP_CWORD]}
           [ "$word" != = ] || word=
           _haversack haversack "$word" "${COMP_WORDS[COMP_CWORD - 1]}"; printf '%s\n' "${COMPREPLY[@]}""#,
    ),
    (
        "zsh",
        &["-f", "-c"],
        r#"compdef() { : }; _describe() { print -rl -- "${(@P)3%%:*}" }; source $1; shift
           words=("$@"); CURRENT=$#; PREFIX=${@[-1]}; _haversack; true"#,
    ),
    (
        "fish",
        &["--no-config", "-c"],
        r#"source $argv[2]; complete --do-complete (string join -- ' ' $argv[3..]) | string replace --regex '\t.*' ''"#,
    ),
];

/// What a shell offers for the last of these words of a command line of `haversack`, whose `HAVERSACK_SOCKET` is this.
fn offered(place: &Place, shell: Shell, socket: &Path, words: &[&str]) -> Result<Vec<String>> {
    let (name, options, body) = shell;
    let mut writes = tools::own("haversack")?;
    let program = writes.get_program().to_owned();
    writes.args(["completions", name]);
    let file = place.path(format!("completions.{name}"));
    std::fs::write(&file, tools::run(writes)?).map_err(Error::io("a script"))?;
    let mut command = tools::tool(name)?;
    let directory = Path::new(&program).parent().unwrap_or(Path::new(".")).display().to_string();
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{directory}:{path}")).env("HAVERSACK_SOCKET", socket);
    command.args(options).arg(body).arg(name).arg(&file).arg("haversack").args(words);
    let output = tools::output(command)?;
    check(output.stderr.is_empty(), format!("{name} complains: {output:?}"))?;
    Ok(output.stdout.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect())
}

/// Checks what a shell offers, see [`offered`]. The daemon has half a second to answer, and may be late: then it is
/// asked again.
fn offers(place: &Place, shell: Shell, socket: &Path, words: &[&str], expected: &[&str]) -> Result<()> {
    let mut found = Vec::new();
    let waited = tools::wait_until("the names", PATIENCE, || {
        found = offered(place, shell, socket, words)?;
        Ok(found == expected)
    });
    waited.map_err(|error| Error::Check(format!("{}: {words:?}: {found:?}: {error}", shell.0)))
}

#[test]
fn shells_complete_the_names_that_the_daemon_has() {
    test("completion", |place| {
        let path =
            |name: &str| -> Result<String> { Ok(image::zeroes(place, name, 16)?.display().to_string()) };
        let disks = vec![lazy("vm1", &path("vm1.img")?), lazy("web", &path("web.img")?)];
        let daemon = Haversack::start(place, Settings::new(64, disks))?;
        let (socket, nowhere) = (daemon.socket("control.sock"), place.path("nowhere.sock"));
        let (pool, named) = (daemon.pool(), socket.display().to_string());
        for shell in SHELLS {
            for (words, expected) in [
                (&["disk", "show", ""][..], &["vm1", "web"][..]),
                (&["disk", "detach", "v"], &["vm1"]),
                (&["disk", "attach", "new", "/x", "--pool", ""], &[&pool]),
                (&["pool", "status", ""], &[&pool]),
                (&["migrate", "w"], &["web"]),
                // There are no other hosts.
                (&["migrate", "vm1", "--to", ""], &[]),
                (&["flush-off"], &["flush-offline"]),
            ] {
                offers(place, shell, &socket, words, expected)?;
            }
            // The socket on the command line takes precedence.
            let elsewhere = ["--socket", &named, "disk", "show", ""];
            offers(place, shell, &nowhere, &elsewhere, &["vm1", "web"])?;
            let alone = offered(place, shell, &nowhere, &["disk", "show", ""])?;
            check(alone.is_empty(), format!("{}: without a daemon: {alone:?}", shell.0))?;
        }
        // As bash splits --socket=SOCKET and --pool=.
        let split = ["--socket", "=", &named, "disk", "attach", "new", "/x", "--pool", "="];
        offers(place, SHELLS[0], &nowhere, &split, &[&pool])
    });
}

#[test]
fn output_can_be_parsed_by_programs() {
    test("output", |place| {
        let file = image::zeroes(place, "vm1.img", 16)?;
        let path = file.display().to_string();
        let daemon = Haversack::start(place, Settings::new(64, vec![lazy("vm1", &path)]))?;

        let once = daemon.command(&["top", "--interval", "100ms"])?;
        let lines: Vec<&str> = once.lines().collect();
        let right = lines.len() == 2 && lines[0].starts_with("DISK") && lines[1].starts_with("vm1");
        check(right && !once.contains('\u{1b}'), format!("top into a pipe: {once:?}"))?;
        let twice = daemon.command(&["--json", "top", "--interval", "100ms", "--count", "2"])?;
        let looks: Vec<Value> = twice.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        check(looks.len() == 2 && looks[1][0]["disk"] == "vm1", format!("top --json: {twice}"))?;
        let raw = daemon.command(&["status", "--raw"])?;
        check(raw.lines().count() == 1 && raw.starts_with("disk=vm1 "), format!("status --raw: {raw:?}"))?;
        for arguments in [&["status"][..], &["disk", "list"], &["pool", "status"], &["disk", "flush", "vm1"]]
        {
            daemon.json(arguments)?;
        }
        for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
            let script = daemon.command(&["completions", shell])?;
            check(script.contains("haversack"), format!("no completions for {shell}"))?;
        }
        let script = place.path("completions.bash");
        std::fs::write(&script, daemon.command(&["completions", "bash"])?).map_err(Error::io("a script"))?;
        let mut bash = tools::tool("bash")?;
        bash.arg("-c").arg(format!("source {} && complete -p haversack", script.display()));
        tools::run(bash)?;
        let pages = place.path("man/man1");
        daemon.command(&["man", &pages.display().to_string()])?;
        for page in ["haversack.1", "haversack-disk-attach.1", "haversack-flush-offline.1"] {
            let text = std::fs::read_to_string(pages.join(page)).map_err(Error::io(page))?;
            check(text.contains(".TH") && text.contains(".SH"), format!("{page} is no manual page"))?;
        }

        complains(&run(&daemon, &["--json", "disk", "show", "nobody"])?, 4, "not-found")?;
        complains(&run(&daemon, &["--json", "disk", "show", "a/b"])?, 2, "usage")?;
        complains(&run(&daemon, &["--json", "disk", "set", "vm1"])?, 2, "usage")?;
        complains(&run(&daemon, &["--json", "disk", "paint", "vm1"])?, 2, "usage")?;
        complains(&run(&daemon, &["--json", "disk", "set", "vm1", "--mode", "blue"])?, 2, "usage")?;
        ends_with(&run(&daemon, &["disk"])?, 2)?;
        let pool = daemon.pool();
        let missing = ["--json", "disk", "attach", "vm2", "/nowhere/vm2.img", "--pool", &pool];
        complains(&run(&daemon, &missing)?, 1, "job-failed")?;
        let elsewhere = ["--json", "disk", "attach", "vm2", &path, "--pool", "elsewhere"];
        complains(&run(&daemon, &elsewhere)?, 4, "not-found")?;
        let known = run(&daemon, &["disk", "show", "nobody"])?;
        check(ends_with(&known, 4)?.contains("nobody"), format!("no name in the complaint: {known:?}"))?;

        daemon.command(&["stop"])?;
        tools::wait_until("the stop", PATIENCE, || Ok(!daemon.socket("control.sock").exists()))?;
        complains(&run(&daemon, &["--json", "status"])?, 3, "unreachable")
    });
}
