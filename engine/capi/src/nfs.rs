//! Files of NFS servers (version 3).

use crate::calls::RpcAnswer;
use crate::engine::RpcEngine;
use crate::error::{Failure, Status, guard, may_block};
use crate::memory::{OF_CORE, RpcMemory, lend};
use crate::pointers::{self, Out, borrow, free, take_back, text, unused};
use crate::queue::RpcQueue;
use crate::slab::{RpcSlab, lent};
use spinrpc::{Answer, AnswerQueue, Bulk, ClientHandle, ConnectOptions, Reconnect, Token};
use spinrpc_nfs::client::{Mount, MountBy, NfsHandle, OpenFile, Options, Read, Target, User};
use spinrpc_nfs::protocol::{Fattr3, Nfstime3, StableHow};
use std::ffi::c_char;
use std::ptr::null;
use std::sync::Arc;
use std::time::Duration;

/// A mounted directory of an NFS server, by a connection of one core of an engine. A lost connection is established again,
/// however long that takes, and reads, writes and commits that were in flight are sent again: each at most three times, and
/// until its time has passed (timeout_ns of spinrpc_nfs_options), after which it ends with an error.
pub struct RpcNfs {
    session: Arc<NfsHandle>,
    mount: Mount<ClientHandle>,
}

/// A file of an NFS server. It remembers whether data that were written can still be lost.
pub struct RpcNfsFile {
    session: Arc<NfsHandle>,
    file: OpenFile,
}

/// Flag of spinrpc_nfs_options: calls are made as its uid and gid, without other groups. Else they are made as the user of
/// the process.
pub const SPINRPC_NFS_USER: u32 = 1;

/// Flag of spinrpc_nfs_open(): the file is created if it is missing.
pub const SPINRPC_NFS_CREATE: u32 = 1;

/// Flag of spinrpc_nfs_open(), with SPINRPC_NFS_CREATE: a file that is there becomes empty.
pub const SPINRPC_NFS_TRUNCATE: u32 = 2;

/// Flag of spinrpc_nfs_write(): the answer comes when the data are on stable storage.
pub const SPINRPC_NFS_STABLE: u32 = 1;

/// Options of a mount. Fill it with zeros, then set what is needed: `spinrpc_nfs_options options = {0};`. It is read while
/// the function runs.
#[repr(C)]
#[derive(Debug)]
pub struct NfsOptions {
    /// Number of the engine's core that the connections belong to, counted from 0.
    pub core: usize,
    /// Nanoseconds for a read, write or commit, and for retries with a server that needs longer. 0: 30 seconds. Other calls
    /// have the configured time (rpc.timeout_ms).
    pub timeout_ns: u64,
    /// Slabs that the server is lent, `slab_count` of them, at most four: as in spinrpc_connect_options.
    pub slabs: *const *const RpcSlab,
    /// Number of `slabs`.
    pub slab_count: usize,
    /// User of the calls (AUTH_SYS), with SPINRPC_NFS_USER.
    pub uid: u32,
    /// Group of the calls, with SPINRPC_NFS_USER.
    pub gid: u32,
    /// TCP port of the server's MOUNT service. 0: rpcbind on the server knows it, or the service is at the server's own
    /// address, as it is over shared memory in any case.
    pub mount_port: u16,
    /// 0 or SPINRPC_NFS_USER.
    pub flags: u32,
    /// For later versions: zeros.
    pub reserved: [u64; 4],
}

const DEFAULTS: NfsOptions = NfsOptions {
    core: 0,
    timeout_ns: 0,
    slabs: null(),
    slab_count: 0,
    uid: 0,
    gid: 0,
    mount_port: 0,
    flags: 0,
    reserved: [0; 4],
};

impl NfsOptions {
    fn checked(&self) -> Result<(Options, MountBy), Failure> {
        unused(&self.reserved)?;
        let mut options = Options::default();
        if self.timeout_ns > 0 {
            options.timeout = Duration::from_nanos(self.timeout_ns);
        }
        match self.flags {
            0 => {}
            SPINRPC_NFS_USER => {
                options.user = Some(User::current().with_ids(Some(self.uid), Some(self.gid)));
            }
            _ => return Err(Failure::argument("options.flags has unknown bits")),
        }
        let by = match self.mount_port {
            0 => MountBy::Auto,
            port => MountBy::Port(port),
        };
        Ok((options, by))
    }
}

