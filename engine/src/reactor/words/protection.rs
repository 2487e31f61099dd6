//! Calls and replies under RPCSEC_GSS (RFC 2203): verifiers, and bodies that are sealed and opened in private memory.
//! Used by both halves, and by threads that answer deferred calls.

use crate::fabric::Origin;
use crate::mem::{Bulk, BulkPool};
use crate::reactor::words::draft::Draft;
use crate::reactor::words::reply_plan::ReplyData;
use crate::sync::atomic::{AtomicBool, Ordering};
use spinrpc_gss::context::Context;
use spinrpc_gss::random::{AesConfounders, SEED_BYTES};
use spinrpc_gss::{BodyOpening, BodySealing, MIC_MAX_BYTES, Mic, Progress, sealed_bytes};
use spinrpc_proto::ids::{Instant, Xid};
use spinrpc_proto::limits::ITEMS_MAX;
use spinrpc_proto::payload::{Item, Placement, StreamWriter};
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
use std::sync::{Arc, OnceLock};

/// The RPC header of a reply with the longest verifier of a mechanism.
const REPLY_HEAD_BYTES: usize = 24 + roundup4(MIC_MAX_BYTES);
/// The RPC header of a call with the longest credential, and the longest verifier of a mechanism.
pub(in crate::reactor) const CALL_HEAD_BYTES: usize = 40 + 400 + roundup4(MIC_MAX_BYTES);
/// Longest frame around a body: lengths, token header, confounder, sequence number, encrypted header, checksum and
/// roundup.
pub(in crate::reactor) const FRAME_BYTES: usize = 4 + 16 + 16 + 4 + 16 + 24 + 4;

/// Longest message of a call that is kept whatever its context is: that of the shortest blocks of a core's memory.
const KEPT_BYTES_MAX: usize = 8 << 10;

thread_local! {
    /// Of this thread; there from its first sealed body.
    static CONFOUNDERS: RefCell<Option<AesConfounders>> = const { RefCell::new(None) };
}

/// What the answer to a verified call has to be under.
#[derive(Clone)]
pub(crate) struct Protection {
    pub(crate) context: Arc<Context>,
    pub(crate) service: GssService,
    /// That of the call.
    pub(crate) sequence: u32,
}

/// A reply in the memory that it is sent from, so that it takes no more than that.
pub(crate) struct LaidOut {
    pub(crate) message: Bulk,
    /// The body begins there.
    pub(crate) at: usize,
    /// Length of what is to be sealed in it.
    pub(crate) content_bytes: usize,
}

/// A context as the client that calls under it has it.
pub(crate) struct ClientContext {
    pub(crate) context: Context,
    /// The name that the server gave it.
    pub(crate) handle: Vec<u8>,
    pub(crate) service: GssService,
    /// Numbers that calls in flight may be apart, as the server told.
    pub(crate) window: u32,
    /// Before it ends.
    pub(crate) renew_at: Instant,
    /// The server has answered a call under it: it has it, and does not take it for an unused one.
    pub(crate) is_answered: AtomicBool,
}

/// A message cannot be protected, or opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unprotected {
    /// No memory of this many bytes is free.
    NoMemory(usize),
    /// Its encoder is wrong, or the system gives no random numbers.
    Failed,
    /// It is not what the other end sent.
    Forged,
}

impl fmt::Display for Unprotected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoMemory(bytes) => write!(f, "no memory of {bytes} bytes is free"),
            Self::Failed => f.write_str("it cannot be encoded"),
            Self::Forged => f.write_str("its protection does not check"),
        }
    }
}

