//! A peer that is a plain socket: it says whatever a test wants.

use super::super::wire::{
    Answer, Arrival, Crc, HEADER_BYTES_MAX, Parsed, ReadSink, Readable, Receiver, Sender,
};
use super::*;
use crate::sys::socket_option::limit_segment_bytes;
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use std::net::SocketAddr;
use std::sync::mpsc;

pub(super) const PATIENCE: Duration = Duration::from_secs(20);

pub(super) struct RawPeer {
    pub(super) socket: TcpStream,
    sender: Sender,
    receiver: Receiver,
    received: Vec<u8>,
    uses_crc: bool,
}

pub(super) fn local(revision: u8) -> Local {
    Local { revision, crc: true, ird: 16, ord: 16, peer_to_peer: true }
}

impl RawPeer {
    /// Asks for a connection. `None` if it is closed without an answer.
    fn connect(mut socket: TcpStream, local: &Local) -> Option<Self> {
        write_frame(&mut socket, &local.request(b"raw"));
        let reply = read_frame(&mut socket, FrameKind::Reply)?;
        let Ok(Parsed::Done((reply, _))) = Frame::parse(FrameKind::Reply, &reply) else {
            panic!("no reply");
        };
        Some(Self::new(socket, &local.conclude(&reply).unwrap(), false))
    }

    pub(super) fn new(socket: TcpStream, agreed: &Agreed, accepted: bool) -> Self {
        Self {
            socket,
            sender: Sender::new(1 << 16),
            receiver: Receiver::new(agreed, accepted),
            received: Vec::new(),
            uses_crc: agreed.crc,
        }
    }

    /// Takes the next connection, and answers it.
    pub(super) fn accept(listener: &TcpListener) -> Self {
        let mut socket = listener.accept().unwrap().0;
        let request = read_frame(&mut socket, FrameKind::Request).unwrap();
        let Ok(Parsed::Done((request, _))) = Frame::parse(FrameKind::Request, &request) else {
            panic!("no request");
        };
        let Answer::Accept(reply, agreed) = local(2).answer(&request, &[]) else {
            panic!("it wants markers");
        };
        write_frame(&mut socket, &reply);
        Self::new(socket, &agreed, true)
    }

    /// The FPDUs of a message.
    pub(super) fn frame(&mut self, message: Message, payload: &[u8]) -> Vec<u8> {
        if let Message::Read(request) = &message {
            let (stag, offset, length) = (request.sink_stag, request.sink_offset, request.length);
            self.receiver.expect_read(ReadSink { stag, offset, length }).unwrap();
        }
        self.sender.start(message).unwrap();
        self.fpdus(payload)
    }

    pub(super) fn respond(&mut self, response: ReadResponse, payload: &[u8]) -> Vec<u8> {
        self.sender.respond(response).unwrap();
        self.fpdus(payload)
    }

    fn fpdus(&mut self, payload: &[u8]) -> Vec<u8> {
        let (mut bytes, mut header) = (Vec::new(), [0; HEADER_BYTES_MAX]);
        while let Some(segment) = self.sender.next(&mut header) {
            let (header, at) = (&header[..segment.header_bytes], segment.offset as usize);
            let part = payload.get(at..at + segment.length as usize).unwrap_or_default();
            let mut crc = Crc::new();
            crc.update(header);
            crc.update(part);
            let crc = self.uses_crc.then_some(crc);
            bytes.extend([header, part, segment.trailer(crc).bytes()].concat());
        }
        bytes
    }

    pub(super) fn send(&mut self, payload: &[u8], invalidate: Option<u32>) {
        let length = payload.len() as u32;
        let bytes = self.frame(Message::Send { length, invalidate, solicited: false }, payload);
        self.socket.write_all(&bytes).unwrap();
    }

    /// The next FPDU's meaning and payload (blocks); `None` when the other end has closed.
    pub(super) fn next(&mut self) -> Option<(WireEvent, Vec<u8>)> {
        loop {
            let readable = Readable::new(&self.received, &[]);
            match self.receiver.next(readable, Some(1 << 20)).unwrap() {
                Parsed::Done(Arrival { event, bytes }) => {
                    let payload = match &event {
                        WireEvent::Send { payload, .. }
                        | WireEvent::Write { payload, .. }
                        | WireEvent::ReadResponse { payload, .. } => {
                            self.received[payload.clone()].to_vec()
                        }
                        _ => Vec::new(),
                    };
                    self.received.drain(..bytes);
                    return Some((event, payload));
                }
                Parsed::Need(_) => {
                    let mut bytes = [0; 4096];
                    match self.socket.read(&mut bytes).unwrap() {
                        0 => return None,
                        count => self.received.extend(&bytes[..count]),
                    }
                }
            }
        }
    }
}

