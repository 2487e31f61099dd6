//! From the reactor to the application: finds the service of a call and the handler of a reply,
//! and runs it.

mod attempts;
mod lookup;

use super::call::{Arguments, BesideArguments, CallEnvironment, CallState, Called};
use super::catch_panic::{ContainedService, Found};
use super::client::{BesideReply, ClientLink, LinkState, Reply, ReplyHandler, Token};
use super::client_state::ClientEntry;
use super::errors::{CallError, ConnectError};
use super::group::{Group, Membership};
#[cfg(feature = "gss")]
use super::gss::{GssClientState, GssCore};
use super::handle::core::{HandleCore, TimedCalls, ToConnect};
use super::reconnect::{ConnectOptions, ReconnectState};
use super::reply_status::pass_header;
use super::reverse::Reverse;
use super::rfc5666::ConfigClient;
use super::service::{ConnectionEvent, ConnectionId, Service};
use super::version_cache::{Offer, Responders};
use crate::fabric::{ConnId, Connector, DownCause, FabricError, Peer};
use crate::mem::Bulk;
use crate::reactor::in_flight::read_buffers::ReadBuffers;
use crate::reactor::in_flight::serving::Serving;
use crate::reactor::in_flight::upcalls::{CallFrame, CoreEvent, Upcalls};
use crate::reactor::state::core::CoreCell;
use crate::reactor::types::calls::{
    Admitted, CallEnd, CallOutcome, ReplyFrame, ReplyTarget, RpcRefusal, SlotToken,
};
#[cfg(feature = "gss")]
use crate::reactor::types::header_bytes::is_under_gss;
use crate::reactor::types::rfc5666::Padded;
use crate::reactor::{Negotiated, Progress};
use crate::sys::random::Random;
use spinrpc_proto::ids::{Program, Version};
use spinrpc_proto::plain::{CALL_BYTES, PlainCall};
use spinrpc_proto::rdma::v1::{MSG_HEADER_BYTES, MSGP_FIELDS_BYTES};
use spinrpc_proto::rpc::{self, AcceptStatus, AuthStat, CallHeader, RPC_VERSION, RejectStatus};
use spinrpc_proto::version::Verdict;
use std::cell::Cell;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

/// Hands the request of a client for a connection to a thread. Returns its number, which comes back with the answer.
pub(super) type ConnectRequests = Box<dyn Fn(&ClientEntry) -> u64>;

const NO_SERVICE: usize = usize::MAX;

pub(super) struct ServiceEntry {
    pub(super) program: Program,
    pub(super) version: Version,
    pub(super) service: Box<dyn Service>,
}

pub(super) struct Dispatch {
    /// The core, with its operations.
    pub(super) ops: Rc<CoreCell>,
    /// What reverse clients of the core share.
    pub(super) reverse: Rc<Reverse>,
    /// What calls to services of the core share.
    pub(super) home: CallEnvironment,
    /// Index of the service that was called last; none after a graceful end of the core, and while calls are measured.
    called: usize,
    pub(super) services: Vec<ContainedService>,
    /// The time of calls is measured: latencies are asked for ([`control`](crate::control)).
    is_measuring: bool,
    /// The next call is timed.
    is_sampling: bool,
    pub(super) is_leaving: bool,
    polling: Box<[usize]>,
    handles: Box<HandleCore>,
    polls: bool,
    requests: ConnectRequests,
    /// By index of the connection.
    clients: Vec<Option<ClientEntry>>,
    /// Those without a connection.
    connecting: Vec<ClientEntry>,
    /// Clients with several connections.
    pub(super) groups: Vec<Weak<Group>>,
    pub(super) random: Random,
    /// Source of numbers that no peer can guess.
    pub(super) connector: Arc<dyn Connector>,
    /// Connection Configuration Protocol exchange that a new connection begins with, if configured.
    pub(super) config_client: Option<Rc<ConfigClient>>,
    responders: Arc<Responders>,
    #[cfg(feature = "gss")]
    pub(super) gss: Arc<GssCore>,
}

