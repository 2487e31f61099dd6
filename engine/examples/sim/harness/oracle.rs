//! Reads the wire and says what must not be there (RFC 5666 sections 3.3 and 3.4, RFC 8166 section
//! 3.3): more calls than credits, more credits than receives, answers to nothing, chunks that are
//! not exposed.

use super::negotiation::{Cuts, Step};
use super::terms::Terms;
use super::words::{DONE, ERROR, MSGP, NOMSG, word};
use spinrpc::fabric::Access;
use spinrpc::fabric::sim::{NO_RECEIVE, Observed, SideId, Violation, What};
use spinrpc::mem::budget::RECVS_BEHIND_MAX;
use spinrpc_proto::dialect::Profile;
use spinrpc_proto::limits::Limits;
use spinrpc_proto::rdma::v1::HeaderView;
use spinrpc_proto::rpc::Direction;
use spinrpc_proto::version::Versions;
use std::fmt;

/// Receives of an honest end beyond its credits, whenever it calls or answers. A driver may post the first ones behind
/// the message; the simulated driver never does. The last one is for a message outside of the credits.
const SPARE_RECEIVES: usize = RECVS_BEHIND_MAX as usize + 1;

/// Messages of both ends of every connection.
#[derive(Default)]
pub(crate) struct Oracle {
    lanes: Vec<Lane>,
    keys: Vec<Vec<(u32, Access)>>,
    /// Keys of which sides died at that time.
    revoked: (u64, Vec<(SideId, u32)>),
    hostile: Vec<SideId>,
    /// Profile that all ends follow, if they agree on one.
    pub(crate) profile: Option<Profile>,
    /// Not all nodes speak the same versions.
    pub(crate) is_fleet: bool,
    pub(crate) seen: Seen,
}

/// Number of actions of peers that keep the rules.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) calls: u64,
    pub(crate) replies: u64,
    pub(crate) padded: u64,
    /// Connections whose client took the reply of the Connection Configuration Protocol.
    pub(crate) configured: u64,
    /// Replies taken that have a Read list.
    pub(crate) to_fetch: u64,
    pub(crate) dones: u64,
    /// Calls sent again over another connection.
    pub(crate) resent: u64,
    /// Calls answered with a reply that was kept.
    pub(crate) replayed: u64,
    /// Calls of other implementations sent again, ...
    pub(crate) returned: u64,
    /// ... and those answered before that had the same answer.
    pub(crate) known: u64,
    pub(crate) reversed: u64,
    /// Calls in version two of RPC-over-RDMA.
    pub(crate) in_version_two: u64,
    /// Servers that shut down gracefully and were replaced.
    pub(crate) restarts: u64,
    /// Connections that came up while others of their client were up.
    pub(crate) joined: u64,
    /// Connections of mixed fleets that were lost before their version was known.
    pub(crate) cuts: Cuts,
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { replies, padded, configured, to_fetch, dones, .. } = self;
        let Self { resent, replayed, reversed, in_version_two, .. } = self;
        let Self { returned, known, restarts, joined, cuts, .. } = self;
        write!(f, "  {replies} replies, {to_fetch} of them to be fetched, {dones} RDMA_DONE, ")?;
        write!(
            f,
            "{padded} padded messages, {configured} configurations, {reversed} in reverse, \
             {in_version_two} calls in version two, "
        )?;
        writeln!(f, "{resent} calls sent again, {replayed} of them answered from a cache")?;
        writeln!(f, "  {returned} sent again by others, {known} of them answered as before")?;
        writeln!(f, "  {restarts} servers were replaced by their next process")?;
        writeln!(f, "  {joined} connections came up next to others of their client")?;
        write!(f, "  connections lost before their version was known:")?;
        cuts.iter().try_for_each(|(step, count)| write!(f, " {step:?} {count}"))
    }
}

impl Seen {
    pub(crate) fn add(&mut self, other: &Self) {
        self.calls += other.calls;
        self.replies += other.replies;
        self.padded += other.padded;
        self.configured += other.configured;
        self.to_fetch += other.to_fetch;
        self.dones += other.dones;
        self.resent += other.resent;
        self.replayed += other.replayed;
        self.returned += other.returned;
        self.known += other.known;
        self.reversed += other.reversed;
        self.in_version_two += other.in_version_two;
        self.restarts += other.restarts;
        self.joined += other.joined;
        self.cuts.add(&other.cuts);
    }
}

