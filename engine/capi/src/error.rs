//! Status codes, the text of the last error, and the boundary that no panic crosses. All other modules use it.

use spinrpc::{
    AcceptStatus, Backpressure, CallError, ConnectError, DecodeError, DownCause, EngineError,
    RejectStatus,
};
use spinrpc_nfs::client::Error as NfsError;
use spinrpc_tuning::ProfileError;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::error::Error;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Result of a function, and outcome of a call. SPINRPC_STATUS_OK is 0; every other value is an error, whose text
/// spinrpc_last_error_message() returns. Later versions may add values.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Success.
    Ok = 0,
    /// An argument is wrong: a null or misaligned pointer, a length that is not a multiple of four, text that is
    /// not UTF-8.
    InvalidArgument = 1,
    /// The object is not in a state for this: an engine that runs already, a request that has been answered; or
    /// a function that blocks was called in a callback.
    InvalidState = 2,
    /// The profile or a setting cannot be used.
    Config = 3,
    /// The engine could not be started or cannot listen, or a core's thread panicked.
    Engine = 4,
    /// The connection is down or failed, and none will replace it.
    Connect = 5,
    /// Nothing was sent, because a limit is reached. The call may be tried again when replies have arrived.
    Again = 6,
    /// The call is longer than can be sent. The same call will fail again.
    TooLarge = 7,
    /// The connection went down. Calls in flight may have been executed.
    Disconnected = 8,
    /// The connection went down, and the server did not execute the call.
    NotExecuted = 9,
    /// The deadline expired. The server may still execute the call.
    TimedOut = 10,
    /// The call was cancelled. The server may still execute it.
    Cancelled = 11,
    /// The server does not serve the program (RFC 5531: PROG_UNAVAIL).
    ProgramUnavailable = 12,
    /// The server does not serve this version of the program (PROG_MISMATCH).
    VersionMismatch = 13,
    /// The program does not have the procedure (PROC_UNAVAIL).
    ProcedureUnavailable = 14,
    /// The server could not decode the arguments (GARBAGE_ARGS).
    GarbageArguments = 15,
    /// The server failed to execute the call (SYSTEM_ERR).
    SystemError = 16,
    /// The server denied the call for its credential or RPC version (MSG_DENIED).
    Denied = 17,
    /// Arguments or results cannot be decoded: they are shorter, or items in them longer, than expected.
    Decode = 18,
    /// All registered memory is lent, or the length is beyond the longest block (mem.arena_mib).
    NoMemory = 19,
    /// The server broke the protocol, or its transport refused the call.
    Protocol = 20,
    /// The queue is empty. The last error message stays as it is.
    Empty = 21,
    /// A panic inside of the library was caught: a bug in it. The objects that were passed can only be freed.
    Panic = 22,
    /// The NFS server answered with an error, whose number spinrpc_nfs_last_error() returns.
    Nfs = 23,
    /// An NFS server has restarted before it had written data to stable storage. They may be lost: write them again.
    DataLost = 24,
}

const NAMES: [&CStr; 25] = [
    c"ok",
    c"invalid argument",
    c"invalid state",
    c"configuration error",
    c"engine error",
    c"no connection",
    c"try again",
    c"too large",
    c"disconnected",
    c"not executed",
    c"timed out",
    c"cancelled",
    c"program unavailable",
    c"version mismatch",
    c"procedure unavailable",
    c"garbage arguments",
    c"system error",
    c"denied",
    c"decode error",
    c"no memory",
    c"protocol error",
    c"empty",
    c"panic",
    c"nfs error",
    c"data lost",
];

#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: Status,
    pub(crate) text: String,
    /// Of an answer of an NFS server; else 0.
    nfs: u32,
}

impl Failure {
    pub(crate) fn new(status: Status, text: impl Into<String>) -> Self {
        Self { status, text: text.into(), nfs: 0 }
    }

    pub(crate) fn argument(text: impl Into<String>) -> Self {
        Self::new(Status::InvalidArgument, text)
    }

    /// With the text of `error` and of its sources.
    fn of(status: Status, error: &dyn Error) -> Self {
        let mut text = error.to_string();
        let mut next = error.source();
        while let Some(source) = next {
            let more = source.to_string();
            // Many errors print their source themselves.
            if !text.contains(&more) {
                text = format!("{text}: {more}");
            }
            next = source.source();
        }
        Self::new(status, text)
    }
}

impl From<NfsError> for Failure {
    fn from(error: NfsError) -> Self {
        let (status, nfs) = of_nfs(&error);
        Self { nfs, ..Self::of(status, &error) }
    }
}

