//! Layer 4: what both halves of a core share: messages on their way out, panics, observers, the end in good order.
//! Works on the state.

pub(crate) mod latency;
pub(crate) mod leaving;
pub(crate) mod observe;
pub(crate) mod panics;
pub(crate) mod sends;
