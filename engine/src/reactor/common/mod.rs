//! Layer 4: code shared by both halves of a core: outgoing messages, Read chunks, panics, graceful shutdown.
//! Works on the state.

pub(crate) mod drain;
pub(crate) mod panics;
pub(crate) mod pulls;
pub(crate) mod sends;
