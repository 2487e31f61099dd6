//! Calls under RPCSEC_GSS that arrive (RFC 2203 section 5): checked here before the dispatch runs a handler.

use super::acceptor::{Acceptor, Answered};
use super::stats::GssCounts;
use crate::api::call::{Arguments, BesideArguments, CallState, Called, GssCaller};
use crate::api::dispatch::{Dispatch, refusal};
use crate::api::rfc5666::{with_chunk, without_padding};
use crate::mem::Bulk;
use crate::reactor::ReplyData;
use crate::reactor::in_flight::gss_bodies::{Body, Finished, Purpose};
use crate::reactor::in_flight::serving::Serving;
use crate::reactor::in_flight::upcalls::CallFrame;
use crate::reactor::types::calls::{CallOutcome, ReplyTarget, RpcRefusal};
use crate::reactor::types::encoded_stream::once;
use crate::reactor::types::header_bytes::SYSTEM_ERR;
use crate::reactor::types::protection::{ProtectError, Protection, now, private_block, unseal};
use crate::reactor::types::rfc5666::Padded;
use crate::sys::journal::event;
use spinrpc_gss::context::Context;
use spinrpc_proto::chunking::StreamWriter;
use spinrpc_proto::ids::Procedure;
use spinrpc_proto::rdma::v1::alignment_of;
use spinrpc_proto::rpc::{
    AUTH_BODY_MAX_BYTES, AuthFlavor, AuthStat, CallHeader, GssAnswer, GssCredential, GssFault,
    GssProcedure, GssService, OpaqueAuth, RejectStatus, parse_init_arguments,
};
use spinrpc_proto::xdr::Reader;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

/// Data that comes with a call outside of its message.
type Beside<'b> = (&'b [(u32, u32)], &'b mut [Option<Bulk>]);

/// Longest RPC header of a call: six words, credential and verifier.
const HEAD_BYTES_MAX: usize = 24 + 2 * (8 + AUTH_BODY_MAX_BYTES);

struct Arrived {
    message: Bulk,
    at: usize,
    called: Called,
}

impl Dispatch {
    /// Serves a call under RPCSEC_GSS in an RDMA_MSGP, whose header was read. What is behind that is padded if it is not
    /// protected. Else it is counted data and nothing more: a token, or a sealed or signed body.
    #[cold]
    #[inline(never)]
    fn serve_padded_gss(
        &mut self,
        serving: &Serving<'_>,
        (header, reader): (&CallHeader<'_>, &Reader<'_>),
        beside: BesideArguments<'_>,
        padded: Padded,
    ) -> CallOutcome {
        serving.forgo_room();
        // What is signed has no padding.
        let mut head = [0; HEAD_BYTES_MAX];
        let at = header.emit(&mut head);
        let Some(head) = head.get(..at) else {
            return self.answer_fault(serving, GssFault::Credential);
        };
        let is_counted = GssCredential::parse(header.credential.body).is_ok_and(|credential| {
            credential.procedure.is_creation() || credential.service.protects_body()
        });
        if is_counted {
            let message = match beside.chunks {
                [] => without_padding(&self.ops.pool(), head, reader.rest(), padded.behind(reader)),
                _ => Err(ProtectError::Forged),
            };
            return match message {
                Ok(message) => self.serve_long_gss(serving, message, (&[], &mut [])),
                Err(why) => self.refuse_unread(serving, &why),
            };
        }
        let Some(acceptor) = self.acceptor(serving) else {
            return self.deny(serving, AuthStat::BadCred);
        };
        let called = Called::of(serving.xid(), header);
        match self.check_or_answer(serving, acceptor, (head, header, at), !beside.chunks.is_empty())
        {
            Ok((_, Protection { context, service, .. })) => {
                let beside = BesideArguments { padded: Some(padded), ..beside };
                let arguments = Arguments::behind(reader, beside);
                self.run_unsealed(serving, (&context, service), called, arguments)
            }
            Err(outcome) => outcome,
        }
    }