/// A connection from one of the hosts that the loopback interface has, by the last byte of its address.
pub(super) fn dial(address: &str, host: u8, mss: Option<u32>) -> TcpStream {
    let peer: SocketAddr = address.trim_start_matches("iwarp://").parse().unwrap();
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    if let Some(mss) = mss {
        limit_segment_bytes(&socket, mss).unwrap();
    }
    bind(&socket, &SocketAddr::from(([127, 0, 0, host], 0))).unwrap();
    connect(&socket, &peer).unwrap();
    let socket = TcpStream::from(socket);
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.set_nodelay(true).unwrap();
    socket
}

pub(super) fn write_frame(socket: &mut TcpStream, frame: &Frame<'_>) {
    let mut bytes = [0; super::super::wire::FRAME_BYTES_MAX];
    let length = frame.emit(&mut bytes).unwrap();
    socket.write_all(&bytes[..length]).unwrap();
}

/// The bytes of a frame, and nothing behind it. `None` if the stream ends before.
pub(super) fn read_frame(socket: &mut TcpStream, kind: FrameKind) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    while let Parsed::Need(needed) = Frame::parse(kind, &bytes).map(without_frame).unwrap() {
        let mut more = vec![0; needed - bytes.len()];
        let count = socket.read(&mut more).ok().filter(|count| *count > 0)?;
        bytes.extend(&more[..count]);
    }
    Some(bytes)
}

fn without_frame(parsed: Parsed<(Frame<'_>, usize)>) -> Parsed<()> {
    match parsed {
        Parsed::Need(bytes) => Parsed::Need(bytes),
        Parsed::Done(_) => Parsed::Done(()),
    }
}

/// A data plane that listens.
pub(super) struct Server {
    pub(super) end: End<IwarpFabric>,
    pub(super) address: String,
    endpoints: mpsc::Receiver<Endpoint>,
    _listener: Box<dyn Send>,
}

impl Server {
    pub(super) fn new() -> Self {
        Self::with(config())
    }

    pub(super) fn with(config: IwarpConfig) -> Self {
        let connector = IwarpConnector::new(config);
        let address = address();
        let (acceptor, endpoints) = accept_into_channel(Some(0));
        let _listener = connector.listen(&ListenRequest::new(&address), acceptor).unwrap();
        Self { end: End::new(connector.fabric(0).unwrap()), address, endpoints, _listener }
    }

    /// A connection of a peer that is a plain socket.
    pub(super) fn connect(&mut self) -> (RawPeer, QpId) {
        self.connect_by(dial(&self.address, 1, None), &local(2)).expect("the connection is refused")
    }

    pub(super) fn connect_by(
        &mut self,
        socket: TcpStream,
        local: &Local,
    ) -> Option<(RawPeer, QpId)> {
        let peer = RawPeer::connect(socket, local)?;
        let endpoint = self.endpoints.recv_timeout(PATIENCE).unwrap();
        assert!(endpoint.peer_private_data.starts_with(b"raw\0"));
        Some((peer, self.end.fabric.adopt(endpoint).unwrap()))
    }

    pub(super) fn next(&mut self, qp: QpId) -> Event {
        next(&mut self.end, qp)
    }

    /// Cause of the end of a connection; other events are dropped.
    pub(super) fn down(&mut self, qp: QpId) -> DownCause {
        loop {
            if let Event::Down(cause) = self.next(qp) {
                return cause;
            }
        }
    }
}

pub(super) fn next(end: &mut End<IwarpFabric>, qp: QpId) -> Event {
    let start = Instant::now();
    loop {
        end.turn();
        if let Some(event) = end.next(qp) {
            return event;
        }
        assert!(start.elapsed() < PATIENCE, "waited in vain for an event");
    }
}

/// A data plane with a connection to a plain socket that listens.
pub(super) fn client() -> (End<IwarpFabric>, QpId, RawPeer) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("iwarp://{}", listener.local_addr().unwrap());
    let connector = IwarpConnector::new(config());
    std::thread::scope(|scope| {
        let connecting =
            scope.spawn(|| connector.connect(&ConnectRequest::new(&address, PATIENCE)));
        let peer = RawPeer::accept(&listener);
        peer.socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut end = End::new(connector.fabric(0).unwrap());
        let qp = end.fabric.adopt(connecting.join().unwrap().unwrap()).unwrap();
        (end, qp, peer)
    })
}
