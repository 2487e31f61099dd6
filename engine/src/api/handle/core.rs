//! The core's side of handles: executes the orders of other threads, and delivers the answers.

use super::call::{Destination, HandleCall, give_back};
use super::client::{Connection, State};
use super::pool::{self, Order, Ordered, Pool, When};
use super::queue::Queued;
use crate::api::client::{Client, ClientLink, Reply, ReplyHandler, Token};
use crate::api::client_state::ConnectTo;
use crate::api::errors::CallError;
use crate::api::reconnect::Watcher;
use crate::api::service::ConnectionEvent;
use crate::config::Config;
use crate::mem::BulkPool;
use crate::reactor::in_flight::panic_log::{HandlerKind, PanicPlace};
use crate::reactor::in_flight::slow_calls::CallName;
use crate::reactor::state::core::CoreCell;
use crate::reactor::types::calls::CallId;
use crate::reactor::{Backpressure, Progress};
use crate::sync::box_queue::{BATCH, Item};
use crate::sys::clock::Ticks;
use spinrpc_proto::rpc::{AuthFlavor, OpaqueAuth};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

/// Calls that wait are looked at this often at least, in case they can be started, or have waited for too long.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// Calls of handles in flight, by their numbers.
type InFlight = RefCell<Vec<Option<Started>>>;

/// A call in flight. Its times are not in its own memory, whose lines go to and fro between CPUs.
struct Started {
    call: Box<HandleCall>,
    /// The client's identifier.
    id: CallId,
    /// Time that it waited here to be sent.
    waited: Duration,
    sent: Ticks,
}

/// Calls whose answers are to be put into queues in this turn.
type Answered = RefCell<Vec<Box<HandleCall>>>;

/// Turns without an answer for a queue after which the queue that was last in use is let go.
const TURNS_KEPT: u32 = 64;

/// A handle's connection that is to be made.
pub(in crate::api) struct ToConnect {
    pub(in crate::api) to: ConnectTo,
    pub(in crate::api) link: Rc<ClientLink>,
    pub(in crate::api) handler: Box<dyn ReplyHandler>,
}

pub(in crate::api) struct HandleCore {
    pool: Arc<Pool>,
    ops: Rc<CoreCell>,
    memory: BulkPool,
    /// Timeout of calls that do not name a deadline.
    timeout: Option<Duration>,
    orders_max: usize,
    clients: Vec<Option<HandleClient>>,
    in_flight: Rc<InFlight>,
    /// Taken from the queue, and not carried out yet.
    ordered: VecDeque<Ordered>,
    /// Calls whose answers are to be put into queues.
    answered: Rc<Answered>,
    /// The queue that last got answers: kept for a while, because threads that call count its
    /// holders, too, on the same cache line.
    queue: Option<Arc<Queued>>,
    idle_turns: u32,
    /// Numbers of the clients that have calls waiting.
    behind: Vec<u32>,
    /// Numbers of the clients without handles.
    forgotten: Vec<u32>,
    next_look: Duration,
    timed: Rc<Cell<TimedCalls>>,
}

/// Which of the calls that end are looked at, if they were slow.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::api) enum TimedCalls {
    #[default]
    None,
    Next,
    All,
}

struct HandleClient {
    client: Client,
    connection: Arc<Connection>,
    /// No thread has it any more, and it is being closed.
    is_closed: bool,
    /// Calls that could not be started yet, in order, and the credentials set between them.
    waiting: VecDeque<Waiting>,
    started: Rc<Cell<usize>>,
    /// Reason why the first waiting call was not started.
    refusal: Cell<Backpressure>,
}

/// Something that waits for the calls before it to be started.
enum Waiting {
    /// With the time since when.
    Call(Box<HandleCall>, Duration),
    Credential {
        flavor: AuthFlavor,
        body: Box<[u8]>,
    },
}

impl Waiting {
    fn call(self) -> Option<Box<HandleCall>> {
        match self {
            Self::Call(call, _) => Some(call),
            Self::Credential { .. } => None,
        }
    }
}