/// Attributes of a file (RFC 1813 section 2.5). Times are nanoseconds since 1970.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NfsAttributes {
    /// 1: a regular file, 2: a directory, 3: a block device, 4: a character device, 5: a symbolic link, 6: a socket, 7: a FIFO.
    pub kind: u32,
    /// Permissions.
    pub mode: u32,
    /// Number of names.
    pub links: u32,
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Size.
    pub size: u64,
    /// Bytes of the disk that it takes.
    pub used: u64,
    /// Its file system.
    pub fsid: u64,
    /// Its number there.
    pub fileid: u64,
    /// Time of the last access.
    pub atime_ns: u64,
    /// Time of the last change of its data.
    pub mtime_ns: u64,
    /// Time of the last change of its data or attributes.
    pub ctime_ns: u64,
}

impl From<Fattr3> for NfsAttributes {
    fn from(of: Fattr3) -> Self {
        let ns =
            |time: Nfstime3| u64::from(time.seconds) * 1_000_000_000 + u64::from(time.nseconds);
        Self {
            kind: of.r#type as u32,
            mode: of.mode,
            links: of.nlink,
            uid: of.uid,
            gid: of.gid,
            size: of.size,
            used: of.used,
            fsid: of.fsid,
            fileid: of.fileid,
            atime_ns: ns(of.atime),
            mtime_ns: ns(of.mtime),
            ctime_ns: ns(of.ctime),
        }
    }
}

/// Mounts a directory of an NFS server: "rdma://HOST:PORT/EXPORT/PATH", where the port may be missing, the same with "iwarp://",
/// or "shm:NAME//EXPORT/PATH" with two slashes before the path. The driver of the engine has to be that of the address
/// (spinrpc_engine_new()), and the engine must have been started. `options` may be NULL. Paths of spinrpc_nfs_open() begin at
/// the directory, and ".." does not leave it, nor do absolute symbolic links. Blocks; not in a callback.
///
/// On success `*nfs` is a mounted directory, to be freed with spinrpc_nfs_free(). Errors: SPINRPC_STATUS_CONNECT if there is no
/// connection to the server or its MOUNT service, or the engine has no such core; those of spinrpc_client_wait_up(); SPINRPC_STATUS_NFS if the server refuses the directory, or it is another kind of file;
/// SPINRPC_STATUS_INVALID_ARGUMENT for an address that cannot be one; all those of a call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinrpc_nfs_mount(
    engine: *const RpcEngine,
    address: *const c_char,
    options: *const NfsOptions,
    nfs: *mut *mut RpcNfs,
) -> Status {
    guard(|| {
        // SAFETY: an engine, text and memory for a pointer, as the header asks for.
        let (engine, address, out) = unsafe {
            (borrow(engine, "engine")?, text(address, "address")?, Out::new(nfs, "nfs")?)
        };
        // SAFETY: options, as the header asks for.
        let given = unsafe { pointers::options(options) }?.unwrap_or(&DEFAULTS);
        let (options, by) = given.checked()?;
        // SAFETY: slabs, as the header asks for.
        let lent = unsafe { lent(given.slabs, given.slab_count) }?;
        may_block()?;
        let target = Target::parse(address).map_err(Failure::argument)?;
        // Each call has a deadline.
        let policy = Reconnect::default().give_up_after(Duration::MAX);
        let connect = ConnectOptions::new().reconnect(policy);
        let connect = lent.iter().fold(connect, ConnectOptions::lend);
        let core = (&engine.engine, given.core);
        let (session, mount) = NfsHandle::mount(core, &target, by, connect, &options)?;
        out.give(RpcNfs { session: Arc::new(session), mount });
        Ok(())
    })
}