    #[cold]
    fn refuse_unread(&self, serving: &Serving<'_>, why: &ProtectError) -> CallOutcome {
        match why {
            ProtectError::NoMemory(_) => self.refuse(serving, &SYSTEM_ERR),
            ProtectError::Failed | ProtectError::Forged => {
                self.answer_fault(serving, GssFault::Body)
            }
        }
    }

    /// The body of a call is a Read chunk, which its protection covers (RFC 5666 section 11). Data in any other chunk are
    /// covered by nothing (RFC 8166 section 8.2.2.3).
    #[cold]
    fn join_body(
        &self,
        serving: &Serving<'_>,
        message: &Bulk,
        at: usize,
        beside: Beside<'_>,
    ) -> Result<Bulk, ProtectError> {
        match beside {
            (&[(position, _)], [Some(data)])
                if self.ops.rules(serving.version()).has_bodies_in_chunks() =>
            {
                let chunk = (position, data.bytes());
                with_chunk(&self.ops.pool(), message.bytes(), at, chunk)
            }
            _ => Err(ProtectError::Forged),
        }
    }

    /// A call that did not come under RPCSEC_GSS, and has to.
    #[inline]
    pub(in crate::api) fn is_too_weak(&self, serving: &Serving<'_>, procedure: Procedure) -> bool {
        let acceptor = self.gss.shared.acceptor.get();
        acceptor.is_some_and(|acceptor| acceptor.is_too_weak(None))
            && procedure != Procedure(0)
            && !self.is_in_reverse(serving.conn)
    }

    #[cold]
    pub(in crate::api) fn deny_weak(&self, serving: &Serving<'_>) -> CallOutcome {
        GssCounts::count(&self.gss.counts.refused_weak);
        self.deny(serving, AuthStat::TooWeak)
    }

    /// Serves a long call whose credential is of flavor RPCSEC_GSS, from the private memory that it was fetched to.
    #[cold]
    #[inline(never)]
    pub(in crate::api) fn serve_long_gss(
        &mut self,
        serving: &Serving<'_>,
        message: Bulk,
        beside: Beside<'_>,
    ) -> CallOutcome {
        serving.forgo_room();
        let Some(acceptor) = self.acceptor(serving) else {
            return self.deny(serving, AuthStat::BadCred);
        };
        let (header, at) = match CallHeader::parse(message.bytes()) {
            Ok(parsed) => parsed,
            Err(error) => return self.refuse(serving, &refusal(&error)),
        };
        let (has_chunks, called) = (!beside.0.is_empty(), Called::of(serving.xid(), &header));
        let whole = (message.bytes(), &header, at);
        match self.check_or_answer(serving, acceptor, whole, has_chunks) {
            Ok((to, protection)) => {
                let arrived = Arrived { message, at, called };
                self.unseal_and_run(serving, &to, protection, arrived, beside)
            }
            Err(outcome) => outcome,
        }
    }

    fn acceptor(&self, serving: &Serving<'_>) -> Option<&Arc<Acceptor>> {
        self.gss.shared.acceptor.get().filter(|_| !self.is_in_reverse(serving.conn))
    }

