//! Contexts over TCP: one connection for each call, with record marking and a deadline. Called on threads of mechanisms.

use spinrpc::Peer;
use spinrpc::rpcbind::record;
use spinrpc::rpcbind::stream::{Limits, Stream, connect};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV6};
use std::time::Duration;

/// Port of NFS over TCP, where servers of NFS over RDMA establish contexts (RFC 8166 section 8.2.2.1).
pub(super) const PORT: u16 = 2049;
/// Maximum time for one call, with the connections that it takes.
pub(super) const TIMEOUT_MAX: Duration = Duration::from_secs(10);
/// Maximum length of a reply, in bytes. The engine takes no longer one over RDMA.
const REPLY_BYTES_MAX: usize = 16 << 10;

/// Another host of the same name would not do: it does not know the contexts of this one.
pub(super) fn exchange(
    peer: &Peer,
    port: u16,
    limits: Limits<'_>,
    call: &[u8],
) -> Result<Vec<u8>, String> {
    let place = place(peer, port);
    let socket = connect(place, None, limits).map_err(|error| {
        format!("TCP {place}: {error}; does the server offer NFS over TCP there? (--gss-port sets the port)")
    })?;
    let answer = record::exchange(&mut Stream::new(&socket, limits), call, REPLY_BYTES_MAX);
    answer.map_err(|error| format!("TCP {place}: no reply: {error}"))
}

