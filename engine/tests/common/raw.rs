//! A peer that uses the fabric directly and sends whatever the test wants: one connection, its messages as bytes.

use super::prelude::*;
use spinrpc::fabric::iwarp::{IwarpConfig, IwarpConnector};
use spinrpc::fabric::shm::{ShmConfig, ShmConnector};
use spinrpc::fabric::{
    Acceptor, AnyFabric, CompletionKind, Completions, ConnectRequest, Connector, Endpoint,
    ListenRequest, QpId, SendWr, WrId,
};
use spinrpc::mem::{Buf, BufPool, Region};
use std::sync::mpsc::{Receiver, Sender, channel};

/// RFC 8797: 4096 bytes each way, remote invalidation.
pub(crate) const PRIVATE_DATA: [u8; 8] = [0xf6, 0xab, 0x0e, 0x18, 1, 1, 3, 3];
const BUFFER_BYTES: usize = 8192;
const RECEIVES: usize = 200;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Said {
    Message(Vec<u8>),
    /// Nothing any more: the connection ended.
    Down(DownCause),
}

impl Said {
    #[track_caller]
    pub(crate) fn words(&self) -> Vec<u32> {
        let Self::Message(bytes) = self else { panic!("the connection ended: {self:?}") };
        bytes.chunks_exact(4).map(|w| u32::from_be_bytes([w[0], w[1], w[2], w[3]])).collect()
    }
}

pub(crate) struct RawPeer {
    fabric: AnyFabric,
    qp: QpId,
    sends: BufPool,
    recvs: BufPool,
    batch: Completions,
    heard: std::collections::VecDeque<Said>,
    /// Keys that the other side invalidated, with the XID of the message that did.
    pub(crate) invalidated: Vec<(u32, u32)>,
    /// Memory that is exposed, and kept to be rewritten.
    kept: Vec<(RemoteSlice, Bulk)>,
    rewritten: Vec<Bulk>,
    reading: Option<Bulk>,
    written: Vec<Bulk>,
    read_result: Option<bool>,
}

/// Of the driver that the address is for.
fn connector(address: &str) -> Box<dyn Connector> {
    match address.starts_with("iwarp://") {
        true => Box::new(IwarpConnector::new(IwarpConfig::default())),
        false => Box::new(ShmConnector::new(ShmConfig::default()).unwrap()),
    }
}

impl RawPeer {
    #[track_caller]
    pub(crate) fn connect(address: &str) -> Self {
        Self::connect_saying(address, &PRIVATE_DATA)
    }

    #[track_caller]
    pub(crate) fn connect_saying(address: &str, private_data: &[u8]) -> Self {
        let connector = connector(address);
        let fabric = connector.any_fabric(0).unwrap();
        let request = ConnectRequest { private_data, ..ConnectRequest::new(address, LIMIT) };
        let endpoint = connector.connect(&request).unwrap();
        Self::adopt(fabric, endpoint)
    }

    fn adopt(mut fabric: AnyFabric, endpoint: Endpoint) -> Self {
        let qp = fabric.adopt(endpoint).unwrap();
        let mut peer = Self {
            fabric,
            qp,
            sends: pool(RECEIVES),
            recvs: pool(RECEIVES),
            batch: Completions::with_limit(64),
            heard: Default::default(),
            invalidated: Vec::new(),
            kept: Vec::new(),
            rewritten: Vec::new(),
            reading: None,
            written: Vec::new(),
            read_result: None,
        };
        peer.post_receives();
        peer
    }

    /// Goes on with the next connection of the listener that this one came from, if there is one.
    pub(crate) fn take_next(&mut self, listener: &RawListener) -> bool {
        let Ok(endpoint) = listener.accepted.try_recv() else { return false };
        self.qp = self.fabric.adopt(endpoint).unwrap();
        self.post_receives();
        true
    }

    fn post_receives(&mut self) {
        while let Some(buf) = self.recvs.take() {
            self.fabric.post_recv(self.qp, buf).unwrap();
        }
    }

    pub(crate) fn send(&mut self, message: &[u8]) {
        self.send_invalidating(message, None);
    }

    /// Sends one message, with the key of the other side that dies with it.
    pub(crate) fn send_invalidating(&mut self, message: &[u8], invalidate: Option<u32>) {
        let mut buf: Buf = self.sends.take().expect("a buffer of the raw peer");
        buf.set_range(0..message.len());
        buf.bytes_mut().copy_from_slice(message);
        // Refused when the connection has ended, which the test hears by `hear`.
        drop(self.fabric.post(self.qp, SendWr::Send { message: buf, invalidate }));
        self.fabric.flush();
    }

    pub(crate) fn send_words(&mut self, words: &[u32]) {
        self.send(&bytes_of(words));
    }

