//! A session for any thread, over connections of an engine that the application runs: READs, WRITEs and COMMITs whose
//! answers come to a queue, and other calls, which block.

use super::files::Files;
use super::mount::{Mount, MountBy, Root};
use super::read::{Part, PartData, part};
use super::target::Target;
use super::user::User;
use super::walk::Found;
use super::{Error, Options, connect_timeout};
use crate::mount3;
use crate::nfs3::{self, PLAIN_RESULT_BYTES_MAX, READ_RESULT_HEAD_BYTES, owned_outcome};
use crate::protocol::{
    Commit3args, Commit3resok, Fattr3, FileHandle, Ftype3, Nfsstat3, ProcedureId, Read3args,
    StableHow, Write3args, Write3resok, Writeverf3,
};
use spinrpc::{
    Answer, AnswerQueue, Backpressure, Bulk, CallSpec, ClientHandle, ConnectOptions, DecodeError,
    Engine, Program, Resend, Token, Version,
};
use spinrpc_xdr::{Encode, Placed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A mounted directory of a server. Its engine must run.
pub struct NfsHandle {
    client: ClientHandle,
    root: Root,
    timeout: Duration,
    bytes_max: (u32, u32),
}

/// A file of an [`NfsHandle`], with all that is known of data that the server may still lose.
#[derive(Debug)]
pub struct OpenFile {
    handle: FileHandle,
    unstable: Mutex<Unstable>,
}

/// The result of a READ.
#[derive(Debug)]
pub struct Read {
    /// The memory of the call: its length is that of the data.
    pub data: Bulk,
    /// The file ends behind the data.
    pub is_end: bool,
}

/// The result of a WRITE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Bytes that were written, at least one: the server may write fewer than it was given.
    pub bytes: u32,
    /// They are on stable storage, and need no COMMIT. After a stable WRITE, false is an error of the server (RFC 1813 section
    /// 3.3.7), which the caller has to look at.
    pub is_stable: bool,
}

/// Data that the server has accepted, and may lose when it restarts. Its verifier changes then.
#[derive(Debug, Default)]
struct Unstable {
    /// Verifier of the data that are not known to be stable; `None` without any.
    verifier: Option<Writeverf3>,
    /// WRITEs that were unstable.
    writes: u64,
    /// How many of them the oldest COMMIT in flight covers.
    covered: u64,
    commits_in_flight: u32,
    is_lost: bool,
}

impl Unstable {
    fn write(&mut self, verifier: Writeverf3) {
        self.is_lost |= self.verifier.is_some_and(|known| known != verifier);
        self.verifier = Some(verifier);
        self.writes += 1;
    }

    fn commit_starts(&mut self) {
        if self.commits_in_flight == 0 {
            self.covered = self.writes;
        }
        self.commits_in_flight += 1;
    }

    /// It was not sent.
    fn commit_fails_to_start(&mut self) {
        self.commits_in_flight = self.commits_in_flight.saturating_sub(1);
    }

    /// False if data may be lost. Those that are written after that have another verifier; other commits in flight cover as
    /// little of them as before.
    fn commit_ends(&mut self, verifier: Writeverf3) -> bool {
        self.commits_in_flight = self.commits_in_flight.saturating_sub(1);
        let is_lost = self.is_lost || self.verifier.is_some_and(|known| known != verifier);
        if is_lost {
            (self.verifier, self.is_lost) = (None, false);
        } else if self.writes == self.covered {
            self.verifier = None;
        }
        !is_lost
    }
}

impl Files for NfsHandle {
    type Connection = ClientHandle;

    fn connection(&self) -> &ClientHandle {
        &self.client
    }

    fn patience(&self) -> Duration {
        self.timeout
    }
}

