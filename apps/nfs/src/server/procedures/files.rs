//! GETATTR, SETATTR, LOOKUP, ACCESS and READLINK (RFC 1813 sections 3.3.1 to 3.3.5).

use super::Results;
use super::checks::{NameUse, check_size, without_fbig};
use crate::protocol::{
    ACCESS3_DELETE, ACCESS3_EXTEND, ACCESS3_MODIFY, Access3args, Access3resok, Fattr3, FileHandle,
    Getattr3args, Lookup3args, Nfsstat3, PATH_BYTES_MAX, PostOpAttr, Readlink3args, Setattr3args,
    WccData,
};
use crate::server::file_system::{Outcome, Setting};
use crate::server::site::RequestContext;
use spinrpc::{Bulk, Encoder, ReplyData};
use spinrpc_xdr::{Encode, Placed};

/// Rights that no caller has in a read-only export.
const CHANGING: u32 = ACCESS3_MODIFY | ACCESS3_EXTEND | ACCESS3_DELETE;

impl RequestContext<'_> {
    pub(super) fn getattr(&self, _: &Getattr3args<'_>, (): &mut ()) -> Outcome<Fattr3> {
        self.attributes()
    }

    pub(super) fn setattr(&self, args: &Setattr3args<'_>, wcc: &mut WccData) -> Outcome<WccData> {
        let (visit, new) = (&self.visit, &args.new_attributes);
        check_size(new)?;
        let to = Setting { new, guard: args.guard };
        let set = self.file_system().setattr(visit.by(wcc), &visit.file, to);
        set.map_err(without_fbig)?;
        Ok(*wcc)
    }

    /// The attributes of the directory are those from before, as in a listing: a client that takes a name for missing, or its
    /// file for the one with this name, does so for a directory of that age.
    pub(super) fn lookup(
        &self,
        args: &Lookup3args<'_>,
        failed: &mut PostOpAttr,
    ) -> Outcome<(FileHandle, PostOpAttr, PostOpAttr)> {
        let at = self.place(&self.visit.file, &args.what, NameUse::Find)?;
        *failed = self.attributes().ok();
        let found = self.file_system().lookup(&self.visit.caller, at)?;
        Ok((self.handle(&found.key), Some(found.attributes), *failed))
    }

    pub(super) fn access(
        &self,
        args: &Access3args<'_>,
        failed: &mut PostOpAttr,
    ) -> Outcome<Access3resok> {
        let visit = &self.visit;
        let access = self.file_system().access(&visit.caller, &visit.file, args.access);
        *failed = self.attributes().ok();
        let denied = if visit.export.options.read_only { CHANGING } else { 0 };
        Ok(Access3resok { obj_attributes: *failed, access: access? & !denied })
    }

    pub(super) fn readlink(
        &self,
        _: &Readlink3args<'_>,
        failed: &mut PostOpAttr,
    ) -> Outcome<LinkText> {
        let text = self.file_system().read_link(&self.visit.file);
        *failed = self.attributes().ok();
        let text = text?;
        let mut bulk = self.core.bulk(text.len()).ok_or(Nfsstat3::Nfs3errJukebox)?;
        bulk.bytes_mut().copy_from_slice(&text);
        Ok(LinkText { attributes: *failed, text: Some(bulk) })
    }
}

/// Results of READLINK. The text uses a Write chunk if the call offers one (RFC 8267 section 2).
pub(super) struct LinkText {
    attributes: PostOpAttr,
    text: Option<Bulk>,
}

impl Results for LinkText {
    fn write(&self, to: &mut Encoder<'_>) {
        (self.attributes, Placed::<PATH_BYTES_MAX>::Beside).encode(to);
    }

    fn take_data(&mut self) -> ReplyData {
        self.text.take().map_or_else(ReplyData::new, |text| ReplyData::new().bulk(text))
    }
}
