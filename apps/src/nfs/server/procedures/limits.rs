//! FSSTAT, FSINFO and PATHCONF (RFC 1813 sections 3.3.18 to 3.3.20).

use super::Operation;
use crate::nfs::server::file_system::Outcome;
use crate::nfs::server::site::Scene;
use nfs3_types::nfs3::{
    FSF3_CANSETTIME, FSF3_HOMOGENEOUS, FSF3_LINK, FSF3_SYMLINK, FSINFO3args, FSINFO3resok,
    FSSTAT3args, FSSTAT3resok, Nfs3Option, PATHCONF3args, PATHCONF3resok, nfs_fh3, post_op_attr,
};

/// Offsets and lengths of READ and WRITE are best a multiple of this: the size of a page.
const BLOCK_MULTIPLE_BYTES: u32 = 4096;

impl Operation for FSSTAT3args {
    type Done = FSSTAT3resok;
    type Failed = post_op_attr;

    fn handle(&self) -> &nfs_fh3 {
        &self.fsroot
    }

    fn run(&self, scene: &Scene<'_>, failed: &mut post_op_attr) -> Outcome<FSSTAT3resok> {
        let visit = &scene.visit;
        // First of all, so that a handle of a file that is gone is no way to the rest.
        let attributes = visit.export.file_system.attributes(&visit.file)?;
        *failed = Nfs3Option::Some(attributes);
        let space = visit.export.file_system.space(&visit.caller)?;
        Ok(FSSTAT3resok {
            obj_attributes: std::mem::take(failed),
            tbytes: space.bytes,
            fbytes: space.bytes_free,
            abytes: space.bytes_available,
            tfiles: space.files,
            ffiles: space.files_free,
            afiles: space.files_available,
            // It may be different at once.
            invarsec: 0,
        })
    }
}

impl Operation for FSINFO3args {
    type Done = FSINFO3resok;
    type Failed = post_op_attr;

    fn handle(&self) -> &nfs_fh3 {
        &self.fsroot
    }

    fn run(&self, scene: &Scene<'_>, _: &mut post_op_attr) -> Outcome<FSINFO3resok> {
        let (visit, options) = (&scene.visit, &scene.site.options);
        let attributes = visit.export.file_system.attributes(&visit.file)?;
        let abilities = visit.export.file_system.abilities();
        Ok(FSINFO3resok {
            obj_attributes: Nfs3Option::Some(attributes),
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

impl Operation for PATHCONF3args {
    type Done = PATHCONF3resok;
    type Failed = post_op_attr;

    fn handle(&self) -> &nfs_fh3 {
        &self.object
    }

    fn run(&self, scene: &Scene<'_>, _: &mut post_op_attr) -> Outcome<PATHCONF3resok> {
        let visit = &scene.visit;
        let attributes = visit.export.file_system.attributes(&visit.file)?;
        let abilities = visit.export.file_system.abilities();
        Ok(PATHCONF3resok {
            obj_attributes: Nfs3Option::Some(attributes),
            linkmax: abilities.links_max,
            name_max: abilities.name_bytes_max,
            no_trunc: true,
            chown_restricted: true,
            case_insensitive: false,
            case_preserving: true,
        })
    }
}
