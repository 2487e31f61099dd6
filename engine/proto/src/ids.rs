//! The small numbers that name things in ONC RPC, one type each, so that none can stand for another.
//!
//! Used by every other module; uses nothing.

use core::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(pub u32);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number! {
    /// Transaction id: pairs a Reply with its Call (RFC 5531 section 9). The same value stands in the
    /// RPC message and in the transport header before it (RFC 5666 section 4.1).
    Xid
}
number! {
    /// Number of an RPC program (RFC 5531 section 13).
    Program
}
number! {
    /// Version of an RPC program, not of RPC itself or of the transport.
    Version
}
number! {
    /// Number of a procedure within one version of a program. Procedure 0 does nothing, by convention.
    Procedure
}

/// A moment on the caller's clock, in ticks of the caller's choice.
///
/// The protocol core only compares instants with each other; it reads no clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Instant(pub u64);
