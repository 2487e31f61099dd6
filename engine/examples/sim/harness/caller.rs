//! The client's side: makes the calls of a plan, and hears how they end.

use super::content;
use super::ledger::Ledger;
use super::program::{NULL, PROGRAM, VERSION, WORK, WORK_AGAIN, check_results, encode};
use super::scenario::{CallPlan, LinkPlan};
use super::secured::secure;
use super::setup::address_at;
use spinrpc::fabric::sim::{Rng, SideId, World};
use spinrpc::{
    AcceptStatus, Backpressure, Bulk, CallError, CallId, CallSpec, Client, ConnectOptions,
    ConnectionEvent, ConnectionId, Core, Peer, Reply, ReplyHandler, Resend, ReverseOptions, Token,
};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Tokens of the calls that only fill a connection: they are counted, not known one by one.
const FILLERS: u64 = 1 << 40;

/// One link of the plan: a client, and another one when that has gone.
pub(crate) struct Caller {
    pub(crate) plan: LinkPlan,
    pub(crate) number: usize,
    pub(crate) honest: bool,
    pub(crate) client: Client,
    rng: Rng,
    ledger: Ledger,
    heard: Rc<Heard>,
    pub(crate) calls_left: usize,
    pub(crate) reconnects_left: usize,
    /// The refused call, to be tried again.
    refused: Option<CallPlan>,
    refusals: usize,
}

#[derive(Debug, Default)]
pub(crate) struct Heard {
    pub(crate) up: Cell<bool>,
    pub(crate) over: Cell<bool>,
    /// Its ends of connections that came up.
    ends: RefCell<Vec<SideId>>,
    /// Fillers that were answered.
    pub(crate) fillers: Cell<usize>,
}

impl Heard {
    /// Connections that are up.
    pub(crate) fn ups(&self, world: &World) -> usize {
        let mut ends = self.ends.borrow_mut();
        ends.retain(|end| world.find_holding(|it| it.side == *end && !it.is_down).is_some());
        ends.len()
    }
}

struct Handler {
    /// Connections that the client may have at a time.
    most: usize,
    ledger: Ledger,
    honest: bool,
    heard: Rc<Heard>,
}

/// A call in flight, and the client that has started it: there may be another one when it ends.
pub(crate) struct StartedCall {
    pub(crate) token: u64,
    call: CallId,
    client: Client,
}

pub(crate) struct Started {
    pub(crate) call: StartedCall,
    pub(crate) deadline_ns: Option<u64>,
    pub(crate) cancel_ns: Option<u64>,
}

pub(crate) enum Tried {
    Started(Started),
    /// No room now, or no connection.
    NotNow,
    /// It can never be made; the next one may.
    Never,
}

impl Caller {
    pub(crate) fn connect(
        core: &mut Core,
        plan: LinkPlan,
        number: usize,
        address: &str,
        ledger: &Ledger,
        rng: Rng,
    ) -> Option<Self> {
        let honest = matches!(plan.target, super::scenario::Target::Server(_));
        let heard = Rc::new(Heard::default());
        let client = open(core, address, (&plan, number), ledger, honest, &heard)?;
        Some(Self::new(plan, number, honest, client, ledger, heard, rng))
    }

    /// Of a server, by a connection that it has accepted.
    pub(crate) fn in_reverse(
        core: &mut Core,
        connection: ConnectionId,
        number: usize,
        ledger: &Ledger,
        mut rng: Rng,
    ) -> Option<Self> {
        let plan = LinkPlan::in_reverse(&mut rng);
        let heard = Rc::new(Heard::default());
        heard.up.set(true);
        let (ledger_of, heard_of) = (ledger.clone(), Rc::clone(&heard));
        let handler = Handler { most: 1, ledger: ledger_of, honest: true, heard: heard_of };
        let options = ReverseOptions::new();
        let made = core.reverse_client(connection, PROGRAM, VERSION, &options, |_| handler);
        Some(Self::new(plan, number, true, made.ok()?, ledger, heard, rng))
    }

    fn new(
        plan: LinkPlan,
        number: usize,
        honest: bool,
        client: Client,
        ledger: &Ledger,
        heard: Rc<Heard>,
        rng: Rng,
    ) -> Self {
        let (calls_left, reconnects_left) = (plan.calls, plan.reconnects);
        let ledger = ledger.clone();
        Self {
            plan,
            number,
            honest,
            client,
            rng,
            ledger,
            heard,
            calls_left,
            reconnects_left,
            refused: None,
            refusals: 0,
        }
    }

