//! Both roles of one connection behind one input: a received message goes to the requester or the
//! responder, or gets the answer that a malformed one deserves (RFC 8166 section 4.5).
//!
//! The connecting side calls and the accepting side serves, so all messages that arrive go one way.
//! On a connection that also takes calls in reverse ([`Connection::two_way`]) both ends do both,
//! each way with separate XIDs and separate credits (RFC 8167 section 4). The message itself then
//! gives the direction:
//!
//! ```text
//! RDMA_MSG, RDMA_MSGP   msg_type of the RPC message says: Call -> responder, Reply -> requester
//! RDMA_NOMSG            Position-Zero Read chunk -> responder, none -> requester
//! RDMA_DONE             -> responder: a requester sends it
//! RDMA_ERROR            -> requester: it answers a call, and is never answered
//! ```
//!
//! Version one has no direction in its header, so a message whose RPC message cannot be found has
//! no known direction. Such a message is taken for a reply if a call of this end with its XID is in
//! flight: it is dropped, and its credit word does not count. Otherwise it is taken for a call, and
//! gets the RDMA_ERROR that a call deserves. If a reply were answered with an error, the peer would
//! end one of its calls that happens to have this XID. By the same rule an RDMA_NOMSG with a
//! Position-Zero Read chunk is a reply where the profile allows such replies (RFC 5666 section
//! 5.2) and its other lists are those of that call. A call in reverse with this XID and these lists
//! looks the same until it has been fetched, and is taken for the reply (CONFORMANCE.md, R8167-10).
//!
//! In version two the header has the direction of a message, on every connection. The limits decide
//! which versions are read at all; [`crate::version`] has the rest.
//!
//! Version two requires both directions of every end (section 4.2.2). A client that takes no calls in
//! reverse answers each of version two with a refusal ([`Connection::refusing_reverse`]): PROG_UNAVAIL,
//! BAD_HEADER where the call has chunk lists (RFC 8167 section 5), INVALID_OPTION for any extension.

use crate::dialect::Profile;
use crate::events::{Arrival, Dropped, Event, PeerMisbehaved};
use crate::ids::Xid;
use crate::limits::Limits;
use crate::rdma::RdmaError;
use crate::rdma::{HeaderError, HeaderView, MessageType};
use crate::requester::{CallSlot, Requester};
use crate::responder::{Responder, ServeSlot, refuse};
use crate::rpc::{self, AcceptStatus, Direction};
use crate::version::{TransportVersion, Versions};
use crate::xdr::DecodeError;

/// Number of malformed headers after which the connection is closed. A call of another version, or with
/// more than the limits allow, is not malformed: each has an answer of its own (RFC 8166 section 4.5).
pub const MALFORMED_MAX: u32 = 64;

/// Role of this end of the connection. For calls in reverse the roles are exchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// This side connected and sends calls.
    Client,
    /// This side accepted and answers calls.
    Server,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Traffic {
    Replies,
    Calls,
    Both,
}

/// Protocol state of one connection. The field order is the memory layout: fields that every
/// message needs come first.
#[derive(Debug)]
#[repr(C)]
pub struct Connection<Q, R> {
    /// Our calls.
    pub requester: Requester<Q>,
    /// The peer's calls.
    pub responder: Responder<R>,
    /// Traffic of version one, if this end accepts that version.
    traffic_one: Option<Traffic>,
    traffic: Traffic,
    side: Side,
    profile: Profile,
    limits: Limits,
    malformed: u32,
    /// Calls of version two in reverse are answered with a refusal.
    refuses_reverse: bool,
}

