//! The control thread of a connector: it makes connections and takes them down.
//!
//! Everything here is off the data path. It waits for three kinds of things at once: events of the
//! connection manager, events of the devices, and jobs from other threads. Each is an event of one
//! connection's state machine ([`machine`]), whose answer is one call to make.

mod address_resolution;
mod connection;
mod devices;
mod failure;
mod listener;
mod machine;
mod qp_objects;
mod routes;

pub(super) use connection::Waiting;
pub(super) use listener::listen;
pub(super) use machine::Event;

use super::super::FabricError;
use super::cm::{self, CmEvent, CmId, EventChannel};
use super::connector::Environment;
use super::core::{Context, CoreShared};
use super::device::DeviceCaps;
use super::link::{Remains, Side};
use super::reads::Reads;
use super::silence::look_every;
use crate::connector_common::Hosts;
use crate::sync::next_number;
use crate::sys::journal::event;
use crate::sys::mailbox;
use connection::Connection;
use devices::Devices;
use listener::Listener;
use machine::{Action, Failure, State, Step};
use qp_objects::Parts;
use rdma_sys::rdma_cm_event_type::*;
use rustix::event::epoll;
use std::collections::HashMap;
use std::io;
use std::mem::ManuallyDrop;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::Instant;

const EVENTS_MAX: usize = 64;
/// Most events of the connection manager that are taken at a time. epoll reports again those that
/// are left, so peers that request connections without end delay neither jobs nor deadlines.
const MANAGER_EVENTS_MAX: usize = 8;
/// Value that epoll returns for the mailbox, and for the connection manager; for a device it is the
/// address of its context.
const TOKEN_MAILBOX: u64 = 0;
const TOKEN_CHANNEL: u64 = 1;

pub(super) type Control = mailbox::Handle<ControlThread>;

type Mailbox = mailbox::Mailbox<ControlThread>;

/// On a host without RDMA devices the error is `ENODEV` or `ENOENT`.
pub(super) fn run(environment: Arc<Environment>) -> io::Result<Arc<Control>> {
    let control = Control::new("spinrpc-rdma-cm")?;
    let channel = Arc::new(EventChannel::new()?);
    let epoll = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
    let state = ControlThread {
        connections: HashMap::new(),
        hosts: Hosts::default(),
        listeners: HashMap::new(),
        devices: Devices::new(Arc::clone(&channel), Arc::clone(&epoll)),
        epoll,
        channel,
        mailbox: Arc::clone(&control.mailbox),
        environment,
        next_look: Instant::now(),
        control: Arc::downgrade(&control),
    };
    state.watch(TOKEN_MAILBOX, state.mailbox.as_fd())?;
    state.watch(TOKEN_CHANNEL, state.channel.as_fd())?;
    control.run(move || state.run_to_the_end())?;
    Ok(control)
}

/// The thread has panicked: its hook has said why.
pub(super) fn ended(op: &str) -> FabricError {
    FabricError::because(op, "the control thread has ended", None)
}

/// State of the thread. Listeners are dropped first: their acceptors may hold endpoints.
pub(super) struct ControlThread {
    listeners: HashMap<u64, Listener>,
    connections: HashMap<u64, Connection>,
    hosts: Hosts,
    devices: Devices,
    epoll: Arc<OwnedFd>,
    channel: Arc<EventChannel>,
    mailbox: Arc<Mailbox>,
    environment: Arc<Environment>,
    next_look: Instant,
    /// For links. Weak: the thread ends when all other owners are gone.
    control: Weak<Control>,
}

impl ControlThread {
    /// Frees everything when the last handle is gone. If it panics, cores are still using the queue
    /// pairs: then they stay, with all that they use, until the process ends.
    fn run_to_the_end(self) {
        let mut state = ManuallyDrop::new(self);
        state.run();
        drop(ManuallyDrop::into_inner(state));
    }

