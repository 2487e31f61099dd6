//! The procedures that are plain calls of a [`FileSystem`](super::file_system::FileSystem): all but
//! NULL, and READ, WRITE and COMMIT, which use the data path. Each has a type of arguments, and an
//! implementation.
//!
//! Called by `service` on a core, or by `pool` on a thread: the code does not depend on which.

mod checks;
mod files;
mod limits;
mod listings;
mod names;

use super::answer::Answer;
use super::containment::contained;
use super::file_system::Outcome;
use super::site::RequestContext;
use crate::protocol::{
    Access3args, Create3args, Fsinfo3args, Fsstat3args, Getattr3args, Link3args, Lookup3args,
    Mkdir3args, Mknod3args, NfsFh3, Nfsstat3, Pathconf3args, ProcedureId, Readdir3args,
    Readdirplus3args, Readlink3args, Remove3args, Rename3args, Rmdir3args, Setattr3args,
    Symlink3args,
};
use spinrpc::{DecodeError, Decoder, Encoder, ReplyData};
use spinrpc_xdr::{Decode, Encode};

/// Arguments, and their implementation.
trait Operation {
    /// Results that follow NFS3_OK.
    type Done: Results;
    /// Results that follow any other status.
    type Failed: Encode + Default;

    /// Changes something other than the data of files: rejected for read-only exports, and its
    /// reply is cached for retransmissions.
    const CHANGES: bool = false;

    /// The handle that determines the export.
    fn handle(&self) -> NfsFh3<'_>;

    /// Performs it. Fills `failed` as far as it gets, in case of failure.
    fn run(&self, context: &RequestContext<'_>, failed: &mut Self::Failed) -> Outcome<Self::Done>;
}

/// Results that follow NFS3_OK.
trait Results {
    /// Encodes them; may be called again.
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

/// Performs the operation, and answers.
fn answer<O: Operation>(operation: &O, context: &RequestContext<'_>, answer: Answer<'_, '_>) {
    let mut failed = O::Failed::default();
    let outcome = match O::CHANGES && context.visit.export.options.read_only {
        true => Err(Nfsstat3::Nfs3errRofs),
        false => contained(|| operation.run(context, &mut failed)),
    };
    match outcome {
        Ok(mut done) => answer.succeed(done.take_data(), |to| done.write(to)),
        Err(status) => answer.fail(status, &failed),
    }
}

/// Combines the arguments of all procedures into one type.
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
            /// Decodes them; `None` for NULL and the procedures of the data path.
            ///
            /// # Errors
            /// [`DecodeError`] if the bytes are not an encoding of the type.
            pub fn decode(
                operation: ProcedureId,
                from: &mut Decoder<'a>,
            ) -> Result<Option<Self>, DecodeError> {
                match operation {
                    $(ProcedureId::$operation => Decode::decode(from).map(Self::$name).map(Some),)+
                    _ => Ok(None),
                }
            }

            /// The handle that determines the export.
            #[must_use]
            pub fn handle(&self) -> NfsFh3<'_> {
                match self {
                    $(Self::$name(arguments) => Operation::handle(arguments),)+
                }
            }

            /// Performs the operation, and answers.
            pub(super) fn answer(&self, context: &RequestContext<'_>, to: Answer<'_, '_>) {
                match self {
                    $(Self::$name(arguments) => answer(arguments, context, to),)+
                }
            }

            /// Returns whether a procedure changes something other than the data of files.
            #[must_use]
            pub fn changes(operation: ProcedureId) -> bool {
                match operation {
                    $(ProcedureId::$operation => <$type as Operation>::CHANGES,)+
                    _ => false,
                }
            }

            /// Answers a rejection.
            pub(super) fn refuse(&self, status: Nfsstat3, to: Answer<'_, '_>) {
                match self {
                    $(Self::$name(_) => {
                        to.fail(status, &<$type as Operation>::Failed::default());
                    })+
                }
            }
        }

        impl Encode for Arguments<'_> {
            fn encode(&self, to: &mut Encoder<'_>) {
                match self {
                    $(Self::$name(arguments) => arguments.encode(to),)+
                }
            }
        }
    };
}

arguments! {
    Getattr = Nfsproc3Getattr(Getattr3args<'a>),
    Setattr = Nfsproc3Setattr(Setattr3args<'a>),
    Lookup = Nfsproc3Lookup(Lookup3args<'a>),
    Access = Nfsproc3Access(Access3args<'a>),
    Readlink = Nfsproc3Readlink(Readlink3args<'a>),
    Create = Nfsproc3Create(Create3args<'a>),
    Mkdir = Nfsproc3Mkdir(Mkdir3args<'a>),
    Symlink = Nfsproc3Symlink(Symlink3args<'a>),
    Mknod = Nfsproc3Mknod(Mknod3args<'a>),
    Remove = Nfsproc3Remove(Remove3args<'a>),
    Rmdir = Nfsproc3Rmdir(Rmdir3args<'a>),
    Rename = Nfsproc3Rename(Rename3args<'a>),
    Link = Nfsproc3Link(Link3args<'a>),
    Readdir = Nfsproc3Readdir(Readdir3args<'a>),
    Readdirplus = Nfsproc3Readdirplus(Readdirplus3args<'a>),
    Fsstat = Nfsproc3Fsstat(Fsstat3args<'a>),
    Fsinfo = Nfsproc3Fsinfo(Fsinfo3args<'a>),
    Pathconf = Nfsproc3Pathconf(Pathconf3args<'a>),
}
