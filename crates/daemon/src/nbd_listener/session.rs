//! A negotiation, from the greeting to the agreed export.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::Instant;

use haversack_nbd::{Negotiated, ServerNegotiation, ServerStep, TlsPolicy};
use rustls::{ServerConnection, StreamOwned};

use super::Server;
use super::connection::{Client, Timed};
use super::exports::{Done, Offered};
use crate::daemon::Daemon;

impl Server {
    /// Negotiates with a client; `None` if the client ends the session.
    pub fn negotiate(
        &self,
        daemon: &Arc<Daemon>,
        client: Client,
        deadline: Instant,
    ) -> io::Result<Option<Done>> {
        let policy = match (&self.tls, &client) {
            (None, _) => TlsPolicy::Off,
            (Some(_), Client::Tcp(_)) if self.tls_required => TlsPolicy::Required,
            (Some(_), _) => TlsPolicy::Allowed,
        };
        let mut exports = Offered::new(daemon, deadline);
        let mut output = Vec::new();
        let mut session = Session { negotiation: ServerNegotiation::new(policy, &mut output) };
        let mut plain = Timed { client, deadline };
        plain.write_all(&output)?;
        match session.run(&mut plain, &mut exports)? {
            Step::Over => Ok(None),
            Step::Agreed(agreed) => Ok(Some(Done { agreed, exports, client: plain.client, tls: None })),
            Step::Tls => {
                let config = self.tls.clone().ok_or_else(|| io::Error::other("TLS without a certificate"))?;
                let connection = ServerConnection::new(config).map_err(io::Error::other)?;
                let mut stream = StreamOwned::new(connection, plain);
                match session.run(&mut stream, &mut exports)? {
                    Step::Agreed(agreed) => {
                        let (connection, Timed { client, .. }) = stream.into_parts();
                        Ok(Some(Done { agreed, exports, client, tls: Some(Box::new(connection)) }))
                    }
                    Step::Over => Ok(None),
                    Step::Tls => Err(io::Error::other("TLS within TLS")),
                }
            }
        }
    }
}

/// A negotiation, with or without TLS.
struct Session {
    negotiation: ServerNegotiation,
}

enum Step {
    Agreed(Box<Negotiated>),
    Tls,
    Over,
}

impl Session {
    fn run(&mut self, stream: &mut (impl Read + Write), exports: &mut Offered) -> io::Result<Step> {
        let mut buffer = vec![0; 8192];
        let mut output = Vec::new();
        loop {
            // Reading no more than wanted leaves no bytes over that belong to TLS or the transmission phase.
            let wanted = self.negotiation.wanted_bytes().min(buffer.len());
            let count = match stream.read(&mut buffer[..wanted]) {
                Ok(0) => return Ok(Step::Over),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            output.clear();
            let step = self
                .negotiation
                .receive(&mut &buffer[..count], exports, &mut output)
                .map_err(io::Error::other)?;
            stream.write_all(&output)?;
            stream.flush()?;
            match step {
                ServerStep::Continue => {}
                ServerStep::StartTls => return Ok(Step::Tls),
                ServerStep::Transmission(agreed) => return Ok(Step::Agreed(agreed)),
                ServerStep::Aborted => return Ok(Step::Over),
            }
        }
    }
}
