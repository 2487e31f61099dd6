//! From the reactor to the application: finds the service of a call and the handler of a reply,
//! and runs it.

use super::call::{Arguments, Call, CallState};
use super::client::{Link, LinkState, Reply, ReplyHandler, Token};
use super::config_protocol::Asking;
use super::core::CONNECT_TIMEOUT;
use super::errors::{CallError, ConnectError};
use super::service::{ConnectionEvent, ConnectionId, Service};
use crate::fabric::{ConnId, DownCause, FabricError};
use crate::mem::Bulk;
use crate::reactor::Negotiated;
use crate::reactor::chains::Padded;
use crate::reactor::connection::Sinks;
use crate::reactor::ops::{
    Admitted, CallEnd, CallFrame, CallOutcome, CallSpec, CoreOps, ReplyFrame, ReplyTarget,
    RpcRefusal, Upcalls,
};
use spinrpc_proto::alignment::Alignment;
use spinrpc_proto::ids::{Procedure, Program, Version};
use spinrpc_proto::rdma::v1::{MSG_HEADER_BYTES, MSGP_FIELDS_BYTES, alignment_of};
use spinrpc_proto::rpc::{
    self, AcceptStatus, CallHeader, RPC_VERSION, RejectStatus, ReplyBody, ReplyHeader,
};
use spinrpc_proto::xdr::Reader;
use std::cell::Cell;
use std::rc::Rc;

/// The NULL procedure, which every program has (RFC 5531 section 12).
const NULL: Procedure = Procedure(0);

/// One program of one core.
pub(super) struct ServiceEntry {
    pub(super) program: Program,
    pub(super) version: Version,
    pub(super) service: Box<dyn Service>,
}

/// One client of one core.
pub(super) struct ClientEntry {
    pub(super) link: Rc<Link>,
    pub(super) handler: Box<dyn ReplyHandler>,
    address: String,
    conn: Option<ConnId>,
    up: Option<(String, Negotiated)>,
    /// There until the server has answered the Connection Configuration Protocol, or failed to.
    asking: Option<Rc<Asking>>,
    /// The connection is lost to a server that did not bear being asked: another one is made.
    starts_over: bool,
    failed_calls: usize,
}

impl ClientEntry {
    pub(super) fn new(link: Rc<Link>, handler: Box<dyn ReplyHandler>, address: &str) -> Self {
        Self {
            link,
            handler,
            address: address.to_owned(),
            conn: None,
            up: None,
            asking: None,
            starts_over: false,
            failed_calls: 0,
        }
    }

    fn fail(&mut self, error: ConnectError) {
        self.link.state.set(LinkState::Down);
        *self.link.failure.borrow_mut() = Some(error.clone());
        self.handler.on_event(&ConnectionEvent::ConnectFailed { error });
    }
}

/// The application's side of a core.
pub(super) struct Dispatch {
    ops: Rc<dyn CoreOps>,
    services: Vec<ServiceEntry>,
    /// By index of the connection.
    clients: Vec<Option<ClientEntry>>,
    connecting: Vec<(u64, ClientEntry)>,
    /// What a new connection begins with, if configured.
    asking: Option<Rc<Asking>>,
}

impl Dispatch {
    pub(super) fn new(
        ops: Rc<dyn CoreOps>,
        services: Vec<ServiceEntry>,
        asking: Option<Rc<Asking>>,
    ) -> Self {
        Self { ops, services, clients: Vec::new(), connecting: Vec::new(), asking }
    }

    pub(super) fn ops(&self) -> Rc<dyn CoreOps> {
        Rc::clone(&self.ops)
    }

    pub(super) fn add_client(&mut self, request: u64, mut entry: ClientEntry) {
        entry.asking = self.asking.clone();
        self.connecting.push((request, entry));
    }

    #[inline]
    fn client(&mut self, conn: ConnId) -> Option<&mut ClientEntry> {
        let entry = self.clients.get_mut(conn.index() as usize)?.as_mut()?;
        (entry.conn == Some(conn)).then_some(entry)
    }

