//! The control thread of a connector: it makes connections and takes them down.
//!
//! Everything here is off the data path. It waits for three kinds of things at once: events of the
//! connection manager, events of the devices, and jobs from other threads. Each is an event of one
//! connection's state machine ([`machine`]), whose answer is one call to make.

mod connection;
mod devices;
mod failure;
mod listener;
mod look_up;
mod machine;
mod mailbox;
mod parts;
mod requests;
mod routes;

pub(super) use listener::listen;
pub(super) use mailbox::Job;
pub(super) use requests::ConnectRequest;

use super::super::FabricError;
use super::cm::{self, CmEvent, CmId, EventChannel};
use super::connector::Environment;
use super::device::DeviceCaps;
use crate::sync::atomic::{AtomicU64, Ordering};
use connection::{Connection, Waiting};
use devices::Devices;
use listener::Listener;
use machine::{Action, Event, Failure, State, Step};
use mailbox::Mailbox;
use parts::Maker;
use rdma_sys::rdma_cm_event_type::*;
use requests::Reads;
use routes::DeviceEvent;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use std::collections::HashMap;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::Instant;

/// Events taken from the kernel at a time.
const EVENTS_MAX: usize = 64;
/// Most events of the connection manager that are taken at a time. epoll reports again those that
/// are left, so peers that request connections without end delay neither jobs nor deadlines.
const MANAGER_EVENTS_MAX: usize = 8;
/// Value that epoll returns for the mailbox, and for the connection manager; for a device it is the
/// address of its context.
const TOKEN_MAILBOX: u64 = 0;
const TOKEN_CHANNEL: u64 = 1;

/// A number for a link or a listener, never used twice in a process.
pub(super) fn next_number() -> u64 {
    // In a cell, as the model checker's atomics cannot be made at compile time.
    static NEXT: OnceLock<AtomicU64> = OnceLock::new();
    // Relaxed: only that it is unique matters.
    NEXT.get_or_init(|| AtomicU64::new(1)).fetch_add(1, Ordering::Relaxed)
}

/// Handle on the control thread, which ends with the last one.
#[derive(Debug)]
pub(super) struct Control {
    mailbox: Arc<Mailbox>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Control {
    const THREAD_NAME: &str = "spinrpc-rdma-cm";

    /// Starts the thread. On a host without RDMA devices the error is `ENODEV` or `ENOENT`.
    pub(super) fn start(environment: Arc<Environment>) -> io::Result<Arc<Self>> {
        let mailbox = Arc::new(Mailbox::new()?);
        let channel = Arc::new(EventChannel::new()?);
        let epoll = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let control = Arc::new(Self { mailbox: Arc::clone(&mailbox), thread: Mutex::new(None) });
        let state = ControlThread {
            connections: HashMap::new(),
            listeners: HashMap::new(),
            devices: Devices::new(Arc::clone(&channel), Arc::clone(&epoll)),
            epoll,
            channel,
            mailbox,
            environment,
            control: Arc::downgrade(&control),
        };
        state.watch(TOKEN_MAILBOX, state.mailbox.event())?;
        state.watch(TOKEN_CHANNEL, state.channel.as_fd())?;
        let thread = thread::Builder::new().name(Self::THREAD_NAME.into());
        let thread = thread.spawn(move || state.run_to_the_end())?;
        *crate::sync::lock(&control.thread) = Some(thread);
        Ok(control)
    }

    /// Leaves a job for the thread; does not block.
    pub(super) fn post(&self, job: Job) {
        self.mailbox.post(job);
    }

    /// The thread has panicked: its hook has said why.
    pub(super) fn ended(op: &str) -> FabricError {
        let reason = "the control thread has ended".into();
        FabricError { op: op.into(), reason, source: None }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.mailbox.stop();
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        // On the thread itself (an acceptor held the last handle) there is nothing to wait for.
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != thread::current().id())
        {
            // It has no result; a panic has been reported by the hook.
            let _ = thread.join();
        }
    }
}

