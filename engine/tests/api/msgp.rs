//! RDMA_MSGP from end to end (RFC 5666 section 3.9): long inline data begin at a multiple of the
//! alignment.

use crate::common::prelude::*;
use crate::common::raw::{RawPeer, Said, bytes_of};
use proptest::prelude::*;
use proptest::test_runner::{Config as Cases, TestRunner};
use spinrpc_proto::rpc::Groups;

const ALIGN: usize = 1024;
const MSG: u32 = 0;
const MSGP: u32 = 2;

/// Pads to [`ALIGN`], from 512 bytes on.
fn padding(mut raw: RawConfig) -> RawConfig {
    raw.rpc.protocol = Profile::Rfc5666;
    raw.rpc.msgp_align_bytes = ALIGN as u64;
    raw.fixed.msgp_threshold_bytes = 512;
    raw
}

/// Takes padded messages, sends none.
fn silent(mut raw: RawConfig) -> RawConfig {
    raw.rpc.protocol = Profile::Rfc5666;
    raw
}

fn padding_caller<T: 'static>(
    address: &str,
    read: fn(Reply<'_>) -> Result<T, DecodeError>,
) -> Caller<T> {
    Caller::connect_with(padding(client_config()), address, read)
}

/// A number and a data item in; the number out. Keeps the items.
const KEEP: Procedure = Procedure(1);

/// Where the items lay, in the order of their arrival.
type Kept = Mutex<Vec<Place>>;

struct Place {
    seed: u32,
    /// The item came without separate memory, so many bytes behind a multiple of [`LINE`].
    inline: Option<usize>,
}

/// Alignment of receive buffers.
const LINE: usize = 64;

struct Keeper(Arc<Kept>);

impl Service for Keeper {
    fn call(&mut self, mut call: Call<'_>) {
        if call.procedure() != KEEP {
            return call.reply(|_| {});
        }
        let mut args = call.args();
        let seed = args.u32().unwrap();
        let data = args.data(1 << 20).unwrap();
        assert!(is_pattern(seed, data.bytes()), "item {seed}");
        args.finish().unwrap();
        let inline = match data {
            Data::Bulk(_) => None,
            Data::Inline(bytes) => Some(bytes.as_ptr().addr() % LINE),
        };
        lock(&self.0).push(Place { seed, inline });
        call.reply(|results| results.u32(seed));
    }
}

struct KeepServer {
    engine: Started,
    address: String,
    kept: Arc<Kept>,
}

impl KeepServer {
    fn start(raw: RawConfig) -> Self {
        let engine = Engine::new(valid(raw)).unwrap();
        let kept = Arc::<Kept>::default();
        let of_service = Arc::clone(&kept);
        engine.serve(PROGRAM, VERSION, move |_| Keeper(Arc::clone(&of_service))).unwrap();
        let address = listening(&engine);
        Self { engine: Started::new(engine), address, kept }
    }

    #[track_caller]
    fn wait_for(&self, what: &str, done: impl Fn(&StatsSnapshot) -> bool) -> StatsSnapshot {
        wait_until(what, || done(&self.engine.stats(0).unwrap()));
        self.engine.stats(0).unwrap()
    }
}

/// Sends `length` bytes to be kept, in a separate buffer or in the stream.
#[track_caller]
fn keep(caller: &mut Caller<Vec<u32>>, seed: u32, length: usize, as_item: bool) {
    let mut spec = CallSpec::short();
    let bytes = pattern(seed, length);
    if as_item {
        let mut bulk = caller.client.bulk(length).unwrap();
        bulk.bytes_mut().copy_from_slice(&bytes);
        spec = spec.argument(bulk);
    }
    let encode = |args: &mut spinrpc::Encoder<'_>| {
        args.u32(seed);
        if as_item { args.bulk() } else { args.opaque(&bytes) }
    };
    caller.client.call(KEEP, Token(1), &mut spec, encode).unwrap();
    assert_eq!(caller.reply().unwrap(), [seed]);
}

