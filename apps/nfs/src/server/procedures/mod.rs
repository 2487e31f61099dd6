//! The arguments of procedures, and those that are plain calls of a [`FileSystem`](super::file_system::FileSystem):
//! all but NULL, and READ, WRITE and COMMIT, which use the data path. Each of them is implemented by a
//! method of `RequestContext`.
//!
//! Called by `service` on a core, or by `pool` on a thread: the code does not depend on which.

mod checks;
mod files;
mod limits;
mod listings;
mod names;

use super::answer::Answer;
use super::catch_panic::contained;
use super::file_system::Outcome;
use super::site::RequestContext;
use crate::protocol::{
    Access3args, Commit3args, Create3args, Fsinfo3args, Fsstat3args, Getattr3args, Link3args,
    Lookup3args, Mkdir3args, Mknod3args, NfsFh3, Nfsstat3, Pathconf3args, PostOpAttr, ProcedureId,
    Read3args, Readdir3args, Readdirplus3args, Readlink3args, Remove3args, Rename3args, Rmdir3args,
    Setattr3args, Symlink3args, WccData, Write3args,
};
use spinrpc::{DecodeError, Decoder, Encoder, ReplyData};
use spinrpc_xdr::{Decode, Encode};

/// Results that follow NFS3_OK.
trait Results {
    /// May be called again.
    fn write(&self, to: &mut Encoder<'_>);

    /// The data items in them, which [`Results::write`] names with [`Encoder::bulk`].
    fn take_data(&mut self) -> ReplyData {
        ReplyData::new()
    }
}

impl<T: Encode> Results for T {
    fn write(&self, to: &mut Encoder<'_>) {
        self.encode(to);
    }
}

/// Performs an operation, and answers. `run` fills the results for a status other than NFS3_OK as far as it gets.
fn answer<F: Encode + Default, D: Results>(
    context: &RequestContext<'_>,
    changes: bool,
    run: impl FnOnce(&mut F) -> Outcome<D>,
    answer: Answer<'_, '_>,
) {
    let mut failed = F::default();
    let outcome = match changes && context.visit.export.options.read_only {
        true => Err(Nfsstat3::Nfs3errRofs),
        false => contained(|| run(&mut failed)),
    };
    match outcome {
        Ok(mut done) => answer.succeed(done.take_data(), |to| done.write(to)),
        Err(status) => answer.fail(status, &failed),
    }
}

/// Combines the arguments of all procedures into one type. After each come the handle that determines the export, the
/// implementation, the results for a status other than NFS3_OK, and whether the procedure changes something; those of the
/// data path have no implementation here.
macro_rules! arguments {
    ({$($name:ident = $operation:ident($type:ty):
        $($handle:ident).+, $run:ident, $failed:ty, $changes:literal;)+}
    {$($data:ident = $data_operation:ident($data_type:ty): $data_failed:ty;)+}) => {
        /// The arguments of a procedure.
        #[derive(Debug)]
        pub enum Arguments<'a> {
            $(
                #[doc = concat!("Of ", stringify!($operation), ".")]
                $name($type),
            )+
            $(
                #[doc = concat!("Of ", stringify!($data_operation), ".")]
                $data($data_type),
            )+
        }

        impl<'a> Arguments<'a> {
            /// Decodes them; `None` for NULL.
            ///
            /// # Errors
            /// [`DecodeError`] if the bytes are not an encoding of the type.
            pub fn decode(
                operation: ProcedureId,
                from: &mut Decoder<'a>,
            ) -> Result<Option<Self>, DecodeError> {
                match operation {
                    ProcedureId::Nfsproc3Null => Ok(None),
                    $(ProcedureId::$operation => Decode::decode(from).map(Self::$name).map(Some),)+
                    $(ProcedureId::$data_operation => Decode::decode(from).map(Self::$data).map(Some),)+
                }
            }

            /// The handle that determines the export.
            pub fn handle(&self) -> NfsFh3<'_> {
                match self {
                    $(Self::$name(arguments) => arguments.$($handle).+,)+
                    $(Self::$data(arguments) => arguments.file,)+
                }
            }

            /// Performs the operation, and answers; rejects one of the data path.
            pub(super) fn answer(&self, context: &RequestContext<'_>, to: Answer<'_, '_>) {
                match self {
                    $(Self::$name(arguments) => {
                        let run = |failed: &mut $failed| context.$run(arguments, failed);
                        answer(context, $changes, run, to);
                    })+
                    $(Self::$data(_) => self.refuse(Nfsstat3::Nfs3errServerfault, to),)+
                }
            }

            /// Returns whether a procedure changes something other than the data of files. Then it is rejected for
            /// read-only exports, and its reply is cached for retransmissions.
            #[must_use]
            pub fn changes(operation: ProcedureId) -> bool {
                match operation {
                    $(ProcedureId::$operation => $changes,)+
                    _ => false,
                }
            }

            pub(super) fn refuse(&self, status: Nfsstat3, to: Answer<'_, '_>) {
                match self {
                    $(Self::$name(_) => to.fail(status, &<$failed>::default()),)+
                    $(Self::$data(_) => to.fail(status, &<$data_failed>::default()),)+
                }
            }
        }