impl Dispatch {
    pub(super) fn new(
        ops: Rc<CoreCell>,
        services: Vec<ServiceEntry>,
        config_client: Option<Rc<ConfigClient>>,
        handles: HandleCore,
        (responders, random, connector): (Arc<Responders>, Random, Arc<dyn Connector>),
        requests: ConnectRequests,
        #[cfg(feature = "gss")] gss: Arc<GssCore>,
    ) -> Self {
        let (clients, connecting) = (Vec::new(), Vec::new());
        let reverse = Reverse::new(Rc::clone(&ops));
        let contained = |ServiceEntry { program, version, service }| {
            ContainedService::new(Rc::clone(&ops), (program, version), service)
        };
        let services: Vec<_> = services.into_iter().map(contained).collect();
        let polls = |index: &usize| services[*index].polls();
        let polling: Box<[_]> = (0..services.len()).filter(polls).collect();
        Self {
            home: CallEnvironment { ops: Rc::clone(&ops), reverse: Rc::clone(&reverse) },
            reverse,
            ops,
            called: 0,
            services,
            is_measuring: false,
            is_sampling: false,
            is_leaving: false,
            polls: !polling.is_empty(),
            polling,
            requests,
            handles: Box::new(handles),
            clients,
            connecting,
            groups: Vec::new(),
            random,
            connector,
            config_client,
            responders,
            #[cfg(feature = "gss")]
            gss,
        }
    }

    /// Returns true if calls that arrive on this connection are reverse calls.
    #[cfg(feature = "gss")]
    pub(super) fn is_in_reverse(&self, conn: ConnId) -> bool {
        let entry = self.clients.get(conn.index() as usize).and_then(Option::as_ref);
        entry.is_some_and(|entry| entry.conn == Some(conn) && entry.takes_reverse)
    }

    pub(super) fn connect(
        &mut self,
        link: Rc<ClientLink>,
        handler: Box<dyn ReplyHandler>,
        address: &str,
        options: &ConnectOptions,
    ) {
        if options.is_group() {
            return self.connect_group(&link, handler, address, options);
        }
        let entry = self.entry(link, handler, address, options);
        self.request_connection(entry);
    }

    pub(super) fn entry(
        &mut self,
        link: Rc<ClientLink>,
        handler: Box<dyn ReplyHandler>,
        address: &str,
        options: &ConnectOptions,
    ) -> ClientEntry {
        let policy = options.reconnect;
        let reconnect_state = policy.map(|policy| ReconnectState::new(policy, &mut self.random));
        let mut entry = ClientEntry::new(link, handler, address, reconnect_state).with(options);
        #[cfg(feature = "gss")]
        {
            let initiator = options.initiator.clone();
            entry.securing = initiator.map(|initiator| GssClientState::new(initiator, &self.gss));
        }
        entry.offer = Offer::new(&self.responders, entry.versions);
        entry
    }

    fn place(&mut self, conn: ConnId, entry: ClientEntry) {
        let place = conn.index() as usize;
        if self.clients.len() <= place {
            self.clients.resize_with(place + 1, || None);
        }
        self.clients[place] = Some(entry);
    }

    fn take_client(&mut self, conn: ConnId) -> Option<ClientEntry> {
        self.client_or_new(conn)?;
        self.clients.get_mut(conn.index() as usize)?.take()
    }

    /// The client that has, or has lost, this connection.
    pub(super) fn client_of_calls(&mut self, conn: ConnId) -> Option<&mut ClientEntry> {
        if self.client_or_new(conn).is_some() {
            return self.client(conn);
        }
        self.connecting.iter_mut().find(|entry| entry.conn == Some(conn))
    }

    #[inline]
    fn client(&mut self, conn: ConnId) -> Option<&mut ClientEntry> {
        let entry = self.clients.get_mut(conn.index() as usize)?.as_mut()?;
        (entry.conn == Some(conn)).then_some(entry)
    }

