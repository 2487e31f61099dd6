//! Memory of the keys of contexts: core dumps leave it out.

use crate::mem::UndumpedPool;
use spinrpc_gss::Role;
use spinrpc_gss::context::{Context, Established, KeyPlace, Keys};
use std::hint::black_box;
use std::io;

static KEYS: UndumpedPool<Keys> = UndumpedPool::new();

/// Bytes of the stack that are overwritten once keys have been derived: several times what deriving takes.
const STACK_BYTES: usize = 64 << 10;

/// The end `role` of a context, with its keys in that memory.
///
/// # Errors
/// The kernel has no memory.
pub(super) fn new_context(role: Role, established: Established) -> io::Result<Context> {
    let place = |keys| -> io::Result<KeyPlace> { Ok(Box::new(KEYS.put(keys)?)) };
    Context::with_place(role, established, place)
}

/// Overwrites what functions that have returned left on the stack: keys were derived and moved there.
#[inline(never)]
pub(super) fn clear_stack() {
    let mut bytes = [0_u8; STACK_BYTES];
    black_box(&mut bytes);
}

#[cfg(all(test, not(miri)))]
#[allow(clippy::unwrap_used, reason = "a test ends here")]
mod tests {
    use super::*;
    use spinrpc_gss::{Enctype, SessionKey};
    use spinrpc_proto::ids::Instant;

    /// Flags of the mapping that has this address, as the kernel prints them.
    fn flags_at(address: usize) -> String {
        let all = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let is_here = |line: &str| {
            let range = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
            let number = |text| usize::from_str_radix(text, 16).ok();
            let range = range.and_then(|(start, end)| Some(number(start)?..number(end)?));
            range.is_some_and(|range| range.contains(&address))
        };
        let mut lines = all.lines().skip_while(|line| !is_here(line));
        lines.find_map(|line| line.strip_prefix("VmFlags:")).unwrap().to_owned()
    }

    fn is_dumped(address: usize) -> bool {
        flags_at(address).split_whitespace().all(|flag| flag != "dd")
    }

    #[test]
    fn keys_of_a_context_are_left_out_of_core_dumps() {
        let established = || {
            let key = SessionKey::new(Enctype::Aes256Sha384, &[7; 32]).unwrap();
            let expires = Instant(u64::MAX);
            Established { key, acceptor_subkey: true, expires, peer: String::new() }
        };
        let context = new_context(Role::Acceptor, established()).unwrap();
        let keys = [
            std::ptr::from_ref(context.send_keys()).addr(),
            std::ptr::from_ref(context.receive_keys()).addr(),
        ];
        assert!(keys.into_iter().all(|key| !is_dumped(key)), "{}", flags_at(keys[0]));
        // One that is not in such a place is dumped: the test can fail.
        let usual = Context::new(Role::Initiator, established());
        assert!(is_dumped(std::ptr::from_ref(usual.send_keys()).addr()));
        let mic = usual.sign_call(b"signed");
        assert!(context.receive_keys().verify(b"signed", mic.as_slice()).is_ok());
    }
}
