//! Slabs of a process that is killed, and of a client whose server is killed.

use super::{alone, say_ready};
use crate::common::prelude::*;
use std::fs;

/// Role of a process that calls with a slab until it is killed.
pub(super) const LENDER: &str = "lender";

const BYTES: usize = 100_001;

fn argument(mut reply: Reply<'_>) -> Result<Option<Bulk>, DecodeError> {
    Ok(reply.take_argument())
}

fn connect(address: &str) -> (Caller<Option<Bulk>>, Slab) {
    let engine = Engine::new(valid(client_config())).unwrap();
    let slab = engine.slab(SlabLayout::new().block_bytes(BYTES).blocks(4)).unwrap();
    let options = ConnectOptions::new().lend(&slab);
    let mut caller = Caller::asked(engine, address, &options, argument);
    caller.come_up();
    (caller, slab)
}

fn call(caller: &Caller<Option<Bulk>>, slab: &Slab, token: u64) {
    let mut block = slab.take(BYTES).unwrap();
    block.bytes_mut().copy_from_slice(&pattern(token as u32, BYTES));
    let mut spec = CallSpec::short().argument(block).reply_bytes_max(2 * BYTES);
    caller.client.call(BOUNCE, Token(token), &mut spec, |args| args.bulk()).unwrap();
}

pub(super) fn lend_for_ever(address: &str) {
    let (mut caller, slab) = connect(address);
    for token in 0.. {
        call(&caller, &slab, token);
        let block = caller.reply().unwrap().unwrap();
        assert!(is_pattern(token as u32, block.bytes()));
        if token == 9 {
            say_ready();
        }
    }
}

fn mapped() -> usize {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("memfd:spinrpc-slab")).count()
}

#[test]
fn kill_a_process_that_lends_a_slab_expect_it_unmapped() {
    let _alone = alone();
    let server = Server::start();
    if !server.address.starts_with("shm:") {
        return not_tested("slabs that are mapped: they are of shared memory");
    }
    for _ in 0..3 {
        let mut victim = super::start(LENDER, &server.address);
        assert_eq!(mapped(), 1, "one lent slab");
        let line = |line: &&str| line.contains("memfd:spinrpc-slab");
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let protection = maps.lines().find(line).unwrap().split_whitespace().nth(1).unwrap();
        assert_eq!(protection, "r--s", "for reading only");
        victim.kill();
        wait_until("the slab to go", || mapped() == 0);
    }
}

#[test]
fn kill_a_server_that_reads_a_slab_expect_its_blocks_back_and_the_next_server_served() {
    let _alone = alone();
    let address = unique_address();
    let mut victim = super::start("server", &address);
    let (mut caller, slab) = connect(&address);
    call(&caller, &slab, 1);
    assert!(caller.reply().unwrap().is_some());
    victim.kill();
    caller.down();
    (2..4).for_each(|token| {
        let mut spec = CallSpec::short().argument(slab.take(BYTES).unwrap());
        let started = caller.client.call(BOUNCE, Token(token), &mut spec, |args| args.bulk());
        assert!(started.is_err(), "the connection is down");
    });
    let ended = std::mem::take(&mut caller.heard.borrow_mut().replies);
    assert!(ended.iter().all(|(_, end)| matches!(end, Err(CallError::Disconnected(_)))));
    assert_eq!(slab.free(), 4);
    drop(caller);
    let _next = super::start("server", &address);
    let (mut caller, slab) = connect(&address);
    call(&caller, &slab, 5);
    assert!(is_pattern(5, caller.reply().unwrap().unwrap().bytes()));
}
