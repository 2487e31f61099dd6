//! Kerberos for the server: contexts, whose principals are mapped to users, and the transport that Linux clients
//! establish them over.
//!
//! `mapping` wraps the mechanism of the engine: the peer of every context it accepts has the user of the principal in
//! front of its name. `users` finds that user, `keytab` the realm of the server, and `tcp` answers calls that
//! establish contexts. Called by `spin-nfsd`.

mod keytab;
mod mapping;
mod tcp;
mod users;

pub use keytab::{KeytabError, realm_of};
pub use mapping::Mapping;
pub use tcp::ContextService;
pub use users::{MapError, Users};
