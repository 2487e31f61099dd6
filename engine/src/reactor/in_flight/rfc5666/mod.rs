//! State that only the dialects of RFC 5666 need: replies by Read list at both ends. Other code names it by this module
//! alone.

mod exported;

pub(crate) use exported::ExportHold;