/// Ends a call that cannot be started. A panic of a function that takes the answer is contained as a handler's is.
fn refuse(ops: &CoreCell, call: Box<HandleCall>, why: Backpressure) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| call.finish(Err(why.into())))) {
        let place = PanicPlace { handler: HandlerKind::Reply, program: None, procedure: None };
        ops.take_panic(place, payload);
    }
}

impl HandleCore {
    pub(in crate::api) fn new(
        pool: Arc<Pool>,
        ops: Rc<CoreCell>,
        memory: BulkPool,
        config: &Config,
    ) -> Self {
        Self {
            pool,
            ops,
            memory,
            timeout: config.timeout(),
            orders_max: config.poll_budget(),
            clients: Vec::new(),
            in_flight: Rc::default(),
            ordered: VecDeque::new(),
            answered: Rc::default(),
            queue: None,
            idle_turns: 0,
            behind: Vec::new(),
            forgotten: Vec::new(),
            next_look: Duration::ZERO,
            timed: Rc::default(),
        }
    }

    /// Orders will come.
    pub(in crate::api) fn attach(&mut self) {
        let mut in_flight = self.in_flight.borrow_mut();
        in_flight.resize_with(self.pool.calls_max(), || None);
        self.ordered.reserve(BATCH);
        self.answered.borrow_mut().reserve(self.pool.calls_max());
    }

    /// Carries orders out, as many as fit into a turn or until one is to connect, which the dispatch does.
    #[inline]
    pub(in crate::api) fn take_orders(&mut self, events: &mut usize) -> Option<ToConnect> {
        while *events < self.orders_max {
            let Some(order) = self.ordered.pop_front() else {
                if !self.fetch_orders() {
                    return None;
                }
                continue;
            };
            *events += 1;
            match order {
                Item::Main(call) => self.take_call(call),
                Item::Number(number) => self.cancel(number),
                Item::Other(order) => {
                    if let Some(to_connect) = self.carry_out(*order) {
                        return Some(to_connect);
                    }
                }
            }
        }
        None
    }

    /// Takes a batch of orders from the queue, and has their calls fetched from the other CPU's cache at the same
    /// time. Returns false if there are none.
    #[inline]
    fn fetch_orders(&mut self) -> bool {
        let Self { pool, ordered, .. } = self;
        if !pool.has_orders() {
            return false;
        }
        let fetch = |order: Ordered| {
            if let Item::Main(call) = &order {
                call.prefetch();
            }
            ordered.push_back(order);
        };
        pool.take_orders(BATCH, fetch) > 0
    }

    fn carry_out(&mut self, order: Order) -> Option<ToConnect> {
        match order {
            Order::Connect(number, order) => {
                let (to, connection) = *order;
                let (ops, reconnects) = (Rc::clone(&self.ops), to.options.reconnect.is_some());
                let link = ClientLink::new(ops, to.program, to.version, reconnects);
                let watcher = to.options.watcher.clone();
                let handler = self.add_client(number, (&link, connection), watcher);
                return Some(ToConnect { to, link, handler });
            }
            Order::Credential { client, flavor, body } => self.set_credential(client, flavor, body),
            Order::Close { client, when } => self.close(client, when),
        }
        None
    }

    /// Delivers answers to queues: many answers by one exchange with the thread that takes them.
    #[inline]
    fn deliver(&mut self) {
        let Self { answered, queue, idle_turns, .. } = self;
        let mut answered = answered.borrow_mut();
        if answered.is_empty() {
            if queue.is_some() {
                *idle_turns += 1;
                *queue = queue.take().filter(|_| *idle_turns < TURNS_KEPT);
            }
            return;
        }
        *idle_turns = 0;
        while let Some(first) = answered.first() {
            let Destination::Queue(to, _) = &first.to else { return answered.clear() };
            if !queue.as_ref().is_some_and(|queue| Arc::ptr_eq(queue, to)) {
                *queue = Some(Arc::clone(to));
            }
            let Some(queue) = queue else { return };
            let goes_there = |call: &HandleCall| match &call.to {
                Destination::Queue(other, _) => Arc::ptr_eq(other, queue),
                _ => false,
            };
            let count = answered.iter().take_while(|call| goes_there(call)).count();
            queue.push_all(answered.drain(..count));
        }
    }

