//! Messages are signed, sealed and unsealed without allocation. A binary of its own, because it counts
//! through the global allocator.
#![allow(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "all of this is tests")]

use spinrpc_gss::random::AesConfounders;
use spinrpc_gss::{
    Enctype, ReceiveKeys, Role, SendKeys, SessionKey, seal_body, sealed_bytes, unseal_body,
};
use spinrpc_proto::rpc::GssService;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

fn count() {
    let _ = COUNT.try_with(|count| count.set(count.get() + 1));
}

// SAFETY: every call goes to the system's allocator unchanged; counting touches a thread-local that
// does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the contract of `alloc`, which is that of the system's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count();
        // SAFETY: as above.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn exchange(send: &SendKeys, receive: &ReceiveKeys, body: &mut [u8], service: GssService) {
    let mut confounders = AesConfounders::new(&[1; 32]);
    let verifier = send.mic(&body[..20], 1);
    assert_eq!(receive.verify(&body[..20], verifier.as_slice()), Ok(1));
    seal_body(service, send, body, 1, 1, &mut confounders).unwrap();
    unseal_body(service, receive, body, 1).unwrap();
}

#[test]
fn nothing_is_allocated_for_a_message() {
    let before = COUNT.get();
    drop(vec![1]);
    assert_eq!(COUNT.get() - before, 2, "allocations are counted");
    for enctype in Enctype::ALL {
        let key = SessionKey::new(enctype, &vec![0x33; enctype.key_bytes()]).unwrap();
        let send = SendKeys::new(&key, Role::Initiator, true);
        let receive = ReceiveKeys::new(&key, Role::Acceptor, true);
        for service in [GssService::Integrity, GssService::Privacy] {
            let mut body = vec![0; sealed_bytes(service, &send, 10_000)];
            let before = COUNT.get();
            exchange(&send, &receive, &mut body, service);
            assert_eq!(COUNT.get(), before, "{enctype:?} {service:?}");
        }
    }
}