    /// As [`Dispatch::client`]; also finds a reverse client that was made while a handler ran.
    #[cold]
    fn client_or_new(&mut self, conn: ConnId) -> Option<&mut ClientEntry> {
        if self.client(conn).is_none() {
            let entry = self.reverse.take(conn)?;
            self.place(conn, entry);
        }
        self.client(conn)
    }

    #[cold]
    fn on_first_reply(&mut self, frame: ReplyFrame<'_>) {
        if self.client_or_new(frame.conn).is_some() {
            self.on_reply(frame);
        }
    }

    /// The next call of each kind is timed.
    fn sample(&mut self) {
        if !self.is_measuring {
            (self.is_sampling, self.called) = (true, NO_SERVICE);
            self.handles.set_timed(TimedCalls::Next);
        }
    }

    /// All calls are timed from now on, or no longer.
    fn measure(&mut self, is_on: bool) {
        (self.is_measuring, self.called) = (is_on, NO_SERVICE);
        self.handles.set_timed(if is_on { TimedCalls::All } else { TimedCalls::None });
    }

    /// The next call has times already: it goes where those go that follow a call of another program.
    pub(super) fn look_up_next(&mut self) {
        self.called = NO_SERVICE;
    }

    /// Marks the remaining clients as down when the core has ended.
    pub(super) fn lose_all(&self) {
        let entries = self.clients.iter().flatten().chain(&self.connecting);
        entries.for_each(|entry| entry.link.lose(LinkState::Down));
        self.reverse.lose_all();
    }

    fn poll_handles(&mut self) -> Progress {
        let mut events = 0;
        while let Some(ToConnect { to, link, handler }) = self.handles.take_orders(&mut events) {
            self.connect(link, handler, &to.address, &to.options);
        }
        self.handles.go_on(events)
    }

    /// Notifies services of connections that calls arrive on.
    fn tell_services(&mut self, event: &ConnectionEvent) {
        self.services.iter_mut().for_each(|service| service.on_event(event));
    }

    // Inlined like the other steps of a plain call: the cores of all drivers contain this code, so the compiler sees
    // too many callers to inline it unasked.
    #[inline(always)]
    fn serve(
        &mut self,
        serving: &Serving<'_>,
        stream: &[u8],
        beside: BesideArguments<'_>,
    ) -> CallOutcome {
        let mut reader = Padded::reader(beside.padded, stream);
        match CallHeader::read(&mut reader) {
            #[cfg(feature = "gss")]
            Ok(header) if header.credential.flavor == rpc::AuthFlavor::Gss => {
                self.serve_gss(serving, stream, (&header, &reader), beside)
            }
            Ok(header) => self.run(serving, &header, Arguments::behind(&reader, beside)),
            Err(error) => self.refuse(serving, &refusal(&error)),
        }
    }

    #[inline]
    pub(super) fn run(
        &mut self,
        serving: &Serving<'_>,
        header: &CallHeader<'_>,
        arguments: Arguments<'_>,
    ) -> CallOutcome {
        let Some(found) = self.find(header.program, header.version) else {
            return self.turn_away(serving, header.program);
        };
        #[cfg(feature = "gss")]
        if self.is_too_weak(serving, header.procedure) {
            return self.deny_weak(serving);
        }
        let (called, credential) = (Called::of(serving.xid(), header), Some(header.credential));
        let state = CallState {
            home: &self.home,
            keeper: None,
            serving,
            called,
            credential,
            arguments: Cell::new(Some(arguments)),
            outcome: Cell::new(None),
            #[cfg(feature = "gss")]
            caller: None,
        };
        self.services[found.index].call(found, &state)
    }