    /// Starts waiting calls, and ends those that have waited for too long. Calls that still wait do
    /// not keep the core from sleeping, but an event need not announce that they can start:
    /// therefore the core looks again after a while.
    pub(in crate::api) fn go_on(&mut self, events: usize) -> Progress {
        self.deliver();
        if !self.behind.is_empty() {
            self.retry_waiting();
        }
        if !self.behind.is_empty() {
            self.ops.look_after(LOOK_EVERY);
        }
        if !self.forgotten.is_empty() {
            self.close_forgotten();
        }
        Progress { events, is_waiting: false }
    }

    fn add_client(
        &mut self,
        number: u32,
        (link, connection): (&Rc<ClientLink>, Arc<Connection>),
        watcher: Option<Watcher>,
    ) -> Box<dyn ReplyHandler> {
        // As the memory of a core, it is the same for all its connections.
        drop(connection.memory.set(self.memory.clone()));
        let in_flight = Rc::clone(&self.in_flight);
        let started = Rc::<Cell<usize>>::default();
        let handler = Box::new(Replies {
            ops: Rc::clone(&self.ops),
            in_flight,
            answered: Rc::clone(&self.answered),
            started: Rc::clone(&started),
            timed: Rc::clone(&self.timed),
            connection: Arc::clone(&connection),
            client: Rc::downgrade(link),
            watcher,
        });
        let place = number as usize;
        if self.clients.len() <= place {
            self.clients.resize_with(place + 1, || None);
        }
        self.clients[place] = Some(HandleClient {
            client: Client(Rc::clone(link)),
            connection,
            is_closed: false,
            waiting: VecDeque::new(),
            started,
            refusal: Cell::new(Backpressure::Connecting),
        });
        handler
    }

    fn client(&mut self, number: u32) -> Option<&mut HandleClient> {
        self.clients.get_mut(number as usize)?.as_mut()
    }

    fn take_call(&mut self, call: Box<HandleCall>) {
        let (number, in_flight) = (call.client, Rc::clone(&self.in_flight));
        let Some(client) = self.client(number) else {
            return refuse(&self.ops, call, Backpressure::Down);
        };
        if !client.waiting.is_empty() {
            let since = client.client.0.ops.time();
            return client.waiting.push_back(Waiting::Call(call, since));
        }
        if let Err(call) = client.try_call(call, None, &in_flight) {
            let since = client.client.0.ops.time();
            client.waiting.push_back(Waiting::Call(call, since));
            // It is there still if its calls were cancelled.
            if !self.behind.contains(&number) {
                self.behind.push(number);
            }
        }
    }

    /// Which of the calls that end from now on are kept if they were slow, for those who ask for slow calls ([`control`](crate::control)).
    pub(in crate::api) fn set_timed(&mut self, timed: TimedCalls) {
        self.timed.set(timed);
    }

    fn retry_waiting(&mut self) {
        let now = self.ops.time();
        let is_time = now >= self.next_look;
        if is_time {
            self.next_look = now + LOOK_EVERY;
        }
        let Self { behind, clients, in_flight, timeout, .. } = self;
        behind.retain(|number| {
            let Some(client) = &mut clients[*number as usize] else { return false };
            if is_time {
                client.end_overdue(now, *timeout);
            }
            client.retry_waiting(in_flight);
            !client.waiting.is_empty()
        });
    }

    /// Cancels a call, unless its answer is already on its way: then the number is unused, or names
    /// another call. One that waits here is given back when it is looked at next, within a millisecond.
    fn cancel(&mut self, number: u32) {
        self.pool.cancels.remove();
        let in_flight = self.in_flight.borrow();
        let call = in_flight.get(number as usize).and_then(Option::as_ref);
        let found = call.filter(|started| started.call.is_abandoned());
        let found = found.map(|started| (started.call.client, started.id));
        drop(in_flight);
        let Some((client, call)) = found else { return };
        if let Some(client) = self.client(client) {
            // One that has ended in this turn is given back when its handler is told.
            let _ = client.client.cancel(call);
        }
    }

