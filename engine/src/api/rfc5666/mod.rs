//! Parts of the api for the dialects of RFC 5666: protected bodies of padded messages (RDMA_MSGP), and the Connection
//! Configuration Protocol. Other code names it by this module alone.

mod config_protocol;
#[cfg(feature = "gss")]
mod protected;

pub(super) use config_protocol::{ConfigClient, ConfigService, SERVED_AS};
#[cfg(feature = "gss")]
pub(super) use protected::{whole_reply, with_chunk, without_padding};