    /// Runs this service with a plain call.
    #[inline(always)]
    fn run_plain(
        &mut self,
        found: Found,
        serving: &Serving<'_>,
        call: &PlainCall,
        arguments: &[u8],
    ) -> CallOutcome {
        let PlainCall { xid, program, version, procedure, .. } = *call;
        #[cfg(feature = "gss")]
        if self.is_too_weak(serving, procedure) {
            return self.deny_weak(serving);
        }
        let Some(service) = self.services.get_mut(found.index) else { return CallOutcome::Done };
        let base = CALL_BYTES - MSG_HEADER_BYTES;
        let arguments = Arguments { stream: arguments, base, beside: None };
        let state = CallState {
            home: &self.home,
            keeper: None,
            serving,
            called: Called { xid, program, version, procedure },
            credential: None,
            arguments: Cell::new(Some(arguments)),
            outcome: Cell::new(None),
            #[cfg(feature = "gss")]
            caller: None,
        };
        service.call(found, &state)
    }

    /// Handles a plain call to a program other than the previous one, or one that is measured.
    #[cold]
    fn on_call_of_another(
        &mut self,
        serving: &Serving<'_>,
        call: PlainCall,
        arguments: &[u8],
    ) -> CallOutcome {
        match self.find_other(call.program, call.version) {
            Some(found) => self.run_plain(found, serving, &call, arguments),
            None => self.turn_away(serving, call.program),
        }
    }

    /// Handles a call that has chunks, or is an RDMA_MSGP.
    #[inline(never)]
    fn on_chunked_call(&mut self, frame: &mut CallFrame) -> CallOutcome {
        let Admitted { header_bytes, long, .. } = frame.admitted;
        let (conn, slot, header_bytes) = (frame.conn, frame.slot, header_bytes as usize);
        let Some(sinks) = &mut frame.sinks else {
            #[cfg(feature = "gss")]
            return self.refuse_starved(frame);
            #[cfg(not(feature = "gss"))]
            return CallOutcome::Done;
        };
        let ReadBuffers { chunks, count, bulks, .. } = &mut **sinks;
        let (chunks, bulks) = (&chunks[..*count], &mut bulks[..*count]);
        let message = frame.message.bytes();
        let padded = Padded::of(message, header_bytes);
        // With three empty lists the reply has nothing to echo.
        let is_chunkless = padded.is_some() && header_bytes == MSG_HEADER_BYTES + MSGP_FIELDS_BYTES;
        let serving = Serving::placed(&ReplyTarget { conn, slot, message, is_chunkless });
        if !long {
            let beside = BesideArguments { chunks, bulks, padded };
            return self.serve(&serving, &message[header_bytes..], beside);
        }
        // A long call: the first chunk, at position zero, contains the message (RFC 5666 section 5.1).
        let Some((first, bulks)) = bulks.split_first_mut() else {
            return self.refuse(&serving, &GARBAGE_ARGS);
        };
        let stream = first.as_ref().map_or(&[][..], Bulk::bytes);
        if !self.ops.is_of(message, stream) {
            return self.refuse(&serving, &GARBAGE_ARGS);
        }
        #[cfg(feature = "gss")]
        if is_under_gss(stream)
            && let Some(message) = first.take()
        {
            return self.serve_long_gss(&serving, message, (&chunks[1..], bulks));
        }
        let stream = first.as_ref().map_or(&[][..], Bulk::bytes);
        self.serve(&serving, stream, BesideArguments { chunks: &chunks[1..], bulks, padded: None })
    }
}

impl Upcalls for Dispatch {
    #[inline(always)]
    fn polls(&self) -> bool {
        self.polls
    }

    // Not inlined into the turn, so that the turn's values stay in registers.
    #[inline(never)]
    fn poll(&mut self) -> Progress {
        let mut all = Progress::default();
        for index in &self.polling {
            let Progress { events, is_waiting } = self.services[*index].poll();
            all.events += events;
            all.is_waiting |= is_waiting;
        }
        let Progress { events, is_waiting } = self.poll_handles();
        Progress { events: all.events + events, is_waiting: all.is_waiting || is_waiting }
    }

