//! RPCSEC_GSS for spinrpc: contexts, and the Kerberos tokens that protect messages under them.
//!
//! Messages are signed, sealed and unsealed in the caller's buffers, without allocation, lock or system
//! call. Contexts are established by a [`mechanism::Mechanism`] on a thread of its own; message protection takes the session key that results. With the feature
//! `krb5-library` there is one for Kerberos, `library`, by MIT's library.
//!
//! Encryption types are those of RFC 3962 (17, 18) and RFC 8009 (19, 20); tokens are those of
//! RFC 4121 section 4.2. There is nothing older here.
//!
//! ```text
//! library <- mechanism <- context <- body <- token <- message <- mac, cipher <- enctype    random
//! ```
#![cfg_attr(not(feature = "krb5-library"), forbid(unsafe_code))]

/// Has `{:?}` show these fields, and neither keys nor handles.
macro_rules! shown {
    ($Type:ident: $($field:ident),+) => {
        impl std::fmt::Debug for $Type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let mut shown = f.debug_struct(stringify!($Type));
                $(shown.field(stringify!($field), &self.$field);)+
                shown.finish_non_exhaustive()
            }
        }
    };
}

mod body;
mod cipher;
pub mod context;
mod enctype;
#[cfg(feature = "krb5-library")]
pub mod library;
mod mac;
pub mod mechanism;
mod message;
pub mod random;
mod short_hash;
pub mod table;
#[cfg(test)]
mod tests;
mod token;

/// The example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub use body::{BodyError, content_at, seal_body, sealed_bytes, unseal_body};
pub use enctype::{Enctype, KEY_MAX_BYTES, SessionKey, WrongKeyLength};
pub use token::{
    MIC_MAX_BYTES, Mic, ReceiveKeys, Role, SendKeys, TokenError, WRAP_HEAD_BYTES,
    WRAP_OVERHEAD_MAX_BYTES,
};
