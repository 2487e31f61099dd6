//! A server of NFS and MOUNT, version 3, in a thread of the test: correct, or faulty on request.

use crate::reference::{FromXdr, ToXdr, to_bytes};
use crate::reference::{ReadHead, WriteHead};
use crate::tree::{Content, ROOT, Tree, handle, number};
use nfs3_types::nfs3::*;
use nfs3_types::xdr_codec::List;
use spinrpc::config::RawConfig;
use spinrpc::sync::lock;
use spinrpc::{
    AcceptStatus, AuthFlavor, AuthSys, Call, CoreContext, DecodeError, Deferred, Encoder, Engine,
    Procedure, ReplyData, Running, Service,
};
use spinrpc_nfs::mount3::{self, Dirpath, EXPORT, Exportnode, MNT, Mounted, Mountstat3, UMNT};
use spinrpc_nfs::nfs3;
use spinrpc_nfs::protocol::FileHandle;
use spinrpc_xdr::{Decode, Encode};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

pub(crate) const EXPORTED: &str = "/export";
/// Default maximum of READ and WRITE.
pub(crate) const BLOCK_BYTES: u32 = 64 << 10;

/// Faults of a server.
#[derive(Default)]
pub(crate) struct Faults {
    /// Maximum bytes returned by READ.
    pub(crate) read_bytes_max: Option<usize>,
    /// Maximum bytes accepted by WRITE.
    pub(crate) write_bytes_max: Option<usize>,
    /// Number of calls by procedure that are answered NFS3ERR_JUKEBOX.
    pub(crate) jukebox: BTreeMap<u32, u32>,
    /// Status of all calls by procedure.
    pub(crate) status: BTreeMap<u32, nfsstat3>,
    /// Raw results by procedure.
    pub(crate) raw: BTreeMap<u32, Vec<u8>>,
    /// A procedure whose calls are no longer answered after this number.
    pub(crate) mute: Option<(u32, u32)>,
    /// End-of-file flag of READ, and its count.
    pub(crate) eof: Option<bool>,
    pub(crate) read_count: Option<u32>,
    /// Count and stability returned by WRITE.
    pub(crate) write_count: Option<u32>,
    pub(crate) write_committed: Option<stable_how>,
    /// Number of WRITEs after which the server restarts, repeatedly if requested.
    pub(crate) crash_after_writes: Option<u32>,
    pub(crate) crashes_again: bool,
    /// Maximum number of entries per page, with the cookies of the first page on every page if
    /// requested.
    pub(crate) page_entries: Option<usize>,
    pub(crate) cookies_repeat: bool,
    /// Omits everything that is optional in RFC 1813.
    pub(crate) no_options: bool,
    /// READ returns data inline, although memory for them was offered.
    pub(crate) reads_inline: bool,
}

/// State of the server, and its observations.
pub(crate) struct State {
    pub(crate) tree: Tree,
    pub(crate) faults: Faults,
    pub(crate) calls: BTreeMap<u32, u32>,
    pub(crate) mounts: Vec<(&'static str, String)>,
    /// User and group of the last call.
    pub(crate) caller: Option<(u32, u32)>,
    pub(crate) block_bytes: u32,
    /// Requested stability of the last WRITE.
    pub(crate) stable: Option<stable_how>,
    writes: u32,
}

/// A server that stops with the test.
pub(crate) struct Server {
    engine: Engine,
    running: Option<Running>,
    state: Arc<Mutex<State>>,
    address: String,
}

impl Server {
    pub(crate) fn start(name: &str) -> Self {
        let mut raw = RawConfig::default();
        raw.cores.max = 1;
        let config = raw.validate().unwrap();
        let engine = Engine::new(config).unwrap();
        let state = State {
            tree: Tree::new(),
            faults: Faults::default(),
            calls: BTreeMap::new(),
            mounts: Vec::new(),
            caller: None,
            block_bytes: BLOCK_BYTES,
            stable: None,
            writes: 0,
        };
        let state = Arc::new(Mutex::new(state));
        let (nfs, mount) = (Arc::clone(&state), Arc::clone(&state));
        engine
            .serve(nfs3::PROGRAM, nfs3::VERSION, move |memory| NfsService {
                state: Arc::clone(&nfs),
                memory: memory.clone(),
                unanswered: Vec::new(),
            })
            .unwrap();
        engine
            .serve(mount3::PROGRAM, mount3::VERSION, move |_| MountService(Arc::clone(&mount)))
            .unwrap();
        let address = format!("shm:nfs-{name}-{}", std::process::id());
        engine.listen(&address).unwrap();
        let running = Some(engine.start().unwrap());
        Self { engine, running, state, address }
    }

    /// State and faults; the server waits meanwhile.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// A path on it, in command-line form.
    pub(crate) fn target(&self, path: &str) -> String {
        format!("{}/{EXPORTED}{path}", self.address)
    }