    fn on_call(&mut self, frame: &mut CallFrame) -> CallOutcome {
        self.on_chunked_call(frame)
    }

    #[inline(always)]
    fn on_plain_call(
        &mut self,
        serving: &Serving<'_>,
        call: &PlainCall,
        arguments: &[u8],
    ) -> CallOutcome {
        if !self.was_called(call.program, call.version) {
            // By value, so that the fields need not be in memory on the other path.
            return self.on_call_of_another(serving, *call, arguments);
        }
        let found = Found { index: self.called, is_measured: false };
        self.run_plain(found, serving, call, arguments)
    }

    fn on_inline_call(&mut self, serving: &Serving<'_>, stream: &[u8]) -> CallOutcome {
        self.serve(serving, stream, BesideArguments::default())
    }

    #[inline(always)]
    fn on_plain_reply(&mut self, conn: ConnId, token: u64, results: &[u8]) -> bool {
        let entry = self.clients.get_mut(conn.index() as usize).and_then(Option::as_mut);
        let Some(entry) = entry.filter(|entry| entry.link.state.get() == LinkState::Up(conn))
        else {
            return false;
        };
        // The lane lets no such reply through; if it did, the reply would be refused, because it has no verifier.
        #[cfg(feature = "gss")]
        if entry.securing.is_some() {
            return false;
        }
        let reply = Reply { stream: results, beside: None };
        entry.handler.on_reply(Token(token), Ok(reply));
        true
    }

    #[inline(always)]
    fn on_reply(&mut self, frame: ReplyFrame<'_>) {
        let Some(entry) = self.client(frame.conn) else { return self.on_first_reply(frame) };
        #[cfg(feature = "gss")]
        if entry.securing.is_some() {
            if !entry.awaits(frame.xid) {
                return self.on_protected_reply(frame);
            }
            return Self::on_setup_reply(entry, frame.conn, frame);
        }
        if let LinkState::Probing(conn) = entry.link.state.get() {
            return Self::on_setup_reply(entry, conn, frame);
        }
        let token = Token(frame.token);
        let mut reader = Padded::reader(frame.padded, frame.stream);
        if let Err(error) = pass_header(&mut reader) {
            return entry.handler.on_reply(token, Err(error));
        }
        let (mut pulled, mut arguments, mut results) = (None, &mut [][..], &mut [][..]);
        if let Some(buffers) = frame.buffers {
            (arguments, results) = (&mut *buffers.arguments, &mut *buffers.results);
            if !buffers.pulled.chunks.is_empty() {
                buffers.pulled.base = reader.stream_position();
                pulled = Some(&mut buffers.pulled);
            }
        }
        let (stream, padded) = (reader.rest(), frame.padded.map(|padded| padded.behind(&reader)));
        let beside = BesideReply { placed: frame.placed, arguments, results, pulled, padded };
        let reply = Reply { stream, beside: Some(beside) };
        entry.handler.on_reply(token, Ok(reply));
    }

    #[cold]
    fn on_event(&mut self, event: CoreEvent<'_>) {
        match event {
            CoreEvent::Orders => {
                self.handles.attach();
                self.polls = true;
            }
            #[cfg(feature = "gss")]
            CoreEvent::Context => self.take_outcomes(),
            #[cfg(feature = "gss")]
            CoreEvent::Unsealed(finished) => self.take_unsealed(finished.take()),
            // Timed calls go where those go that follow a call of another program: the common case asks nothing.
            CoreEvent::Sample => self.sample(),
            CoreEvent::Resume => self.look_up_next(),
            CoreEvent::Measure(is_on) => self.measure(is_on),
            CoreEvent::Leave => (self.is_leaving, self.called) = (true, NO_SERVICE),
            CoreEvent::CallFailed(conn, call, end) => self.on_call_failed(conn, call, end),
            CoreEvent::Connected(request, result) => self.on_connected(request, result),
            CoreEvent::Up(conn, peer, negotiated) => self.on_up(conn, peer, negotiated),
            CoreEvent::Ending { conn, verdict, wants_another } => {
                *wants_another = self.on_ending(conn, verdict);
            }
            CoreEvent::Down(conn, cause) => self.on_down(conn, cause),
            CoreEvent::Lost(conn, cause) => self.on_lost(conn, cause),
            CoreEvent::Alarm => self.begin_due_attempts(),
            CoreEvent::Resent(conn) => self.on_resent(conn),
            CoreEvent::Gone(lost, cause) => self.on_gone(lost, cause),
        }
    }
}

