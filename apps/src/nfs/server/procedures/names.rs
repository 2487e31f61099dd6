//! The procedures that make names and take them away: CREATE, MKDIR, SYMLINK, MKNOD, REMOVE, RMDIR,
//! RENAME and LINK (RFC 1813 sections 3.3.8 to 3.3.15); and which names are taken at all.

use super::Operation;
use super::files::check_size;
use crate::nfs::server::file_system::{FileKey, Found, Outcome, Place, SpecialFile};
use crate::nfs::server::site::Scene;
use nfs3_types::nfs3::{
    CREATE3args, CREATE3resok, LINK3args, MKDIR3args, MKNOD3args, Nfs3Option, REMOVE3args,
    RENAME3args, RMDIR3args, SYMLINK3args, createhow3, diropargs3, ftype3, mknoddata3, nfs_fh3,
    nfsstat3, post_op_attr, sattr3, specdata3, wcc_data,
};

/// What a name is given for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NameUse {
    /// To find what has it.
    Find,
    /// To give it to something.
    Make,
    /// To take it away, or to give another in its place.
    Remove,
    /// To take it from a directory.
    RemoveDirectory,
}

/// A name in a directory, if it is one.
///
/// What is "." or ".." exists always, and is not to be taken away ("NFS3ERR_INVAL" and
/// "NFS3ERR_EXIST" in RFC 1813 section 3.3.13). No file has an empty name or one with a slash or a
/// zero: a file system that was handed one might leave the directory.
pub(super) fn place<'a>(
    scene: &Scene<'_>,
    directory: &'a FileKey,
    at: &'a diropargs3<'_>,
    name_use: NameUse,
) -> Outcome<Place<'a>> {
    let name = at.name.as_ref();
    let length_max = scene.visit.export.file_system.abilities().name_bytes_max;
    if name.len() > length_max as usize {
        return Err(nfsstat3::NFS3ERR_NAMETOOLONG);
    }
    if name.is_empty() || name.contains(&b'/') || name.contains(&0) {
        return Err(nfsstat3::NFS3ERR_INVAL);
    }
    match (name_use, name) {
        (NameUse::Make, b"." | b"..") | (NameUse::RemoveDirectory, b"..") => {
            Err(nfsstat3::NFS3ERR_EXIST)
        }
        (NameUse::Remove, b"." | b"..") | (NameUse::RemoveDirectory, b".") => {
            Err(nfsstat3::NFS3ERR_INVAL)
        }
        _ => Ok(Place { directory, name }),
    }
}

/// Results of those that make something.
fn made(scene: &Scene<'_>, found: Found, wcc: &mut wcc_data) -> CREATE3resok {
    CREATE3resok {
        obj: Nfs3Option::Some(scene.handle(&found.key).to_fh3()),
        obj_attributes: Nfs3Option::Some(found.attributes),
        dir_wcc: std::mem::take(wcc),
    }
}

impl Operation for CREATE3args<'_> {
    type Done = CREATE3resok;
    type Failed = wcc_data;
    const CHANGES: bool = true;

    fn handle(&self) -> &nfs_fh3 {
        &self.where_.dir
    }

    fn run(&self, scene: &Scene<'_>, wcc: &mut wcc_data) -> Outcome<CREATE3resok> {
        let visit = &scene.visit;
        let at = place(scene, &visit.file, &self.where_, NameUse::Make)?;
        if let createhow3::UNCHECKED(new) | createhow3::GUARDED(new) = &self.how {
            check_size(scene, new)?;
        }
        let found = visit.export.file_system.create(&visit.caller, at, &self.how, wcc)?;
        Ok(made(scene, found, wcc))
    }
}

impl Operation for MKDIR3args<'_> {
    type Done = CREATE3resok;
    type Failed = wcc_data;
    const CHANGES: bool = true;

    fn handle(&self) -> &nfs_fh3 {
        &self.where_.dir
    }

    fn run(&self, scene: &Scene<'_>, wcc: &mut wcc_data) -> Outcome<CREATE3resok> {
        let visit = &scene.visit;
        let at = place(scene, &visit.file, &self.where_, NameUse::Make)?;
        let file_system = &visit.export.file_system;
        let found = file_system.make_directory(&visit.caller, at, &self.attributes, wcc)?;
        Ok(made(scene, found, wcc))
    }
}

impl Operation for SYMLINK3args<'_> {
    type Done = CREATE3resok;
    type Failed = wcc_data;
    const CHANGES: bool = true;

    fn handle(&self) -> &nfs_fh3 {
        &self.where_.dir
    }

    fn run(&self, scene: &Scene<'_>, wcc: &mut wcc_data) -> Outcome<CREATE3resok> {
        let visit = &scene.visit;
        let at = place(scene, &visit.file, &self.where_, NameUse::Make)?;
        let (text, new) = (self.symlink.symlink_data.as_ref(), &self.symlink.symlink_attributes);
        // No path has a zero, and an empty one leads nowhere.
        if text.is_empty() || text.contains(&0) {
            return Err(nfsstat3::NFS3ERR_INVAL);
        }
        let file_system = &visit.export.file_system;
        let found = file_system.make_symlink(&visit.caller, at, text, new, wcc)?;
        Ok(made(scene, found, wcc))
    }
}

