//! Users and machines with a low role, and those without a role.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use haversack_e2e::certificates::Certificates;
use haversack_e2e::error::check;
use haversack_e2e::haversack::{Disk, Haversack, Settings};
use haversack_e2e::verify::Bystander;
use haversack_e2e::{Error, Place, Result, image, test, tools};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use rustix::{fs::Gid, fs::Uid};

/// Groups that every Debian has, by name and number.
const READERS: (&str, u32) = ("games", 60);
const OPERATORS: (&str, u32) = ("news", 9);
const ADMINS: (&str, u32) = ("mail", 8);
/// The user "nobody", and its group.
const NOBODY: u32 = 65534;
const TOKEN: &str = "a-token-that-nobody-guesses";
const PATIENCE: Duration = Duration::from_secs(10);

/// The table `[access]`, with names in certificates if `domain` is given.
fn access(domain: Option<&str>) -> String {
    let table = |role: &str, group: &str| {
        let certificate =
            domain.map_or(String::new(), |domain| format!("certificates = [\"{role}.{domain}\"]\n"));
        format!("[access.{role}]\ngroups = [\"{group}\"]\n{certificate}")
    };
    [("readers", READERS), ("operators", OPERATORS), ("admins", ADMINS)]
        .map(|(role, (group, _))| table(role, group))
        .concat()
}

fn start(place: &Place, more: String) -> Result<Haversack<'_>> {
    let file = image::zeroes(place, "vm1.img", 64)?;
    let mut settings = Settings::new(128, vec![Disk::new("vm1", file.display().to_string())]);
    settings.more = more;
    let daemon = Haversack::start(place, settings)?;
    // Others must come as far as the socket.
    for directory in [place.path(""), place.path("run")] {
        std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o711))
            .map_err(Error::io(directory.display().to_string()))?;
    }
    Ok(daemon)
}

/// Runs work in a thread that is "nobody" with one more group. This applies only to that thread and to its connections.
fn as_nobody<T: Send>(group: Option<u32>, work: impl FnOnce() -> T + Send) -> Result<T> {
    let change = move || -> rustix::io::Result<()> {
        let groups: Vec<Gid> = group.into_iter().map(Gid::from_raw).collect();
        let (gid, uid) = (Gid::from_raw(NOBODY), Uid::from_raw(NOBODY));
        set_thread_groups(&groups)?;
        set_thread_res_gid(gid, gid, gid)?;
        set_thread_res_uid(uid, uid, uid)
    };
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            change().map_err(|error| Error::Check(format!("cannot become nobody: {error}")))?;
            Ok(work())
        });
        thread.join().expect("the thread does not panic")
    })
}

fn connect(socket: &Path) -> Result<UnixStream> {
    let stream = UnixStream::connect(socket).map_err(Error::io("connect"))?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(Error::io("set a time-out"))?;
    Ok(stream)
}