/// A peer in shared memory is on this host.
fn place(peer: &Peer, port: u16) -> SocketAddr {
    match peer {
        Peer::Socket(SocketAddr::V6(at)) if at.ip().to_ipv4_mapped().is_none() => {
            SocketAddrV6::new(*at.ip(), port, 0, at.scope_id()).into()
        }
        Peer::Socket(at) => SocketAddr::new(at.ip().to_canonical(), port),
        _ => (Ipv4Addr::LOCALHOST, port).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketType, bind, listen, socket};
    use std::cell::Cell;
    use std::io::{self, Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::thread;

    const PATIENCE: Duration = Duration::from_secs(30);
    const HERE: Peer = Peer::Process { uid: 0, pid: 1 };

    /// What a server that does `serve` with each connection makes of a call.
    fn asked(
        time: Duration,
        serve: impl FnOnce(TcpStream) -> io::Result<()> + Send + 'static,
    ) -> Result<Vec<u8>, String> {
        asked_while(time, &|| true, serve)
    }

    fn asked_while(
        time: Duration,
        is_awaited: &dyn Fn() -> bool,
        serve: impl FnOnce(TcpStream) -> io::Result<()> + Send + 'static,
    ) -> Result<Vec<u8>, String> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let thread = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            // The client may hang up at any time, also before its call, if it is paused that long.
            if let Ok(call) = record::read(&mut stream) {
                assert_eq!(call, b"a call");
                drop(serve(stream));
            }
        });
        let reply =
            exchange(&HERE, port, Limits::within(time).while_awaited(is_awaited), b"a call");
        thread.join().unwrap();
        reply
    }

    /// Writes `bytes`, and waits until the client hangs up.
    fn say(bytes: Vec<u8>) -> impl FnOnce(TcpStream) -> io::Result<()> + Send + 'static {
        move |mut stream| {
            stream.write_all(&bytes)?;
            stream.read(&mut [0]).map(drop)
        }
    }

    #[test]
    fn lengths_that_lie_are_refused_before_there_is_memory_for_them() {
        let longest = REPLY_BYTES_MAX as u32;
        for header in [u32::MAX, 0x7fff_ffff, 1 << 31 | (longest + 1), longest + 1] {
            let error = asked(PATIENCE, say(header.to_be_bytes().to_vec())).unwrap_err();
            assert!(error.contains("more than 16384 bytes"), "{header:#x}: {error}");
        }
        // Two fragments that are short enough alone.
        let half =
            [&(longest / 2 + 1).to_be_bytes()[..], &vec![0; REPLY_BYTES_MAX / 2 + 1]].concat();
        let error = asked(PATIENCE, say(half.repeat(2))).unwrap_err();
        assert!(error.contains("more than 16384 bytes"), "{error}");
        let whole = record::mark(&vec![7; REPLY_BYTES_MAX]).unwrap();
        assert_eq!(asked(PATIENCE, say(whole)), Ok(vec![7; REPLY_BYTES_MAX]));
    }

    #[test]
    fn a_server_that_hangs_up_is_named() {
        for begin in [&b""[..], b"\x80\0", b"\x80\0\0\x09part"] {
            let error = asked(PATIENCE, |mut stream| stream.write_all(begin)).unwrap_err();
            assert!(error.starts_with("TCP 127.0.0.1:") && error.contains("no reply"), "{error}");
        }
    }

    /// One that is silent, and one that gains no time by single bytes.
    #[test]
    fn a_reply_that_takes_too_long_is_not_waited_for() {
        let time = Duration::from_millis(200);
        let silent = asked(time, say(Vec::new())).unwrap_err();
        let slow = asked(time, |mut stream| {
            stream.write_all(&(1_u32 << 31 | 16_000).to_be_bytes())?;
            stream.set_read_timeout(Some(Duration::from_millis(20)))?;
            // Until the client hangs up.
            while stream.read(&mut [0]).is_err() {
                stream.write_all(&[0])?;
            }
            Ok(())
        });
        for error in [silent, slow.unwrap_err()] {
            assert!(error.contains("timed out"), "{error}");
        }
    }

    /// The server is silent, or does not take the connection: its queue is full.
    #[test]
    fn an_exchange_that_nothing_waits_for_ends_before_its_time() {
        let hour = Duration::from_secs(3600);
        let (heard, call) = std::sync::mpsc::channel();
        let has_asked = Cell::new(false);
        let is_awaited = || {
            has_asked.set(has_asked.get() || call.try_recv().is_ok());
            !has_asked.get()
        };
        let silent = asked_while(hour, &is_awaited, move |stream| {
            heard.send(()).unwrap();
            say(Vec::new())(stream)
        });
        assert!(
            silent.as_ref().is_err_and(|error| error.ends_with("no reply: given up")),
            "{silent:?}"
        );
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
        listen(&socket, 0).unwrap();
        let listener = TcpListener::from(socket);
        let place = listener.local_addr().unwrap();
        let brief = Duration::from_millis(200);
        let connected: Vec<_> =
            std::iter::from_fn(|| TcpStream::connect_timeout(&place, brief).ok()).collect();
        let checks = Cell::new(0);
        let is_awaited = || checks.replace(checks.get() + 1) < 3;
        let full = exchange(
            &HERE,
            place.port(),
            Limits::within(hour).while_awaited(&is_awaited),
            b"a call",
        );
        assert!(full.as_ref().is_err_and(|error| error.contains("given up;")), "{full:?}");
        drop(connected);
    }

    #[test]
    fn a_port_without_a_server_is_told_with_the_remedy() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let error = exchange(&HERE, port, Limits::within(PATIENCE), b"a call").unwrap_err();
        assert!(error.contains("refused") && error.contains("--gss-port"), "{error}");
        let error = exchange(&HERE, port, Limits::within(Duration::ZERO), b"a call").unwrap_err();
        assert!(error.contains("timed out"), "{error}");
    }

    #[test]
    fn the_host_is_that_of_the_peer() {
        for (peer, expected) in [
            ("192.0.2.1:20049", "192.0.2.1:2049"),
            ("[::ffff:192.0.2.1]:20049", "192.0.2.1:2049"),
            ("[2001:db8::1]:20049", "[2001:db8::1]:2049"),
            ("[fe80::1%2]:20049", "[fe80::1%2]:2049"),
        ] {
            assert_eq!(place(&Peer::Socket(peer.parse().unwrap()), 2049).to_string(), expected);
        }
        assert_eq!(place(&HERE, 7).to_string(), "127.0.0.1:7");
    }
}