#[derive(Default)]
struct Lane {
    /// Calls of the connecting end and their replies, and those of the other one: each direction has
    /// its own XIDs and credits (RFC 8167 section 4).
    flows: [Flow; 2],
    is_down: bool,
    /// It went down while there still was traffic.
    is_cut: bool,
    terms: Terms,
    step: Step,
    /// RDMA_DONE was sent for the Read chunks of a call.
    has_done_of_call: bool,
}

struct Flow {
    requested: u32,
    granted: u32,
    granted_at: u64,
    /// The largest grant since before that time.
    usable: u32,
    /// XIDs of calls whose reply the client has not taken.
    in_flight: Vec<u32>,
    /// XIDs of calls that the server has taken and not answered.
    served: Vec<u32>,
    /// XIDs of replies that the client has to fetch and end with RDMA_DONE.
    owed: Vec<u32>,
    /// XIDs of calls that the server may end with RDMA_DONE (draft -00).
    pulled: Vec<u32>,
    taken: usize,
    answered: usize,
    /// Number of the last call that any of its grants lets the client send.
    edge: usize,
}

impl Default for Flow {
    fn default() -> Self {
        Self {
            requested: 0,
            granted: 1,
            granted_at: 0,
            usable: 0,
            in_flight: Vec::new(),
            served: Vec::new(),
            owed: Vec::new(),
            pulled: Vec::new(),
            taken: 0,
            answered: 0,
            edge: 0,
        }
    }
}

impl Oracle {
    /// The owner of this end need not keep the rules.
    pub(crate) fn distrust(&mut self, side: SideId) {
        self.hostile.push(side);
    }

    pub(crate) fn is_honest(&self, side: SideId) -> bool {
        !self.hostile.contains(&side)
    }

    /// Progress of both ends in finding their version.
    pub(crate) fn step(&mut self, side: SideId) -> Step {
        self.lane(side).step
    }

    /// Connections lost from now on do not count.
    pub(crate) fn end_traffic(&mut self) {
        self.lanes.iter_mut().for_each(|lane| lane.is_cut = lane.is_down);
    }

    /// Counts the connections that were lost before their version was known.
    pub(crate) fn count_cuts(&mut self) {
        let is_counted = |number: &usize| self.is_fleet && self.has_rules(*number);
        let counted: Vec<usize> = (0..self.lanes.len()).filter(is_counted).collect();
        for lane in counted.into_iter().map(|number| &self.lanes[number]) {
            if lane.is_cut {
                self.seen.cuts.count(lane.step);
            }
        }
    }

    fn has_rules(&self, number: usize) -> bool {
        let side = SideId(number * 2);
        self.is_honest(side) && self.is_honest(side.peer())
    }

    /// Says if a rule may be broken between these ends. A responder of draft 00 sends RDMA_DONE for the
    /// Read chunks of a call, and a requester by another document posts no receive for that, which
    /// neither can know: such a message waits until there is one, or costs them the connection.
    pub(crate) fn excuses(&self, violation: &Violation) -> bool {
        let lane = self.lanes.get(violation.side.0 / 2);
        let has_done = lane.is_some_and(|lane| lane.has_done_of_call);
        self.profile.is_none() && violation.what == NO_RECEIVE && has_done
    }

    pub(crate) fn see(&mut self, seen: &Observed) -> Option<String> {
        let side = seen.side;
        let lane = self.lane(side);
        lane.step = lane.step.after(side, &seen.what);
        match &seen.what {
            What::Sent { message, receives, .. } if self.is_honest(side) => {
                self.on_sent(seen.at_ns, side, message, *receives)
            }
            What::Received { message } if self.is_honest(side) => {
                self.on_received(seen.at_ns, side, message)
            }
            What::Reading { outstanding } if self.is_honest(side) => {
                let checked = self.is_honest(side.peer());
                let terms = &self.lane(side).terms;
                terms.on_reading(end_of(side), *outstanding).filter(|_| checked)
            }
            What::Exposed { handle, access, .. } => {
                self.keys(side).push((*handle, *access));
                None
            }
            What::Revoked { handle } => {
                self.keys(side).retain(|(of, _)| of != handle);
                if self.revoked.0 != seen.at_ns {
                    self.revoked = (seen.at_ns, Vec::new());
                }
                self.revoked.1.push((side, *handle));
                None
            }
            What::Down { .. } => {
                self.keys(side).clear();
                self.lane(side).is_down = true;
                None
            }
            _ => None,
        }
        .map(|problem| format!("at {} ns, {side}: {problem}", seen.at_ns))
    }

