//! The limit of calls over TCP sockets: two threads that poll the ends of a connection over loopback.

use super::{median_ns, on_two_cores};
use crate::cores::CorePair;
use crate::failure::Failure;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Duration;

/// Median round trip of messages of these sizes, each of which is timed.
pub(super) fn round_trip_ns(
    cores: CorePair,
    duration: Duration,
    [call_bytes, reply_bytes]: [usize; 2],
) -> Result<f64, Failure> {
    let failed = |error| Failure::system("a TCP connection over loopback", error);
    let (mut asking, mut answering) = connection().map_err(failed)?;
    let asked = on_two_cores(
        cores,
        move |_| {
            let (mut call, reply) = (vec![0; call_bytes], vec![0; reply_bytes]);
            while poll(&mut answering, &mut call).is_ok() && answering.write_all(&reply).is_ok() {}
        },
        move || {
            let (call, mut reply) = (vec![0; call_bytes], vec![0; reply_bytes]);
            median_ns(duration, || {
                asking.write_all(&call)?;
                poll(&mut asking, &mut reply)
            })
        },
    )?;
    asked.map_err(failed)
}

fn connection() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let asking = TcpStream::connect(listener.local_addr()?)?;
    let (answering, _) = listener.accept()?;
    for end in [&asking, &answering] {
        end.set_nodelay(true)?;
        end.set_nonblocking(true)?;
    }
    Ok((asking, answering))
}

/// Fills the message, without ever sleeping. Fails when the other end is gone.
fn poll(socket: &mut TcpStream, message: &mut [u8]) -> io::Result<()> {
    let mut got = 0;
    while got < message.len() {
        match socket.read(&mut message[got..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => got += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_trip_takes_some_time() {
        let Ok(cores) = CorePair::choose(None) else { return };
        let ns = round_trip_ns(cores, Duration::from_millis(5), [200, 100]).unwrap();
        assert!(ns > 100.0, "{ns}");
    }
}
