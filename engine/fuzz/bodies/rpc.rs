//! XDR, and the small messages that are read with it: the headers of RPC calls and replies, AUTH_SYS
//! credentials, and the Connection Configuration Protocol. What can be read can be written and read
//! again.

use spinrpc_proto::config_proto::{
    ALIGN_MAX_BYTES, BODY_BYTES, ConfigReply, ConfigRequest, Protection,
};
use spinrpc_proto::rpc::{
    AuthFlavor, AuthSys, CallHeader, ReplyHeader, message_direction, opens_with,
};
use spinrpc_proto::xdr::{DecodeError, Reader, Writer, roundup4};

use crate::script::Script;

/// One byte chooses the parser; the rest is its input.
pub fn run(data: &[u8]) {
    let Some((choice, input)) = data.split_first() else { return };
    match choice % 5 {
        0 => xdr(input),
        1 => call(input),
        2 => reply(input),
        3 => auth_sys(input),
        _ => configuration(input),
    }
}

/// Half of the input says what to read, the other half is read.
fn xdr(input: &[u8]) {
    let (script, bytes) = input.split_at(input.len() / 2);
    let mut script = Script::new(script);
    let mut reader = Reader::new(bytes);
    while !script.is_over() {
        let before = reader.position();
        let read = read_item(&mut script, &mut reader, bytes);
        assert_eq!(reader.position() + reader.remaining(), bytes.len());
        assert_eq!(reader.rest(), &bytes[reader.position()..]);
        match read {
            Ok(written) => assert_eq!(before + written, reader.position()),
            Err(_) => assert_eq!(reader.position(), before, "a failed read moved the reader"),
        }
    }
    assert_eq!(reader.finish().is_ok(), reader.rest().is_empty());
}

/// Reads one item and writes it, the same but for its roundup; returns how many bytes that takes.
fn read_item(
    script: &mut Script<'_>,
    reader: &mut Reader<'_>,
    bytes: &[u8],
) -> Result<usize, DecodeError> {
    let (mut buffer, at) = ([0; 256], reader.position());
    let mut writer = Writer::new(&mut buffer);
    let (choice, max) = (script.byte() % 8, script.below(128));
    match choice {
        0 => writer.u32(reader.u32()?),
        1 => writer.i32(reader.i32()?),
        2 => writer.u64(reader.u64()?),
        3 => writer.i64(reader.i64()?),
        4 => writer.bool(reader.bool()?),
        5 => writer.fixed(bounded(reader.fixed(max)?, max)),
        6 => writer.opaque(bounded(reader.opaque(max)?, max)),
        _ if script.flag() => return reader.skip(max).map(|()| max),
        _ => writer.string(reader.string(max)?),
    }
    let written = writer.finish().unwrap();
    assert_eq!(written, roundup4(written));
    let data_bytes = match choice {
        5 => max,
        6 | 7 => 4 + u32::from_be_bytes(buffer[..4].try_into().unwrap()) as usize,
        _ => written,
    };
    assert_eq!(buffer[..data_bytes], bytes[at..at + data_bytes]);
    Ok(written)
}

fn bounded(bytes: &[u8], max: usize) -> &[u8] {
    assert!(bytes.len() <= max);
    bytes
}

fn call(message: &[u8]) {
    let Ok((header, arguments_at)) = CallHeader::parse(message) else { return };
    assert!(message.get(arguments_at..).is_some());
    let mut emitted = vec![0; header.buffer_len()];
    assert_eq!(header.emit(&mut emitted), arguments_at);
    assert_eq!(CallHeader::parse(&emitted), Ok((header, arguments_at)));
    let direction = message_direction(message).unwrap();
    assert!(opens_with(message, header.xid, direction));
    if header.credential.flavor == AuthFlavor::Sys {
        auth_sys(header.credential.body);
    }
    let is_known = AuthSys::parse(header.credential.body).is_ok();
    let is_sys = header.credential.flavor == AuthFlavor::Sys && is_known;
    assert_eq!(Protection::Sys.check(&header.credential).is_ok(), is_sys);
}

fn reply(message: &[u8]) {
    let Ok((header, results_at)) = ReplyHeader::parse(message) else { return };
    assert!(message.get(results_at..).is_some());
    let mut emitted = vec![0; header.buffer_len()];
    assert_eq!(header.emit(&mut emitted), results_at);
    assert_eq!(ReplyHeader::parse(&emitted), Ok((header, results_at)));
    assert!(opens_with(message, header.xid, message_direction(message).unwrap()));
}

fn auth_sys(body: &[u8]) {
    let Ok(credential) = AuthSys::parse(body) else { return };
    let mut emitted = vec![0; body.len()];
    assert_eq!(credential.emit(&mut emitted), Ok(body.len()));
    assert_eq!(AuthSys::parse(&emitted), Ok(credential));
}

/// Any three words, and nothing else.
fn configuration(body: &[u8]) {
    assert_eq!(ConfigRequest::parse(body).is_ok(), body.len() == BODY_BYTES);
    if let (Ok(request), Ok(reply)) = (ConfigRequest::parse(body), ConfigReply::parse(body)) {
        assert!(request.emit() == body && reply.emit() == body);
        let align = reply.usable_align_bytes();
        assert!(align.is_none_or(|align| align.is_multiple_of(4) && align <= ALIGN_MAX_BYTES));
    }
}