    #[inline]
    fn find(&self, program: Program, version: Version) -> Option<usize> {
        self.services.iter().position(|entry| entry.program == program && entry.version == version)
    }

    /// The answer when there is no such service (RFC 5531 section 9).
    #[cold]
    fn not_served(&self, program: Program) -> AcceptStatus {
        let served = self.services.iter().filter(|entry| entry.program == program);
        let versions = served.map(|entry| entry.version.0);
        match (versions.clone().min(), versions.max()) {
            (Some(low), Some(high)) => AcceptStatus::ProgMismatch { low, high },
            _ => AcceptStatus::ProgUnavail,
        }
    }

    // In place, like the other steps of a plain call: the cores of all drivers have this code, so
    // that the compiler finds too many callers to do it unasked.
    #[inline(always)]
    fn serve(
        &mut self,
        to: &ReplyTarget<'_>,
        stream: &[u8],
        chunks: &[(u32, u32)],
        bulks: &mut [Option<Bulk>],
    ) -> CallOutcome {
        match CallHeader::parse(stream) {
            Ok((header, base)) => {
                let stream = &stream[base..];
                self.run(to, header, Arguments { stream, base, chunks, bulks }, None)
            }
            Err(error) => self.refuse(to, &refusal(&error)),
        }
    }

    /// As [`Dispatch::serve`], for a call that came in an RDMA_MSGP: its credential may be padded,
    /// too.
    #[cold]
    fn serve_padded(
        &mut self,
        to: &ReplyTarget<'_>,
        stream: &[u8],
        chunks: &[(u32, u32)],
        bulks: &mut [Option<Bulk>],
        mut padded: Padded<'_>,
    ) -> CallOutcome {
        let mut reader = Reader::aligned(stream, padded.alignment, padded.start);
        match CallHeader::read(&mut reader) {
            Ok(header) => {
                padded.start += reader.position();
                let (stream, base) = (reader.rest(), reader.stream_position());
                self.run(to, header, Arguments { stream, base, chunks, bulks }, Some(padded))
            }
            Err(error) => self.refuse(to, &refusal(&error)),
        }
    }

    #[inline]
    fn run(
        &mut self,
        to: &ReplyTarget<'_>,
        header: CallHeader<'_>,
        arguments: Arguments<'_>,
        padded: Option<Padded<'_>>,
    ) -> CallOutcome {
        let Some(index) = self.find(header.program, header.version) else {
            let status = self.not_served(header.program);
            return self.refuse(to, &RpcRefusal::Accepted(status));
        };
        // A place of its own: with the lifetime of this function, like the state that points to it.
        let mut padded = padded;
        let state = CallState {
            ops: &*self.ops,
            to: *to,
            header,
            arguments: Cell::new(Some(arguments)),
            padded: Cell::new(padded.as_mut()),
            outcome: Cell::new(None),
        };
        self.services[index].service.call(Call(&state));
        state.outcome.get().unwrap_or(CallOutcome::Done)
    }

    fn refuse(&self, to: &ReplyTarget<'_>, answer: &RpcRefusal) -> CallOutcome {
        self.ops.reject(to, answer);
        CallOutcome::Done
    }

    /// The first message of a connection: that of the Connection Configuration Protocol, or the
    /// first call.
    fn begin(entry: &mut ClientEntry, conn: ConnId) {
        let started = match &entry.asking {
            Some(asking) => asking.start(&*entry.link.ops, conn),
            None => return Self::probe(entry, conn),
        };
        if let Err(refused) = started {
            Self::fail_probe(entry, conn, CallError::NotStarted(refused));
        }
    }

    /// One call opens the window: exactly one credit is there until its reply (RFC 8166 section
    /// 3.3.3), and the application need not know.
    fn probe(entry: &mut ClientEntry, conn: ConnId) {
        let started = entry.link.start(conn, NULL, 0, &mut CallSpec::new(), &|_| {});
        if let Err(refused) = started {
            Self::fail_probe(entry, conn, CallError::NotStarted(refused));
        }
    }

