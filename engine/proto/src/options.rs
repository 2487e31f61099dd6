//! Extensions of version two that a connection knows (version two section 3), and the handling of
//! their messages.
//!
//! An extension is a number (`rdma_opttype`) and a meaning of the bytes that come with it
//! (`rdma_optinfo`). This module knows the number and the rules that hold for all of them; the
//! bytes go through it untouched. An RDMA2_OPTIONAL of direction CALL is a call: it takes a credit,
//! has a slot at both ends, and is answered once, by an RDMA2_OPTIONAL of direction REPLY, by an
//! RPC reply or by an error. The extension decides which answers fit which calls.
//!
//! The caller builds [`Options`] once and hands it to the connection. Incoming messages are passed
//! to `Output::deliver_optional`; outgoing messages are written by `Requester::start_optional` and
//! `Responder::reply_optional`.

use crate::ids::{Instant, Xid};
use crate::limits::{OPTION_INFO_MAX_BYTES, OPTIONS_MAX};
use crate::output::{DeliveredOptional, DeliveredReply, Dropped, Output, ReplyStream, SlotId};
use crate::rdma::v2::{OptionalBody, emit_optional};
use crate::rdma::{HeaderView, RdmaError};
use crate::requester::{CallRefused, CallSlot, Requester, StartedCall};
use crate::responder::{ReplyRefused, Responder, ServeSlot, State};
use crate::rpc::{self, Direction};
use crate::version::TransportVersion;

/// Payload behind the header of an extension's messages: "An indication of whether a Payload stream
/// must be present, and a description of its contents" (version two section 3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carries {
    /// Nothing.
    Nothing,
    /// Part of an RPC message, or whatever else the extension puts there.
    Part,
    /// A whole RPC message, of the direction and with the XID of the header.
    Message,
}

impl Carries {
    fn fits(self, view: &HeaderView<'_>, direction: Direction) -> bool {
        match self {
            Self::Nothing => view.payload().is_empty(),
            Self::Part => true,
            Self::Message => rpc::opens_with(view.payload(), view.xid(), direction),
        }
    }
}

/// The options that a connection knows, by rising number; at most [`OPTIONS_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    known: [(u32, Carries); OPTIONS_MAX],
    count: u8,
}

impl Default for Options {
    fn default() -> Self {
        Self::NONE
    }
}

impl Options {
    /// No option at all.
    pub const NONE: Self = Self { known: [(0, Carries::Nothing); OPTIONS_MAX], count: 0 };

    /// Adds an option; `false`, and nothing is added, when it is known already or there are
    /// [`OPTIONS_MAX`]. "Each implementation is either aware of all the protocol elements introduced by
    /// that feature, or is aware of none of them" (version two section 3.1): a feature of several options
    /// is added as one, with [`Options::with`].
    #[must_use]
    pub fn add(&mut self, option: u32, carries: Carries) -> bool {
        let Err(at) = self.search(option) else { return false };
        let count = usize::from(self.count);
        if count == OPTIONS_MAX {
            return false;
        }
        self.known.copy_within(at..count, at + 1);
        self.known[at] = (option, carries);
        self.count += 1;
        true
    }

    /// These options and those of one more feature; `None` if one of them cannot be added.
    #[must_use]
    pub fn with(mut self, feature: &[(u32, Carries)]) -> Option<Self> {
        let all = feature.iter().all(|(option, carries)| self.add(*option, *carries));
        all.then_some(self)
    }

    /// Payload of an option's messages, if the option is known.
    #[must_use]
    pub fn find(&self, option: u32) -> Option<Carries> {
        self.search(option).ok().map(|at| self.known[at].1)
    }

    fn search(&self, option: u32) -> Result<usize, usize> {
        self.known[..usize::from(self.count)].binary_search_by_key(&option, |(known, _)| *known)
    }
}

/// A message of an extension arrived.
pub(crate) fn on_receive<Q, R>(
    options: &Options,
    requester: &mut Requester<Q>,
    responder: &mut Responder<R>,
    view: &HeaderView<'_>,
    out: &mut impl Output,
) where
    Q: AsRef<[CallSlot]> + AsMut<[CallSlot]>,
    R: AsRef<[ServeSlot]> + AsMut<[ServeSlot]>,
{
    let Some(body) = view.optional() else { return };
    let carries = options.find(body.option);
    match (body.direction, carries) {
        (Direction::Call, Some(carries)) => on_call(responder, view, &body, carries, out),
        (Direction::Reply, Some(carries)) => on_reply(requester, view, &body, carries, out),
        (Direction::Call, None) => refuse(view, RdmaError::InvalidOption, out),
        // An error would be taken for the answer to a call of the peer: see [`crate::version`].
        (Direction::Reply, None) => out.dropped(Dropped::UnknownOption),
    }
}

fn refuse(view: &HeaderView<'_>, error: RdmaError, out: &mut impl Output) {
    out.send_error(view.xid(), view.version(), error);
}

fn is_sound(view: &HeaderView<'_>, body: &OptionalBody<'_>, carries: Carries) -> bool {
    body.info.len() <= OPTION_INFO_MAX_BYTES && carries.fits(view, body.direction)
}