    /// The next message of the other side; fails when none comes in time.
    #[track_caller]
    pub(crate) fn hear(&mut self) -> Said {
        let end = Instant::now() + LIMIT;
        loop {
            if let Some(said) = self.poll() {
                return said;
            }
            assert!(Instant::now() < end, "the engine said nothing for {LIMIT:?}");
            pause();
        }
    }

    pub(crate) fn unhear(&mut self, message: Vec<u8>) {
        self.heard.push_front(Said::Message(message));
    }

    /// The next message of the other side, if it has come.
    pub(crate) fn poll(&mut self) -> Option<Said> {
        if self.heard.is_empty() {
            self.pump();
        }
        self.heard.pop_front()
    }

    fn pump(&mut self) {
        self.fabric.poll(&mut self.batch);
        for completion in self.batch.drain() {
            match completion.kind {
                CompletionKind::Received { message, invalidated } => {
                    let xid =
                        message.bytes().first_chunk().map_or(0, |xid| u32::from_be_bytes(*xid));
                    self.invalidated.extend(invalidated.map(|handle| (xid, handle)));
                    self.heard.push_back(Said::Message(message.bytes().to_vec()));
                    drop(self.fabric.post_recv(self.qp, message));
                }
                CompletionKind::Down { cause } => self.heard.push_back(Said::Down(cause)),
                CompletionKind::Read { result, .. } => self.read_result = Some(result.is_ok()),
                CompletionKind::Revoked { .. } | CompletionKind::RecvFlushed { .. } => {}
            }
        }
        self.fabric.flush();
    }

    /// Hears messages until the connection ends, and why it did.
    #[track_caller]
    pub(crate) fn hear_end(&mut self) -> DownCause {
        loop {
            if let Said::Down(cause) = self.hear() {
                return cause;
            }
        }
    }

    /// Memory with these bytes that the other side may read, or write.
    pub(crate) fn expose(&mut self, bytes: &[u8], access: Access) -> RemoteSlice {
        self.expose_bulk(bytes, access).0
    }

    /// The same for [`RawPeer::rewrite`]: the memory does not come back by itself when the other side is done with it.
    pub(crate) fn expose_kept(&mut self, bytes: &[u8], access: Access) -> RemoteSlice {
        let (slice, bulk) = self.expose_bulk(bytes, access);
        self.kept.push((slice, bulk));
        slice
    }

    fn expose_bulk(&mut self, bytes: &[u8], access: Access) -> (RemoteSlice, Bulk) {
        let mut bulk: Bulk = self.fabric.bulk(self.qp, bytes.len()).unwrap();
        bulk.copy_from(0, bytes);
        let slice = self.fabric.expose(self.qp, bulk.lease(0..bytes.len()), access, None).unwrap();
        (slice, bulk)
    }

    /// Writes to memory that was exposed, whose key dies before that: the other side is done with it, or would fail.
    pub(crate) fn rewrite(&mut self, slice: RemoteSlice, at: usize, bytes: &[u8]) {
        self.fabric.revoke(self.qp, slice.handle);
        let end = Instant::now() + LIMIT;
        let index = self.kept.iter().position(|(kept, _)| *kept == slice);
        let (_, mut bulk) = self.kept.remove(index.expect("memory that is kept"));
        while bulk.is_leased() {
            self.pump();
            assert!(Instant::now() < end, "a key did not die for {LIMIT:?}");
        }
        bulk.copy_from(at, bytes);
        self.rewritten.push(bulk);
    }

    pub(crate) fn forget_rewritten(&mut self) {
        self.rewritten.clear();
    }

    /// Writes to memory of the other side, as long as the bytes are.
    pub(crate) fn write(&mut self, bytes: &[u8], to: RemoteSlice) {
        let mut from: Bulk = self.fabric.bulk(self.qp, bytes.len()).unwrap();
        from.copy_from(0, bytes);
        let to = RemoteSlice { length: bytes.len() as u32, ..to };
        let lease = from.lease(0..bytes.len());
        self.fabric.post(self.qp, SendWr::Write { from: lease, to }).unwrap();
        self.fabric.flush();
        self.written.push(from);
    }

    /// Reads memory of the other side. [`RawPeer::hear_read`] returns the result.
    pub(crate) fn read(&mut self, from: RemoteSlice) {
        let mut into = self.fabric.bulk(self.qp, from.length as usize).unwrap();
        let lease = into.lease(0..from.length as usize);
        self.reading = Some(into);
        drop(self.fabric.post(self.qp, SendWr::Read { id: WrId(1), from, into: lease }));
        self.fabric.flush();
    }

