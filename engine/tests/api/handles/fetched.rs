//! Replies that the core fetches by RDMA Read as soon as there is memory for them, and puts into a queue: it does
//! so in the part of a turn that comes after the handles were polled.

use super::*;
use spinrpc_proto::dialect::Profile;

/// Bytes of a result that no message has room for.
const RESULT_BYTES: u32 = 20_001;

/// A server that makes clients fetch results for which they have not offered room, and a client
/// whose core sleeps.
fn fetching() -> Option<Pair> {
    if device().is_some() {
        not_tested("replies over RDMA, fetched into memory that handles cannot take");
        return None;
    }
    let server = Server::with(crate::common::small_with(|raw| raw.rpc.protocol = Profile::Rfc5666));
    server.shared.read_chunks.store(true, Ordering::Relaxed);
    let change = |raw: &mut RawConfig| {
        raw.rpc.protocol = Profile::Rfc5666;
        raw.poll.mode = IdlePolicy::Sleep;
    };
    let pair = Pair::of(server, change, &ConnectOptions::new());
    wait_until("memory", || pair.client.bulk(1).is_some());
    Some(pair)
}

/// Starts a call whose reply is one item, and waits until that has come and found no memory.
fn start_fetch(pair: &Pair, queue: &AnswerQueue, token: u64, spec: CallSpec) {
    let before = pair.engine.stats(0).unwrap().no_buffer;
    let words = [token as u32, 0, 1, RESULT_BYTES, 0];
    let encode = |args: &mut Encoder<'_>| words.iter().for_each(|word| args.u32(*word));
    pair.client.start_to_queue(queue, Token(token), MIX, spec, encode).unwrap();
    wait_until("the reply to wait", || pair.engine.stats(0).unwrap().no_buffer > before + 2);
    assert!(queue.next().is_none(), "an answer without memory for it");
}

#[test]
fn a_reply_has_waited_for_memory_expect_it_in_the_queue() {
    let Some(pair) = fetching() else { return };
    let queue = AnswerQueue::new(1).unwrap();
    for token in 0..20 {
        let taken = take_all(&pair);
        start_fetch(&pair, &queue, token, CallSpec::short());
        drop(taken);
        let (heard, answer) = next(&queue);
        let mut answer = answer.unwrap();
        let mut results = answer.results();
        assert_eq!((heard, results.u32().unwrap(), results.u32().unwrap()), (Token(token), 0, 1));
        let item = results.data(1 << 20).unwrap();
        assert_eq!(item.bytes().len(), RESULT_BYTES as usize);
        assert!(is_pattern(token as u32 + 100, item.bytes()));
    }
    pair.server.wait_for("all replies to be fetched", |stats| stats.replies_exported == 20);
}

#[test]
fn no_memory_comes_until_the_deadline_expect_the_error_in_the_queue() {
    let Some(pair) = fetching() else { return };
    let queue = AnswerQueue::new(1).unwrap();
    let taken = take_all(&pair);
    // Before the core gives up waiting for memory.
    let spec = CallSpec::short().deadline(Duration::from_secs(4));
    start_fetch(&pair, &queue, 7, spec);
    let (heard, answer) = next(&queue);
    assert!(matches!(answer, Err(CallError::TimedOut)), "{answer:?}");
    assert_eq!(heard, Token(7));
    drop(taken);
    assert_eq!(echo(&pair.client, b"next").unwrap(), b"next");
}
