//! The context of a client: established in-band before its connection is up, behind a NULL call without a credential
//! (a first message has to be short, RFC 5666 section 6.1), and another one when the server has forgotten it or it ends
//! soon. Replies are verified, and unsealed, here.

use super::context_threads::GssCore;
use super::initiator::GssInitiator;
use super::keys::new_context;
use super::other_transport::TcpFallback;
use super::stats::GssCounts;
use super::unseal_reply::unseal_copy;
use crate::api::client::{LinkState, Token};
use crate::api::client_state::{ClientEntry, SetupCall};
use crate::api::connection_setup::NO_TOKEN;
use crate::api::dispatch::Dispatch;
use crate::api::errors::{CallError, ConnectError};
use crate::api::reply_status::{check_status, reply_status};
use crate::api::rfc5666::whole_reply;
use crate::fabric::{ConnId, Peer};
use crate::reactor::in_flight::gss_calls::{InUse, SentCall};
use crate::reactor::types::calls::{
    Backpressure, CallSpec, CallTarget, HeaderTemplate, ReplyFrame, SlotToken,
};
use crate::reactor::types::protection::{ClientContext, now, now_at_most};
use crate::reactor::types::resend_source::Kept;
use crate::reactor::types::rfc5666::Padded;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sys::journal::event;
use spinrpc_gss::Role;
use spinrpc_gss::mechanism::{GoOn, Negotiation};
use spinrpc_proto::ids::{Instant, Procedure, Program, Version, Xid};
use spinrpc_proto::rpc::{
    AcceptStatus, AuthFlavor, AuthStat, GssCredential, GssInitResult, GssProcedure, GssService,
    OpaqueAuth, RejectStatus, ReplyBody, ReplyHeader,
};
use spinrpc_proto::xdr::Reader;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

/// Tokens that a client sends for one context at most.
pub(super) const ROUNDS_MAX: u32 = 8;
const ANSWER_BYTES: usize = 16 << 10;
/// Another context is established when this one has no more sequence numbers left than this: more than calls can be in
/// flight.
const SEQUENCES_SPARE: u32 = 1 << 16;

/// So often another context is tried for, after pauses of which each is twice the one before, until the connection is
/// closed: the server or its key distribution center may be busy.
const RENEWALS_MAX: u32 = 6;
const RENEWAL_PAUSE: Duration = Duration::from_millis(100);

/// A context is replaced when so much of its life is left: an eighth, or this time if that is less.
const RENEWAL_SHARE: u64 = 8;
const RENEWAL_SPARE: Duration = Duration::from_secs(10);
/// Calls go on under a context that is being replaced, except in this share of the rest of its life: it must not end before
/// they arrive.
const LAST_SHARE: u64 = 4;
/// Contexts that last longer than this are replaced at a reply, and not by the clock.
const RENEWAL_AFTER_MAX: Duration = Duration::from_secs(30 * 86_400);

/// Contexts that were replaced and of which the server is told.
const REPLACED_MAX: usize = 4;

pub(super) const DENIED_LONG_TOKEN: &str = "the token of the mechanism is too long";
pub(super) const TOO_MANY_TOKENS: &str = "the context takes too many tokens";
pub(super) const NOT_ASKED: &str = "the mechanism does not ask the server";

pub(in crate::api) struct GssClientState {
    initiator: GssInitiator,
    core: Arc<GssCore>,
    context: Option<Arc<ClientContext>>,
    /// Goes on with the answer to the token that was sent.
    negotiation: Option<GoOn>,
    handle: Vec<u8>,
    rounds: u32,
    /// Number of failures of contexts that replace another.
    failures: u32,
    /// This connection has had a context.
    is_renewing: bool,
    /// Another context is being established, or will be, while calls go on under this one.
    is_behind: bool,
    /// When the step of the mechanism begins, or has begun, that is awaited.
    due: Instant,
    peer: Option<Peer>,
    elsewhere: Option<TcpFallback>,
    /// A token that waits for a credit: calls of the application have them all.
    token: Option<Vec<u8>>,
    /// The server has said that it does not know the context any more.
    is_forgotten: bool,
    /// Contexts before, until no call in flight is under them: then the server is told that it may forget them.
    replaced: Vec<Arc<ClientContext>>,
    /// The call that says so, whose answer means nothing.
    last_words: Option<Xid>,
    /// The result of the thread is needed: false for a closed connection.
    wanted: Arc<AtomicBool>,
}