    pub(crate) fn calls(&self, operation: NFS_PROGRAM) -> u32 {
        self.state().calls.get(&(operation as u32)).copied().unwrap_or(0)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.engine.shutdown();
        drop(self.running.take().map(Running::join));
    }
}

struct MountService(Arc<Mutex<State>>);

impl Service for MountService {
    fn call(&mut self, mut call: Call<'_>) {
        let path = <Dirpath<'_> as Decode<'_>>::decode(&mut call.args());
        let path = path.map(|path| String::from_utf8_lossy(&path).into_owned());
        let mut state = lock(&self.0);
        let mut note = |what, path: &Result<String, DecodeError>| {
            state.mounts.push((what, path.clone().unwrap_or_default()));
        };
        match call.procedure() {
            MNT => {
                note("MNT", &path);
                let root = FileHandle::new(&handle(ROOT).data).unwrap();
                call.reply(|to| match path.as_deref() {
                    Ok(EXPORTED) => {
                        Encode::encode(&Mountstat3::Mnt3Ok, to);
                        Mounted { handle: root, flavors: vec![1] }.encode(to);
                    }
                    _ => Encode::encode(&Mountstat3::Mnt3errNoent, to),
                });
            }
            UMNT => {
                note("UMNT", &path);
                call.reply(|_| {});
            }
            EXPORT => call.reply(|to| {
                let ex_dir = mount3::path(EXPORTED).unwrap();
                let nodes = [Exportnode { ex_dir, ex_groups: spinrpc_xdr::List::default() }];
                Encode::encode(&spinrpc_xdr::List::new(&nodes), to);
            }),
            _ => call.reply(|_| {}),
        }
    }
}

struct NfsService {
    state: Arc<Mutex<State>>,
    memory: CoreContext,
    unanswered: Vec<Deferred>,
}

/// Results after NFS3_OK.
type Results = Result<Vec<u8>, nfsstat3>;

impl Service for NfsService {
    fn call(&mut self, mut call: Call<'_>) {
        let shared = Arc::clone(&self.state);
        let mut state = lock(&shared);
        let Procedure(procedure) = call.procedure();
        let calls = state.calls.entry(procedure).or_default();
        *calls += 1;
        let calls = *calls;
        state.note_caller(&call);
        if state.faults.mute.is_some_and(|(mute, after)| mute == procedure && calls > after) {
            self.unanswered.extend(call.defer());
            return;
        }
        if let Some(raw) = state.faults.raw.get(&procedure) {
            return call.reply(|to| to.fixed(raw));
        }
        if let Some(status) = state.refusal(procedure) {
            return reply(call, Err(status));
        }
        let Ok(operation) = NFS_PROGRAM::try_from(procedure) else {
            return call.reject(AcceptStatus::ProcUnavail);
        };
        match operation {
            NFS_PROGRAM::NFSPROC3_NULL => call.reply(|_| {}),
            NFS_PROGRAM::NFSPROC3_READ => self.read(call, &mut state),
            _ => match state.answer(operation, &mut call) {
                Ok(results) => reply(call, results),
                Err(_) => call.reject(AcceptStatus::GarbageArgs),
            },
        }
    }
}

impl NfsService {
    fn read(&self, mut call: Call<'_>, state: &mut State) {
        let Ok(args) = READ3args::decode(&mut call.args()) else {
            return call.reject(AcceptStatus::GarbageArgs);
        };
        let (head, data) = match state.read(&args) {
            Ok(read) => read,
            Err(status) => return reply(call, Err(status)),
        };
        let write_head = |to: &mut Encoder<'_>| {
            nfsstat3::NFS3_OK.encode(to);
            head.encode(to);
        };
        if state.faults.reads_inline {
            return call.reply(|to| {
                write_head(to);
                to.opaque(&data);
            });
        }
        let mut bulk = self.memory.bulk(data.len()).unwrap();
        bulk.bytes_mut().copy_from_slice(&data);
        call.reply_with(ReplyData::new().bulk(bulk), |to| {
            write_head(to);
            to.bulk();
        });
    }
}

fn reply(call: Call<'_>, results: Results) {
    call.reply(|to| match &results {
        Ok(bytes) => {
            nfsstat3::NFS3_OK.encode(to);
            to.fixed(bytes);
        }
        // The maximum number of attributes of an error, all absent.
        Err(status) => {
            status.encode(to);
            to.u64(0);
        }
    });
}

fn bytes(results: &impl ToXdr) -> Vec<u8> {
    to_bytes(|to| results.encode(to))
}

impl State {
    fn note_caller(&mut self, call: &Call<'_>) {
        let credential = call.credential();
        let user = AuthSys::parse(credential.body).ok();
        let user = user.filter(|_| credential.flavor == AuthFlavor::Sys);
        self.caller = user.map(|user| (user.uid, user.gid));
    }

