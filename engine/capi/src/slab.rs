//! Slabs: memory of the application's own, registered once.

use crate::engine::RpcEngine;
use crate::error::{Failure, Status, guard, guard_or, may_block};
use crate::memory::{RpcMemory, lend};
use crate::pointers::{Out, borrow, free, slice};
use spinrpc::{Slab, SlabLayout};
use std::ffi::c_int;
use std::io;
use std::os::fd::BorrowedFd;

/// Memory of the application's own, of blocks of one size, which start at multiples of 4096 bytes. A block is a
/// spinrpc_memory, for data items of calls and replies and for file I/O of the application. Any thread may use a
/// slab at any time, but for spinrpc_slab_free().
///
/// Connections that a slab is lent to (spinrpc_connect_options, spinrpc_listen_options) use its blocks
/// with fewer copies over shared memory. **The other side can read all of a slab that it is lent**, and can keep the
/// descriptor: from then on, for as long as the memory exists, the end of the connection takes nothing back. It can
/// write none of it.
pub struct RpcSlab(pub(crate) Slab);

/// # Safety
/// `slabs` points to `count` pointers, each of which is null or points to a slab.
pub(crate) unsafe fn lent(
    slabs: *const *const RpcSlab,
    count: usize,
) -> Result<Vec<Slab>, Failure> {
    // SAFETY: the caller's promise.
    let slabs = unsafe { slice(slabs, count, "slabs") }?;
    // SAFETY: the caller's promise.
    slabs.iter().map(|slab| Ok(unsafe { borrow(*slab, "slab") }?.0.clone())).collect()
}

/// Makes a slab of `count` blocks of `block_bytes` bytes, which are rounded up to a multiple of 4096. Its pages are huge,
/// locked and local as the engine's mem.hugepages and mem.lock say, and all in place. Blocks while that is
/// done; not in a callback. The kernel ends a process that it has no memory for: ask for no more than the machine has free.
///
/// On success `*slab` is a slab, to be freed with spinrpc_slab_free(), before or after the engine. Errors:
/// SPINRPC_STATUS_ENGINE if such memory cannot be allocated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinrpc_slab_new(
    engine: *const RpcEngine,
    block_bytes: usize,
    count: usize,
    slab: *mut *mut RpcSlab,
) -> Status {
    guard(|| {
        // SAFETY: an engine and memory for a pointer, as the header asks for.
        let (engine, out) = unsafe { (borrow(engine, "engine")?, Out::new(slab, "slab")?) };
        may_block()?;
        out.give(RpcSlab(
            engine.engine.slab(SlabLayout::new().block_bytes(block_bytes).blocks(count))?,
        ));
        Ok(())
    })
}

/// Makes a slab of a memfd of the application's own, of usual or huge pages: as many blocks of `block_bytes`, rounded up
/// to a multiple of 4096, as fit. The memfd is not larger than `blocks_max` blocks, was made with MFD_ALLOW_SEALING, and is open for
/// writing. The descriptor is duplicated. Blocks while all pages are brought into being; not in a callback.
///
/// The file is sealed (F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_FUTURE_WRITE, F_SEAL_SEAL): from then on it can be written by way
/// of the blocks only. Seals do not touch what exists already. So the file must have no shared mapping (MAP_SHARED), in any
/// process, and nothing in flight may write its pages: no registration for RDMA, no fixed buffer of io_uring, no I/O.
///
/// On success `*slab` is a slab, to be freed with spinrpc_slab_free(). Errors: SPINRPC_STATUS_INVALID_ARGUMENT if the file is
/// not a memfd that can be sealed like that, or has another size: the file is as it was then;
/// SPINRPC_STATUS_NO_MEMORY where pages are missing; SPINRPC_STATUS_ENGINE for what else the kernel reports: the file may be
/// sealed then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinrpc_slab_from_memfd(
    memfd: c_int,
    block_bytes: usize,
    blocks_max: usize,
    slab: *mut *mut RpcSlab,
) -> Status {
    guard(|| {
        // SAFETY: memory for a pointer, as the header asks for.
        let out = unsafe { Out::new(slab, "slab") }?;
        may_block()?;
        if memfd < 0 {
            return Err(Failure::argument("memfd is negative"));
        }
        // SAFETY: a descriptor of the caller's, which stays open until this function returns.
        let fd = unsafe { BorrowedFd::borrow_raw(memfd) };
        let own = fd.try_clone_to_owned().map_err(|error| of_io(&error))?;
        // SAFETY: nothing has the file mapped or writes it, as the header asks for.
        let slab = unsafe {
            Slab::from_memfd(own, SlabLayout::new().block_bytes(block_bytes).blocks(blocks_max))
        };
        out.give(RpcSlab(slab.map_err(|error| of_io(&error))?));
        Ok(())
    })
}

fn of_io(error: &io::Error) -> Failure {
    // EBADF has the same number on all systems.
    let is_bad_descriptor = error.raw_os_error() == Some(9);
    let status = match error.kind() {
        io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData => Status::InvalidArgument,
        io::ErrorKind::OutOfMemory => Status::NoMemory,
        _ if is_bad_descriptor => Status::InvalidArgument,
        _ => Status::Engine,
    };
    Failure::new(status, format!("the memfd cannot be a slab: {error}"))
}

/// Takes a block of the slab, of which `bytes` bytes are in use. It begins with what its last user left there, and goes
/// back into the slab when it is freed: by spinrpc_memory_free(), or by the library at the end of the call or reply that it
/// was passed with, unless spinrpc_decode_data() has given it to the caller.
///
/// Errors: SPINRPC_STATUS_NO_MEMORY if all blocks are in use, or `bytes` is more than a block has.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinrpc_slab_take(
    slab: *const RpcSlab,
    bytes: usize,
    memory: *mut *mut RpcMemory,
) -> Status {
    guard(|| {
        // SAFETY: a slab, as the header asks for.
        let slab = &unsafe { borrow(slab, "slab") }?.0;
        lend(memory, bytes, "the slab has no free block, or none so long", |bytes| slab.take(bytes))
    })
}

/// Returns the number of blocks that are not in use; 0 if `slab` is NULL. Other threads change it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinrpc_slab_available(slab: *const RpcSlab) -> usize {
    // SAFETY: a slab, as the header asks for.
    guard_or(0, || unsafe { Ok(borrow(slab, "slab")?.0.free()) })
}

/// Frees a slab. NULL is allowed. Its memory stays until the last block, connection and listener that has it is gone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinrpc_slab_free(slab: *mut RpcSlab) {
    // SAFETY: null, or a slab that is not used any more, as the header asks for.
    unsafe { free(slab, "slab") }
}
