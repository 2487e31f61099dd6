//! Calls and replies under RPCSEC_GSS (RFC 2203): verifiers, and bodies that are sealed and unsealed in private memory.
//! Used by both halves, and by threads that answer deferred calls.

use crate::fabric::LimitScope;
use crate::mem::{Bulk, BulkPool};
use crate::reactor::types::crypto_counts::CryptoCounts;
use crate::reactor::types::encoded_stream::EncodedStream;
use crate::reactor::types::reply_plan::ReplyData;
use crate::sync::atomic::{AtomicBool, Ordering};
use rustix::time::{ClockId, clock_gettime};
use spinrpc_gss::context::Context;
use spinrpc_gss::random::{AesConfounders, SEED_BYTES};
use spinrpc_gss::{MIC_MAX_BYTES, Mic, content_at, seal_body, sealed_bytes, unseal_body};
use spinrpc_proto::chunking::{Item, Placement, StreamWriter};
use spinrpc_proto::ids::{Instant, Program, Version, Xid};
use spinrpc_proto::limits::{INLINE_THRESHOLD_MIN_BYTES, ITEMS_MAX};
use spinrpc_proto::rpc::{
    AcceptStatus, AuthFlavor, CallHeader, GssCredential, GssProcedure, GssService, OpaqueAuth,
    ReplyBody, ReplyHeader,
};
use spinrpc_proto::xdr::roundup4;
use std::cell::RefCell;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;

/// The RPC header of a reply with the longest verifier of a mechanism.
const REPLY_HEAD_BYTES: usize = 24 + roundup4(MIC_MAX_BYTES);
/// The RPC header of a call with the longest credential, and the longest verifier of a mechanism.
pub(in crate::reactor) const CALL_HEAD_BYTES: usize = 40 + 400 + roundup4(MIC_MAX_BYTES);
/// Longest frame around a body: lengths, token header, confounder, sequence number, encrypted header, checksum and
/// roundup.
const FRAME_BYTES: usize = 4 + 16 + 16 + 4 + 16 + 24 + 4;

/// Longest message of a call that is kept regardless of its context: the size of the shortest blocks of a core's
/// memory.
const KEPT_BYTES_MAX: usize = 8 << 10;

/// A generator of confounders gets another seed of the system after this many bodies: a system call in a million messages.
const RESEED_AFTER: u64 = 1 << 20;

thread_local! {
    /// Of this thread; there from its first sealed body.
    static CONFOUNDERS: RefCell<Option<AesConfounders>> = const { RefCell::new(None) };
}

/// Context and service that protect the answer to a verified call.
#[derive(Clone)]
pub(crate) struct Protection {
    pub(crate) context: Arc<Context>,
    pub(crate) service: GssService,
    /// Sequence number of the call.
    pub(crate) sequence: u32,
}

/// The words of a call that stay the same under a context: call, version, program, its version and procedure.
pub(in crate::reactor) struct CallWords([u8; Self::BYTES]);

impl CallWords {
    const BYTES: usize = 20;

    /// Those of a call of the NULL procedure.
    pub(in crate::reactor) fn null(program: Program, version: Version) -> Self {
        let mut words = [0; Self::BYTES];
        words[7] = 2;
        words[8..12].copy_from_slice(&program.0.to_be_bytes());
        words[12..16].copy_from_slice(&version.0.to_be_bytes());
        Self(words)
    }

    /// Those of an RPC message, and where its arguments begin.
    fn of(stream: &[u8]) -> Result<(Self, usize), ProtectError> {
        let (_, at) = CallHeader::parse(stream).map_err(|_| ProtectError::Failed)?;
        let words = stream[4..].first_chunk().ok_or(ProtectError::Failed)?;
        Ok((Self(*words), at))
    }

    /// Those of an RPC message, and its arguments; `None` if it has a credential.
    pub(in crate::reactor) fn split(stream: &[u8]) -> Option<(Self, &[u8])> {
        let (_xid, rest) = stream.split_first_chunk::<4>()?;
        let (head, rest) = rest.split_first_chunk()?;
        let (authentication, arguments) = rest.split_first_chunk::<16>()?;
        (*authentication == [0; 16]).then_some((Self(*head), arguments))
    }
}

