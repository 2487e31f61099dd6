//! Whole engines on a simulated network: clients, servers and hostile peers in one thread on virtual
//! time, everything decided by a seed, and the invariants that must hold whatever the seed.
//!
//! [`run`] makes the [`scenario`] of a seed and plays it. Each thing that happens is held against
//! the [`oracle`], which reads the wire, and the [`ledger`], which knows every call. Then clients of other
//! implementations have a server of their own ([`foreign`]).

pub(crate) mod caller;
pub(crate) mod content;
pub(crate) mod finish;
pub(crate) mod fleet;
pub(crate) mod foreign;
pub(crate) mod groups;
pub(crate) mod hostile;
pub(crate) mod kept;
pub(crate) mod ledger;
pub(crate) mod negotiation;
pub(crate) mod oracle;
pub(crate) mod program;
pub(crate) mod progress;
pub(crate) mod run;
pub(crate) mod scenario;
pub(crate) mod secured;
pub(crate) mod setup;
pub(crate) mod terms;
pub(crate) mod wide;
pub(crate) mod words;

pub(crate) use run::run_seed;
