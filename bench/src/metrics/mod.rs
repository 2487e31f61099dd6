//! `spinperf metrics`: counters of running engines, as OpenMetrics text for Prometheus.
//!
//! `top` finds the engines and asks them over their control sockets; `text` formats the answers. No state is kept between two
//! requests: engines count since their start.
//!
//! Over HTTP there is the subset that Prometheus needs: `GET /metrics`, one answer per connection. Anyone who can reach the
//! port may connect, and may be hostile. Therefore the number of connections served at a time, the time of each and the
//! length of a request are bounded, and one answer is made at a time. Other connections wait in the kernel's queue. An HTTP
//! library would bring a thread for each connection, or an executor.

mod text;

use crate::cli::MetricsArgs;
use crate::console::Sink;
use crate::failure::Failure;
use crate::top::{Detail, Found, Target, Watched};
use spinrpc::rpcbind::stream::{Limits, Stream};
use spinrpc_tuning::printable::to_stderr;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Prints the metrics once, or serves them until interrupted.
pub(crate) fn run(args: &MetricsArgs) -> Result<(), Failure> {
    let wanted =
        Wanted { target: args.target.clone(), latency: args.latency, turn: Mutex::new(()) };
    if let Some(address) = args.listen {
        return serve(address, wanted);
    }
    let found = wanted.look(&Watched::find(wanted.target.as_ref())?);
    Sink::StandardOutput.write(|| Ok(text::render(found)))
}

struct Wanted {
    target: Option<Target>,
    latency: bool,
    /// Serializes answers, because snapshots of engines may be long.
    turn: Mutex<()>,
}

impl Wanted {
    fn look(&self, watched: &Watched) -> Vec<Found> {
        watched.look(Detail::Cores, self.latency).unwrap_or_default()
    }

    fn now(&self) -> String {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let found = match Watched::find(self.target.as_ref()) {
            Ok(watched) => self.look(&watched),
            Err(_) => Vec::new(),
        };
        text::render(found)
    }
}

/// Returns only if the server cannot listen at the address.
fn serve(address: SocketAddr, wanted: Wanted) -> Result<(), Failure> {
    let failed = |error| Failure::system(format!("listening on {address}"), error);
    let listener = TcpListener::bind(address).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    to_stderr(format_args!("spinperf: metrics at http://{address}/metrics"));
    thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| work(&listener, &wanted));
        }
    });
    Ok(())
}

fn work(listener: &TcpListener, wanted: &Wanted) {
    loop {
        match listener.accept() {
            // A malformed request or a closed connection only affects its own client.
            Ok((stream, _)) => drop(answer(&stream, wanted)),
            Err(_) => thread::sleep(PAUSE),
        }
    }
}

fn answer(stream: &TcpStream, wanted: &Wanted) -> io::Result<()> {
    let request = read_request(stream)?;
    let (status, body) = match request_line(&request) {
        Some(("GET" | "HEAD", "/metrics")) => ("200 OK", wanted.now()),
        Some(("GET" | "HEAD", "/")) => ("200 OK", "spinrpc engines: /metrics\n".to_owned()),
        Some(("GET" | "HEAD", _)) => ("404 Not Found", "the only path is /metrics\n".to_owned()),
        Some(_) => ("405 Method Not Allowed", "only GET and HEAD are supported\n".to_owned()),
        None => ("400 Bad Request", "not an HTTP/1 request\n".to_owned()),
    };
    let kind = if body.ends_with("# EOF\n") { CONTENT_TYPE } else { "text/plain" };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n"
    );
    let mut to = Stream::new(stream, Limits::within(PATIENCE));
    to.write_all(head.as_bytes())?;
    let is_head = request.starts_with(b"HEAD ");
    to.write_all(if is_head { b"" } else { body.as_bytes() })
}

fn read_request(stream: &TcpStream) -> io::Result<Vec<u8>> {
    let mut from = Stream::new(stream, Limits::within(PATIENCE));
    let mut request = Vec::new();
    let mut part = [0; 1024];
    while !request.windows(4).any(|four| four == b"\r\n\r\n") {
        if request.len() > REQUEST_BYTES_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        match from.read(&mut part)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            bytes => request.extend_from_slice(&part[..bytes]),
        }
    }
    Ok(request)
}

fn request_line(request: &[u8]) -> Option<(&str, &str)> {
    let line = request.split(|byte| *byte == b'\r').next()?;
    let mut words = std::str::from_utf8(line).ok()?.split(' ');
    let (method, path, version) = (words.next()?, words.next()?, words.next()?);
    let is_http = version.starts_with("HTTP/1.") && words.next().is_none();
    is_http.then(|| (method, path.split('?').next().unwrap_or(path)))
}

/// Maximum number of connections served at a time.
const WORKERS: usize = 8;
/// Maximum time to receive a request, and to send its answer.
const PATIENCE: Duration = Duration::from_secs(2);
const REQUEST_BYTES_MAX: usize = 8 << 10;
/// Pause after accept has failed, for example for lack of descriptors.
const PAUSE: Duration = Duration::from_millis(100);
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_its_method_and_path() {
        for (request, expected) in [
            (&b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"[..], Some(("GET", "/metrics"))),
            (b"GET /metrics?x=1 HTTP/1.0\r\n\r\n", Some(("GET", "/metrics"))),
            (b"POST / HTTP/1.1\r\n\r\n", Some(("POST", "/"))),
            (b"GET  /metrics HTTP/1.1\r\n\r\n", None),
            (b"GET /metrics\r\n\r\n", None),
            (b"GET /metrics HTTP/2\r\n\r\n", None),
            (b"\xff\xfe / HTTP/1.1\r\n\r\n", None),
            (b"\r\n\r\n", None),
        ] {
            assert_eq!(request_line(request), expected, "{request:?}");
        }
    }
}
