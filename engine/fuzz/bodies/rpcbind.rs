//! Answers of a rpcbind daemon: records of a byte stream, answers, lists of registrations, and the
//! universal addresses in them. All that can be read can be written and read again.

use spinrpc::Xid;
use spinrpc::rpcbind::record::{FRAGMENTS_MAX, MESSAGE_BYTES_MAX, mark, read};
use spinrpc::rpcbind::wire::{self, AnswerError, Entry, Mapping};
use spinrpc::rpcbind::{Endpoint, Netid};
use spinrpc_proto::xdr::{Reader, Writer};

/// One byte chooses the parser; the rest is its input.
pub fn run(data: &[u8]) {
    let Some((choice, input)) = data.split_first() else { return };
    match choice % 5 {
        0 => record(input),
        1 => answer(input),
        2 => entries(input),
        3 => mappings(input),
        _ => address(input),
    }
}

/// A whole record, then its answer and its list, as the client takes them.
fn record(stream: &[u8]) {
    let mut rest = stream;
    let Ok(message) = read(&mut rest) else { return };
    assert!(message.len() <= MESSAGE_BYTES_MAX && message.len() <= stream.len());
    let marks = stream.len() - rest.len() - message.len();
    assert!((4..=4 * FRAGMENTS_MAX).contains(&marks) && marks.is_multiple_of(4));
    let marked = mark(&message).unwrap();
    assert_eq!(read(&mut &marked[..]).unwrap(), message);
    answer(&message);
}

fn answer(message: &[u8]) {
    let xid = message.first_chunk().map_or(Xid(0), |word| Xid(u32::from_be_bytes(*word)));
    let answer = wire::parse_answer(message, xid);
    assert!(!matches!(answer, Err(AnswerError::OtherCall { .. })));
    let other = Xid(!xid.0);
    assert!(wire::parse_answer(message, other).is_err(), "an answer to any call");
    if let Ok(Ok(results)) = answer {
        assert!(message.ends_with(results));
        entries(results);
        mappings(results);
    }
}

fn entries(bytes: &[u8]) {
    let Ok(entries) = wire::parse_entries(&mut Reader::new(bytes)) else { return };
    for entry in &entries {
        // What was not UTF-8 is now, so that it is the same from here on.
        let written = written(|writer| entry.write(writer));
        assert_eq!(Entry::parse(&mut Reader::new(&written)).as_ref(), Ok(entry));
        address(entry.address.as_bytes());
        let Some(mapping) = Mapping::of(entry) else { continue };
        assert!(mapping.port <= 0xffff);
    }
}

fn mappings(bytes: &[u8]) {
    let Ok(mappings) = wire::parse_mappings(&mut Reader::new(bytes)) else { return };
    for mapping in mappings {
        let written = written(|writer| mapping.write(writer));
        assert_eq!(Mapping::parse(&mut Reader::new(&written)), Ok(mapping));
        let known = [6, 17].contains(&mapping.protocol) && (1..=0xffff).contains(&mapping.port);
        if known {
            assert_eq!(Mapping::of(&mapping.to_entry()), Some(mapping));
        }
    }
}

/// Whatever is taken is an address of its netid, and says the same when written.
fn address(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    for netid in [Netid::Rdma, Netid::Rdma6, Netid::Shm] {
        let Ok(endpoint) = Endpoint::parse(netid, text) else { continue };
        assert_eq!(endpoint.netid(), netid);
        assert_ne!(endpoint.port(), Some(0));
        assert_eq!(Endpoint::parse(netid, &endpoint.universal()), Ok(endpoint));
    }
}

fn written(write: impl Fn(&mut Writer<'_>)) -> Vec<u8> {
    let mut counter = Writer::new(&mut []);
    write(&mut counter);
    let mut bytes = vec![0; counter.len()];
    write(&mut Writer::new(&mut bytes));
    bytes
}