    /// Serves a call whose credential is of flavor RPCSEC_GSS, from the private memory that its message was received in:
    /// the peer cannot change what has been checked. A body that has to be unsealed in place is copied.
    #[cold]
    #[inline(never)]
    pub(in crate::api) fn serve_gss(
        &mut self,
        serving: &Serving<'_>,
        stream: &[u8],
        (header, reader): (&CallHeader<'_>, &Reader<'_>),
        mut beside: BesideArguments<'_>,
    ) -> CallOutcome {
        if let Some(padded) = beside.padded.take() {
            return self.serve_padded_gss(serving, (header, reader), beside, padded);
        }
        let at = reader.position();
        serving.forgo_room();
        let Some(acceptor) = self.acceptor(serving) else {
            return self.deny(serving, AuthStat::BadCred);
        };
        let called = Called::of(serving.xid(), header);
        let whole = (stream, header, at);
        let has_chunks = !beside.chunks.is_empty();
        let outcome = match self.check_or_answer(serving, acceptor, whole, has_chunks) {
            Ok((to, protection)) if protection.service.protects_body() => {
                match private_block(&self.ops.pool(), stream.len()) {
                    Ok(mut message) => {
                        message.bytes_mut().copy_from_slice(stream);
                        let arrived = Arrived { message, at, called };
                        let beside = (beside.chunks, beside.bulks);
                        self.unseal_and_run(serving, &to, protection, arrived, beside)
                    }
                    // The answer is verified, as the header was.
                    Err(_) => self.refuse(serving, &SYSTEM_ERR),
                }
            }
            Ok((_, Protection { context, service, .. })) => {
                let arguments = Arguments::behind(reader, beside);
                self.run_unsealed(serving, (&context, service), called, arguments)
            }
            Err(outcome) => outcome,
        };
        // `finish_call` does this for long calls.
        self.ops.outcome_of(serving, outcome)
    }

    /// Refuses a call for whose Read chunks there was no memory in time: without a verifier of the server the client would
    /// take the answer for a forged one (RFC 2203 section 5.3.3.2). That of the client is checked before, and its sequence
    /// number is used up, so that the call is not executed when somebody repeats it.
    #[cold]
    pub(in crate::api) fn refuse_starved(&mut self, frame: &CallFrame) -> CallOutcome {
        let (conn, slot, message) = (frame.conn, frame.slot, frame.message.bytes());
        let serving = Serving::placed(&ReplyTarget { conn, slot, message, is_chunkless: false });
        let Some(acceptor) = self.acceptor(&serving) else {
            return self.deny(&serving, AuthStat::BadCred);
        };
        let header_bytes = frame.admitted.header_bytes as usize;
        let stream = &message[header_bytes..];
        let mut reader = Reader::aligned(stream, alignment_of(message), header_bytes);
        let Ok(header) = CallHeader::read(&mut reader) else {
            return self.answer_fault(&serving, GssFault::Body);
        };
        // What is signed has no padding.
        let mut head = [0; HEAD_BYTES_MAX];
        let at = header.emit(&mut head);
        match self.check_or_answer(&serving, acceptor, (&head[..at], &header, at), true) {
            Ok(_) => self.refuse(&serving, &SYSTEM_ERR),
            Err(outcome) => outcome,
        }
    }

    /// Returns the target and the protection of a call that goes on to its handler. Any other call is answered here, or by
    /// a thread: one that fails a check, and one that creates or destroys a context.
    fn check_or_answer<'s>(
        &self,
        serving: &Serving<'s>,
        acceptor: &Arc<Acceptor>,
        (bytes, header, at): (&[u8], &CallHeader<'_>, usize),
        has_chunks: bool,
    ) -> Result<(ReplyTarget<'s>, Protection), CallOutcome> {
        if self.is_leaving {
            return Err(self.turn_away(serving, header.program));
        }
        let answer = |fault| self.answer_fault(serving, fault);
        let credential = credential_of(header, has_chunks).map_err(answer)?;
        if credential.procedure.is_creation() {
            let call = (header, &credential);
            return Err(self.create_context(serving, acceptor, call, &bytes[at..]));
        }
        let whole = (bytes, header, at);
        let protection = verify(serving, acceptor, whole, &credential).map_err(answer)?;
        let Some(to) = self.ops.target(serving) else { return Err(CallOutcome::Done) };
        if credential.procedure == GssProcedure::Destroy {
            return Err(self.destroy_context(&to, acceptor, credential.handle, protection));
        }
        let service = protection.service;
        self.gss.counts.count_call(service);
        self.ops.protect(&to, protection.clone());
        if header.procedure != Procedure(0) && acceptor.is_too_weak(Some(service)) {
            return Err(self.deny_weak(serving));
        }
        Ok((to, protection))
    }

