//! RPCSEC_GSS version 1 (RFC 2203): the credential, context creation, and the frames around
//! protected arguments and results.
//!
//! Nothing here knows a key. Tokens and checksums are opaque, and frames name places in a message,
//! so that the caller can seal and open it where it lies.

use core::fmt;
use core::ops::Range;

use super::auth::{AUTH_BODY_MAX_BYTES, AuthStat, OpaqueAuth};
use super::reply::AcceptStatus;
use crate::xdr::{DecodeError, Overflow, Reader, Writer, padding, roundup4};

/// The version in the credential (RFC 2203 section 5.1). Others are AUTH_BADCRED.
pub const GSS_VERSION: u32 = 1;

/// Words of a credential body: version, procedure, sequence number, service, length of the handle.
const CREDENTIAL_WORDS: usize = 5;

/// Longest context handle that a credential has room for.
pub const GSS_HANDLE_MAX_BYTES: usize = AUTH_BODY_MAX_BYTES - CREDENTIAL_WORDS * 4;

/// Longest token of context creation that is accepted. Kerberos tickets with a PAC take up to about
/// 60 KB.
pub const GSS_TOKEN_MAX_BYTES: usize = 65_536;

/// Longest checksum of a body that is accepted: as long as a verifier may be.
pub const GSS_CHECKSUM_MAX_BYTES: usize = AUTH_BODY_MAX_BYTES;

/// Security flavors of Kerberos by service, as MOUNT and SECINFO list them (RFC 2623 section 2.1).
/// They never stand in a call.
pub mod pseudo_flavor {
    use super::GssService;

    /// Kerberos without protection of the body.
    pub const KRB5: u32 = 390_003;
    /// Kerberos with integrity.
    pub const KRB5I: u32 = 390_004;
    /// Kerberos with privacy.
    pub const KRB5P: u32 = 390_005;

    /// The flavor of Kerberos with this service; `None` for services of no known number.
    #[must_use]
    pub const fn of(service: GssService) -> Option<u32> {
        match service {
            GssService::None => Some(KRB5),
            GssService::Integrity => Some(KRB5I),
            GssService::Privacy => Some(KRB5P),
            GssService::Other(_) => None,
        }
    }

    /// The service that a flavor of Kerberos stands for.
    #[must_use]
    pub const fn service(flavor: u32) -> Option<GssService> {
        match flavor {
            KRB5 => Some(GssService::None),
            KRB5I => Some(GssService::Integrity),
            KRB5P => Some(GssService::Privacy),
            _ => None,
        }
    }
}

/// The purpose of a call (`rpc_gss_proc_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum GssProcedure {
    /// RPCSEC_GSS_DATA, 0: a call of the application.
    Data = 0,
    /// RPCSEC_GSS_INIT, 1: the first token of a new context.
    Init,
    /// RPCSEC_GSS_CONTINUE_INIT, 2: a further token.
    ContinueInit,
    /// RPCSEC_GSS_DESTROY, 3: the end of a context.
    Destroy,
}

impl GssProcedure {
    /// The procedure with the number `value` on the wire, if there is one.
    #[must_use]
    pub const fn from_wire(value: u32) -> Option<Self> {
        match value {
            0 => Some(Self::Data),
            1 => Some(Self::Init),
            2 => Some(Self::ContinueInit),
            3 => Some(Self::Destroy),
            _ => None,
        }
    }

    /// The number on the wire.
    pub const fn to_wire(self) -> u32 {
        self as u32
    }

    /// Creates a context, so that a key does not exist yet: the verifier is AUTH_NONE.
    #[must_use]
    pub const fn is_creation(self) -> bool {
        matches!(self, Self::Init | Self::ContinueInit)
    }
}

open_numbers! {
    /// Protection of arguments and results (`rpc_gss_service_t`).
    GssService {
        /// rpc_gss_svc_none, 1: only the header is authenticated.
        1 => None,
        /// rpc_gss_svc_integrity, 2: the body has a checksum.
        2 => Integrity,
        /// rpc_gss_svc_privacy, 3: the body is encrypted.
        3 => Privacy,
    } else {
        /// Any other number; only in calls that create a context, where it means nothing.
        Other
    }
}

impl GssService {
    /// Arguments and results are framed; none of their items can be placed directly (RFC 8166
    /// section 8.2.2).
    #[must_use]
    pub const fn protects_body(self) -> bool {
        matches!(self, Self::Integrity | Self::Privacy)
    }
}