/// Returns the most bytes that one read and one write may have. The limits of the engine may be lower
/// (rpc.max_read_bytes, rpc.max_write_bytes).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinrpc_nfs_limits(
    nfs: *const RpcNfs,
    read_bytes_max: *mut usize,
    write_bytes_max: *mut usize,
) -> Status {
    guard(|| {
        // SAFETY: a mounted directory and memory for the results, as the header asks for.
        let (nfs, read, write) = unsafe {
            (
                borrow(nfs, "nfs")?,
                Out::new(read_bytes_max, "read_bytes_max")?,
                Out::new(write_bytes_max, "write_bytes_max")?,
            )
        };
        let (read_max, write_max) = nfs.session.bytes_max();
        read.set(read_max as usize);
        write.set(write_max as usize);
        Ok(())
    })
}

/// Lends registered memory of the connection's core, for reads and writes: as spinrpc_client_memory(). Blocks of a slab
/// will do as well.
///
/// Errors: SPINRPC_STATUS_NO_MEMORY.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinrpc_nfs_memory(
    nfs: *const RpcNfs,
    bytes: usize,
    memory: *mut *mut RpcMemory,
) -> Status {
    guard(|| {
        // SAFETY: a mounted directory, as the header asks for.
        let nfs = unsafe { borrow(nfs, "nfs") }?;
        lend(memory, bytes, OF_CORE, |bytes| nfs.session.client().bulk(bytes))
    })
}

/// Unmounts the directory: tells the server, which may take as long as a call, and frees it. NULL is allowed. Files that are
/// open stay usable. In a callback the server is not told.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinrpc_nfs_free(nfs: *mut RpcNfs) {
    guard(|| {
        // SAFETY: null, or a mounted directory that is not used any more, as the header asks for.
        let Some(nfs) = unsafe { take_back(nfs, "nfs") }? else { return Ok(()) };
        if may_block().is_ok() {
            // The server forgets it sooner or later in any case.
            let _ = nfs.mount.end();
        }
        Ok(())
    });
}

/// Opens the file at `path`, from the mounted directory on; symbolic links are followed. `flags` are 0,
/// SPINRPC_NFS_CREATE, or SPINRPC_NFS_CREATE | SPINRPC_NFS_TRUNCATE; then the last name is not followed, and `mode` has the
/// permissions of a file that is created. Blocks; not in a callback.
///
/// On success `*file` is a file, to be freed with spinrpc_nfs_file_free(). The server is not told of it, and permissions are
/// checked by each read and write. Errors: SPINRPC_STATUS_NFS, with SPINRPC_NFS_CREATE also if the name is there and not a
/// regular file (21 of a directory, 17 of others); SPINRPC_STATUS_INVALID_ARGUMENT for a path that cannot be one; all
/// those of a call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinrpc_nfs_open(
    nfs: *const RpcNfs,
    path: *const c_char,
    flags: u32,
    mode: u32,
    file: *mut *mut RpcNfsFile,
) -> Status {
    const EMPTIES: u32 = SPINRPC_NFS_CREATE | SPINRPC_NFS_TRUNCATE;
    guard(|| {
        // SAFETY: a mounted directory, text and memory for a pointer, as the header asks for.
        let (nfs, path, out) =
            unsafe { (borrow(nfs, "nfs")?, text(path, "path")?, Out::new(file, "file")?) };
        let create = match flags {
            0 => None,
            SPINRPC_NFS_CREATE => Some((mode, None)),
            EMPTIES => Some((mode, Some(0))),
            _ => return Err(Failure::argument("flags has unknown bits")),
        };
        may_block()?;
        let session = Arc::clone(&nfs.session);
        let file = session.open(path, create)?;
        out.give(RpcNfsFile { session, file });
        Ok(())
    })
}

/// Asks the server for the attributes of a file. Blocks; not in a callback.
///
/// Errors: SPINRPC_STATUS_NFS; all those of a call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinrpc_nfs_file_attributes(
    file: *const RpcNfsFile,
    attributes: *mut NfsAttributes,
) -> Status {
    guard(|| {
        // SAFETY: a file and memory for the attributes, as the header asks for.
        let (file, out) = unsafe { (borrow(file, "file")?, Out::new(attributes, "attributes")?) };
        may_block()?;
        out.set(file.session.attributes_of(&file.file)?.into());
        Ok(())
    })
}

