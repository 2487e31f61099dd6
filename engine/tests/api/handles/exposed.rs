//! Memory of connections that handles lend.

use super::*;
use spinrpc::config::BulkView;

/// Memory of the connection: it goes with it, and is never given as memory that no peer can write.
#[test]
fn exposed_memory_is_used_from_any_thread_while_the_connection_is_up() {
    let options = ConnectOptions::new().reconnect(Reconnect::default());
    let mut pair = Pair::with(|_| {}, &options);
    let client = &pair.client;
    let mut item = client.exposed_bulk(5_000).unwrap();
    item.copy_from(0, &crate::common::pattern(1, 5_000));
    let room = client.exposed_bulk(4_000).unwrap();
    let spec = CallSpec::short().exposed_argument(item).exposed_result_into(room);
    let encode = |args: &mut Encoder<'_>| {
        args.u32(1);
        args.u32(1);
        args.bulk();
        [1, 4_000, 0].iter().for_each(|word| args.u32(*word));
    };
    let mut answer = client.start(MIX, spec, encode).unwrap().wait().unwrap();
    // A device checks keys: its memory is not exposed.
    assert!(crate::common::device().is_some() || answer.take_result().is_none());
    let result = answer.take_exposed_result().unwrap();
    let mut bytes = vec![0; 4_000];
    result.copy_to(0, &mut bytes);
    assert!(result.len() == 4_000 && is_pattern(101, &bytes));
    assert!(answer.take_exposed_result().is_none());
    assert_eq!(pair.engine.stats(0).unwrap().copies, 0);
    let copying = Pair::with(|raw| raw.mem.bulk = BulkView::Copy, &options);
    assert!(copying.client.exposed_bulk(1).is_none());
    pair.end_client();
    assert!(pair.client.exposed_bulk(1).is_none());
}
