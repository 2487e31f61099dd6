//! Two ends of a connection on one thread, and the operations of tests on them.

use super::*;
use crate::mem::{Buf, BufPool, Region};
use crate::sys::mmap::{Mapping, PageRequest};
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, channel};

/// Time limit: an operation that takes longer has failed. A device in an emulated guest once took more than 20 s to destroy queue
/// pairs while its host built programs.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) trait Provider: Sync {
    type Connector: Connector;

    /// A control plane with room for 64 connections per core, arenas of 2 MiB or more, at most 32
    /// work requests and receives per queue, and at most 100 ms of patience with a receiver that is
    /// not ready.
    fn connector(&self) -> Self::Connector;

    /// An address that no other test uses.
    fn address(&self) -> String;

    /// Deviations of this driver, or of the device below it.
    fn limits(&self) -> Limits {
        Limits::default()
    }

    /// True if an end that should report `expected` may report `told` instead, because the device
    /// does not tell more.
    fn agrees(expected: &DownCause, told: &DownCause) -> bool {
        expected == told
    }
}

/// Deviations of a device from what the suite expects of the others.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Limits {
    /// A message without a receive ends the connection at once: iWARP has no "receiver not ready"
    /// (RFC 5041 section 5.3).
    pub(crate) never_waits_for_receives: bool,
    /// The driver leaves the end of a connection whose messages find no receive to the reactor
    /// ([`Fabric::outstanding`]).
    pub(crate) waits_without_end: bool,
    /// The accepting end says nothing before it has heard the other one (MPA, RFC 5044 section
    /// 7.1.2).
    pub(crate) connector_speaks_first: bool,
    /// A connection is accepted when its core has adopted it.
    pub(crate) accepts_when_adopted: bool,
    /// Keys live as long as the connection, and name the same memory all the time.
    pub(crate) keys_stay: bool,
    /// An exposure is a work request: a key is alive when the next Send arrives.
    pub(crate) exposes_by_request: bool,
    /// Invalidating a key that is not alive ends the connection.
    pub(crate) invalidates_strictly: bool,
    /// Exposed memory is not leased: the peer is trusted.
    pub(crate) leases_nothing: bool,
    pub(crate) bounds: Bounds,
    /// Memory exposed for writing can be read, too.
    pub(crate) reads_without_the_right: bool,
    /// Memory exposed for reading can be written, too.
    pub(crate) writes_without_the_right: bool,
    /// A long transfer delays messages of other connections.
    pub(crate) sends_one_by_one: bool,
    /// The device decides whose messages move next: it may serve one connection many times before
    /// another.
    pub(crate) serves_in_its_own_order: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(not(feature = "verbs"), expect(dead_code, reason = "others keep to what is exposed"))]
pub(crate) enum Bounds {
    /// The exposed range.
    #[default]
    Exact,
    /// The block it lies in.
    Block,
    /// The region it lies in.
    Region,
}

/// A completion, its buffers given back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A message: its bytes, and the key it invalidated.
    Message(Vec<u8>, Option<u32>),
    Read(WrId, Result<(), WrError>),
    Revoked(u32),
    RecvFlushed,
    Down(DownCause),
}

fn pool_of(buf_bytes: usize, count: usize) -> BufPool {
    let region_bytes = BufPool::region_bytes(buf_bytes, count).unwrap();
    let region = Mapping::anonymous(region_bytes, PageRequest::default()).unwrap();
    BufPool::new(Region::from_mapping(region), buf_bytes, count).unwrap()
}

/// One end: a data plane and its buffers.
pub(crate) struct End<F: Fabric> {
    pub(crate) fabric: F,
    pool: BufPool,
    batch: Completions,
    events: VecDeque<(QpId, Event)>,
    /// The driver hands short messages over by value.
    pub(crate) takes_shorts: bool,
    /// Messages that came by value.
    pub(crate) shorts: usize,
    /// The receives of those are kept.
    pub(crate) keeps_shorts: bool,
    kept: Vec<Buf>,
}

impl<F: Fabric> End<F> {
    pub(crate) fn new(fabric: F) -> Self {
        const BUFFERS: usize = 4096;
        let buf_bytes = fabric.caps().message_bytes_max;
        Self {
            fabric,
            pool: pool_of(buf_bytes, BUFFERS),
            batch: Completions::with_limit(16),
            events: VecDeque::new(),
            takes_shorts: false,
            shorts: 0,
            keeps_shorts: false,
            kept: Vec::new(),
        }
    }

