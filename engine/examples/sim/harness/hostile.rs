//! Peers that break the rules: they speak messages, RDMA Reads and Writes straight to the fabric,
//! most of it well formed, little of it right. They may lose their own connections, but must not
//! harm others.

mod client;
mod server;

use super::program::PROGRAM;
use super::program::VERSION;
use super::words::bytes_of;
use spinrpc::fabric::sim::{Device, Rng, SideId, SimConnector, SimFabric, Waker, World};
use spinrpc::fabric::{
    Acceptor, Access, CompletionKind, Completions, ConnectRequest, Connector, Endpoint, Fabric,
    ListenRequest, QpId, RemoteSlice, SendWr, Wake, WrId,
};
use spinrpc::mem::{Buf, BufPool, BulkClass, Region};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// RFC 8797: 4096 bytes each way, remote invalidation.
pub(crate) const PRIVATE_DATA: PrivateData = [0xf6, 0xab, 0x0e, 0x18, 1, 1, 3, 3];
pub(crate) type PrivateData = [u8; 8];
/// A sender that keeps to what was agreed does not need more.
const BUFFER_BYTES: usize = 8192;
const BUFFERS: usize = 24;
const BLOCK_BYTES: usize = 4096;

pub(crate) struct Hostile {
    connector: SimConnector,
    pub(crate) waker: Arc<Waker>,
    fabric: SimFabric,
    rng: Rng,
    role: Role,
    qp: Option<QpId>,
    sends: BufPool,
    receives: BufPool,
    batch: Completions,
    left: usize,
    /// Receives are given back to the queue, so that the engine's messages find one.
    is_ready: bool,
    exposed: Vec<RemoteSlice>,
    /// Calls that may yet be answered, or replies that may yet be fetched.
    kept: Vec<Vec<u8>>,
    /// Ends of new connections of this peer, which are not known elsewhere yet.
    sides: Vec<SideId>,
}

enum Role {
    Client { address: String, said: PrivateData },
    Server { accepted: Accepted, _listening: Box<dyn Send> },
}

type Accepted = Arc<Mutex<Vec<Endpoint>>>;

/// Keeps a connection until its node has a turn.
struct Hand(Accepted, Arc<dyn Wake>);

impl Acceptor for Hand {
    fn pick_core(&mut self, _full: &[usize]) -> Option<usize> {
        Some(0)
    }

    fn accepted(&mut self, _: usize, endpoint: Endpoint) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(endpoint);
        self.1.wake();
    }
}

impl Hostile {
    pub(crate) fn client(
        world: &World,
        address: String,
        said: PrivateData,
        rng: Rng,
    ) -> Option<Self> {
        Self::new(world, rng, |_, _| Some(Role::Client { address, said }))
    }

    pub(crate) fn server(
        world: &World,
        address: &str,
        said: PrivateData,
        rng: Rng,
    ) -> Option<Self> {
        Self::new(world, rng, |connector, waker| {
            let accepted = Accepted::default();
            let hand = Box::new(Hand(Arc::clone(&accepted), waker));
            let listening = connector
                .listen(&ListenRequest { private_data: &said, ..ListenRequest::new(address) }, hand)
                .ok()?;
            Some(Role::Server { accepted, _listening: listening })
        })
    }

    fn new(
        world: &World,
        mut rng: Rng,
        role: impl FnOnce(&SimConnector, Arc<dyn Wake>) -> Option<Role>,
    ) -> Option<Self> {
        let connector = world.connector(Device {
            arena: vec![BulkClass { block_bytes: BLOCK_BYTES, count: 8 }],
            recv_queue_depth: BUFFERS as u16,
            ..Device::default()
        });
        let mut fabric = connector.fabric(0).ok()?;
        Some(Self {
            role: role(&connector, fabric.begin(None, false))?,
            fabric,
            waker: connector.waker(0),
            connector,
            qp: None,
            sends: pool()?,
            receives: pool()?,
            batch: Completions::with_limit(8),
            left: rng.within((5, 60)) as usize,
            is_ready: !rng.chance(100),
            exposed: Vec::new(),
            kept: Vec::new(),
            sides: Vec::new(),
            rng,
        })
    }