impl<Q, R> Connection<Q, R>
where
    Q: AsRef<[CallSlot]> + AsMut<[CallSlot]>,
    R: AsRef<[ServeSlot]> + AsMut<[ServeSlot]>,
{
    /// A new connection. Its requester and responder follow `profile` as well.
    pub fn new(
        side: Side,
        mut requester: Requester<Q>,
        mut responder: Responder<R>,
        limits: Limits,
        profile: Profile,
    ) -> Self {
        requester.profile = profile;
        responder.profile = profile;
        let traffic = match side {
            Side::Client => Traffic::Replies,
            Side::Server => Traffic::Calls,
        };
        let limits = Limits { answers_short: profile.answers_short_requests(), ..limits };
        let speaks_one = limits.versions.speaks(TransportVersion::One);
        Self {
            requester,
            responder,
            traffic_one: speaks_one.then_some(traffic),
            traffic,
            side,
            profile,
            limits,
            malformed: 0,
            refuses_reverse: false,
        }
    }

    /// The same, with calls in reverse besides (RFC 8167): both ends call and serve. The upper
    /// layer has to agree on that; the wire does not show it.
    #[must_use]
    pub fn two_way(mut self) -> Self {
        self.traffic = Traffic::Both;
        self.traffic_one = self.traffic_one.map(|_| Traffic::Both);
        self
    }

    /// The same, answering calls of version two in reverse with a refusal: "Implementations of
    /// RPC-over-RDMA Version Two are REQUIRED to support backwards direction operation" (section
    /// 4.2.2). Needs a receive for such a call, and no slot. In version one, nothing changes.
    #[must_use]
    pub fn refusing_reverse(mut self) -> Self {
        self.traffic = Traffic::Both;
        self.refuses_reverse = true;
        self
    }

    /// True if calls of version one arrive here.
    #[inline(always)]
    pub fn takes_calls_one(&self) -> bool {
        matches!(self.traffic_one, Some(Traffic::Calls | Traffic::Both))
    }

    /// True if calls of version two arrive here, and one of them has been accepted.
    #[inline(always)]
    pub fn takes_calls_two(&self) -> bool {
        self.responder.version() == TransportVersion::Two
            && matches!(self.traffic, Traffic::Calls | Traffic::Both)
            && !self.refuses_reverse
    }

    /// True if replies of version one arrive here.
    #[inline(always)]
    pub fn takes_replies_one(&self) -> bool {
        matches!(self.traffic_one, Some(Traffic::Replies | Traffic::Both))
    }

    /// True if the connection takes calls in reverse.
    #[inline]
    pub fn is_two_way(&self) -> bool {
        self.traffic == Traffic::Both && !self.refuses_reverse
    }

    /// Role of this end.
    #[inline]
    pub fn side(&self) -> Side {
        self.side
    }

    /// The profile whose rules apply.
    #[inline]
    pub fn profile(&self) -> Profile {
        self.profile
    }

    /// Limits on what a peer may ask for.
    #[inline]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// A message arrived: writes what follows from it to `out`, which must be blank. It is not returned, to avoid a copy.
    #[inline]
    pub fn on_receive(&mut self, message: &[u8], out: &mut Arrival) {
        match (HeaderView::chunkless(message), self.traffic_one) {
            // Inlined, because the compiler knows here that there are no lists to look at.
            (Some(view), Some(traffic)) => self.take(&view, traffic, out),
            _ => self.on_receive_other(message, out),
        }
    }

    /// Takes messages of version two without lists; else any message.
    #[inline(never)]
    fn on_receive_other(&mut self, message: &[u8], out: &mut Arrival) {
        match HeaderView::chunkless_two(message) {
            Some(view) if self.limits.versions.speaks(TransportVersion::Two) => {
                self.take_two(&view, out);
            }
            _ => self.on_receive_any(message, out),
        }
    }

    #[inline(never)]
    fn on_receive_any(&mut self, message: &[u8], out: &mut Arrival) {
        match HeaderView::new_checked(message, &self.limits) {
            Ok(view) if view.transport_version() == TransportVersion::Two => {
                self.take_two(&view, out);
            }
            Ok(view) => self.take(&view, self.traffic_in(TransportVersion::One), out),
            Err(HeaderError::Malformed {
                xid,
                credits,
                version: TransportVersion::One,
                cause: DecodeError::LimitExceeded { .. },
                ..
            }) if self.traffic != Traffic::Calls
                && self.requester.may_be_too_long(xid, message) =>
            {
                self.requester.on_reply_too_long(xid, credits, out);
            }
            Err(error) => self.on_malformed(message, error, out),
        }
    }

    /// A version-two message goes where its header says (version two section 4.2.2), if this end makes
    /// calls, or takes them.
    #[inline(always)]
    fn take_two(&mut self, view: &HeaderView<'_>, out: &mut Arrival) {
        let is_reply = view.direction() == Some(Direction::Reply);
        let out_of_place = if is_reply { Traffic::Calls } else { Traffic::Replies };
        if self.traffic == out_of_place {
            out.set(Event::Dropped(unexpected(view)));
        } else if is_reply {
            self.requester.on_receive(view, out);
        } else if self.refuses_reverse {
            refuse_in_reverse(view, out);
        } else {
            self.responder.on_receive(view, out);
        }
    }

    fn traffic_in(&self, version: TransportVersion) -> Traffic {
        match version {
            TransportVersion::One => self.traffic_one.unwrap_or(self.traffic),
            TransportVersion::Two => self.traffic,
        }
    }

    #[inline(always)]
    fn take(&mut self, view: &HeaderView<'_>, traffic: Traffic, out: &mut Arrival) {
        match traffic {
            Traffic::Replies => self.requester.on_receive(view, out),
            Traffic::Calls => self.responder.on_receive(view, out),
            Traffic::Both => self.take_either(view, out),
        }
    }

    /// Out of the way of connections without calls in reverse.
    #[inline(never)]
    fn take_either(&mut self, view: &HeaderView<'_>, out: &mut Arrival) {
        match direction(view, self.profile) {
            Some(Direction::Call) => self.responder.on_receive(view, out),
            Some(Direction::Reply) => self.requester.on_receive(view, out),
            None => self.take_unknown(view, out),
        }
    }

    /// A long call and a reply to be fetched look alike under older rules: then the lists tell, which a reply has from its
    /// call, and where both are possible the XID does.
    #[cold]
    fn take_unknown(&mut self, view: &HeaderView<'_>, out: &mut Arrival) {
        let is_long = view.message_type() == MessageType::Nomsg && has_message_chunk(view);
        match self.requester.awaits(view.xid()) {
            true if is_long && self.requester.may_fetch(view) => {
                self.requester.on_receive(view, out);
            }
            true if !is_long => out.set(Event::Dropped(Dropped::MalformedReply)),
            _ => self.responder.on_receive(view, out),
        }
    }

    #[cold]
    fn on_malformed(&mut self, message: &[u8], error: HeaderError, out: &mut Arrival) {
        let traffic = version_of(&error).map_or(self.traffic, |version| self.traffic_in(version));
        let may_be_reply = match (traffic, direction_of(&error)) {
            (Traffic::Replies, _) => true,
            (_, Some(direction)) => direction == Direction::Reply,
            (Traffic::Calls, None) => false,
            (Traffic::Both, None) => xid_of(&error).is_some_and(|xid| self.requester.awaits(xid)),
        };
        let counts = may_be_reply || breaks_rules(&error);
        self.malformed = self.malformed.saturating_add(u32::from(counts));
        if self.malformed > MALFORMED_MAX {
            out.close = Some(PeerMisbehaved::MalformedHeaders);
            return;
        }
        match may_be_reply {
            // A requester drops messages that it cannot parse, and never answers them (RFC 8166
            // section 4.5).
            true => out.set(Event::Dropped(Dropped::MalformedReply)),
            false if claims_error(message) => out.set(Event::Dropped(Dropped::UnexpectedError)),
            false => answer(error, self.limits.versions, out),
        }
    }
}

