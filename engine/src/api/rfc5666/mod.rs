//! Parts of the api for the dialects of RFC 5666: padded messages (RDMA_MSGP), and the Connection Configuration Protocol. Other code names it by this module alone.

mod config_protocol;
mod padded_data;
#[cfg(feature = "gss")]
mod protected;

pub(super) use config_protocol::{Asking, ConfigService, SERVED_AS};
pub(super) use padded_data::KeptPadding;
#[cfg(feature = "gss")]
pub(super) use protected::{whole_reply, with_chunk, without_padding};