impl Drop for GssClientState {
    fn drop(&mut self) {
        self.core.shared.forget(&self.wanted);
    }
}

pub(super) struct Outcome {
    conn: ConnId,
    result: Result<Done, String>,
}

/// Result of a step of the mechanism.
pub(super) enum Done {
    /// Send this token; go on with the answer.
    Send(GoOn, Vec<u8>),
    Complete(Arc<ClientContext>),
}

/// The answer to a token: what the thread needs of it.
pub(super) struct Answer {
    pub(super) handle: Vec<u8>,
    window: u32,
    pub(super) token: Vec<u8>,
    /// There if the server says that the context is.
    verifier: Option<Vec<u8>>,
}

impl GssClientState {
    pub(in crate::api) fn new(initiator: GssInitiator, core: &Arc<GssCore>) -> Box<Self> {
        let core = Arc::clone(core);
        Box::new(Self {
            initiator,
            core,
            context: None,
            negotiation: None,
            handle: Vec::new(),
            rounds: 0,
            failures: 0,
            is_renewing: false,
            is_behind: false,
            due: Instant(0),
            peer: None,
            elsewhere: None,
            token: None,
            is_forgotten: false,
            replaced: Vec::new(),
            last_words: None,
            wanted: Arc::new(AtomicBool::new(false)),
        })
    }

    pub(in crate::api) fn connected_to(&mut self, peer: Peer) {
        self.peer = Some(peer);
    }

    pub(super) fn count_error(&self, error: &CallError) {
        self.core.counts.count_error(error);
    }

    /// Its calls have more protection than a verifier.
    pub(in crate::api) fn protects_bodies(&self) -> bool {
        self.initiator.service.protects_body()
    }

    fn is_usable(&self) -> bool {
        self.context.as_ref().is_some_and(|context| {
            let has_numbers = context.context.sequences_left() > SEQUENCES_SPARE;
            has_numbers && !self.is_forgotten && now_at_most() < self.end_of(context)
        })
    }

    /// When calls are no longer to go under this context.
    fn end_of(&self, context: &ClientContext) -> Instant {
        let end = context.context.expires();
        match self.is_behind {
            true => Instant(end.0 - (end.0 - context.renew_at.0) / LAST_SHARE),
            false => context.renew_at,
        }
    }

    /// The result of the thread is pending while calls go on.
    pub(in crate::api) fn is_behind(&self) -> bool {
        self.is_behind
    }

    /// Keeps the last [`REPLACED_MAX`] contexts that were replaced; servers time out the others.
    fn replace(&mut self, before: Option<Arc<ClientContext>>) {
        self.replaced.extend(before);
        let beyond = self.replaced.len().saturating_sub(REPLACED_MAX);
        self.replaced.drain(..beyond);
    }

    /// XID of the call with which a context that was replaced ends.
    pub(in crate::api) fn last_words(&self) -> Option<Xid> {
        self.last_words
    }

    /// Has the thread begin, after this time. What it was to do before is not wanted any more.
    fn begin(&mut self, conn: ConnId, after: Duration) -> Result<(), String> {
        (self.context, self.is_behind, self.is_forgotten) = (None, false, false);
        self.establish(conn, after)
    }

    /// Has the thread establish another context in time, by the clock: calls go on under this one meanwhile.
    fn schedule(&mut self, conn: ConnId) {
        let Some(context) = &self.context else { return };
        let after = Duration::from_nanos(context.renew_at.0.saturating_sub(now().0));
        // One that has ended already would be replaced without end.
        let is_in_time = (RENEWAL_PAUSE..=RENEWAL_AFTER_MAX).contains(&after);
        if self.core.shared.has_threads() && is_in_time {
            self.is_behind = self.establish(conn, after).is_ok();
        }
    }

    fn establish(&mut self, conn: ConnId, after: Duration) -> Result<(), String> {
        self.wanted.store(false, Ordering::Relaxed);
        (self.negotiation, self.token, self.rounds) = (None, None, 0);
        self.due = Instant(now().0.saturating_add(after.as_nanos() as u64));
        self.handle.clear();
        let (initiator, elsewhere) = (self.initiator.clone(), self.elsewhere);
        self.run(conn, after, move |wanted| match elsewhere {
            Some(elsewhere) => elsewhere.establish(&initiator, wanted),
            None => match initiator.begin(now()) {
                Ok(Negotiation::Continue(go_on, token)) => Ok(Done::Send(go_on, token)),
                Ok(Negotiation::Complete(..)) => Err(NOT_ASKED.into()),
                Err(error) => Err(error.reason),
            },
        })
    }