/// Makes a request and returns the whole answer.
fn asked(socket: &Path, line: &str, body: &str) -> Result<String> {
    let mut stream = connect(socket)?;
    let request = format!(
        "{line} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).map_err(Error::io("send a request"))?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).map_err(Error::io("read an answer"))?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// What users of four groups get, each request with the status that it is answered with.
#[test]
fn a_user_of_this_host_may_do_what_its_groups_may() {
    test("roles by group", |place| {
        let daemon = start(place, access(None))?;
        let bystander = Bystander::begin(&daemon.socket("nbd.sock"), "vm1")?;
        let socket = daemon.socket("control.sock");
        let requests = [
            ("GET /v1/status", ""),
            ("DELETE /v1/jobs/999", ""),
            ("POST /v1/disks/vm1/resize", "{\"size\": \"1MiB\", \"shrink\": \"vm1\"}"),
            ("DELETE /v1/disks/vm1?accept_loss=vm1", ""),
            ("POST /v1/pools/x/devices", "{\"path\": \"/dev/x\"}"),
        ];
        for (group, statuses) in [
            (None, [403, 403, 403, 403, 403]),
            (Some(NOBODY), [403, 403, 403, 403, 403]),
            (Some(READERS.1), [200, 403, 403, 403, 403]),
            (Some(OPERATORS.1), [200, 404, 403, 403, 403]),
            (Some(ADMINS.1), [200, 404, 409, 0, 404]),
        ] {
            for ((line, body), status) in requests.into_iter().zip(statuses) {
                // The bystander is to keep its disk.
                if status == 0 {
                    continue;
                }
                let answer = as_nobody(group, || asked(&socket, line, body))??;
                let expected = format!("HTTP/1.1 {status} ");
                check(answer.starts_with(&expected), format!("{line} as {group:?}: {answer}"))?;
            }
        }
        daemon.command(&["disk", "flush", "vm1"])?;
        let events = daemon.command(&["events"])?;
        check(events.contains("nobody (process"), format!("no audit events: {events}"))?;
        bystander.end().map(|_| ())
    });
}

/// A caller without a role and a reader hold all connections they can get: an admin can still connect.
#[test]
fn strangers_and_readers_take_no_places_of_others() {
    test("places by role", |place| {
        let daemon = start(place, access(None))?;
        let socket = daemon.socket("control.sock");
        let mut held = Vec::new();
        for group in [None, Some(READERS.1)] {
            held.extend(as_nobody(group, || (0..300).map(|_| connect(&socket)).collect::<Vec<_>>())?);
        }
        for _ in 0..3 {
            daemon.command(&["status"])?;
        }
        let answer = as_nobody(Some(OPERATORS.1), || asked(&socket, "GET /v1/jobs", ""))??;
        check(answer.starts_with("HTTP/1.1 200 "), format!("an operator is answered: {answer}"))?;
        drop(held);
        let answer = as_nobody(None, || asked(&socket, "GET /v1/jobs", ""))??;
        check(answer.starts_with("HTTP/1.1 403 "), format!("a stranger is answered: {answer}"))
    });
}

/// The command line of an operator and of a reader: an error says which role a command requires.
#[test]
fn the_command_line_says_which_role_is_missing() {
    test("command line with roles", |place| {
        let daemon = start(place, access(None))?;
        let program = place.path("haversack");
        let own = tools::own("haversack")?;
        std::fs::copy(own.get_program(), &program).map_err(Error::io("copy the command line"))?;
        let socket = daemon.socket("control.sock");
        let command = |group: u32, arguments: &[&str]| -> Result<Command> {
            let mut command = tools::tool("setpriv")?;
            command.args([
                format!("--reuid={NOBODY}"),
                format!("--regid={NOBODY}"),
                format!("--groups={group}"),
            ]);
            command.arg(&program).arg("--socket").arg(&socket).args(arguments);
            Ok(command)
        };
        for arguments in [
            &["status"][..],
            &["disk", "list"],
            &["disk", "show", "vm1"],
            &["pool", "status"],
            &["policy", "show"],
            &["--json", "status"],
            &["events"],
            &["policy", "log"],
            &["policy", "explain", "vm1"],
        ] {
            tools::run(command(READERS.1, arguments)?)?;
        }
        tools::run(command(OPERATORS.1, &["disk", "flush", "vm1"])?)?;
        for (group, arguments, word) in [
            (
                READERS.1,
                &["disk", "flush", "vm1"][..],
                "requires the role 'operator', but the caller has 'reader'",
            ),
            (OPERATORS.1, &["disk", "detach", "vm1", "--accept-loss", "vm1"], "requires the role 'admin'"),
            (NOBODY, &["status"], "requires the role 'reader', but the caller has none"),
        ] {
            let output = tools::output(command(group, arguments)?)?;
            let is_refused = !output.status.success() && output.stderr.contains(word);
            check(is_refused, format!("{arguments:?} as {group}: {output:?}"))?;
            check(output.stderr.contains("[access]"), format!("no hint: {output:?}"))?;
        }
        Ok(())
    });
}

/// Over TCP, the role is that of the certificate or the token. A certificate of another authority ends the handshake.
#[test]
fn a_machine_may_do_what_its_certificate_or_its_token_may() {
    test("roles by certificate", |place| {
        let names = ["localhost", "readers.example", "operators.example", "admins.example", "other.example"];
        let ours = Certificates::of_hosts(place, "ours", &names)?;
        let foreign = Certificates::of_hosts(place, "foreign", &names)?;
        let port = tools::free_port()?;
        let token = place.path("token");
        std::fs::write(&token, TOKEN).map_err(Error::io("the token"))?;
        let api = format!(
            "[api]\nlisten = \"127.0.0.1:{port}\"\ncertificate = {:?}\nkey = {:?}\nclient_ca = {:?}\ntoken_file = {token:?}\n",
            ours.path("localhost-cert.pem"),
            ours.path("localhost-key.pem"),
            ours.path("ca-cert.pem"),
        );
        let daemon = start(place, api + &access(Some("example")))?;
        let request = |from: Option<(&Certificates, &str)>, token: Option<&str>, method: &str, path: &str| {
            let mut curl = tools::tool("curl")?;
            curl.args(["--silent", "--show-error", "--max-time", "10", "--noproxy", "*", "--cacert"]);
            curl.arg(ours.path("ca-cert.pem"));
            if let Some((of, name)) = from {
                curl.arg("--cert").arg(of.path(&format!("{name}-cert.pem")));
                curl.arg("--key").arg(of.path(&format!("{name}-key.pem")));
            }
            if let Some(token) = token {
                curl.args(["--header", &format!("authorization: Bearer {token}")]);
            }
            curl.args(["--output", "/dev/null", "--write-out", "%{http_code}", "--request", method]);
            curl.arg(format!("https://localhost:{port}{path}"));
            Ok::<_, Error>(tools::output(curl)?.stdout)
        };
        let flush = "/v1/disks/vm1/flush";
        for (name, statuses) in [
            ("readers.example", ["200", "403", "403"]),
            ("operators.example", ["200", "202", "403"]),
            ("admins.example", ["200", "202", "404"]),
            ("other.example", ["401", "401", "401"]),
        ] {
            let requests = [("GET", "/v1/status"), ("POST", flush), ("DELETE", "/v1/pools/x/devices/0")];
            for ((method, path), expected) in requests.into_iter().zip(statuses) {
                let status = request(Some((&ours, name)), None, method, path)?;
                check(status == expected, format!("{method} {path} as {name}: {status}"))?;
            }
        }
        let with_token = request(Some((&ours, "readers.example")), Some(TOKEN), "POST", flush)?;
        check(with_token == "202", format!("the token beside a reader's certificate: {with_token}"))?;
        let token_alone = request(None, Some(TOKEN), "POST", flush)?;
        check(token_alone == "202", format!("the token alone: {token_alone}"))?;
        let nothing = request(None, None, "GET", "/v1/status")?;
        check(nothing == "401", format!("neither token nor certificate: {nothing}"))?;
        let stranger = request(Some((&foreign, "admins.example")), Some(TOKEN), "GET", "/v1/status")?;
        check(stranger == "000", format!("a certificate of another authority: {stranger}"))?;
        let events = daemon.command(&["events"])?;
        check(events.contains("operators.example (127.0.0.1): POST"), format!("audit: {events}"))
    });
}
