//! The wire types of RPCSEC_GSS: credentials, context creation, frames of bodies, verdicts on sequence
//! numbers. What can be read can be written and read again.

use spinrpc_proto::rpc::{
    Admission, CallHeader, GSS_HANDLE_MAX_BYTES, GssCredential, GssInitResult, GssProcedure,
    GssService, IntegrityFrame, PrivacyFrame, SEQUENCE_MAX, SequenceWindow, content,
    parse_init_arguments, signed_bytes,
};
use spinrpc_proto::xdr::{Writer, roundup4};

use crate::script::Script;

/// One byte chooses the parser; the rest is its input.
pub fn run(data: &[u8]) {
    let Some((choice, input)) = data.split_first() else { return };
    match choice % 6 {
        0 => credential(input),
        1 => call(input),
        2 => creation(input),
        3 => integrity(input),
        4 => privacy(input),
        _ => window(input),
    }
}

fn credential(body: &[u8]) {
    let Ok(credential) = GssCredential::parse(body) else { return };
    assert_eq!(credential.buffer_len(), body.len());
    assert!(credential.handle.len() <= GSS_HANDLE_MAX_BYTES);
    let mut emitted = vec![0; body.len()];
    assert_eq!(credential.emit(&mut emitted), Ok(body.len()));
    assert_eq!(GssCredential::parse(&emitted), Ok(credential));
    match (credential.procedure, credential.service) {
        (GssProcedure::Init, _) => assert!(credential.handle.is_empty()),
        (GssProcedure::Data | GssProcedure::Destroy, GssService::Other(service)) => {
            panic!("service {service} passed")
        }
        _ => {}
    }
}

/// The verifier covers all before it, whatever the lengths.
fn call(message: &[u8]) {
    let Ok((header, arguments_at)) = CallHeader::parse(message) else { return };
    let signed = signed_bytes(arguments_at, &header.verifier);
    assert_eq!(signed, 24 + 8 + roundup4(header.credential.body.len()));
    credential(header.credential.body);
}

fn creation(input: &[u8]) {
    if let Ok(token) = parse_init_arguments(input) {
        assert_eq!(input.len(), 4 + roundup4(token.len()));
    }
    let Ok(result) = GssInitResult::parse(input) else { return };
    let mut written = vec![0; result.buffer_len()];
    assert_eq!(written.len(), input.len());
    let mut writer = Writer::new(&mut written);
    result.write(&mut writer);
    assert_eq!(writer.finish(), Ok(input.len()));
    assert_eq!(GssInitResult::parse(&written), Ok(result));
}

fn integrity(body: &[u8]) {
    let Ok(frame) = IntegrityFrame::parse(body) else { return };
    assert_eq!(frame.body_bytes(), body.len());
    assert!(frame.covered.end < frame.checksum.start && frame.checksum.end <= body.len());
    let covered = &body[frame.covered.clone()];
    let sequence = u32::from_be_bytes(*covered.first_chunk().unwrap());
    let inside = content(covered, sequence).unwrap();
    assert_eq!(inside, &body[frame.content()]);
    assert!(content(covered, !sequence).is_err());
    assert_eq!(IntegrityFrame::around(inside.len(), frame.checksum.len()), frame);
    let mut emitted = body.to_vec();
    frame.emit(sequence, &mut emitted).unwrap();
    assert_eq!(emitted[..frame.checksum.end], body[..frame.checksum.end]);
}

fn privacy(body: &[u8]) {
    let Ok(frame) = PrivacyFrame::parse(body) else { return };
    assert_eq!(frame.body_bytes(), body.len());
    assert_eq!(PrivacyFrame::around(frame.token.len()), frame);
    let mut emitted = body.to_vec();
    frame.emit(&mut emitted).unwrap();
    assert_eq!(emitted[..frame.token.end], body[..frame.token.end]);
}

/// Numbers that go up and down by what the script says: each is fresh once at most. Windows of several sizes, of one of
/// which a word does not divide a power of two.
fn window(input: &[u8]) {
    admit::<1>(&mut Script::new(input));
    admit::<3>(&mut Script::new(input));
    admit::<8>(&mut Script::new(input));
}

fn admit<const WORDS: usize>(script: &mut Script<'_>) {
    let (mut window, kept) = (SequenceWindow::<WORDS>::new(), SequenceWindow::<WORDS>::KEPT);
    let (mut at, mut seen) = (if script.flag() { SEQUENCE_MAX - 100 } else { 0 }, Vec::new());
    while !script.is_over() {
        let step = u32::from(script.byte());
        at = if script.flag() { at.saturating_add(step) } else { at.saturating_sub(step) };
        let largest = seen.iter().copied().max();
        let is_below = largest.is_some_and(|largest: u32| at.saturating_add(kept) <= largest);
        let expected = match at {
            _ if at > SEQUENCE_MAX => Admission::TooLarge,
            _ if is_below || seen.contains(&at) => Admission::Replay,
            _ => Admission::Fresh,
        };
        assert_eq!(window.admit(at), expected);
        if expected == Admission::Fresh {
            seen.push(at);
        }
    }
}