    #[cold]
    fn on_opening_reply(entry: &mut ClientEntry, conn: ConnId, stream: &[u8]) {
        match entry.asking.take() {
            Some(_) => Self::finish_asking(entry, conn, stream),
            None => Self::finish_probe(entry, conn, stream),
        }
    }

    #[cold]
    fn on_opening_failed(entry: &mut ClientEntry, conn: ConnId, error: CallError) {
        match entry.asking.take() {
            Some(_) => Self::fail_asking(entry, conn, error),
            None => Self::fail_probe(entry, conn, error),
        }
    }

    /// The server answered the Connection Configuration Protocol. Whatever it said, the connection
    /// goes on: what cannot be understood, or is an RPC error, binds nobody.
    fn finish_asking(entry: &mut ClientEntry, conn: ConnId, stream: &[u8]) {
        let said = reply_status(stream)
            .and_then(|at| Asking::finish(&*entry.link.ops, conn, &stream[at..]));
        match (said, &mut entry.up) {
            (Ok(Some(configured)), Some((_, negotiated))) => *negotiated = configured,
            (Err(error), _) => tracing::debug!(%error, "connection not configured in-band"),
            _ => {}
        }
        Self::probe(entry, conn);
    }

    /// The server did not answer it with an RPC message. After an RDMA_ERROR the connection goes on.
    /// Without any answer nothing may be sent on it: a client "MUST receive a valid reply [...]
    /// prior to sending its next request" (RFC 5666 section 6.1). Then, and when the server hung up,
    /// another connection is made, on which the server is not asked.
    fn fail_asking(entry: &mut ClientEntry, conn: ConnId, error: CallError) {
        match error {
            CallError::Rdma(_) => return Self::probe(entry, conn),
            CallError::TimedOut => entry.link.ops.close(conn),
            CallError::Disconnected(DownCause::Remote | DownCause::PeerDied) => {}
            other => return Self::fail_probe(entry, conn, other),
        }
        entry.starts_over = true;
        entry.link.state.set(LinkState::Connecting);
    }

    fn start_over(&mut self, mut entry: ClientEntry) {
        entry.conn = None;
        entry.starts_over = false;
        entry.failed_calls = 0;
        let request = self.ops.connect(&entry.address, CONNECT_TIMEOUT);
        self.connecting.push((request, entry));
    }

    /// The first reply of a connection says whether the server serves the program at all.
    fn finish_probe(entry: &mut ClientEntry, conn: ConnId, stream: &[u8]) {
        let status = reply_status(stream).map(|_| ());
        match status {
            Err(error) if !is_served(&error) => Self::fail_probe(entry, conn, error),
            _ => {
                entry.link.state.set(LinkState::Up(conn));
                let Some((peer, negotiated)) = entry.up.take() else { return };
                let connection = ConnectionId(conn);
                entry.handler.on_event(&ConnectionEvent::Up { connection, peer, negotiated });
            }
        }
    }

    /// A call that has data beside its message, or is an RDMA_MSGP.
    #[inline(never)]
    fn on_chunked_call(&mut self, frame: &mut CallFrame) -> CallOutcome {
        if alignment_of(frame.message.bytes()) != Alignment::NONE {
            return self.on_padded_call(frame);
        }
        let message = frame.message.bytes();
        let Admitted { header_bytes, plain, long } = frame.admitted;
        let to = ReplyTarget { conn: frame.conn, slot: frame.slot, message, plain };
        let Some(sinks) = &mut frame.sinks else { return CallOutcome::Done };
        let Sinks { chunks, count, bulks, .. } = &mut **sinks;
        let (chunks, bulks) = (&chunks[..*count], &mut bulks[..*count]);
        if !long {
            return self.serve(&to, &message[header_bytes as usize..], chunks, bulks);
        }
        // A long call: the first chunk, at position zero, is the message (RFC 5666 section 5.1).
        let Some((Some(stream), bulks)) = bulks.split_first_mut() else {
            return self.refuse(&to, &GARBAGE_ARGS);
        };
        let same_xid = message.first_chunk::<4>() == stream.bytes().first_chunk::<4>();
        if !same_xid {
            return self.refuse(&to, &GARBAGE_ARGS);
        }
        self.serve(&to, stream.bytes(), &chunks[1..], bulks)
    }

