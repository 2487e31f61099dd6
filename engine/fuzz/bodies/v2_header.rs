//! The version-two transport header, alone or together with version one: what passes the check is of a version
//! that is spoken, comes out of an encoder as it came in, and can be answered in that version.

use spinrpc_proto::limits::Limits;
use spinrpc_proto::rdma::{Body, HeaderError, HeaderView, MessageType, RdmaError};
use spinrpc_proto::rpc::Direction;
use spinrpc_proto::version::{TransportVersion, Versions};

use crate::script::Script;
use crate::wire::{self, OwnedLists};

/// One byte chooses the versions that are spoken, two where to cut the header; the rest is the message.
pub fn run(data: &[u8]) {
    let mut script = Script::new(data);
    let versions = versions(&mut script);
    let limits = Limits { versions, ..Limits::DEFAULT };
    let cut = usize::from(script.u16());
    let message = script.bytes(usize::MAX);
    match HeaderView::new_checked(message, &limits) {
        Ok(view) => {
            assert_eq!(view.header_bytes() + view.payload().len(), message.len());
            let is_error = view.message_type() == MessageType::Error;
            assert!(is_error || versions.speaks(view.transport_version()));
            if view.transport_version() == TransportVersion::Two {
                check_two(&view, message, &limits);
            }
            let cut = cut % view.header_bytes();
            assert!(HeaderView::new_checked(&message[..cut], &limits).is_err(), "cut at {cut}");
        }
        Err(error) => check_error(&error, message, versions),
    }
}

pub(crate) fn versions(script: &mut Script<'_>) -> Versions {
    match script.byte() % 3 {
        0 => Versions::Both,
        1 => Versions::Two,
        _ => Versions::One,
    }
}

/// The header read and written again is the same, byte for byte, but for a credit word of zero and for
/// the padding of information.
fn check_two(view: &HeaderView<'_>, message: &[u8], limits: &Limits) {
    let (xid, credits) = (view.xid(), view.credits().max(1));
    let form = (TransportVersion::Two, view.direction().unwrap());
    let is_optional = view.message_type() == MessageType::Optional;
    let option = wire::word(message, 5).filter(|_| is_optional);
    let info_bytes =
        wire::word(message, 6).filter(|_| is_optional).map_or(0, |bytes| bytes as usize);
    let mut emitted = match (view.error(), option) {
        (Some(RdmaError::Other(_)), _) => return,
        (Some(error), _) => wire::error(xid, 2, credits, error),
        (_, Some(option)) => {
            let info = &message[28..28 + info_bytes];
            wire::header(form, xid, credits, Body::Optional { option, info })
        }
        _ => OwnedLists::of(view).header(form, view.message_type(), xid, credits, None),
    };
    let again = HeaderView::new_checked(&emitted, limits).unwrap();
    assert_eq!(again.direction(), view.direction());
    assert_eq!((again.message_type(), again.error()), (view.message_type(), view.error()));
    assert_eq!(emitted.len(), view.header_bytes());
    emitted[8..12].copy_from_slice(&message[8..12]);
    let compared = emitted.len() - (info_bytes.wrapping_neg() & 3);
    assert_eq!(emitted[..compared], message[..compared]);
    if view.error().is_none() {
        assert_eq!(wire::check_answer(view, limits), (2, Some(Direction::Reply)));
    }
}

/// An error names the message that it is about, and blames the version only if that is not spoken.
fn check_error(error: &HeaderError, message: &[u8], versions: Versions) {
    let word = |index| wire::word(message, index);
    let speaks =
        |word| TransportVersion::from_wire(word).is_some_and(|version| versions.speaks(version));
    match *error {
        HeaderError::TooShort => {}
        HeaderError::Version { xid, version } => {
            assert!(word(0) == Some(xid.0) && word(1) == Some(version) && !speaks(version));
        }
        HeaderError::Malformed { xid, version, direction, .. } => {
            assert!(word(0) == Some(xid.0) && word(1).is_none_or(|word| word == version.to_wire()));
            let kind = word(3).and_then(|kind| MessageType::from_wire(version, kind));
            let said = word(4).and_then(Direction::from_wire);
            let has_direction = version == TransportVersion::Two && kind.is_some();
            assert!(versions.speaks(version) && direction == said.filter(|_| has_direction));
        }
    }
}
