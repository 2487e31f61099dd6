//! Errors of Kerberos, in words that tell the user what to do.

use core::fmt;
use std::io;
use std::path::Path;

use crate::mechanism::MechanismError;

/// GSS_S_FAILURE: the minor status says more.
const FAILURE: u32 = 13 << 16;
/// GSS_S_BAD_MECH, GSS_S_BAD_SIG, GSS_S_CREDENTIALS_EXPIRED, GSS_S_CONTEXT_EXPIRED.
const BAD_MECHANISM: u32 = 1 << 16;
const BAD_SIGNATURE: u32 = 6 << 16;
const CREDENTIALS_EXPIRED: u32 = 11 << 16;
const CONTEXT_EXPIRED: u32 = 12 << 16;
/// The part of a major status that says what went wrong.
const ROUTINE_ERROR: u32 = 0x00ff_0000;

/// Codes of `krb5.h`, which `tests/kerberos/declarations.c` compares, and of the library's own table `k5g`, which has no
/// header.
mod code {
    pub(super) const SERVER_UNKNOWN: i32 = -1_765_328_377;
    pub(super) const CLIENT_UNKNOWN: i32 = -1_765_328_378;
    pub(super) const KDC_NO_ENCTYPE: i32 = -1_765_328_370;
    pub(super) const BAD_INTEGRITY: i32 = -1_765_328_353;
    pub(super) const TICKET_EXPIRED: i32 = -1_765_328_352;
    pub(super) const TICKET_NOT_YET_VALID: i32 = -1_765_328_351;
    pub(super) const NOT_US: i32 = -1_765_328_349;
    pub(super) const SKEW: i32 = -1_765_328_347;
    pub(super) const MODIFIED: i32 = -1_765_328_343;
    pub(super) const BAD_KEY_VERSION: i32 = -1_765_328_340;
    pub(super) const NO_KEY: i32 = -1_765_328_339;
    pub(super) const CC_NOTFOUND: i32 = -1_765_328_243;
    pub(super) const REALM_UNKNOWN: i32 = -1_765_328_230;
    pub(super) const KDC_UNREACHABLE: i32 = -1_765_328_228;
    pub(super) const KEYTAB_NOTFOUND: i32 = -1_765_328_203;
    pub(super) const FCC_NOFILE: i32 = -1_765_328_189;
    pub(super) const HOST_REALM_UNKNOWN: i32 = -1_765_328_167;
    pub(super) const NO_DEFAULT_REALM: i32 = -1_765_328_160;
    pub(super) const KEYTAB_NO_VERSION: i32 = -1_765_328_154;
    pub(super) const CONFIG_NO_ENCTYPE: i32 = -1_765_328_147;
    pub(super) const CACHE_NO_MATCH: i32 = 39_756_032;
    pub(super) const KEYTAB_NO_MATCH: i32 = 39_756_033;
    pub(super) const TGT_MISSING: i32 = 39_756_034;
    pub(super) const EMPTY_CACHE: i32 = 39_756_044;
}

const TEXT_MAX_CHARS: usize = 300;