    fn keys(&mut self, side: SideId) -> &mut Vec<(u32, Access)> {
        if self.keys.len() <= side.0 {
            self.keys.resize_with(side.0 + 1, Vec::new);
        }
        &mut self.keys[side.0]
    }

    fn lane(&mut self, side: SideId) -> &mut Lane {
        let number = side.0 / 2;
        if self.lanes.len() <= number {
            self.lanes.resize_with(number + 1, Lane::default);
        }
        &mut self.lanes[number]
    }

    fn on_sent(
        &mut self,
        at_ns: u64,
        side: SideId,
        message: &[u8],
        receives: usize,
    ) -> Option<String> {
        let Ok(view) = HeaderView::new_checked(message, &LIMITS) else {
            // A hostile client's offer goes back to it unchanged.
            return match word(message, 3) == ERROR {
                true => self.on_error(side, message, receives),
                false if !self.is_honest(side.peer()) => None,
                false => Some("sent a header that cannot be read".into()),
            };
        };
        self.seen.padded += u64::from(word(message, 3) == MSGP);
        let is_done = word(message, 3) == DONE;
        let way = self.lane(side).way_of(side, message, &view);
        let is_call = way == Way::Call;
        // Which of a hostile server's messages count as replies is not for this side to say.
        let checked = self.is_honest(side.peer());
        let problem =
            self.outdated(message).or_else(|| self.unexposed(at_ns, side, &view, is_call));
        let lane = self.lane(side);
        let broken = lane.terms.on_sent(end_of(side), message, &view);
        let accounts = match way {
            _ if is_done => lane.done(side, message),
            Way::Call => {
                if side.is_connector() {
                    lane.terms.on_call(&view, message);
                }
                let wrong = lane.flow(side, way).call(at_ns, message);
                wrong.or_else(|| lane.ask(side, receives))
            }
            Way::Reply => {
                if !side.is_connector() {
                    lane.terms.on_reply(end_of(side), message, Some(&view));
                }
                lane.answer(side, message, receives)
            }
        };
        match way {
            _ if is_done => self.seen.dones += 1,
            Way::Call => self.seen.calls += 1,
            Way::Reply => self.seen.replies += 1,
        }
        self.seen.in_version_two += u64::from(is_call && word(message, 1) == 2);
        self.seen.reversed += u64::from(is_call && !is_done && !side.is_connector());
        problem.or_else(|| broken.or(accounts).filter(|_| checked))
    }

    fn on_error(&mut self, side: SideId, message: &[u8], receives: usize) -> Option<String> {
        let checked = self.is_honest(side.peer());
        self.seen.replies += 1;
        self.lane(side).answer(side, message, receives).filter(|_| checked)
    }

    /// Features that RFC 8166 removed are not sent by an end that follows it.
    fn outdated(&self, message: &[u8]) -> Option<String> {
        let is_old = matches!(word(message, 3), MSGP | DONE);
        (is_old && self.profile == Some(Profile::Rfc8166))
            .then(|| "sent a message that RFC 8166 has no use for".to_owned())
    }

    fn on_received(&mut self, at_ns: u64, side: SideId, message: &[u8]) -> Option<String> {
        let checked = self.is_honest(side.peer());
        let view = HeaderView::new_checked(message, &LIMITS).ok();
        let has_reads = view.as_ref().is_some_and(|view| !view.reads().is_empty());
        let lane = self.lane(side);
        if word(message, 3) == DONE {
            return None;
        }
        let way = match &view {
            Some(view) => lane.way_of(side.peer(), message, view),
            // A call goes to the accepting end, as far as one can know.
            None if side.is_connector() => Way::Reply,
            None => Way::Call,
        };
        let flow = lane.flow(side.peer(), way);
        if way == Way::Call {
            flow.served.push(word(message, 0));
            flow.taken += 1;
            flow.pulled.extend(has_reads.then_some(word(message, 0)));
            return None;
        }
        let problem = flow.reply(at_ns, message, has_reads).filter(|_| checked);
        let binds = checked && side.is_connector();
        let bound = binds && lane.terms.on_reply(end_of(side), message, view.as_ref());
        self.seen.configured += u64::from(bound);
        self.seen.to_fetch += u64::from(has_reads);
        problem
    }