    /// Begins again over another transport, if there is one: the server has denied INIT. The token is another one, as the
    /// server may know the first.
    fn go_elsewhere(
        &mut self,
        conn: ConnId,
        called: (Program, Version),
        denied: RejectStatus,
    ) -> Option<Result<(), String>> {
        let is_init = self.handle.is_empty();
        let peer = self.peer.filter(|_| is_init && self.initiator.has_fallback())?;
        event!(INFO, %peer, ?denied, "contexts are denied over this connection: the other transport is used");
        self.elsewhere = Some(TcpFallback { called, peer, denied });
        Some(self.establish(conn, Duration::ZERO))
    }

    /// Has the thread go on with the answer to a token.
    fn go_on(&mut self, conn: ConnId, answer: Answer) -> Result<(), String> {
        let go_on = self.negotiation.take().ok_or("an answer that was not asked for")?;
        self.handle.clone_from(&answer.handle);
        let service = self.initiator.service;
        self.run(conn, Duration::ZERO, move |_| {
            let step = go_on(&answer.token, now()).map_err(|error| error.reason)?;
            conclude(step, answer, service)
        })
    }

    fn run(
        &mut self,
        conn: ConnId,
        after: Duration,
        work: impl FnOnce(&AtomicBool) -> Result<Done, String> + Send + 'static,
    ) -> Result<(), String> {
        self.wanted = Arc::new(AtomicBool::new(true));
        // Not the core itself, which the thread would keep until then.
        let (core, wanted) = (Arc::downgrade(&self.core), Arc::clone(&self.wanted));
        // Once: a result that comes after its client was told that it is late means nothing.
        let tell = move |result| {
            if let Some(core) = core.upgrade().filter(|_| wanted.swap(false, Ordering::Relaxed)) {
                core.tell(Outcome { conn, result });
            }
        };
        let (tell_late, wanted) = (tell.clone(), Arc::clone(&self.wanted));
        let job = move || {
            if wanted.load(Ordering::Relaxed) {
                let done = catch_unwind(AssertUnwindSafe(|| work(&wanted)));
                tell(done.unwrap_or_else(|_| Err("the mechanism panicked".into())));
            }
        };
        let ms = self.core.shared.patience.as_millis();
        let busy = match self.elsewhere {
            Some(_) => "the other transport, or the mechanism,",
            None => "the mechanism",
        };
        let late = move || tell_late(Err(format!("{busy} has not returned in {ms} ms")));
        let runs = self.core.shared.initiate(after, &self.wanted, job, late);
        runs.then_some(()).ok_or_else(|| "there is no thread for contexts".to_owned())
    }
}

/// The result of a step of the mechanism with the token of this answer: the next token, or the context.
pub(super) fn conclude(
    step: Negotiation,
    answer: Answer,
    service: GssService,
) -> Result<Done, String> {
    match (step, answer.verifier) {
        (Negotiation::Continue(go_on, token), None) => Ok(Done::Send(go_on, token)),
        (Negotiation::Complete(established, _), Some(verifier)) => {
            let context = new_context(Role::Initiator, established);
            let context = context.map_err(|error| format!("no memory for keys: {error}"))?;
            let verified = context.verify_reply(answer.window, &verifier);
            verified.map_err(|_| "the server does not have the key of the context")?;
            let Answer { handle, window, .. } = answer;
            let renew_at = renew_at(now(), context.expires());
            let is_answered = AtomicBool::new(false);
            let context = ClientContext { context, handle, service, window, renew_at, is_answered };
            Ok(Done::Complete(Arc::new(context)))
        }
        _ => Err("the ends disagree whether the context is established".into()),
    }
}

/// Writes the credential of INIT, or of CONTINUE_INIT where the server has given a handle. Returns its length.
pub(super) fn gss_credential(
    service: GssService,
    handle: &[u8],
    body: &mut [u8],
) -> Result<usize, String> {
    let procedure = match handle.is_empty() {
        true => GssProcedure::Init,
        false => GssProcedure::ContinueInit,
    };
    let credential = GssCredential { procedure, sequence: 0, service, handle };
    credential.emit(body).map_err(|_| "the handle is too long".into())
}