impl Operation for MKNOD3args<'_> {
    type Done = CREATE3resok;
    type Failed = wcc_data;
    const CHANGES: bool = true;

    fn handle(&self) -> &nfs_fh3 {
        &self.where_.dir
    }

    fn run(&self, scene: &Scene<'_>, wcc: &mut wcc_data) -> Outcome<CREATE3resok> {
        let visit = &scene.visit;
        let at = place(scene, &visit.file, &self.where_, NameUse::Make)?;
        let special = special_file(&self.what)?;
        let found = visit.export.file_system.make_special(&visit.caller, at, &special, wcc)?;
        Ok(made(scene, found, wcc))
    }
}

fn special_file(what: &mknoddata3) -> Outcome<SpecialFile> {
    let file = |kind, device: &specdata3, attributes: &sattr3| SpecialFile {
        kind,
        device: device.clone(),
        attributes: attributes.clone(),
    };
    let none = specdata3::default();
    Ok(match what {
        mknoddata3::NF3CHR(device) => file(ftype3::NF3CHR, &device.spec, &device.dev_attributes),
        mknoddata3::NF3BLK(device) => file(ftype3::NF3BLK, &device.spec, &device.dev_attributes),
        mknoddata3::NF3SOCK(attributes) => file(ftype3::NF3SOCK, &none, attributes),
        mknoddata3::NF3FIFO(attributes) => file(ftype3::NF3FIFO, &none, attributes),
        mknoddata3::default => return Err(nfsstat3::NFS3ERR_BADTYPE),
    })
}

impl Operation for REMOVE3args<'_> {
    type Done = wcc_data;
    type Failed = wcc_data;
    const CHANGES: bool = true;

    fn handle(&self) -> &nfs_fh3 {
        &self.object.dir
    }

    fn run(&self, scene: &Scene<'_>, wcc: &mut wcc_data) -> Outcome<wcc_data> {
        let visit = &scene.visit;
        let at = place(scene, &visit.file, &self.object, NameUse::Remove)?;
        visit.export.file_system.remove(&visit.caller, at, wcc)?;
        Ok(std::mem::take(wcc))
    }
}

impl Operation for RMDIR3args<'_> {
    type Done = wcc_data;
    type Failed = wcc_data;
    const CHANGES: bool = true;

    fn handle(&self) -> &nfs_fh3 {
        &self.object.dir
    }

    fn run(&self, scene: &Scene<'_>, wcc: &mut wcc_data) -> Outcome<wcc_data> {
        let visit = &scene.visit;
        let at = place(scene, &visit.file, &self.object, NameUse::RemoveDirectory)?;
        visit.export.file_system.remove_directory(&visit.caller, at, wcc)?;
        Ok(std::mem::take(wcc))
    }
}

impl Operation for RENAME3args<'_, '_> {
    type Done = (wcc_data, wcc_data);
    type Failed = (wcc_data, wcc_data);
    const CHANGES: bool = true;

    fn handle(&self) -> &nfs_fh3 {
        &self.from.dir
    }

    fn run(
        &self,
        scene: &Scene<'_>,
        wccs: &mut (wcc_data, wcc_data),
    ) -> Outcome<(wcc_data, wcc_data)> {
        let visit = &scene.visit;
        let to_directory = scene.second(&self.to.dir)?;
        let from = place(scene, &visit.file, &self.from, NameUse::Remove)?;
        let to = place(scene, &to_directory, &self.to, NameUse::Remove)?;
        visit.export.file_system.rename(&visit.caller, from, to, wccs)?;
        Ok(std::mem::take(wccs))
    }
}

impl Operation for LINK3args<'_> {
    type Done = (post_op_attr, wcc_data);
    type Failed = (post_op_attr, wcc_data);
    const CHANGES: bool = true;

    fn handle(&self) -> &nfs_fh3 {
        &self.file
    }

    fn run(
        &self,
        scene: &Scene<'_>,
        results: &mut (post_op_attr, wcc_data),
    ) -> Outcome<(post_op_attr, wcc_data)> {
        let visit = &scene.visit;
        let directory = scene.second(&self.link.dir)?;
        let at = place(scene, &directory, &self.link, NameUse::Make)?;
        let file_system = &visit.export.file_system;
        let linked = file_system.link(&visit.caller, &visit.file, at, &mut results.1);
        results.0 = scene.post_op(&visit.file);
        linked.map(|()| std::mem::take(results))
    }
}