/// A message in the memory that it is sent from, so that it needs no second buffer.
pub(crate) struct LaidOut {
    pub(crate) message: Bulk,
    /// Offset of the body, which is not sealed yet.
    pub(crate) at: usize,
}

/// A security context at the client that calls under it.
pub(crate) struct ClientContext {
    pub(crate) context: Context,
    /// The name that the server gave it.
    pub(crate) handle: Vec<u8>,
    pub(crate) service: GssService,
    /// Largest distance between sequence numbers of calls in flight, as stated by the server.
    pub(crate) window: u32,
    /// Time to renew it, before it expires.
    pub(crate) renew_at: Instant,
    /// The server has answered a call under it, so the server has the context and does not take it for unused.
    pub(crate) is_answered: AtomicBool,
}

/// A message cannot be protected, or unsealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProtectError {
    /// No memory of this many bytes is free.
    NoMemory(usize),
    /// Its encoder is wrong, or the system provides no random numbers.
    Failed,
    /// It is not what the other end sent.
    Forged,
}

impl fmt::Display for ProtectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoMemory(bytes) => write!(f, "no memory of {bytes} bytes is free"),
            Self::Failed => f.write_str("it cannot be encoded"),
            Self::Forged => f.write_str("its protection does not check"),
        }
    }
}