/// # Safety
/// As the header asks for: a file, memory that is not used elsewhere, and a queue.
unsafe fn passed<'a>(
    file: *const RpcNfsFile,
    memory: *mut RpcMemory,
    queue: *const RpcQueue,
    most: impl Fn((u32, u32)) -> u32,
) -> Result<(&'a RpcNfsFile, Bulk, &'a AnswerQueue), Failure> {
    // SAFETY: the caller's promise. It is taken over whatever comes of it.
    let memory = unsafe { take_back(memory, "memory") };
    // SAFETY: the caller's promise.
    let (file, queue) = unsafe { (borrow(file, "file")?, borrow(queue, "queue")?) };
    let memory = memory?.ok_or_else(|| Failure::argument("memory is null"))?.0;
    let most = most(file.session.bytes_max());
    match memory.len() {
        0 => Err(Failure::argument("memory has no bytes in use")),
        bytes if bytes > most as usize => {
            let text = format!("{bytes} bytes are more than the server takes at once: {most}");
            Err(Failure::new(Status::TooLarge, text))
        }
        _ => Ok((file, memory, &queue.0)),
    }
}

/// Starts to read from `offset` on, as many bytes as `memory` has in use (spinrpc_memory_set_length()), and returns at once.
/// The answer comes to `queue`, with `token`, exactly once; spinrpc_nfs_read_result() reads it. `memory` belongs to the
/// library from now on, whatever is returned, and comes back by the result. If this function does not return
/// SPINRPC_STATUS_OK, nothing was sent and no answer comes.
///
/// Errors: SPINRPC_STATUS_TOO_LARGE for more bytes than spinrpc_nfs_limits() tells, which are not divided; those of
/// spinrpc_call_queued().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinrpc_nfs_read(
    file: *const RpcNfsFile,
    offset: u64,
    memory: *mut RpcMemory,
    queue: *const RpcQueue,
    token: u64,
) -> Status {
    guard(|| {
        // SAFETY: pointers as the header asks for.
        let (file, room, queue) = unsafe { passed(file, memory, queue, |(read, _)| read) }?;
        Ok(file.session.read(&file.file, offset, room, (queue, Token(token)))?)
    })
}

/// Starts to write the bytes in use of `memory` at `offset`, and returns at once. The answer comes to `queue`, with `token`,
/// exactly once; spinrpc_nfs_write_result() reads it. `flags` are 0 or SPINRPC_NFS_STABLE. `memory` belongs to the library from
/// now on, whatever is returned. It is free again when the answer has been taken. If this function does not return
/// SPINRPC_STATUS_OK, nothing was sent and no answer comes.
///
/// Errors: as for spinrpc_nfs_read().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinrpc_nfs_write(
    file: *const RpcNfsFile,
    offset: u64,
    memory: *mut RpcMemory,
    flags: u32,
    queue: *const RpcQueue,
    token: u64,
) -> Status {
    guard(|| {
        // SAFETY: pointers as the header asks for.
        let (file, data, queue) = unsafe { passed(file, memory, queue, |(_, write)| write) }?;
        let stable = match flags {
            0 => StableHow::Unstable,
            SPINRPC_NFS_STABLE => StableHow::FileSync,
            _ => return Err(Failure::argument("flags has unknown bits")),
        };
        Ok(file.session.write(&file.file, offset, data, stable, (queue, Token(token)))?)
    })
}

/// Starts to put all data of the file on stable storage that were written without SPINRPC_NFS_STABLE and whose results have
/// been read, and returns at once. The answer comes to `queue`, with `token`, exactly once; spinrpc_nfs_commit_result()
/// reads it. If this function does not return SPINRPC_STATUS_OK, nothing was sent and no answer comes.
///
/// Errors: those of spinrpc_call_queued().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinrpc_nfs_commit(
    file: *const RpcNfsFile,
    queue: *const RpcQueue,
    token: u64,
) -> Status {
    guard(|| {
        // SAFETY: a file and a queue, as the header asks for.
        let (file, queue) = unsafe { (borrow(file, "file")?, borrow(queue, "queue")?) };
        Ok(file.session.commit(&file.file, (&queue.0, Token(token)))?)
    })
}

/// # Safety
/// `answer` is null or misaligned, or an answer that is not used any more.
unsafe fn taken(answer: *mut RpcAnswer) -> Result<Answer, Failure> {
    // SAFETY: the caller's promise.
    let answer = unsafe { take_back(answer, "answer") }?;
    Ok(answer.ok_or_else(|| Failure::argument("answer is null"))?.into_inner())
}