    pub(crate) fn message(&self, bytes: &[u8]) -> Buf {
        let mut buf = self.pool.take().expect("the test has too many buffers out");
        buf.set_range(0..bytes.len());
        buf.bytes_mut().copy_from_slice(bytes);
        buf
    }

    pub(crate) fn post_recvs(&mut self, qp: QpId, count: usize) {
        for _ in 0..count {
            let buf = self.message(&[]);
            self.fabric.post_recv(qp, buf).expect("the receive queue is full");
        }
        self.fabric.flush();
    }

    /// Posts a receive that takes no more than `bytes`.
    pub(crate) fn post_recv_of(&mut self, qp: QpId, bytes: usize) {
        let buf = pool_of(bytes, 1).take().expect("the only buffer");
        self.fabric.post_recv(qp, buf).expect("the receive queue is full");
        self.fabric.flush();
    }

    pub(crate) fn send(&mut self, qp: QpId, bytes: &[u8]) {
        assert!(self.try_send(qp, bytes), "the send queue is full");
    }

    /// Posts a Send; false when the queue is full.
    pub(crate) fn try_send(&mut self, qp: QpId, bytes: &[u8]) -> bool {
        let message = self.message(bytes);
        self.fabric.post(qp, SendWr::Send { message, invalidate: None }).is_ok()
    }

    pub(crate) fn post(&mut self, qp: QpId, wr: SendWr) {
        self.fabric.post(qp, wr).expect("the send queue is full");
    }

    pub(crate) fn bulk(&mut self, qp: QpId, bytes: &[u8]) -> Bulk {
        let mut bulk = self.fabric.bulk(qp, bytes.len()).expect("the arena is used up");
        bulk.copy_from(0, bytes);
        bulk
    }

    /// Revokes a key and takes turns until it is dead.
    pub(crate) fn revoke(&mut self, qp: QpId, handle: u32) {
        if self.fabric.revoke(qp, handle) == Revoked::Now {
            return;
        }
        let start = Instant::now();
        let dead = Event::Revoked(handle);
        while !self.events.contains(&(qp, dead.clone())) {
            assert!(start.elapsed() < PATIENCE, "key {handle} does not die");
            self.turn();
        }
        self.events.retain(|(of, event)| (*of, event) != (qp, &dead));
    }

    /// Ends a connection, and takes turns until that is done.
    pub(crate) fn close(&mut self, qp: QpId) {
        self.fabric.close(qp);
        let start = Instant::now();
        while !self.events.iter().any(|(of, event)| *of == qp && matches!(event, Event::Down(_))) {
            assert!(start.elapsed() < PATIENCE, "the connection does not end");
            self.turn();
        }
        self.events.retain(|(of, _)| *of != qp);
    }

    /// As many short messages as a batch would hold.
    fn take_shorts(&mut self) {
        let mut short = Short::EMPTY;
        let mut room = self.batch.room();
        while room > 0
            && let Some(NextShort { qp, goes_on, .. }) = self.fabric.next_short(&mut short)
        {
            let endpoint = self
                .fabric
                .short_endpoint(qp)
                .expect("endpoint of a connection with a short message");
            let mut taken = Some(goes_on);
            while let Some(goes_on) = taken {
                assert_eq!(endpoint.room(), self.fabric.room(qp));
                room -= 1;
                self.shorts += 1;
                if self.keeps_shorts {
                    self.kept.extend(self.fabric.receive_of_short(qp));
                }
                self.events.push_back((qp, Event::Message(short.bytes().to_vec(), None)));
                taken = if goes_on && room > 0 { endpoint.take(&mut short) } else { None };
            }
        }
    }

    fn take_received(&mut self) {
        while let Some(Received { qp, message, invalidated }) = self.batch.next_received() {
            self.events.push_back((qp, Event::Message(message.bytes().to_vec(), invalidated)));
        }
    }

    pub(crate) fn kept(&mut self) -> usize {
        std::mem::take(&mut self.kept).len()
    }

    /// Sends by value, where the driver does and there is room; else posts a Send.
    pub(crate) fn send_short(&mut self, qp: QpId, bytes: &[u8]) {
        let mut short = Short::EMPTY;
        if let Some(room) = short.whole_mut().get_mut(..bytes.len()) {
            room.copy_from_slice(bytes);
            short.set_len(bytes.len());
            if self
                .fabric
                .short_endpoint(qp)
                .is_some_and(|endpoint| endpoint.send(short.head(), &short, short.length()))
            {
                return;
            }
        }
        self.send(qp, bytes);
    }

