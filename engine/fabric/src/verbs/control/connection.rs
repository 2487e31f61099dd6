//! One connection: its id, its parts on the device, and the calls that its state machine asks for.

use super::super::super::{DownCause, Endpoint, FabricError, Peer};
use super::super::cm::{CmEvent, CmId, OPTION_ACK_TIMEOUT, OPTION_TYPE_OF_SERVICE};
use super::super::config::VerbsConfig;
use super::super::core::{Context, CoreShared};
use super::super::device::DeviceCaps;
use super::super::link::{Link, LinkState, Remains, Side};
use super::super::objects::WindowTable;
use super::super::reads::Reads;
use super::address_resolution::{TRY_MIN, next_try};
use super::machine::{Action, Event, Failure, State, Step};
use super::qp_objects::Parts;
use super::{Control, Mailbox};
use crate::connector_common::{HostPlace, identity_of};
use crate::sys::journal::event;
use std::io;
use std::mem::ManuallyDrop;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

const GIVEN_UP: &[u8] = b"the server could not take the connection";

/// Threads that wait for the kernel in the control thread's stead.
const HELPER_NAME: &str = "spinrpc-rdma-io";

pub(in super::super) struct Waiting {
    pub(in super::super) op: String,
    pub(in super::super) reply: Sender<Result<Endpoint, FabricError>>,
}

/// The order of the fields is that of the end: the device's context goes with the id.
pub(super) struct Connection {
    pub(super) number: u64,
    state: State,
    pub(super) side: Side,
    pub(super) peer: SocketAddr,
    /// Of a connection that was accepted.
    pub(super) place: Option<HostPlace>,
    pub(super) core: Arc<CoreShared>,
    link: Arc<LinkState>,
    pub(super) deadline: Option<Instant>,
    look_up_until: Instant,
    pub(super) waiting: Option<Waiting>,
    private_data: Box<[u8]>,
    pub(super) reads: Reads,
    peer_private_data: Box<[u8]>,
    /// Sends the request, or has.
    requester: Option<JoinHandle<()>>,
    remains: Option<Remains>,
    pub(super) parts: Option<Parts>,
    pub(super) device: Option<(Context, DeviceCaps)>,
    pub(super) id: Arc<CmId>,
}

impl Connection {
    pub(super) fn new(
        number: u64,
        id: CmId,
        (state, side): (State, Side),
        peer: SocketAddr,
        core: Arc<CoreShared>,
        private_data: Box<[u8]>,
        deadline: Instant,
    ) -> Self {
        Self {
            number,
            state,
            side,
            peer,
            place: None,
            core,
            link: Arc::default(),
            deadline: Some(deadline),
            look_up_until: deadline,
            waiting: None,
            private_data,
            reads: Reads::default(),
            peer_private_data: Box::default(),
            requester: None,
            remains: None,
            parts: None,
            device: None,
            id: Arc::new(id),
        }
    }

    pub(super) fn is_gone(&self) -> bool {
        self.state == State::Gone
    }

    /// The peer's request is not answered yet, or the answer not acknowledged.
    pub(super) fn is_handshake(&self) -> bool {
        matches!(self.state, State::AwaitingReceives | State::Accepting)
    }

    pub(super) fn time_left(&self, at_most: Duration) -> Duration {
        let left = self.deadline.map(|at| at.saturating_duration_since(Instant::now()));
        left.unwrap_or(at_most).min(at_most)
    }

    pub(super) fn look_up(&mut self, at_most: Duration) -> Result<(), Failure> {
        let now = Instant::now();
        self.look_up_until = self.look_up_until.min(now + at_most);
        self.resolve_address(next_try(self.look_up_until, now).unwrap_or(TRY_MIN))
    }

    pub(super) fn look_up_again(&self) -> Result<(), Failure> {
        let next = next_try(self.look_up_until, Instant::now());
        self.resolve_address(next.ok_or(Failure::of(Step::ResolveAddress, -libc::ETIMEDOUT))?)
    }

    fn resolve_address(&self, time: Duration) -> Result<(), Failure> {
        let begun = self.id.resolve_address(self.peer, time);
        begun.map_err(|error| Failure::of_call(Step::ResolveAddress, &error))
    }

    /// Returns the action, and the state in which the event came.
    pub(super) fn step(&mut self, event: Event) -> (State, Action) {
        let from = self.state;
        let (state, action) = from.on(event);
        self.state = state;
        (from, action)
    }