    /// Checks that no call waits for an answer any more, and no RDMA_DONE is owed, where both ends
    /// keep the rules and are there.
    pub(crate) fn unsettled(&self) -> Option<String> {
        let mut lanes = self.lanes.iter().enumerate();
        let (number, lane) = lanes.find(|(number, lane)| {
            let is_open = !lane.is_down && self.has_rules(*number);
            is_open && lane.flows.iter().any(Flow::is_unsettled)
        })?;
        let Flow { in_flight, owed, .. } = lane.flows.iter().find(|flow| flow.is_unsettled())?;
        Some(format!("connection {number} waits for {in_flight:x?} and owes RDMA_DONE {owed:x?}"))
    }

    /// A chunk of a message names memory of its sender that the peer may not reach.
    fn unexposed(
        &mut self,
        at_ns: u64,
        side: SideId,
        view: &HeaderView<'_>,
        is_call: bool,
    ) -> Option<String> {
        let reads = view.reads().map(|read| (read.target.handle, Access::RemoteRead));
        let writes = view.writes().chain(view.reply_chunk()).flat_map(|chunk| chunk.segments());
        let writes = writes.map(|segment| (segment.handle, Access::RemoteWrite));
        // The Write chunks of a reply are those of the call, which are the caller's.
        let writes = writes.filter(|_| is_call);
        // A hostile peer may answer a call, or claim by RDMA_DONE to have fetched a reply, that is about to
        // leave: the key dies in the turn that sends it.
        let is_forced = !self.is_honest(side.peer()) && self.revoked.0 == at_ns;
        let forced = if is_forced { self.revoked.1.clone() } else { Vec::new() };
        let alive = self.keys(side);
        let is_dead =
            |key: &(u32, Access)| !alive.contains(key) && !forced.contains(&(side, key.0));
        let dead = reads.chain(writes).find(is_dead);
        dead.map(|(handle, _)| format!("sent a chunk under key {handle:#x}, which is not alive"))
    }
}

/// The oracle reads more than engines are configured to.
const LIMITS: Limits =
    Limits { payload_bytes_max: u32::MAX, versions: Versions::Both, ..Limits::DEFAULT };

/// 0 is the connecting end.
fn end_of(side: SideId) -> usize {
    side.0 % 2
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Call,
    Reply,
}

impl Lane {
    /// Direction of a message of this end. Its RPC message has it. If that message is in a chunk, a
    /// call has it in a Position-Zero Read chunk, and so may have the reply to a call that is
    /// known. In version two the header has the direction.
    fn way_of(&mut self, sender: SideId, message: &[u8], view: &HeaderView<'_>) -> Way {
        let awaited = &self.flow(sender, Way::Reply).in_flight;
        let answers = awaited.contains(&word(message, 0));
        let is_call = match word(message, 3) {
            ERROR => false,
            _ if view.direction().is_some() => view.direction() == Some(Direction::Call),
            NOMSG => view.reads().any(|read| read.position == 0) && !answers,
            _ => word(view.payload(), 1) == 0,
        };
        if is_call { Way::Call } else { Way::Reply }
    }

    fn flow(&mut self, sender: SideId, way: Way) -> &mut Flow {
        let is_forward = sender.is_connector() == (way == Way::Call);
        &mut self.flows[usize::from(!is_forward)]
    }

    /// An end that has fetched something sends an RDMA_DONE: once, and for nothing else.
    fn done(&mut self, side: SideId, message: &[u8]) -> Option<String> {
        let xid = word(message, 0);
        for (way, of_reply) in [(Way::Call, true), (Way::Reply, false)] {
            let flow = self.flow(side, way);
            let fetched = if of_reply { &mut flow.owed } else { &mut flow.pulled };
            if let Some(at) = fetched.iter().position(|of| *of == xid) {
                fetched.swap_remove(at);
                self.has_done_of_call |= !of_reply;
                return None;
            }
        }
        Some(format!("sent RDMA_DONE for XID {xid:#x}, which is not owed, or twice"))
    }

