//! A driver's part in short messages, and the short endpoint of one connection, by which the core takes and sends them
//! without a look at the driver, which need not be borrowed meanwhile. A short endpoint is a choice of drivers, as
//! [`AnyFabric`](super::AnyFabric) is, made once for each message.

use super::shm::ShmShortEndpoint;
#[cfg(feature = "sim")]
use super::sim::SimShortEndpoint;
#[cfg(feature = "verbs")]
use super::verbs::VerbsShortEndpoint;
use super::{Head, QpId, Short};
use crate::mem::Buf;
use std::rc::Rc;

/// The short lane of a driver: messages of at most [`SHORT_BYTES_MAX`](super::SHORT_BYTES_MAX) bytes that invalidate no
/// key go by value, and come so if the core wants it ([`Fabric::begin`](super::Fabric::begin)): each as if its receive were
/// posted again at once. The core then asks for short messages before each poll: a driver
/// may then collect the events of the poll. A driver that leaves all of this alone has no lane.
#[doc(hidden)]
pub trait ShortMessages {
    /// The short endpoint of a connection; `None` where messages do not go by value.
    fn short_endpoint(&self, _qp: QpId) -> Option<ShortEndpoint> {
        None
    }

    /// Takes a short message of the next connection on which one waits; its [`ShortEndpoint`] take those behind it. `None` ends
    /// the scan of this turn. Messages that arrive later, follow a long message, or end a silence are delivered by the
    /// next poll or a later turn.
    #[inline(always)]
    fn next_short(&mut self, _message: &mut Short) -> Option<NextShort> {
        None
    }

    /// Ends the scan without a poll. Returns false, without effect, if a poll is needed: the driver knows of work, or, in
    /// an idle turn, a peer rang.
    #[inline(always)]
    fn skip_poll(&mut self, _is_idle: bool) -> bool {
        false
    }

    /// Looks for what [`ShortMessages::skip_poll`] may not know of, such as silent peers. `false` if a poll is due. To be
    /// called at least once in a few turns that skip it.
    fn rests(&mut self) -> bool {
        true
    }

    /// The receive of the last short message of a connection, for a message that is to stay: once, also of
    /// a connection that has gone down meanwhile. Not posted any more.
    fn receive_of_short(&mut self, _qp: QpId) -> Option<Buf> {
        None
    }

    /// As [`ShortEndpoint::send`], of a message of any length the driver takes, which it copies now.
    fn send_copied(&mut self, _qp: QpId, _message: &[u8]) -> bool {
        false
    }
}

/// A connection of which a short message was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(hidden)]
pub struct NextShort {
    /// The connection.
    pub qp: QpId,
    /// True if the connection may have more messages.
    pub goes_on: bool,
    /// The scan of this turn ends behind it.
    pub is_last: bool,
}

/// Result of a look at a connection that may be the only one to be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(hidden)]
pub enum SingleConnPoll {
    /// A message was taken; there may be more.
    Taken {
        /// As in [`NextShort`].
        goes_on: bool,
    },
    /// It is, and has no message.
    Silent,
    /// The driver has to look.
    Unknown,
}

/// See the module. Clones are the same endpoint. That of a connection that is down takes and sends nothing.
#[derive(Clone, Debug)]
#[doc(hidden)]
#[non_exhaustive]
pub enum ShortEndpoint {
    /// Of a connection over shared memory.
    Shm(Rc<ShmShortEndpoint>),
    /// Of a connection over a device, which only sends.
    #[cfg(feature = "verbs")]
    Verbs(Rc<VerbsShortEndpoint>),
    /// Of a simulated connection.
    #[cfg(feature = "sim")]
    Sim(Rc<SimShortEndpoint>),
}

impl ShortEndpoint {
    /// True if a message that is sent here takes a place in the send queue: over shared memory only one that is posted
    /// does.
    #[inline(always)]
    pub fn use_queue_slots(&self) -> bool {
        !matches!(self, Self::Shm(_))
    }
}

macro_rules! each {
    ($it:expr, $endpoint:ident => $do:expr) => {
        match $it {
            ShortEndpoint::Shm($endpoint) => $do,
            #[cfg(feature = "verbs")]
            ShortEndpoint::Verbs($endpoint) => $do,
            #[cfg(feature = "sim")]
            ShortEndpoint::Sim($endpoint) => $do,
        }
    };
}

/// Operations of the short endpoints of every driver. A loop over many messages is made for those of one driver.
#[doc(hidden)]
pub trait ShortEndpointOps {
    /// Takes the short message behind the one that was taken last, if it waits, as if its receive were posted again at
    /// once. To be asked only while there may be more. Returns whether there may be more.
    fn take(&self, message: &mut Short) -> Option<bool>;

    /// As [`Fabric::post`](super::Fabric::post) of a Send, by value; the message begins with `head`,
    /// whatever it has there itself. `bytes` is its length, which the caller may have at hand. `false` where that cannot be done now,
    /// or ever; then nothing has happened, and the message is to be posted.
    fn send<const HEAD: usize>(
        &self,
        head: impl Into<Head<HEAD>>,
        message: &Short,
        bytes: usize,
    ) -> bool;

    /// As [`Fabric::room`](super::Fabric::room).
    fn room(&self) -> usize;

    /// As [`Fabric::post_recv`](super::Fabric::post_recv) of the receive of a message of this connection, behind the
    /// sends of the next flush. Returns it where that cannot be done now, or ever.
    #[inline(always)]
    fn give_back(&self, receive: Buf) -> Option<Buf> {
        Some(receive)
    }
}

impl ShortEndpointOps for ShortEndpoint {
    #[inline(always)]
    fn take(&self, message: &mut Short) -> Option<bool> {
        each!(self, endpoint => endpoint.take(message))
    }

    #[inline(always)]
    fn send<const HEAD: usize>(
        &self,
        head: impl Into<Head<HEAD>>,
        message: &Short,
        bytes: usize,
    ) -> bool {
        match self {
            Self::Shm(endpoint) => endpoint.send(head, message, bytes),
            #[cfg(feature = "verbs")]
            Self::Verbs(endpoint) => endpoint.send::<HEAD>(head.into(), message, bytes),
            // As one value, so that nothing that a head is made of needs a place in memory.
            #[cfg(feature = "sim")]
            Self::Sim(endpoint) => endpoint.send::<HEAD>(head.into(), message, bytes),
        }
    }

    #[inline(always)]
    fn room(&self) -> usize {
        each!(self, endpoint => endpoint.room())
    }

    #[inline(always)]
    fn give_back(&self, receive: Buf) -> Option<Buf> {
        each!(self, endpoint => endpoint.give_back(receive))
    }
}