impl Dispatch {
    /// The first call was answered: a context is needed before any other. Another connection gets another one, because calls
    /// that are sent again are to find a context that the server knows, be it another process.
    pub(in crate::api) fn secure(entry: &mut ClientEntry, conn: ConnId) {
        let Some(securing) = &mut entry.securing else { return };
        (securing.failures, securing.is_renewing, securing.elsewhere) = (0, false, None);
        if let Err(reason) = securing.begin(conn, Duration::ZERO) {
            Self::fail_securing(entry, conn, reason);
        }
    }

    #[cold]
    pub(in crate::api) fn take_outcomes(&mut self) {
        let core = Arc::clone(&self.gss);
        while let Some(Outcome { conn, result }) = core.outcomes.pop() {
            let Some(entry) = self.client_of_calls(conn) else { continue };
            if !entry.awaits_context(conn) {
                continue;
            }
            let gone_on = result.and_then(|done| Self::after_step(entry, conn, done));
            if let Err(reason) = gone_on {
                Self::fail_securing(entry, conn, reason);
            }
        }
    }

    fn after_step(entry: &mut ClientEntry, conn: ConnId, done: Done) -> Result<(), String> {
        let Some(securing) = &mut entry.securing else { return Ok(()) };
        match done {
            Done::Send(go_on, token) => {
                securing.rounds += 1;
                if securing.rounds > ROUNDS_MAX {
                    return Err(TOO_MANY_TOKENS.into());
                }
                (securing.negotiation, securing.token) = (Some(go_on), Some(token));
                Self::call_with_token(entry, conn)
            }
            Done::Complete(context) => {
                GssCounts::count(&securing.core.counts.contexts_established);
                let before = securing.context.replace(Arc::clone(&context));
                securing.replace(before);
                (securing.failures, securing.is_renewing) = (0, true);
                securing.is_forgotten = false;
                let is_behind = std::mem::take(&mut securing.is_behind);
                securing.schedule(conn);
                entry.link.ops.set_context(conn, Some(context));
                // Before any other call but those that are sent again.
                if entry.link.state.get() != LinkState::Resending(conn) {
                    entry.link.ops.retry_denied(conn);
                }
                if !is_behind {
                    Self::begin_secured(entry, conn);
                }
                Self::end_replaced(entry, conn);
                Ok(())
            }
        }
    }

    /// INIT, or CONTINUE_INIT where the server has given a handle. Where calls have all credits, the token waits for the
    /// next reply.
    fn call_with_token(entry: &mut ClientEntry, conn: ConnId) -> Result<(), String> {
        let Some(securing) = &mut entry.securing else { return Ok(()) };
        let Some(token) = securing.token.take() else { return Ok(()) };
        let mut body = [0; spinrpc_proto::rpc::AUTH_BODY_MAX_BYTES];
        let length = gss_credential(securing.initiator.service, &securing.handle, &mut body)?;
        let credential = OpaqueAuth { flavor: AuthFlavor::Gss, body: &body[..length] };
        let (program, version) = entry.link.called();
        let header = HeaderTemplate::new(program, version, credential);
        let target = CallTarget { header: &header, procedure: Procedure(0), token: NO_TOKEN };
        let mut spec = CallSpec::new().reply_bytes_max(ANSWER_BYTES);
        spec = spec.deadline(securing.core.shared.patience);
        spec.mark_setup();
        if token.len() > spinrpc_proto::rpc::GSS_TOKEN_MAX_BYTES {
            return Err(DENIED_LONG_TOKEN.into());
        }
        let write = |stream: &mut crate::api::Encoder<'_>| stream.opaque(&token);
        match entry.link.ops.start_call((conn, &None), target, &mut spec, write, |_| {}) {
            Ok(call) => entry.setup_call = Some((call.slot(), SetupCall::Token)),
            Err(Backpressure::NoCredit) => securing.token = Some(token),
            Err(refused) => return Err(refused.to_string()),
        }
        Ok(())
    }

    #[cold]
    pub(in crate::api) fn take_token_answer(
        entry: &mut ClientEntry,
        conn: ConnId,
        stream: &[u8],
        padded: Option<Padded>,
    ) {
        let called = entry.link.called();
        let Some(securing) = &mut entry.securing else { return };
        let gone_on = match reply_status(stream) {
            Err(CallError::Rejected(denied @ RejectStatus::AuthError(_))) => {
                securing.go_elsewhere(conn, called, denied)
            }
            _ => None,
        };
        let gone_on = gone_on.unwrap_or_else(|| {
            let mut reader = Padded::reader(padded, stream);
            parse_answer(&mut reader).and_then(|answer| securing.go_on(conn, answer))
        });
        if let Err(reason) = gone_on {
            Self::fail_securing(entry, conn, reason);
        }
    }

