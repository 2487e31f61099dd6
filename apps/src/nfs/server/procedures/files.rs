//! GETATTR, SETATTR, LOOKUP, ACCESS and READLINK (RFC 1813 sections 3.3.1 to 3.3.5).

use super::names::{NameUse, place};
use super::{Operation, Results};
use crate::nfs::server::file_system::Outcome;
use crate::nfs::server::site::Scene;
use crate::nfs::xdr::Xdr;
use nfs3_types::nfs3::{
    ACCESS3args, ACCESS3resok, GETATTR3args, GETATTR3resok, LOOKUP3args, LOOKUP3resok, Nfs3Option,
    READLINK3args, SETATTR3args, nfs_fh3, nfsstat3, post_op_attr, sattr3, wcc_data,
};
use spinrpc::{Bulk, Encoder, ReplyData};

impl Operation for GETATTR3args {
    type Done = GETATTR3resok;
    type Failed = ();

    fn handle(&self) -> &nfs_fh3 {
        &self.object
    }

    fn run(&self, scene: &Scene<'_>, (): &mut ()) -> Outcome<GETATTR3resok> {
        let visit = &scene.visit;
        let obj_attributes = visit.export.file_system.attributes(&visit.file)?;
        Ok(GETATTR3resok { obj_attributes })
    }
}

impl Operation for SETATTR3args {
    type Done = wcc_data;
    type Failed = wcc_data;
    const CHANGES: bool = true;

    fn handle(&self) -> &nfs_fh3 {
        &self.object
    }

    fn run(&self, scene: &Scene<'_>, wcc: &mut wcc_data) -> Outcome<wcc_data> {
        let visit = &scene.visit;
        check_size(scene, &self.new_attributes)?;
        let guard = match self.guard {
            Nfs3Option::Some(ctime) => Some(ctime),
            Nfs3Option::None => None,
        };
        let (file_system, new) = (&visit.export.file_system, &self.new_attributes);
        file_system.set_attributes(&visit.caller, &visit.file, new, guard, wcc)?;
        Ok(std::mem::take(wcc))
    }
}

/// A size that no file can have is not one of the attributes that are taken: NFS3ERR_INVAL, as SETATTR
/// and CREATE have no NFS3ERR_FBIG.
pub(super) fn check_size(scene: &Scene<'_>, new: &sattr3) -> Outcome<()> {
    let most = scene.visit.export.file_system.abilities().file_bytes_max;
    match new.size {
        Nfs3Option::Some(size) if size > most => Err(nfsstat3::NFS3ERR_INVAL),
        _ => Ok(()),
    }
}

impl Operation for LOOKUP3args<'_> {
    type Done = LOOKUP3resok;
    type Failed = post_op_attr;

    fn handle(&self) -> &nfs_fh3 {
        &self.what.dir
    }

    fn run(&self, scene: &Scene<'_>, failed: &mut post_op_attr) -> Outcome<LOOKUP3resok> {
        let visit = &scene.visit;
        let at = place(scene, &visit.file, &self.what, NameUse::Find)?;
        let found = visit.export.file_system.lookup(&visit.caller, at);
        *failed = scene.post_op(&visit.file);
        let found = found?;
        Ok(LOOKUP3resok {
            object: scene.handle(&found.key).to_fh3(),
            obj_attributes: Nfs3Option::Some(found.attributes),
            dir_attributes: std::mem::take(failed),
        })
    }
}

impl Operation for ACCESS3args {
    type Done = ACCESS3resok;
    type Failed = post_op_attr;

    fn handle(&self) -> &nfs_fh3 {
        &self.object
    }

    fn run(&self, scene: &Scene<'_>, failed: &mut post_op_attr) -> Outcome<ACCESS3resok> {
        let visit = &scene.visit;
        let access = visit.export.file_system.access(&visit.caller, &visit.file, self.access);
        *failed = scene.post_op(&visit.file);
        let mut access = access?;
        if visit.export.options.read_only {
            access &= !CHANGING;
        }
        Ok(ACCESS3resok { obj_attributes: std::mem::take(failed), access })
    }
}

/// What nobody may do in an export that is read-only.
const CHANGING: u32 = nfs3_types::nfs3::ACCESS3_MODIFY
    | nfs3_types::nfs3::ACCESS3_EXTEND
    | nfs3_types::nfs3::ACCESS3_DELETE;

impl Operation for READLINK3args {
    type Done = LinkText;
    type Failed = post_op_attr;

    fn handle(&self) -> &nfs_fh3 {
        &self.symlink
    }

    fn run(&self, scene: &Scene<'_>, failed: &mut post_op_attr) -> Outcome<LinkText> {
        let visit = &scene.visit;
        let text = visit.export.file_system.read_link(&visit.caller, &visit.file);
        *failed = scene.post_op(&visit.file);
        let text = text?;
        let mut bulk = scene.core.bulk(text.len()).ok_or(nfsstat3::NFS3ERR_JUKEBOX)?;
        bulk.bytes_mut().copy_from_slice(&text);
        Ok(LinkText { attributes: std::mem::take(failed), text: Some(bulk) })
    }
}

/// Results of READLINK. The text goes by a Write chunk if the call offers one (RFC 8267 section 2).
pub(super) struct LinkText {
    attributes: post_op_attr,
    text: Option<Bulk>,
}

impl Results for LinkText {
    fn write(&self, to: &mut Encoder<'_>) {
        self.attributes.encode(to);
        to.bulk();
    }

    fn take_data(&mut self) -> ReplyData {
        self.text.take().map_or_else(ReplyData::new, |text| ReplyData::new().bulk(text))
    }
}
