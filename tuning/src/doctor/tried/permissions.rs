//! System calls that connections over shared memory need. They are really made, because nothing
//! else shows that a filter rejects them.

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use spinrpc::sys::mmap::SharedMemory;
use std::collections::BTreeMap;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

type Attempt = fn() -> io::Result<()>;

const CALLS: [(&str, Attempt); 3] = [
    ("memfd_create", || memory().map(drop)),
    ("pidfd_open", || Ok(pidfd_open(getpid(), PidfdFlags::empty()).map(drop)?)),
    ("sendmsg with SCM_RIGHTS", pass),
];

pub(super) fn refused() -> BTreeMap<&'static str, String> {
    let tried = CALLS.iter().filter_map(|(call, attempt)| Some((*call, attempt().err()?)));
    tried.map(|(call, error)| (call, error.to_string())).collect()
}

fn memory() -> io::Result<(SharedMemory, OwnedFd)> {
    SharedMemory::create("spinrpc-doctor", 1)
}

/// As connection setup does. Passes another descriptor if sealed memory cannot be created.
fn pass() -> io::Result<()> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (one, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    let Ok((memory, fd)) = memory() else {
        return send(&one, &one).and_then(|()| receive(&other)).map(drop);
    };
    send(&one, &fd)?;
    SharedMemory::from_fd(receive(&other)?, memory.len()).map(drop)
}

fn send(socket: &OwnedFd, fd: &OwnedFd) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [fd.as_fd()];
    if !control.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    sendmsg(socket, &[IoSlice::new(b"x")], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

fn receive(socket: &OwnedFd) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut parts = [IoSliceMut::new(&mut byte)];
    recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let rights = |message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    };
    let fd = control.drain().find_map(rights);
    fd.ok_or_else(|| io::Error::other("the descriptor did not arrive"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_may_do_all_of_it() {
        assert_eq!(refused(), BTreeMap::new());
    }
}