    /// There is no context, so that there can be no calls.
    #[cold]
    pub(in crate::api) fn fail_securing(entry: &mut ClientEntry, conn: ConnId, reason: String) {
        let is_lost = entry.link.is_closed.get() || !entry.awaits_context(conn);
        if let Some(securing) = &mut entry.securing {
            // What failed over the other transport may go over the connection now.
            (securing.negotiation, securing.token, securing.elsewhere) = (None, None, None);
            GssCounts::count(&securing.core.counts.contexts_failed);
            if securing.is_behind && !is_lost {
                event!(WARN, %reason, "no new security context yet");
                return Self::renew_later(entry, conn);
            }
            if securing.is_renewing && securing.failures < RENEWALS_MAX && !is_lost {
                let after = RENEWAL_PAUSE * (1 << securing.failures);
                securing.failures += 1;
                event!(WARN, %reason, "no new security context yet");
                if securing.begin(conn, after).is_ok() {
                    return;
                }
            }
        }
        event!(WARN, %reason, "no security context");
        if !entry.link.was_up.get() {
            entry.fail_first(ConnectError::Security(reason.clone()));
        }
        entry.link.ops.close_insecure(conn, reason);
    }

    /// The context that is in use has some time left: another one is tried for after a pause, or, if it has none, at once.
    fn renew_later(entry: &mut ClientEntry, conn: ConnId) {
        let Some(securing) = &mut entry.securing else { return };
        let after = RENEWAL_PAUSE * (1 << securing.failures.min(RENEWALS_MAX));
        securing.failures = securing.failures.saturating_add(1).min(RENEWALS_MAX);
        if !securing.is_usable() || securing.establish(conn, after).is_err() {
            securing.is_behind = false;
            Self::attend_context(entry, conn);
        }
    }

    /// A reply to a client whose calls go under a context.
    #[cold]
    #[inline(never)]
    pub(in crate::api) fn on_protected_reply(&mut self, mut frame: ReplyFrame<'_>) {
        // What the call was under, not what the reply says: a server may answer with that of another call.
        let (conn, xid) = (frame.conn, frame.xid);
        let mut sent = self.ops.take_sent(conn, xid);
        let kept = frame.buffers.as_ref().and_then(|buffers| buffers.kept.as_ref());
        if let (Some(sent), Some(slot)) = (&mut sent, kept.and_then(Kept::denied_in)) {
            sent.slot = slot;
        }
        let pool = self.ops.pool();
        let Some(entry) = self.client_of_calls(conn) else { return };
        // A token may wait for the credit. Before calls that the application starts in its handler.
        if let Err(reason) = Self::call_with_token(entry, conn) {
            Self::fail_securing(entry, conn, reason);
        }
        if entry.destroys_context(xid) {
            if let Some(securing) = &mut entry.securing {
                securing.last_words.take_if(|last| *last == xid);
            }
            Self::end_replaced(entry, conn);
            return;
        }
        let gathered = match &sent {
            Some(sent) if sent.context.service.protects_body() => whole_reply(&pool, &mut frame),
            _ => Ok(frame.buffers.as_mut().and_then(|buffers| buffers.whole.take())),
        };
        let stream = match &gathered {
            Ok(Some(whole)) => whole.bytes(),
            _ => frame.stream,
        };
        let mut reader = Padded::reader(frame.padded, stream);
        let checked = match (&gathered, &sent) {
            (Err(error), _) => Err(error.clone()),
            (_, None) => Err(NOT_AUTHENTIC),
            (_, Some(sent)) => verify(sent, &mut reader),
        };
        let base = reader.stream_position();
        if entry.awaits_config(xid) {
            return Self::take_secured_config(entry, (conn, stream), checked, (sent, &pool));
        }
        let results_at = match checked {
            Ok(at) => at,
            Err(error) => {
                Self::fail_unverified(entry, &mut frame, &mut sent, &error);
                return self.after_reply(conn, sent.as_ref(), Some(&error));
            }
        };
        if let Some(padded) = &mut frame.padded {
            padded.start += results_at;
        }
        if let Some(sent) = &mut sent {
            sent.kept = None;
            sent.context.is_answered.store(true, Ordering::Relaxed);
        }
        let whole = gathered.ok().flatten();
        Self::deliver_verified(entry, frame, &mut sent, (whole, (results_at, base), &pool));
        self.after_reply(conn, None, None);
    }