/// Kind of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The cache has no ticket, or there is no cache.
    #[error("there is no Kerberos ticket; run kinit, or name a keytab")]
    NoTicket,
    /// The ticket has expired.
    #[error("the Kerberos ticket has expired; run kinit")]
    TicketExpired,
    /// The ticket is not valid yet.
    #[error("the Kerberos ticket is not valid yet; synchronize the clocks, or wait until it is")]
    TicketNotYetValid,
    /// The credential of the server has expired, and not that of the client.
    #[error("the credential of the server has expired; renew it at the server")]
    ServerExpired,
    /// The clock of this host, the peer or the KDC is wrong.
    #[error(
        "the clock differs from that of the peer or KDC by more than Kerberos allows; synchronize the clocks"
    )]
    ClockDiffers,
    /// The KDC has no such server.
    #[error("the KDC does not know the server; check its name, and add its principal there")]
    UnknownServer,
    /// The KDC has no such client.
    #[error("the KDC does not know the client's principal")]
    UnknownClient,
    /// No KDC of the realm answers.
    #[error("no KDC answers; check the network and krb5.conf")]
    KdcUnreachable,
    /// The configuration has no KDC for the realm, or no realm.
    #[error("the realm or its KDC is not known; check krb5.conf")]
    NoRealm,
    /// There is no such keytab.
    #[error("the keytab does not exist")]
    KeytabMissing,
    /// The keytab cannot be read, or is not one.
    #[error("the keytab cannot be read")]
    KeytabUnreadable,
    /// The keytab has no key of this principal, or none of the ticket's encryption type.
    #[error("the keytab has no key for this principal and encryption type")]
    KeyMissing,
    /// The keytab has another version of the key than the ticket was made for.
    #[error(
        "the keytab has another version of the key than the ticket; renew the keytab, or the client's ticket"
    )]
    WrongKeyVersion,
    /// The key is of an encryption type that is not supported here.
    #[error("the key is of an encryption type that is not supported; use AES (17 to 20)")]
    UnsupportedEncryption,
    /// The token is not one of Kerberos, or was changed.
    #[error("the token is not valid")]
    DefectiveToken,
    /// Something else: see the text.
    #[error("Kerberos failed")]
    Other,
}

impl Fault {
    /// Kind of a status of MIT's library, which is also what a peer that uses this library sends.
    pub const fn from_status(major: u32, minor: u32) -> Self {
        match Self::from_minor(minor) {
            Some(fault) => fault,
            None => Self::from_major(major),
        }
    }

    /// Kind of a status of an acceptor: of the library where it accepts a context, or as a server has sent it. The credential that
    /// has expired is the acceptor's.
    pub const fn from_acceptor(major: u32, minor: u32) -> Self {
        match (Self::from_minor(minor), major & ROUTINE_ERROR) {
            (None, CREDENTIALS_EXPIRED) => Self::ServerExpired,
            _ => Self::from_status(major, minor),
        }
    }

    const fn from_minor(minor: u32) -> Option<Self> {
        Some(match minor.cast_signed() {
            code::CC_NOTFOUND
            | code::FCC_NOFILE
            | code::CACHE_NO_MATCH
            | code::TGT_MISSING
            | code::EMPTY_CACHE => Self::NoTicket,
            code::TICKET_EXPIRED => Self::TicketExpired,
            code::TICKET_NOT_YET_VALID => Self::TicketNotYetValid,
            code::SKEW => Self::ClockDiffers,
            code::SERVER_UNKNOWN => Self::UnknownServer,
            code::CLIENT_UNKNOWN => Self::UnknownClient,
            code::KDC_UNREACHABLE => Self::KdcUnreachable,
            code::REALM_UNKNOWN | code::NO_DEFAULT_REALM | code::HOST_REALM_UNKNOWN => {
                Self::NoRealm
            }
            code::KEYTAB_NOTFOUND | code::KEYTAB_NO_MATCH | code::NOT_US | code::NO_KEY => {
                Self::KeyMissing
            }
            code::KEYTAB_NO_VERSION | code::BAD_KEY_VERSION => Self::WrongKeyVersion,
            code::KDC_NO_ENCTYPE | code::CONFIG_NO_ENCTYPE => Self::UnsupportedEncryption,
            code::BAD_INTEGRITY | code::MODIFIED => Self::DefectiveToken,
            _ => return None,
        })
    }

    const fn from_major(major: u32) -> Self {
        match major & ROUTINE_ERROR {
            MechanismError::DEFECTIVE_TOKEN | BAD_SIGNATURE | BAD_MECHANISM => Self::DefectiveToken,
            MechanismError::NO_CRED => Self::NoTicket,
            CREDENTIALS_EXPIRED | CONTEXT_EXPIRED => Self::TicketExpired,
            _ => Self::Other,
        }
    }
}

/// An error of Kerberos: its kind, the status for the peer, and the library's own text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KerberosError {
    /// Its kind.
    pub fault: Fault,
    /// `gss_major`.
    pub major: u32,
    /// `gss_minor`.
    pub minor: u32,
    /// The library's text, without control characters.
    pub text: String,
}