/// READs, WRITEs and COMMITs are started as by [`ClientHandle::start_to_queue`], with its errors.
impl NfsHandle {
    /// Mounts the directory that `target` names, by connections of core `core` of `engine`; `connect` are options of that
    /// for NFS. Of `options` the user and the timeout count. Blocks.
    ///
    /// # Errors
    /// [`Error::Connect`], [`Error::Unreachable`], [`Error::MountRefused`], and errors of any call.
    pub fn mount(
        (engine, core): (&Engine, usize),
        target: &Target,
        by: MountBy,
        connect: ConnectOptions,
        options: &Options,
    ) -> Result<(Self, Mount<ClientHandle>), Error> {
        let address = target.server.to_string();
        let open = |program, connect: &ConnectOptions| {
            connected((engine, core), &address, program, connect, options)
        };
        let client = open((nfs3::PROGRAM, nfs3::VERSION), &connect)?;
        let mount = (mount3::PROGRAM, mount3::VERSION);
        let mut mount =
            Mount::new(&target.server, options, by, || open(mount, &ConnectOptions::new()))?;
        let (root, below) = mount.root(&target.path, None)?;
        let timeout = options.timeout;
        let mut nfs = Self { client, root, timeout, bytes_max: (0, 0) };
        nfs.root = nfs.directory(&below)?;
        let limits = nfs.server_limits(&nfs.root.handle)?;
        nfs.bytes_max = (limits.rtmax, limits.wtmax);
        Ok((nfs, mount))
    }

    /// Paths do not leave it by "..".
    fn directory(&self, below: &str) -> Result<Root, Error> {
        let export = format!("{}{}", self.root.export.trim_end_matches('/'), below);
        let Found { handle, attributes } = self.find(&self.root, below, true)?;
        match attributes.r#type {
            Ftype3::Nf3dir => Ok(Root { handle, export }),
            _ => {
                Err(Error::Status(ProcedureId::Nfsproc3Lookup, Nfsstat3::Nfs3errNotdir).at(&export))
            }
        }
    }

    /// The connection.
    pub fn client(&self) -> &ClientHandle {
        &self.client
    }

    /// Most bytes of a READ, and of a WRITE.
    pub fn bytes_max(&self) -> (u32, u32) {
        self.bytes_max
    }

    /// Opens the file at `path` below the mounted directory. With `create`, its mode and size, it is created, or gets that
    /// size if it is there; a symbolic link at the end of the path is not followed then. Blocks.
    ///
    /// # Errors
    /// [`Error::Status`], with `create` also of a name that is there and not a regular file: `NFS3ERR_ISDIR` for a directory
    /// and `NFS3ERR_EXIST` for others. [`Error::Path`], and errors of any call.
    pub fn open(&self, path: &str, create: Option<(u32, Option<u64>)>) -> Result<OpenFile, Error> {
        let handle = match create {
            None => self.find(&self.root, path, true)?.handle,
            Some((mode, size)) => {
                let (parent, name) = self.find_parent(&self.root, path)?;
                let made = self.create(&parent.handle, name, mode, size);
                let made = made.and_then(|made| self.regular(made));
                made.map_err(|error| error.at(path))?
            }
        };
        Ok(OpenFile { handle, unstable: Mutex::default() })
    }

    /// A server may answer with whatever has the name.
    fn regular(&self, made: FileHandle) -> Result<FileHandle, Error> {
        let status = match self.attributes(&made)?.r#type {
            Ftype3::Nf3reg => return Ok(made),
            Ftype3::Nf3dir => Nfsstat3::Nfs3errIsdir,
            _ => Nfsstat3::Nfs3errExist,
        };
        Err(Error::Status(ProcedureId::Nfsproc3Create, status))
    }

    /// As [`Files::attributes`]. Blocks.
    pub fn attributes_of(&self, file: &OpenFile) -> Result<Fattr3, Error> {
        self.attributes(&file.handle)
    }

    /// Starts a READ of as many bytes as `room` has in use, at most [`NfsHandle::bytes_max`]. [`Read::of`] has the result.
    pub fn read(
        &self,
        file: &OpenFile,
        offset: u64,
        room: Bulk,
        answer: (&AnswerQueue, Token),
    ) -> Result<(), Backpressure> {
        let args = Read3args { file: file.handle.wire(), offset, count: bytes_of(&room) };
        let spec = CallSpec::new().reply_bytes_max(READ_RESULT_HEAD_BYTES).result_into(room);
        self.start(ProcedureId::Nfsproc3Read, spec, &args, answer)
    }

    /// Starts a WRITE of the bytes in use of `data`, at most [`NfsHandle::bytes_max`]. [`OpenFile::written`] has the result.
    pub fn write(
        &self,
        file: &OpenFile,
        offset: u64,
        data: Bulk,
        stable: StableHow,
        answer: (&AnswerQueue, Token),
    ) -> Result<(), Backpressure> {
        let (file, count) = (file.handle.wire(), bytes_of(&data));
        let args = Write3args { file, offset, count, stable, data: Placed::Beside };
        let spec = CallSpec::new().reply_bytes_max(PLAIN_RESULT_BYTES_MAX).argument(data);
        self.start(ProcedureId::Nfsproc3Write, spec, &args, answer)
    }

    /// Starts a COMMIT of all data of the file. [`OpenFile::committed`] has the result.
    pub fn commit(
        &self,
        file: &OpenFile,
        answer: (&AnswerQueue, Token),
    ) -> Result<(), Backpressure> {
        let args = Commit3args { file: file.handle.wire(), offset: 0, count: 0 };
        let spec = CallSpec::new().reply_bytes_max(PLAIN_RESULT_BYTES_MAX);
        // Before the answer can be taken.
        file.unstable().commit_starts();
        let started = self.start(ProcedureId::Nfsproc3Commit, spec, &args, answer);
        started.inspect_err(|_| file.unstable().commit_fails_to_start())
    }

    /// Each of these calls may be executed twice.
    fn start(
        &self,
        operation: ProcedureId,
        spec: CallSpec,
        args: &impl Encode,
        (queue, token): (&AnswerQueue, Token),
    ) -> Result<(), Backpressure> {
        let spec = spec.resend(Resend::AtLeastOnce).deadline(self.timeout);
        let procedure = nfs3::procedure(operation);
        self.client.start_to_queue(queue, token, procedure, spec, |to| args.encode(to))
    }
}