    /// The call of a reply that cannot be believed: held for another context if the server has forgotten this one, else
    /// failed.
    fn fail_unverified(
        entry: &mut ClientEntry,
        frame: &mut ReplyFrame<'_>,
        sent: &mut Option<SentCall>,
        error: &CallError,
    ) {
        if let Some(securing) = &entry.securing {
            securing.count_error(error);
        }
        let is_forgotten = says_forgotten(error);
        if let Some(sent) = sent.as_mut().filter(|_| is_forgotten) {
            let call = SlotToken { slot: sent.slot, token: frame.token };
            let buffers = frame.buffers.as_deref_mut();
            if entry.link.ops.hold_denied(frame.conn, call, &mut sent.kept, buffers) {
                return;
            }
        }
        let kept = frame.buffers.as_ref().and_then(|buffers| buffers.kept.as_ref());
        // This connection has not executed it, but one before may have.
        let error = match is_forgotten && kept.is_some_and(Kept::is_unknown) {
            true => CallError::Disconnected(entry.link.ops.lost_by(frame.conn)),
            false => error.clone(),
        };
        entry.handler.on_reply(Token(frame.token), Err(error));
    }

    /// The reply of the Connection Configuration Protocol. One that is not authentic configures nothing.
    fn take_secured_config(
        entry: &mut ClientEntry,
        (conn, stream): (ConnId, &[u8]),
        checked: Result<usize, CallError>,
        (sent, pool): (Option<SentCall>, &crate::mem::BulkPool),
    ) {
        let unsealed = checked.and_then(|at| match &sent {
            Some(sent) => unseal_copy((pool, &entry.link.ops.crypto), sent, &stream[at..]),
            None => Err(NOT_AUTHENTIC),
        });
        if let (Err(error), Some(securing)) = (&unsealed, &entry.securing) {
            securing.count_error(error);
        }
        let results = unsealed.as_ref().map(|(message, place)| &message.bytes()[place.clone()]);
        Self::finish_secured_config(entry, conn, results.map_err(Clone::clone));
    }

    /// Another context is established where the server has forgotten this one, or it ends soon.
    fn after_reply(&mut self, conn: ConnId, sent: Option<&SentCall>, error: Option<&CallError>) {
        let Some(entry) = self.client_of_calls(conn) else { return };
        let Some(securing) = &mut entry.securing else { return };
        securing.is_forgotten |= error.is_some_and(says_forgotten)
            && sent
                .zip(securing.context.as_ref())
                .is_some_and(|(sent, context)| Arc::ptr_eq(&sent.context, context));
        Self::attend_context(entry, conn);
    }

    #[cold]
    pub(in crate::api) fn attend_context(entry: &mut ClientEntry, conn: ConnId) {
        if entry.link.state.get() != LinkState::Up(conn) || entry.link.is_closed.get() {
            return;
        }
        let Some(securing) = &mut entry.securing else { return };
        let is_forgotten = securing.is_forgotten;
        if !is_forgotten && securing.is_usable() {
            if !securing.replaced.is_empty() {
                Self::end_replaced(entry, conn);
            }
            entry.link.ops.retry_denied(conn);
            return;
        }
        let replaced = securing.context.take().filter(|_| !is_forgotten);
        securing.replace(replaced);
        // One that is being established is waited for, rather than begun again.
        let goes_on = securing.is_behind && securing.due <= now_at_most();
        (securing.is_behind, securing.is_forgotten, securing.failures) = (false, false, 0);
        entry.link.ops.set_context(conn, None);
        entry.link.lose(LinkState::Probing(conn));
        if goes_on {
            return;
        }
        if let Err(reason) = securing.begin(conn, Duration::ZERO) {
            Self::fail_securing(entry, conn, reason);
        }
    }
}

impl Dispatch {
    /// Tells the server that it may forget a context that has been replaced, once no call in flight is under it.
    fn end_replaced(entry: &mut ClientEntry, conn: ConnId) {
        let Some(securing) = &mut entry.securing else { return };
        if securing.last_words.is_some() {
            return;
        }
        let called = entry.link.called();
        let unused = securing.replaced.iter().position(|context| {
            match entry.link.ops.destroy_replaced(conn, context, called) {
                Ok(last_words) => {
                    securing.last_words = last_words;
                    true
                }
                Err(InUse) => false,
            }
        });
        unused.map(|index| securing.replaced.remove(index));
    }

