//! GETATTR, SETATTR, LOOKUP, ACCESS and READLINK (RFC 1813 sections 3.3.1 to 3.3.5).

use super::checks::{NameUse, check_size, place};
use super::{Operation, Results};
use crate::protocol::{
    ACCESS3_DELETE, ACCESS3_EXTEND, ACCESS3_MODIFY, Access3args, Access3resok, Fattr3, FileHandle,
    Getattr3args, Getattr3resok, Lookup3args, Lookup3resok, NfsFh3, Nfsstat3, PATH_BYTES_MAX,
    PostOpAttr, Readlink3args, Setattr3args, WccData,
};
use crate::server::file_system::Outcome;
use crate::server::site::RequestContext;
use spinrpc::{Bulk, Encoder, ReplyData};
use spinrpc_xdr::{Encode, Placed};

impl Operation for Getattr3args<'_> {
    type Done = Getattr3resok;
    type Failed = ();

    fn handle(&self) -> NfsFh3<'_> {
        self.object
    }

    fn run(&self, context: &RequestContext<'_>, (): &mut ()) -> Outcome<Getattr3resok> {
        let visit = &context.visit;
        let obj_attributes = visit.export.file_system.attributes(&visit.file)?;
        Ok(Getattr3resok { obj_attributes })
    }
}

impl Operation for Setattr3args<'_> {
    type Done = WccData;
    type Failed = WccData;
    const CHANGES: bool = true;

    fn handle(&self) -> NfsFh3<'_> {
        self.object
    }

    fn run(&self, context: &RequestContext<'_>, wcc: &mut WccData) -> Outcome<WccData> {
        let visit = &context.visit;
        check_size(context, &self.new_attributes)?;
        let (file_system, new) = (&visit.export.file_system, &self.new_attributes);
        file_system.set_attributes(&visit.caller, &visit.file, new, self.guard, wcc)?;
        Ok(*wcc)
    }
}

impl Operation for Lookup3args<'_> {
    type Done = Located;
    type Failed = PostOpAttr;

    fn handle(&self) -> NfsFh3<'_> {
        self.what.dir
    }

    fn run(&self, context: &RequestContext<'_>, failed: &mut PostOpAttr) -> Outcome<Located> {
        let visit = &context.visit;
        let at = place(context, &visit.file, &self.what, NameUse::Find)?;
        let found = visit.export.file_system.lookup(&visit.caller, at);
        *failed = context.post_op(&visit.file);
        let found = found?;
        let object = context.handle(&found.key);
        Ok(Located { object, attributes: found.attributes, directory: *failed })
    }
}

/// Results of LOOKUP, with their own handle.
pub(super) struct Located {
    object: FileHandle,
    attributes: Fattr3,
    directory: PostOpAttr,
}

impl Results for Located {
    fn write(&self, to: &mut Encoder<'_>) {
        let results = Lookup3resok {
            object: self.object.wire(),
            obj_attributes: Some(self.attributes),
            dir_attributes: self.directory,
        };
        results.encode(to);
    }
}

impl Operation for Access3args<'_> {
    type Done = Access3resok;
    type Failed = PostOpAttr;

    fn handle(&self) -> NfsFh3<'_> {
        self.object
    }

    fn run(&self, context: &RequestContext<'_>, failed: &mut PostOpAttr) -> Outcome<Access3resok> {
        let visit = &context.visit;
        let access = visit.export.file_system.access(&visit.caller, &visit.file, self.access);
        *failed = context.post_op(&visit.file);
        let mut access = access?;
        if visit.export.options.read_only {
            access &= !CHANGING;
        }
        Ok(Access3resok { obj_attributes: *failed, access })
    }
}

/// Rights that no caller has in a read-only export.
const CHANGING: u32 = ACCESS3_MODIFY | ACCESS3_EXTEND | ACCESS3_DELETE;

impl Operation for Readlink3args<'_> {
    type Done = LinkText;
    type Failed = PostOpAttr;

    fn handle(&self) -> NfsFh3<'_> {
        self.symlink
    }

    fn run(&self, context: &RequestContext<'_>, failed: &mut PostOpAttr) -> Outcome<LinkText> {
        let visit = &context.visit;
        let text = visit.export.file_system.read_link(&visit.caller, &visit.file);
        *failed = context.post_op(&visit.file);
        let text = text?;
        let mut bulk = context.core.bulk(text.len()).ok_or(Nfsstat3::Nfs3errJukebox)?;
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