    /// One turn: takes messages that have arrived, then sends.
    pub(crate) fn turn(&mut self) {
        self.take_shorts();
        self.fabric.poll(&mut self.batch);
        self.take_received();
        for completion in self.batch.drain() {
            let event = match completion.kind {
                CompletionKind::Received { .. } => continue,
                CompletionKind::Read { id, result } => Event::Read(id, result),
                CompletionKind::Revoked { handle } => Event::Revoked(handle),
                CompletionKind::RecvFlushed { .. } => Event::RecvFlushed,
                CompletionKind::Down { cause } => Event::Down(cause),
            };
            self.events.push_back((completion.qp, event));
        }
        self.fabric.flush();
    }

    /// Has short messages come by value, where the driver does that.
    pub(crate) fn accept_shorts(&mut self) {
        self.fabric.begin(None, true);
        self.takes_shorts = self.fabric.caps().takes_shorts;
    }

    pub(crate) fn next(&mut self, qp: QpId) -> Option<Event> {
        let at = self.events.iter().position(|(of, _)| *of == qp)?;
        self.events.remove(at).map(|(_, event)| event)
    }
}

pub(crate) struct Pair<C: Connector> {
    /// The connecting end, core 0.
    pub(crate) near: End<C::Fabric>,
    /// The accepting end, core 1.
    pub(crate) far: End<C::Fabric>,
    /// The first connection, as the connecting end knows it.
    pub(crate) at_near: QpId,
    /// The same, as the accepting end knows it.
    pub(crate) at_far: QpId,
    pub(crate) connector: C,
    pub(crate) address: String,
    pub(crate) limits: Limits,
    agrees: fn(&DownCause, &DownCause) -> bool,
    endpoints: Receiver<Endpoint>,
    _listener: Box<dyn Send>,
}

impl<C: Connector> Pair<C> {
    pub(crate) fn new<P: Provider<Connector = C>>(provider: &P) -> Self {
        Self::prepared(provider, false)
    }

    /// The same, whose ends take short messages by value where the driver does.
    pub(crate) fn with_shorts<P: Provider<Connector = C>>(provider: &P) -> Self {
        Self::prepared(provider, true)
    }

    fn prepared<P: Provider<Connector = C>>(provider: &P, takes_shorts: bool) -> Self {
        let connector = provider.connector();
        let address = provider.address();
        let (acceptor, endpoints) = accept_into_channel(Some(1));
        let listener = connector
            .listen(
                &ListenRequest {
                    private_data: b"from the listener",
                    ..ListenRequest::new(&address)
                },
                acceptor,
            )
            .unwrap();
        let mut near = End::new(connector.fabric(0).unwrap());
        let mut far = End::new(connector.fabric(1).unwrap());
        if takes_shorts {
            near.accept_shorts();
            far.accept_shorts();
        }
        let nobody = QpId::new(0, 0);
        let mut pair = Self {
            near,
            far,
            at_near: nobody,
            at_far: nobody,
            connector,
            address,
            limits: provider.limits(),
            agrees: P::agrees,
            endpoints,
            _listener: listener,
        };
        (pair.at_near, pair.at_far) = pair.connect();
        pair
    }

    /// A further connection, of which the accepting end gets its endpoint by `adopt`, while the other
    /// one is still connecting. `None` if nothing came of it.
    pub(crate) fn connect_with<T>(
        &mut self,
        adopt: impl FnOnce(&mut End<C::Fabric>, Endpoint) -> T,
    ) -> (Option<Endpoint>, T) {
        let Self { connector, address, endpoints, far, .. } = self;
        std::thread::scope(|scope| {
            let connect = || {
                connector.connect(&ConnectRequest {
                    private_data: b"from the connector",
                    ..ConnectRequest::new(address, PATIENCE)
                })
            };
            let connecting = scope.spawn(connect);
            let Ok(endpoint) = endpoints.recv_timeout(PATIENCE) else {
                let why = connecting.join().unwrap().err();
                panic!("no connection came: {why:?}");
            };
            let adopted = adopt(far, endpoint);
            while !connecting.is_finished() {
                far.turn();
            }
            (connecting.join().unwrap().ok(), adopted)
        })
    }

