//! A client: typed calls over one connection, one at a time.

use crate::*;
use nfs3_types::nfs3::NFS_PROGRAM::*;
use spinrpc::{Client, Procedure, Reply};
use spinrpc_nfs::client::Caller;
use spinrpc_nfs::nfs3;
use std::cell::RefCell;
use std::rc::Rc;

/// Far longer than any step of a test takes, even on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(150);

/// Results, or a status with its results.
pub(crate) type Res<T, E> = Result<T, (nfsstat3, E)>;

type Changed<W = wcc_data> = Res<W, W>;
type Made = Res<CREATE3resok, wcc_data>;

/// Maximum length of results without data.
const RESULT_BYTES_MAX: usize = 1024;

/// See the module.
pub(crate) struct Session {
    caller: Caller,
    pub(crate) client: Client,
    _engine: Engine,
}

/// Methods of a session that are one call each.
macro_rules! calls {
    ($(fn $name:ident($($argument:ident: $type:ty),*) -> $results:ty {
        $operation:ident, $arguments:expr
    })*) => {
        impl Session {
            $(pub(crate) fn $name(&self, $($argument: $type),*) -> $results {
                self.call($operation, &$arguments)
            })*
        }
    };
}

calls! {
    fn setattr(file: &nfs_fh3, new: sattr3, guard: Option<nfstime3>) -> Changed {
        NFSPROC3_SETATTR, SETATTR3args {
            object: file.clone(), new_attributes: new,
            guard: guard.map_or(Nfs3Option::None, Nfs3Option::Some),
        }
    }
    fn lookup(directory: &nfs_fh3, name: &str) -> Res<LOOKUP3resok, post_op_attr> {
        NFSPROC3_LOOKUP, LOOKUP3args { what: at(directory, name) }
    }
    fn access(file: &nfs_fh3, access: u32) -> Res<ACCESS3resok, post_op_attr> {
        NFSPROC3_ACCESS, ACCESS3args { object: file.clone(), access }
    }
    fn create_as(directory: &nfs_fh3, name: &str, how: createhow3) -> Made {
        NFSPROC3_CREATE, CREATE3args { where_: at(directory, name), how }
    }
    fn try_mkdir(directory: &nfs_fh3, name: &str) -> Made {
        NFSPROC3_MKDIR, MKDIR3args { where_: at(directory, name), attributes: mode(0o755) }
    }
    fn symlink(directory: &nfs_fh3, name: &str, text: &str) -> Made {
        NFSPROC3_SYMLINK, SYMLINK3args { where_: at(directory, name), symlink: link_to(text) }
    }
    fn mknod(directory: &nfs_fh3, name: &str, what: mknoddata3) -> Made {
        NFSPROC3_MKNOD, MKNOD3args { where_: at(directory, name), what }
    }
    fn remove(directory: &nfs_fh3, name: &str) -> Changed {
        NFSPROC3_REMOVE, REMOVE3args { object: at(directory, name) }
    }
    fn rmdir(directory: &nfs_fh3, name: &str) -> Changed {
        NFSPROC3_RMDIR, RMDIR3args { object: at(directory, name) }
    }
    fn rename(from: (&nfs_fh3, &str), to: (&nfs_fh3, &str)) -> Changed<(wcc_data, wcc_data)> {
        NFSPROC3_RENAME, RENAME3args { from: at(from.0, from.1), to: at(to.0, to.1) }
    }
    fn link(file: &nfs_fh3, directory: &nfs_fh3, name: &str) -> Changed<(post_op_attr, wcc_data)> {
        NFSPROC3_LINK, LINK3args { file: file.clone(), link: at(directory, name) }
    }
    fn commit(file: &nfs_fh3, offset: u64, count: u32) -> Res<COMMIT3resok, wcc_data> {
        NFSPROC3_COMMIT, COMMIT3args { file: file.clone(), offset, count }
    }
}

fn link_to(text: &str) -> symlinkdata3<'_> {
    let symlink_data = text.as_bytes().into();
    symlinkdata3 { symlink_attributes: sattr3::default(), symlink_data }
}

/// Decodes only the status of results.
pub(crate) fn only_status(from: &mut Decoder<'_>) -> Result<nfsstat3, DecodeError> {
    nfsstat3::decode(from)
}

/// Only the status.
pub(crate) fn status<T, E>(outcome: Res<T, E>) -> nfsstat3 {
    outcome.err().map_or(nfsstat3::NFS3_OK, |(status, _)| status)
}