/// The time, which contexts expire by, exact to some milliseconds: it is read for each call and each reply, and takes a
/// fifth of the time of an exact one.
pub(crate) fn now() -> Instant {
    let time = clock_gettime(ClockId::MonotonicCoarse);
    Instant(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// The time is no later than this, as far as [`now`] can tell: a tick of the slowest kernel is 10 ms.
pub(crate) fn now_at_most() -> Instant {
    const TICK_NS: u64 = 10_000_000;
    Instant(now().0.saturating_add(TICK_NS))
}

/// Random bytes of the system.
pub(crate) fn fill_random(bytes: &mut [u8]) -> Result<(), ProtectError> {
    use rustix::rand::{GetRandomFlags, getrandom};
    match getrandom(&mut *bytes, GetRandomFlags::empty()) {
        Ok(count) if count == bytes.len() => Ok(()),
        _ => Err(ProtectError::Failed),
    }
}

/// A number for a host, by which its contexts are counted.
pub(crate) fn host_number(host: IpAddr) -> u64 {
    let mut hasher = DefaultHasher::new();
    LimitScope::of(host).hash(&mut hasher);
    hasher.finish()
}

impl Protection {
    /// The verifier of the reply.
    pub(in crate::reactor) fn sign(&self) -> Mic {
        self.context.sign_reply(self.sequence)
    }

    /// The RPC header of an accepted reply.
    pub(in crate::reactor) fn header<'a>(
        &self,
        xid: Xid,
        status: AcceptStatus,
        mic: &'a Mic,
    ) -> ReplyHeader<'a> {
        let verifier = OpaqueAuth { flavor: AuthFlavor::Gss, body: mic.as_slice() };
        ReplyHeader { xid, body: ReplyBody::Accepted { verifier, status } }
    }

    /// Passes a reply to `send` whose only protection is its verifier.
    pub(in crate::reactor) fn behind_header<T>(
        &self,
        draft: &EncodedStream<'_>,
        send: impl FnOnce(&EncodedStream<'_>) -> T,
    ) -> T {
        let (head, length) = self.success_header();
        send(&draft.behind(&head[..length]))
    }

    /// Bytes of the RPC header of a reply.
    pub(in crate::reactor) fn head_bytes(&self) -> usize {
        24 + self.context.send_keys().mic_bytes()
    }

    /// Writes the RPC header of a reply that says success to a place of that length.
    pub(in crate::reactor) fn put_head(&self, xid: Xid, place: &mut [u8]) {
        let mic = self.sign();
        let (head, rest) = place.split_at_mut(20);
        // XID and REPLY as the pair that is copied on; MSG_ACCEPTED in front of the verifier.
        head[..8].copy_from_slice(&(u64::from(xid.0) << 32 | 1).to_be_bytes());
        head[8..12].fill(0);
        head[12..].copy_from_slice(&auth_head(mic.as_slice().len()));
        let (verifier, status) = rest.split_at_mut(mic.as_slice().len());
        verifier.copy_from_slice(mic.as_slice());
        status.fill(0);
    }

    /// Lays out a whole reply whose body is not sealed yet.
    pub(in crate::reactor) fn lay_out(
        &self,
        pool: &BulkPool,
        data: &ReplyData,
        draft: &EncodedStream<'_>,
    ) -> Result<LaidOut, ProtectError> {
        let secured = (&*self.context, self.service);
        let (head, at) = self.success_header();
        let parts = (&head[..at], data.item_bytes());
        let message = lay_out(secured, |bytes| private_block(pool, bytes), parts, (draft, 0))?;
        Ok(LaidOut { message, at })
    }

    /// Seals the body of such a reply.
    pub(in crate::reactor) fn seal(
        &self,
        reply: &mut LaidOut,
        counts: &CryptoCounts,
    ) -> Result<(), ProtectError> {
        let body = &mut reply.message.bytes_mut()[reply.at..];
        seal((&self.context, self.service), body, self.sequence, counts)
    }

    /// The RPC header of a reply that says success, and its length. The XID is put in when the reply is posted.
    fn success_header(&self) -> ([u8; REPLY_HEAD_BYTES], usize) {
        let mut head = [0; REPLY_HEAD_BYTES];
        let mic = self.sign();
        let length = self.header(Xid(0), AcceptStatus::Success, &mic).emit(&mut head);
        (head, length)
    }
}

impl ClientContext {
    /// Returns true if a call with a message of this size is kept in case it is denied because the server has lost
    /// the context: a short message always, a long one until the context is known to be in use.
    pub(in crate::reactor) fn keeps_call(&self, bytes: usize) -> bool {
        bytes <= KEPT_BYTES_MAX || !self.is_answered.load(Ordering::Relaxed)
    }

    /// Signs the call in `draft`, whose body is not protected: returns it behind the header that this writes to `head`.
    pub(in crate::reactor) fn sign<'a>(
        &self,
        numbers: (Xid, u32),
        draft: &EncodedStream<'a>,
        head: &'a mut [u8],
    ) -> Result<EncodedStream<'a>, ProtectError> {
        let (words, at) = CallWords::of(draft.stream())?;
        let length = self.emit_head(GssProcedure::Data, numbers, words, head)?;
        Ok(draft.from(at).behind(&head[..length]))
    }

    /// Bytes of the RPC header that [`ClientContext::emit_head`] writes.
    pub(in crate::reactor) fn head_bytes(&self) -> usize {
        let (procedure, service) = (GssProcedure::Data, self.service);
        let credential = GssCredential { procedure, sequence: 0, service, handle: &self.handle };
        let mic_bytes = self.context.send_keys().mic_bytes();
        4 + CallWords::BYTES + 8 + credential.buffer_len() + 8 + mic_bytes
    }

    /// Writes the RPC header of a call, with credential and verifier; returns its length.
    pub(in crate::reactor) fn emit_head(
        &self,
        procedure: GssProcedure,
        (xid, sequence): (Xid, u32),
        words: CallWords,
        to: &mut [u8],
    ) -> Result<usize, ProtectError> {
        const CREDENTIAL_AT: usize = 4 + CallWords::BYTES + 8;
        let service = self.service;
        let credential = GssCredential { procedure, sequence, service, handle: &self.handle };
        let place = to.get_mut(CREDENTIAL_AT..).ok_or(ProtectError::Failed)?;
        let length = credential.emit(place).map_err(|_| ProtectError::Failed)?;
        to[..4].copy_from_slice(&xid.0.to_be_bytes());
        to[4..CREDENTIAL_AT - 8].copy_from_slice(&words.0);
        to[CREDENTIAL_AT - 8..CREDENTIAL_AT].copy_from_slice(&auth_head(length));
        let (signed, rest) = to.split_at_mut(CREDENTIAL_AT + length);
        let mic = self.context.sign_call(signed);
        let mic = mic.as_slice();
        let (head, place) = rest.split_first_chunk_mut().ok_or(ProtectError::Failed)?;
        *head = auth_head(mic.len());
        place.get_mut(..mic.len()).ok_or(ProtectError::Failed)?.copy_from_slice(mic);
        Ok(CREDENTIAL_AT + length + 8 + mic.len())
    }

    /// Lays out a call whose body is not sealed yet, in memory of `memory`.
    pub(in crate::reactor) fn lay_out<'i>(
        &self,
        memory: impl FnOnce(usize) -> Result<Bulk, ProtectError>,
        numbers: (Xid, u32),
        items: impl Iterator<Item = &'i [u8]>,
        draft: &EncodedStream<'_>,
    ) -> Result<LaidOut, ProtectError> {
        let (words, from) = CallWords::of(draft.stream())?;
        let mut bytes = [0; CALL_HEAD_BYTES];
        let at = self.emit_head(GssProcedure::Data, numbers, words, &mut bytes)?;
        let (secured, parts) = ((&self.context, self.service), (&bytes[..at], items));
        let message = lay_out(secured, memory, parts, (draft, from))?;
        Ok(LaidOut { message, at })
    }
}