/// The body of a credential of flavor RPCSEC_GSS (`rpc_gss_cred_t`, RFC 2203 section 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GssCredential<'a> {
    /// The purpose of the call.
    pub procedure: GssProcedure,
    /// Number of the call within its context. Undefined in calls that create a context.
    pub sequence: u32,
    /// Protection of the body. Undefined in calls that create a context.
    pub service: GssService,
    /// The context, as the responder named it; empty in INIT. At most [`GSS_HANDLE_MAX_BYTES`].
    pub handle: &'a [u8],
}

impl<'a> GssCredential<'a> {
    /// Reads the body of a credential of flavor [`super::AuthFlavor::Gss`].
    ///
    /// # Errors
    /// Its first flaw, with offsets from its start. The call it came with deserves
    /// [`AuthStat::BadCred`].
    pub fn parse(body: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(body);
        match reader.u32()? {
            GSS_VERSION => {}
            value => return Err(DecodeError::BadEnum { at: 0, value }),
        }
        let value = reader.u32()?;
        let procedure =
            GssProcedure::from_wire(value).ok_or(DecodeError::BadEnum { at: 4, value })?;
        let sequence = reader.u32()?;
        let service = GssService::from_wire(reader.u32()?);
        let at = reader.position();
        let handle = reader.opaque(GSS_HANDLE_MAX_BYTES)?;
        reader.finish()?;
        let credential = Self { procedure, sequence, service, handle };
        credential.check(at)?;
        Ok(credential)
    }

    /// RFC 2203 section 5.2.2: "In a creation request, the seq_num and service fields are undefined
    /// and both must be ignored by the server." The handle of INIT is empty.
    fn check(&self, handle_at: usize) -> Result<(), DecodeError> {
        match (self.procedure, self.service) {
            (GssProcedure::Init, _) if !self.handle.is_empty() => {
                Err(DecodeError::TooLong { at: handle_at, length: self.handle.len(), max: 0 })
            }
            (GssProcedure::Data | GssProcedure::Destroy, GssService::Other(value)) => {
                Err(DecodeError::BadEnum { at: handle_at - 4, value })
            }
            _ => Ok(()),
        }
    }

    /// Bytes which [`Self::emit`] writes.
    pub const fn buffer_len(&self) -> usize {
        CREDENTIAL_WORDS * 4 + roundup4(self.handle.len())
    }

    /// Writes the body of a credential at the start of `buffer`; returns its length in bytes.
    ///
    /// # Errors
    /// [`Overflow`] if it does not fit. [`AUTH_BODY_MAX_BYTES`] are always enough for a handle
    /// within its bound.
    pub fn emit(&self, buffer: &mut [u8]) -> Result<usize, Overflow> {
        debug_assert!(self.handle.len() <= GSS_HANDLE_MAX_BYTES, "handle too long");
        let mut writer = Writer::new(buffer);
        writer.u32(GSS_VERSION);
        writer.u32(self.procedure.to_wire());
        writer.u32(self.sequence);
        writer.u32(self.service.to_wire());
        writer.opaque(self.handle);
        writer.finish()
    }
}

/// Length of the part of a call that its verifier covers: from the XID to the end of the credential
/// (RFC 2203 section 5.3.1). The header is `arguments_at` bytes long and ends with `verifier`.
pub const fn signed_bytes(arguments_at: usize, verifier: &OpaqueAuth<'_>) -> usize {
    arguments_at.saturating_sub(8 + roundup4(verifier.body.len()))
}

/// Reads the arguments of INIT and CONTINUE_INIT, one token (`rpc_gss_init_arg`, RFC 2203 section
/// 5.2.2).
///
/// # Errors
/// Their first flaw; the call deserves GARBAGE_ARGS.
pub fn parse_init_arguments(arguments: &[u8]) -> Result<&[u8], DecodeError> {
    let mut reader = Reader::new(arguments);
    let token = reader.opaque(GSS_TOKEN_MAX_BYTES)?;
    reader.finish()?;
    Ok(token)
}

/// Results of INIT and CONTINUE_INIT (`rpc_gss_init_res`, RFC 2203 section 5.2.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GssInitResult<'a> {
    /// Names the context in all calls to come. At most [`GSS_HANDLE_MAX_BYTES`].
    pub handle: &'a [u8],
    /// Outcome (`gss_major`): [`Self::COMPLETE`], [`Self::CONTINUE_NEEDED`], or an error.
    pub major: u32,
    /// Detail of the mechanism (`gss_minor`).
    pub minor: u32,
    /// Most calls of this context that may be in flight (`seq_window`).
    pub window: u32,
    /// Token for the requester; may be empty. At most [`GSS_TOKEN_MAX_BYTES`].
    pub token: &'a [u8],
}

impl<'a> GssInitResult<'a> {
    /// GSS_S_COMPLETE: the context is established.
    pub const COMPLETE: u32 = 0;

