//! Connections made by other hosts.
//!
//! Invariants
//! - At most [`HANDSHAKES`] peers are in their handshake, each for at most [`HANDSHAKE_TIME`].
//! - A peer is accepted as a host only if its certificate is valid for that host's name.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use crate::config::host_id;
use crate::connection::{self, Peer, Stream};
use crate::error::ConnectionError;
use crate::greeting::{Greeting, GreetingError};
use crate::host::Host;
use crate::links::Shared;
use crate::tls;
use crate::wire::VERSION;

/// The most connections in their handshake.
pub(crate) const HANDSHAKES: usize = 64;
/// How long TLS handshake and greeting may take together.
pub(crate) const HANDSHAKE_TIME: Duration = Duration::from_secs(5);
/// The pause when no connection can be accepted, for example for lack of file descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Accepts connections, forever.
pub(crate) async fn listen(shared: Arc<Shared>, listener: TcpListener, places: Arc<Semaphore>) {
    loop {
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                shared.refuse(format!("cannot accept a connection: {error}"));
                sleep(PAUSE).await;
                continue;
            }
        };
        let Ok(place) = places.clone().try_acquire_owned() else {
            shared.refuse(format!("{from}: {HANDSHAKES} connections are in their handshake already"));
            continue;
        };
        let shared = shared.clone();
        tokio::spawn(async move {
            let greeted = timeout(HANDSHAKE_TIME, greet(&shared, stream, from)).await;
            drop(place);
            let late = ConnectionError::HandshakeTime(HANDSHAKE_TIME.as_secs());
            match greeted.unwrap_or(Err(late)) {
                Ok((host, peer)) => {
                    let error = connection::run(&shared, &host, peer).await;
                    shared.failed(&host, &error);
                }
                Err(error) => shared.refuse(format!("{from}: {error}")),
            }
        });
    }
}

type Greeted = (Arc<Host>, Peer);

async fn greet(shared: &Shared, stream: TcpStream, from: SocketAddr) -> Result<Greeted, ConnectionError> {
    connection::prepare(&stream).map_err(ConnectionError::Io)?;
    let (mut stream, certificate): (Box<dyn Stream>, _) = match shared.credentials() {
        None => (Box::new(stream), None),
        Some(credentials) => {
            let stream = TlsAcceptor::from(credentials.server).accept(stream).await;
            let stream = stream.map_err(ConnectionError::Tls)?;
            let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
            let shown = shown.ok_or(ConnectionError::NoCertificate)?.clone().into_owned();
            (Box::new(stream), Some(shown))
        }
    };
    let (version, answer) = match Greeting::read(&mut stream).await {
        Ok((version, greeting)) => (version, check(shared, greeting, certificate.as_ref(), from)),
        Err(error) => (VERSION, Err(error.into())),
    };
    match answer {
        Ok(host) => {
            let hello = Greeting::Hello { name: shared.name.clone(), peer: host.name.clone() };
            hello.send(version, &mut stream).await?;
            Ok((host, Peer { stream, version }))
        }
        Err(error) => {
            // The peer may be gone, or may not understand it.
            let _ = Greeting::Refusal { why: error.to_string() }.send(version, &mut stream).await;
            let _ = stream.shutdown().await;
            Err(error)
        }
    }
}

/// Returns the host that sends the greeting. If it is not accepted, the reason is also kept in its state.
fn check(
    shared: &Shared,
    greeting: Greeting,
    certificate: Option<&CertificateDer<'_>>,
    from: SocketAddr,
) -> Result<Arc<Host>, ConnectionError> {
    let (name, wanted) = match greeting {
        Greeting::Hello { name, peer } => (name, peer),
        Greeting::Refusal { why } => return Err(GreetingError::Refused(why).into()),
    };
    let Some(host) = shared.hosts.get(&host_id(&name)).filter(|host| host.name == name) else {
        return Err(GreetingError::Unknown(name).into());
    };
    match is_welcome(shared, host, wanted, certificate) {
        Ok(()) => Ok(host.clone()),
        Err(error) => {
            host.failed(format!("{from}: {error}"));
            Err(error)
        }
    }
}

fn is_welcome(
    shared: &Shared,
    host: &Host,
    wanted: String,
    certificate: Option<&CertificateDer<'_>>,
) -> Result<(), ConnectionError> {
    let name = host.name.clone();
    if let Some(certificate) = certificate {
        let other = |source| ConnectionError::OtherName { name: name.clone(), source };
        tls::is_for(certificate, &name).map_err(other)?;
    }
    if wanted != shared.name {
        return Err(GreetingError::NotMe { name, wanted, me: shared.name.clone() }.into());
    }
    if host.connects {
        return Err(GreetingError::WrongDirection(name).into());
    }
    Ok(())
}
