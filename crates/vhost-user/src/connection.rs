//! A connected socket: whole messages in, with the file descriptors sent along, and replies out.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

use crate::message::{HEADER_BYTES, Header, MAX_FILES, MessageError, Request};
use crate::session::SessionError;

/// A received message.
#[derive(Debug)]
pub(crate) struct Envelope {
    /// The message's number, which the reply repeats.
    pub number: u32,
    pub need_reply: bool,
    pub request: Request,
    /// As many as the request needs.
    pub files: Vec<OwnedFd>,
}

/// Receives the next message; `None` once the other side has closed the connection between two messages.
pub(crate) fn receive(socket: &UnixStream) -> Result<Option<Envelope>, SessionError> {
    let mut files = Vec::new();
    let mut header = [0; HEADER_BYTES];
    if !fill(socket, &mut header, &mut files, true)? {
        return Ok(None);
    }
    let header = Header::decode(header)?;
    let mut body = vec![0; header.body_bytes];
    fill(socket, &mut body, &mut files, false)?;
    let request = Request::decode(header.request, &body)?;
    let found = files.len();
    match request.files() {
        Some(expected) if expected != found => {
            Err(MessageError::Files { request: header.request, found, expected }.into())
        }
        _ => Ok(Some(Envelope { number: header.request, need_reply: header.need_reply, request, files })),
    }
}

/// Fills a buffer; `false` if the stream has ended before its first byte and `may_end`.
fn fill(
    socket: &UnixStream,
    buffer: &mut [u8],
    files: &mut Vec<OwnedFd>,
    may_end: bool,
) -> Result<bool, SessionError> {
    let mut filled = 0;
    while filled < buffer.len() {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut buffer[filled..])];
        let received = match rustix::net::recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => continue,
            received => received.map_err(io::Error::from)?,
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(came) = message {
                files.extend(came);
            }
        }
        if received.flags.contains(ReturnFlags::CTRUNC) || files.len() > MAX_FILES {
            return Err(SessionError::TooManyFiles);
        }
        match received.bytes {
            0 if filled == 0 && may_end => return Ok(false),
            0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            bytes => filled += bytes,
        }
    }
    Ok(true)
}

/// Sends a whole message, with a file descriptor if there is one.
pub(crate) fn send(
    socket: &UnixStream,
    bytes: &[u8],
    file: Option<BorrowedFd>,
    flags: SendFlags,
) -> io::Result<()> {
    let files: Vec<_> = file.into_iter().collect();
    let mut sent = 0;
    while sent < bytes.len() {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if sent == 0 && !files.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&files));
        }
        let parts = [IoSlice::new(&bytes[sent..])];
        match rustix::net::sendmsg(socket.as_fd(), &parts, &mut control, flags | SendFlags::NOSIGNAL) {
            Err(rustix::io::Errno::INTR) => {}
            count => sent += count?,
        }
    }
    Ok(())
}