#[cold]
fn unexpected(view: &HeaderView<'_>) -> Dropped {
    match view.message_type() {
        MessageType::Error => Dropped::UnexpectedError,
        _ => Dropped::WrongDirection,
    }
}

/// Direction of a version-one message; `None` if the message does not tell. RDMA_NOMSG has its RPC
/// message in a chunk: that of a call in a Position-Zero Read chunk (RFC 8166 section 3.5.3), that
/// of a reply in the Reply chunk, or under older rules in a Position-Zero Read chunk as well (RFC 5666 section 5.2).
fn direction(view: &HeaderView<'_>, profile: Profile) -> Option<Direction> {
    match view.message_type() {
        MessageType::Msg | MessageType::Msgp => rpc::message_direction(view.payload()),
        MessageType::Nomsg if view.reads().is_empty() => Some(Direction::Reply),
        MessageType::Nomsg => match (has_message_chunk(view), profile.has_reads_in_replies()) {
            (true, false) => Some(Direction::Call),
            // Its message is in the Reply chunk, and some of its results in Read chunks.
            (false, true) if view.reply_chunk().is_some() => Some(Direction::Reply),
            _ => None,
        },
        MessageType::Done => Some(Direction::Call),
        MessageType::Error => Some(Direction::Reply),
        MessageType::Optional => view.direction(),
    }
}

