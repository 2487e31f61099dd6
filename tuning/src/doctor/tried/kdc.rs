//! The clock of a key distribution center, over TCP. Asks for a ticket of a user that does not exist: the error names the time
//! (RFC 4120 section 5.9.1). Everything that comes back is bounded in length and time.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant, SystemTime};

/// Difference between the clocks of a key distribution center and of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KdcClock {
    /// The center, as it was named.
    pub kdc: String,
    /// Seconds by which its clock is ahead of that of this host; negative if it is behind. The center tells whole seconds.
    pub ahead_seconds: i64,
}

/// Asks the center for its time. Blocks for [`TIMEOUT`] at most, and for as long as name resolution takes.
///
/// # Errors
/// The reason, for a user.
pub(super) fn ask(kdc: &str, realm: &str) -> Result<KdcClock, String> {
    ask_within(kdc, realm, TIMEOUT)
}

fn ask_within(kdc: &str, realm: &str, time: Duration) -> Result<KdcClock, String> {
    if realm.len() > REALM_BYTES_MAX {
        return Err("the name of the realm is too long".to_owned());
    }
    let places = addresses(kdc).map_err(|error| format!("{kdc}: {error}"))?;
    // One that is silent leaves the others their time.
    let time = time / places.len().max(1) as u32;
    let mut problem = format!("{kdc}: it has no address");
    for place in places {
        let sent = SystemTime::now();
        match answer_of(place, &request(realm), Instant::now() + time) {
            Ok(answer) => {
                let told = told_time(&answer).map_err(|error| format!("{place}: {error}"))?;
                // Its clock is of the moment between the two.
                let elapsed = sent.elapsed().unwrap_or_default();
                let ahead_seconds = seconds_between(sent + elapsed / 2, told);
                return Ok(KdcClock { kdc: kdc.to_owned(), ahead_seconds });
            }
            Err(error) => problem = format!("{place}: {error}"),
        }
    }
    Err(problem)
}

/// Of `HOST` or `HOST:PORT`; not more than are asked.
fn addresses(kdc: &str) -> io::Result<Vec<SocketAddr>> {
    let with_port = kdc.to_socket_addrs();
    let found = with_port.or_else(|_| (kdc, PORT).to_socket_addrs());
    found.map(|found| found.take(ADDRESSES_MAX).collect())
}

/// A message over TCP is led by its length (RFC 4120 section 7.2.2).
fn answer_of(place: SocketAddr, request: &[u8], end: Instant) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect_timeout(&place, left(end)?)?;
    stream.set_write_timeout(Some(left(end)?))?;
    stream.write_all(&[&(request.len() as u32).to_be_bytes(), request].concat())?;
    let mut length = [0; 4];
    read_all(&mut stream, &mut length, end)?;
    let length = u32::from_be_bytes(length) as usize;
    if length > ANSWER_BYTES_MAX {
        return Err(io::Error::other(format!("an answer of more than {ANSWER_BYTES_MAX} bytes")));
    }
    let mut answer = vec![0; length];
    read_all(&mut stream, &mut answer, end)?;
    Ok(answer)
}

/// Single bytes gain no time.
fn read_all(stream: &mut TcpStream, mut into: &mut [u8], end: Instant) -> io::Result<()> {
    while !into.is_empty() {
        stream.set_read_timeout(Some(left(end)?))?;
        match stream.read(into) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => into = &mut into[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // The name that Linux gives to a timeout of a socket says something else.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(timed_out()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// What is left of the time; never zero, which a socket would take for no limit.
fn left(end: Instant) -> io::Result<Duration> {
    let left = end.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(timed_out()) } else { Ok(left) }
}

fn timed_out() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "no answer in time")
}

/// Whole seconds from one time to the other.
fn seconds_between(from: SystemTime, to: SystemTime) -> i64 {
    match to.duration_since(from) {
        Ok(ahead) => ahead.as_secs() as i64,
        Err(behind) => -(behind.duration().as_secs() as i64),
    }
}

/// AS-REQ (RFC 4120 section 5.4.1) of a user that does not exist, for a ticket-granting ticket.
fn request(realm: &str) -> Vec<u8> {
    let options = element(BIT_STRING, &[0; 5]);
    let etypes = ETYPES.map(integer).concat();
    let body = [
        field(0, &options),
        field(1, &name(NT_PRINCIPAL, &[USER])),
        field(2, &string(realm)),
        field(3, &name(NT_SRV_INST, &["krbtgt", realm])),
        field(5, &element(GENERALIZED_TIME, b"20370913024805Z")),
        field(7, &integer(1)),
        field(8, &element(SEQUENCE, &etypes)),
    ];
    let body = element(SEQUENCE, &body.concat());
    let request = [field(1, &integer(5)), field(2, &integer(AS_REQ)), field(4, &body)].concat();
    element(APPLICATION | AS_REQ, &element(SEQUENCE, &request))
}

