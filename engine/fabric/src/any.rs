//! The driver of an engine, chosen when the engine is created. The reactor and the layers above it are compiled once, for
//! this type. Over shared memory, the commonest driver, the operations of each message and turn are in place;
//! everything else goes by the table of [`Fabric`].

use super::shm::ShmFabric;
use super::{Completions, Fabric, Full, NextShort, QpId, SendWr, Short, ShortMessages};
use crate::mem::Buf;
use crate::sys::clock::{Clock, Ticks};
use std::ops::{Deref, DerefMut};

/// The data plane of one driver: see [`Fabric`] and [`ShortMessages`] for its methods.
#[allow(
    clippy::large_enum_variant,
    reason = "there is one for each core, and the commonest is in place"
)]
#[doc(hidden)]
pub enum AnyFabric {
    Shm(ShmFabric),
    Other(Box<dyn Fabric>),
}

impl Deref for AnyFabric {
    type Target = dyn Fabric;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Shm(fabric) => fabric,
            Self::Other(fabric) => &**fabric,
        }
    }
}

impl DerefMut for AnyFabric {
    fn deref_mut(&mut self) -> &mut Self::Target {
        match self {
            Self::Shm(fabric) => fabric,
            Self::Other(fabric) => &mut **fabric,
        }
    }
}

macro_rules! in_place {
    ($(#[$inline:meta] [$($mutable:tt)?] $name:ident($($arg:ident: $type:ty),*) $(-> $out:ty)?;)*) => {
        impl AnyFabric {$(
            #[$inline]
            pub fn $name(&$($mutable)? self, $($arg: $type),*) $(-> $out)? {
                match self {
                    Self::Shm(fabric) => fabric.$name($($arg),*),
                    Self::Other(fabric) => fabric.$name($($arg),*),
                }
            }
        )*}
    };
}

in_place! {
    #[inline] [mut] post_recv(qp: QpId, buf: Buf) -> Result<(), Full<Buf>>;
    #[inline] [mut] send_copied(qp: QpId, message: &[u8]) -> bool;
    #[inline] [mut] post(qp: QpId, wr: SendWr) -> Result<(), Full<SendWr>>;
    #[inline] [] room(qp: QpId) -> usize;
    #[inline(always)] [] now(clock: &Clock) -> Ticks;
    #[inline(always)] [mut] poll(out: &mut Completions) -> usize;
    #[inline(always)] [mut] next_short(message: &mut Short) -> Option<NextShort>;
    #[inline(always)] [mut] skip_poll(is_idle: bool) -> bool;
    #[inline(always)] [mut] flush();
}