        impl Encode for Arguments<'_> {
            fn encode(&self, to: &mut Encoder<'_>) {
                match self {
                    $(Self::$name(arguments) => arguments.encode(to),)+
                    $(Self::$data(arguments) => arguments.encode(to),)+
                }
            }
        }
    };
}

arguments! {{
    Getattr = Nfsproc3Getattr(Getattr3args<'a>): object, getattr, (), false;
    Setattr = Nfsproc3Setattr(Setattr3args<'a>): object, setattr, WccData, true;
    Lookup = Nfsproc3Lookup(Lookup3args<'a>): what.dir, lookup, PostOpAttr, false;
    Access = Nfsproc3Access(Access3args<'a>): object, access, PostOpAttr, false;
    Readlink = Nfsproc3Readlink(Readlink3args<'a>): symlink, readlink, PostOpAttr, false;
    Create = Nfsproc3Create(Create3args<'a>): r#where.dir, create, WccData, true;
    Mkdir = Nfsproc3Mkdir(Mkdir3args<'a>): r#where.dir, mkdir, WccData, true;
    Symlink = Nfsproc3Symlink(Symlink3args<'a>): r#where.dir, symlink, WccData, true;
    Mknod = Nfsproc3Mknod(Mknod3args<'a>): r#where.dir, mknod, WccData, true;
    Remove = Nfsproc3Remove(Remove3args<'a>): object.dir, remove, WccData, true;
    Rmdir = Nfsproc3Rmdir(Rmdir3args<'a>): object.dir, rmdir, WccData, true;
    Rename = Nfsproc3Rename(Rename3args<'a>): from.dir, rename, (WccData, WccData), true;
    Link = Nfsproc3Link(Link3args<'a>): file, link, (PostOpAttr, WccData), true;
    Readdir = Nfsproc3Readdir(Readdir3args<'a>): dir, readdir, PostOpAttr, false;
    Readdirplus = Nfsproc3Readdirplus(Readdirplus3args<'a>): dir, readdirplus, PostOpAttr, false;
    Fsstat = Nfsproc3Fsstat(Fsstat3args<'a>): fsroot, fsstat, PostOpAttr, false;
    Fsinfo = Nfsproc3Fsinfo(Fsinfo3args<'a>): fsroot, fsinfo, PostOpAttr, false;
    Pathconf = Nfsproc3Pathconf(Pathconf3args<'a>): object, pathconf, PostOpAttr, false;
} {
    Read = Nfsproc3Read(Read3args<'a>): PostOpAttr;
    Write = Nfsproc3Write(Write3args<'a>): WccData;
    Commit = Nfsproc3Commit(Commit3args<'a>): WccData;
}}