fn of_nfs(error: &NfsError) -> (Status, u32) {
    let status = match error {
        NfsError::At(_, inner) => return of_nfs(inner),
        NfsError::Status(_, number) => return (Status::Nfs, *number as u32),
        NfsError::MountRefused(_, number, _) => return (Status::Nfs, *number as u32),
        NfsError::Call(_, source) => of_call(source),
        NfsError::Unreachable(_) => Status::Connect,
        NfsError::Connect(_, source) => of_connect(source),
        NfsError::Path(_) => Status::InvalidArgument,
        NfsError::DataLost => Status::DataLost,
        NfsError::Misbehaved(..) => Status::Protocol,
        _ => Status::Engine,
    };
    (status, 0)
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        let status = match &error {
            EngineError::Config(_) => Status::Config,
            EngineError::ApiMisuse(_) => Status::InvalidState,
            _ => Status::Engine,
        };
        Self::of(status, &error)
    }
}

impl From<ProfileError> for Failure {
    fn from(error: ProfileError) -> Self {
        Self::of(Status::Config, &error)
    }
}

impl From<ConnectError> for Failure {
    fn from(error: ConnectError) -> Self {
        Self::of(of_connect(&error), &error)
    }
}

fn of_connect(error: &ConnectError) -> Status {
    match error {
        ConnectError::TimedOut(_) => Status::TimedOut,
        ConnectError::NotServed(status) => of_accepted(status),
        ConnectError::TooManyHandles(_) => Status::Again,
        _ => Status::Connect,
    }
}

impl From<DecodeError> for Failure {
    fn from(error: DecodeError) -> Self {
        Self::of(Status::Decode, &error)
    }
}

impl From<Backpressure> for Failure {
    fn from(error: Backpressure) -> Self {
        Self::of(of_backpressure(&error), &error)
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        Self::of(of_call(&error), &error)
    }
}

fn of_call(error: &CallError) -> Status {
    match error {
        CallError::Accepted(status) => of_accepted(status),
        CallError::Rejected(RejectStatus::RpcMismatch { .. } | RejectStatus::AuthError(_)) => {
            Status::Denied
        }
        CallError::TimedOut => Status::TimedOut,
        CallError::Cancelled => Status::Cancelled,
        CallError::NotExecuted(DownCause::Security(_)) => Status::Denied,
        CallError::NotExecuted(_) => Status::NotExecuted,
        CallError::Disconnected(_) => Status::Disconnected,
        CallError::NoMemory => Status::NoMemory,
        CallError::Decode(_) => Status::Decode,
        CallError::NotStarted(why) => of_backpressure(why),
        _ => Status::Protocol,
    }
}

fn of_accepted(status: &AcceptStatus) -> Status {
    match status {
        AcceptStatus::ProgUnavail => Status::ProgramUnavailable,
        AcceptStatus::ProgMismatch { .. } => Status::VersionMismatch,
        AcceptStatus::ProcUnavail => Status::ProcedureUnavailable,
        AcceptStatus::GarbageArgs => Status::GarbageArguments,
        AcceptStatus::SystemErr => Status::SystemError,
        AcceptStatus::Success => Status::Protocol,
    }
}

fn of_backpressure(why: &Backpressure) -> Status {
    match why {
        why if why.is_transient() => Status::Again,
        Backpressure::Down => Status::Disconnected,
        Backpressure::TooLarge { .. } | Backpressure::NoRdmaRead { .. } => Status::TooLarge,
        _ => Status::InvalidArgument,
    }
}

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
    /// Its number, if it was an answer of an NFS server.
    static LAST_NFS_ERROR: Cell<u32> = const { Cell::new(0) };
    /// Callbacks of the application that this thread is in.
    static CALLBACKS: Cell<u32> = const { Cell::new(0) };
}

pub(crate) fn remember(failure: &Failure) -> Status {
    // A text has no zero bytes unless a peer or a file put them there.
    let text = CString::new(failure.text.replace('\0', " ")).unwrap_or_default();
    // If the thread is ending, its storage is gone, and the text is not needed.
    let _ = LAST_ERROR.try_with(|last| last.replace(text));
    LAST_NFS_ERROR.set(failure.nfs);
    failure.status
}

/// Runs the body of an exported function: errors and panics become a status.
pub(crate) fn guard(body: impl FnOnce() -> Result<(), Failure>) -> Status {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => Status::Ok,
        Ok(Err(failure)) => remember(&failure),
        Err(payload) => remember(&Failure::new(Status::Panic, panic_text(payload))),
    }
}

/// As [`guard`], for functions that return something else than a status: `otherwise` if they fail.
pub(crate) fn guard_or<T>(otherwise: T, body: impl FnOnce() -> Result<T, Failure>) -> T {
    let mut result = otherwise;
    guard(|| {
        result = body()?;
        Ok(())
    });
    result
}

/// The payload is leaked: its drop could panic as well.
fn panic_text(payload: Box<dyn Any + Send>) -> String {
    let text = match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
        (Some(text), _) => format!("panic: {text}"),
        (None, Some(text)) => format!("panic: {text}"),
        (None, None) => "panic".to_owned(),
    };
    std::mem::forget(payload);
    text
}

