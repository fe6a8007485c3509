//! A small blocking server over a Unix socket with an export in memory.

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use haversack_nbd::constants as c;
use haversack_nbd::*;

use super::Scratch;

pub const SIZE_BYTES: usize = 16 << 20;
const BLOCK_BYTES: usize = 4096;

/// What the export's connections share.
struct Disk {
    bytes: Mutex<Vec<u8>>,
    read_only: bool,
}

struct Shared(Arc<Disk>);

impl Exports for Shared {
    fn names(&mut self) -> Vec<String> {
        vec!["disk".to_owned()]
    }

    fn lookup(&mut self, name: &str) -> Option<ExportInfo> {
        use TransmissionFlags as F;
        ["", "disk"].contains(&name).then(|| ExportInfo {
            name: "disk".to_owned(),
            description: "a disk in memory".to_owned(),
            size_bytes: SIZE_BYTES as u64,
            read_only: self.0.read_only,
            block_size: BlockSize::new(512, 4096, 32 << 20).unwrap(),
            features: F::SEND_FLUSH
                | F::SEND_FUA
                | F::SEND_TRIM
                | F::SEND_WRITE_ZEROES
                | F::SEND_FAST_ZERO
                | F::SEND_DF
                | F::SEND_CACHE
                | F::CAN_MULTI_CONN,
        })
    }
}

/// The server; its threads end with the test.
pub struct Server {
    disk: Arc<Disk>,
    socket: PathBuf,
    errors: Arc<Mutex<Vec<String>>>,
    _scratch: Scratch,
}

impl Server {
    pub fn start(policy: TlsPolicy, read_only: bool) -> Self {
        let scratch = Scratch::new();
        let socket = scratch.path("nbd.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let disk = Arc::new(Disk { bytes: Mutex::new(vec![0; SIZE_BYTES]), read_only });
        let errors = Arc::new(Mutex::new(Vec::new()));
        let (shared, log) = (disk.clone(), errors.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (shared, log) = (shared.clone(), log.clone());
                std::thread::spawn(move || {
                    let served = stream.and_then(|stream| serve(stream, &shared, policy));
                    // A client may close at any time.
                    let closed = [
                        io::ErrorKind::UnexpectedEof,
                        io::ErrorKind::BrokenPipe,
                        io::ErrorKind::ConnectionReset,
                    ];
                    if let Err(error) = served
                        && !closed.contains(&error.kind())
                    {
                        log.lock().unwrap().push(error.to_string());
                    }
                });
            }
        });
        Self { disk, socket, errors, _scratch: scratch }
    }

    pub fn uri(&self) -> String {
        let transport = Transport::Unix { socket: self.socket.clone() };
        let export = "disk".to_owned();
        NbdUri { transport, tls: false, export, user: None, tls_hostname: None, tls_verify_peer: None }
            .to_string()
    }

    pub fn fill(&self, bytes: &[u8]) {
        self.disk.bytes.lock().unwrap()[..bytes.len()].copy_from_slice(bytes);
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.disk.bytes.lock().unwrap().clone()
    }

    /// What made connections end, other than that the client closed them.
    pub fn errors(&self) -> Vec<String> {
        self.errors.lock().unwrap().clone()
    }
}

fn negotiate(stream: &mut UnixStream, disk: &Arc<Disk>, policy: TlsPolicy) -> io::Result<Option<Negotiated>> {
    let mut output = Vec::new();
    let mut negotiation = ServerNegotiation::new(policy, &mut output);
    stream.write_all(&output)?;
    let mut buffer = vec![0; 8192];
    loop {
        let bytes = &mut buffer[..negotiation.wanted_bytes()];
        stream.read_exact(bytes)?;
        output.clear();
        let step = negotiation.receive(&mut &*bytes, &mut Shared(disk.clone()), &mut output);
        let step = step.map_err(io::Error::other)?;
        stream.write_all(&output)?;
        match step {
            ServerStep::Continue => {}
            ServerStep::StartTls => return Err(io::Error::other("the client began TLS, which is not here")),
            ServerStep::Transmission(negotiated) => return Ok(Some(*negotiated)),
            ServerStep::Aborted => return Ok(None),
        }
    }
}

