//! Memory keys: what this side lets its peer reach, and the check of what the peer lets us reach.
//!
//! The exposer writes a table in the connection's memory, the initiator of a Read or Write looks a
//! key up there before it copies. A real device checks at the exposer's end; here the initiator
//! does, so a hostile one can skip the check - it then reaches only this connection's own arena,
//! which is all it has mapped. What is read from the table is checked against the mapped arena.

use super::super::{Access, ExposeError, RemoteSlice, WrError};
use super::window::Window;
use crate::mem::{KeyGenerator, Lease, RegionId};
use crate::sync::atomic::{Ordering, fence};
use crate::sync::words::Words;
use std::ops::Range;

/// Keys one side of a connection may have alive.
pub(super) const EXPOSURES_MAX: usize = 512;

/// Words of one table.
pub(super) const TABLE_WORDS: usize = EXPOSURES_MAX * ENTRY_WORDS;

const ENTRY_WORDS: usize = 4;
const STATE: usize = 0;
const OFFSET: usize = 1;
const LENGTH: usize = 2;

const RIGHT_READ: u64 = 1 << 32;
const RIGHT_WRITE: u64 = 1 << 33;

fn state_word(handle: u32, access: Access) -> u64 {
    let right = match access {
        Access::RemoteRead => RIGHT_READ,
        Access::RemoteWrite => RIGHT_WRITE,
    };
    right | u64::from(handle)
}