fn on_call<R: AsRef<[ServeSlot]> + AsMut<[ServeSlot]>>(
    responder: &mut Responder<R>,
    view: &HeaderView<'_>,
    body: &OptionalBody<'_>,
    carries: Carries,
    out: &mut impl Output,
) {
    if !is_sound(view, body, carries) {
        return refuse(view, RdmaError::BadHeader, out);
    }
    match responder.take_optional() {
        Some(slot) => {
            out.deliver_optional(DeliveredOptional::Call { slot, option: body.option });
            responder.ask_for_look(out);
        }
        None if carries == Carries::Message => {
            out.refuse_call(view.xid(), view.transport_version());
        }
        None => refuse(view, RdmaError::BadHeader, out),
    }
}

fn on_reply<Q: AsRef<[CallSlot]> + AsMut<[CallSlot]>>(
    requester: &mut Requester<Q>,
    view: &HeaderView<'_>,
    body: &OptionalBody<'_>,
    carries: Carries,
    out: &mut impl Output,
) {
    let Some(index) = requester.matching_slot(view.xid()) else {
        return out.dropped(Dropped::UnmatchedReply);
    };
    if !is_sound(view, body, carries) || !requester.takes_answer(view.transport_version()) {
        return out.dropped(Dropped::MalformedReply);
    }
    let (slot, token, fenced) = requester.end_call(index, view.credits());
    if fenced {
        return out.release_call(slot);
    }
    let stream = ReplyStream::Inline { header_bytes: view.header_bytes() };
    let reply = DeliveredReply { slot, token, stream, placed: Default::default() };
    out.deliver_optional(DeliveredOptional::Reply { reply, option: body.option });
}

/// Reason why a message of an extension cannot be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionalRefused {
    /// The connection, or the call, is not of version two.
    NotVersionTwo,
    /// The information is longer than [`OPTION_INFO_MAX_BYTES`].
    InfoTooLong,
    /// The call cannot start now.
    Call(CallRefused),
    /// The call cannot be answered.
    Reply(ReplyRefused),
}

fn check(version: TransportVersion, info: &[u8]) -> Result<(), OptionalRefused> {
    if version != TransportVersion::Two {
        return Err(OptionalRefused::NotVersionTwo);
    }
    if info.len() > OPTION_INFO_MAX_BYTES {
        return Err(OptionalRefused::InfoTooLong);
    }
    Ok(())
}

impl<S: AsRef<[CallSlot]> + AsMut<[CallSlot]>> Requester<S> {
    /// Starts a call that is a message of an extension: like [`Requester::start_call`], for an
    /// RDMA2_OPTIONAL with `info` of at most [`OPTION_INFO_MAX_BYTES`]. The caller adds the payload
    /// behind the header: a whole RPC call, part of one, or nothing. The XID is always one "from
    /// the `XID` space that matches the message's direction" (version two section 4.2.2).
    ///
    /// It may be the first message of a connection. If the responder does not know version two, the
    /// call is held as any other, and sent again without its option, as `Requester::resend` knows none;
    /// a call that means nothing without is freed with `Requester::release_held`.
    ///
    /// # Panics
    /// If `header` is shorter than [`crate::rdma::v2::optional_header_bytes`] of `info`.
    ///
    /// # Errors
    /// As [`OptionalRefused`] says; then nothing was taken.
    pub fn start_optional(
        &mut self,
        token: u64,
        deadline: Instant,
        option: u32,
        info: &[u8],
        header: &mut [u8],
    ) -> Result<(StartedCall, usize), OptionalRefused> {
        check(self.negotiation().version(), info)?;
        let started = self.take(token, deadline, false).map_err(OptionalRefused::Call)?;
        let body = OptionalBody { direction: Direction::Call, option, info };
        Ok((started, emit_optional(started.xid, self.credits().requested(), body, header)))
    }
}

impl<S: AsRef<[ServeSlot]> + AsMut<[ServeSlot]>> Responder<S> {
    /// Answers a call with a message of an extension: writes the header of an RDMA2_OPTIONAL with
    /// `info`, of at most [`OPTION_INFO_MAX_BYTES`], so that it ends where `header` ends, frees the
    /// slot, and returns the header's length. The caller adds the payload behind it; the Send has
    /// to follow. Nothing can be placed in chunks that the call offers.
    ///
    /// # Panics
    /// If `header` is shorter than [`crate::rdma::v2::optional_header_bytes`] of `info`.
    ///
    /// # Errors
    /// As [`OptionalRefused`] says; then nothing was written, and the call is still to be answered.
    pub fn reply_optional(
        &mut self,
        id: SlotId,
        xid: Xid,
        option: u32,
        info: &[u8],
        header: &mut [u8],
    ) -> Result<usize, OptionalRefused> {
        let stale = OptionalRefused::Reply(ReplyRefused::Stale);
        let version = self.version_in(id, State::Delivered).ok_or(stale)?;
        check(version, info)?;
        self.free(id);
        let body = OptionalBody { direction: Direction::Reply, option, info };
        Ok(emit_optional(xid, self.grant(), body, header))
    }
}