/// Events.
impl Dispatch {
    fn on_call_failed(&mut self, conn: ConnId, call: SlotToken, end: CallEnd) {
        let Some(entry) = self.client_of_calls(conn) else { return };
        #[cfg(feature = "gss")]
        if entry.destroys_context(call.slot.xid()) {
            return;
        }
        let error = match end {
            CallEnd::Failed(failure) => CallError::from(failure),
            CallEnd::Down(cause) => {
                entry.failed_calls += 1;
                CallError::Disconnected(cause)
            }
            // Says more than that the server has forgotten the context.
            CallEnd::Denied(cause @ DownCause::Security(_)) => CallError::NotExecuted(cause),
            CallEnd::Denied(_) => {
                CallError::Rejected(RejectStatus::AuthError(AuthStat::GssCredProblem))
            }
            CallEnd::NotExecuted(cause) => {
                entry.failed_calls += 1;
                CallError::NotExecuted(cause)
            }
        };
        if let Some((_, setup_call)) = entry.setup_call.take_if(|(slot, _)| *slot == call.slot) {
            return Self::on_setup_failed(entry, conn, setup_call, error);
        }
        entry.handler.on_reply(Token(call.token), Err(error));
    }

    fn on_connected(&mut self, request: u64, result: Result<ConnId, FabricError>) {
        let waiting = self.connecting.iter().position(|entry| entry.request == Some(request));
        let Some(index) = waiting else { return };
        let mut entry = self.connecting.swap_remove(index);
        entry.request = None;
        if let Some(membership) = &entry.membership {
            membership.set_dialing(false);
            // Others may have waited for the answer.
            self.ops.set_alarm(Duration::ZERO);
        }
        let conn = match result {
            Ok(conn) => conn,
            Err(_) if entry.wants_another() => return self.retry_or_give_up(entry),
            Err(error) if error.is_of_address() => return entry.fail(error.into()),
            Err(error) => return self.retry_or_fail(entry, error.into()),
        };
        entry.conn = Some(conn);
        if matches!(entry.link.state.get(), LinkState::Connecting | LinkState::Reconnecting(_)) {
            entry.link.state.set(LinkState::Probing(conn));
        }
        self.place(conn, entry);
    }

    fn on_up(&mut self, conn: ConnId, peer: Peer, negotiated: Negotiated) {
        let connection = ConnectionId(conn);
        let Some(entry) = self.client(conn) else {
            return self.tell_services(&ConnectionEvent::Up { connection, peer, negotiated });
        };
        if entry.takes_reverse {
            let negotiated = negotiated.in_reverse();
            self.tell_services(&ConnectionEvent::Up { connection, peer, negotiated });
        }
        let Some(entry) = self.client(conn) else { return };
        if entry.link.state.get() == LinkState::Down {
            entry.link.ops.close(conn);
            return entry.fail(ConnectError::Closed);
        }
        if let Some(state) = &entry.reconnect_state {
            entry.link.ops.make_lasting(conn, state.policy.resends_max);
        }
        #[cfg(feature = "gss")]
        if let Some(securing) = &mut entry.securing {
            securing.connected_to(peer);
            entry.link.ops.set_context(conn, None);
        }
        entry.up = Some((peer, negotiated));
        entry.offer_version(conn);
        Self::begin(entry, conn);
    }

