//! The procedures that create and remove names: CREATE, MKDIR, SYMLINK, MKNOD, REMOVE, RMDIR,
//! RENAME and LINK (RFC 1813 sections 3.3.8 to 3.3.15).

use super::checks::{NameUse, check_size, place};
use super::{Operation, Results};
use crate::protocol::{
    Create3args, Create3resok, Createhow3, Devicedata3, Fattr3, FileHandle, Ftype3, Link3args,
    Mkdir3args, Mknod3args, Mknoddata3, NfsFh3, Nfsstat3, PostOpAttr, Remove3args, Rename3args,
    Rmdir3args, Sattr3, Specdata3, Symlink3args, WccData,
};
use crate::server::file_system::{NewFile, Outcome, Place, SpecialFile};
use crate::server::site::RequestContext;
use spinrpc::Encoder;
use spinrpc_xdr::Encode;

/// Creates a file.
fn make(
    context: &RequestContext<'_>,
    at: Place<'_>,
    new: NewFile<'_>,
    wcc: &mut WccData,
) -> Outcome<Made> {
    let export = context.visit.export;
    let found = export.file_system.make(&context.visit.caller, at, new, wcc)?;
    Ok(Made { object: context.handle(&found.key), attributes: found.attributes, directory: *wcc })
}

/// Results of procedures that create something, with their own handle.
pub(super) struct Made {
    object: FileHandle,
    attributes: Fattr3,
    directory: WccData,
}

impl Results for Made {
    fn write(&self, to: &mut Encoder<'_>) {
        let results = Create3resok {
            obj: Some(self.object.wire()),
            obj_attributes: Some(self.attributes),
            dir_wcc: self.directory,
        };
        results.encode(to);
    }
}

impl Operation for Create3args<'_> {
    type Done = Made;
    type Failed = WccData;
    const CHANGES: bool = true;

    fn handle(&self) -> NfsFh3<'_> {
        self.r#where.dir
    }

    fn run(&self, context: &RequestContext<'_>, wcc: &mut WccData) -> Outcome<Made> {
        let at = place(context, &context.visit.file, &self.r#where, NameUse::Make)?;
        if let Createhow3::Unchecked(new) | Createhow3::Guarded(new) = &self.how {
            check_size(context, new)?;
        }
        make(context, at, NewFile::Regular(&self.how), wcc)
    }
}

impl Operation for Mkdir3args<'_> {
    type Done = Made;
    type Failed = WccData;
    const CHANGES: bool = true;

    fn handle(&self) -> NfsFh3<'_> {
        self.r#where.dir
    }

    fn run(&self, context: &RequestContext<'_>, wcc: &mut WccData) -> Outcome<Made> {
        let at = place(context, &context.visit.file, &self.r#where, NameUse::Make)?;
        make(context, at, NewFile::Directory(&self.attributes), wcc)
    }
}

impl Operation for Symlink3args<'_> {
    type Done = Made;
    type Failed = WccData;
    const CHANGES: bool = true;

    fn handle(&self) -> NfsFh3<'_> {
        self.r#where.dir
    }

    fn run(&self, context: &RequestContext<'_>, wcc: &mut WccData) -> Outcome<Made> {
        let at = place(context, &context.visit.file, &self.r#where, NameUse::Make)?;
        let text = self.symlink.symlink_data.bytes();
        // No path contains a zero byte, and an empty one leads nowhere.
        if text.is_empty() || text.contains(&0) {
            return Err(Nfsstat3::Nfs3errInval);
        }
        let attributes = &self.symlink.symlink_attributes;
        make(context, at, NewFile::Link { text, attributes }, wcc)
    }
}

impl Operation for Mknod3args<'_> {
    type Done = Made;
    type Failed = WccData;
    const CHANGES: bool = true;

    fn handle(&self) -> NfsFh3<'_> {
        self.r#where.dir
    }

    fn run(&self, context: &RequestContext<'_>, wcc: &mut WccData) -> Outcome<Made> {
        let at = place(context, &context.visit.file, &self.r#where, NameUse::Make)?;
        make(context, at, NewFile::Special(&special_file(&self.what)?), wcc)
    }
}

