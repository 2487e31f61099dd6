//! The program that servers serve: it checks what it gets, and answers as the call asks.

use super::content;
use super::kept::Kept;
use super::ledger::Ledger;
use super::scenario::{Answer, CallPlan};
use spinrpc::fabric::sim::SideId;
use spinrpc::{
    AcceptStatus, Call, ConnectionEvent, ConnectionId, CoreContext, DecodeError, Decoder, Deferred,
    Encoder, Peer, Procedure, Program, ReplyData, Service, Version,
};

pub(crate) const PROGRAM: Program = Program(0x2000_0051);
pub(crate) const VERSION: Version = Version(1);
pub(crate) const NULL: Procedure = Procedure(0);
pub(crate) const WORK: Procedure = Procedure(1);
/// The same, and done twice it does no harm.
pub(crate) const WORK_AGAIN: Procedure = Procedure(2);

/// Longest item, and most items, that the program makes for anybody.
const ITEM_MAX: usize = 256 << 10;
const ITEMS_MAX: u32 = 4;
/// Longest time that a call is kept for anybody.
const DEFERRED_NS_MAX: u32 = 1_000_000;

/// Flag next to the kind of answer: the reply may be left to be fetched.
pub(crate) const MAY_FETCH: u32 = 8;

/// Sides of hostile clients, known when they connect.
pub(crate) type HostileSides = std::sync::Arc<std::sync::Mutex<Vec<SideId>>>;

pub(crate) struct Worker {
    context: CoreContext,
    ledger: Ledger,
    hostile: HostileSides,
    peers: Vec<(ConnectionId, Peer)>,
    /// Of a server: which place its core has.
    place: Option<usize>,
    called_back: Vec<ConnectionId>,
}

pub(crate) struct Waiting {
    pub(crate) after_ns: u64,
    deferred: Deferred,
    ask: Ask,
    context: CoreContext,
}

#[derive(Clone, Debug)]
struct Ask {
    token: u64,
    arguments: Vec<usize>,
    results: Vec<usize>,
    tail: usize,
    answer: Answer,
    may_fetch: bool,
    /// Every item held the bytes it should.
    is_whole: bool,
}

/// Writes the arguments of [`WORK`]; the data items are outside the stream.
pub(crate) fn encode(token: u64, plan: &CallPlan, args: &mut Encoder<'_>) {
    args.u64(token);
    args.u32(plan.arguments.len() as u32);
    plan.arguments.iter().for_each(|_| args.bulk());
    args.opaque(&content::bytes(content::key(token, 50), plan.argument_tail));
    args.u32(plan.results.len() as u32);
    plan.results.iter().for_each(|length| args.u32(*length as u32));
    args.u32(plan.result_tail as u32);
    let (answer, ns) = plan.answer.encode();
    args.u32(answer | if plan.is_fetched { MAY_FETCH } else { 0 });
    args.u32(ns);
}

impl Ask {
    /// Reads the arguments. Items that are not taken along go to `kept`.
    fn read(args: &mut Decoder<'_>, kept: &mut Vec<Kept>) -> Result<Self, DecodeError> {
        let token = args.u64()?;
        let (mut arguments, mut is_whole) = (Vec::new(), true);
        for index in 0..args.u32()?.min(ITEMS_MAX) as usize {
            let item = args.data(ITEM_MAX)?;
            is_whole &= content::is(content::key(token, index), item.bytes());
            arguments.push(item.bytes().len());
            kept.extend(Kept::of(content::key(token, index), item));
        }
        is_whole &= content::is(content::key(token, 50), args.opaque(ITEM_MAX)?);
        let count = args.u32()?.min(ITEMS_MAX);
        let length = |args: &mut Decoder<'_>| Ok((args.u32()? as usize).min(ITEM_MAX));
        let results =
            (0..count).map(|_| length(args)).collect::<Result<Vec<usize>, DecodeError>>()?;
        let tail = length(args)?;
        let (kind, ns) = (args.u32()?, args.u32()?);
        let answer = Answer::decode(kind & !MAY_FETCH, ns.min(DEFERRED_NS_MAX));
        let may_fetch = kind & MAY_FETCH != 0;
        Ok(Self { token, arguments, results, tail, answer, may_fetch, is_whole })
    }

    /// The data items of the results; `None` without memory for one.
    fn items(&self, context: &CoreContext) -> Option<ReplyData> {
        let mut data = ReplyData::new();
        if self.may_fetch {
            data = data.allow_read_chunks();
        }
        for (index, length) in self.results.iter().enumerate() {
            let mut bulk = context.bulk(*length)?;
            content::fill(content::key(self.token, 100 + index), bulk.bytes_mut());
            data = match (self.token + index as u64) % 3 {
                0 => data.shared(&bulk.freeze(), 0..*length),
                _ => data.bulk(bulk),
            };
        }
        Some(data)
    }

    fn encode(&self, results: &mut Encoder<'_>) {
        results.u64(self.token);
        self.results.iter().for_each(|_| results.bulk());
        results.opaque(&content::bytes(content::key(self.token, 150), self.tail));
    }
}