/// A value that must be present.
pub(crate) fn some<T: nfs3_types::xdr_codec::Pack + nfs3_types::xdr_codec::Unpack>(
    option: Nfs3Option<T>,
) -> T {
    option.unwrap()
}

pub(crate) fn mode(mode: u32) -> sattr3 {
    sattr3 { mode: Nfs3Option::Some(mode), ..sattr3::default() }
}

pub(crate) fn at<'a>(directory: &nfs_fh3, name: &'a str) -> diropargs3<'a> {
    diropargs3 { dir: directory.clone(), name: name.as_bytes().into() }
}

impl Session {
    pub(crate) fn connect(address: &str) -> Self {
        Self::connect_with(address, &ConnectOptions::new())
    }

    pub(crate) fn connect_with(address: &str, options: &ConnectOptions) -> Self {
        let engine = Engine::new(host::config()).unwrap();
        let core = Rc::new(RefCell::new(engine.core(0).unwrap()));
        let (program, version) = (nfs3::PROGRAM, nfs3::VERSION);
        let caller = Caller::connect(&core, PATIENCE, |replies| {
            let (mut core, make) = (core.borrow_mut(), |_| replies);
            core.connect_wait_with(address, program, version, options, make, PATIENCE)
        });
        let caller = caller.unwrap();
        let session = Self { client: caller.client().clone(), caller, _engine: engine };
        let me = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        session.act_as(Some(me));
        session
    }

    /// Makes later calls as this user, or with AUTH_NONE.
    pub(crate) fn act_as(&self, user: Option<(u32, u32)>) {
        let groups = spinrpc::Groups::default();
        let user =
            user.map(|(uid, gid)| AuthSys { stamp: 0, machine_name: b"test", uid, gid, groups });
        self.client.set_auth_sys(user.as_ref()).unwrap();
    }

    pub(crate) fn run_until(&self, what: &str, done: impl Fn() -> bool) {
        let end = Instant::now() + PATIENCE;
        self.caller.run_until(|| done() || Instant::now() > end);
        assert!(done(), "waited {PATIENCE:?} for {what}");
    }

    /// Starts a call; the reply arrives in the returned place.
    pub(crate) fn start<T: 'static>(
        &self,
        procedure: u32,
        mut spec: CallSpec,
        encode: impl Fn(&mut Encoder<'_>),
        decode: impl FnOnce(&mut Decoder<'_>) -> Result<T, DecodeError> + 'static,
    ) -> Rc<RefCell<Option<Result<T, CallError>>>> {
        let place = Rc::new(RefCell::new(None));
        let arrived = Rc::clone(&place);
        let ended = move |reply: Result<Reply<'_>, CallError>| {
            let results = reply.and_then(|mut reply| Ok(decode(&mut reply.results())?));
            *arrived.borrow_mut() = Some(results);
        };
        self.caller.start(Procedure(procedure), &mut spec, encode, ended).unwrap();
        place
    }

    /// A call, and its reply.
    pub(crate) fn raw<T: 'static>(
        &self,
        procedure: u32,
        spec: CallSpec,
        encode: impl Fn(&mut Encoder<'_>),
        decode: impl FnOnce(&mut Decoder<'_>) -> Result<T, DecodeError> + 'static,
    ) -> Result<T, CallError> {
        let place = self.start(procedure, spec, encode, decode);
        self.run_until("a reply", || place.borrow().is_some());
        place.take().unwrap()
    }

    /// A call whose results are decoded to their end.
    pub(crate) fn try_call<T, E>(
        &self,
        operation: NFS_PROGRAM,
        arguments: &impl ToXdr,
    ) -> Result<Res<T, E>, CallError>
    where
        T: FromXdr + 'static,
        E: FromXdr + 'static,
    {
        let spec = CallSpec::new().reply_bytes_max(RESULT_BYTES_MAX);
        self.raw(operation as u32, spec, |to| arguments.encode(to), whole)
    }

    pub(crate) fn call<T, E>(&self, operation: NFS_PROGRAM, arguments: &impl ToXdr) -> Res<T, E>
    where
        T: FromXdr + 'static,
        E: FromXdr + 'static,
    {
        self.try_call(operation, arguments).unwrap()
    }

    pub(crate) fn getattr(&self, file: &nfs_fh3) -> Result<fattr3, nfsstat3> {
        let arguments = GETATTR3args { object: file.clone() };
        self.call(NFSPROC3_GETATTR, &arguments).map_err(|(status, ())| status)
    }

    pub(crate) fn readlink(&self, link: &nfs_fh3) -> Res<Vec<u8>, post_op_attr> {
        self.readlink_with(link, CallSpec::new().reply_bytes_max(nfs3::READLINK_RESULT_BYTES_MAX))
    }

    pub(crate) fn readlink_with(
        &self,
        link: &nfs_fh3,
        spec: CallSpec,
    ) -> Res<Vec<u8>, post_op_attr> {
        let arguments = READLINK3args { symlink: link.clone() };
        let text = |from: &mut Decoder<'_>| match nfsstat3::decode(from)? {
            nfsstat3::NFS3_OK => {
                post_op_attr::decode(from)?;
                Ok(Ok(from.data(1 << 16)?.bytes().to_vec()))
            }
            status => Ok(Err((status, post_op_attr::decode(from)?))),
        };
        let read = self.raw(NFSPROC3_READLINK as u32, spec, |to| arguments.encode(to), text);
        read.unwrap()
    }