fn special_file(what: &Mknoddata3) -> Outcome<SpecialFile> {
    let device = |kind, device: &Devicedata3| SpecialFile {
        kind,
        device: device.spec,
        attributes: device.dev_attributes,
    };
    let pipe = |kind, attributes: &Sattr3| SpecialFile {
        kind,
        device: Specdata3 { specdata1: 0, specdata2: 0 },
        attributes: *attributes,
    };
    Ok(match what {
        Mknoddata3::Nf3chr(what) => device(Ftype3::Nf3chr, what),
        Mknoddata3::Nf3blk(what) => device(Ftype3::Nf3blk, what),
        Mknoddata3::Nf3sock(attributes) => pipe(Ftype3::Nf3sock, attributes),
        Mknoddata3::Nf3fifo(attributes) => pipe(Ftype3::Nf3fifo, attributes),
        Mknoddata3::Default(_) => return Err(Nfsstat3::Nfs3errBadtype),
    })
}

impl Operation for Remove3args<'_> {
    type Done = WccData;
    type Failed = WccData;
    const CHANGES: bool = true;

    fn handle(&self) -> NfsFh3<'_> {
        self.object.dir
    }

    fn run(&self, context: &RequestContext<'_>, wcc: &mut WccData) -> Outcome<WccData> {
        let visit = &context.visit;
        let at = place(context, &visit.file, &self.object, NameUse::Remove)?;
        visit.export.file_system.remove(&visit.caller, at, wcc)?;
        Ok(*wcc)
    }
}

impl Operation for Rmdir3args<'_> {
    type Done = WccData;
    type Failed = WccData;
    const CHANGES: bool = true;

    fn handle(&self) -> NfsFh3<'_> {
        self.object.dir
    }

    fn run(&self, context: &RequestContext<'_>, wcc: &mut WccData) -> Outcome<WccData> {
        let visit = &context.visit;
        let at = place(context, &visit.file, &self.object, NameUse::RemoveDirectory)?;
        visit.export.file_system.remove_directory(&visit.caller, at, wcc)?;
        Ok(*wcc)
    }
}

impl Operation for Rename3args<'_> {
    type Done = (WccData, WccData);
    type Failed = (WccData, WccData);
    const CHANGES: bool = true;

    fn handle(&self) -> NfsFh3<'_> {
        self.from.dir
    }

    fn run(
        &self,
        context: &RequestContext<'_>,
        wccs: &mut (WccData, WccData),
    ) -> Outcome<(WccData, WccData)> {
        let visit = &context.visit;
        let to_directory = context.second(self.to.dir)?;
        let from = place(context, &visit.file, &self.from, NameUse::Remove)?;
        let to = place(context, &to_directory, &self.to, NameUse::Remove)?;
        visit.export.file_system.rename(&visit.caller, from, to, wccs)?;
        Ok(*wccs)
    }
}

impl Operation for Link3args<'_> {
    type Done = (PostOpAttr, WccData);
    type Failed = (PostOpAttr, WccData);
    const CHANGES: bool = true;

    fn handle(&self) -> NfsFh3<'_> {
        self.file
    }

    fn run(
        &self,
        context: &RequestContext<'_>,
        results: &mut (PostOpAttr, WccData),
    ) -> Outcome<(PostOpAttr, WccData)> {
        let visit = &context.visit;
        let directory = context.second(self.link.dir)?;
        let at = place(context, &directory, &self.link, NameUse::Make)?;
        let file_system = &visit.export.file_system;
        let linked = file_system.link(&visit.caller, &visit.file, at, &mut results.1);
        results.0 = context.post_op(&visit.file);
        linked.map(|()| *results)
    }
}
