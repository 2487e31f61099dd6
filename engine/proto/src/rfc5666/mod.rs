//! Parts of RFC 5666 and of its drafts that RFC 8166, the default, does not have. A reader who only
//! needs RFC 8166 can skip this folder.
//!
//! ```text
//! alignment, padding   RDMA_MSGP: padding before counted data (section 3.9)
//! exports              replies by Read list, on the responder's side (sections 3.5, 3.8, 5.1, 11)
//! reply_pull           the same on the requester's side
//! dones                RDMA_DONEs in the requester's account of credits (section 3.8)
//! config_proto         the Connection Configuration Protocol (section 6)
//! ```
//!
//! [`crate::dialect`] is the gate: the state machines ask it for a rule and come here if the rule
//! says so.

pub(crate) mod dones;
pub mod exports;
pub(crate) mod padding;
pub mod reply_pull;

pub(crate) use crate::alignment;