/// Time since the first use in this process, which contexts expire by.
pub(crate) fn now() -> Instant {
    static START: OnceLock<std::time::Instant> = OnceLock::new();
    let since = START.get_or_init(std::time::Instant::now).elapsed();
    Instant(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

/// Random bytes of the system.
pub(crate) fn fill_random(bytes: &mut [u8]) -> Result<(), Unprotected> {
    use rustix::rand::{GetRandomFlags, getrandom};
    match getrandom(&mut *bytes, GetRandomFlags::empty()) {
        Ok(count) if count == bytes.len() => Ok(()),
        _ => Err(Unprotected::Failed),
    }
}

/// A number for a host, by which its contexts are counted.
pub(crate) fn host_number(host: IpAddr) -> u64 {
    let mut hasher = DefaultHasher::new();
    Origin::of(host).hash(&mut hasher);
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

    /// Hands a reply to `send` whose results are not protected beyond its verifier.
    pub(in crate::reactor) fn behind_header<T>(
        &self,
        draft: &Draft<'_>,
        send: impl FnOnce(&Draft<'_>) -> T,
    ) -> T {
        let (head, length) = self.success_header();
        send(&draft.behind(&head[..length]))
    }

    /// A whole reply, sealed at once: it is sent from where it lies.
    pub(in crate::reactor) fn seal(
        &self,
        pool: &BulkPool,
        data: &ReplyData,
        draft: &Draft<'_>,
    ) -> Result<Bulk, Unprotected> {
        let mut laid_out = self.lay_out(pool, data, draft)?;
        let mut sealing = self.begin_sealing(&mut laid_out)?;
        let LaidOut { message, at, .. } = &mut laid_out;
        finish_sealing(&self.context, &mut sealing, &mut message.bytes_mut()[*at..])?;
        Ok(laid_out.message)
    }

    /// A whole reply, its body not sealed yet.
    pub(in crate::reactor) fn lay_out(
        &self,
        pool: &BulkPool,
        data: &ReplyData,
        draft: &Draft<'_>,
    ) -> Result<LaidOut, Unprotected> {
        let sealing = Sealing { context: &self.context, service: self.service };
        let (head, at) = self.success_header();
        let parts = (&head[..at], data.item_bytes());
        let (message, content_bytes) = sealing.lay_out(pool, parts, (draft, 0))?;
        Ok(LaidOut { message, at, content_bytes })
    }

    /// What has to be done to seal such a body.
    pub(in crate::reactor) fn begin_sealing(
        &self,
        reply: &mut LaidOut,
    ) -> Result<BodySealing, Unprotected> {
        let sealing = Sealing { context: &self.context, service: self.service };
        let body = &mut reply.message.bytes_mut()[reply.at..];
        sealing.begin_body(body, reply.content_bytes, self.sequence)
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
    /// A call under it, which may be denied as its context has gone, is kept with a message of so many bytes: a short one
    /// always, a long one until the context is known to be in use.
    pub(in crate::reactor) fn keeps_call(&self, bytes: usize) -> bool {
        bytes <= KEPT_BYTES_MAX || !self.is_answered.load(Ordering::Relaxed)
    }

    /// Hands a protected call to `start`: its draft, of which `draft` has the unprotected form, and whether its data
    /// stand in it.
    pub(in crate::reactor) fn protect<'i, T>(
        &self,
        pool: &BulkPool,
        (xid, sequence): (Xid, u32),
        items: impl Iterator<Item = &'i [u8]>,
        draft: &Draft<'_>,
        start: impl FnOnce(&Draft<'_>) -> T,
    ) -> Result<T, Unprotected> {
        let (header, at) = CallHeader::parse(draft.stream()).map_err(|_| Unprotected::Failed)?;
        let mut bytes = [0; CALL_HEAD_BYTES];
        let length = self.emit_header(GssProcedure::Data, sequence, xid, &header, &mut bytes)?;
        let head = &bytes[..length];
        if self.service.protects_body() {
            let sealing = Sealing { context: &self.context, service: self.service };
            let stream = sealing.seal(pool, sequence, (head, items), (draft, at))?;
            return Ok(start(&Draft::plain(stream.bytes())));
        }
        let rest = &draft.stream()[at..];
        let bytes = length + rest.len();
        let mut stream = take(pool, bytes)?;
        let (place, behind) = stream.bytes_mut().split_at_mut(length);
        place.copy_from_slice(head);
        behind.copy_from_slice(rest);
        Ok(start(&Draft::new(stream.bytes(), draft.cuts().moved(at, length))))
    }

    /// Writes a call that destroys the context, of which `plain` has program and version; returns its length.
    pub(in crate::reactor) fn emit_destroy(
        &self,
        sequence: u32,
        plain: &CallHeader<'_>,
        bytes: &mut [u8; CALL_HEAD_BYTES],
    ) -> Result<usize, Unprotected> {
        self.emit_header(GssProcedure::Destroy, sequence, plain.xid, plain, bytes)
    }

    /// Writes the RPC header of a call, with credential and verifier.
    fn emit_header(
        &self,
        procedure: GssProcedure,
        sequence: u32,
        xid: Xid,
        plain: &CallHeader<'_>,
        bytes: &mut [u8; CALL_HEAD_BYTES],
    ) -> Result<usize, Unprotected> {
        let mut body = [0; 400];
        let credential =
            GssCredential { procedure, sequence, service: self.service, handle: &self.handle };
        let length = credential.emit(&mut body).map_err(|_| Unprotected::Failed)?;
        let credential = OpaqueAuth { flavor: AuthFlavor::Gss, body: &body[..length] };
        let header = CallHeader { xid, credential, verifier: OpaqueAuth::NONE, ..*plain };
        // Without the verifier, which is flavor and length here.
        let signed_bytes = header.emit(bytes) - 8;
        let mic = self.context.sign_call(&bytes[..signed_bytes]);
        let verifier = OpaqueAuth { flavor: AuthFlavor::Gss, body: mic.as_slice() };
        Ok(CallHeader { verifier, ..header }.emit(bytes))
    }
}

/// How a body is sealed.
struct Sealing<'a> {
    context: &'a Context,
    service: GssService,
}

impl Sealing<'_> {
    /// The body of a message behind `head`, with all items in it. Of the draft, the part from `at` on is meant.
    fn seal<'i>(
        &self,
        pool: &BulkPool,
        sequence: u32,
        (head, items): (&[u8], impl Iterator<Item = &'i [u8]>),
        (draft, at): (&Draft<'_>, usize),
    ) -> Result<Bulk, Unprotected> {
        let (mut message, content_bytes) = self.lay_out(pool, (head, items), (draft, at))?;
        let body = &mut message.bytes_mut()[head.len()..];
        let mut sealing = self.begin_body(body, content_bytes, sequence)?;
        finish_sealing(self.context, &mut sealing, body)?;
        Ok(message)
    }

    /// A message with room for what seals its body, and the length of what is in that.
    fn lay_out<'i>(
        &self,
        pool: &BulkPool,
        (head, items): (&[u8], impl Iterator<Item = &'i [u8]>),
        (draft, at): (&Draft<'_>, usize),
    ) -> Result<(Bulk, usize), Unprotected> {
        let (keys, service) = (self.context.send_keys(), self.service);
        let mut places = [const { Item { bytes: &[], placement: Placement::Inline } }; ITEMS_MAX];
        let mut content_bytes = draft.stream().len() - at;
        let mut count = 0;
        for (item, place) in items.zip(&mut places) {
            place.bytes = item;
            content_bytes += roundup4(item.len());
            count += 1;
        }
        let body_bytes = sealed_bytes(service, keys, content_bytes);
        let mut message = take(pool, head.len() + body_bytes)?;
        let (start, body) = message.bytes_mut().split_at_mut(head.len());
        start.copy_from_slice(head);
        let content = &mut body[BodySealing::content_at(service)..][..content_bytes];
        let mut writer = StreamWriter::new(content, &places[..count]);
        let cuts = draft.cuts().moved(at, 0);
        Draft::new(&draft.stream()[at..], cuts).write(&mut writer);
        let encoded = writer.finish();
        if !encoded.fits || encoded.items_missing || encoded.stream_bytes != content_bytes {
            return Err(Unprotected::Failed);
        }
        Ok((message, content_bytes))
    }

    fn begin_body(
        &self,
        body: &mut [u8],
        content_bytes: usize,
        sequence: u32,
    ) -> Result<BodySealing, Unprotected> {
        let (service, keys) = (self.service, self.context.send_keys());
        let counter = self.context.next_counter();
        with_confounders(|confounders| {
            BodySealing::begin(service, keys, body, content_bytes, sequence, counter, confounders)
                .map_err(|_| Unprotected::Failed)
        })
    }
}

/// What is left to do of a body, at once.
pub(in crate::reactor) fn finish_sealing(
    context: &Context,
    sealing: &mut BodySealing,
    body: &mut [u8],
) -> Result<(), Unprotected> {
    loop {
        match sealing.step(context.send_keys(), body, usize::MAX) {
            Ok(Progress::More) => {}
            Ok(Progress::Done) => return Ok(()),
            Err(_) => return Err(Unprotected::Failed),
        }
    }
}

fn with_confounders<T>(
    run: impl FnOnce(&mut AesConfounders) -> Result<T, Unprotected>,
) -> Result<T, Unprotected> {
    CONFOUNDERS.with_borrow_mut(|place| {
        if let Some(confounders) = place {
            return run(confounders);
        }
        let mut seed = [0; SEED_BYTES];
        fill_random(&mut seed)?;
        run(place.insert(AesConfounders::new(&seed)))
    })
}

/// Private memory, exactly so long.
pub(crate) fn take(pool: &BulkPool, bytes: usize) -> Result<Bulk, Unprotected> {
    let mut bulk = pool.take(bytes).ok_or(Unprotected::NoMemory(bytes))?;
    bulk.set_len(bytes);
    Ok(bulk)
}

/// Opens a body in memory that no peer can write to; returns the place of the arguments or results.
pub(crate) fn open(
    context: &Context,
    service: GssService,
    body: &mut [u8],
    sequence: u32,
) -> Result<Range<usize>, Unprotected> {
    let keys = context.receive_keys();
    let opening = BodyOpening::begin(service, keys, body, sequence);
    let mut opening = opening.map_err(|_| Unprotected::Forged)?;
    loop {
        match opening.step(keys, body, usize::MAX) {
            Ok(None) => {}
            Ok(Some(place)) => return Ok(place),
            Err(_) => return Err(Unprotected::Forged),
        }
    }
}