    fn destroy_context(
        &self,
        to: &ReplyTarget<'_>,
        acceptor: &Acceptor,
        handle: &[u8],
        protection: Protection,
    ) -> CallOutcome {
        if acceptor.table.remove(handle) {
            GssCounts::count(&self.gss.counts.contexts_destroyed);
        }
        let service = GssService::None;
        self.ops.protect(to, Protection { service, ..protection });
        self.ops.reply(to, ReplyData::new(), None, &mut once(|_| {}));
        CallOutcome::Done
    }

    /// The header is verified.
    fn unseal_and_run(
        &mut self,
        serving: &Serving<'_>,
        to: &ReplyTarget<'_>,
        protection: Protection,
        arrived: Arrived,
        beside: Beside<'_>,
    ) -> CallOutcome {
        let Arrived { message, at, called } = arrived;
        let Protection { ref context, service, sequence } = protection;
        if !service.protects_body() {
            let (chunks, bulks) = beside;
            let beside = BesideArguments { chunks, bulks, padded: None };
            let arguments = Arguments::new(&message.bytes()[at..], at, beside);
            return self.run_unsealed(serving, (context, service), called, arguments);
        }
        let whole = match beside.0 {
            [] => Ok(message),
            _ => self.join_body(serving, &message, at, beside),
        };
        let mut message = match whole {
            Ok(message) => message,
            Err(why) => return self.refuse_unread(serving, &why),
        };
        if self.ops.takes_body(to.conn, message.len()) {
            let then = Purpose::Serve { slot: to.slot, protection };
            self.ops.offload_unseal(Body { conn: to.conn, message, at, then });
            return CallOutcome::Deferred;
        }
        let body = &mut message.bytes_mut()[at..];
        let Ok(place) = unseal(context, service, body, sequence, &self.gss.crypto) else {
            return self.answer_fault(serving, GssFault::Body);
        };
        let arguments =
            Arguments::new(&message.bytes()[at..][place], at, BesideArguments::default());
        self.run_unsealed(serving, (context, service), called, arguments)
    }

    /// A call whose arguments a thread has unsealed, or a reply.
    pub(in crate::api) fn take_unsealed(&mut self, finished: Option<Finished>) {
        let Some((body, unsealed)) = finished else { return };
        let Body { conn, ref message, at, then: Purpose::Serve { slot, ref protection }, .. } =
            body
        else {
            return self.deliver_unsealed(body, unsealed);
        };
        let ops = Rc::clone(&self.ops);
        self.look_up_next();
        ops.serve_unsealed((conn, slot), |serving| {
            let parsed = CallHeader::parse(message.bytes());
            let (Ok(place), Ok((header, _))) = (unsealed, parsed) else {
                return self.answer_fault(serving, GssFault::Body);
            };
            let arguments =
                Arguments::new(&message.bytes()[at..][place], at, BesideArguments::default());
            let caller = (&protection.context, protection.service);
            self.run_unsealed(serving, caller, Called::of(serving.xid(), &header), arguments)
        });
    }

    /// The arguments are verified, as far as their service goes.
    fn run_unsealed(
        &mut self,
        serving: &Serving<'_>,
        (context, service): (&Arc<Context>, GssService),
        called: Called,
        arguments: Arguments<'_>,
    ) -> CallOutcome {
        let Some(found) = self.find(called.program, called.version) else {
            return self.turn_away(serving, called.program);
        };
        let credential = OpaqueAuth { flavor: AuthFlavor::Gss, body: &[] };
        let state = CallState {
            home: &self.home,
            keeper: None,
            serving,
            called,
            credential: Some(credential),
            arguments: Cell::new(Some(arguments)),
            outcome: Cell::new(None),
            caller: Some(GssCaller { context, service }),
        };
        self.services[found.index].call(found, &state)
    }

