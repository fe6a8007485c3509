//! Daemons between which disks move, as if each were on a host of its own.

use std::net::{SocketAddr, TcpListener};

use crate::certificates::Certificates;
use crate::{Error, Place, Result};

/// What each host's configuration says of the others.
#[derive(Debug)]
pub struct Hosts {
    certificates: Certificates,
    hosts: Vec<(String, SocketAddr)>,
}

impl Hosts {
    /// Makes addresses and certificates for hosts of these names.
    ///
    /// # Errors
    /// If they cannot be made.
    pub fn new(place: &Place, names: &[&str]) -> Result<Self> {
        let certificates = Certificates::of_hosts(place, "hosts", names)?;
        let listen = |name: &&str| {
            let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
            Ok(((*name).to_owned(), free.map_err(Error::io("a free port"))?))
        };
        Ok(Self { certificates, hosts: names.iter().map(listen).collect::<Result<_>>()? })
    }

    /// The tables of a host's configuration, for the end of its file.
    pub fn tables(&self, me: &str) -> String {
        let file = |name: String| self.certificates.path(&name).display().to_string();
        let mut text = String::new();
        for (name, address) in &self.hosts {
            if name == me {
                text += &format!(
                    "\n[migration]\nname = \"{me}\"\nlisten = [\"{address}\"]\ncertificate = {:?}\nkey = {:?}\n\
                     authority = {:?}\n",
                    file(format!("{me}-cert.pem")),
                    file(format!("{me}-key.pem")),
                    file("ca-cert.pem".into()),
                );
            } else {
                text += &format!("\n[[host]]\nname = \"{name}\"\naddress = \"{address}\"\n");
            }
        }
        text
    }
}