impl OpenFile {
    fn unstable(&self) -> MutexGuard<'_, Unstable> {
        self.unstable.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The result of a WRITE of `asked` bytes.
    ///
    /// # Errors
    /// [`Error::Status`] and [`Error::Misbehaved`].
    pub fn written(&self, mut answer: Answer, asked: u32) -> Result<Written, Error> {
        let operation = ProcedureId::Nfsproc3Write;
        let results = owned_outcome(&mut answer.results());
        let Write3resok { count, committed, verf, .. } = checked(operation, results)?;
        let is_stable = committed != StableHow::Unstable;
        // Also where the count is wrong: the server has data that a restart would lose.
        if !is_stable {
            self.unstable().write(verf);
        }
        if count == 0 || count > asked {
            let problem = format!("a count of {count} bytes of {asked} requested");
            return Err(Error::misbehaved(operation, problem));
        }
        Ok(Written { bytes: count, is_stable })
    }

    /// The result of a COMMIT: all data whose results were taken before it was started are on stable storage.
    ///
    /// # Errors
    /// [`Error::DataLost`], once; [`Error::Status`] and [`Error::Misbehaved`].
    pub fn committed(&self, mut answer: Answer) -> Result<(), Error> {
        let results = owned_outcome(&mut answer.results());
        let Commit3resok { verf, .. } = checked(ProcedureId::Nfsproc3Commit, results)?;
        match self.unstable().commit_ends(verf) {
            true => Ok(()),
            false => Err(Error::DataLost),
        }
    }
}