fn has_message_chunk(view: &HeaderView<'_>) -> bool {
    view.reads().any(|read| read.position == 0)
}

/// True unless the header is whole, and only asks for what this end does not have.
fn breaks_rules(error: &HeaderError) -> bool {
    match error {
        HeaderError::TooShort => true,
        HeaderError::Version { .. } => false,
        HeaderError::Malformed { cause, .. } => !matches!(cause, DecodeError::LimitExceeded { .. }),
    }
}

/// Direction of a version-two message of which little else is usable.
fn direction_of(error: &HeaderError) -> Option<Direction> {
    match error {
        HeaderError::Malformed { direction, .. } => *direction,
        _ => None,
    }
}

fn version_of(error: &HeaderError) -> Option<TransportVersion> {
    match error {
        HeaderError::Malformed { version, .. } => Some(*version),
        HeaderError::TooShort | HeaderError::Version { .. } => None,
    }
}

/// Answers a call in reverse that this end does not take. One with chunk lists gets BAD_HEADER: RFC 8167
/// section 5 asks for an RDMA_ERROR where chunks are not supported in this direction.
#[cold]
fn refuse_in_reverse(view: &HeaderView<'_>, out: &mut Arrival) {
    if view.message_type() == MessageType::Optional {
        return out.set(Event::Error(view.xid(), view.version(), RdmaError::InvalidOption));
    }
    let has_chunks =
        !view.reads().is_empty() || !view.writes().is_empty() || view.reply_chunk().is_some();
    let is_call = rpc::opens_with(view.payload(), view.xid(), Direction::Call);
    if has_chunks || !is_call {
        return refuse(view, out);
    }
    let version = view.transport_version();
    out.set(Event::Refused(view.xid(), version, AcceptStatus::ProgUnavail));
}

fn xid_of(error: &HeaderError) -> Option<Xid> {
    match error {
        HeaderError::TooShort => None,
        HeaderError::Version { xid, .. } | HeaderError::Malformed { xid, .. } => Some(*xid),
    }
}

/// True if the type word is RDMA_ERROR; it is at the same place in every version (RFC 5666 section
/// 4.1). An error is never answered: two ends could answer each other forever.
fn claims_error(message: &[u8]) -> bool {
    message.get(12..16).is_some_and(|word| word == MessageType::Error.to_wire().to_be_bytes())
}

/// Version errors name the range this side supports; everything else is ERR_CHUNK, in version two
/// BAD_HEADER.
fn answer(error: HeaderError, versions: Versions, out: &mut Arrival) {
    match error {
        HeaderError::TooShort => out.set(Event::Dropped(Dropped::TooShort)),
        HeaderError::Version { xid, version } => {
            let (low, high) = (versions.low().to_wire(), versions.high().to_wire());
            out.set(Event::Error(xid, version, RdmaError::Version { low, high }));
        }
        HeaderError::Malformed { xid, version, .. } => {
            out.set(Event::Error(xid, version.to_wire(), RdmaError::of_header(version)));
        }
    }
}
