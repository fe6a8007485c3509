//! Many, slow or unauthorized clients of the control API and of the metrics port.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use haversack_e2e::certificates::Certificates;
use haversack_e2e::error::check;
use haversack_e2e::haversack::{Disk, Haversack, Settings};
use haversack_e2e::verify::Bystander;
use haversack_e2e::{Error, Place, Result, image, test, tools};

use crate::nbd::{SLACK, is_closed_by, threads};

/// The time for a request, here.
const REQUEST: Duration = Duration::from_secs(2);
/// How long a command of the CLI may take during an attack.
const PROMPT: Duration = Duration::from_secs(10);
const TOKEN: &str = "a-token-that-nobody-guesses";
const HALF: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: x\r\n";

struct Ports {
    api: u16,
    metrics: u16,
}

fn attacked<'a>(place: &'a Place) -> Result<(Haversack<'a>, Ports)> {
    let certificates = Certificates::make(place, "tls")?;
    let file = image::zeroes(place, "quiet.img", 64)?;
    let mut settings = Settings::new(128, vec![Disk::new("quiet", file.display().to_string())]);
    let ports = Ports { api: tools::free_port()?, metrics: tools::free_port()? };
    let token = place.path("token");
    std::fs::write(&token, TOKEN).map_err(Error::io("the token"))?;
    settings.daemon = format!(
        "request_time = \"{}s\"\nmetrics_listen = \"127.0.0.1:{}\"\n\
         [api]\nlisten = \"127.0.0.1:{}\"\ncertificate = {:?}\nkey = {:?}\ntoken_file = {token:?}\n",
        REQUEST.as_secs(),
        ports.metrics,
        ports.api,
        certificates.path("server-cert.pem"),
        certificates.path("server-key.pem"),
    );
    Ok((Haversack::start(place, settings)?, ports))
}

fn connect(port: u16) -> Result<TcpStream> {
    let stream = TcpStream::connect(("127.0.0.1", port)).map_err(Error::io("connect"))?;
    stream.set_read_timeout(Some(REQUEST + SLACK)).map_err(Error::io("set a time-out"))?;
    Ok(stream)
}

fn at_the_socket(daemon: &Haversack) -> Result<UnixStream> {
    let stream = UnixStream::connect(daemon.socket("control.sock")).map_err(Error::io("connect"))?;
    stream.set_read_timeout(Some(REQUEST + SLACK)).map_err(Error::io("set a time-out"))?;
    Ok(stream)
}