impl Read {
    /// The result of a READ of `asked` bytes.
    ///
    /// # Errors
    /// [`Error::Status`] and [`Error::Misbehaved`].
    pub fn of(mut answer: Answer, asked: u32) -> Result<Self, Error> {
        let operation = ProcedureId::Nfsproc3Read;
        let results = part(&mut answer.results(), asked as usize);
        let Part { count, eof: is_end, data } = checked(operation, results)?;
        let wrong = |problem| Err(Error::misbehaved(operation, problem));
        let data = match data {
            PartData::Placed(data) => data,
            PartData::Inline(bytes) => match answer.take_result() {
                Some(mut room) if room.capacity() >= bytes.len() => {
                    room.set_len(bytes.len());
                    room.copy_from(0, &bytes);
                    room
                }
                _ => return wrong("data beside the memory for them".to_owned()),
            },
        };
        match data.len() {
            length if length != count as usize => {
                wrong(format!("a count of {count} and {length} bytes of data"))
            }
            0 if !is_end && asked > 0 => wrong("no data, and no end of file".to_owned()),
            _ => Ok(Self { data, is_end }),
        }
    }
}

fn bytes_of(memory: &Bulk) -> u32 {
    u32::try_from(memory.len()).unwrap_or(u32::MAX)
}

fn checked<T>(
    operation: ProcedureId,
    results: Result<Result<T, Nfsstat3>, DecodeError>,
) -> Result<T, Error> {
    let results = results.map_err(|error| Error::misbehaved(operation, error.to_string()))?;
    results.map_err(|status| Error::Status(operation, status))
}

fn connected(
    (engine, core): (&Engine, usize),
    address: &str,
    (program, version): (Program, Version),
    connect: &ConnectOptions,
    options: &Options,
) -> Result<ClientHandle, Error> {
    let client = engine.connect(core, address, program, version, connect);
    let up = client.and_then(|client| client.wait_up(connect_timeout(options)).map(|()| client));
    let client = up.map_err(|source| Error::Connect(address.to_owned(), source))?;
    let credential = options.user.as_ref().map(User::credential);
    let set = client.set_auth_sys(credential.as_ref());
    set.map_err(|refused| Error::Local(format!("the user of the calls: {refused}")))?;
    Ok(client)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Writeverf3 = [1; 8];
    const SECOND: Writeverf3 = [2; 8];
    const THIRD: Writeverf3 = [3; 8];

    #[derive(Clone, Copy)]
    enum Step {
        Write(Writeverf3),
        Start,
        FailToStart,
        /// A commit ends with this verifier; true if nothing that it covers was lost.
        End(Writeverf3, bool),
    }

    #[test]
    fn commits_tell_of_data_that_were_lost() {
        use Step::{End, FailToStart, Start, Write};
        let cases: [(&str, &[Step]); 6] = [
            (
                "data of another verifier are lost until a commit tells, and written again",
                &[Write(FIRST), Start, End(SECOND, false), Write(SECOND), Start, End(SECOND, true)],
            ),
            ("in between", &[Write(FIRST), Write(SECOND), Start, End(SECOND, false)]),
            (
                "data that are stable cannot be lost",
                &[
                    [Start, End(FIRST, true), Write(FIRST), Start, End(FIRST, true)],
                    [Start, End(SECOND, true), Write(FIRST), Start, End(FIRST, true)],
                ]
                .concat(),
            ),
            (
                "a commit covers nothing that was written after its start",
                &[Write(FIRST), Start, Write(FIRST), Start, End(FIRST, true), End(SECOND, false)],
            ),
            (
                "a loss leaves commits in flight known: the second was started before the last write",
                &[
                    [Write(FIRST), Start, Start, End(SECOND, false)],
                    [Write(SECOND), Start, End(SECOND, true), End(THIRD, false)],
                ]
                .concat(),
            ),
            (
                "a commit that did not start covers nothing",
                &[Start, FailToStart, Write(FIRST), Start, End(FIRST, true)],
            ),
        ];
        for (what, steps) in cases {
            let mut unstable = Unstable::default();
            for (index, step) in steps.iter().enumerate() {
                match *step {
                    Write(verifier) => unstable.write(verifier),
                    Start => unstable.commit_starts(),
                    FailToStart => unstable.commit_fails_to_start(),
                    End(verifier, is_kept) => {
                        assert_eq!(unstable.commit_ends(verifier), is_kept, "{what}, {index}");
                    }
                }
            }
            if matches!(steps[1], FailToStart) {
                assert_eq!(unstable.verifier, None);
            }
        }
    }
}