    /// Before the queue pair is made: what is not configured is left to the kernel. The type of service goes with the request, so the accepting
    /// side has none to set; iWARP has no such timeout.
    pub(super) fn set_options(&self, config: &VerbsConfig) {
        if let Some(value) = config.type_of_service.filter(|_| self.side == Side::Connecting) {
            report(self.id.set_option(OPTION_TYPE_OF_SERVICE, value));
        }
        if let Some(value) = config.ack_timeout.filter(|_| !self.is_iwarp()) {
            report(self.id.set_option(OPTION_ACK_TIMEOUT, value));
        }
    }

    /// Sends the request. Over iWARP on a separate thread: siw connects its TCP socket in the call,
    /// which takes minutes if the peer does not answer.
    pub(super) fn request(
        &mut self,
        config: &VerbsConfig,
        mailbox: &Arc<Mailbox>,
    ) -> Result<(), Failure> {
        if !self.is_iwarp() {
            return ask_peer(&self.id, self.reads, config, &self.private_data);
        }
        let (id, mailbox) = (Arc::clone(&self.id), Arc::clone(mailbox));
        let (number, reads, config) = (self.number, self.reads, config.clone());
        let private_data = self.private_data.clone();
        let requester = thread::Builder::new().name(HELPER_NAME.into()).spawn(move || {
            if let Err(failure) = ask_peer(&id, reads, &config, &private_data) {
                let failed = Event::Failed(failure);
                mailbox.leave(move |thread| thread.happen(number, failed));
            }
        });
        self.requester = Some(requester.map_err(|error| {
            let reason = format!("cannot start a thread for the request: {error}");
            Failure::Own { reason, errno: error.raw_os_error() }
        })?);
        Ok(())
    }

    fn is_iwarp(&self) -> bool {
        self.device.is_some_and(|(_, caps)| caps.is_iwarp)
    }

    pub(super) fn accept(&self, config: &VerbsConfig) -> Result<(), Failure> {
        let accepted = self.id.accept(self.reads, config, &self.private_data);
        accepted.map_err(|error| Failure::of_call(Step::Connect, &error))?;
        self.set_timers(config);
        Ok(())
    }

    pub(super) fn take_answer(&mut self, event: &mut CmEvent) {
        self.peer_private_data = std::mem::take(&mut event.private_data);
        let is_iwarp = self.is_iwarp();
        if let (Side::Connecting, Some(parts)) = (self.side, &mut self.parts) {
            self.reads = self.reads.agreed(event.peer_reads, is_iwarp);
            parts.limits.reads_out = self.reads.out.into();
        }
    }

    pub(super) fn establish(&mut self, config: &VerbsConfig, control: Option<Arc<Control>>) {
        self.deadline = None;
        self.link.set_established();
        if self.side == Side::Accepting {
            return self.core.notify();
        }
        self.set_timers(config);
        let (Some(waiting), Some(endpoint)) = (self.waiting.take(), self.endpoint(control)) else {
            return;
        };
        // A caller that has given up meanwhile drops the endpoint, and with it the connection.
        let _ = waiting.reply.send(Ok(endpoint));
    }

    /// The timer is that of this side's answers to the peer. InfiniBand and RoCE only.
    fn set_timers(&self, config: &VerbsConfig) {
        if let Some(parts) = self.parts.as_ref().filter(|_| !self.is_iwarp()) {
            report(parts.qp.set_min_rnr_timer(config.min_rnr_timer));
        }
    }

    /// The connection for its core. `None` when there is none yet, or not any more.
    pub(super) fn endpoint(&mut self, control: Option<Arc<Control>>) -> Option<Endpoint> {
        let control = control?;
        let parts = self.parts.as_mut()?;
        let link = Link {
            qp: parts.qp.raw(),
            number: self.number,
            side: self.side,
            queue: ManuallyDrop::new(Arc::clone(&parts.lease.queue)),
            memory: ManuallyDrop::new(parts.memory.take()?),
            limits: parts.limits,
            state: Arc::clone(&self.link),
            control,
        };
        Some(Endpoint {
            peer_private_data: std::mem::take(&mut self.peer_private_data),
            peer: Peer::Socket(self.peer),
            peer_identity: identity_of(self.peer),
            reads_max: link.limits.reads_out,
            link: Box::new(link),
        })
    }