/// State of the thread. Listeners are dropped first: their acceptors may hold endpoints.
struct ControlThread {
    listeners: HashMap<u64, Listener>,
    connections: HashMap<u64, Connection>,
    devices: Devices,
    epoll: Arc<OwnedFd>,
    channel: Arc<EventChannel>,
    mailbox: Arc<Mailbox>,
    environment: Arc<Environment>,
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
            let timeout = self.next_deadline().map(|deadline| {
                let left = deadline.saturating_duration_since(Instant::now());
                Timespec::try_from(left).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 })
            });
            // Nothing but a signal ends the wait early.
            let _ = epoll::wait(&self.epoll, spare_capacity(&mut events), timeout.as_ref());
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
            match job {
                Job::Connect(request) => self.start_connecting(*request),
                Job::Listen(request) => self.start_listening(*request),
                Job::StopListening(stop) => self.stop_listening(stop),
                Job::Accept(number) => self.happen(number, Event::ReceivesPosted),
                Job::Disconnect(number) => self.happen(number, Event::DisconnectWanted),
                Job::Destroy(number) => self.happen(number, Event::DestroyWanted),
                Job::Dismantle(number, remains) => {
                    if let Some(connection) = self.connections.get_mut(&number) {
                        connection.keep(remains);
                    }
                    self.happen(number, Event::LinkDropped);
                }
                Job::RequestFailed(number, failure) => self.happen(number, Event::Failed(failure)),
                Job::Device(number, event) => self.on_device_event(number, event),
            }
        }
    }

    fn start_connecting(&mut self, request: ConnectRequest) {
        let ConnectRequest { op, peer, core, private_data, deadline, reply } = request;
        let number = next_number();
        let waiting = Waiting { op, reply };
        let id = match CmId::new(&self.channel, number) {
            Ok(id) => id,
            Err(error) => {
                let failure = Failure::of(Step::Connect, -error.raw_os_error().unwrap_or(0));
                let _ = waiting.reply.send(Err(failure.into_error(&waiting.op, peer)));
                return;
            }
        };
        let mut connection =
            Connection::connecting(number, id, peer, core, private_data, deadline, waiting);
        let begun = connection.look_up(self.environment.config.handshake_timeout);
        self.connections.insert(number, connection);
        if let Err(failure) = begun {
            self.happen(number, Event::Failed(failure));
        }
    }

    fn on_manager_event(&mut self, mut event: CmEvent) {
        let number = event.number;
        tracing::debug!(kind = event.kind, number, status = event.status, "connection manager");
        if event.kind == RDMA_CM_EVENT_CONNECT_REQUEST {
            return self.on_request(&mut event);
        }
        let is_removal = event.kind == RDMA_CM_EVENT_DEVICE_REMOVAL;
        if self.listeners.contains_key(&number) {
            return self.on_listener_event(number, is_removal);
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

    fn on_device_event(&mut self, number: u64, event: DeviceEvent) {
        tracing::debug!(?event, number, "device");
        let event = match (event, event.cause()) {
            (DeviceEvent::DeviceFailed, _) => {
                self.note_removal(number);
                Event::DeviceRemoved
            }
            (_, Some(cause)) => Event::QueuePairFailed(cause),
            (_, None) => Event::FirstMessage,
        };
        self.happen(number, event);
    }

    fn note_removal(&mut self, number: u64) {
        let context = self.connections.get(&number).and_then(|connection| connection.context);
        if let Some(context) = context {
            self.devices.note_removal(context);
        }
    }

    /// Handles an event of a connection, and executes the action that follows.
    fn happen(&mut self, number: u64, event: Event) {
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
            Action::TellOfMessage => connection.id.tell_of_message(),
            Action::Establish => connection.establish(config, self.control.upgrade()),
            Action::End(cause) => connection.end(from, cause),
            Action::Destroy => connection.destroy(from),
            Action::GiveUp(failure) => connection.give_up(failure),
        }
        Ok(())
    }

    /// The device is known: is it the right one, and where is the path?
    fn resolve_route(&mut self, connection: &mut Connection) -> Result<(), Failure> {
        let caps = self.attach(connection)?;
        let config = &self.environment.config;
        connection.reads = Reads::offered(config, &caps);
        let timeout = connection.time_left(config.handshake_timeout);
        let begun = connection.id.resolve_route(timeout);
        begun.map_err(|error| Failure::of(Step::ResolveRoute, -error.raw_os_error().unwrap_or(0)))
    }

    /// Determines the device that the connection uses, and its capabilities.
    fn attach(&mut self, connection: &mut Connection) -> Result<DeviceCaps, Failure> {
        if let (Some(wanted), Some(context)) =
            (&self.environment.config.device, connection.id.context())
        {
            // SAFETY: the context is open as long as the id lives.
            let found = unsafe { cm::device_name(context) };
            if found != *wanted {
                let reason = format!(
                    "the way to {} leads through device {found}, and the configuration names {wanted}",
                    connection.peer.ip()
                );
                return Err(Failure::Own { reason, errno: None });
            }
        }
        let (context, caps) = self.devices.attach(&connection.id)?;
        connection.context = Some(context);
        connection.caps = Some(caps);
        connection.set_options(&self.environment.config);
        Ok(caps)
    }

    fn make_parts(&mut self, connection: &mut Connection) -> Result<(), Failure> {
        let device = connection.context.zip(connection.caps);
        let (context, caps) = device.ok_or_else(|| Failure::of(Step::DeviceRemoved, 0))?;
        let config = &self.environment.config;
        let maker = Maker { config, mailbox: Arc::downgrade(&self.mailbox) };
        let Connection { number, id, side, core, reads, .. } = &*connection;
        // SAFETY: the context is the id's; a connection frees its parts before its id.
        let parts = unsafe { maker.make(*number, (id, *side), (context, &caps), core, reads.out)? };
        connection.parts = Some(parts);
        Ok(())
    }

    /// Frees a connection that was in state `from`.
    fn free(&mut self, connection: Connection, from: State) {
        if let Some(context) = connection.context {
            self.devices.detach(context);
        }
        connection.free(from);
    }

    fn next_deadline(&self) -> Option<Instant> {
        let connections = self.connections.values().filter_map(|connection| connection.deadline);
        let listeners = self.listeners.values().filter_map(|listener| listener.retry_at);
        connections.chain(listeners).min()
    }

    /// Ends operations that took too long.
    fn expire(&mut self, now: Instant) {
        self.listen_again(now);
        let late = |connection: &Connection| connection.deadline.is_some_and(|at| at <= now);
        let connections = self.connections.values();
        let late: Vec<u64> = connections.filter(|one| late(one)).map(|one| one.number).collect();
        for number in late {
            self.happen(number, Event::DeadlinePassed);
        }
    }
}

/// Meaning of an event of the connection manager; `None` if it means nothing here.
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
        RDMA_CM_EVENT_TIMEWAIT_EXIT => Event::TimewaitExit,
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
            peer_reads_out: 0,
            peer_reads_in: 0,
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
