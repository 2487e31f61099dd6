//! The procedures that create and remove names: CREATE, MKDIR, SYMLINK, MKNOD, REMOVE, RMDIR,
//! RENAME and LINK (RFC 1813 sections 3.3.8 to 3.3.15).

use super::checks::{NameUse, check_size, without_fbig};
use crate::protocol::{
    Create3args, Createhow3, FileHandle, Ftype3, Link3args, Mkdir3args, Mknod3args, Mknoddata3,
    Nfsstat3, PostOpAttr, Remove3args, Rename3args, Rmdir3args, Specdata3, Symlink3args, WccData,
};
use crate::server::file_system::{NewFile, Outcome, Place, SpecialFile};
use crate::server::site::RequestContext;

type Made = (Option<FileHandle>, PostOpAttr, WccData);
type Renamed = (WccData, WccData);
type Linked = (PostOpAttr, WccData);

impl RequestContext<'_> {
    pub(super) fn create(&self, args: &Create3args<'_>, wcc: &mut WccData) -> Outcome<Made> {
        let at = self.place(&self.visit.file, &args.r#where, NameUse::Make)?;
        if let Createhow3::Unchecked(new) | Createhow3::Guarded(new) = &args.how {
            check_size(new)?;
        }
        self.make(at, NewFile::Regular(&args.how), wcc).map_err(without_fbig)
    }

    pub(super) fn mkdir(&self, args: &Mkdir3args<'_>, wcc: &mut WccData) -> Outcome<Made> {
        let at = self.place(&self.visit.file, &args.r#where, NameUse::Make)?;
        self.make(at, NewFile::Directory(&args.attributes), wcc)
    }

    pub(super) fn symlink(&self, args: &Symlink3args<'_>, wcc: &mut WccData) -> Outcome<Made> {
        let at = self.place(&self.visit.file, &args.r#where, NameUse::Make)?;
        let text = args.symlink.symlink_data.bytes();
        // No path contains a zero byte, and an empty one leads nowhere.
        if text.is_empty() || text.contains(&0) {
            return Err(Nfsstat3::Nfs3errInval);
        }
        let attributes = &args.symlink.symlink_attributes;
        self.make(at, NewFile::Link { text, attributes }, wcc)
    }

    pub(super) fn mknod(&self, args: &Mknod3args<'_>, wcc: &mut WccData) -> Outcome<Made> {
        let at = self.place(&self.visit.file, &args.r#where, NameUse::Make)?;
        self.make(at, NewFile::Special(&special_file(&args.what)?), wcc)
    }

    fn make(&self, at: Place<'_>, new: NewFile<'_>, wcc: &mut WccData) -> Outcome<Made> {
        let found = self.file_system().make(self.visit.by(wcc), at, new)?;
        Ok((Some(self.handle(&found.key)), Some(found.attributes), *wcc))
    }

    pub(super) fn remove(&self, args: &Remove3args<'_>, wcc: &mut WccData) -> Outcome<WccData> {
        let at = self.place(&self.visit.file, &args.object, NameUse::Remove)?;
        self.file_system().unlink(self.visit.by(wcc), at, false)?;
        Ok(*wcc)
    }

    pub(super) fn rmdir(&self, args: &Rmdir3args<'_>, wcc: &mut WccData) -> Outcome<WccData> {
        let at = self.place(&self.visit.file, &args.object, NameUse::RemoveDirectory)?;
        self.file_system().unlink(self.visit.by(wcc), at, true)?;
        Ok(*wcc)
    }

    pub(super) fn rename(&self, args: &Rename3args<'_>, wccs: &mut Renamed) -> Outcome<Renamed> {
        let to_directory = self.second(args.to.dir)?;
        let from = self.place(&self.visit.file, &args.from, NameUse::Remove)?;
        let to = self.place(&to_directory, &args.to, NameUse::Remove)?;
        self.file_system().rename(self.visit.by(wccs), from, to)?;
        Ok(*wccs)
    }

    pub(super) fn link(&self, args: &Link3args<'_>, results: &mut Linked) -> Outcome<Linked> {
        let visit = &self.visit;
        let directory = self.second(args.link.dir)?;
        let at = self.place(&directory, &args.link, NameUse::Make)?;
        let linked = self.file_system().link(visit.by(&mut results.1), &visit.file, at);
        results.0 = self.attributes().ok();
        linked.map(|()| *results)
    }
}

/// Bits of the major and the minor number of a device on Linux: others would make another device.
const MAJOR_BITS: u32 = 12;
const MINOR_BITS: u32 = 20;

fn special_file(what: &Mknoddata3) -> Outcome<SpecialFile> {
    let (kind, attributes, device) = match what {
        Mknoddata3::Nf3chr(what) => (Ftype3::Nf3chr, what.dev_attributes, what.spec),
        Mknoddata3::Nf3blk(what) => (Ftype3::Nf3blk, what.dev_attributes, what.spec),
        Mknoddata3::Nf3sock(attributes) => (Ftype3::Nf3sock, *attributes, Specdata3::default()),
        Mknoddata3::Nf3fifo(attributes) => (Ftype3::Nf3fifo, *attributes, Specdata3::default()),
        Mknoddata3::Default(_) => return Err(Nfsstat3::Nfs3errBadtype),
    };
    match device.specdata1 >> MAJOR_BITS == 0 && device.specdata2 >> MINOR_BITS == 0 {
        true => Ok(SpecialFile { kind, device, attributes }),
        false => Err(Nfsstat3::Nfs3errInval),
    }
}