    /// A call that came in an RDMA_MSGP, which has a message behind its header.
    #[cold]
    fn on_padded_call(&mut self, frame: &mut CallFrame) -> CallOutcome {
        let (conn, slot) = (frame.conn, frame.slot);
        let header_bytes = frame.admitted.header_bytes as usize;
        // With three empty lists there is nothing that the reply would echo.
        let plain = header_bytes == MSG_HEADER_BYTES + MSGP_FIELDS_BYTES;
        let Some(sinks) = &mut frame.sinks else { return CallOutcome::Done };
        let Sinks { chunks, count, bulks, joined } = &mut **sinks;
        let (chunks, bulks) = (&chunks[..*count], &mut bulks[..*count]);
        let (message, padded) = Padded::of(&mut frame.message, header_bytes, joined);
        let to = ReplyTarget { conn, slot, message, plain };
        self.serve_padded(&to, &message[header_bytes..], chunks, bulks, padded)
    }

    fn fail_probe(entry: &mut ClientEntry, conn: ConnId, error: CallError) {
        entry.fail(match error {
            CallError::Accepted(status) => ConnectError::NotServed(status),
            other => ConnectError::FirstCall(other.to_string()),
        });
        entry.link.ops.close(conn);
    }
}

impl Upcalls for Dispatch {
    #[inline(always)]
    fn on_call(&mut self, frame: &mut CallFrame) -> CallOutcome {
        if frame.sinks.is_some() {
            return self.on_chunked_call(frame);
        }
        let message = frame.message.bytes();
        let (conn, slot, plain) = (frame.conn, frame.slot, frame.admitted.plain);
        let to = ReplyTarget { conn, slot, message, plain };
        self.serve(&to, &message[frame.admitted.header_bytes as usize..], &[], &mut [])
    }

    #[inline(always)]
    fn on_reply(&mut self, frame: ReplyFrame<'_>) {
        let Some(entry) = self.client(frame.conn) else { return };
        if let LinkState::Probing(conn) = entry.link.state.get() {
            return Self::on_opening_reply(entry, conn, frame.stream);
        }
        let token = Token(frame.token);
        let mut padded = frame.padded;
        let status = match &mut padded {
            None => reply_status(frame.stream),
            Some(padded) => padded_reply_status(frame.stream, padded),
        };
        let results_at = match status {
            Ok(at) => at,
            Err(error) => return entry.handler.on_reply(token, Err(error)),
        };
        let (mut pulled, mut arguments, mut results) = (None, &mut [][..], &mut [][..]);
        if let Some(buffers) = frame.buffers {
            (arguments, results) = (&mut *buffers.arguments, &mut *buffers.results);
            if !buffers.pulled.chunks.is_empty() {
                buffers.pulled.base = results_at;
                pulled = Some(&mut buffers.pulled);
            }
        }
        let stream = &frame.stream[results_at..];
        let reply = Reply { stream, placed: frame.placed, arguments, results, pulled, padded };
        entry.handler.on_reply(token, Ok(reply));
    }

    fn on_call_failed(&mut self, conn: ConnId, token: u64, end: CallEnd) {
        let Some(entry) = self.client(conn) else { return };
        let error = match end {
            CallEnd::Failed(failure) => CallError::from(failure),
            CallEnd::Down(cause) => {
                entry.failed_calls += 1;
                CallError::Disconnected(cause)
            }
        };
        if matches!(entry.link.state.get(), LinkState::Probing(_)) {
            return Self::on_opening_failed(entry, conn, error);
        }
        entry.handler.on_reply(Token(token), Err(error));
    }