    /// For the calls that come behind: those that wait are made as the user before.
    fn set_credential(&mut self, client: u32, flavor: AuthFlavor, body: Box<[u8]>) {
        self.pool.credentials.remove();
        let Some(client) = self.client(client) else { return };
        match client.waiting.is_empty() {
            true => client.set_credential(flavor, &body),
            false => {
                // One behind another is for no call: as many as calls wait at most.
                if let Some(Waiting::Credential { .. }) = client.waiting.back() {
                    client.waiting.pop_back();
                }
                client.waiting.push_back(Waiting::Credential { flavor, body });
            }
        }
    }

    fn close(&mut self, number: u32, when: When) {
        match (when, self.client(number)) {
            (When::AtOnce, Some(client)) => client.client.close(),
            (When::AtOnce, None) => {}
            (When::Forgotten, _) => self.forgotten.push(number),
        }
    }

    /// Closes connections that no thread has any more, when their calls have ended. A number is free when its
    /// connection has gone, so that there are never more connections than numbers.
    fn close_forgotten(&mut self) {
        let Self { forgotten, clients, pool, .. } = self;
        forgotten.retain(|number| {
            let place = clients.get_mut(*number as usize);
            let is_over = place.is_none_or(|place| {
                let is_over = place.as_mut().is_none_or(HandleClient::end);
                if is_over {
                    *place = None;
                }
                is_over
            });
            if is_over {
                pool.give_handle(*number);
            }
            !is_over
        });
    }

    /// Ends all calls, those that were taken first before the others.
    fn lose_all(&mut self) {
        let clients = self.clients.iter_mut().flatten();
        let waiting = clients.flat_map(|client| {
            client.connection.change(State::Down);
            client.waiting.drain(..).filter_map(Waiting::call)
        });
        let in_flight = self.in_flight.take();
        let in_flight = in_flight.into_iter().flatten().map(|started| (started.call, true));
        let left: Vec<_> = in_flight.chain(waiting.map(|call| (call, false))).collect();
        for (call, was_sent) in left {
            call.lose(was_sent);
        }
        self.ordered.drain(..).for_each(pool::refuse);
    }
}

/// The core ends: nothing that waits is left without an answer.
impl Drop for HandleCore {
    fn drop(&mut self) {
        self.deliver();
        Arc::clone(&self.pool).close(|| self.lose_all());
    }
}

impl HandleClient {
    /// Closes the connection, if no call uses it and it is not being established; returns true when
    /// it has gone.
    fn end(&mut self) -> bool {
        let has_calls = !self.waiting.is_empty() || self.started.get() > 0;
        if !has_calls && !self.is_closed && !self.client.is_connecting() {
            self.is_closed = true;
            self.client.close();
        }
        self.is_closed && self.connection.is_over()
    }

    /// Starts a call, or ends it if it can never be started. It comes back if it may be later.
    fn try_call(
        &self,
        mut call: Box<HandleCall>,
        since: Option<Duration>,
        in_flight: &InFlight,
    ) -> Result<(), Box<HandleCall>> {
        if call.is_abandoned() {
            give_back(call);
            return Ok(());
        }
        let place = call.number as usize;
        match call.issue(&self.client) {
            Ok(id) => {
                let ops = &self.client.0.ops;
                let waited = |since| ops.time().saturating_sub(since);
                let (waited, sent) = (since.map_or(Duration::ZERO, waited), ops.time_in_ticks());
                if let Some(place) = in_flight.borrow_mut().get_mut(place) {
                    *place = Some(Started { call, id, waited, sent });
                    self.started.set(self.started.get() + 1);
                }
                Ok(())
            }
            Err(refused) if refused.is_transient() => {
                // The application was not refused anything.
                if refused == Backpressure::NoCredit {
                    self.client.0.ops.count(|stats| stats.credit_stalls -= 1);
                }
                self.refusal.set(refused);
                Err(call)
            }
            Err(refused) => {
                refuse(&self.client.0.ops, call, refused);
                Ok(())
            }
        }
    }

    fn retry_waiting(&mut self, in_flight: &InFlight) {
        while let Some(next) = self.waiting.pop_front() {
            match next {
                Waiting::Credential { flavor, body } => self.set_credential(flavor, &body),
                Waiting::Call(call, since) => {
                    if let Err(call) = self.try_call(call, Some(since), in_flight) {
                        return self.waiting.push_front(Waiting::Call(call, since));
                    }
                }
            }
        }
    }

