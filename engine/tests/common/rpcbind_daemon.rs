//! A rpcbind daemon within the test's process, written from RFC 1833 and RFC 5531 byte by byte: it
//! shares no line with the engine. And sockets on which a daemon can do whatever a test likes.
#![allow(dead_code, reason = "each test binary uses a part of it")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends here")]

use spinrpc::sync::lock;
use std::io::{self, Read, Write};
use std::ops::RangeInclusive;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

/// A Unix socket whose connections `handle` gets, each on a separate thread. Its file is removed
/// and its thread joined with it; the threads of connections end with their connections.
pub(crate) struct Socket {
    path: PathBuf,
    stopped: Arc<AtomicBool>,
    acceptor: Option<JoinHandle<()>>,
}

impl Socket {
    pub(crate) fn start(handle: impl Fn(UnixStream) + Send + Sync + 'static) -> io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("spinrpc-rpcbind-{}-{number}.sock", std::process::id());
        let path = std::env::temp_dir().join(name);
        drop(std::fs::remove_file(&path));
        let listener = UnixListener::bind(&path)?;
        let stopped = Arc::new(AtomicBool::new(false));
        let (stop, handle) = (Arc::clone(&stopped), Arc::new(handle));
        let acceptor = thread::spawn(move || {
            for stream in listener.incoming() {
                if stop.load(Ordering::SeqCst) {
                    return;
                }
                let (handle, Ok(stream)) = (Arc::clone(&handle), stream) else { return };
                thread::spawn(move || handle(stream));
            }
        });
        Ok(Self { path, stopped, acceptor: Some(acceptor) })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::SeqCst);
        // A last connection wakes the thread that accepts.
        drop(UnixStream::connect(&self.path));
        drop(self.acceptor.take().map(JoinHandle::join));
        drop(std::fs::remove_file(&self.path));
    }
}

/// Program, version, netid, address, owner.
pub(crate) type Row = (u32, u32, String, String, String);

/// Registrations of a daemon, and the calls it received.
#[derive(Default)]
struct State {
    rows: Vec<Row>,
    calls: Vec<Vec<u8>>,
}

pub(crate) struct RpcbindDaemon {
    socket: Socket,
    state: Arc<Mutex<State>>,
}

