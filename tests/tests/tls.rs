//! TLS on every way into the daemon and out of it: NBD clients, NBD origins, the control API over TCP.

use std::path::Path;
use std::process::Command;

use haversack_e2e::certificates::Certificates;
use haversack_e2e::error::check;
use haversack_e2e::haversack::{Disk, Haversack, Settings};
use haversack_e2e::process::Process;
use haversack_e2e::tools::{self, Output};
use haversack_e2e::{Error, Place, Result, clients, image, scenario, test};

/// Fails unless something failed, and said all of `words`.
fn refused<T>(what: &str, outcome: Result<T>, words: &[&str]) -> Result<()> {
    let Err(error) = outcome else { return Err(Error::Check(format!("{what} was not refused"))) };
    let text = error.to_string();
    let missing = words.iter().find(|word| !text.contains(**word));
    missing.map_or(Ok(()), |word| Err(Error::Check(format!("{what}: {word:?} is not in: {text}"))))
}

/// The `[nbd]` lines of a server with TLS on `port`, and on the usual Unix socket.
fn listen(place: &Place, port: u16, certificates: &Certificates) -> String {
    format!(
        "listen = [\"unix:{}\", \"tcp:127.0.0.1:{port}\"]\ntls_certificate = {:?}\ntls_key = {:?}\n",
        place.path("run/nbd.sock").display(),
        certificates.path("server-cert.pem"),
        certificates.path("server-key.pem")
    )
}

fn uri(port: u16, trust: &Path) -> String {
    format!("nbds://localhost:{port}/vm1?tls-certificates={}", trust.display())
}

#[test]
fn nbd_clients_use_tls_and_plain_ones_are_refused() {
    test("NBD clients over TLS", |place| {
        let (ours, foreign) = (Certificates::make(place, "ours")?, Certificates::make(place, "foreign")?);
        let file = image::pattern(place, "vm1.img", "vm1", 64)?;
        let port = tools::free_port()?;
        let mut settings = Settings::new(256, vec![Disk::new("vm1", file.display().to_string())]);
        settings.nbd = listen(place, port, &ours) + "tls_required = true\n";
        let daemon = Haversack::start(place, settings)?;

        let info = clients::nbdinfo(&uri(port, ours.directory()))?;
        check(info["TLS"] == true, format!("no TLS: {info}"))?;
        refused("a plain client", clients::nbdinfo(&format!("nbd://localhost:{port}/vm1")), &["TLS"])?;
        refused("a certificate of strangers", clients::nbdinfo(&uri(port, foreign.directory())), &[])?;
        check(clients::nbdinfo(&daemon.uri("vm1"))?["TLS"] == false, "TLS on the Unix socket")?;
        place.say("who may come in comes in");

        let (copy, source) = (place.path("copy.img"), image::pattern(place, "source.img", "vm2", 64)?);
        clients::download(&uri(port, ours.directory()), &copy)?;
        scenario::same_digest(&copy, &image::digest(&file)?)?;
        clients::nbdcopy(&source.display().to_string(), &uri(port, ours.directory()))?;
        clients::compare(&daemon.uri("vm1"), &source.display().to_string())?;
        daemon.command(&["disk", "flush", "vm1"])?;
        scenario::same_digest(&file, &image::digest(&source)?)
    });
}