/// Sends a request in pieces, and returns all that is answered.
fn asked(mut stream: impl Read + Write, pieces: &[&[u8]], pause: Duration) -> String {
    for piece in pieces {
        if stream.write_all(piece).is_err() {
            break;
        }
        std::thread::sleep(pause);
    }
    let mut answer = Vec::new();
    // Whatever was received before an error is returned.
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

fn the_cli_works(daemon: &Haversack) -> Result<()> {
    let start = Instant::now();
    daemon.command(&["status"])?;
    let taken = start.elapsed();
    check(taken < PROMPT, format!("'haversack status' took {taken:?}"))
}

#[test]
fn half_requests_keep_nobody_from_the_control_socket() {
    test("half requests", |place| {
        let (daemon, ports) = attacked(place)?;
        let bystander = Bystander::begin(&daemon.socket("nbd.sock"), "quiet")?;
        // The system's default limit on descriptors.
        daemon.process()?.limit_descriptors(1024)?;
        let start = Instant::now();
        let mut half = Vec::new();
        for at in 0..1200 {
            let mut stream = connect(if at % 2 == 0 { ports.metrics } else { ports.api })?;
            // The server may already have closed a connection that it refused.
            let _ = stream.write_all(HALF);
            half.push(stream);
        }
        the_cli_works(&daemon)?;
        check(threads(&daemon)? < 64, format!("{} threads", threads(&daemon)?))?;
        for stream in &mut half {
            check(is_closed_by(stream, start + REQUEST + 2 * SLACK), "a half request stays".to_owned())?;
        }
        let metrics = asked(connect(ports.metrics)?, &[HALF, b"connection: close\r\n\r\n"], Duration::ZERO);
        check(metrics.contains("haversack_build_info"), format!("no metrics afterwards: {metrics}"))?;
        bystander.end().map(|_| ())
    });
}

/// Each byte arrives in time, but the whole takes too long: heads, bodies, and a TLS hello.
#[test]
fn a_trickle_has_one_deadline() {
    test("requests byte by byte", |place| {
        let (daemon, ports) = attacked(place)?;
        let bystander = Bystander::begin(&daemon.socket("nbd.sock"), "quiet")?;
        let pause = Duration::from_millis(100);
        let head = |length: usize| {
            format!(
                "POST /v1/disks HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
            )
        };
        let trickle = [&b"x"[..]; 100];
        let slow_head = [&[HALF], &trickle[..]].concat();
        let body = head(1000);
        let slow_body = [&[body.as_bytes()], &trickle[..]].concat();
        let hello = [&[&[22u8, 3, 1, 2, 0, 1, 0, 1, 0xfc][..]], &trickle[..]].concat();
        for (what, port, pieces) in [
            ("a head", Some(ports.metrics), slow_head),
            ("a body", None, slow_body),
            ("a TLS hello", Some(ports.api), hello),
        ] {
            let start = Instant::now();
            let answer = match port {
                Some(port) => asked(connect(port)?, &pieces, pause),
                None => asked(at_the_socket(&daemon)?, &pieces, pause),
            };
            let taken = start.elapsed();
            check(taken < REQUEST + SLACK, format!("{what} was waited for {taken:?}: {answer}"))?;
            check(port.is_some() || answer.contains("too-slow"), format!("{what}: {answer}"))?;
        }
        bystander.end().map(|_| ())
    });
}

#[test]
fn huge_heads_and_bodies_are_refused() {
    test("huge requests", |place| {
        let (daemon, ports) = attacked(place)?;
        let bystander = Bystander::begin(&daemon.socket("nbd.sock"), "quiet")?;
        let request = "POST /v1/disks HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n";
        let told = format!("{request}content-length: 1000000000000\r\n\r\n");
        let piece = vec![b'['; 1 << 20];
        let pieces: Vec<&[u8]> = [told.as_bytes()].into_iter().chain([&piece[..]; 8]).collect();
        let answer = asked(at_the_socket(&daemon)?, &pieces, Duration::ZERO);
        check(answer.contains(" 413 ") || answer.is_empty(), format!("a huge body: {answer}"))?;
        let chunked = format!("{request}transfer-encoding: chunked\r\n\r\n");
        let chunk = [b"100000\r\n", &piece[..], b"\r\n"].concat();
        let pieces: Vec<&[u8]> = [chunked.as_bytes()].into_iter().chain([&chunk[..]; 8]).collect();
        let answer = asked(at_the_socket(&daemon)?, &pieces, Duration::ZERO);
        check(answer.contains(" 413 ") || answer.is_empty(), format!("a chunked body: {answer}"))?;
        let answer = asked(connect(ports.metrics)?, &[HALF, &vec![b'x'; 8 << 20]], Duration::ZERO);
        check(!answer.contains(" 200 "), format!("a huge head: {answer}"))?;
        the_cli_works(&daemon)?;
        bystander.end().map(|_| ())
    });
}

/// With no token, only metrics are accessible; with a wrong one, nothing is.
#[test]
fn strangers_get_no_access() {
    test("wrong roles", |place| {
        let (daemon, ports) = attacked(place)?;
        let request = |line: &str| {
            format!("{line} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
        };
        for line in [
            "GET /v1/status",
            "POST /v1/stop",
            "DELETE /v1/disks/quiet",
            "POST /metrics",
            "GET /openapi.json",
        ] {
            let answer = asked(connect(ports.metrics)?, &[request(line).as_bytes()], Duration::ZERO);
            check(
                answer.contains(" 404 ") || answer.contains(" 405 "),
                format!("{line} at the metrics' port: {answer}"),
            )?;
            let answer = asked(connect(ports.api)?, &[request(line).as_bytes()], Duration::ZERO);
            check(!answer.contains("HTTP/1.1 2"), format!("{line} without TLS: {answer}"))?;
        }
        for token in [None, Some(""), Some("Bearer"), Some(&TOKEN[1..]), Some(&TOKEN.to_uppercase()[..])] {
            let status = with_token(ports.api, token)?;
            check(status == "401", format!("the token {token:?} is answered with {status}"))?;
        }
        check(with_token(ports.api, Some(TOKEN))? == "200", "the token is refused".to_owned())?;
        the_cli_works(&daemon)
    });
}

/// The status of `GET /v1/status` over TLS.
fn with_token(port: u16, token: Option<&str>) -> Result<String> {
    let mut curl = tools::tool("curl")?;
    curl.args(["--silent", "--insecure", "--output", "/dev/null", "--write-out", "%{http_code}"]);
    if let Some(token) = token {
        curl.args(["--header", &format!("authorization: Bearer {token}")]);
    }
    tools::run({
        curl.arg(format!("https://127.0.0.1:{port}/v1/status"));
        curl
    })
}

/// The answers pile up in the daemon only as far as sockets take them.
#[test]
fn answers_that_nobody_reads_end() {
    test("unread answers", |place| {
        let (daemon, ports) = attacked(place)?;
        let bystander = Bystander::begin(&daemon.socket("nbd.sock"), "quiet")?;
        let ask = b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n";
        let start = Instant::now();
        let mut stream = connect(ports.metrics)?;
        stream.set_write_timeout(Some(REQUEST + SLACK)).map_err(Error::io("set a time-out"))?;
        while stream.write_all(ask).is_ok() {
            check(start.elapsed() < 10 * REQUEST, "questions are taken for ever".to_owned())?;
        }
        check(is_closed_by(&mut stream, start + 10 * REQUEST), "the connection stays".to_owned())?;
        the_cli_works(&daemon)?;
        bystander.end().map(|_| ())
    });
}

/// One process uses up its connections to the control socket. The CLI, another process, gets through; one connection
/// too many is refused with a reason.
#[test]
fn idle_connections_to_the_control_socket_leave_places() {
    test("idle control connections", |place| {
        let (daemon, _) = attacked(place)?;
        let start = Instant::now();
        let mut idle = (0..300).map(|_| at_the_socket(&daemon)).collect::<Result<Vec<_>>>()?;
        the_cli_works(&daemon)?;
        let answer = asked(idle.pop().expect("many"), &[], Duration::ZERO);
        check(answer.contains("503") && answer.contains("accepts no more"), format!("told: {answer}"))?;
        for stream in &mut idle {
            check(is_closed_by(stream, start + REQUEST + 2 * SLACK), "an idle connection stays".to_owned())?;
        }
        Ok(())
    });
}

/// The daemon is paused (SIGSTOP): the command reports in time that it does not answer.
#[test]
fn the_cli_does_not_wait_for_ever() {
    test("a daemon that does not answer", |place| {
        let (daemon, _) = attacked(place)?;
        daemon.process()?.pause()?;
        let start = Instant::now();
        let refused = daemon.command(&["--timeout", "1s", "status"]);
        daemon.process()?.resume()?;
        let text = refused.err().map(|error| error.to_string()).unwrap_or_default();
        check(text.contains("has not answered within 1s"), format!("the CLI says: {text}"))?;
        check(start.elapsed() < Duration::from_secs(1) + SLACK, format!("after {:?}", start.elapsed()))?;
        the_cli_works(&daemon)
    });
}
