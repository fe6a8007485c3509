//! TLS clients that are slow, or do not speak TLS at all.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use haversack_e2e::certificates::Certificates;
use haversack_e2e::error::check;
use haversack_e2e::verify::Bystander;
use haversack_e2e::{Error, Result, test};

use crate::nbd::{NEGOTIATION, SLACK, attacked, connect, is_closed_by};

/// A handshake record of 512 bytes, and a hello of 508: complete after much longer than a negotiation may take.
const HELLO: [u8; 9] = [22, 3, 1, 2, 0, 1, 0, 1, 0xfc];
const BYTE_EVERY: Duration = Duration::from_millis(100);

/// Every byte comes in time, but all of them would take a minute.
#[test]
fn a_hello_sent_byte_by_byte_has_the_deadline_of_the_negotiation() {
    test("a slow TLS hello", |place| {
        let certificates = Certificates::make(place, "tls")?;
        let tls = format!(
            "tls_certificate = {:?}\ntls_key = {:?}\ntls_required = true\n",
            certificates.path("server-cert.pem"),
            certificates.path("server-key.pem")
        );
        let (daemon, port) = attacked(place, &tls)?;
        let bystander = Bystander::begin(&daemon.socket("nbd.sock"), "quiet")?;
        let start = Instant::now();
        let mut stream = connect(port)?;
        start_tls(&mut stream)?;
        for at in 0..600 {
            if stream.write_all(&[HELLO.get(at).copied().unwrap_or(0)]).is_err() {
                break;
            }
            let taken = start.elapsed();
            check(taken < NEGOTIATION + SLACK, format!("the handshake goes on after {taken:?}"))?;
            std::thread::sleep(BYTE_EVERY);
        }
        check(start.elapsed() > NEGOTIATION, "closed before its time".to_owned())?;
        bystander.end().map(|_| ())
    });
}

/// Nothing at all, and what is no TLS.
#[test]
fn silence_and_nonsense_after_starttls_end() {
    test("no TLS after STARTTLS", |place| {
        let certificates = Certificates::make(place, "tls")?;
        let tls = format!(
            "tls_certificate = {:?}\ntls_key = {:?}\n",
            certificates.path("server-cert.pem"),
            certificates.path("server-key.pem")
        );
        let (daemon, port) = attacked(place, &tls)?;
        let bystander = Bystander::begin(&daemon.socket("nbd.sock"), "quiet")?;
        let start = Instant::now();
        let (mut silent, mut nonsense) = (connect(port)?, connect(port)?);
        start_tls(&mut silent)?;
        start_tls(&mut nonsense)?;
        nonsense.write_all(&[0x25; 4096]).map_err(Error::io("write"))?;
        for stream in [&mut nonsense, &mut silent] {
            check(is_closed_by(stream, start + NEGOTIATION + SLACK), "it goes on".to_owned())?;
        }
        bystander.end().map(|_| ())
    });
}

/// Up to the server's consent to TLS.
fn start_tls(stream: &mut (impl Read + Write)) -> Result<()> {
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting).map_err(Error::io("the greeting"))?;
    let mut option = 3u32.to_be_bytes().to_vec();
    option.extend(b"IHAVEOPT");
    option.extend(5u32.to_be_bytes());
    option.extend(0u32.to_be_bytes());
    stream.write_all(&option).map_err(Error::io("write"))?;
    let mut reply = [0; 20];
    stream.read_exact(&mut reply).map_err(Error::io("the reply"))?;
    check(reply[12..16] == 1u32.to_be_bytes(), format!("STARTTLS is answered with {reply:02x?}"))
}