    fn run(&mut self) {
        let mut events = Vec::with_capacity(EVENTS_MAX);
        while !self.mailbox.is_stopped() {
            mailbox::wait(&self.epoll, &mut events, self.next_deadline());
            for event in events.drain(..) {
                self.look(event.data.u64());
            }
            self.expire(Instant::now());
            self.devices.forget_removed();
        }
        self.finish();
    }

    fn watch(&self, token: u64, fd: BorrowedFd<'_>) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token);
        Ok(epoll::add(&self.epoll, fd, data, epoll::EventFlags::IN)?)
    }

    fn look(&mut self, token: u64) {
        match token {
            TOKEN_MAILBOX => {
                self.mailbox.clear_event();
                self.do_jobs();
            }
            TOKEN_CHANNEL => {
                for _ in 0..MANAGER_EVENTS_MAX {
                    let Some(event) = self.channel.next() else { break };
                    self.on_manager_event(event);
                }
            }
            address => self.devices.look(address),
        }
    }

    /// The last handle is gone, so there are no links left and no callers waiting: only jobs
    /// already in the mailbox remain.
    fn finish(&mut self) {
        self.listeners.clear();
        self.do_jobs();
        let numbers: Vec<u64> = self.connections.keys().copied().collect();
        for number in numbers {
            self.happen(number, Event::LinkDropped);
            self.happen(number, Event::DeadlinePassed);
        }
    }

    fn do_jobs(&mut self) {
        while let Some(job) = self.mailbox.take() {
            job(self);
        }
    }

    pub(super) fn add_windows(&self, number: u64) {
        if let Some(connection) = self.connections.get(&number) {
            connection.add_windows();
        }
    }

    /// Frees these windows of a connection, as some devices destroy no queue pair that has bound ones, and then destroys its
    /// queue pair. With a key that may be alive that stays, and so does its number, to which the key belongs.
    pub(super) fn destroy(&mut self, number: u64, bound: &[usize]) {
        if self.connections.get(&number).is_some_and(|one| one.free_windows(bound)) {
            self.happen(number, Event::DestroyWanted);
        }
    }

    pub(super) fn dismantle(&mut self, number: u64, remains: Remains) {
        if let Some(connection) = self.connections.get_mut(&number) {
            connection.keep(remains);
        }
        self.happen(number, Event::LinkDropped);
    }

    pub(super) fn connect(
        &mut self,
        waiting: Waiting,
        peer: SocketAddr,
        core: Arc<CoreShared>,
        private_data: Box<[u8]>,
        deadline: Instant,
    ) {
        let number = next_number();
        let id = match CmId::new(&self.channel, number) {
            Ok(id) => id,
            Err(error) => {
                let failure = Failure::of_call(Step::Connect, &error);
                let _ = waiting.reply.send(Err(failure.into_error(&waiting.op, peer)));
                return;
            }
        };
        let state = (State::ResolvingAddress, Side::Connecting);
        let mut connection = Connection::new(number, id, state, peer, core, private_data, deadline);
        connection.waiting = Some(waiting);
        let begun = connection.look_up(self.environment.config.handshake_timeout);
        self.connections.insert(number, connection);
        if let Err(failure) = begun {
            self.happen(number, Event::Failed(failure));
        }
    }

    fn on_manager_event(&mut self, mut event: CmEvent) {
        let number = event.number;
        event!(DEBUG, kind = event.kind, number, status = event.status, "connection manager");
        if event.kind == RDMA_CM_EVENT_CONNECT_REQUEST {
            return self.on_request(&mut event);
        }
        let is_removal = event.kind == RDMA_CM_EVENT_DEVICE_REMOVAL;
        if self.listeners.contains_key(&number) {
            return self.on_listener_event(number, event.kind);
        }
        if self.devices.on_anchor_event(number, is_removal) {
            return;
        }
        if is_removal {
            self.note_removal(number);
        }
        if event.kind == RDMA_CM_EVENT_ESTABLISHED
            && let Some(connection) = self.connections.get_mut(&number)
        {
            connection.take_answer(&mut event);
        }
        if let Some(event) = translated(event) {
            self.happen(number, event);
        }
    }