    /// Ends those that have waited for as long as they would wait for their answers, and those that were cancelled.
    fn end_overdue(&mut self, now: Duration, timeout: Option<Duration>) {
        for _ in 0..self.waiting.len() {
            let (call, since) = match self.waiting.pop_front() {
                None => return,
                Some(Waiting::Call(call, since)) => (call, since),
                Some(other) => {
                    self.waiting.push_back(other);
                    continue;
                }
            };
            let at_most = call.spec.deadline.or(timeout);
            let is_overdue = at_most.is_some_and(|at_most| now.saturating_sub(since) >= at_most);
            match is_overdue {
                _ if call.is_abandoned() => give_back(call),
                true => refuse(&self.client.0.ops, call, self.refusal.get()),
                false => self.waiting.push_back(Waiting::Call(call, since)),
            }
        }
    }

    fn set_credential(&self, flavor: AuthFlavor, body: &[u8]) {
        // No encoder runs here.
        let _ = self.client.set_credential(OpaqueAuth { flavor, body });
    }
}

/// Hands answers on to the threads that wait for them.
struct Replies {
    ops: Rc<CoreCell>,
    in_flight: Rc<InFlight>,
    answered: Rc<Answered>,
    started: Rc<Cell<usize>>,
    timed: Rc<Cell<TimedCalls>>,
    connection: Arc<Connection>,
    client: Weak<ClientLink>,
    watcher: Option<Watcher>,
}

impl Replies {
    /// The state of its client after an event of one connection, of which it may have others.
    fn state_after(&self, event: &ConnectionEvent) -> Option<State> {
        let client = self.client.upgrade().map(Client);
        let has_other = client.as_ref().is_some_and(Client::is_up);
        Some(match event {
            ConnectionEvent::Up { connection, .. } => {
                let is_single = client.is_some_and(|client| !client.is_group());
                let memory = is_single.then(|| self.ops.exposed_memory(connection.0));
                State::Up(memory.flatten())
            }
            ConnectionEvent::Reconnecting { .. } | ConnectionEvent::Retrying { .. }
                if has_other =>
            {
                return None;
            }
            ConnectionEvent::Reconnecting { .. } => State::Connecting,
            ConnectionEvent::Retrying { error, .. } => State::Retrying(error.clone()),
            ConnectionEvent::ConnectFailed { error } => State::Failed(error.clone()),
            ConnectionEvent::Down { .. } => State::Down,
        })
    }

    /// A call that is timed has ended, perhaps a slow one.
    #[cold]
    fn note_times(&self, started: &Started) {
        if self.timed.get() == TimedCalls::Next {
            self.timed.set(TimedCalls::None);
        }
        let Some(link) = self.client.upgrade() else { return };
        let Some(conn) = link.conn_of_reply() else { return };
        let (program, version) = link.called();
        let called = Some((program, version, started.call.procedure));
        let name = CallName { xid: started.id.slot().xid(), called };
        self.ops.note_own_call(conn, name, started.waited, started.sent);
    }
}

impl ReplyHandler for Replies {
    fn on_reply(&mut self, Token(number): Token, reply: Result<Reply<'_>, CallError>) {
        let place = usize::try_from(number).unwrap_or(usize::MAX);
        let started = self.in_flight.borrow_mut().get_mut(place).and_then(Option::take);
        // The borrow has ended: a function that runs on the core may have the core start calls.
        if let Some(started) = started {
            if self.timed.get() != TimedCalls::None {
                self.note_times(&started);
            }
            self.started.set(self.started.get() - 1);
            if let Some(call) = started.call.finish_later(reply) {
                // Later in this turn, with others. Those that come after the handles were polled are delivered in the next turn.
                // That follows at once: a core with handles does not sleep after a turn that attended to anything.
                self.answered.borrow_mut().push(call);
            }
        }
    }

    fn on_event(&mut self, event: &ConnectionEvent) {
        if let Some(state) = self.state_after(event) {
            self.connection.change(state);
        }
        if let Some(watcher) = &self.watcher {
            watcher.tell(event);
        }
    }
}