    /// Bytes that were read; `None` if that failed.
    #[track_caller]
    pub(crate) fn hear_read(&mut self) -> Option<Vec<u8>> {
        let end = Instant::now() + LIMIT;
        while self.read_result.is_none() {
            self.pump();
            assert!(Instant::now() < end, "no RDMA Read ended for {LIMIT:?}");
            pause();
        }
        let is_ok = self.read_result.take().unwrap();
        let memory = self.reading.take().unwrap();
        is_ok.then(|| {
            let mut bytes = vec![0; memory.len()];
            memory.copy_to(0, &mut bytes);
            bytes
        })
    }

    pub(crate) fn close(&mut self) {
        self.fabric.close(self.qp);
        self.fabric.flush();
    }
}

fn pool(count: usize) -> BufPool {
    let bytes = BufPool::region_bytes(BUFFER_BYTES, count).unwrap() + 64;
    BufPool::new(Region::from_boxed(vec![0; bytes].into()), BUFFER_BYTES, count).unwrap()
}

pub(crate) fn bytes_of(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// Types of messages (RFC 5666 section 4.1).
pub(crate) const MSG: u32 = 0;
pub(crate) const NOMSG: u32 = 1;
pub(crate) const DONE: u32 = 3;
pub(crate) const ERROR: u32 = 4;
pub(crate) const ERR_VERS: u32 = 1;
pub(crate) const ERR_CHUNK: u32 = 2;
pub(crate) const NO_LISTS: [u32; 3] = [0; 3];
pub(crate) const NOWHERE: RemoteSlice =
    RemoteSlice { handle: 0x0bad_0001, length: 64, offset: 4096 };

/// A message of version one, with 64 credits.
pub(crate) fn message(xid: u32, kind: u32, lists: &[u32], body: &[u32]) -> Vec<u32> {
    [&[xid, 1, 64, kind], lists, body].concat()
}

pub(crate) fn rpc_call(xid: u32, procedure: Procedure, args: &[u32]) -> Vec<u32> {
    let header = [xid, 0, 2, PROGRAM.0, VERSION.0, procedure.0, 0, 0, 0, 0];
    [&header, args].concat()
}

pub(crate) fn success(xid: u32) -> [u32; 6] {
    [xid, 1, 0, 0, 0, 0]
}

/// A segment: key, length, offset.
pub(crate) fn words_of(slice: RemoteSlice) -> [u32; 4] {
    [slice.handle, slice.length, (slice.offset >> 32) as u32, slice.offset as u32]
}

/// The segment of four words.
pub(crate) fn slice_of(words: &[u32]) -> RemoteSlice {
    let [handle, length, high, low] = words[..4] else { unreachable!("a segment has four words") };
    RemoteSlice { handle, length, offset: u64::from(high) << 32 | u64::from(low) }
}

pub(crate) fn read_segment(position: u32, slice: RemoteSlice) -> [u32; 6] {
    let [handle, length, high, low] = words_of(slice);
    [1, position, handle, length, high, low]
}

pub(crate) fn write_chunk(segments: &[RemoteSlice]) -> Vec<u32> {
    let words = segments.iter().flat_map(|slice| words_of(*slice));
    [1, segments.len() as u32].into_iter().chain(words).collect()
}

pub(crate) struct RawListener {
    connector: Box<dyn Connector>,
    accepted: Receiver<Endpoint>,
    _listening: Box<dyn Send>,
}

struct Hand(Sender<Endpoint>);

impl Acceptor for Hand {
    fn pick_core(&mut self, _full: &[usize]) -> Option<usize> {
        Some(0)
    }

    fn accepted(&mut self, _: usize, endpoint: Endpoint) {
        // The send fails if the test has ended.
        drop(self.0.send(endpoint));
    }
}

impl RawListener {
    /// One at an address that no other test uses.
    pub(crate) fn new() -> (String, Self) {
        let address = unique_address();
        let listener = Self::at(&address);
        (address, listener)
    }

    fn at(address: &str) -> Self {
        let connector = connector(address);
        let (hand, accepted) = channel();
        let listening = connector
            .listen(
                &ListenRequest { private_data: &PRIVATE_DATA, ..ListenRequest::new(address) },
                Box::new(Hand(hand)),
            )
            .unwrap();
        Self { connector, accepted, _listening: listening }
    }

    pub(crate) fn try_accept(&self) -> Option<RawPeer> {
        let endpoint = self.accepted.try_recv().ok()?;
        Some(RawPeer::adopt(self.connector.any_fabric(0).unwrap(), endpoint))
    }

    #[track_caller]
    pub(crate) fn accept(&self) -> RawPeer {
        let endpoint = self.accepted.recv_timeout(LIMIT).expect("no peer connected");
        RawPeer::adopt(self.connector.any_fabric(0).unwrap(), endpoint)
    }
}
