//! Both roles of one connection behind one input: a received message goes to the requester or the
//! responder, or gets the answer that a malformed one deserves (RFC 8166 section 4.5).

use crate::limits::Limits;
use crate::output::{Dropped, Output, PeerMisbehaved};
use crate::profile::Profile;
use crate::rdma::RdmaError;
use crate::rdma::v1::{HeaderError, HeaderView, MessageType, VERSION};
use crate::requester::{CallSlot, Requester};
use crate::responder::{Responder, ServeSlot};
use crate::xdr::DecodeError;

/// After so many malformed headers the connection is closed.
pub const MALFORMED_MAX: u32 = 64;

/// Which end of the connection this is: who connected calls, who accepted serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// This side connected and sends calls.
    Client,
    /// This side accepted and answers calls.
    Server,
}

/// The protocol state of one connection.
#[derive(Debug)]
pub struct Connection<Q, R> {
    /// Our calls.
    pub requester: Requester<Q>,
    /// The peer's calls.
    pub responder: Responder<R>,
    side: Side,
    limits: Limits,
    profile: Profile,
    malformed: u32,
}

impl<Q, R> Connection<Q, R>
where
    Q: AsRef<[CallSlot]> + AsMut<[CallSlot]>,
    R: AsRef<[ServeSlot]> + AsMut<[ServeSlot]>,
{
    /// A new connection. Its requester and responder go by `profile` as well.
    pub fn new(
        side: Side,
        mut requester: Requester<Q>,
        mut responder: Responder<R>,
        limits: Limits,
        profile: Profile,
    ) -> Self {
        requester.take_padded(profile.has_padded_messages());
        responder.take_padded(profile.has_padded_messages());
        requester.profile = profile;
        responder.profile = profile;
        Self { requester, responder, side, limits, profile, malformed: 0 }
    }

    /// Which end this is.
    #[inline]
    pub fn side(&self) -> Side {
        self.side
    }

    /// Whose rules it goes by.
    #[inline]
    pub fn profile(&self) -> Profile {
        self.profile
    }

    /// What a peer may ask for.
    #[inline]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// A message arrived.
    #[inline]
    pub fn on_receive(&mut self, message: &[u8], out: &mut impl Output) {
        match HeaderView::plain(message) {
            // In place, where the compiler knows that there are no lists to look at.
            Some(view) => self.take(&view, out),
            None => self.on_receive_any(message, out),
        }
    }

    #[inline(never)]
    fn on_receive_any(&mut self, message: &[u8], out: &mut impl Output) {
        match HeaderView::new_checked(message, &self.limits) {
            Ok(view) => self.take(&view, out),
            Err(HeaderError::Malformed {
                xid,
                credits,
                cause: DecodeError::LimitExceeded { .. },
            }) if self.side == Side::Client && self.requester.may_be_too_long(xid) => {
                self.requester.on_reply_too_long(xid, credits, out);
            }
            Err(error) => self.on_malformed(self.side, message, error, out),
        }
    }

    #[inline(always)]
    fn take(&mut self, view: &HeaderView<'_>, out: &mut impl Output) {
        match self.side {
            Side::Client => self.requester.on_receive(view, out),
            Side::Server => self.responder.on_receive(view, out),
        }
    }

    #[cold]
    fn on_malformed(
        &mut self,
        side: Side,
        message: &[u8],
        error: HeaderError,
        out: &mut impl Output,
    ) {
        self.malformed = self.malformed.saturating_add(1);
        if self.malformed > MALFORMED_MAX {
            return out.close(PeerMisbehaved::MalformedHeaders);
        }
        match side {
            // A requester drops what it cannot parse, and never answers it (RFC 8166 section 4.5).
            Side::Client => out.dropped(Dropped::MalformedReply),
            Side::Server if claims_error(message) => out.dropped(Dropped::UnexpectedError),
            Side::Server => answer(error, out),
        }
    }
}

/// Whether the type word says RDMA_ERROR; it stands at the same place in every version (RFC 5666
/// section 4.1). An error is never answered, or two ends could go on for ever.
fn claims_error(message: &[u8]) -> bool {
    message.get(12..16).is_some_and(|word| word == MessageType::Error.to_wire().to_be_bytes())
}

/// Version errors name the range this side supports; everything else is ERR_CHUNK.
fn answer(error: HeaderError, out: &mut impl Output) {
    let supported = RdmaError::Version { low: VERSION, high: VERSION };
    match error {
        HeaderError::TooShort => out.dropped(Dropped::TooShort),
        HeaderError::Version { xid, version } => out.send_error(xid, version, supported),
        HeaderError::Malformed { xid, .. } | HeaderError::UnknownType { xid, .. } => {
            out.send_error(xid, VERSION, RdmaError::Chunk);
        }
    }
}