    fn refusal(&mut self, procedure: u32) -> Option<nfsstat3> {
        if let Some(left) = self.faults.jukebox.get_mut(&procedure).filter(|left| **left > 0) {
            *left -= 1;
            return Some(nfsstat3::NFS3ERR_JUKEBOX);
        }
        self.faults.status.get(&procedure).copied()
    }

    fn answer(
        &mut self,
        operation: NFS_PROGRAM,
        call: &mut Call<'_>,
    ) -> Result<Results, DecodeError> {
        let mut args = call.args();
        Ok(match operation {
            NFS_PROGRAM::NFSPROC3_GETATTR => self.getattr(&FromXdr::decode(&mut args)?),
            NFS_PROGRAM::NFSPROC3_LOOKUP => self.lookup(&FromXdr::decode(&mut args)?),
            NFS_PROGRAM::NFSPROC3_READLINK => self.readlink(&FromXdr::decode(&mut args)?),
            NFS_PROGRAM::NFSPROC3_FSINFO => self.fsinfo(&FromXdr::decode(&mut args)?),
            NFS_PROGRAM::NFSPROC3_CREATE => self.create(FromXdr::decode(&mut args)?),
            NFS_PROGRAM::NFSPROC3_COMMIT => self.commit(&FromXdr::decode(&mut args)?),
            NFS_PROGRAM::NFSPROC3_READDIRPLUS => self.readdirplus(&FromXdr::decode(&mut args)?),
            NFS_PROGRAM::NFSPROC3_READDIR => self.readdir(&FromXdr::decode(&mut args)?),
            NFS_PROGRAM::NFSPROC3_WRITE => {
                let head = WriteHead::decode(&mut args)?;
                self.write(&head, args.data(1 << 20)?.bytes())
            }
            _ => Err(nfsstat3::NFS3ERR_NOTSUPP),
        })
    }

    /// An optional value.
    fn optional<T: nfs3_types::xdr_codec::Pack + nfs3_types::xdr_codec::Unpack>(
        &self,
        value: T,
    ) -> Nfs3Option<T> {
        if self.faults.no_options { Nfs3Option::None } else { Nfs3Option::Some(value) }
    }

    fn getattr(&self, args: &GETATTR3args) -> Results {
        let attributes: fattr3 = self.tree.attributes(number(&args.object)?)?;
        Ok(bytes(&attributes))
    }

    fn lookup(&self, args: &LOOKUP3args<'_>) -> Results {
        let child = self.tree.child(number(&args.what.dir)?, args.what.name.as_ref())?;
        Ok(bytes(&LOOKUP3resok {
            object: handle(child),
            obj_attributes: self.optional(self.tree.attributes(child)?),
            dir_attributes: Nfs3Option::None,
        }))
    }

    fn readlink(&self, args: &READLINK3args) -> Results {
        let Content::Link(target) = &self.tree.node(number(&args.symlink)?)?.content else {
            return Err(nfsstat3::NFS3ERR_INVAL);
        };
        let symlink_attributes = Nfs3Option::None;
        let results = READLINK3resok { symlink_attributes, data: target[..].into() };
        Ok(to_bytes(|to| results.encode(to)))
    }

    fn fsinfo(&self, _: &FSINFO3args) -> Results {
        let block = self.block_bytes;
        Ok(bytes(&FSINFO3resok {
            obj_attributes: Nfs3Option::None,
            rtmax: block,
            rtpref: block,
            rtmult: 1,
            wtmax: block,
            wtpref: block,
            wtmult: 1,
            dtpref: block,
            maxfilesize: u64::MAX,
            time_delta: nfstime3 { seconds: 0, nseconds: 1 },
            properties: 0,
        }))
    }

    fn read(&mut self, args: &READ3args) -> Result<(ReadHead, Vec<u8>), nfsstat3> {
        let file = number(&args.file)?;
        let bytes = self.tree.file(file)?;
        let begin = (args.offset as usize).min(bytes.len());
        let count = (args.count as usize).min(self.faults.read_bytes_max.unwrap_or(usize::MAX));
        let data = bytes[begin..(begin + count).min(bytes.len())].to_vec();
        let is_end = begin + data.len() == bytes.len();
        let head = ReadHead {
            file_attributes: self.tree.post_op(file),
            count: self.faults.read_count.unwrap_or(data.len() as u32),
            eof: self.faults.eof.unwrap_or(is_end),
        };
        Ok((head, data))
    }

