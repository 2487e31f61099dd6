//! Part of the half that answers calls, for the dialects of RFC 5666: replies by Read list.

pub(in crate::reactor::server) mod exports;
