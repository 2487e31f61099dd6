//! The user that a call comes from.

use spinrpc_proto::rpc::{AuthFlavor, AuthSys, GssService, OpaqueAuth};

/// The user that a call comes from, and how far that is known.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Identity<'a> {
    /// Unknown: AUTH_NONE, or a credential that cannot be read.
    None,
    /// As the caller's machine says (AUTH_SYS), without proof.
    Sys(AuthSys<'a>),
    /// Proved by RPCSEC_GSS: the caller has the keys of this principal's context, and the call is as the caller sent
    /// it as far as `service` says.
    Gss {
        /// Name of the caller, as the mechanism prints it.
        principal: &'a str,
        /// Protection of arguments and results.
        service: GssService,
    },
}

impl<'a> Identity<'a> {
    /// Identity of a call that did not come under RPCSEC_GSS.
    pub(super) fn stated(credential: &OpaqueAuth<'a>) -> Self {
        match credential.flavor {
            AuthFlavor::Sys => AuthSys::parse(credential.body).map_or(Self::None, Self::Sys),
            _ => Self::None,
        }
    }
}