pub(crate) struct InCallback;

impl InCallback {
    pub(crate) fn enter() -> Self {
        CALLBACKS.set(CALLBACKS.get() + 1);
        Self
    }
}

impl Drop for InCallback {
    fn drop(&mut self) {
        CALLBACKS.set(CALLBACKS.get() - 1);
    }
}

pub(crate) fn may_block() -> Result<(), Failure> {
    match CALLBACKS.get() {
        0 => Ok(()),
        _ => Err(Failure::new(Status::InvalidState, "a callback must not block its core")),
    }
}

/// Returns the text of this thread's last error: of the last function that failed, or, in a callback that is given
/// an error, of that one. The empty text if there was none. A success leaves it as it is.
///
/// The text is valid until the next error on this thread; do not free it.
#[unsafe(no_mangle)]
pub extern "C" fn spinrpc_last_error_message() -> *const c_char {
    guard_or(c"".as_ptr(), || {
        let text = LAST_ERROR.try_with(|text| text.borrow().as_ptr());
        Ok(text.unwrap_or(c"".as_ptr()))
    })
}

/// Returns the number of this thread's last error, if that was an error that an NFS server answered with
/// (SPINRPC_STATUS_NFS): as in RFC 1813, such as 2 for NFS3ERR_NOENT, 28 for NFS3ERR_NOSPC, 70 for NFS3ERR_STALE, whose file is
/// gone, and 10008 for NFS3ERR_JUKEBOX, after which the call is repeated later. 0 for all other errors.
#[unsafe(no_mangle)]
pub extern "C" fn spinrpc_nfs_last_error() -> u32 {
    guard_or(0, || Ok(LAST_NFS_ERROR.get()))
}

/// Returns the name of a status, such as "timed out"; "unknown" for a number that is not one. The text is constant.
#[unsafe(no_mangle)]
pub extern "C" fn spinrpc_status_name(status: u32) -> *const c_char {
    let name = usize::try_from(status).ok().and_then(|status| NAMES.get(status));
    name.copied().unwrap_or(c"unknown").as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last() -> String {
        // SAFETY: the text is valid until the next error on this thread.
        unsafe { CStr::from_ptr(spinrpc_last_error_message()) }.to_string_lossy().into_owned()
    }

    #[test]
    fn a_panic_becomes_a_status_with_its_text() {
        let number = 7;
        assert_eq!(guard(|| panic!("the number {number}")), Status::Panic);
        assert_eq!(last(), "panic: the number 7");
        assert_eq!(guard(|| panic!("a literal")), Status::Panic);
        assert_eq!(last(), "panic: a literal");
        assert_eq!(guard(|| std::panic::panic_any(7_u32)), Status::Panic);
        assert_eq!(last(), "panic");
        assert_eq!(guard_or(3, || panic!("in a getter")), 3);
        assert_eq!(last(), "panic: in a getter");
        assert_eq!(guard(|| Ok(())), Status::Ok);
        assert_eq!(last(), "panic: in a getter");
    }

    #[test]
    fn a_client_without_a_security_context_is_denied() {
        let status = |cause| Failure::from(CallError::NotExecuted(cause)).status;
        assert_eq!(status(DownCause::Security("expired".into())), Status::Denied);
        assert_eq!(status(DownCause::Remote), Status::NotExecuted);
    }

    #[test]
    fn each_status_has_a_name() {
        let name = |status| {
            // SAFETY: names are constants.
            unsafe { CStr::from_ptr(spinrpc_status_name(status)) }.to_str().unwrap()
        };
        assert_eq!(name(Status::Ok as u32), "ok");
        assert_eq!(name(Status::TimedOut as u32), "timed out");
        assert_eq!(name(Status::Panic as u32), "panic");
        assert_eq!(name(Status::DataLost as u32), "data lost");
        assert_eq!(name(Status::DataLost as u32 + 1), "unknown");
    }

    #[test]
    fn the_text_has_each_source_once() {
        let inner = std::io::Error::other("the disk\0is full");
        let outer = std::io::Error::other(Wrapper(inner));
        remember(&Failure::of(Status::Engine, &outer));
        assert_eq!(last(), "cannot write: the disk is full");
    }

    #[derive(Debug)]
    struct Wrapper(std::io::Error);

    impl std::fmt::Display for Wrapper {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("cannot write")
        }
    }

    impl Error for Wrapper {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn callbacks_must_not_block_and_nest() {
        assert!(may_block().is_ok());
        let outer = InCallback::enter();
        drop(InCallback::enter());
        assert_eq!(may_block().unwrap_err().status, Status::InvalidState);
        drop(outer);
        assert!(may_block().is_ok());
    }
}
