//! Security flavors of an export.

use spinrpc::GssService;
use std::fmt;

/// Security flavor of calls. Those of Kerberos have a pseudo flavor for each service (RFC 2623 section 2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavor {
    /// AUTH_NONE.
    None,
    /// AUTH_SYS.
    Sys,
    /// Kerberos: headers are protected.
    Krb5,
    /// Kerberos: arguments and results are protected against changes.
    Krb5i,
    /// Kerberos: arguments and results are encrypted.
    Krb5p,
}

impl Flavor {
    /// Every flavor.
    pub const ALL: [Self; 5] = [Self::None, Self::Sys, Self::Krb5, Self::Krb5i, Self::Krb5p];

    /// Flavor with this name, as in exports(5).
    #[must_use]
    pub fn named(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|flavor| flavor.name() == text)
    }

    /// Flavor of calls with this protection by Kerberos.
    #[must_use]
    pub const fn of_service(service: GssService) -> Option<Self> {
        match service {
            GssService::None => Some(Self::Krb5),
            GssService::Integrity => Some(Self::Krb5i),
            GssService::Privacy => Some(Self::Krb5p),
            GssService::Other(_) => None,
        }
    }

    /// Name, as in exports(5).
    pub const fn name(self) -> &'static str {
        self.row().0
    }

    /// Number in the results of MNT.
    pub const fn to_wire(self) -> u32 {
        self.row().1
    }

    const fn row(self) -> (&'static str, u32) {
        match self {
            Self::None => ("none", 0),
            Self::Sys => ("sys", 1),
            Self::Krb5 => ("krb5", 390_003),
            Self::Krb5i => ("krb5i", 390_004),
            Self::Krb5p => ("krb5p", 390_005),
        }
    }
}

impl fmt::Display for Flavor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
