//! Data that an application keeps after its call is over: they are its own now, and stay as they are
//! whatever the connection does with its receives meanwhile (RFC 5666 section 3.9).

use super::content;
use spinrpc::{Bulk, Data};

/// Longest item that is kept: memory for longer ones is scarce, and others wait for it.
const KEPT_BYTES_MAX: usize = 4096;
const KEPT_NS: u64 = 200_000;

pub(crate) struct Kept {
    key: u64,
    bulk: Bulk,
}

impl Kept {
    /// Keeps an item of the bytes of `key`, if it came with its memory: every other one.
    pub(crate) fn of(key: u64, item: Data<'_>) -> Option<Self> {
        match item {
            Data::Bulk(bulk)
                if bulk.len() <= KEPT_BYTES_MAX && content::mix(key).is_multiple_of(2) =>
            {
                Some(Self { key, bulk })
            }
            _ => None,
        }
    }

    pub(crate) fn time_ns(&self) -> u64 {
        content::mix(self.key) / 2 % KEPT_NS
    }

    pub(crate) fn check(self) -> Option<&'static str> {
        let is_whole = content::is(self.key, self.bulk.bytes());
        (!is_whole).then_some("data that an application keeps have changed")
    }
}
