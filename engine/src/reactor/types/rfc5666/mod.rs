//! Values that only the dialects of RFC 5666 need: padded messages, the Read chunks of replies, and the Connection
//! Configuration Protocol. Other code names them by this module alone.

mod configuration;
mod marks;
mod padded;
mod padded_replies;
mod pulled;
mod read_lists;

pub(in crate::reactor) use marks::Marks;
pub(crate) use padded::Padded;
pub(crate) use pulled::PulledChunks;
