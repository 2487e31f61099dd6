//! Kerberos for the server: contexts, whose principals are mapped to users, and the transport that Linux clients
//! establish them over.
//!
//! `mapping` wraps the mechanism of the engine: the peer of every context it accepts has the user of the principal in
//! front of its name. `users` finds that user, `host` those of this host, `keytab` the names of the server. `tcp` answers
//! calls that establish contexts, and `turns` bounds these. Called by `spin-nfsd`.

mod host;
mod keytab;
mod mapping;
mod tcp;
mod turns;
mod users;

pub use host::LookupError;
pub use keytab::{Keytab, realm_in};
pub use mapping::Mapping;
pub use tcp::ContextService;
pub use users::Users;
