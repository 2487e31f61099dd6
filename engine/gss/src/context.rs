//! The two ends of an established context: keys, counters, the window of sequence numbers, expiry.
//!
//! A context belongs to a process: calls of it may arrive over several connections, on several
//! cores. What changes is a counter, or is behind a lock that is held for a comparison and a shift.

use core::convert::Infallible;
use core::ops::Deref;
use spinrpc_proto::ids::Instant;
use spinrpc_proto::rpc::{
    Admission, AuthFlavor, CallHeader, GssFault, SEQUENCE_MAX, SequenceWindow, signed_bytes,
};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use crate::enctype::{Enctype, SessionKey};
use crate::token::{Mic, ReceiveKeys, Role, SendKeys, TokenError};

/// Words of the window: 4096 numbers are told apart, requesters are told of 2048, which are more than a connection has
/// credits.
const WINDOW_WORDS: usize = 64;
/// Looks at a lock before the thread waits for it in the kernel.
const SPINS: u32 = 1000;

/// The window of a context.
pub type ContextWindow = SequenceWindow<WINDOW_WORDS>;

/// Result of establishing a context, at either end.
#[derive(Debug)]
pub struct Established {
    /// The key that both ends have.
    pub key: SessionKey,
    /// The key is one that the acceptor chose.
    pub acceptor_subkey: bool,
    /// End of the context, on the caller's clock.
    pub expires: Instant,
    /// Name of the other end, as the mechanism prints it. Before a first tab may stand what a server notes about it, such as
    /// the user that it is mapped to; MIT's library prints a tab of a name as `\t`.
    pub peer: String,
}

/// Keys of one end of a context, zeroed when they are dropped.
#[derive(Debug)]
pub struct Keys {
    send: SendKeys,
    receive: ReceiveKeys,
}

/// Memory that the keys of a context lie in, such as memory that core dumps leave out.
pub type KeyPlace = Box<dyn Deref<Target = Keys> + Send + Sync>;

/// One end of an established context.
pub struct Context {
    keys: KeyPlace,
    expires: Instant,
    peer: String,
    /// Counter of the tokens this end sends (`SND_SEQ`).
    counter: AtomicU64,
    next_sequence: AtomicU32,
    window: Mutex<ContextWindow>,
    /// A verified call has come: the other end has the key.
    proved: AtomicBool,
}

/// All sequence numbers of a context are used up: the caller has to establish another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the security context has no sequence numbers left")]
pub struct Exhausted;

impl Context {
    /// The end `role` of a context. Its keys lie on the heap.
    pub fn new(role: Role, established: Established) -> Self {
        let place = |keys| -> Result<KeyPlace, Infallible> { Ok(Box::new(Box::new(keys))) };
        let Ok(context) = Self::with_place(role, established, place);
        context
    }

    /// The end `role` of a context, whose keys lie where `place` moves them. Deriving the keys may leave copies of them on
    /// the stack.
    ///
    /// # Errors
    /// That of `place`.
    pub fn with_place<E>(
        role: Role,
        established: Established,
        place: impl FnOnce(Keys) -> Result<KeyPlace, E>,
    ) -> Result<Self, E> {
        let Established { key, acceptor_subkey, expires, peer } = established;
        let keys = place(Keys {
            send: SendKeys::new(&key, role, acceptor_subkey),
            receive: ReceiveKeys::new(&key, role, acceptor_subkey),
        })?;
        Ok(Self {
            keys,
            expires,
            peer,
            counter: AtomicU64::new(0),
            next_sequence: AtomicU32::new(1),
            window: Mutex::new(ContextWindow::new()),
            proved: AtomicBool::new(false),
        })
    }

    /// Name of the other end, with what the server notes about it.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// Name of the other end alone: the same in each of its contexts.
    pub fn name(&self) -> &str {
        self.peer.split_once('\t').map_or(&self.peer, |(_note, name)| name)
    }

    /// The encryption type.
    pub fn enctype(&self) -> Enctype {
        self.send_keys().enctype()
    }

    /// Keys for tokens that this end sends.
    pub fn send_keys(&self) -> &SendKeys {
        &self.keys.send
    }

    /// Keys for tokens that the other end sends.
    pub fn receive_keys(&self) -> &ReceiveKeys {
        &self.keys.receive
    }

    /// End of the context, on the caller's clock.
    pub const fn expires(&self) -> Instant {
        self.expires
    }

    /// The ticket is over.
    #[must_use]
    pub fn is_expired(&self, now: Instant) -> bool {
        now >= self.expires
    }

    /// Counter of the next token of this end.
    pub fn next_counter(&self) -> u64 {
        self.counter.fetch_add(1, Ordering::Relaxed)
    }

    /// Sequence number of the next call, which [`Context::take_sequence`] takes; a call that is sent again takes another.
    /// Never `skipped`, which is the window that the responder told: the verifier of INIT would be that of the reply, too.
    ///
    /// # Errors
    /// [`Exhausted`].
    pub fn peek_sequence(&self, skipped: u32) -> Result<u32, Exhausted> {
        let next = self.next_sequence.load(Ordering::Relaxed);
        let next = if next == skipped { next.saturating_add(1) } else { next };
        if next > SEQUENCE_MAX { Err(Exhausted) } else { Ok(next) }
    }

    /// Uses up the number that [`Context::peek_sequence`] gave: once a call has it, on the one thread that sends calls.
    pub fn take_sequence(&self, number: u32) {
        // A load and a store, as no other thread takes numbers.
        if number >= self.next_sequence.load(Ordering::Relaxed) {
            self.next_sequence.store(number.saturating_add(1), Ordering::Relaxed);
        }
    }