    /// Says something unasked, if it has something left to say; true if it has more.
    pub(crate) fn act(&mut self) -> bool {
        if self.left == 0 {
            return false;
        }
        self.left -= 1;
        if self.qp.is_none() {
            self.connect();
        }
        if let Some(qp) = self.qp {
            match &self.role {
                Role::Client { .. } => self.say_call(qp),
                Role::Server { .. } => self.say_reply(qp),
            }
            self.fabric.flush();
        }
        true
    }

    pub(crate) fn turn(&mut self) {
        self.adopt_accepted();
        self.fabric.poll(&mut self.batch);
        // Polling takes the wake of a connection that came together with the one adopted here.
        if self.has_accepted() {
            self.waker.wake();
        }
        let mut batch = std::mem::replace(&mut self.batch, Completions::with_limit(0));
        for completion in batch.drain() {
            match completion.kind {
                CompletionKind::Received { message, .. } => self.hear(completion.qp, message),
                CompletionKind::Down { .. } => {
                    self.qp = self.qp.filter(|qp| *qp != completion.qp);
                    self.exposed.clear();
                    self.kept.clear();
                }
                CompletionKind::Read { .. }
                | CompletionKind::Revoked { .. }
                | CompletionKind::RecvFlushed { .. } => {}
            }
        }
        self.batch = batch;
        self.fabric.flush();
    }

    pub(crate) fn close(&mut self) {
        self.left = 0;
        if let Some(qp) = self.qp.take() {
            self.fabric.close(qp);
        }
    }

    fn connect(&mut self) {
        let Role::Client { address, said } = &self.role else { return };
        let made = self.connector.connect(&ConnectRequest {
            private_data: said,
            ..ConnectRequest::new(address, Duration::ZERO)
        });
        if let Ok(endpoint) = made {
            self.adopt(endpoint);
        }
    }

    fn adopt_accepted(&mut self) {
        let Role::Server { accepted, .. } = &self.role else { return };
        let endpoint = accepted.lock().unwrap_or_else(PoisonError::into_inner).pop();
        if let Some(endpoint) = endpoint {
            self.adopt(endpoint);
        }
    }