    pub(crate) fn connect(&mut self) -> (QpId, QpId) {
        let (near, at_far) = self.connect_with(|far, endpoint| {
            assert!(!endpoint.peer.to_string().is_empty());
            far.fabric.adopt(endpoint).unwrap()
        });
        let near = near.expect("the connection failed");
        assert!(!near.peer.to_string().is_empty());
        let at_near = self.near.fabric.adopt(near).unwrap();
        if self.limits.connector_speaks_first {
            self.far.post_recvs(at_far, 1);
            self.near.send(at_near, b"first");
            assert_eq!(self.next_far(at_far), Event::Message(b"first".to_vec(), None));
        }
        (at_near, at_far)
    }

    /// Waits until the memory that the accepting end has exposed on its first connection can be
    /// reached.
    pub(crate) fn settle(&mut self) {
        if !self.limits.exposes_by_request {
            return;
        }
        self.near.post_recvs(self.at_near, 1);
        self.far.send(self.at_far, b"settled");
        assert_eq!(self.next_near(self.at_near), Event::Message(b"settled".to_vec(), None));
    }

    pub(crate) fn turn(&mut self) {
        self.near.turn();
        self.far.turn();
    }

    /// Takes turns until `done` has a result.
    pub(crate) fn until<T>(
        &mut self,
        what: &str,
        mut done: impl FnMut(&mut Self) -> Option<T>,
    ) -> T {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            if let Some(result) = done(self) {
                return result;
            }
            self.turn();
        }
        panic!("waited in vain for {what}; unseen: {:?} {:?}", self.near.events, self.far.events);
    }

    pub(crate) fn next_near(&mut self, qp: QpId) -> Event {
        self.until("an event at the connecting end", |pair| pair.near.next(qp))
    }

    pub(crate) fn next_far(&mut self, qp: QpId) -> Event {
        self.until("an event at the accepting end", |pair| pair.far.next(qp))
    }

    /// Expects the first connection to end, at both sides; other events are ignored.
    pub(crate) fn expect_down(&mut self) -> (DownCause, DownCause) {
        let near = down(|| self.next_near(self.at_near));
        let far = down(|| self.next_far(self.at_far));
        (near, far)
    }

    /// True if an end that should report `expected` may report `told` instead.
    pub(crate) fn agrees(&self, expected: &DownCause, told: &DownCause) -> bool {
        (self.agrees)(expected, told)
    }

    /// Expects the first connection to end, and both sides to know why, as far as the device says.
    #[track_caller]
    pub(crate) fn expect_causes(&mut self, near: &DownCause, far: &DownCause) {
        let told = self.expect_down();
        assert!(self.agrees(near, &told.0), "the connecting end: {:?}, not {near:?}", told.0);
        assert!(self.agrees(far, &told.1), "the accepting end: {:?}, not {far:?}", told.1);
    }

    pub(crate) fn expect_alive(&mut self) {
        self.far.post_recvs(self.at_far, 1);
        self.near.send(self.at_near, b"alive");
        assert_eq!(self.next_far(self.at_far), Event::Message(b"alive".to_vec(), None));
    }
}

/// The bytes in use, which a peer may be able to write.
pub(crate) fn bytes_of(bulk: &Bulk) -> Vec<u8> {
    let mut bytes = vec![0; bulk.len()];
    bulk.copy_to(0, &mut bytes);
    bytes
}

fn down(mut next: impl FnMut() -> Event) -> DownCause {
    loop {
        if let Event::Down(cause) = next() {
            return cause;
        }
    }
}

/// An acceptor that puts every connection on one core and hands it over; `None` refuses them.
pub(crate) fn accept_into_channel(core: Option<usize>) -> (Box<dyn Acceptor>, Receiver<Endpoint>) {
    struct HandOver(Option<usize>, Sender<Endpoint>);
    impl Acceptor for HandOver {
        fn pick_core(&mut self, full: &[usize]) -> Option<usize> {
            self.0.filter(|core| !full.contains(core))
        }

        fn accepted(&mut self, _core: usize, endpoint: Endpoint) {
            // A test that has ended does not want it.
            let _ = self.1.send(endpoint);
        }
    }
    let (sender, receiver) = channel();
    (Box::new(HandOver(core, sender)), receiver)
}

/// Bytes that tell their place and their message.
pub(crate) fn pattern(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31 + at / 251 + seed * 17) as u8).collect()
}