fn name(kind: u8, parts: &[&str]) -> Vec<u8> {
    let strings: Vec<u8> = parts.iter().flat_map(|part| string(part)).collect();
    let strings = element(SEQUENCE, &strings);
    element(SEQUENCE, &[field(0, &integer(kind)), field(1, &strings)].concat())
}

fn string(text: &str) -> Vec<u8> {
    element(GENERAL_STRING, text.as_bytes())
}

/// Below 128.
fn integer(value: u8) -> Vec<u8> {
    element(INTEGER, &[value])
}

fn field(number: u8, content: &[u8]) -> Vec<u8> {
    element(CONTEXT | number, content)
}

/// An element of DER; of less than 64 KiB.
fn element(tag: u8, content: &[u8]) -> Vec<u8> {
    let [high, low] = (content.len() as u16).to_be_bytes();
    let head: &[u8] = if content.len() < 0x80 { &[tag, low] } else { &[tag, 0x82, high, low] };
    [head, content].concat()
}

/// The time in a KRB-ERROR (RFC 4120 section 5.9.1).
fn told_time(answer: &[u8]) -> Result<SystemTime, String> {
    match first_element(answer) {
        Some((tag, error, _)) if tag == APPLICATION | KRB_ERROR => {
            server_time(error).ok_or_else(|| "an answer without a time".to_owned())
        }
        Some((tag, ..)) if tag == APPLICATION | AS_REP => {
            Err(format!("it gave a ticket to {USER}, and such an answer has no time"))
        }
        _ => Err("a key distribution center does not answer so".to_owned()),
    }
}

fn server_time(error: &[u8]) -> Option<SystemTime> {
    let (SEQUENCE, mut fields, _) = first_element(error)? else { return None };
    loop {
        let (tag, content, rest) = first_element(fields)?;
        if tag == CONTEXT | STIME {
            let (GENERALIZED_TIME, time, _) = first_element(content)? else { return None };
            return time_of(time);
        }
        fields = rest;
    }
}

/// `YYYYMMDDHHMMSSZ`.
fn time_of(time: &[u8]) -> Option<SystemTime> {
    let (digits, b"Z") = time.split_at_checked(14)? else { return None };
    let digits = std::str::from_utf8(digits).ok()?;
    let part = |at: usize| digits.get(at..at + 2);
    let (year, month, day) = (digits.get(..4)?, part(4)?, part(6)?);
    let (hour, minute, second) = (part(8)?, part(10)?, part(12)?);
    humantime::parse_rfc3339(&format!("{year}-{month}-{day}T{hour}:{minute}:{second}Z")).ok()
}

