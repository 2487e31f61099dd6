//! Arguments and results under a service of RPCSEC_GSS, sealed and unsealed where they lie
//! (RFC 2203 section 5.3.2).
//!
//! The caller lays out a body of [`sealed_bytes`] and encodes its arguments or results at [`content_at`];
//! the rest is filled in here.

use core::ops::Range;
use spinrpc_proto::rpc::{ContentError, GssService, IntegrityFrame, PrivacyFrame, content};
use spinrpc_proto::xdr::DecodeError;

use crate::random::Confounders;
use crate::token::{ReceiveKeys, SendKeys, TokenError, WRAP_HEAD_BYTES};

const SEQUENCE_BYTES: usize = 4;

/// Length in bytes of a body with `content_bytes` of arguments or results, a multiple of four.
pub const fn sealed_bytes(service: GssService, keys: &SendKeys, content_bytes: usize) -> usize {
    match service {
        GssService::Integrity => integrity_frame(keys, content_bytes).body_bytes(),
        GssService::Privacy => privacy_frame(keys, content_bytes).body_bytes(),
        GssService::None | GssService::Other(_) => content_bytes,
    }
}

const fn integrity_frame(keys: &SendKeys, content_bytes: usize) -> IntegrityFrame {
    IntegrityFrame::around(content_bytes, keys.mic_bytes())
}

const fn privacy_frame(keys: &SendKeys, content_bytes: usize) -> PrivacyFrame {
    PrivacyFrame::around(keys.wrap_bytes(SEQUENCE_BYTES + content_bytes))
}

/// Place of the first byte of arguments or results in a body.
pub const fn content_at(service: GssService) -> usize {
    match service {
        GssService::Integrity => IntegrityFrame::HEAD_BYTES,
        GssService::Privacy => PrivacyFrame::HEAD_BYTES + WRAP_HEAD_BYTES + SEQUENCE_BYTES,
        GssService::None | GssService::Other(_) => 0,
    }
}

/// Flaw of a received body. A call with it deserves GARBAGE_ARGS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// Not framed as the service says.
    #[error("malformed frame: {0}")]
    Frame(#[from] DecodeError),
    /// Checksum or encryption does not check.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// Intact, but not the body of this call.
    #[error(transparent)]
    Content(#[from] ContentError),
}

/// Seals a body whose arguments or results have been encoded in their place, whole words.
/// `sequence` is that of the credential, `counter` that of the tokens of the context.
///
/// # Errors
/// [`TokenError::Length`] if the body is not [`sealed_bytes`] of whole words long, [`TokenError::Protection`] for an unknown service.
pub fn seal_body(
    service: GssService,
    keys: &SendKeys,
    body: &mut [u8],
    sequence: u32,
    counter: u64,
    confounders: &mut impl Confounders,
) -> Result<(), TokenError> {
    let content_bytes = body.len().checked_sub(sealed_bytes(service, keys, 0));
    let content_bytes = content_bytes.filter(|bytes| bytes.is_multiple_of(4));
    let content_bytes = content_bytes.ok_or(TokenError::Length)?;
    match service {
        GssService::None => Ok(()),
        GssService::Other(_) => Err(TokenError::Protection),
        GssService::Integrity => {
            let frame = integrity_frame(keys, content_bytes);
            frame.emit(sequence, body).map_err(|_| TokenError::Length)?;
            let mic = keys.mic(&body[frame.covered], counter);
            body[frame.checksum].copy_from_slice(mic.as_slice());
            Ok(())
        }
        GssService::Privacy => {
            let frame = privacy_frame(keys, content_bytes);
            frame.emit(body).map_err(|_| TokenError::Length)?;
            let token = &mut body[frame.token];
            let number = WRAP_HEAD_BYTES..WRAP_HEAD_BYTES + SEQUENCE_BYTES;
            token[number].copy_from_slice(&sequence.to_be_bytes());
            keys.wrap(token, counter, confounders.next())
        }
    }
}

/// Unseals a body, whose call has the sequence number `sequence`, in memory that no peer can write to; returns
/// the place of arguments or results.
///
/// # Errors
/// [`BodyError`]. The body then holds nothing that may be used.
pub fn unseal_body(
    service: GssService,
    keys: &ReceiveKeys,
    body: &mut [u8],
    sequence: u32,
) -> Result<Range<usize>, BodyError> {
    let protected = match service {
        GssService::None => return Ok(0..body.len()),
        GssService::Other(_) => return Err(TokenError::Protection.into()),
        GssService::Integrity => {
            let frame = IntegrityFrame::parse(body)?;
            keys.verify(&body[frame.covered.clone()], &body[frame.checksum])?;
            frame.covered
        }
        GssService::Privacy => {
            let Range { start, end } = PrivacyFrame::parse(body)?.token;
            let plain = keys.unwrap(&mut body[start..end])?;
            plain.start + start..plain.end + start
        }
    };
    content(&body[protected.clone()], sequence)?;
    Ok(protected.start + SEQUENCE_BYTES..protected.end)
}