    fn on_device_event(&mut self, number: u64, event: Event) {
        event!(DEBUG, ?event, number, "device");
        if event == Event::DeviceRemoved {
            self.note_removal(number);
        }
        self.happen(number, event);
    }

    fn note_removal(&mut self, number: u64) {
        let device = self.connections.get(&number).and_then(|connection| connection.device);
        if let Some((context, _)) = device {
            self.devices.note_removal(context);
        }
    }

    pub(super) fn happen(&mut self, number: u64, event: Event) {
        let mut next = Some(event);
        while let Some(event) = next.take() {
            let Some(connection) = self.connections.remove(&number) else { return };
            // As for the whole thread: a panic must not destroy objects that the core uses.
            let mut connection = ManuallyDrop::new(connection);
            let (from, action) = connection.step(event);
            if let Err(failure) = self.perform(&mut connection, from, action) {
                next = Some(Event::Failed(failure));
            }
            let connection = ManuallyDrop::into_inner(connection);
            if connection.is_gone() {
                return self.free(connection, from);
            }
            self.connections.insert(number, connection);
        }
    }

    fn perform(
        &mut self,
        connection: &mut Connection,
        from: State,
        action: Action,
    ) -> Result<(), Failure> {
        let environment = Arc::clone(&self.environment);
        let config = &environment.config;
        match action {
            Action::Nothing | Action::Free => {}
            Action::LookUpAgain => connection.look_up_again()?,
            Action::ResolveRoute => self.resolve_route(connection)?,
            Action::Connect => {
                self.make_parts(connection)?;
                connection.request(config, &self.mailbox)?;
            }
            Action::Accept => connection.accept(config)?,
            Action::TellOfMessage => {
                connection.id.tell_of_message();
                connection.establish(config, self.control.upgrade());
            }
            Action::Establish => connection.establish(config, self.control.upgrade()),
            Action::End(cause) => connection.end(from, cause),
            Action::Destroy => connection.destroy(from),
            Action::GiveUp(failure) => connection.give_up(failure),
        }
        Ok(())
    }

    fn resolve_route(&mut self, connection: &mut Connection) -> Result<(), Failure> {
        let caps = self.attach(connection)?;
        let config = &self.environment.config;
        connection.reads = Reads::offered(config, &caps);
        let timeout = connection.time_left(config.handshake_timeout);
        let begun = connection.id.resolve_route(timeout);
        begun.map_err(|error| Failure::of_call(Step::ResolveRoute, &error))
    }

    fn attach(&mut self, connection: &mut Connection) -> Result<DeviceCaps, Failure> {
        let context = connection.id.context();
        let context = context.ok_or_else(|| Failure::of(Step::ResolveAddress, -libc::ENODEV))?;
        // SAFETY: the context is open as long as the id lives.
        let name = unsafe { cm::device_name(context) };
        if let Some(wanted) = self.environment.config.device.as_ref().filter(|one| **one != name) {
            let reason = format!(
                "the way to {} leads through device {name}, and the configuration names {wanted}",
                connection.peer.ip()
            );
            return Err(Failure::Own { reason, errno: None });
        }
        let known = self.environment.known(&name);
        let (context, caps) = self.devices.attach(&connection.id, Context(context), known)?;
        connection.device = Some((context, caps));
        self.environment.check(&name, &caps)?;
        connection.set_options(&self.environment.config);
        Ok(caps)
    }

    fn make_parts(&mut self, connection: &mut Connection) -> Result<(), Failure> {
        let device = connection.device.ok_or_else(|| Failure::of(Step::DeviceRemoved, 0))?;
        let (config, mailbox) = (&self.environment.config, Arc::downgrade(&self.mailbox));
        // SAFETY: the context is the id's; a connection frees its parts before its id.
        connection.parts = Some(unsafe { Parts::make(connection, device, config, mailbox)? });
        Ok(())
    }

