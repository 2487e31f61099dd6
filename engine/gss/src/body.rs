//! Arguments and results under a service of RPCSEC_GSS, sealed and opened where they lie
//! (RFC 2203 section 5.3.2).
//!
//! The caller lays out a body of [`sealed_bytes`] and encodes its arguments or results at
//! [`BodySealing::content_at`]; the rest is filled in here. All of it can be done in steps.

use core::ops::Range;
use spinrpc_proto::rpc::{ContentError, GssService, IntegrityFrame, PrivacyFrame, content};
use spinrpc_proto::xdr::DecodeError;

use crate::random::Confounders;
use crate::token::{Opening, ReceiveKeys, Sealing, SendKeys, Signing, TokenError, WRAP_HEAD_BYTES};

const SEQUENCE_BYTES: usize = 4;

/// Length in bytes of a body with `content_bytes` of arguments or results, a multiple of four.
#[must_use]
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

/// State of a body after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// A further step is needed.
    More,
    /// The body is complete.
    Done,
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

/// A body that is being sealed.
#[derive(Debug)]
pub struct BodySealing(Seal);

#[derive(Debug)]
enum Seal {
    Plain,
    Integrity { frame: IntegrityFrame, signing: Option<Signing>, done: usize, counter: u64 },
    Privacy { frame: PrivacyFrame, sealing: Sealing },
}

impl BodySealing {
    /// Place of the first byte of arguments or results in a body.
    #[must_use]
    pub const fn content_at(service: GssService) -> usize {
        match service {
            GssService::Integrity => IntegrityFrame::HEAD_BYTES,
            GssService::Privacy => PrivacyFrame::HEAD_BYTES + WRAP_HEAD_BYTES + SEQUENCE_BYTES,
            GssService::None | GssService::Other(_) => 0,
        }
    }

    /// Begins to seal a body whose arguments or results have been encoded in their place, whole words.
    /// `sequence` is that of the credential, `counter` that of the tokens of the context.
    ///
    /// # Errors
    /// [`TokenError::Length`] if the content is not whole words or the body is not [`sealed_bytes`] long, [`TokenError::Protection`] for
    /// an unknown service.
    pub fn begin(
        service: GssService,
        keys: &SendKeys,
        body: &mut [u8],
        content_bytes: usize,
        sequence: u32,
        counter: u64,
        confounders: &mut impl Confounders,
    ) -> Result<Self, TokenError> {
        if !content_bytes.is_multiple_of(4)
            || body.len() != sealed_bytes(service, keys, content_bytes)
        {
            return Err(TokenError::Length);
        }
        match service {
            GssService::None => Ok(Self(Seal::Plain)),
            GssService::Other(_) => Err(TokenError::Protection),
            GssService::Integrity => {
                let frame = integrity_frame(keys, content_bytes);
                frame.emit(sequence, body).map_err(|_| TokenError::Length)?;
                let (signing, done) = (Some(keys.begin_mic()), frame.covered.start);
                Ok(Self(Seal::Integrity { frame, signing, done, counter }))
            }
            GssService::Privacy => {
                let frame = privacy_frame(keys, content_bytes);
                frame.emit(body).map_err(|_| TokenError::Length)?;
                let token = &mut body[frame.token.clone()];
                let number = WRAP_HEAD_BYTES..WRAP_HEAD_BYTES + SEQUENCE_BYTES;
                token[number].copy_from_slice(&sequence.to_be_bytes());
                let sealing = keys.begin_wrap(token, counter, confounders.next())?;
                Ok(Self(Seal::Privacy { frame, sealing }))
            }
        }
    }

    /// Seals about `step_bytes` more of the body and with the keys with which it began.
    ///
    /// # Errors
    /// [`TokenError`] if `body` is not the one with which it began; it must not be sent.
    pub fn step(
        &mut self,
        keys: &SendKeys,
        body: &mut [u8],
        step_bytes: usize,
    ) -> Result<Progress, TokenError> {
        let is_done = match &mut self.0 {
            Seal::Plain => true,
            Seal::Privacy { frame, sealing } => {
                sealing.step(keys, &mut body[frame.token.clone()], step_bytes)?
            }
            Seal::Integrity { frame, signing, done, counter } => {
                let is_read = read_step(signing, &body[..frame.covered.end], done, step_bytes);
                if let Some(signing) = signing.take_if(|_| is_read) {
                    let mic = keys.finish_mic(signing, *counter);
                    body[frame.checksum.clone()].copy_from_slice(mic.as_slice());
                }
                is_read
            }
        };
        Ok(if is_done { Progress::Done } else { Progress::More })
    }
}

/// A body that is being opened.
#[derive(Debug)]
pub struct BodyOpening {
    sequence: u32,
    state: Open,
}

#[derive(Debug)]
enum Open {
    Plain,
    Integrity { frame: IntegrityFrame, signing: Option<Signing>, done: usize },
    Privacy { frame: PrivacyFrame, opening: Opening },
}

impl BodyOpening {
    /// Begins to open a body, whose call has the sequence number `sequence`. It has to be memory that
    /// no peer can write to.
    ///
    /// # Errors
    /// [`BodyError`], as far as frame and header show.
    pub fn begin(
        service: GssService,
        keys: &ReceiveKeys,
        body: &mut [u8],
        sequence: u32,
    ) -> Result<Self, BodyError> {
        let state = match service {
            GssService::None => Open::Plain,
            GssService::Other(_) => return Err(TokenError::Protection.into()),
            GssService::Integrity => {
                let frame = IntegrityFrame::parse(body)?;
                let done = frame.covered.start;
                Open::Integrity { frame, signing: Some(keys.begin_verify()), done }
            }
            GssService::Privacy => {
                let frame = PrivacyFrame::parse(body)?;
                let opening = keys.begin_unwrap(&mut body[frame.token.clone()])?;
                Open::Privacy { frame, opening }
            }
        };
        Ok(Self { sequence, state })
    }

    /// Opens about `step_bytes` more of the body and with the keys with which it began; the place of
    /// arguments or results when all has been checked. Until then the body must not be used.
    ///
    /// # Errors
    /// [`BodyError`].
    pub fn step(
        &mut self,
        keys: &ReceiveKeys,
        body: &mut [u8],
        step_bytes: usize,
    ) -> Result<Option<Range<usize>>, BodyError> {
        let protected = match &mut self.state {
            Open::Plain => return Ok(Some(0..body.len())),
            Open::Integrity { frame, signing, done } => {
                if !read_step(signing, &body[..frame.covered.end], done, step_bytes) {
                    return Ok(None);
                }
                let signing = signing.take().ok_or(TokenError::Checksum)?;
                keys.finish_verify(signing, &body[frame.checksum.clone()])?;
                frame.covered.clone()
            }
            Open::Privacy { frame, opening } => {
                let token = &mut body[frame.token.clone()];
                let Some(plain) = opening.step(keys, token, step_bytes)? else { return Ok(None) };
                plain.start + frame.token.start..plain.end + frame.token.start
            }
        };
        content(&body[protected.clone()], self.sequence)?;
        Ok(Some(protected.start + SEQUENCE_BYTES..protected.end))
    }
}

/// Signs about `step_bytes` more of what is covered; `true` at its end.
fn read_step(
    signing: &mut Option<Signing>,
    covered: &[u8],
    done: &mut usize,
    step_bytes: usize,
) -> bool {
    let end = done.saturating_add(step_bytes.max(1)).min(covered.len());
    if let Some(signing) = signing {
        signing.update(&covered[*done..end]);
    }
    *done = end;
    end == covered.len()
}