    /// Makes another connection; false if the plan has no more of them.
    pub(crate) fn reconnect(&mut self, core: &mut Core, address: &str) -> bool {
        let Some(left) = self.reconnects_left.checked_sub(1) else { return false };
        self.reconnects_left = left;
        let heard = Rc::new(Heard::default());
        let Some(client) =
            open(core, address, (&self.plan, self.number), &self.ledger, self.honest, &heard)
        else {
            return false;
        };
        (self.client, self.heard) = (client, heard);
        true
    }

    pub(crate) fn heard(&self) -> &Heard {
        &self.heard
    }

    pub(crate) fn think_ns(&mut self) -> u64 {
        self.rng.within(self.plan.think_ns)
    }

    pub(crate) fn burst(&mut self) -> u64 {
        self.rng.below(self.plan.burst) + 1
    }

    pub(crate) fn try_call(&mut self) -> Tried {
        let drawn = self.refused.take();
        let plan = drawn.unwrap_or_else(|| CallPlan::draw(&mut self.rng, &self.plan));
        let token = self.ledger.entries().open(plan.clone(), self.number, self.honest);
        let started = self.start(token, &plan);
        match started {
            Ok(call) => {
                self.calls_left -= 1;
                self.refusals = 0;
                let deadline_ns = plan.deadline.map(|time| time.as_nanos() as u64);
                let call = StartedCall { token, call, client: self.client.clone() };
                Tried::Started(Started { call, deadline_ns, cancel_ns: plan.cancel_ns })
            }
            Err(refused) => self.put_back(&refused),
        }
    }

    fn put_back(&mut self, refused: &Backpressure) -> Tried {
        /// A call that does not fit this often, with nothing else in flight, is too large for the
        /// device.
        const PATIENCE: usize = 50;
        let plan = self.ledger.entries().withdraw();
        self.refusals += 1;
        let may_fit = refused.is_transient() && self.refusals < PATIENCE;
        if matches!(refused, Backpressure::Down | Backpressure::Reconnecting) {
            self.refused = plan;
            return Tried::NotNow;
        }
        if may_fit {
            self.refused = plan;
            return Tried::NotNow;
        }
        self.calls_left -= 1;
        self.refusals = 0;
        Tried::Never
    }

    fn start(&mut self, token: u64, plan: &CallPlan) -> Result<CallId, Backpressure> {
        let mut spec = self.spec(token, plan).ok_or(Backpressure::NoBuffer)?;
        let procedure = match plan.resend {
            Resend::AtLeastOnce => WORK_AGAIN,
            _ => WORK,
        };
        self.client.call(procedure, Token(token), &mut spec, |args| encode(token, plan, args))
    }

    fn spec(&mut self, token: u64, plan: &CallPlan) -> Option<CallSpec> {
        let spec = CallSpec::new().reply_bytes_max(plan.reply_bytes_max);
        let mut spec = spec.resend(plan.resend);
        if let Some(deadline) = plan.deadline {
            spec = spec.deadline(deadline);
        }
        for (index, length) in plan.arguments.iter().enumerate() {
            let mut bulk = self.memory(*length)?;
            content::fill(content::key(token, index), bulk.bytes_mut());
            spec = spec.argument(bulk);
        }
        for room in &plan.offers {
            let bulk = self.memory(*room)?;
            spec = spec.result_into(bulk);
        }
        Some(spec)
    }

    /// Memory of the connection, or now and then some that the engine has to copy from or to.
    fn memory(&mut self, bytes: usize) -> Option<Bulk> {
        match self.rng.chance(100) {
            true if bytes > 0 => Some(Bulk::from_vec(vec![0xaa; bytes])),
            _ => self.client.bulk(bytes),
        }
    }

    pub(crate) fn cancel(&self, started: &StartedCall) {
        let is_open = started.client.cancel(started.call).is_ok();
        let token = started.token as usize;
        if is_open && let Some(entry) = self.ledger.entries().calls.get_mut(token) {
            entry.cancelled = true;
        }
    }