/// "Any data transferred by RDMA on behalf of RPC requests will be placed into appropriately aligned
/// buffers on the system that receives the transfer."
#[test]
fn inline_data_arrive_aligned() {
    let server = KeepServer::start(padding(small()));
    let mut caller = padding_caller(&server.address, all_words);
    // From the threshold to the longest that fits behind the padding.
    let lengths = (512..520).chain(2000..2008).chain(4096 - ALIGN - 7..=4096 - ALIGN);
    for (seed, length) in (0..).zip(lengths) {
        keep(&mut caller, seed, length, seed % 2 == 0);
        let place = lock(&server.kept).pop().unwrap();
        assert_eq!((place.seed, place.inline), (seed, Some(0)), "{length} bytes");
    }
    let stats = server.wait_for("calls", |stats| stats.calls_received > 24);
    assert_eq!((stats.copies, stats.bytes_read), (0, 0));
}

#[test]
fn data_below_the_threshold_and_data_that_fit_without_padding_only_are_not_padded() {
    let server = KeepServer::start(padding(small()));
    let mut caller = padding_caller(&server.address, all_words);
    // Transport header 28, RPC header 40, number, count.
    let longest = 4096 - 28 - 40 - 8;
    for (seed, length) in [(1, 511), (2, 4096 - ALIGN + 1), (3, longest)] {
        for as_item in [false, true] {
            keep(&mut caller, seed, length, as_item);
        }
    }
    let places =
        lock(&server.kept).drain(..).map(|place| (place.seed, place.inline)).collect::<Vec<_>>();
    let unpadded = Some((28 + 40 + 8) % LINE);
    assert_eq!(places, [1, 1, 2, 2, 3, 3].map(|seed| (seed, unpadded)));
    let stats = server.wait_for("calls", |stats| stats.calls_received > 6);
    assert_eq!(stats.bytes_read, 0, "padding is not a reason for a chunk");
}

#[test]
fn a_result_that_is_read_as_an_opaque_is_borrowed_where_it_lies() {
    let server = Server::with(padding(small()));
    let mut caller = padding_caller(&server.address, one_opaque);
    for length in (500..1500).step_by(37).chain(2900..2910) {
        let sent = pattern(9, length);
        assert_eq!(caller.call(ECHO, |args| args.opaque(&sent)).unwrap(), sent);
        assert_eq!(caller.call(BOUNCE, |args| args.opaque(&sent)).unwrap(), sent);
    }
}

#[test]
fn a_reply_from_another_thread_is_padded() {
    let server = Server::with(padding(small()));
    let mut caller = padding_caller(&server.address, |mut reply: Reply<'_>| {
        let mut results = reply.results();
        let item = results.data(1 << 20)?;
        let place = item.bytes().as_ptr().addr();
        Ok((matches!(item, Data::Inline(_)), place % LINE, is_pattern(8, item.bytes())))
    });
    caller.start(LATER, 1, |args| args.u32(1)).unwrap();
    let shared = Arc::clone(&server.shared);
    run_core(&mut caller.core, "the call to be deferred", || shared.waiting() == 1);
    let (_, deferred) = shared.pop().unwrap();
    let mut bulk = caller.core.bulk(2000).unwrap();
    bulk.bytes_mut().copy_from_slice(&pattern(8, 2000));
    deferred.reply_with(ReplyData::new().bulk(bulk), |results| results.bulk());
    assert_eq!(caller.reply().unwrap(), (true, 0, true));
}

#[test]
fn any_items_in_any_order_are_what_they_were() {
    let server = Server::with(padding(small()));
    let caller = RefCell::new(padding_caller(&server.address, MixCall::read));
    let length = || prop_oneof![0..30_usize, 500..530_usize, 1000..3000_usize, 4000..9000_usize];
    let calls = (any::<u16>(), prop::collection::vec(length(), 0..4), 0..2000_usize);
    let mut runner =
        TestRunner::new(Cases { cases: 200, failure_persistence: None, ..Cases::default() });
    let done = runner.run(&calls, |(seed, arguments, tail)| {
        let results = arguments.iter().map(|length| length / 4).collect();
        let seed = u32::from(seed);
        let reply_bytes_max = tail + 10_000;
        let offers = Vec::new();
        let call = MixCall { seed, arguments, results, offers, tail, reply_bytes_max };
        let caller = &mut *caller.borrow_mut();
        call.start(&caller.client, 1).unwrap();
        call.check(&caller.reply().unwrap());
        Ok(())
    });
    done.unwrap();
}

