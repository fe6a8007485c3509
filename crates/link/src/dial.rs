//! Connecting to a host, repeatedly.

use std::time::Duration;

use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::TlsConnector;

use crate::accept::HANDSHAKE_TIME;
use crate::connection::{self, Peer, Stream};
use crate::error::ConnectionError;
use crate::greeting::{Greeting, GreetingError};
use crate::host::Host;
use crate::links::Shared;
use crate::wire::VERSION;

const CONNECT_TIME: Duration = Duration::from_secs(5);
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Keeps the connection to a host up, forever. Pauses between attempts double, up to [`LONGEST_PAUSE`], and are short
/// again after a connection that lasted longer than that. A peer that supports only an older version is greeted in
/// that version.
pub(crate) async fn keep(shared: &Shared, host: &Host) {
    let mut pause = SHORTEST_PAUSE;
    let mut version = VERSION;
    loop {
        let error = match dial(shared, host, std::mem::replace(&mut version, VERSION)).await {
            Ok(peer) => {
                let connected_at = Instant::now();
                let error = connection::run(shared, host, peer).await;
                if connected_at.elapsed() > LONGEST_PAUSE {
                    pause = SHORTEST_PAUSE;
                }
                error
            }
            Err(ConnectionError::Greeting(GreetingError::Older(older))) => {
                version = older;
                continue;
            }
            Err(error) => error,
        };
        shared.failed(host, &error);
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

async fn dial(shared: &Shared, host: &Host, version: u32) -> Result<Peer, ConnectionError> {
    let late = |_| ConnectionError::ConnectTime(CONNECT_TIME.as_secs());
    let stream = timeout(CONNECT_TIME, TcpStream::connect(&host.address)).await.map_err(late)?;
    let stream = stream.map_err(ConnectionError::Connect)?;
    connection::prepare(&stream).map_err(ConnectionError::Connect)?;
    let late = |_| ConnectionError::HandshakeTime(HANDSHAKE_TIME.as_secs());
    timeout(HANDSHAKE_TIME, greet(shared, host, stream, version)).await.map_err(late)?
}

async fn greet(
    shared: &Shared,
    host: &Host,
    stream: TcpStream,
    version: u32,
) -> Result<Peer, ConnectionError> {
    let mut stream: Box<dyn Stream> = match shared.credentials() {
        None => Box::new(stream),
        Some(credentials) => {
            let name = ServerName::try_from(host.name.clone()).expect("names were checked at the start");
            let connector = TlsConnector::from(credentials.client);
            Box::new(connector.connect(name, stream).await.map_err(ConnectionError::Tls)?)
        }
    };
    let hello = Greeting::Hello { name: shared.name.clone(), peer: host.name.clone() };
    hello.send(version, &mut stream).await?;
    let (answered, greeting) = Greeting::read(&mut stream).await?;
    match greeting {
        Greeting::Refusal { .. } if answered < version => Err(GreetingError::Older(answered).into()),
        Greeting::Refusal { why } => Err(GreetingError::Refused(why).into()),
        Greeting::Hello { .. } if answered != version => Err(GreetingError::Version(answered).into()),
        Greeting::Hello { name, .. } if name != host.name => {
            Err(GreetingError::OtherPeer { found: name, expected: host.name.clone() }.into())
        }
        Greeting::Hello { name, peer } if peer != shared.name => {
            let me = shared.name.clone();
            Err(GreetingError::NotMe { name, wanted: peer, me }.into())
        }
        Greeting::Hello { .. } => Ok(Peer { stream, version: answered }),
    }
}
