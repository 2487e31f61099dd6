//! Contexts that are not established over the connection of their calls, because the server denies that: INIT and
//! CONTINUE_INIT go over another transport, which the application provides. Runs on threads of mechanisms.

use super::client_context::{
    Done, NOT_ASKED, ROUNDS_MAX, TOO_MANY_TOKENS, conclude, gss_credential, parse_answer,
};
use super::initiator::{Awaited, GssInitiator};
use crate::fabric::Peer;
use crate::reactor::types::protection::{fill_random, now};
use crate::sync::atomic::{AtomicBool, Ordering};
use spinrpc_gss::mechanism::Negotiation;
use spinrpc_proto::ids::{Procedure, Program, Version, Xid};
use spinrpc_proto::rpc::{
    AUTH_BODY_MAX_BYTES, AuthFlavor, CallHeader, GSS_TOKEN_MAX_BYTES, OpaqueAuth, RejectStatus,
    ReplyHeader,
};
use spinrpc_proto::xdr::{Reader, Writer};

/// Program and peer that denied INIT, and the reason.
#[derive(Clone, Copy)]
pub(super) struct TcpFallback {
    pub(super) called: (Program, Version),
    pub(super) peer: Peer,
    pub(super) denied: RejectStatus,
}

impl TcpFallback {
    /// Establishes a context, token by token, as long as it is wanted.
    ///
    /// # Errors
    /// The reason. Those of the mechanism stand as they are, because they have nothing to do with the transport.
    pub(super) fn establish(
        self,
        initiator: &GssInitiator,
        wanted: &AtomicBool,
    ) -> Result<Done, String> {
        let mut handle = Vec::new();
        let mut step = initiator.begin(now()).map_err(|error| error.reason)?;
        // A reply to an exchange before, or one that somebody guesses, answers none of these.
        let first = random_xid()?;
        for round in 0..ROUNDS_MAX {
            let Negotiation::Continue(go_on, token) = step else { return Err(NOT_ASKED.into()) };
            if !wanted.load(Ordering::Relaxed) {
                return Err("the context is not wanted any more".into());
            }
            let answer = self
                .exchange(
                    (initiator, Awaited(wanted)),
                    Xid(first.wrapping_add(round)),
                    &handle,
                    &token,
                )
                .and_then(|reply| parse_answer(&mut Reader::new(&reply)))
                .map_err(|reason| self.explain(&reason))?;
            handle.clone_from(&answer.handle);
            let next = go_on(&answer.token, now()).map_err(|error| error.reason)?;
            let done = conclude(next, answer, initiator.service);
            match done.map_err(|reason| self.explain(&reason))? {
                Done::Send(go_on, token) => step = Negotiation::Continue(go_on, token),
                context @ Done::Complete(_) => return Ok(context),
            }
        }
        Err(TOO_MANY_TOKENS.into())
    }

    fn exchange(
        self,
        (initiator, awaited): (&GssInitiator, Awaited<'_>),
        xid: Xid,
        handle: &[u8],
        token: &[u8],
    ) -> Result<Vec<u8>, String> {
        let mut body = [0; AUTH_BODY_MAX_BYTES];
        let length = gss_credential(initiator.service, handle, &mut body)?;
        let credential = OpaqueAuth { flavor: AuthFlavor::Gss, body: &body[..length] };
        let message = self.message(xid, credential, token)?;
        let reply = initiator.exchange(&self.peer, &message, awaited)?;
        let (header, _) = ReplyHeader::parse(&reply).map_err(|error| error.to_string())?;
        match header.xid == xid {
            true => Ok(reply),
            false => Err("the server answered another call".into()),
        }
    }

    /// A call of NULL whose argument is the token.
    fn message(
        self,
        xid: Xid,
        credential: OpaqueAuth<'_>,
        token: &[u8],
    ) -> Result<Vec<u8>, String> {
        if token.len() > GSS_TOKEN_MAX_BYTES {
            return Err(super::client_context::DENIED_LONG_TOKEN.into());
        }
        let (program, version) = self.called;
        let (procedure, verifier) = (Procedure(0), OpaqueAuth::NONE);
        let header = CallHeader { xid, program, version, procedure, credential, verifier };
        let begin = header.buffer_len();
        let mut message = vec![0; begin + 4 + token.len().next_multiple_of(4)];
        header.emit(&mut message);
        Writer::new(&mut message[begin..]).opaque(token);
        Ok(message)
    }

    fn explain(self, reason: &str) -> String {
        let denied = self.denied;
        format!(
            "the server denied the context over this connection ({denied:?}); over the other \
             transport: {reason}"
        )
    }
}

fn random_xid() -> Result<u32, String> {
    let mut bytes = [0; 4];
    fill_random(&mut bytes).map_err(|_| "the system gives no random numbers")?;
    Ok(u32::from_be_bytes(bytes))
}