    fn free(&mut self, connection: Connection, from: State) {
        if let Some((context, _)) = connection.device {
            self.devices.detach(context);
        }
        connection.free(from);
    }

    fn next_deadline(&self) -> Option<Instant> {
        let connections = self.connections.values().filter_map(|connection| connection.deadline);
        let listeners = self.listeners.values().filter_map(|listener| listener.retry_at);
        let look = (!self.connections.is_empty()).then_some(self.next_look);
        connections.chain(listeners).chain(look).min()
    }

    /// Has each core look which of its connections are silent.
    fn look_for_silence(&mut self, now: Instant) {
        if now < self.next_look || self.connections.is_empty() {
            return;
        }
        self.next_look = now + look_every(self.environment.config.given_up_after());
        let mut cores: Vec<_> =
            self.connections.values().map(|one| Arc::clone(&one.core)).collect();
        cores.sort_unstable_by_key(Arc::as_ptr);
        cores.dedup_by_key(|core| Arc::as_ptr(core));
        cores.into_iter().for_each(|core| core.ask_for_look());
    }

    fn expire(&mut self, now: Instant) {
        self.listen_again(now);
        self.look_for_silence(now);
        let late = |connection: &Connection| connection.deadline.is_some_and(|at| at <= now);
        let connections = self.connections.values();
        let late: Vec<u64> = connections.filter(|one| late(one)).map(|one| one.number).collect();
        for number in late {
            self.happen(number, Event::DeadlinePassed);
        }
    }
}

fn translated(event: CmEvent) -> Option<Event> {
    let CmEvent { kind, status, private_data: said, .. } = event;
    let failed = |step, said| Event::Failed(Failure::Manager { step, status, said });
    Some(match kind {
        RDMA_CM_EVENT_ADDR_RESOLVED => Event::AddressResolved,
        RDMA_CM_EVENT_ADDR_ERROR if status == -libc::ETIMEDOUT => Event::AddressTimedOut,
        RDMA_CM_EVENT_ADDR_ERROR => failed(Step::ResolveAddress, Box::default()),
        RDMA_CM_EVENT_ROUTE_RESOLVED => Event::RouteResolved,
        RDMA_CM_EVENT_ROUTE_ERROR => failed(Step::ResolveRoute, Box::default()),
        RDMA_CM_EVENT_CONNECT_ERROR => failed(Step::Connect, Box::default()),
        RDMA_CM_EVENT_UNREACHABLE => failed(Step::Unreachable, Box::default()),
        RDMA_CM_EVENT_REJECTED => failed(Step::Rejected, said),
        RDMA_CM_EVENT_ESTABLISHED => Event::Established,
        RDMA_CM_EVENT_DISCONNECTED => Event::Disconnected,
        RDMA_CM_EVENT_DEVICE_REMOVAL => Event::DeviceRemoved,
        RDMA_CM_EVENT_ADDR_CHANGE => Event::AddressChanged,
        _ => return None,
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn address_error(status: i32) -> CmEvent {
        CmEvent {
            kind: RDMA_CM_EVENT_ADDR_ERROR,
            number: 1,
            status,
            request: None,
            peer_reads: Reads::default(),
            private_data: Box::default(),
        }
    }

    #[test]
    fn only_an_address_that_is_not_found_in_time_is_looked_up_again() {
        let timed_out = translated(address_error(-libc::ETIMEDOUT));
        assert_eq!(timed_out, Some(Event::AddressTimedOut));
        for status in [-libc::EHOSTUNREACH, -libc::ENODEV, libc::ETIMEDOUT, -1] {
            let failure = Failure::of(Step::ResolveAddress, status);
            assert_eq!(translated(address_error(status)), Some(Event::Failed(failure)));
        }
    }
}
