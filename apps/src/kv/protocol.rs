//! Codec of `kv.x`: one function or type per definition there, in the same order.
//!
//! Used by the service and the client; bounds are checked where bytes come from a peer.

use spinrpc::{DecodeError, Decoder, Encoder, Procedure, Program, Version};

/// Program number, from the range for everybody's own use (RFC 5531 section 13.3).
pub const PROGRAM: Program = Program(0x2000_6b76);
/// The only version there is.
pub const VERSION: Version = Version(1);
/// Does nothing.
pub const NULL: Procedure = Procedure(0);
/// Fetches one value.
pub const GET: Procedure = Procedure(1);
/// Stores one value, over an older one.
pub const PUT: Procedure = Procedure(2);
/// Forgets one value.
pub const DELETE: Procedure = Procedure(3);
/// Lists keys in order, with sizes and checksums of their values.
pub const SCAN: Procedure = Procedure(4);
/// Asks to be called, by the same connection, when a key changes.
pub const WATCH: Procedure = Procedure(5);

/// Program number of what a watcher serves.
pub const CALLBACK_PROGRAM: Program = Program(0x2000_6b77);
/// The only version there is.
pub const CALLBACK_VERSION: Version = Version(1);
/// Tells the state of a key.
pub const CHANGED: Procedure = Procedure(1);

/// Longest key.
pub const KEY_BYTES_MAX: usize = 255;
/// Longest value. The default limits of an engine, in both directions, are as large.
pub const VALUE_BYTES_MAX: usize = 1 << 20;
/// Most entries of one answer to a scan.
pub const SCAN_ENTRIES_MAX: usize = 128;
/// Longest results of a scan: status, count and flag, and full entries with the longest keys.
pub const SCAN_RESULT_BYTES_MAX: usize = 12 + SCAN_ENTRIES_MAX * (4 + KEY_BYTES_MAX + 1 + 8);

/// How a call went, where RPC itself went well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Status {
    /// As asked.
    Ok = 0,
    /// There is no such key.
    NotFound = 1,
    /// The store is full.
    NoSpace = 2,
    /// A key has at least one byte.
    InvalidKey = 3,
    /// Too many scans or watches at a time; trying again later is worth it.
    Busy = 4,
}

impl Status {
    /// Reads a status word; `None` for a number that is not in `kv.x`.
    ///
    /// # Errors
    /// When the results end before it.
    pub fn decode(results: &mut Decoder<'_>) -> Result<Option<Self>, DecodeError> {
        let word = results.u32()?;
        let all = [Self::Ok, Self::NotFound, Self::NoSpace, Self::InvalidKey, Self::Busy];
        Ok(all.into_iter().find(|status| *status as u32 == word))
    }

    /// Writes the status word.
    pub fn encode(self, results: &mut Encoder<'_>) {
        results.u32(self as u32);
    }
}

/// What a scan is to list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanArgs<'a> {
    /// Keys begin with this.
    pub prefix: &'a [u8],
    /// Keys are greater than this; empty at the start.
    pub after: &'a [u8],
    /// Entries wanted at most.
    pub entries_max: u32,
}

impl<'a> ScanArgs<'a> {
    /// Reads the arguments.
    ///
    /// # Errors
    /// When they end early or a key is too long.
    pub fn decode(args: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        let prefix = args.opaque(KEY_BYTES_MAX)?;
        let after = args.opaque(KEY_BYTES_MAX)?;
        Ok(Self { prefix, after, entries_max: args.u32()? })
    }

    /// Writes the arguments.
    pub fn encode(&self, args: &mut Encoder<'_>) {
        args.opaque(self.prefix);
        args.opaque(self.after);
        args.u32(self.entries_max);
    }
}

/// One key in the answer to a scan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: Vec<u8>,
    /// Length of its value.
    pub value_bytes: u32,
    /// Checksum of its value.
    pub value_crc32: u32,
}

impl Entry {
    fn decode(results: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let key = results.opaque(KEY_BYTES_MAX)?.to_vec();
        Ok(Self { key, value_bytes: results.u32()?, value_crc32: results.u32()? })
    }

    fn encode(&self, results: &mut Encoder<'_>) {
        results.opaque(&self.key);
        results.u32(self.value_bytes);
        results.u32(self.value_crc32);
    }
}

/// The answer to a scan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// In the order of their keys; at most [`SCAN_ENTRIES_MAX`].
    pub entries: Vec<Entry>,
    /// There are keys behind the last entry.
    pub more: bool,
}

impl Page {
    /// Reads what follows the status.
    ///
    /// # Errors
    /// When the results end early; a count beyond the limit ends them early too.
    pub fn decode(results: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let count = (results.u32()? as usize).min(SCAN_ENTRIES_MAX);
        let entries = (0..count).map(|_| Entry::decode(results)).collect::<Result<_, _>>()?;
        Ok(Self { entries, more: results.bool()? })
    }

    /// Writes what follows the status.
    pub fn encode(&self, results: &mut Encoder<'_>) {
        results.u32(self.entries.len() as u32);
        for entry in &self.entries {
            entry.encode(results);
        }
        results.bool(self.more);
    }
}

/// What a watcher is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change<'a> {
    /// Which key.
    pub key: &'a [u8],
    /// Length of its value, if it has one.
    pub value_bytes: Option<u32>,
}

impl<'a> Change<'a> {
    /// Reads the arguments.
    ///
    /// # Errors
    /// When they end early or the key is too long.
    pub fn decode(args: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        let key = args.opaque(KEY_BYTES_MAX)?;
        let value_bytes = if args.bool()? { Some(args.u32()?) } else { None };
        Ok(Self { key, value_bytes })
    }

    /// Writes the arguments.
    pub fn encode(&self, args: &mut Encoder<'_>) {
        args.opaque(self.key);
        args.bool(self.value_bytes.is_some());
        if let Some(bytes) = self.value_bytes {
            args.u32(bytes);
        }
    }
}