    /// Sequence numbers left. A requester changes the context while there are some.
    pub fn sequences_left(&self) -> u32 {
        (SEQUENCE_MAX + 1).saturating_sub(self.next_sequence.load(Ordering::Relaxed))
    }

    /// Verifier of a call, of which `signed` are the bytes from the XID to the end of the credential
    /// (RFC 2203 section 5.3.1).
    pub fn sign_call(&self, signed: &[u8]) -> Mic {
        self.send_keys().mic(signed, self.next_counter())
    }

    /// Verifier of an accepted reply, of an error too (RFC 2203 section 5.3.3.2). INIT is answered
    /// with the window in the place of the sequence number (section 5.2.3.1).
    pub fn sign_reply(&self, sequence: u32) -> Mic {
        self.send_keys().mic(&sequence.to_be_bytes(), self.next_counter())
    }

    /// Checks the verifier of an accepted reply to the call with this sequence number, or with the
    /// window of INIT.
    ///
    /// # Errors
    /// [`TokenError`]: the reply is not the responder's.
    pub fn verify_reply(&self, sequence: u32, verifier: &[u8]) -> Result<(), TokenError> {
        self.receive_keys().verify(&sequence.to_be_bytes(), verifier).map(|_| ())
    }

    /// Admits a call whose credential named this context, or says what is wrong with it. `message`
    /// begins with the XID; `header` and `arguments_at` are what [`CallHeader::parse`] made of it.
    ///
    /// The order is that of RFC 2203 section 5.3.3.1: context, verifier, sequence number. So a
    /// forged call does not move the window.
    ///
    /// # Errors
    /// [`GssFault`].
    pub fn admit_call(
        &self,
        now: Instant,
        message: &[u8],
        (header, arguments_at): (&CallHeader<'_>, usize),
        sequence: u32,
    ) -> Result<(), GssFault> {
        if self.is_expired(now) {
            return Err(GssFault::UnknownContext);
        }
        let verifier = &header.verifier;
        let signed = message.get(..signed_bytes(arguments_at, verifier));
        let signed = signed.filter(|_| verifier.flavor == AuthFlavor::Gss);
        if signed.is_none_or(|signed| self.receive_keys().verify(signed, verifier.body).is_err()) {
            return Err(GssFault::Verifier);
        }
        if !self.is_proved() {
            self.proved.store(true, Ordering::Relaxed);
        }
        let admission = lock(&self.window).admit(sequence);
        match admission {
            Admission::Fresh => Ok(()),
            Admission::Replay => Err(GssFault::Replay),
            Admission::TooLarge => Err(GssFault::SequenceTooLarge),
        }
    }

    /// A verified call has come under it. Until then the initiator may be one that has sent the token of another.
    #[must_use]
    pub fn is_proved(&self) -> bool {
        // Relaxed: it only says which contexts go first.
        self.proved.load(Ordering::Relaxed)
    }
}

/// Locks, without a system call in the common case: who holds the locks of this crate is done in a few instructions, unless
/// the system has put that thread aside.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    for _ in 0..SPINS {
        match mutex.try_lock() {
            Ok(guard) => return guard,
            // No code that holds them can panic.
            Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => std::hint::spin_loop(),
        }
    }
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

shown!(Context: peer, expires);

#[cfg(test)]
mod tests {
    use super::*;

    fn context() -> Context {
        context_with("")
    }

    fn context_with(peer: &str) -> Context {
        let key = SessionKey::new(Enctype::Aes128Sha1, &[1; 16]).unwrap();
        let (expires, peer) = (Instant(1), peer.to_owned());
        Context::new(Role::Initiator, Established { key, acceptor_subkey: true, expires, peer })
    }

    #[test]
    fn the_name_of_a_peer_is_the_same_whatever_is_noted_about_it() {
        for peer in ["alice@R", "7,8\talice@R", "7,9\talice@R"] {
            assert_eq!((context_with(peer).name(), context_with(peer).peer()), ("alice@R", peer));
        }
        assert_eq!(context_with("1\ta b\tc@R").name(), "a b\tc@R");
    }

    #[test]
    fn the_last_sequence_number_is_the_largest_allowed() {
        let context = context();
        context.next_sequence.store(SEQUENCE_MAX - 1, Ordering::Relaxed);
        assert_eq!(context.sequences_left(), 2);
        for number in [SEQUENCE_MAX - 1, SEQUENCE_MAX] {
            assert_eq!(context.peek_sequence(0), Ok(number));
            context.take_sequence(number);
        }
        assert_eq!((context.peek_sequence(0), context.sequences_left()), (Err(Exhausted), 0));
    }

    #[test]
    fn a_number_is_taken_once_it_is_used_and_the_window_is_skipped() {
        let context = context();
        assert_eq!([context.peek_sequence(2), context.peek_sequence(2)], [Ok(1), Ok(1)]);
        context.take_sequence(1);
        assert_eq!(context.peek_sequence(2), Ok(3));
        context.take_sequence(3);
        assert_eq!(context.peek_sequence(2), Ok(4));
        assert_eq!(context.sequences_left(), SEQUENCE_MAX - 3);
        context.take_sequence(SEQUENCE_MAX);
        assert_eq!(context.peek_sequence(2), Err(Exhausted));
    }

    /// Replies leave out of order: twice as many numbers are kept as clients are told of.
    #[test]
    fn the_window_is_twice_what_is_told() {
        assert_eq!((ContextWindow::TOLD, ContextWindow::KEPT), (2048, 4096));
    }
}
