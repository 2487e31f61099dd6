//! Notifies systemd, if it started this process, when the server is ready and when it stops
//! (sd_notify(3)).

use spinrpc::sys::journal::event;
use std::env;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

pub(crate) const READY: &str = "READY=1";
pub(crate) const STOPPING: &str = "STOPPING=1";

/// Ignores errors: the server works without systemd.
pub(crate) fn notify(state: &str) {
    let Some(place) = env::var_os("NOTIFY_SOCKET") else { return };
    if let Err(error) = send(place.as_bytes(), state) {
        event!(WARN, %error, ?state, "cannot notify systemd");
    }
}

/// A name that begins with @ is in the abstract namespace.
fn send(place: &[u8], state: &str) -> io::Result<()> {
    let address = match place.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(place))?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_arrives_at_either_kind_of_socket() {
        let name = format!("spin-nfsd-notify-{}", std::process::id());
        let path = env::temp_dir().join(&name);
        drop(std::fs::remove_file(&path));
        let abstract_address = SocketAddr::from_abstract_name(&name).unwrap();
        let sockets = [
            (UnixDatagram::bind(&path).unwrap(), path.as_os_str().as_bytes().to_vec()),
            (UnixDatagram::bind_addr(&abstract_address).unwrap(), format!("@{name}").into_bytes()),
        ];
        for (socket, place) in sockets {
            send(&place, READY).unwrap();
            let mut word = [0; 32];
            let length = socket.recv(&mut word).unwrap();
            assert_eq!(&word[..length], READY.as_bytes());
        }
        assert!(send(b"/nonexistent/socket", READY).is_err());
    }
}
