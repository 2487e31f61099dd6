//! Kerberos for the server: contexts, whose principals are mapped to users, and the transport that Linux clients
//! establish them over.

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