    /// A new file.
    pub(crate) fn create(&self, directory: &nfs_fh3, name: &str) -> nfs_fh3 {
        made(self.create_as(directory, name, createhow3::GUARDED(mode(0o644))))
    }

    /// A new directory.
    pub(crate) fn mkdir(&self, directory: &nfs_fh3, name: &str) -> nfs_fh3 {
        made(self.try_mkdir(directory, name))
    }

    /// READ into a buffer that is offered as a Write chunk, or, if `inline`, into the reply.
    pub(crate) fn read_by(
        &self,
        file: &nfs_fh3,
        offset: u64,
        count: u32,
        inline: bool,
    ) -> Res<(ReadHead, Vec<u8>), post_op_attr> {
        let arguments = READ3args { file: file.clone(), offset, count };
        let mut spec = CallSpec::new().reply_bytes_max(nfs3::READ_RESULT_HEAD_BYTES);
        if !inline {
            spec = spec.result_into(self.client.bulk(count as usize).unwrap());
        }
        let results = move |from: &mut Decoder<'_>| match nfsstat3::decode(from)? {
            nfsstat3::NFS3_OK => {
                let head = ReadHead::decode(from)?;
                Ok(Ok((head, from.data(count as usize)?.bytes().to_vec())))
            }
            status => Ok(Err((status, post_op_attr::decode(from)?))),
        };
        let procedure = NFSPROC3_READ as u32;
        self.raw(procedure, spec, |to| arguments.encode(to), results).unwrap()
    }

    /// The bytes, and whether they extend to the end.
    pub(crate) fn read(
        &self,
        file: &nfs_fh3,
        offset: u64,
        count: u32,
    ) -> Result<(Vec<u8>, bool), nfsstat3> {
        match self.read_by(file, offset, count, false) {
            Ok((head, data)) => {
                assert_eq!(head.count as usize, data.len());
                Ok((data, head.eof))
            }
            Err((status, _)) => Err(status),
        }
    }

    /// WRITE of registered memory, in a Read chunk if it is long.
    pub(crate) fn write_as(
        &self,
        file: &nfs_fh3,
        offset: u64,
        data: &[u8],
        stable: stable_how,
    ) -> Res<WRITE3resok, wcc_data> {
        let mut bulk = self.client.bulk(data.len()).unwrap();
        bulk.bytes_mut().copy_from_slice(data);
        let spec = CallSpec::new().argument(bulk);
        let head = WriteHead { file: file.clone(), offset, count: data.len() as u32, stable };
        let encode = |to: &mut Encoder<'_>| {
            head.encode(to);
            to.bulk();
        };
        self.raw(NFSPROC3_WRITE as u32, spec, encode, whole).unwrap()
    }

    pub(crate) fn write(&self, file: &nfs_fh3, offset: u64, data: &[u8]) -> nfsstat3 {
        status(self.write_as(file, offset, data, stable_how::FILE_SYNC))
    }
}

/// Decodes results to their end.
fn whole<T: FromXdr, E: FromXdr>(from: &mut Decoder<'_>) -> Result<Res<T, E>, DecodeError> {
    match nfsstat3::decode(from)? {
        nfsstat3::NFS3_OK => T::decode(from).map(Ok),
        status => Ok(Err((status, E::decode(from)?))),
    }
}

/// The handle of the created file.
pub(crate) fn made(outcome: Res<CREATE3resok, wcc_data>) -> nfs_fh3 {
    match outcome {
        Ok(made) => some(made.obj),
        Err((status, _)) => panic!("{status}"),
    }
}