impl Waiting {
    pub(crate) fn answer(self) {
        if matches!(self.ask.answer, Answer::DropLater(_)) {
            return;
        }
        match self.ask.items(&self.context) {
            Some(data) => self.deferred.reply_with(data, |results| self.ask.encode(results)),
            None => self.deferred.reject(AcceptStatus::SystemErr),
        }
    }
}

impl Worker {
    pub(crate) fn new(
        context: CoreContext,
        ledger: Ledger,
        hostile: HostileSides,
        place: Option<usize>,
    ) -> Self {
        Self { context, ledger, hostile, peers: Vec::new(), place, called_back: Vec::new() }
    }

    /// True if the peer keeps the rules. A hostile server may be known only after its first
    /// message.
    fn is_honest(&self, connection: ConnectionId) -> bool {
        let hostile = self.hostile.lock().map(|sides| sides.clone()).unwrap_or_default();
        let is_hostile = |peer: &Peer| hostile.iter().any(|side| *peer == Peer::Simulated(*side));
        self.peers.iter().any(|(of, peer)| *of == connection && !is_hostile(peer))
    }

    fn work(&mut self, mut call: Call<'_>) {
        let is_honest = self.is_honest(call.connection());
        if is_honest {
            self.call_back(call.connection());
        }
        let mut args = call.args();
        let mut kept = Vec::new();
        let ask = Ask::read(&mut args, &mut kept).and_then(|ask| args.finish().map(|()| ask));
        let ask = match ask {
            Ok(ask) => ask,
            Err(error) => {
                if is_honest {
                    self.ledger.fail(format!("a server cannot read its arguments: {error}"));
                }
                return call.reject(AcceptStatus::GarbageArgs);
            }
        };
        if is_honest {
            let mut ledger = self.ledger.entries();
            ledger.kept.append(&mut kept);
            ledger.execute(ask.token, &ask.arguments, ask.answer);
            if !ask.is_whole {
                ledger.fail(format!("call {} reached the server with other bytes", ask.token));
            }
        }
        self.answer(call, ask);
    }

    /// The first call says that its client takes calls in reverse (RFC 8167 section 4).
    fn call_back(&mut self, connection: ConnectionId) {
        if let Some(place) = self.place
            && !self.called_back.contains(&connection)
        {
            self.called_back.push(connection);
            self.ledger.entries().called.push((place, connection));
        }
    }

    fn answer(&mut self, call: Call<'_>, ask: Ask) {
        match ask.answer {
            Answer::Now => match ask.items(&self.context) {
                Some(data) => call.reply_with(data, |results| ask.encode(results)),
                None => call.reject(AcceptStatus::SystemErr),
            },
            Answer::Later(ns) | Answer::DropLater(ns) => {
                let Some(deferred) = call.defer() else { return };
                let (context, after_ns) = (self.context.clone(), u64::from(ns));
                let waiting = Waiting { after_ns, deferred, ask, context };
                self.ledger.entries().deferred.push(waiting);
            }
            Answer::Drop => drop(call),
            Answer::Fail => call.reject(AcceptStatus::SystemErr),
        }
    }
}

impl Service for Worker {
    fn is_idempotent(&self, procedure: Procedure) -> bool {
        matches!(procedure, NULL | WORK_AGAIN)
    }

    fn call(&mut self, call: Call<'_>) {
        match call.procedure() {
            NULL => call.reply(|_| {}),
            WORK | WORK_AGAIN => self.work(call),
            _ => call.reject(AcceptStatus::ProcUnavail),
        }
    }

    fn on_event(&mut self, event: &ConnectionEvent) {
        match event {
            ConnectionEvent::Up { connection, peer, .. } => {
                self.peers.push((*connection, *peer));
            }
            ConnectionEvent::Down { connection, cause, .. } if self.is_honest(*connection) => {
                self.ledger.hear_end(cause);
            }
            _ => {}
        }
    }
}

/// Reads the results of [`WORK`]; says what is wrong with them.
pub(crate) fn check_results(
    token: u64,
    plan: &CallPlan,
    results: &mut Decoder<'_>,
    kept: &mut Vec<Kept>,
) -> Result<Option<&'static str>, DecodeError> {
    if results.u64()? != token {
        return Ok(Some("got the results of another call"));
    }
    for (index, length) in plan.results.iter().enumerate() {
        let item = results.data(ITEM_MAX)?;
        if let spinrpc::Data::Bulk(bulk) = &item
            && bulk.is_leased()
        {
            return Ok(Some("got results that the server can still reach"));
        }
        let is_whole = content::is(content::key(token, 100 + index), item.bytes());
        if item.bytes().len() != *length || !is_whole {
            return Ok(Some("got other results than were sent"));
        }
        kept.extend(Kept::of(content::key(token, 100 + index), item));
    }
    let tail = results.opaque(ITEM_MAX)?;
    let is_whole = tail.len() == plan.result_tail && content::is(content::key(token, 150), tail);
    Ok((!is_whole).then_some("got another tail than was sent"))
}