    fn has_accepted(&self) -> bool {
        let Role::Server { accepted, .. } = &self.role else { return false };
        !accepted.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// The ends of connections that have become its own since the last time.
    pub(crate) fn take_sides(&mut self) -> Vec<SideId> {
        std::mem::take(&mut self.sides)
    }

    fn adopt(&mut self, endpoint: Endpoint) {
        self.sides.extend(endpoint.side());
        let Ok(qp) = self.fabric.adopt(endpoint) else { return };
        if let Some(before) = self.qp.replace(qp) {
            self.fabric.close(before);
        }
        while let Some(buf) = self.receives.take() {
            if self.fabric.post_recv(qp, buf).is_err() {
                return;
            }
        }
    }

    fn hear(&mut self, qp: QpId, message: Buf) {
        if self.kept.len() < 16 {
            self.kept.push(message.bytes().to_vec());
        }
        if self.is_ready {
            drop(self.fabric.post_recv(qp, message));
        }
        if matches!(self.role, Role::Server { .. }) && self.rng.chance(800) {
            self.say_reply(qp);
        }
    }

    /// Sends words, now and then damaged.
    fn send(&mut self, qp: QpId, words: &[u32], invalidate: Option<u32>) {
        let mut bytes = bytes_of(words);
        match self.rng.below(20) {
            0 => bytes.truncate(self.rng.below(bytes.len() as u64 + 1) as usize),
            1 => self.damage(&mut bytes),
            _ => {}
        }
        bytes.truncate(BUFFER_BYTES);
        let Some(mut message) = self.sends.take() else { return };
        message.set_range(0..bytes.len());
        message.bytes_mut().copy_from_slice(&bytes);
        drop(self.fabric.post(qp, SendWr::Send { message, invalidate }));
    }

    fn damage(&mut self, bytes: &mut [u8]) {
        for _ in 0..self.rng.within((1, 3)) {
            let at = self.rng.below(bytes.len() as u64) as usize & !3;
            let word = self.rng.pick(&[0, 1, 2, 16, 255, u32::MAX, 0x8000_0000]);
            if let Some(place) = bytes.get_mut(at..at + 4) {
                place.copy_from_slice(&word.to_be_bytes());
            }
        }
    }

    /// Exposes memory of this peer that the engine may reach; returns a dead or a wrong key when
    /// there is none.
    fn expose(&mut self, qp: QpId, length: usize, access: Access) -> RemoteSlice {
        let nowhere = RemoteSlice { handle: 0x0bad_0001, length: length as u32, offset: 4096 };
        let Some(mut bulk) = self.fabric.bulk(qp, length.min(BLOCK_BYTES)) else { return nowhere };
        let lease = bulk.lease(0..length.min(BLOCK_BYTES));
        let Ok(slice) = self.fabric.expose(qp, lease, access, None) else { return nowhere };
        self.exposed.push(slice);
        slice
    }

    /// A slice that is somehow not what it should be, or is.
    fn twist(&mut self, slice: RemoteSlice) -> RemoteSlice {
        match self.rng.below(12) {
            0 => RemoteSlice { handle: slice.handle ^ 1 << self.rng.below(32), ..slice },
            1 => RemoteSlice { length: slice.length + 1, ..slice },
            2 => RemoteSlice { length: self.rng.any() as u32, ..slice },
            3 => RemoteSlice { offset: slice.offset.wrapping_add(1), ..slice },
            4 => RemoteSlice { offset: u64::MAX - 2, ..slice },
            _ => slice,
        }
    }

    /// Touches memory of the engine under whatever key.
    fn touch(&mut self, qp: QpId, slice: RemoteSlice) {
        let length = (slice.length as usize).min(BLOCK_BYTES);
        let remote = RemoteSlice { length: length as u32, ..slice };
        let Some(mut bulk) = self.fabric.bulk(qp, length) else { return };
        let lease = bulk.lease(0..length);
        let wr = match self.rng.chance(500) {
            true => SendWr::Write { from: lease, to: remote },
            false => SendWr::Read { id: WrId(0), from: remote, into: lease },
        };
        drop(self.fabric.post(qp, wr));
    }

    /// Takes back what it exposed, as an engine does when its call is over, or too early.
    fn revoke_some(&mut self, qp: QpId) {
        while self.exposed.len() > self.rng.below(6) as usize {
            let slice = self.exposed.remove(0);
            self.fabric.revoke(qp, slice.handle);
        }
    }
}

fn pool() -> Option<BufPool> {
    let bytes = BufPool::region_bytes(BUFFER_BYTES, BUFFERS).ok()? + 64;
    BufPool::new(Region::from_boxed(vec![0; bytes].into()), BUFFER_BYTES, BUFFERS).ok()
}

/// The words of an RPC call header (RFC 5531 section 9).
fn rpc_call(xid: u32, procedure: u32) -> Vec<u32> {
    vec![xid, 0, 2, PROGRAM.0, VERSION.0, procedure, 0, 0, 0, 0]
}

fn segment_words(slice: RemoteSlice) -> [u32; 4] {
    [slice.handle, slice.length, (slice.offset >> 32) as u32, slice.offset as u32]
}

fn read_words(position: u32, slice: RemoteSlice) -> Vec<u32> {
    [&[1, position][..], &segment_words(slice)].concat()
}

/// Memory as a peer names it that registers so many bytes at a time.
fn pages(slice: RemoteSlice, bytes: u32) -> Vec<RemoteSlice> {
    let starts = (0..slice.length.min(BLOCK_BYTES as u32)).step_by(bytes as usize);
    let page = |at| RemoteSlice {
        length: bytes.min(slice.length - at),
        offset: slice.offset.wrapping_add(u64::from(at)),
        ..slice
    };
    starts.map(page).collect()
}

fn chunk_words(slices: &[RemoteSlice]) -> Vec<u32> {
    let mut words = vec![1, slices.len() as u32];
    slices.iter().for_each(|slice| words.extend(segment_words(*slice)));
    words
}
