//! Contexts of clients that establish them over another transport than the engine's: the Linux client of NFS does so over
//! TCP, whatever its calls go over. Called by servers from threads of their own.

use super::acceptor::{Acceptor, Answered};
use crate::api::engine::Engine;
use crate::reactor::types::protection::{host_number, now};
use spinrpc_gss::context::Context;
use spinrpc_proto::ids::{Procedure, Xid};
use spinrpc_proto::rpc::{
    AcceptStatus, AuthFlavor, AuthStat, CallHeader, GssAnswer, GssCredential, GssFault,
    GssProcedure, GssService, OpaqueAuth, RejectStatus, ReplyBody, ReplyHeader,
    parse_init_arguments,
};
use spinrpc_proto::xdr::Writer;
use std::net::IpAddr;
use std::sync::Arc;

impl Engine {
    /// Answers a call under RPCSEC_GSS that `host` has sent over a transport of the application's, such as TCP. The
    /// contexts are those of the engine: calls under them arrive over its connections.
    ///
    /// Contexts are established and destroyed, and NULL with [`GssService::None`] is answered; every other
    /// call ends with PROC_UNAVAIL. The program is not looked at. Returns the reply without a record mark, or `None` if there is
    /// none to send: the connection is to be closed. Blocks as long as the mechanism does, and must not be called on a
    /// core. How many do so at a time is for the application to limit.
    #[must_use]
    pub fn answer_gss_call(&self, message: &[u8], host: IpAddr) -> Option<Vec<u8>> {
        let (header, at) = CallHeader::parse(message).ok()?;
        let acceptor = self.0.gss.acceptor.get().map(Arc::clone);
        let answered = match acceptor {
            Some(acceptor) => Arrived { message, header, at, host }.answer(&acceptor),
            None => Err(GssAnswer::Deny(AuthStat::BadCred)),
        };
        match answered {
            Ok(reply) => Some(reply),
            Err(GssAnswer::Deny(why)) => {
                let denied = RejectStatus::AuthError(why);
                Some(reply(&ReplyHeader::denied(header.xid, denied), &[]))
            }
            Err(GssAnswer::Accept(status)) => {
                Some(reply(&ReplyHeader::accepted(header.xid, status), &[]))
            }
            Err(GssAnswer::Close) => None,
        }
    }
}

struct Arrived<'a> {
    message: &'a [u8],
    header: CallHeader<'a>,
    at: usize,
    host: IpAddr,
}

impl Arrived<'_> {
    fn answer(&self, acceptor: &Acceptor) -> Result<Vec<u8>, GssAnswer> {
        let OpaqueAuth { flavor, body } = self.header.credential;
        let credential = GssCredential::parse(body).ok().filter(|_| flavor == AuthFlavor::Gss);
        let credential = credential.ok_or(GssFault::Credential.answer())?;
        let is_null = self.header.procedure == Procedure(0);
        if credential.procedure != GssProcedure::Data && !is_null {
            return Err(GssFault::Credential.answer());
        }
        if credential.procedure.is_creation() {
            return self.create(acceptor, &credential);
        }
        self.answer_under_context(acceptor, &credential).map_err(GssFault::answer)
    }

    /// INIT or CONTINUE_INIT.
    fn create(
        &self,
        acceptor: &Acceptor,
        credential: &GssCredential<'_>,
    ) -> Result<Vec<u8>, GssAnswer> {
        if self.header.verifier != OpaqueAuth::NONE {
            return Err(GssAnswer::Deny(AuthStat::BadVerf));
        }
        let arguments = self.message.get(self.at..).unwrap_or_default();
        let token = parse_init_arguments(arguments).map_err(|_| GssFault::Body.answer())?;
        let host = host_number(self.host);
        let answered = acceptor.take_token(credential.handle, token, host);
        let result = answered.result();
        let mut results = vec![0; result.buffer_len()];
        result.write(&mut Writer::new(&mut results));
        Ok(match &answered.context {
            Some(context) => {
                let status = AcceptStatus::Success;
                signed(self.header.xid, context, Answered::WINDOW, status, &results)
            }
            None => reply(&ReplyHeader::success(self.header.xid), &results),
        })
    }

    /// DATA or DESTROY, once its verifier holds.
    fn answer_under_context(
        &self,
        acceptor: &Acceptor,
        credential: &GssCredential<'_>,
    ) -> Result<Vec<u8>, GssFault> {
        let &GssCredential { handle, sequence, service, procedure } = credential;
        let context = acceptor.table.find(handle, now()).ok_or(GssFault::UnknownContext)?;
        context.admit_call(now(), self.message, (&self.header, self.at), sequence)?;
        let is_null = self.header.procedure == Procedure(0) && service == GssService::None;
        let status = match procedure {
            GssProcedure::Destroy => {
                acceptor.table.remove(handle);
                AcceptStatus::Success
            }
            _ if is_null => AcceptStatus::Success,
            _ => AcceptStatus::ProcUnavail,
        };
        Ok(signed(self.header.xid, &context, sequence, status, &[]))
    }
}

/// A reply with the verifier of this sequence number (RFC 2203 section 5.3.3.2).
fn signed(
    xid: Xid,
    context: &Context,
    sequence: u32,
    status: AcceptStatus,
    results: &[u8],
) -> Vec<u8> {
    let mic = context.sign_reply(sequence);
    let verifier = OpaqueAuth { flavor: AuthFlavor::Gss, body: mic.as_slice() };
    reply(&ReplyHeader { xid, body: ReplyBody::Accepted { verifier, status } }, results)
}

fn reply(header: &ReplyHeader<'_>, results: &[u8]) -> Vec<u8> {
    let mut message = vec![0; header.buffer_len()];
    header.emit(&mut message);
    message.extend_from_slice(results);
    message
}
