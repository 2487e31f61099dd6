//! The store: an ordered map with limits. Independent of RPC; owned by one thread.

use crate::kv::protocol::Status;
use spinrpc::{Bulk, SharedBulk};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

/// A stored value. Clones share the bytes.
#[derive(Clone, Debug)]
pub enum Value {
    /// On the heap: a block of registered memory would be mostly empty.
    Small(Arc<[u8]>),
    /// In the registered memory it arrived in, from which it is sent without a copy.
    Large {
        /// The bytes.
        bytes: SharedBulk,
        /// Length of their block.
        block_bytes: usize,
    },
}

impl Value {
    /// Keeps `bulk`, which no longer changes.
    pub fn large(bulk: Bulk) -> Self {
        let block_bytes = bulk.capacity();
        Self::Large { bytes: bulk.freeze(), block_bytes }
    }

    /// The bytes stored.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Small(bytes) => bytes,
            Self::Large { bytes, .. } => bytes.bytes(),
        }
    }

    fn block_bytes(&self) -> usize {
        match self {
            Self::Small(_) => 0,
            Self::Large { block_bytes, .. } => *block_bytes,
        }
    }
}

/// Limits of a store. Anything beyond is rejected with [`Status::KvNoSpace`].
#[derive(Clone, Copy, Debug)]
pub struct Capacity {
    /// Maximum number of keys.
    pub entries: usize,
    /// Maximum registered memory, in bytes, counted in whole blocks.
    pub block_bytes: usize,
}

/// Keys in order, with their values.
#[derive(Debug)]
pub struct Store {
    entries: BTreeMap<Box<[u8]>, Value>,
    block_bytes: usize,
    capacity: Capacity,
}

impl Store {
    /// An empty store.
    pub fn new(capacity: Capacity) -> Self {
        Self { entries: BTreeMap::new(), block_bytes: 0, capacity }
    }

    /// The value of `key`.
    pub fn get(&self, key: &[u8]) -> Option<&Value> {
        self.entries.get(key)
    }

    /// Stores `value`, replacing an older one.
    pub fn put(&mut self, key: &[u8], value: Value) -> Status {
        if key.is_empty() {
            return Status::KvInvalidKey;
        }
        let old = self.entries.get(key);
        let entries = self.entries.len() + usize::from(old.is_none());
        let freed = old.map_or(0, Value::block_bytes);
        let block_bytes = self.block_bytes - freed + value.block_bytes();
        if entries > self.capacity.entries || block_bytes > self.capacity.block_bytes {
            return Status::KvNoSpace;
        }
        self.block_bytes = block_bytes;
        self.entries.insert(key.into(), value);
        Status::KvOk
    }

    /// Deletes `key` and its value.
    pub fn delete(&mut self, key: &[u8]) -> Status {
        match self.entries.remove(key) {
            Some(value) => {
                self.block_bytes -= value.block_bytes();
                Status::KvOk
            }
            None => Status::KvNotFound,
        }
    }

    /// Keys that begin with `prefix` and are greater than `after`, in order, with their values.
    pub fn scan<'a>(
        &'a self,
        prefix: &'a [u8],
        after: &'a [u8],
    ) -> impl Iterator<Item = (&'a [u8], &'a Value)> {
        let start = if after < prefix { Bound::Included(prefix) } else { Bound::Excluded(after) };
        let from = self.entries.range::<[u8], _>((start, Bound::Unbounded));
        from.map(|(key, value)| (&**key, value)).take_while(move |(key, _)| key.starts_with(prefix))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPACITY: Capacity = Capacity { entries: 3, block_bytes: 100 };

    fn small(text: &str) -> Value {
        Value::Small(text.as_bytes().into())
    }

    fn store(keys: &[&str]) -> Store {
        let mut store = Store::new(Capacity { entries: 100, ..CAPACITY });
        for key in keys {
            assert_eq!(store.put(key.as_bytes(), small(key)), Status::KvOk);
        }
        store
    }

    fn scanned(store: &Store, prefix: &str, after: &str) -> Vec<String> {
        let found = store.scan(prefix.as_bytes(), after.as_bytes());
        found.map(|(key, _)| String::from_utf8_lossy(key).into_owned()).collect()
    }

    #[test]
    fn a_value_is_there_from_put_to_delete() {
        let mut store = store(&["a"]);
        assert_eq!(store.put(b"a", small("new")), Status::KvOk);
        assert_eq!(store.get(b"a").unwrap().bytes(), b"new");
        assert_eq!((store.delete(b"a"), store.delete(b"a")), (Status::KvOk, Status::KvNotFound));
        assert!(store.get(b"a").is_none());
    }

    #[test]
    fn a_key_has_a_byte() {
        assert_eq!(store(&[]).put(b"", small("x")), Status::KvInvalidKey);
    }

    #[test]
    fn a_full_store_takes_replacements_only() {
        let mut store = Store::new(CAPACITY);
        for key in [b"a", b"b", b"c"] {
            assert_eq!(store.put(key, small("x")), Status::KvOk);
        }
        assert_eq!(store.put(b"d", small("x")), Status::KvNoSpace);
        assert_eq!(store.put(b"c", small("y")), Status::KvOk);
        assert_eq!((store.delete(b"a"), store.put(b"d", small("x"))), (Status::KvOk, Status::KvOk));
    }

    #[test]
    fn a_scan_is_ordered_and_keeps_to_its_prefix() {
        let store = store(&["b2", "a", "b1", "b", "c", "b3"]);
        assert_eq!(scanned(&store, "b", ""), ["b", "b1", "b2", "b3"]);
        assert_eq!(scanned(&store, "b", "b1"), ["b2", "b3"]);
        assert_eq!(scanned(&store, "b", "b3"), Vec::<String>::new());
        assert_eq!(scanned(&store, "", "b3"), ["c"]);
        assert_eq!(scanned(&store, "b", "a"), ["b", "b1", "b2", "b3"]);
        assert_eq!(scanned(&store, "a", "b"), Vec::<String>::new());
    }
}