/// A credential that moves the data behind the first multiple of the alignment.
#[test]
fn long_credentials_move_the_data_and_lose_nothing() {
    let mut raw = padding(small());
    raw.rpc.msgp_align_bytes = 512;
    let server = KeepServer::start(raw.clone());
    let mut client = padding(client_config());
    client.rpc.msgp_align_bytes = 512;
    let mut caller = Caller::connect_with(client, &server.address, all_words);
    let name = [b'n'; 255];
    for (seed, name_bytes) in (0..).zip([0, 100, 255]) {
        for groups in [0, 16] {
            let user = AuthSys {
                stamp: 1,
                machine_name: &name[..name_bytes],
                uid: 2,
                gid: 3,
                groups: Groups::new(&[7; 16][..groups]).unwrap(),
            };
            caller.client.set_auth_sys(Some(&user)).unwrap();
            keep(&mut caller, seed, 2001, true);
            keep(&mut caller, seed, 511, true);
        }
    }
    let kept = lock(&server.kept);
    assert_eq!(kept.len(), 12);
    assert!(kept.iter().step_by(2).all(|place| place.inline == Some(0)), "those of 2001 bytes");
}

fn alive(peer: &mut RawPeer) {
    let xid = 0x00a1_1fe0;
    peer.send_words(&[xid, 1, 32, MSG, 0, 0, 0, xid, 0, 2, PROGRAM.0, VERSION.0, 0, 0, 0, 0, 0]);
    loop {
        let said = peer.hear().words();
        if said[0] == xid {
            return;
        }
    }
}

/// An RDMA_MSGP of an ECHO, its data behind `gap` bytes.
fn echo(xid: u32, [align, thresh]: [u32; 2], gap: usize, data: &[u8]) -> Vec<u8> {
    let length = data.len() as u32;
    let header = [xid, 1, 32, MSGP, align, thresh, 0, 0, 0];
    let rpc = [xid, 0, 2, PROGRAM.0, VERSION.0, ECHO.0, 0, 0, 0, 0, length];
    let roundup = vec![0; data.len().wrapping_neg() % 4];
    [&bytes_of(&header)[..], &bytes_of(&rpc), &vec![0xee; gap], data, &roundup].concat()
}

/// "The XDR decode MUST skip over the appropriate padding as indicated by the rdma_align and the
/// current XDR stream position", whatever the sender chose, and whatever it put there.
#[test]
fn receive_any_alignment_and_threshold_expect_the_data() {
    let server = Server::with(silent(small()));
    let padding = Server::with(padding(small()));
    for server in [&server, &padding] {
        let mut peer = RawPeer::connect(&server.address);
        for (xid, align) in (1..).zip([0, 1, 2, 3, 4, 7, 8, 64, 100, 512, 1000, 1024, 2048]) {
            for (thresh, length) in [(0, 5), (1, 900), (900, 900), (901, 900), (u32::MAX, 40)] {
                let padded = align > 1 && length >= thresh.max(1);
                let gap = if padded { (align - 80 % align) % align } else { 0 };
                let data = pattern(xid, length as usize);
                peer.send(&echo(xid, [align, thresh], gap as usize, &data));
                let Said::Message(reply) = peer.hear() else { panic!("ended: {align} {thresh}") };
                // The reply of a server that pads is padded, too.
                let found = reply.windows(data.len()).any(|window| window == data);
                assert!(found, "align {align}, thresh {thresh}, {length} bytes: {reply:x?}");
            }
        }
    }
}

#[test]
fn receive_padding_beyond_the_message_expect_garbage_args() {
    for raw in [silent(small()), padding(small())] {
        let server = Server::with(raw);
        let mut peer = RawPeer::connect(&server.address);
        for (align, gap) in [(u32::MAX, 0), (1 << 20, 3000), (4096, 2000), (1024, 943), (2048, 0)] {
            peer.send(&echo(5, [align, 0], gap, &[7; 40]));
            let said = peer.hear().words();
            // Accepted, and GARBAGE_ARGS (RFC 5531 section 9).
            assert_eq!((said[0], said[8], said[12]), (5, 1, 4), "align {align}: {said:x?}");
        }
        alive(&mut peer);
    }
}