fn asked(length: usize) -> Result<u32, Failure> {
    u32::try_from(length).map_err(|_| Failure::argument("length is longer than a call can be"))
}

/// Reads the result of a read of `length` bytes. `answer`, which the queue returned with SPINRPC_STATUS_OK, is freed,
/// whatever is returned.
///
/// On success `*memory` has the data: it is the block of the call, and the bytes in use are those that were read, which may be
/// fewer than were asked for. Free it, or pass it on. `*is_end` is true if the file ends behind them. Errors:
/// SPINRPC_STATUS_NFS; SPINRPC_STATUS_PROTOCOL for an answer that cannot be one. The memory is freed then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinrpc_nfs_read_result(
    answer: *mut RpcAnswer,
    length: usize,
    memory: *mut *mut RpcMemory,
    is_end: *mut bool,
) -> Status {
    guard(|| {
        // SAFETY: an answer, as the header asks for.
        let answer = unsafe { taken(answer) }?;
        // SAFETY: memory for the results, as the header asks for.
        let (memory, end) = unsafe { (Out::new(memory, "memory")?, Out::new(is_end, "is_end")?) };
        let read = Read::of(answer, asked(length)?)?;
        memory.give(RpcMemory(read.data));
        end.set(read.is_end);
        Ok(())
    })
}

/// Reads the result of a write of `length` bytes to `file`. `answer`, which the queue returned with SPINRPC_STATUS_OK, is
/// freed, whatever is returned.
///
/// On success `*written` is the number of bytes that the server has taken, at least one: if it is fewer than `length`, write the
/// rest. `*is_stable` is true if they are on stable storage; else they may be lost until spinrpc_nfs_commit().
/// After a write with SPINRPC_NFS_STABLE look at it: false is an error of the server then. Errors: SPINRPC_STATUS_INVALID_ARGUMENT
/// for a length of 0; others as for spinrpc_nfs_read_result().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinrpc_nfs_write_result(
    file: *const RpcNfsFile,
    answer: *mut RpcAnswer,
    length: usize,
    written: *mut usize,
    is_stable: *mut bool,
) -> Status {
    guard(|| {
        // SAFETY: an answer, as the header asks for.
        let answer = unsafe { taken(answer) }?;
        // SAFETY: a file and memory for the results, as the header asks for.
        let (file, count, stable) = unsafe {
            (
                borrow(file, "file")?,
                Out::new(written, "written")?,
                Out::new(is_stable, "is_stable")?,
            )
        };
        // Read first, whatever the length is: the file has to know of data that are not on stable storage.
        let written = file.file.written(answer, u32::try_from(length).unwrap_or(u32::MAX));
        if length == 0 {
            return Err(Failure::argument("length is 0, and no write is"));
        }
        let written = written?;
        count.set(written.bytes as usize);
        stable.set(written.is_stable);
        Ok(())
    })
}

/// Reads the result of a commit of `file`. `answer`, which the queue returned with SPINRPC_STATUS_OK, is freed, whatever is
/// returned. On success all data are on stable storage whose results had been read before the commit was started.
///
/// Errors: SPINRPC_STATUS_DATA_LOST if the server has restarted since data were written (its write verifier has changed): all
/// that was written since the last commit that succeeded may be lost, and has to be written again. That is told once. If commits of
/// a file overlap or have failed, a restart may be told although nothing was lost. Others as for spinrpc_nfs_read_result().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinrpc_nfs_commit_result(
    file: *const RpcNfsFile,
    answer: *mut RpcAnswer,
) -> Status {
    guard(|| {
        // SAFETY: an answer, as the header asks for.
        let answer = unsafe { taken(answer) }?;
        // SAFETY: a file, as the header asks for.
        Ok(unsafe { borrow(file, "file") }?.file.committed(answer)?)
    })
}

/// Frees a file. NULL is allowed. The server is not told, and nothing is committed. Reads and writes in flight go on, but the
/// results of writes and commits need the file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinrpc_nfs_file_free(file: *mut RpcNfsFile) {
    // SAFETY: null, or a file that is not used any more, as the header asks for.
    unsafe { free(file, "file") }
}