/// Tag, content, and what follows.
fn first_element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (tag, rest) = bytes.split_first()?;
    let (first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        ..=0x7f => (usize::from(*first), rest),
        0x81 => rest.split_first().map(|(length, rest)| (usize::from(*length), rest))?,
        0x82 => {
            let (length, rest) = rest.split_first_chunk()?;
            (usize::from(u16::from_be_bytes(*length)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((*tag, content, rest))
}

const PORT: u16 = 88;
const TIMEOUT: Duration = Duration::from_secs(5);
const ADDRESSES_MAX: usize = 4;
const ANSWER_BYTES_MAX: usize = 16 << 10;
const REALM_BYTES_MAX: usize = 255;
/// Its requests stand in the log of the center.
const USER: &str = "spintune-doctor-asks-for-the-time";
const AS_REQ: u8 = 10;
const AS_REP: u8 = 11;
const KRB_ERROR: u8 = 30;
const STIME: u8 = 4;
const NT_PRINCIPAL: u8 = 1;
const NT_SRV_INST: u8 = 2;
/// AES, as spinrpc has it: all that a center may demand before it looks for the user.
const ETYPES: [u8; 4] = [18, 20, 17, 19];
// Tags of DER.
const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const GENERALIZED_TIME: u8 = 0x18;
const GENERAL_STRING: u8 = 0x1b;
const SEQUENCE: u8 = 0x30;
const APPLICATION: u8 = 0x60;
const CONTEXT: u8 = 0xa0;

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::thread;

    /// A KRB-ERROR of this time, with the fields before it.
    fn error_of(time: &[u8]) -> Vec<u8> {
        let fields = [
            field(0, &integer(5)),
            field(1, &integer(KRB_ERROR)),
            field(2, &element(GENERALIZED_TIME, b"19700101000000Z")),
            field(STIME, &element(GENERALIZED_TIME, time)),
            field(5, &integer(1)),
            field(6, &integer(6)),
        ];
        element(APPLICATION | KRB_ERROR, &element(SEQUENCE, &fields.concat()))
    }

    /// What comes of a center that answers so, and then waits for the end.
    fn asked(answer: Vec<u8>) -> Result<KdcClock, String> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let kdc = listener.local_addr().unwrap().to_string();
        let center = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut length = [0; 4];
            stream.read_exact(&mut length).unwrap();
            let mut request = vec![0; u32::from_be_bytes(length) as usize];
            stream.read_exact(&mut request).unwrap();
            // The other end may hang up before it has all.
            drop(stream.write_all(&answer).and_then(|()| stream.read(&mut [0]).map(drop)));
            request
        });
        let clock = ask_within(&kdc, "EXAMPLE.NET", Duration::from_millis(300));
        assert_eq!(center.join().unwrap(), request("EXAMPLE.NET"));
        clock.map(|clock| KdcClock { kdc: String::new(), ..clock })
    }

    fn framed(answer: &[u8]) -> Vec<u8> {
        [&(answer.len() as u32).to_be_bytes(), answer].concat()
    }

    #[test]
    fn the_request_is_der() {
        let request = request("R");
        let (tag, content, rest) = first_element(&request).unwrap();
        assert_eq!((tag, rest), (0x6a, &[][..]));
        let (tag, fields, rest) = first_element(content).unwrap();
        assert_eq!((tag, rest), (SEQUENCE, &[][..]));
        assert_eq!(fields[..10], [0xa1, 3, 2, 1, 5, 0xa2, 3, 2, 1, 10]);
    }

    #[test]
    fn the_difference_of_the_clocks_is_told_in_both_directions() {
        let year = 365 * 86_400;
        for (time, ahead) in [(b"20200101000000Z", false), (b"20370101000000Z", true)] {
            let clock = asked(framed(&error_of(time))).unwrap();
            assert_eq!(clock.ahead_seconds > year, ahead, "{clock:?}");
            assert_eq!(clock.ahead_seconds < -year, !ahead, "{clock:?}");
        }
        let (from, later) = (SystemTime::UNIX_EPOCH, Duration::from_millis(2_900));
        assert_eq!(seconds_between(from, from + later), 2);
        assert_eq!(seconds_between(from + later, from), -2);
    }

    #[test]
    fn answers_that_are_none_are_refused() {
        let hostile = |answer: &[u8], words: &str| {
            let error = asked(answer.to_vec()).unwrap_err();
            assert!(error.contains(words), "{answer:?}: {error}");
        };
        hostile(&u32::MAX.to_be_bytes(), "more than 16384 bytes");
        hostile(&framed(b"HTTP/1.1 400"), "does not answer so");
        hostile(&framed(&[]), "does not answer so");
        hostile(&framed(&element(APPLICATION | AS_REP, &[])), "gave a ticket");
        for time in [&b"20200101000000"[..], b"20201301000000Z", b"2020010100000\xffZ", b"", b"Z"] {
            hostile(&framed(&error_of(time)), "without a time");
        }
        let whole = error_of(b"20200101000000Z");
        // An element whose content is longer than what is there.
        hostile(&framed(&whole[..whole.len() - 1]), "does not answer so");
        // Less than it says.
        hostile(&framed(&whole)[..20], "no answer in time");
        hostile(&[], "no answer in time");
    }

    #[test]
    fn a_center_that_does_not_answer_is_named() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let kdc = listener.local_addr().unwrap().to_string();
        drop(listener);
        let error = ask(&kdc, "R").unwrap_err();
        assert!(error.starts_with(&kdc) && error.contains("refused"), "{error}");
        assert!(ask("no such host", "R").unwrap_err().starts_with("no such host: "));
        assert!(ask("127.0.0.1", &"R".repeat(256)).unwrap_err().contains("too long"));
    }

    #[test]
    fn a_port_may_be_named() {
        let at = |text: &str| addresses(text).unwrap()[0].to_string();
        assert_eq!(at("127.0.0.1"), "127.0.0.1:88");
        assert_eq!(at("127.0.0.1:750"), "127.0.0.1:750");
        assert_eq!(at("::1"), "[::1]:88");
        assert_eq!(at("[::1]:750"), "[::1]:750");
    }
}
