//! The procedures that are plain calls of a [`FileSystem`](super::file_system::FileSystem): all but
//! NULL, and READ, WRITE and COMMIT, which go by the data path. One type of arguments each, and what
//! is done for it.
//!
//! Called by `service` on a core, or by `pool` on a thread of its own: nothing here knows which.

mod files;
mod limits;
mod listings;
mod names;

use super::answer::Answer;
use super::containment::contained;
use super::file_system::Outcome;
use super::site::Scene;
use crate::nfs::xdr::Xdr;
use nfs3_types::nfs3::{
    ACCESS3args, CREATE3args, FSINFO3args, FSSTAT3args, GETATTR3args, LINK3args, LOOKUP3args,
    MKDIR3args, MKNOD3args, NFS_PROGRAM, PATHCONF3args, READDIR3args, READDIRPLUS3args,
    READLINK3args, REMOVE3args, RENAME3args, RMDIR3args, SETATTR3args, SYMLINK3args, nfs_fh3,
    nfsstat3,
};
use spinrpc::{DecodeError, Decoder, Encoder, ReplyData};

/// Arguments, and what is done for them.
trait Operation {
    /// What stands behind NFS3_OK.
    type Done: Results;
    /// What stands behind any other status.
    type Failed: for<'a> Xdr<'a> + Default;

    /// It changes something other than the data of files: not for exports that are read-only, and its
    /// reply is kept for the case that the call is sent again.
    const CHANGES: bool = false;

    /// The handle that says which export this is about.
    fn handle(&self) -> &nfs_fh3;

    /// Does it. `failed` is filled as far as it goes, for when it does not end well.
    fn run(&self, scene: &Scene<'_>, failed: &mut Self::Failed) -> Outcome<Self::Done>;
}

/// What stands behind NFS3_OK.
trait Results {
    /// Writes it; may be called again.
    fn write(&self, to: &mut Encoder<'_>);

    /// The data items in it, which [`Results::write`] names with [`Encoder::bulk`].
    fn take_data(&mut self) -> ReplyData {
        ReplyData::new()
    }
}

impl<T: for<'a> Xdr<'a>> Results for T {
    fn write(&self, to: &mut Encoder<'_>) {
        self.encode(to);
    }
}

/// Does what is asked, and answers.
fn answer<O: Operation>(operation: &O, scene: &Scene<'_>, answer: Answer<'_, '_>) {
    let mut failed = O::Failed::default();
    let outcome = match O::CHANGES && scene.visit.export.options.read_only {
        true => Err(nfsstat3::NFS3ERR_ROFS),
        false => contained(|| operation.run(scene, &mut failed)),
    };
    match outcome {
        Ok(mut done) => answer.succeed(done.take_data(), |to| done.write(to)),
        Err(status) => answer.fail(status, &failed),
    }
}

/// Makes the arguments of all procedures one type.
macro_rules! arguments {
    ($($name:ident = $operation:ident($type:ty),)+) => {
        /// The arguments of a procedure that is a plain call of the file system.
        #[derive(Debug)]
        pub enum Arguments<'a> {
            $(
                #[doc = concat!("Of ", stringify!($operation), ".")]
                $name($type),
            )+
        }

        impl<'a> Arguments<'a> {
            /// Reads them; `None` for NULL and the procedures of the data path.
            ///
            /// # Errors
            /// What is wrong with the bytes.
            pub fn decode(
                operation: NFS_PROGRAM,
                from: &mut Decoder<'a>,
            ) -> Result<Option<Self>, DecodeError> {
                match operation {
                    $(NFS_PROGRAM::$operation => Xdr::decode(from).map(Self::$name).map(Some),)+
                    _ => Ok(None),
                }
            }

            /// Writes them.
            pub fn encode(&self, to: &mut Encoder<'_>) {
                match self {
                    $(Self::$name(arguments) => arguments.encode(to),)+
                }
            }

            /// The handle that says which export this is about.
            #[must_use]
            pub fn handle(&self) -> &nfs_fh3 {
                match self {
                    $(Self::$name(arguments) => Operation::handle(arguments),)+
                }
            }

            /// Does what is asked, and answers.
            pub(super) fn answer(&self, scene: &Scene<'_>, to: Answer<'_, '_>) {
                match self {
                    $(Self::$name(arguments) => answer(arguments, scene, to),)+
                }
            }

            /// Whether a procedure changes something other than the data of files.
            #[must_use]
            pub fn changes(operation: NFS_PROGRAM) -> bool {
                match operation {
                    $(NFS_PROGRAM::$operation => <$type as Operation>::CHANGES,)+
                    _ => false,
                }
            }

            /// Answers that nothing is done.
            pub(super) fn refuse(&self, status: nfsstat3, to: Answer<'_, '_>) {
                match self {
                    $(Self::$name(_) => {
                        to.fail(status, &<$type as Operation>::Failed::default());
                    })+
                }
            }
        }
    };
}

arguments! {
    Getattr = NFSPROC3_GETATTR(GETATTR3args),
    Setattr = NFSPROC3_SETATTR(SETATTR3args),
    Lookup = NFSPROC3_LOOKUP(LOOKUP3args<'a>),
    Access = NFSPROC3_ACCESS(ACCESS3args),
    Readlink = NFSPROC3_READLINK(READLINK3args),
    Create = NFSPROC3_CREATE(CREATE3args<'a>),
    Mkdir = NFSPROC3_MKDIR(MKDIR3args<'a>),
    Symlink = NFSPROC3_SYMLINK(SYMLINK3args<'a>),
    Mknod = NFSPROC3_MKNOD(MKNOD3args<'a>),
    Remove = NFSPROC3_REMOVE(REMOVE3args<'a>),
    Rmdir = NFSPROC3_RMDIR(RMDIR3args<'a>),
    Rename = NFSPROC3_RENAME(RENAME3args<'a, 'a>),
    Link = NFSPROC3_LINK(LINK3args<'a>),
    Readdir = NFSPROC3_READDIR(READDIR3args),
    Readdirplus = NFSPROC3_READDIRPLUS(READDIRPLUS3args),
    Fsstat = NFSPROC3_FSSTAT(FSSTAT3args),
    Fsinfo = NFSPROC3_FSINFO(FSINFO3args),
    Pathconf = NFSPROC3_PATHCONF(PATHCONF3args),
}
