//! FSSTAT, FSINFO and PATHCONF (RFC 1813 sections 3.3.18 to 3.3.20).

use super::Operation;
use crate::protocol::{
    FSF3_CANSETTIME, FSF3_HOMOGENEOUS, FSF3_LINK, FSF3_SYMLINK, Fsinfo3args, Fsinfo3resok,
    Fsstat3args, Fsstat3resok, NfsFh3, Pathconf3args, Pathconf3resok, PostOpAttr,
};
use crate::server::file_system::Outcome;
use crate::server::site::RequestContext;

/// Preferred multiple of offsets and lengths of READ and WRITE: the page size.
const BLOCK_MULTIPLE_BYTES: u32 = 4096;

impl Operation for Fsstat3args<'_> {
    type Done = Fsstat3resok;
    type Failed = PostOpAttr;

    fn handle(&self) -> NfsFh3<'_> {
        self.fsroot
    }

    fn run(&self, context: &RequestContext<'_>, failed: &mut PostOpAttr) -> Outcome<Fsstat3resok> {
        let visit = &context.visit;
        // First, so that a handle of a deleted file gives no access to the rest.
        let attributes = visit.export.file_system.attributes(&visit.file)?;
        *failed = Some(attributes);
        let space = visit.export.file_system.space(&visit.caller)?;
        Ok(Fsstat3resok {
            obj_attributes: *failed,
            tbytes: space.bytes,
            fbytes: space.bytes_free,
            abytes: space.bytes_available,
            tfiles: space.files,
            ffiles: space.files_free,
            afiles: space.files_available,
            // It may change at once.
            invarsec: 0,
        })
    }
}

impl Operation for Fsinfo3args<'_> {
    type Done = Fsinfo3resok;
    type Failed = PostOpAttr;

    fn handle(&self) -> NfsFh3<'_> {
        self.fsroot
    }

    fn run(&self, context: &RequestContext<'_>, _: &mut PostOpAttr) -> Outcome<Fsinfo3resok> {
        let (visit, options) = (&context.visit, &context.site.options);
        let attributes = visit.export.file_system.attributes(&visit.file)?;
        let abilities = visit.export.file_system.abilities();
        Ok(Fsinfo3resok {
            obj_attributes: Some(attributes),
            rtmax: options.read_bytes_max,
            rtpref: options.read_bytes_max,
            rtmult: BLOCK_MULTIPLE_BYTES,
            wtmax: options.write_bytes_max,
            wtpref: options.write_bytes_max,
            wtmult: BLOCK_MULTIPLE_BYTES,
            dtpref: options.list_bytes_max,
            maxfilesize: abilities.file_bytes_max,
            time_delta: abilities.time_step,
            properties: FSF3_LINK | FSF3_SYMLINK | FSF3_HOMOGENEOUS | FSF3_CANSETTIME,
        })
    }
}

impl Operation for Pathconf3args<'_> {
    type Done = Pathconf3resok;
    type Failed = PostOpAttr;

    fn handle(&self) -> NfsFh3<'_> {
        self.object
    }

    fn run(&self, context: &RequestContext<'_>, _: &mut PostOpAttr) -> Outcome<Pathconf3resok> {
        let visit = &context.visit;
        let attributes = visit.export.file_system.attributes(&visit.file)?;
        let abilities = visit.export.file_system.abilities();
        Ok(Pathconf3resok {
            obj_attributes: Some(attributes),
            linkmax: abilities.links_max,
            name_max: abilities.name_bytes_max,
            no_trunc: true,
            chown_restricted: true,
            case_insensitive: false,
            case_preserving: true,
        })
    }
}