    /// An honest end has called. It has receives for all replies, and for the calls that it has granted the other end.
    fn ask(&mut self, side: SideId, receives: usize) -> Option<String> {
        let to_come = self.flow(side, Way::Reply).to_come();
        let awaited = self.flow(side, Way::Call).in_flight.len();
        (awaited + to_come + SPARE_RECEIVES > receives).then(|| {
            format!(
                "called with {receives} receives posted, {awaited} replies and {to_come} calls to come"
            )
        })
    }

    /// An honest end answers. Receives for the replies that it waits for itself come on top of those
    /// for calls (RFC 8167 section 4).
    fn answer(&mut self, side: SideId, message: &[u8], receives: usize) -> Option<String> {
        let awaited = self.flow(side, Way::Call).in_flight.len();
        self.flow(side, Way::Reply).answer(message, receives, awaited)
    }
}

impl Flow {
    fn is_unsettled(&self) -> bool {
        !(self.in_flight.is_empty() && self.owed.is_empty())
    }

    fn call(&mut self, at_ns: u64, message: &[u8]) -> Option<String> {
        let (xid, requested) = (word(message, 0), word(message, 2));
        let (in_flight, granted) = (self.in_flight.len(), self.usable(at_ns));
        self.requested = requested;
        let known = self.in_flight.contains(&xid) || self.owed.contains(&xid);
        let in_flight = in_flight + self.owed.len();
        self.in_flight.push(xid);
        if known {
            return Some(format!("XID {xid:#x} is used while it is in flight"));
        }
        (in_flight >= granted)
            .then(|| format!("sent a call with {in_flight} in flight of {granted} granted"))
    }

    /// A grant came. Calls that the application starts before a turn are sent at its end: under the
    /// earlier grant.
    fn grant(&mut self, at_ns: u64, granted: u32) {
        let before = if self.granted_at == at_ns { self.usable } else { self.granted };
        self.usable = before.max(granted);
        (self.granted, self.granted_at) = (granted, at_ns);
    }

    fn usable(&self, at_ns: u64) -> usize {
        if self.granted_at == at_ns { self.usable as usize } else { self.granted as usize }
    }

    fn reply(&mut self, at_ns: u64, message: &[u8], has_reads: bool) -> Option<String> {
        let xid = word(message, 0);
        let Some(at) = self.in_flight.iter().position(|of| *of == xid) else {
            return Some(format!("got an answer to XID {xid:#x}, which is not in flight"));
        };
        self.in_flight.remove(at);
        self.owed.extend(has_reads.then_some(xid));
        if word(message, 3) != ERROR {
            self.grant(at_ns, word(message, 2).clamp(1, self.requested.max(1)));
        }
        None
    }

    /// Calls that may still come by what was granted. RDMA_DONEs take receives, too, and grants fall by them.
    fn to_come(&self) -> usize {
        let has_dones = !(self.owed.is_empty() && self.pulled.is_empty());
        if has_dones { 0 } else { self.edge.saturating_sub(self.taken) }
    }

    fn answer(&mut self, message: &[u8], receives: usize, awaited: usize) -> Option<String> {
        let (xid, granted) = (word(message, 0), word(message, 2) as usize);
        let Some(at) = self.served.iter().position(|of| *of == xid) else {
            return Some(format!("answered XID {xid:#x}, which was not called, or answered twice"));
        };
        self.served.remove(at);
        let held = self.served.len();
        if granted == 0 && word(message, 3) != ERROR {
            return Some("granted no credit".into());
        }
        self.answered += 1;
        if word(message, 3) != ERROR {
            self.edge = self.edge.max(self.answered + granted);
        }
        let to_come = self.to_come();
        let expected = awaited + SPARE_RECEIVES;
        let is_short = granted + expected > receives + held || to_come + expected > receives;
        is_short.then(|| {
            format!(
                "granted {granted}, with {to_come} calls to come, with {receives} receives posted, \
                 {held} calls in hand and {awaited} replies to come"
            )
        })
    }
}