#[test]
fn nbd_clients_show_a_certificate_where_that_is_wanted() {
    test("NBD clients with certificates", |place| {
        let (ours, foreign) = (Certificates::make(place, "ours")?, Certificates::make(place, "foreign")?);
        let file = image::pattern(place, "vm1.img", "vm1", 16)?;
        let port = tools::free_port()?;
        let mut settings = Settings::new(64, vec![Disk::new("vm1", file.display().to_string())]);
        settings.nbd = listen(place, port, &ours)
            + &format!("tls_required = true\ntls_client_ca = {:?}\n", ours.path("ca-cert.pem"));
        let _daemon = Haversack::start(place, settings)?;
        clients::nbdinfo(&uri(port, ours.directory()))?;

        // These clients trust the server, but show no certificate, or one of another authority.
        let (nothing, strange) = (place.path("nothing"), place.path("strange"));
        for directory in [&nothing, &strange] {
            std::fs::create_dir(directory).map_err(Error::io("a directory"))?;
            std::fs::copy(ours.path("ca-cert.pem"), directory.join("ca-cert.pem"))
                .map_err(Error::io("a certificate"))?;
        }
        for name in ["client-cert.pem", "client-key.pem"] {
            std::fs::copy(foreign.path(name), strange.join(name)).map_err(Error::io("a certificate"))?;
        }
        refused("a client without a certificate", clients::nbdinfo(&uri(port, &nothing)), &[])?;
        refused("a stranger's certificate", clients::nbdinfo(&uri(port, &strange)), &[])
    });
}

/// nbdkit on a TCP port that takes TLS alone, and only clients with certificates.
fn nbdkit_with_tls(place: &Place, file: &Path, port: u16, certificates: &Certificates) -> Result<Process> {
    let ready = place.path("origin.pid");
    // Of an earlier one that was killed.
    let _ = std::fs::remove_file(&ready);
    let mut nbdkit = tools::tool("nbdkit")?;
    nbdkit.args(["--foreground", "--ip-addr", "127.0.0.1", "--port", &port.to_string()]);
    nbdkit.args(["--tls=require", "--tls-verify-peer"]);
    nbdkit.arg(format!("--tls-certificates={}", certificates.directory().display()));
    nbdkit.arg("--pidfile").arg(&ready).arg("file").arg(file);
    let mut process = Process::start(place, "origin", &nbdkit)?;
    process.wait_for_file(&ready)?;
    Ok(process)
}

#[test]
fn an_origin_over_tls() {
    test("nbds:// origin", |place| {
        let (ours, foreign) = (Certificates::make(place, "ours")?, Certificates::make(place, "foreign")?);
        let file = image::zeroes(place, "origin.img", 32)?;
        let port = tools::free_port()?;
        let origin = nbdkit_with_tls(place, &file, port, &ours)?;
        // nbdkit serves its disk under every name.
        let server = |name: &str| format!("nbds://localhost:{port}/{name}");
        let tls = |trust: &Certificates, show: &Certificates| {
            format!(
                "origin_tls = {{ ca = {:?}, certificate = {:?}, key = {:?} }}\norigin_wait = \"10min\"",
                trust.path("ca-cert.pem"),
                show.path("client-cert.pem"),
                show.path("client-key.pem")
            )
        };
        let daemon = Haversack::start(
            place,
            Settings::new(
                64,
                vec![
                    Disk {
                        mode: "wt".to_owned(),
                        ..Disk::new("vm1", server("vm1")).with(&tls(&ours, &ours))
                    },
                    Disk::new("vm2", server("vm2")).with(&tls(&foreign, &ours)).unattachable(),
                    Disk::new("vm3", server("vm3")).with(&tls(&ours, &foreign)).unattachable(),
                ],
            ),
        )?;
        daemon.wait_for_log(&["not attached", "vm2", "certificate"])?;
        daemon.wait_for_log(&["not attached", "vm3", "certificate"])?;
        place.say("strangers are not trusted, and not served");

        clients::fio_verify(&daemon.uri("vm1"), 32)?;
        origin.kill()?;
        let _back = nbdkit_with_tls(place, &file, port, &ours)?;
        let source = image::pattern(place, "source.img", "vm1", 32)?;
        clients::nbdcopy(&source.display().to_string(), &daemon.uri("vm1"))?;
        daemon.command(&["disk", "flush", "vm1"])?;
        scenario::same_digest(&file, &image::digest(&source)?)
    });
}

/// What curl gets from a URL: how it ended, and the status code at the end of what it prints.
fn curl(arguments: &[&str], url: &str) -> Result<Output> {
    let mut curl: Command = tools::tool("curl")?;
    curl.args(["--silent", "--show-error", "--max-time", "10", "--noproxy", "*"]);
    curl.args(["--write-out", "\n%{http_code}"]).args(arguments).arg(url);
    tools::output(curl)
}

