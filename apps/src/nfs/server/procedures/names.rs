//! The procedures that create and remove names: CREATE, MKDIR, SYMLINK, MKNOD, REMOVE, RMDIR,
//! RENAME and LINK (RFC 1813 sections 3.3.8 to 3.3.15); and the check of names.

use super::files::check_size;
use super::{Operation, Results};
use crate::nfs::protocol::{
    Create3args, Create3resok, Createhow3, Devicedata3, Diropargs3, Fattr3, FileHandle, Ftype3,
    Link3args, Mkdir3args, Mknod3args, Mknoddata3, NfsFh3, Nfsstat3, PostOpAttr, Remove3args,
    Rename3args, Rmdir3args, Sattr3, Specdata3, Symlink3args, WccData,
};
use crate::nfs::server::file_system::{FileKey, Found, Outcome, Place, SpecialFile};
use crate::nfs::server::site::Scene;
use spinrpc::Encoder;
use spinrpc_xdr::Encode;

/// Purpose of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NameUse {
    /// To look it up.
    Find,
    /// To create it.
    Make,
    /// To remove it, or to replace it.
    Remove,
    /// To remove a directory.
    RemoveDirectory,
}

/// Checks a name in a directory.
///
/// "." and ".." always exist, and cannot be removed ("NFS3ERR_INVAL" and "NFS3ERR_EXIST" in RFC
/// 1813 section 3.3.13). Names that are empty, or contain a slash or a zero byte, are invalid: with
/// them a file system might leave the directory.
pub(super) fn place<'a>(
    scene: &Scene<'_>,
    directory: &'a FileKey,
    at: &'a Diropargs3<'_>,
    name_use: NameUse,
) -> Outcome<Place<'a>> {
    let name = at.name.bytes();
    let length_max = scene.visit.export.file_system.abilities().name_bytes_max;
    if name.len() > length_max as usize {
        return Err(Nfsstat3::Nfs3errNametoolong);
    }
    if name.is_empty() || name.contains(&b'/') || name.contains(&0) {
        return Err(Nfsstat3::Nfs3errInval);
    }
    match (name_use, name) {
        (NameUse::Make, b"." | b"..") | (NameUse::RemoveDirectory, b"..") => {
            Err(Nfsstat3::Nfs3errExist)
        }
        (NameUse::Remove, b"." | b"..") | (NameUse::RemoveDirectory, b".") => {
            Err(Nfsstat3::Nfs3errInval)
        }
        _ => Ok(Place { directory, name }),
    }
}

/// Results of procedures that create something.
fn made(scene: &Scene<'_>, found: &Found, wcc: &WccData) -> Made {
    Made { object: scene.handle(&found.key), attributes: found.attributes, directory: *wcc }
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

    fn run(&self, scene: &Scene<'_>, wcc: &mut WccData) -> Outcome<Made> {
        let visit = &scene.visit;
        let at = place(scene, &visit.file, &self.r#where, NameUse::Make)?;
        if let Createhow3::Unchecked(new) | Createhow3::Guarded(new) = &self.how {
            check_size(scene, new)?;
        }
        let found = visit.export.file_system.create(&visit.caller, at, &self.how, wcc)?;
        Ok(made(scene, &found, wcc))
    }
}

impl Operation for Mkdir3args<'_> {
    type Done = Made;
    type Failed = WccData;
    const CHANGES: bool = true;

    fn handle(&self) -> NfsFh3<'_> {
        self.r#where.dir
    }

    fn run(&self, scene: &Scene<'_>, wcc: &mut WccData) -> Outcome<Made> {
        let visit = &scene.visit;
        let at = place(scene, &visit.file, &self.r#where, NameUse::Make)?;
        let file_system = &visit.export.file_system;
        let found = file_system.make_directory(&visit.caller, at, &self.attributes, wcc)?;
        Ok(made(scene, &found, wcc))
    }
}

impl Operation for Symlink3args<'_> {
    type Done = Made;
    type Failed = WccData;
    const CHANGES: bool = true;

    fn handle(&self) -> NfsFh3<'_> {
        self.r#where.dir
    }

    fn run(&self, scene: &Scene<'_>, wcc: &mut WccData) -> Outcome<Made> {
        let visit = &scene.visit;
        let at = place(scene, &visit.file, &self.r#where, NameUse::Make)?;
        let (text, new) = (self.symlink.symlink_data.bytes(), &self.symlink.symlink_attributes);
        // No path contains a zero byte, and an empty one leads nowhere.
        if text.is_empty() || text.contains(&0) {
            return Err(Nfsstat3::Nfs3errInval);
        }
        let file_system = &visit.export.file_system;
        let found = file_system.make_symlink(&visit.caller, at, text, new, wcc)?;
        Ok(made(scene, &found, wcc))
    }
}

impl Operation for Mknod3args<'_> {
    type Done = Made;
    type Failed = WccData;
    const CHANGES: bool = true;

    fn handle(&self) -> NfsFh3<'_> {
        self.r#where.dir
    }

    fn run(&self, scene: &Scene<'_>, wcc: &mut WccData) -> Outcome<Made> {
        let visit = &scene.visit;
        let at = place(scene, &visit.file, &self.r#where, NameUse::Make)?;
        let special = special_file(&self.what)?;
        let found = visit.export.file_system.make_special(&visit.caller, at, &special, wcc)?;
        Ok(made(scene, &found, wcc))
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

    fn run(&self, scene: &Scene<'_>, wcc: &mut WccData) -> Outcome<WccData> {
        let visit = &scene.visit;
        let at = place(scene, &visit.file, &self.object, NameUse::Remove)?;
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

    fn run(&self, scene: &Scene<'_>, wcc: &mut WccData) -> Outcome<WccData> {
        let visit = &scene.visit;
        let at = place(scene, &visit.file, &self.object, NameUse::RemoveDirectory)?;
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

    fn run(&self, scene: &Scene<'_>, wccs: &mut (WccData, WccData)) -> Outcome<(WccData, WccData)> {
        let visit = &scene.visit;
        let to_directory = scene.second(self.to.dir)?;
        let from = place(scene, &visit.file, &self.from, NameUse::Remove)?;
        let to = place(scene, &to_directory, &self.to, NameUse::Remove)?;
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
        scene: &Scene<'_>,
        results: &mut (PostOpAttr, WccData),
    ) -> Outcome<(PostOpAttr, WccData)> {
        let visit = &scene.visit;
        let directory = scene.second(self.link.dir)?;
        let at = place(scene, &directory, &self.link, NameUse::Make)?;
        let file_system = &visit.export.file_system;
        let linked = file_system.link(&visit.caller, &visit.file, at, &mut results.1);
        results.0 = scene.post_op(&visit.file);
        linked.map(|()| *results)
    }
}