    fn on_connected(&mut self, request: u64, result: Result<ConnId, FabricError>) {
        let waiting = self.connecting.iter().position(|(number, _)| *number == request);
        let Some(index) = waiting else { return };
        let (_, mut entry) = self.connecting.swap_remove(index);
        let conn = match result {
            Ok(conn) => conn,
            Err(error) => return entry.fail(ConnectError::Fabric(error.to_string())),
        };
        entry.conn = Some(conn);
        if entry.link.state.get() == LinkState::Connecting {
            entry.link.state.set(LinkState::Probing(conn));
        }
        let place = conn.index() as usize;
        if self.clients.len() <= place {
            self.clients.resize_with(place + 1, || None);
        }
        self.clients[place] = Some(entry);
    }

    fn on_up(&mut self, conn: ConnId, peer: &str, negotiated: Negotiated) {
        let Some(entry) = self.client(conn) else {
            let (connection, peer) = (ConnectionId(conn), peer.to_owned());
            let event = ConnectionEvent::Up { connection, peer, negotiated };
            return self.services.iter_mut().for_each(|s| s.service.on_event(&event));
        };
        if entry.link.state.get() == LinkState::Down {
            entry.link.ops.close(conn);
            return entry.fail(ConnectError::FirstCall("closed while connecting".into()));
        }
        entry.up = Some((peer.to_owned(), negotiated));
        Self::begin(entry, conn);
    }

    fn on_down(&mut self, conn: ConnId, cause: &DownCause) {
        let (connection, cause) = (ConnectionId(conn), cause.clone());
        let known = self.client(conn).is_some();
        let taken = self.clients.get_mut(conn.index() as usize).filter(|_| known);
        let Some(mut entry) = taken.and_then(Option::take) else {
            let event = ConnectionEvent::Down { connection, cause, in_flight: 0 };
            return self.services.iter_mut().for_each(|s| s.service.on_event(&event));
        };
        if entry.starts_over {
            return self.start_over(entry);
        }
        if entry.link.state.replace(LinkState::Down) != LinkState::Down {
            let in_flight = entry.failed_calls;
            entry.handler.on_event(&ConnectionEvent::Down { connection, cause, in_flight });
        }
    }
}

/// Whether the program answered, although it has no NULL procedure.
fn is_served(error: &CallError) -> bool {
    use AcceptStatus::{GarbageArgs, ProcUnavail, SystemErr};
    matches!(error, CallError::Accepted(ProcUnavail | GarbageArgs | SystemErr))
}

const GARBAGE_ARGS: RpcRefusal = RpcRefusal::Accepted(AcceptStatus::GarbageArgs);

fn refusal(error: &rpc::CallError) -> RpcRefusal {
    match error {
        rpc::CallError::RpcVersion { .. } => {
            RpcRefusal::Denied(RejectStatus::RpcMismatch { low: RPC_VERSION, high: RPC_VERSION })
        }
        rpc::CallError::Malformed(_) | rpc::CallError::NotACall => GARBAGE_ARGS,
    }
}

/// Where the results of a successful reply start, or the error that the server answered.
#[inline]
fn reply_status(stream: &[u8]) -> Result<usize, CallError> {
    let (header, results_at) = ReplyHeader::parse(stream)?;
    check_status(&header).map(|()| results_at)
}

/// As [`reply_status`], of a reply that came in an RDMA_MSGP.
#[cold]
fn padded_reply_status(stream: &[u8], padded: &mut Padded<'_>) -> Result<usize, CallError> {
    let mut reader = Reader::aligned(stream, padded.alignment, padded.start);
    let header = ReplyHeader::read(&mut reader)?;
    padded.start += reader.position();
    check_status(&header).map(|()| reader.position())
}

#[inline]
fn check_status(header: &ReplyHeader<'_>) -> Result<(), CallError> {
    match header.body {
        ReplyBody::Accepted { status: AcceptStatus::Success, .. } => Ok(()),
        ReplyBody::Accepted { status, .. } => Err(CallError::Accepted(status)),
        ReplyBody::Denied(status) => Err(CallError::Rejected(status)),
    }
}