    fn write(&mut self, head: &WriteHead, data: &[u8]) -> Results {
        if data.len() != head.count as usize {
            return Err(nfsstat3::NFS3ERR_INVAL);
        }
        self.stable = Some(head.stable);
        let file = number(&head.file)?;
        let taken = &data[..data.len().min(self.faults.write_bytes_max.unwrap_or(usize::MAX))];
        let verf = self.tree.write(file, head.offset as usize, taken)?;
        self.writes += 1;
        if self.faults.crash_after_writes == Some(self.writes) {
            self.tree.crash();
            self.writes = if self.faults.crashes_again { 0 } else { self.writes };
        }
        Ok(bytes(&WRITE3resok {
            file_wcc: self.tree.wcc(file),
            count: self.faults.write_count.unwrap_or(taken.len() as u32),
            committed: self.faults.write_committed.unwrap_or(head.stable),
            verf,
        }))
    }

    fn commit(&mut self, args: &COMMIT3args) -> Results {
        let file = number(&args.file)?;
        let verf = self.tree.commit();
        Ok(bytes(&COMMIT3resok { file_wcc: self.tree.wcc(file), verf }))
    }

    fn create(&mut self, args: CREATE3args<'_>) -> Results {
        let createhow3::UNCHECKED(attributes) = args.how else {
            return Err(nfsstat3::NFS3ERR_NOTSUPP);
        };
        let (parent, name) = (number(&args.where_.dir)?, args.where_.name.as_ref());
        let mode = match attributes.mode {
            Nfs3Option::Some(mode) => mode,
            Nfs3Option::None => 0o600,
        };
        let file = match self.tree.child(parent, name) {
            Ok(file) => file,
            Err(_) => self.tree.add(parent, name, Content::File(Vec::new()), mode)?,
        };
        if let Nfs3Option::Some(size) = attributes.size {
            self.tree.file(file)?.resize(size as usize, 0);
        }
        Ok(bytes(&CREATE3resok {
            obj: self.optional(handle(file)),
            obj_attributes: self.optional(self.tree.attributes(file)?),
            dir_wcc: self.tree.wcc(parent),
        }))
    }

    /// Name, number and cookie of the entries of a page, and whether it is the last.
    #[expect(clippy::type_complexity, reason = "it is taken apart at once")]
    fn page(
        &self,
        cookie: u64,
        directory: u64,
    ) -> Result<(Vec<(Vec<u8>, u64, u64)>, bool), nfsstat3> {
        let entries = self.tree.entries(directory)?.iter().zip(1..);
        let from = if self.faults.cookies_repeat { 0 } else { cookie };
        let rest = entries.filter(|(_, cookie)| *cookie > from);
        let mut rest = rest.map(|((name, number), cookie)| (name.clone(), *number, cookie));
        let page = rest.by_ref().take(self.faults.page_entries.unwrap_or(100)).collect();
        Ok((page, rest.next().is_none()))
    }

    fn readdirplus(&self, args: &READDIRPLUS3args) -> Results {
        let directory = number(&args.dir)?;
        let (page, eof) = self.page(args.cookie, directory)?;
        let entry = |(name, file, cookie): (Vec<u8>, u64, u64)| {
            let attributes = self.tree.attributes(file)?;
            Ok(entryplus3 {
                fileid: file,
                name: name.into(),
                cookie,
                name_attributes: self.optional(attributes),
                name_handle: self.optional(handle(file)),
            })
        };
        let entries = page.into_iter().map(entry).collect::<Result<_, nfsstat3>>()?;
        let results = READDIRPLUS3resok {
            dir_attributes: self.tree.post_op(directory),
            cookieverf: cookieverf3(*b"verifier"),
            reply: dirlistplus3 { entries: List(entries), eof },
        };
        verified(args.cookie, args.cookieverf)?;
        Ok(to_bytes(|to| results.encode(to)))
    }

    fn readdir(&self, args: &READDIR3args) -> Results {
        let directory = number(&args.dir)?;
        let (page, eof) = self.page(args.cookie, directory)?;
        let entry = |(name, fileid, cookie): (Vec<u8>, u64, u64)| entry3 {
            fileid,
            name: name.into(),
            cookie,
        };
        let entries = List(page.into_iter().map(entry).collect());
        let results = READDIR3resok {
            dir_attributes: self.tree.post_op(directory),
            cookieverf: cookieverf3(*b"verifier"),
            reply: dirlist3 { entries, eof },
        };
        verified(args.cookie, args.cookieverf)?;
        Ok(to_bytes(|to| results.encode(to)))
    }
}

/// A cookie comes with its verifier (RFC 1813 section 3.3.16).
fn verified(cookie: u64, verifier: cookieverf3) -> Result<(), nfsstat3> {
    let expected = if cookie == 0 { cookieverf3::default() } else { cookieverf3(*b"verifier") };
    if verifier == expected { Ok(()) } else { Err(nfsstat3::NFS3ERR_BAD_COOKIE) }
}