    /// GSS_S_CONTINUE_NEEDED: the requester has to send a further token.
    pub const CONTINUE_NEEDED: u32 = 1;

    /// Reads the results.
    ///
    /// # Errors
    /// Their first flaw; the context is not usable.
    pub fn parse(results: &'a [u8]) -> Result<Self, DecodeError> {
        Self::read(&mut Reader::new(results))
    }

    /// Reads the results that begin where `reader` stands, and end where it ends.
    ///
    /// # Errors
    /// As [`Self::parse`].
    pub fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let parsed = Self {
            handle: reader.opaque(GSS_HANDLE_MAX_BYTES)?,
            major: reader.u32()?,
            minor: reader.u32()?,
            window: reader.u32()?,
            token: reader.opaque(GSS_TOKEN_MAX_BYTES)?,
        };
        reader.finish()?;
        Ok(parsed)
    }

    /// Bytes which [`Self::write`] writes.
    pub const fn buffer_len(&self) -> usize {
        5 * 4 + roundup4(self.handle.len()) + roundup4(self.token.len())
    }

    /// Writes the results into a stream.
    pub fn write(&self, writer: &mut Writer<'_>) {
        writer.opaque(self.handle);
        writer.u32(self.major);
        writer.u32(self.minor);
        writer.u32(self.window);
        writer.opaque(self.token);
    }
}

/// A body under rpc_gss_svc_integrity (`rpc_gss_integ_data`, RFC 2203 section 5.3.2.2): places in
/// it, as offsets from its start.
///
/// ```text
/// length | sequence | arguments or results | length | checksum | roundup
///        |<---------- covered ------------>|
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IntegrityFrame {
    /// Bytes which the checksum covers: the sequence number and the arguments or results.
    pub covered: Range<usize>,
    /// The checksum.
    pub checksum: Range<usize>,
}

impl IntegrityFrame {
    /// Bytes before the arguments or results.
    pub const HEAD_BYTES: usize = 8;

    /// The frame around arguments or results of this length in bytes.
    pub const fn around(content_bytes: usize, checksum_bytes: usize) -> Self {
        let covered_end = Self::HEAD_BYTES + roundup4(content_bytes);
        let checksum_at = covered_end + 4;
        Self { covered: 4..covered_end, checksum: checksum_at..checksum_at + checksum_bytes }
    }

    /// Finds the places in a body. The sequence number is checked by [`content`], after the
    /// checksum.
    ///
    /// # Errors
    /// Its first flaw; GARBAGE_ARGS in a call.
    pub fn parse(body: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(body);
        let covered = opaque_range(&mut reader, body.len())?;
        whole_words(&covered)?;
        let checksum = opaque_range(&mut reader, GSS_CHECKSUM_MAX_BYTES)?;
        reader.finish()?;
        Ok(Self { covered, checksum })
    }

    /// Place of the arguments or results.
    pub const fn content(&self) -> Range<usize> {
        Self::HEAD_BYTES..self.covered.end
    }

    /// Length of the body.
    pub const fn body_bytes(&self) -> usize {
        roundup4(self.checksum.end)
    }

    /// Writes everything but the arguments or results and the checksum into a body in which those
    /// have their places.
    ///
    /// # Errors
    /// [`Overflow`] if the body is not [`Self::body_bytes`] long or a length exceeds a word.
    pub fn emit(&self, sequence: u32, body: &mut [u8]) -> Result<(), Overflow> {
        let overflow = Overflow { needed_bytes: self.body_bytes() };
        let covered = u32::try_from(self.covered.len()).map_err(|_| overflow)?;
        let checksum = u32::try_from(self.checksum.len()).map_err(|_| overflow)?;
        put_word(body, 0, covered).ok_or(overflow)?;
        put_word(body, 4, sequence).ok_or(overflow)?;
        put_word(body, self.covered.end, checksum).ok_or(overflow)?;
        clear_padding(body, self.checksum.end).ok_or(overflow)
    }
}

/// A body under rpc_gss_svc_privacy (`rpc_gss_priv_data`, RFC 2203 section 5.3.2.3): one token.
///
/// ```text
/// length | token of the sequence number and the arguments or results | roundup
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrivacyFrame {
    /// The token, as offsets from the start of the body.
    pub token: Range<usize>,
}

impl PrivacyFrame {
    /// Bytes before the token.
    pub const HEAD_BYTES: usize = 4;

    /// The frame around a token of this length in bytes.
    pub const fn around(token_bytes: usize) -> Self {
        Self { token: Self::HEAD_BYTES..Self::HEAD_BYTES + token_bytes }
    }

    /// Finds the token in a body.
    ///
    /// # Errors
    /// Its first flaw; GARBAGE_ARGS in a call.
    pub fn parse(body: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(body);
        let token = opaque_range(&mut reader, body.len())?;
        reader.finish()?;
        Ok(Self { token })
    }