    pub(super) fn end(&mut self, from: State, cause: DownCause) {
        self.deadline = None;
        self.link.set_over(cause);
        self.break_off(from);
        self.core.notify();
    }

    fn break_off(&self, from: State) {
        match from {
            State::AwaitingReceives => self.id.reject(GIVEN_UP),
            State::Accepting | State::Established => self.id.disconnect(),
            _ => {}
        }
        if let Some(parts) = &self.parts {
            parts.qp.break_off();
        }
    }

    /// Destroys the queue pair, whose core wants no more completions, and tells it.
    pub(super) fn destroy(&mut self, from: State) {
        self.deadline = None;
        self.break_off(from);
        if self.destroy_queue_pair() {
            self.core.notify();
        }
    }

    /// False if the queue pair is there still: then its core keeps the memory that the device may
    /// still touch.
    fn destroy_queue_pair(&mut self) -> bool {
        match self.parts.as_mut().map_or(Ok(()), Parts::destroy) {
            Ok(()) => self.link.set_destroyed(),
            Err(error) => {
                let number = self.number;
                event!(ERROR, number, %error, "a queue pair cannot be destroyed");
                return false;
            }
        }
        true
    }

    pub(super) fn give_up(&mut self, failure: Failure) {
        if let Some(Waiting { op, reply }) = self.waiting.take() {
            // A caller that has given up meanwhile does not need the error.
            let _ = reply.send(Err(failure.into_error(&op, self.peer)));
        }
    }

    /// Doubles the number of memory windows, and tells the core. After an error there are as many as there were: the
    /// connection asks no more, and its calls wait for each other.
    pub(super) fn add_windows(&self) {
        let Some(windows) = self.windows() else { return };
        if let Err(error) = windows.add(windows.count()) {
            let (number, count) = (self.number, windows.count());
            event!(WARN, number, count, %error, "a connection does not get more memory windows");
        }
        self.core.notify();
    }

    /// False if a key may be alive still.
    pub(super) fn free_windows(&self, bound: &[usize]) -> bool {
        let Some(windows) = self.windows() else { return bound.is_empty() };
        let bound = bound.iter().filter_map(|at| windows.get(*at));
        // All of them, whether or not one fails.
        bound.filter(|window| !window.free()).count() == 0
    }

    fn windows(&self) -> Option<Arc<WindowTable>> {
        self.parts.as_ref()?.windows.upgrade()
    }

    pub(super) fn keep(&mut self, remains: Remains) {
        self.remains = Some(remains);
    }

    /// Frees everything, in order, from state `from`. Over iWARP a request that has no answer yet
    /// cannot be taken back, and the kernel waits: this is left to a separate thread.
    pub(super) fn free(self, from: State) {
        if from != State::AwaitingAnswer || !self.is_iwarp() {
            return self.take_down(from);
        }
        let helper = thread::Builder::new().name(HELPER_NAME.into());
        if let Err(error) = helper.spawn(move || self.take_down(from)) {
            // Dropped by the failed attempt, with the fields in the same order.
            event!(WARN, %error, "no thread to wait for the end of a connection request");
        }
    }

    fn take_down(mut self, from: State) {
        if let Some(requester) = self.requester.take() {
            // It has no result.
            let _ = requester.join();
        }
        self.break_off(from);
        if !self.destroy_queue_pair() {
            // The device may touch its memory at any time: that stays until the process ends.
            std::mem::forget(self);
        }
        // Else the rest goes in the order of the fields.
    }
}

pub(super) fn asking_peer(id: &CmId) -> SocketAddr {
    let unknown = || SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    id.peer().unwrap_or_else(unknown)
}

/// The connection works without the option.
fn report(set: io::Result<()>) {
    if let Err(error) = set {
        event!(DEBUG, %error, "an option of a connection is not as configured");
    }
}

fn ask_peer(
    id: &CmId,
    reads: Reads,
    config: &VerbsConfig,
    private_data: &[u8],
) -> Result<(), Failure> {
    id.connect(reads, config, private_data).map_err(|error| match error.raw_os_error() {
        Some(errno @ libc::ECONNREFUSED) => Failure::of(Step::Rejected, -errno),
        Some(errno @ (libc::ETIMEDOUT | libc::EHOSTUNREACH | libc::ENETUNREACH)) => {
            Failure::of(Step::Unreachable, -errno)
        }
        _ => Failure::of_call(Step::Connect, &error),
    })
}