    /// Returns true if the client wants another connection.
    fn on_ending(&mut self, conn: ConnId, verdict: Verdict) -> bool {
        let Some(entry) = self.client(conn) else { return false };
        if verdict != Verdict::Unknown {
            entry.note_verdict(verdict);
        }
        entry.wants_another()
    }

    fn on_down(&mut self, conn: ConnId, cause: &DownCause) {
        let connection = ConnectionId(conn);
        #[cfg(feature = "gss")]
        self.end_replies(conn);
        let entry = self.take_client(conn);
        if entry.as_ref().is_none_or(ClientEntry::is_served) {
            let cause = cause.clone();
            self.tell_services(&ConnectionEvent::Down { connection, cause, in_flight: 0 });
        }
        let Some(mut entry) = entry else { return };
        if entry.starts_over {
            // At once, because the server failed at what this one began with.
            (entry.conn, entry.starts_over, entry.failed_calls) = (None, false, 0);
            return self.request_connection(entry);
        }
        if let Some(error) = entry.passing.take() {
            return self.retry_or_fail(entry, error);
        }
        let was_told = entry.link.state.get() == LinkState::Down;
        if !entry.link.was_up.get() && !was_told {
            let lost = ConnectError::FirstCall(CallError::Disconnected(cause.clone()));
            entry.membership.iter().for_each(Membership::note_failure);
            if entry.is_passing(&lost) {
                return self.retry_or_fail(entry, lost);
            }
            *entry.link.failure.borrow_mut() = Some(lost);
        }
        entry.link.lose(LinkState::Down);
        if !was_told {
            entry.end(connection, cause);
        }
        let membership = entry.membership.take();
        drop(entry);
        self.restore(membership);
    }

    fn on_lost(&mut self, conn: ConnId, cause: &DownCause) {
        #[cfg(feature = "gss")]
        self.end_replies(conn);
        let Some(mut entry) = self.take_client(conn) else { return };
        let cause = entry.cause_of(cause);
        if entry.takes_reverse {
            let (connection, cause) = (ConnectionId(conn), cause.clone());
            self.tell_services(&ConnectionEvent::Down { connection, cause, in_flight: 0 });
        }
        entry.link.lose(LinkState::Reconnecting(conn));
        if let Some(state) = &mut entry.reconnect_state {
            state.cause = cause;
        }
        let membership = entry.leave(conn);
        self.retry_or_give_up(entry);
        self.restore(membership);
    }

    fn on_resent(&mut self, conn: ConnId) {
        let Some(entry) = self.client(conn) else { return };
        if entry.link.state.get() == LinkState::Resending(conn) {
            entry.go_up(conn);
            // Some of the calls that were sent again may have been denied meanwhile.
            #[cfg(feature = "gss")]
            Self::attend_context(entry, conn);
        }
    }

    fn on_gone(&mut self, lost: ConnId, cause: &DownCause) {
        let gone = self.connecting.iter().position(|entry| entry.conn == Some(lost));
        let Some(index) = gone else { return };
        let mut entry = self.connecting.swap_remove(index);
        entry.link.lose(LinkState::Down);
        entry.conn = None;
        entry.end(ConnectionId(lost), cause);
        let membership = entry.membership.clone();
        // A requested connection may still arrive; it is then closed.
        match entry.request {
            Some(_) => self.connecting.push(entry),
            None => drop(entry),
        }
        self.restore(membership);
    }
}

const GARBAGE_ARGS: RpcRefusal = RpcRefusal::Accepted(AcceptStatus::GarbageArgs);

pub(super) fn refusal(error: &rpc::CallError) -> RpcRefusal {
    match error {
        rpc::CallError::RpcVersion { .. } => {
            RpcRefusal::Denied(RejectStatus::RpcMismatch { low: RPC_VERSION, high: RPC_VERSION })
        }
        rpc::CallError::Auth(why) => RpcRefusal::Denied(RejectStatus::AuthError(*why)),
        rpc::CallError::Malformed(_) | rpc::CallError::NotACall => GARBAGE_ARGS,
    }
}
