//! Credentials and verifiers (RFC 5531 sections 8.2, 9 and appendix A).

use crate::xdr::{DecodeError, Overflow, Reader, Writer};

/// Largest body of a credential or verifier (RFC 5531 section 8.2).
pub const AUTH_BODY_MAX_BYTES: usize = 400;

/// Longest machine name in an AUTH_SYS credential (RFC 5531 appendix A).
pub const MACHINE_NAME_MAX_BYTES: usize = 255;

/// Most supplementary groups in an AUTH_SYS credential (RFC 5531 appendix A).
pub const GROUPS_MAX: usize = 16;

open_numbers! {
    /// Format of a credential or verifier (`auth_flavor`).
    AuthFlavor {
        /// AUTH_NONE, 0: no identity; the body is empty.
        0 => None,
        /// AUTH_SYS, 1: the user's numbers as the client's machine states them.
        1 => Sys,
        /// AUTH_SHORT, 2: a shorthand which the responder gave out.
        2 => Short,
        /// RPCSEC_GSS, 6.
        6 => Gss,
    } else {
        /// Any other number.
        Other
    }
}

/// A credential or verifier, its body not interpreted (`opaque_auth`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpaqueAuth<'a> {
    /// Says how to read the body.
    pub flavor: AuthFlavor,
    /// Body of at most [`AUTH_BODY_MAX_BYTES`]; every receiver refuses a longer one.
    pub body: &'a [u8],
}

impl<'a> OpaqueAuth<'a> {
    /// AUTH_NONE, whose body is empty.
    pub const NONE: Self = Self { flavor: AuthFlavor::None, body: &[] };

    #[inline(always)]
    pub(super) fn parse(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let flavor = AuthFlavor::from_wire(reader.u32()?);
        let body = reader.opaque(AUTH_BODY_MAX_BYTES)?;
        Ok(Self { flavor, body })
    }

    #[inline]
    pub(super) fn write(&self, writer: &mut Writer<'_>) {
        debug_assert!(self.body.len() <= AUTH_BODY_MAX_BYTES, "auth body of {}", self.body.len());
        writer.u32(self.flavor.to_wire());
        writer.opaque(self.body);
    }
}

/// The supplementary groups of an AUTH_SYS credential: at most [`GROUPS_MAX`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Groups {
    // Values past `count` are zero, so that the derived equality compares only valid ones.
    values: [u32; GROUPS_MAX],
    count: u8,
}

impl Groups {
    /// The groups `ids`; `None` if they are more than [`GROUPS_MAX`].
    #[must_use]
    pub fn new(ids: &[u32]) -> Option<Self> {
        let mut groups = Self::default();
        groups.values.get_mut(..ids.len())?.copy_from_slice(ids);
        groups.count = u8::try_from(ids.len()).ok()?;
        Some(groups)
    }

    /// The groups in the order of the credential.
    pub fn as_slice(&self) -> &[u32] {
        self.values.get(..usize::from(self.count)).unwrap_or(&self.values)
    }

    fn parse(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let at = reader.position();
        let length = reader.u32()? as usize;
        let mut groups = Self::default();
        let Some(values) = groups.values.get_mut(..length) else {
            return Err(DecodeError::TooLong { at, length, max: GROUPS_MAX });
        };
        for value in values {
            *value = reader.u32()?;
            groups.count += 1;
        }
        Ok(groups)
    }
}

/// The body of an AUTH_SYS credential (`authsys_parms`, RFC 5531 appendix A).
///
/// The user's identity as stated by the client's machine; nothing in it is proven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuthSys<'a> {
    /// An arbitrary number of the client's machine.
    pub stamp: u32,
    /// Name of the client's machine, at most [`MACHINE_NAME_MAX_BYTES`]. Not checked to be text,
    /// because nothing may depend on it.
    pub machine_name: &'a [u8],
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Groups,
}

impl<'a> AuthSys<'a> {
    /// Reads the body of a credential of flavor [`AuthFlavor::Sys`].
    ///
    /// # Errors
    /// Error in the body, with offsets from its start. The call it came with deserves
    /// [`AuthStat::BadCred`].
    pub fn parse(body: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(body);
        let parsed = Self {
            stamp: reader.u32()?,
            machine_name: reader.opaque(MACHINE_NAME_MAX_BYTES)?,
            uid: reader.u32()?,
            gid: reader.u32()?,
            groups: Groups::parse(&mut reader)?,
        };
        reader.finish()?;
        Ok(parsed)
    }

    /// Writes the body of a credential at the start of `buffer`; returns its length in bytes.
    ///
    /// # Errors
    /// [`Overflow`] if it does not fit. [`AUTH_BODY_MAX_BYTES`] are always enough for a machine name
    /// within its bound.
    pub fn emit(&self, buffer: &mut [u8]) -> Result<usize, Overflow> {
        debug_assert!(self.machine_name.len() <= MACHINE_NAME_MAX_BYTES, "machine name too long");
        let mut writer = Writer::new(buffer);
        writer.u32(self.stamp);
        writer.opaque(self.machine_name);
        writer.u32(self.uid);
        writer.u32(self.gid);
        writer.u32(u32::from(self.groups.count));
        for &group in self.groups.as_slice() {
            writer.u32(group);
        }
        writer.finish()
    }
}

// Five words, the machine name and the groups: the largest AUTH_SYS body fits any buffer that holds
// the largest body allowed.
const _: () = assert!(
    20 + crate::xdr::roundup4(MACHINE_NAME_MAX_BYTES) + 4 * GROUPS_MAX <= AUTH_BODY_MAX_BYTES
);

open_numbers! {
    /// Reason why a responder did not accept the caller's identity (`auth_stat`, RFC 5531 section 9).
    AuthStat {
        /// AUTH_OK, 0.
        0 => Ok,
        /// AUTH_BADCRED, 1: broken credential.
        1 => BadCred,
        /// AUTH_REJECTEDCRED, 2: the client must begin a new session.
        2 => RejectedCred,
        /// AUTH_BADVERF, 3: broken verifier.
        3 => BadVerf,
        /// AUTH_REJECTEDVERF, 4: verifier expired or replayed.
        4 => RejectedVerf,
        /// AUTH_TOOWEAK, 5: rejected for security reasons.
        5 => TooWeak,
        /// AUTH_INVALIDRESP, 6: bogus verifier in the reply.
        6 => InvalidResp,
        /// AUTH_FAILED, 7: reason unknown.
        7 => Failed,
        /// RPCSEC_GSS_CREDPROBLEM, 13: no credentials for the user.
        13 => GssCredProblem,
        /// RPCSEC_GSS_CTXPROBLEM, 14: problem with the context.
        14 => GssCtxProblem,
    } else {
        /// Any other number, such as those of AUTH_KERB.
        Other
    }
}
