//! FSSTAT, FSINFO and PATHCONF (RFC 1813 sections 3.3.18 to 3.3.20).

use crate::protocol::{
    FSF3_CANSETTIME, FSF3_HOMOGENEOUS, FSF3_LINK, FSF3_SYMLINK, Fsinfo3args, Fsinfo3resok,
    Fsstat3args, Fsstat3resok, Nfstime3, Pathconf3args, Pathconf3resok, PostOpAttr,
};
use crate::server::file_system::Outcome;
use crate::server::site::RequestContext;
use crate::server::unix::FILE_BYTES_MAX;

/// Preferred multiple of offsets and lengths of READ and WRITE: the page size.
const BLOCK_MULTIPLE_BYTES: u32 = 4096;

impl RequestContext<'_> {
    pub(super) fn fsstat(
        &self,
        _: &Fsstat3args<'_>,
        failed: &mut PostOpAttr,
    ) -> Outcome<Fsstat3resok> {
        // First, so that a handle of a deleted file gives no access to the rest.
        *failed = Some(self.attributes()?);
        Ok(Fsstat3resok { obj_attributes: *failed, ..self.file_system().space()? })
    }

    pub(super) fn fsinfo(&self, _: &Fsinfo3args<'_>, _: &mut PostOpAttr) -> Outcome<Fsinfo3resok> {
        let options = &self.site.options;
        Ok(Fsinfo3resok {
            obj_attributes: Some(self.attributes()?),
            rtmax: options.read_bytes_max,
            rtpref: options.read_bytes_max,
            rtmult: BLOCK_MULTIPLE_BYTES,
            wtmax: options.write_bytes_max,
            wtpref: options.write_bytes_max,
            wtmult: BLOCK_MULTIPLE_BYTES,
            dtpref: options.list_bytes_max,
            maxfilesize: FILE_BYTES_MAX,
            time_delta: Nfstime3 { seconds: 0, nseconds: 1 },
            properties: FSF3_LINK | FSF3_SYMLINK | FSF3_HOMOGENEOUS | FSF3_CANSETTIME,
        })
    }

    pub(super) fn pathconf(
        &self,
        _: &Pathconf3args<'_>,
        _: &mut PostOpAttr,
    ) -> Outcome<Pathconf3resok> {
        let abilities = self.file_system().abilities();
        Ok(Pathconf3resok {
            obj_attributes: Some(self.attributes()?),
            linkmax: abilities.links_max,
            name_max: abilities.name_bytes_max,
            no_trunc: true,
            chown_restricted: true,
            case_insensitive: false,
            case_preserving: true,
        })
    }
}