    /// INIT or CONTINUE_INIT: the thread for that goes on with it, and answers.
    fn create_context(
        &self,
        serving: &Serving<'_>,
        acceptor: &Arc<Acceptor>,
        (header, credential): (&CallHeader<'_>, &GssCredential<'_>),
        arguments: &[u8],
    ) -> CallOutcome {
        if header.verifier != OpaqueAuth::NONE {
            return self.deny(serving, AuthStat::BadVerf);
        }
        let Ok(token) = parse_init_arguments(arguments) else {
            return self.answer_fault(serving, GssFault::Body);
        };
        if !self.serves(header.program, header.version) {
            return self.turn_away(serving, header.program);
        }
        let Some(to) = self.ops.target(serving) else { return CallOutcome::Done };
        let Some(mut deferred) = self.ops.defer(&to) else {
            return self.refuse(serving, &SYSTEM_ERR);
        };
        let (acceptor, host) = (Arc::clone(acceptor), self.ops.host_of(serving.conn));
        let (handle, token) = (credential.handle.to_vec(), token.to_vec());
        let crypto = Arc::clone(&self.gss.crypto);
        let job = move || {
            if deferred.is_unheard() {
                return;
            }
            let answered = acceptor.take_token(&handle, &token, host);
            if let Some(context) = &answered.context {
                let (context, service) = (Arc::clone(context), GssService::None);
                let sequence = Answered::WINDOW;
                deferred.protect(Protection { context, service, sequence }, crypto);
            }
            let write = |stream: &mut StreamWriter<'_>| answered.result().write(stream.xdr());
            deferred.reply(write);
        };
        // Where it does not run, the deferred call is dropped: SYSTEM_ERR.
        self.gss.shared.take_token(host, job);
        CallOutcome::Deferred
    }

    fn answer_fault(&self, serving: &Serving<'_>, fault: GssFault) -> CallOutcome {
        self.gss.counts.count_fault(fault);
        match fault.answer() {
            GssAnswer::Deny(why) => self.deny(serving, why),
            GssAnswer::Accept(status) => self.refuse(serving, &RpcRefusal::Accepted(status)),
            GssAnswer::Close => {
                // It stays unanswered: the connection takes it along.
                event!(WARN, "a call under RPCSEC_GSS was repeated: its connection is closed");
                self.ops.close(serving.conn);
                CallOutcome::Done
            }
        }
    }

    fn deny(&self, serving: &Serving<'_>, why: AuthStat) -> CallOutcome {
        self.refuse(serving, &RpcRefusal::Denied(RejectStatus::AuthError(why)))
    }
}

/// The credential of a call. Only calls of the procedure NULL create or destroy a context.
fn credential_of<'h>(
    header: &CallHeader<'h>,
    has_chunks: bool,
) -> Result<GssCredential<'h>, GssFault> {
    let OpaqueAuth { flavor: AuthFlavor::Gss, body } = header.credential else {
        return Err(GssFault::Credential);
    };
    let credential = GssCredential::parse(body).map_err(|_| GssFault::Credential)?;
    let is_null = header.procedure == Procedure(0) && !has_chunks;
    let is_valid = credential.procedure == GssProcedure::Data || is_null;
    is_valid.then_some(credential).ok_or(GssFault::Credential)
}

/// Checks the verifier of a call, and uses up its sequence number (RFC 2203 section 5.3.3.1).
fn verify(
    serving: &Serving<'_>,
    acceptor: &Acceptor,
    (bytes, header, at): (&[u8], &CallHeader<'_>, usize),
    credential: &GssCredential<'_>,
) -> Result<Protection, GssFault> {
    let now = now();
    let context = acceptor.table.find(credential.handle, now).ok_or(GssFault::UnknownContext)?;
    let &GssCredential { sequence, service, .. } = credential;
    context.admit_call(now, bytes, (header, at), sequence)?;
    // The signature covers the XID of the RPC header only. That of the transport header, which counts under the drafts,
    // may be anybody's, and kept replies are found by it.
    if header.xid != serving.xid() {
        return Err(GssFault::Verifier);
    }
    Ok(Protection { context, service, sequence })
}