fn serve(mut stream: UnixStream, disk: &Arc<Disk>, policy: TlsPolicy) -> io::Result<()> {
    let Some(negotiated) = negotiate(&mut stream, disk, policy)? else {
        return Ok(());
    };
    let (rules, replier) = (negotiated.rules(), negotiated.replier());
    let mut reader = RequestReader::new();
    let mut head = [0; REQUEST_BYTES];
    loop {
        stream.read_exact(&mut head)?;
        let Some(request) = reader.read(&mut &head[..]).map_err(io::Error::other)? else {
            continue;
        };
        let mut payload = vec![0; request.payload_bytes() as usize];
        let verdict = rules.check(&request).map_err(io::Error::other)?;
        stream.read_exact(&mut payload)?;
        reader.payload_taken(payload.len() as u32);
        match verdict {
            Verdict::Serve => {
                let bytes = &mut disk.bytes.lock().unwrap();
                answer(&mut stream, bytes, &negotiated, &request, &payload)?;
            }
            Verdict::Nothing => stream.write_all(&replier.success(&request))?,
            Verdict::Refuse(refusal) => {
                stream.write_all(&replier.error(&request, refusal.errno, refusal.reason))?;
            }
            Verdict::Disconnect => return Ok(()),
        }
    }
}

fn answer(
    stream: &mut UnixStream,
    disk: &mut [u8],
    negotiated: &Negotiated,
    request: &Request,
    payload: &[u8],
) -> io::Result<()> {
    let replier = negotiated.replier();
    let at = request.offset as usize;
    let range = at..at + request.length as usize;
    match request.command {
        Command::Read => {
            let data = &disk[range];
            let whole = !replier.structured || request.flags.contains(CommandFlags::DF);
            if !whole && data.iter().all(|byte| *byte == 0) {
                let hole = replier.hole_chunk(request.cookie, request.offset, request.length, false);
                stream.write_all(&hole)?;
                return stream.write_all(&replier.done(request.cookie));
            }
            stream.write_all(&replier.read_data(request))?;
            return stream.write_all(data);
        }
        Command::BlockStatus => return block_status(stream, disk, negotiated, request),
        Command::Write => disk[range].copy_from_slice(payload),
        Command::WriteZeroes | Command::Trim => disk[range].fill(0),
        _ => {}
    }
    stream.write_all(&replier.success(request))
}

fn block_status(
    stream: &mut UnixStream,
    disk: &[u8],
    negotiated: &Negotiated,
    request: &Request,
) -> io::Result<()> {
    let mut memory = vec![0; 8192];
    let last = negotiated.meta_contexts.iter().last();
    for context in negotiated.meta_contexts.iter() {
        let mut writer = ExtentWriter::new(&mut memory, request, context).unwrap();
        let mut at = request.offset as usize;
        let end = at + request.length as usize;
        while at < end {
            let next = (at / BLOCK_BYTES + 1) * BLOCK_BYTES;
            let flags = match context {
                MetaContext::Allocation if disk[at..next].iter().all(|byte| *byte == 0) => {
                    c::STATE_HOLE | c::STATE_ZERO
                }
                MetaContext::Allocation => 0,
                MetaContext::Cache if at < SIZE_BYTES / 4 => c::STATE_CACHED | c::STATE_DIRTY,
                MetaContext::Cache if at < SIZE_BYTES / 2 => c::STATE_CACHED,
                MetaContext::Cache => 0,
            };
            if !writer.push(Extent { length: (next.min(end) - at) as u32, flags }) {
                break;
            }
            at = next;
        }
        let length = writer.finish(last == Some(context)).unwrap();
        stream.write_all(&memory[..length])?;
    }
    Ok(())
}