    /// The connection of a client has gone. The core, with all its connections, waits for the threads that unseal its replies, so
    /// that the client gets these before it hears that its calls have ended.
    pub(in crate::api) fn end_replies(&mut self, conn: ConnId) {
        while let Some((reply, unsealed)) = self.ops.wait_for_reply(conn) {
            self.deliver_unsealed(reply, unsealed);
        }
        let Some(entry) = self.client_of_calls(conn) else { return };
        let Some(securing) = &mut entry.securing else { return };
        securing.replaced.clear();
        securing.core.shared.forget(&securing.wanted);
        (securing.last_words, securing.is_behind, securing.token) = (None, false, None);
    }
}

/// When a context that ends at `end` is replaced.
fn renew_at(now: Instant, end: Instant) -> Instant {
    let life = end.0.saturating_sub(now.0);
    Instant(end.0 - (life / RENEWAL_SHARE).min(RENEWAL_SPARE.as_nanos() as u64))
}

pub(in crate::api) const NOT_AUTHENTIC: CallError = CallError::NotAuthentic;

/// The server does not know the context any more, or wants no more calls of it (RFC 2203 section 5.3.3.3).
fn says_forgotten(error: &CallError) -> bool {
    use AuthStat::{GssCredProblem, GssCtxProblem};
    matches!(error, CallError::Rejected(RejectStatus::AuthError(GssCredProblem | GssCtxProblem)))
}

/// Where the results of a verified reply start. A reply that denies the call has no verifier.
fn verify(sent: &SentCall, reader: &mut Reader<'_>) -> Result<usize, CallError> {
    let header = ReplyHeader::read(reader)?;
    let results_at = reader.position();
    match header.body {
        ReplyBody::Denied(status) => Err(CallError::Rejected(status)),
        ReplyBody::Accepted { verifier, status } => {
            let context = &sent.context.context;
            let verified = context.verify_reply(sent.sequence, verifier.body);
            if verifier.flavor != AuthFlavor::Gss || verified.is_err() {
                return Err(NOT_AUTHENTIC);
            }
            match status {
                AcceptStatus::Success => Ok(results_at),
                status => Err(CallError::Accepted(status)),
            }
        }
    }
}

pub(super) fn parse_answer(reader: &mut Reader<'_>) -> Result<Answer, String> {
    let header = ReplyHeader::read(reader).map_err(|error| error.to_string())?;
    check_status(&header).map_err(|error| error.to_string())?;
    let result = GssInitResult::read(reader).map_err(|error| error.to_string())?;
    let verifier = match (result.major, header.body) {
        (GssInitResult::CONTINUE_NEEDED, _) if !result.handle.is_empty() => None,
        (GssInitResult::COMPLETE, ReplyBody::Accepted { verifier, .. })
            if verifier.flavor == AuthFlavor::Gss && !result.handle.is_empty() =>
        {
            Some(verifier.body.to_vec())
        }
        (GssInitResult::COMPLETE | GssInitResult::CONTINUE_NEEDED, _) => {
            return Err("the server answered without a handle or a verifier".into());
        }
        (major, _) => {
            let minor = result.minor;
            let why = reason(major, minor);
            return Err(format!(
                "the server refused the context: {why}major {major:#x}, minor {minor}"
            ));
        }
    };
    let (handle, token) = (result.handle.to_vec(), result.token.to_vec());
    Ok(Answer { handle, window: result.window, token, verifier })
}

/// Statuses of MIT's library, which servers send as they are.
#[cfg(feature = "krb5")]
fn reason(major: u32, minor: u32) -> String {
    use spinrpc_gss::library::Fault;
    match Fault::from_acceptor(major, minor) {
        // Its words would be those of a client.
        Fault::DefectiveToken | Fault::NoTicket | Fault::Other => String::new(),
        Fault::TicketExpired => "the ticket has expired by the server's clock; ".into(),
        Fault::TicketNotYetValid => "the ticket is not valid yet by the server's clock; ".into(),
        fault => format!("{fault}; "),
    }
}

#[cfg(not(feature = "krb5"))]
const fn reason(_major: u32, _minor: u32) -> &'static str {
    ""
}
