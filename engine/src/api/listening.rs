//! Options of listeners.

use super::engine::Engine;
use super::errors::EngineError;
use super::service::ConnectionId;
use crate::fabric::{FabricError, Peer};
use crate::mem::{SLABS_MAX, Slab};
use crate::reactor::in_flight::mailbox::Mail;
use std::fmt;
use std::sync::Arc;

/// Options of the connections that an engine accepts at an address, for
/// [`Engine::listen_with`](crate::Engine::listen_with).
#[derive(Clone, Default)]
pub struct ListenOptions {
    lent: Vec<Slab>,
    admission: Option<Admission>,
}

impl Engine {
    /// Closes a connection that core number `core` has accepted. Returns true if the core was asked, and false if no thread
    /// drives it, or its mailbox is full. Calls in progress go on, and their answers go nowhere; the client may connect
    /// again ([`ListenOptions::admit`]). [`ConnectionEvent::Down`](crate::ConnectionEvent::Down) tells services. A
    /// connection that has ended is ignored. It does not block; any thread may call it, a handler too.
    ///
    /// # Errors
    /// [`EngineError::ApiMisuse`] if the core does not exist.
    pub fn disconnect(&self, core: usize, connection: ConnectionId) -> Result<bool, EngineError> {
        let inbox = &self.0.place(core)?.inbox;
        Ok(inbox.is_read() && inbox.post(Mail::Close(connection.0)).is_ok())
    }
}

pub(super) type Admission = Arc<dyn Fn(&Peer) -> bool + Send + Sync>;

impl fmt::Debug for ListenOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lent, admission } = self;
        let admits_all = admission.is_none();
        f.debug_struct("ListenOptions")
            .field("lent", lent)
            .field("admits_all", &admits_all)
            .finish()
    }
}

impl ListenOptions {
    /// No options.
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets clients fetch results directly from blocks of `slab`, if the fabric supports it: over shared memory a
    /// client copies them from the block to their destination, which is the only copy. **Every client can read the
    /// whole slab**, including blocks that were never sent to it; it cannot write to it. A client has a file
    /// descriptor of the slab and can keep it. So it can read the memory as long as that exists, even after its
    /// connection has ended.
    ///
    /// A block ([`ReplyData::bulk`](crate::ReplyData::bulk), [`ReplyData::shared`](crate::ReplyData::shared)) is in
    /// use until the client has fetched it. The server notices that within a few turns, and within 8 milliseconds on
    /// a core that sleeps, so a slab needs a few more blocks than are read at a time. A client that stops fetching
    /// keeps at most 64 blocks, and those of replies that wait to be sent, for `rpc.stall_timeout_ms` (30 seconds).
    /// Then its connection ends.
    ///
    /// At most 4 slabs. In each connection they count in full toward the client's limits (`limits.peer_slab_mib`,
    /// `limits.peer_mib`, `limits.core_mib`). A client that has no room for all of them gets none. With
    /// `mem.bulk = "copy"`, and over RDMA, nothing is lent.
    ///
    /// ```
    /// use spinrpc::{Call, Config, Engine, ListenOptions, Program, ReplyData, SharedBulk, SlabLayout, Version};
    ///
    /// let server = Engine::new(Config::default())?;
    /// let slab = server.slab(SlabLayout::new().block_bytes(256 << 10).blocks(8))?;
    /// let mut block = slab.take(100_000).ok_or("no free block")?;
    /// // Or by a file: `file.read_exact_at(block.bytes_mut(), offset)`.
    /// block.bytes_mut().fill(7);
    /// let block: SharedBulk = block.freeze();
    /// server.serve(Program(0x2000_0001), Version(1), move |_| {
    ///     let block = block.clone();
    ///     move |call: Call<'_>| {
    ///         let data = ReplyData::new().shared(&block, 0..100_000);
    ///         call.reply_with(data, |results| results.bulk());
    ///     }
    /// })?;
    /// server.listen_with("shm:doc-listen-lend", &ListenOptions::new().lend(&slab))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn lend(mut self, slab: &Slab) -> Self {
        self.lent.push(slab.clone());
        self
    }

    /// Lets only peers connect that `admits` returns true for. It is asked before a peer gets any memory, on the
    /// thread of all handshakes of the engine, and must not block. Over RDMA the peer is an address
    /// ([`Peer::Socket`]), and a stranger's request is rejected; over shared memory it is a process of this user or of
    /// root. Connections that exist stay.
    #[must_use]
    pub fn admit(self, admits: impl Fn(&Peer) -> bool + Send + Sync + 'static) -> Self {
        Self { admission: Some(Arc::new(admits)), ..self }
    }

    /// Decides if a peer may connect; `None` admits all.
    pub(super) fn admission(&self) -> Option<Admission> {
        self.admission.clone()
    }

    /// The slabs, for a listener at `address`.
    pub(super) fn lent(&self, address: &str) -> Result<&[Slab], EngineError> {
        if self.lent.len() <= SLABS_MAX {
            return Ok(&self.lent);
        }
        let op = format!("listen {address}");
        let reason = format!("{} slabs are lent, and at most {SLABS_MAX} can be", self.lent.len());
        Err(FabricError { op, reason, source: None }.into())
    }
}