impl RpcbindDaemon {
    /// One that speaks these versions, and takes every caller for the user `1000`.
    pub(crate) fn start(versions: RangeInclusive<u32>) -> io::Result<Self> {
        let state = Arc::new(Mutex::new(State::default()));
        let of_socket = Arc::clone(&state);
        let socket = Socket::start(move |mut stream| {
            while let Ok(call) = read_record(&mut stream) {
                let reply = answer(&mut lock(&of_socket), &versions, call);
                if write_in_fragments(&mut stream, &reply).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { socket, state })
    }

    /// `unix:/path`.
    pub(crate) fn address(&self) -> String {
        format!("unix:{}", self.socket.path().display())
    }

    pub(crate) fn rows(&self) -> Vec<Row> {
        lock(&self.state).rows.clone()
    }

    pub(crate) fn add(&self, program: u32, version: u32, netid: &str, address: &str, owner: &str) {
        let row = (program, version, netid.into(), address.into(), owner.into());
        lock(&self.state).rows.push(row);
    }

    pub(crate) fn calls(&self) -> Vec<Vec<u8>> {
        lock(&self.state).calls.clone()
    }
}

/// One record that came in one fragment, which is how short calls come.
pub(crate) fn read_record(stream: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut mark = [0; 4];
    stream.read_exact(&mut mark)?;
    let mark = u32::from_be_bytes(mark);
    assert!(mark >> 31 == 1, "a call in several fragments");
    let mut record = vec![0; (mark & 0x7fff_ffff) as usize];
    stream.read_exact(&mut record)?;
    Ok(record)
}

/// Fragments of seven bytes, with an empty one in between: all of that is allowed.
fn write_in_fragments(stream: &mut impl Write, reply: &[u8]) -> io::Result<()> {
    let mut bytes = Vec::new();
    for piece in reply.chunks(7) {
        bytes.extend((piece.len() as u32).to_be_bytes());
        bytes.extend(piece);
    }
    bytes.extend([0, 0, 0, 0, 0x80, 0, 0, 0]);
    stream.write_all(&bytes)
}

pub(crate) fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

pub(crate) fn string(text: &str) -> Vec<u8> {
    let mut bytes = words(&[text.len() as u32]);
    bytes.extend(text.as_bytes());
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// The reply (1) to `xid`, accepted (0), verifier AUTH_NONE (0, 0), SUCCESS (0).
pub(crate) fn success(xid: u32, results: &[u8]) -> Vec<u8> {
    [words(&[xid, 1, 0, 0, 0, 0]), results.to_vec()].concat()
}

fn word(bytes: &mut &[u8]) -> u32 {
    let (head, rest) = bytes.split_first_chunk().expect("a word");
    *bytes = rest;
    u32::from_be_bytes(*head)
}

fn text(bytes: &mut &[u8]) -> String {
    let length = word(bytes) as usize;
    let text = String::from_utf8(bytes[..length].to_vec()).expect("text");
    *bytes = &bytes[length.next_multiple_of(4)..];
    text
}

fn answer(state: &mut State, versions: &RangeInclusive<u32>, call: Vec<u8>) -> Vec<u8> {
    let mut rest = &call[..];
    let [xid, direction, rpc, program, version, procedure] = [0; 6].map(|_: u32| word(&mut rest));
    assert_eq!((direction, rpc, program), (0, 2, 100_000), "call of RPC version 2 to rpcbind");
    assert_eq!([0; 4].map(|_: u32| word(&mut rest)), [0; 4], "AUTH_NONE twice");
    if !versions.contains(&version) {
        // PROG_MISMATCH (2), low and high.
        return words(&[xid, 1, 0, 0, 0, 2, *versions.start(), *versions.end()]);
    }
    let results = match version {
        2 => port_mapper(&mut state.rows, procedure, rest),
        _ => rpcbind(&mut state.rows, procedure, rest),
    };
    state.calls.push(call);
    success(xid, &results)
}

/// RFC 1833 section 2: versions 3 and 4.
fn rpcbind(rows: &mut Vec<Row>, procedure: u32, mut args: &[u8]) -> Vec<u8> {
    match procedure {
        0 => Vec::new(),
        1..=3 => {
            let args = &mut args;
            let row = (word(args), word(args), text(args), text(args), text(args));
            assert!(args.is_empty(), "{args:?} after the arguments");
            change(rows, procedure, row)
        }
        4 => {
            let mut list = Vec::new();
            for (program, version, netid, address, owner) in rows {
                list.extend(words(&[1, *program, *version]));
                list.extend([string(netid), string(address), string(owner)].concat());
            }
            [list, words(&[0])].concat()
        }
        other => panic!("procedure {other} of rpcbind"),
    }
}

fn change(rows: &mut Vec<Row>, procedure: u32, mut row: Row) -> Vec<u8> {
    row.4 = "1000".into();
    let held = rows.iter().position(|held| (held.0, held.1, &held.2) == (row.0, row.1, &row.2));
    match (procedure, held) {
        (1, None) => rows.push(row),
        (1, Some(at)) => return words(&[(rows[at].3 == row.3).into()]),
        (2, Some(at)) if rows[at].4 != row.4 => return words(&[0]),
        (2, Some(at)) => drop(rows.remove(at)),
        (2, None) => {}
        // GETADDR: the netid is that of the socket, under which nothing is registered.
        _ => return string(""),
    }
    words(&[1])
}

/// RFC 1833 section 3: version 2. Rows of netid `tcp` and port alone.
fn port_mapper(rows: &mut Vec<Row>, procedure: u32, mut args: &[u8]) -> Vec<u8> {
    let port = |row: &Row| {
        let mut octets = row.3.rsplit('.').map(|octet| octet.parse::<u32>().expect("an octet"));
        octets.next().expect("low") + 256 * octets.next().expect("high")
    };
    match procedure {
        0 => Vec::new(),
        1..=3 => {
            let [program, version, protocol, port_of] = [0; 4].map(|_: u32| word(&mut args));
            assert!(args.is_empty() && protocol == 6, "TCP, and nothing behind");
            let address = format!("0.0.0.0.{}.{}", port_of / 256, port_of % 256);
            if procedure == 3 {
                let found = rows.iter().find(|row| (row.0, row.1) == (program, version));
                return words(&[found.map_or(0, port)]);
            }
            change(rows, procedure, (program, version, "tcp".into(), address, String::new()))
        }
        4 => {
            let row = |row: &Row| words(&[1, row.0, row.1, 6, port(row)]);
            [rows.iter().flat_map(row).collect(), words(&[0])].concat()
        }
        other => panic!("procedure {other} of the port mapper"),
    }
}