    /// As many short calls as the connection takes, `most` at the most; says how many. `None` if the
    /// connection is gone and the application has not heard it yet: before it the core takes all that
    /// was flushed, which may be hundreds of receives and one of them in a turn.
    pub(crate) fn fill(&self, most: usize) -> Option<usize> {
        // Their replies need no memory, also under RPCSEC_GSS where messages have 1024 bytes.
        let spec = || CallSpec::new().reply_bytes_max(0);
        let start = || self.client.call(NULL, Token(FILLERS), &mut spec(), |_| {});
        let mut count = 0;
        while count < most {
            match start() {
                Ok(_) => count += 1,
                Err(Backpressure::Down) if count == 0 => return None,
                Err(_) => break,
            }
        }
        Some(count)
    }
}

fn open(
    core: &mut Core,
    address: &str,
    (plan, number): (&LinkPlan, usize),
    ledger: &Ledger,
    honest: bool,
    heard: &Rc<Heard>,
) -> Option<Client> {
    let LinkPlan { connections, addresses, .. } = *plan;
    // One that has left the address of its place, and one that has come home.
    let most = if connections.max(addresses) > 1 { 2 * connections } else { 1 };
    let handler = Handler { most, ledger: ledger.clone(), honest, heard: Rc::clone(heard) };
    let options = match ledger.entries().takes_reverse {
        true => ConnectOptions::new().take_reverse_calls(),
        false => ConnectOptions::new(),
    };
    let options = secure(options, number).connections(connections);
    let options = (1..addresses).fold(options, |to, at| to.also(&address_at(address, at)));
    let options = plan.comeback.map_or(options.clone(), |policy| options.reconnect(policy));
    core.connect_with(address, PROGRAM, VERSION, &options, |_| handler).ok()
}

impl Handler {
    fn come_up(&self, peer: Peer) {
        let Peer::Simulated(peer) = peer else { return };
        self.heard.up.set(true);
        self.heard.ends.borrow_mut().push(peer.peer());
        let world = self.ledger.entries().world.clone();
        let ups = world.map_or(1, |world| self.heard.ups(&world));
        self.ledger.entries().joined += u64::from(ups > 1);
        if ups > self.most {
            self.ledger.fail(format!("a client has {ups} connections, of {} at most", self.most));
        }
    }

    /// Reads a reply; errors are recorded if the server keeps the rules.
    fn read(&self, token: u64, mut reply: Reply<'_>) -> Result<(), CallError> {
        let plan = self.ledger.entries().calls.get(token as usize).map(|entry| entry.plan.clone());
        let Some(plan) = plan else { return Ok(()) };
        let arguments: Vec<Bulk> = std::iter::from_fn(|| reply.take_argument()).collect();
        if arguments.len() != plan.arguments.len() || arguments.iter().any(Bulk::is_leased) {
            self.ledger.fail(format!("call {token} ended and its arguments are not back"));
        }
        let mut results = reply.results();
        let mut kept = Vec::new();
        let problem = check_results(token, &plan, &mut results, &mut kept);
        let problem = problem.and_then(|problem| results.finish().map(|()| problem));
        if self.honest {
            self.ledger.entries().kept.append(&mut kept);
        }
        match problem {
            Ok(Some(problem)) if self.honest => {
                self.ledger.fail(format!("call {token} {problem}"));
                Ok(())
            }
            Ok(_) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl ReplyHandler for Handler {
    fn on_reply(&mut self, token: Token, reply: Result<Reply<'_>, CallError>) {
        if token.0 == FILLERS {
            // A server that keeps replies, and has no share left, says so.
            let full = |error| matches!(error, CallError::Accepted(AcceptStatus::SystemErr));
            let is_answered = reply.map_or_else(full, |_| true);
            return self.heard.fillers.set(self.heard.fillers.get() + usize::from(is_answered));
        }
        let result = reply.and_then(|reply| self.read(token.0, reply));
        self.ledger.entries().end(token.0, result);
    }

    fn on_event(&mut self, event: &ConnectionEvent) {
        if self.heard.over.get() {
            self.ledger.fail(format!("an event after the last one: {event:?}"));
        }
        match event {
            ConnectionEvent::Up { peer, .. } => self.come_up(*peer),
            ConnectionEvent::Reconnecting { cause, attempt: 1, .. } => {
                self.heard.up.set(false);
                if self.honest {
                    self.ledger.hear_end(cause);
                }
            }
            ConnectionEvent::Reconnecting { .. } | ConnectionEvent::Retrying { .. } => {}
            ConnectionEvent::Down { cause, .. } => {
                self.heard.over.set(true);
                if self.honest {
                    self.ledger.hear_end(cause);
                }
            }
            _ => self.heard.over.set(true),
        }
    }
}