    /// Length of the body.
    pub const fn body_bytes(&self) -> usize {
        roundup4(self.token.end)
    }

    /// Writes everything but the token into a body in which that has its place.
    ///
    /// # Errors
    /// [`Overflow`] if the body is not [`Self::body_bytes`] long or a length exceeds a word.
    pub fn emit(&self, body: &mut [u8]) -> Result<(), Overflow> {
        let overflow = Overflow { needed_bytes: self.body_bytes() };
        let length = u32::try_from(self.token.len()).map_err(|_| overflow)?;
        put_word(body, 0, length).ok_or(overflow)?;
        clear_padding(body, self.token.end).ok_or(overflow)
    }
}

/// The arguments or results in bytes that were protected (`rpc_gss_data_t`): those the checksum of a
/// body covers, or those a token contained. `sequence` is that of the credential of the call.
///
/// # Errors
/// [`ContentError`]; GARBAGE_ARGS in a call.
pub fn content(protected: &[u8], sequence: u32) -> Result<&[u8], ContentError> {
    whole_words(&(0..protected.len()))?;
    let mut reader = Reader::new(protected);
    let found = reader.u32()?;
    if found != sequence {
        return Err(ContentError::Sequence { found, expected: sequence });
    }
    Ok(reader.rest())
}

/// Flaw of bytes that were protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentError {
    /// The body is not a sequence number and whole words.
    Malformed(DecodeError),
    /// The body belongs to another call.
    Sequence {
        /// Sequence number in the body.
        found: u32,
        /// Sequence number of the call.
        expected: u32,
    },
}

impl From<DecodeError> for ContentError {
    fn from(cause: DecodeError) -> Self {
        Self::Malformed(cause)
    }
}

impl fmt::Display for ContentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(cause) => write!(f, "malformed protected body: {cause}"),
            Self::Sequence { found, expected } => {
                write!(f, "protected body of call {found} in call {expected}")
            }
        }
    }
}

impl core::error::Error for ContentError {}

/// Flaw of a call under RPCSEC_GSS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GssFault {
    /// The credential cannot be read, or has an unknown version, procedure or service.
    Credential,
    /// The handle names no context, or one that has expired.
    UnknownContext,
    /// The verifier does not check.
    Verifier,
    /// The sequence number is larger than [`super::SEQUENCE_MAX`].
    SequenceTooLarge,
    /// The sequence number was seen before or is below the window.
    Replay,
    /// The body is not protected as its service says.
    Body,
}

/// Reaction of a responder to a call under RPCSEC_GSS that it does not execute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GssAnswer {
    /// Denied with AUTH_ERROR. Such replies have no verifier.
    Deny(AuthStat),
    /// Accepted with this status, and with a verifier.
    Accept(AcceptStatus),
    /// No answer. Over RDMA the connection is closed, because the call would keep its credit.
    Close,
}

impl GssFault {
    /// The reaction that RFC 2203 section 5.3.3.3 asks for.
    pub const fn answer(self) -> GssAnswer {
        match self {
            Self::Credential => GssAnswer::Deny(AuthStat::BadCred),
            Self::UnknownContext | Self::Verifier => GssAnswer::Deny(AuthStat::GssCredProblem),
            Self::SequenceTooLarge => GssAnswer::Deny(AuthStat::GssCtxProblem),
            Self::Replay => GssAnswer::Close,
            Self::Body => GssAnswer::Accept(AcceptStatus::GarbageArgs),
        }
    }
}

fn opaque_range(reader: &mut Reader<'_>, max: usize) -> Result<Range<usize>, DecodeError> {
    let at = reader.position() + 4;
    let length = reader.opaque(max)?.len();
    Ok(at..at + length)
}

/// RFC 2203 section 5.3.2.2: protected data are an XDR encoding, so their length is a multiple of
/// four, and they contain at least a sequence number.
const fn whole_words(range: &Range<usize>) -> Result<(), DecodeError> {
    let length = range.end - range.start;
    if length < 4 {
        return Err(DecodeError::Truncated { at: range.start, wanted: 4 });
    }
    if padding(length) != 0 {
        return Err(DecodeError::BadPadding { at: range.end });
    }
    Ok(())
}

fn put_word(body: &mut [u8], at: usize, word: u32) -> Option<()> {
    body.get_mut(at..)?.first_chunk_mut::<4>().map(|place| *place = word.to_be_bytes())
}

fn clear_padding(body: &mut [u8], end: usize) -> Option<()> {
    body.get_mut(end..roundup4(end)).map(|zeros| zeros.fill(0))
}