impl KerberosError {
    pub(super) fn from_status(major: u32, minor: u32, text: &str) -> Self {
        // A caller of this crate must never take an error for COMPLETE.
        let major = if major >> 16 == 0 { FAILURE } else { major };
        Self { fault: Fault::from_status(major, minor), major, minor, text: clean(text) }
    }

    pub(super) fn of_acceptor(self) -> Self {
        Self { fault: Fault::from_acceptor(self.major, self.minor), ..self }
    }

    fn new(fault: Fault, major: u32, text: &str) -> Self {
        Self { fault, major, minor: 0, text: clean(text) }
    }

    /// This end refuses what the library would have taken.
    pub(super) fn refused(text: &str) -> Self {
        Self::new(Fault::Other, FAILURE, text)
    }

    pub(super) fn unsupported(text: &str) -> Self {
        Self::new(Fault::UnsupportedEncryption, FAILURE, text)
    }

    pub(super) fn no_credential(text: &str) -> Self {
        Self::new(Fault::Other, MechanismError::NO_CRED, text)
    }

    /// The error of acquiring keys from a keytab. The library does not tell a missing file from one that it may not
    /// read, so the file is tried.
    pub(super) fn of_keytab(self, keytab: &Path) -> Self {
        if !matches!(self.fault, Fault::NoTicket | Fault::KeyMissing | Fault::Other) {
            return self;
        }
        let (fault, text) = match try_keytab(keytab) {
            Ok(()) => return self,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                (Fault::KeytabMissing, format!("{}: {error}", keytab.display()))
            }
            Err(error) => (Fault::KeytabUnreadable, format!("{}: {error}", keytab.display())),
        };
        Self { fault, text: clean(&text), ..self }
    }
}

fn try_keytab(path: &Path) -> io::Result<()> {
    let mut version = [0; 2];
    io::Read::read_exact(&mut std::fs::File::open(path)?, &mut version)?;
    match version {
        [5, 1 | 2] => Ok(()),
        _ => Err(io::Error::other("not a keytab")),
    }
}

/// Texts may come from a KDC.
fn clean(text: &str) -> String {
    let printable = |char: char| if char.is_control() { ' ' } else { char };
    text.chars().map(printable).take(TEXT_MAX_CHARS).collect()
}

impl fmt::Display for KerberosError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.fault, self.text.as_str()) {
            (fault, "") => fault.fmt(f),
            (Fault::Other, text) => write!(f, "Kerberos: {text}"),
            (fault, text) => write!(f, "{fault} ({text})"),
        }
    }
}

impl core::error::Error for KerberosError {}

impl From<KerberosError> for MechanismError {
    fn from(error: KerberosError) -> Self {
        Self { major: error.major, minor: error.minor, reason: error.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_error_reads_as_success_on_the_wire() {
        for major in [0, 1, 2, 0x10] {
            let error = KerberosError::from_status(major, 0, "");
            assert_eq!(MechanismError::from(error).major, FAILURE);
        }
    }

    #[test]
    fn an_expired_credential_is_told_from_an_expired_ticket() {
        let expired = code::TICKET_EXPIRED.cast_unsigned();
        assert_eq!(Fault::from_status(CREDENTIALS_EXPIRED, 0), Fault::TicketExpired);
        assert_eq!(Fault::from_acceptor(CREDENTIALS_EXPIRED, 0), Fault::ServerExpired);
        for major in [FAILURE, CREDENTIALS_EXPIRED] {
            assert_eq!(Fault::from_acceptor(major, expired), Fault::TicketExpired);
        }
        let early = Fault::from_status(FAILURE, code::TICKET_NOT_YET_VALID.cast_unsigned());
        for fault in [Fault::from_acceptor(CREDENTIALS_EXPIRED, 0), early] {
            assert!(!fault.to_string().contains("kinit"), "{fault}");
        }
    }

    #[test]
    fn texts_are_short_and_printable() {
        let error = KerberosError::from_status(FAILURE, 1, &"a\u{1b}[2J\n".repeat(1000));
        assert_eq!(error.text.chars().count(), TEXT_MAX_CHARS);
        assert!(!error.text.contains(char::is_control));
    }
}
