//! Types and stubs of `kv.x`, generated when this package is built, and sizes derived from its
//! limits.

include!(concat!(env!("OUT_DIR"), "/kv.rs"));

/// Outcome of a call that RPC completed.
pub type Status = KvStatus;

/// Maximum length of a key, in bytes.
pub const KEY_BYTES_MAX: usize = KV_KEY_BYTES_MAX as usize;
/// Maximum length of a value, in bytes. The default limits of an engine are the same in both
/// directions.
pub const VALUE_BYTES_MAX: usize = KV_VALUE_BYTES_MAX as usize;
/// Maximum number of entries in one answer to a scan.
pub const SCAN_ENTRIES_MAX: usize = KV_SCAN_ENTRIES_MAX as usize;
/// Maximum length of the results of a scan, in bytes: status, count and flag, and full entries with
/// the longest keys.
pub const SCAN_RESULT_BYTES_MAX: usize = 12 + SCAN_ENTRIES_MAX * (4 + KEY_BYTES_MAX + 1 + 8);