/// Flavor and length of a credential or verifier of RPCSEC_GSS.
fn auth_head(bytes: usize) -> [u8; 8] {
    (u64::from(AuthFlavor::Gss.to_wire()) << 32 | bytes as u64).to_be_bytes()
}

/// Lays out a message with room for the seal of its body, in private memory from `memory`.
fn lay_out<'i>(
    (context, service): (&Context, GssService),
    memory: impl FnOnce(usize) -> Result<Bulk, ProtectError>,
    (head, items): (&[u8], impl Iterator<Item = &'i [u8]>),
    (draft, at): (&EncodedStream<'_>, usize),
) -> Result<Bulk, ProtectError> {
    let mut places = [const { Item { bytes: &[], placement: Placement::Inline } }; ITEMS_MAX];
    let mut content_bytes = draft.stream().len() - at;
    let mut count = 0;
    for (item, place) in items.zip(&mut places) {
        place.bytes = item;
        content_bytes += roundup4(item.len());
        count += 1;
    }
    let body_bytes = sealed_bytes(service, context.send_keys(), content_bytes);
    let mut message = memory(head.len() + body_bytes)?;
    let (start, body) = message.bytes_mut().split_at_mut(head.len());
    start.copy_from_slice(head);
    let content = &mut body[content_at(service)..][..content_bytes];
    let mut writer = StreamWriter::new(content, &places[..count]);
    draft.from(at).write(&mut writer);
    let encoded = writer.finish();
    if !encoded.fits || encoded.items_missing || encoded.stream_bytes != content_bytes {
        return Err(ProtectError::Failed);
    }
    Ok(message)
}

/// Room for a reply that has its data in it, and a frame around it.
pub(in crate::reactor) fn protected_reply_bytes(
    reply_bytes_max: usize,
    results: &[Option<Bulk>; ITEMS_MAX],
) -> usize {
    let results = results.iter().flatten();
    let data_bytes: usize = results.map(|result| 4 + roundup4(result.len())).sum();
    if reply_bytes_max == 0 && data_bytes == 0 {
        return 0;
    }
    let rest_bytes = reply_bytes_max.max(INLINE_THRESHOLD_MIN_BYTES as usize);
    (rest_bytes + data_bytes + FRAME_BYTES).min(u32::MAX as usize / 2)
}

/// Seals a body that is laid out.
pub(in crate::reactor) fn seal(
    (context, service): (&Context, GssService),
    body: &mut [u8],
    sequence: u32,
    counts: &CryptoCounts,
) -> Result<(), ProtectError> {
    let (keys, counter) = (context.send_keys(), context.next_counter());
    counts.count(service, body.len());
    counts.measure(service, || {
        with_confounders(|confounders| {
            seal_body(service, keys, body, sequence, counter, confounders)
                .map_err(|_| ProtectError::Failed)
        })
    })
}

fn with_confounders<T>(
    run: impl FnOnce(&mut AesConfounders) -> Result<T, ProtectError>,
) -> Result<T, ProtectError> {
    CONFOUNDERS.with_borrow_mut(|place| match place {
        Some(confounders) if confounders.used() < RESEED_AFTER => run(confounders),
        _ => run(seeded(place)?),
    })
}

/// A generator with another seed of the system: a new one, or that of the thread.
#[cold]
fn seeded(place: &mut Option<AesConfounders>) -> Result<&mut AesConfounders, ProtectError> {
    let mut seed = [0; SEED_BYTES];
    fill_random(&mut seed)?;
    let seeded = match place {
        Some(confounders) => {
            confounders.reseed(&seed);
            confounders
        }
        None => place.insert(AesConfounders::new(&seed)),
    };
    seed.fill(0);
    // Without a reader the compiler would leave that out.
    std::hint::black_box(&seed);
    Ok(seeded)
}

/// Takes a block of the pool for a body, exactly so long: memory that no peer can write to.
pub(crate) fn private_block(pool: &BulkPool, bytes: usize) -> Result<Bulk, ProtectError> {
    let mut bulk = pool.take(bytes).ok_or(ProtectError::NoMemory(bytes))?;
    bulk.set_len(bytes);
    Ok(bulk)
}

/// Unseals a body in memory that no peer can write to; returns the place of the arguments or results.
pub(crate) fn unseal(
    context: &Context,
    service: GssService,
    body: &mut [u8],
    sequence: u32,
    counts: &CryptoCounts,
) -> Result<Range<usize>, ProtectError> {
    counts.count(service, body.len());
    counts.measure(service, || {
        unseal_body(service, context.receive_keys(), body, sequence)
            .map_err(|_| ProtectError::Forged)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::clock::Clock;
    use spinrpc_gss::context::Established;
    use spinrpc_gss::random::Confounders;
    use spinrpc_gss::{Enctype, Role, SessionKey};
    use std::collections::HashSet;

    /// The confounder of the next sealed body of this thread: behind the length and the header of its token.
    fn confounder(context: &Context) -> [u8; 16] {
        let mut body = vec![0; sealed_bytes(GssService::Privacy, context.send_keys(), 4)];
        let counts = CryptoCounts::new(Clock::monotonic());
        seal((context, GssService::Privacy), &mut body, 1, &counts).unwrap();
        *body[4 + 16..].first_chunk().unwrap()
    }

    /// All with one key: equal confounders would show which bodies begin equally (RFC 4121 section 4.2.4).
    #[test]
    fn bodies_of_a_thread_and_of_several_have_confounders_of_their_own() {
        let key = SessionKey::new(Enctype::Aes256Sha1, &[0x5a; 32]).unwrap();
        let (expires, peer) = (Instant(u64::MAX), String::new());
        let established = Established { key, acceptor_subkey: true, expires, peer };
        let context = Context::new(Role::Initiator, established);
        let found: Vec<[u8; 16]> = std::thread::scope(|scope| {
            let many = || (0..100).map(|_| confounder(&context)).collect::<Vec<_>>();
            let threads = [0; 4].map(|_| scope.spawn(many));
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        assert!(!found.contains(&[0; 16]));
        assert_eq!(found.iter().collect::<HashSet<_>>().len(), 400);
    }

    #[test]
    fn a_generator_gets_another_seed_after_many_bodies() {
        let used = || with_confounders(|confounders| Ok(confounders.used())).unwrap();
        assert_eq!(used(), 0);
        with_confounders(|confounders| {
            (1..RESEED_AFTER).for_each(|_| assert_ne!(confounders.next(), [0; 16]));
            Ok(())
        })
        .unwrap();
        assert_eq!(used(), RESEED_AFTER - 1);
        with_confounders(|confounders| Ok(confounders.next())).unwrap();
        assert_eq!(used(), 0);
    }
}