/// Fails unless the answer has this status code and contains `word`.
fn answers(output: &Output, code: &str, word: &str) -> Result<()> {
    let right = output.stdout.ends_with(&format!("\n{code}")) && output.stdout.contains(word);
    check(right, format!("expected {code} and {word:?}, got {output:?}"))
}

#[test]
fn the_api_over_tcp_wants_tls_and_the_token() {
    test("API over TCP", |place| {
        let certificates = Certificates::make(place, "tls")?;
        let file = image::zeroes(place, "vm1.img", 16)?;
        let (port, metrics) = (tools::free_port()?, tools::free_port()?);
        let token = place.path("token");
        std::fs::write(&token, "correct-horse-battery-staple\n").map_err(Error::io("the token"))?;
        let mut settings = Settings::new(64, vec![Disk::new("vm1", file.display().to_string())]);
        settings.daemon = format!("metrics_listen = \"127.0.0.1:{metrics}\"\n");
        settings.more = format!(
            "[api]\nlisten = \"127.0.0.1:{port}\"\ncertificate = {:?}\nkey = {:?}\ntoken_file = {token:?}\n",
            certificates.path("server-cert.pem"),
            certificates.path("server-key.pem")
        );
        let _daemon = Haversack::start(place, settings)?;

        let ca = certificates.path("ca-cert.pem").display().to_string();
        let with = |header: &str| {
            curl(&["--cacert", &ca, "--header", header], &format!("https://localhost:{port}/v1/disks/vm1"))
        };
        answers(&with("Authorization: Bearer correct-horse-battery-staple")?, "200", "\"vm1\"")?;
        answers(&with("Accept: */*")?, "401", "unauthorized")?;
        answers(&with("Authorization: Bearer correct-horse-battery-stapler")?, "401", "unauthorized")?;
        answers(&with("Authorization: Bearer ")?, "401", "unauthorized")?;
        answers(&with("Authorization: correct-horse-battery-staple")?, "401", "unauthorized")?;
        // A browser's credentials: it sends them for any page that is open in it.
        let basic = "Authorization: Basic bWU6Y29ycmVjdC1ob3JzZS1iYXR0ZXJ5LXN0YXBsZQ==";
        answers(&with(basic)?, "200", "\"vm1\"")?;
        let from_page = |more: &[&str], path: &str| {
            let arguments = [&["--cacert", &ca, "--header", basic], more].concat();
            curl(&arguments, &format!("https://localhost:{port}{path}"))
        };
        answers(&from_page(&[], "/")?, "200", "Haversack")?;
        answers(&from_page(&["--request", "POST"], "/v1/stop")?, "401", "unauthorized")?;
        let elsewhere = ["--header", "Sec-Fetch-Site: cross-site"];
        answers(&from_page(&elsewhere, "/v1/status")?, "403", "forbidden")?;
        let bare = |path: &str| curl(&["--cacert", &ca], &format!("https://localhost:{port}{path}"));
        answers(&bare("/metrics")?, "401", "unauthorized")?;
        answers(&bare("/nowhere")?, "401", "unauthorized")?;
        let unknown = curl(&[], &format!("https://localhost:{port}/v1/status"))?;
        check(!unknown.status.success(), "curl trusts a certificate of nobody")?;
        let plain = curl(&[], &format!("http://localhost:{port}/v1/status"))?;
        check(!plain.status.success() && !plain.stdout.contains("vm1"), format!("plain TCP: {plain:?}"))?;

        let metrics = |path: &str| curl(&[], &format!("http://127.0.0.1:{metrics}{path}"));
        answers(&metrics("/metrics")?, "200", "haversack_")?;
        answers(&metrics("/readyz")?, "200", "ok")?;
        answers(&metrics("/")?, "404", "not-found")?;
        answers(&metrics("/v1/status")?, "404", "not-found")
    });
}
