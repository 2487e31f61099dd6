//! The layers of NFS.

use crate::layers::circles;
use crate::paths::paths;
use crate::source::{Source, Violation};

/// Modules of the crate from the lowest layer to the highest; those in one line do not name each
/// other: the client and the server share the protocol only.
const LAYERS: &[&[&str]] =
    &[&["protocol", "sys", "tcp"], &["mount3", "nfs3"], &["status"], &["client", "server"]];

/// The same for the modules of the server.
const SERVER_LAYERS: &[&[&str]] = &[
    &["caller", "stats", "throttle"],
    &["answer", "file_system"],
    &["containment", "errors", "exports", "handle", "nodes", "open_syncs"],
    &["journal", "tcp", "threads"],
    &["cephfs", "directory", "kerberos", "memory", "mount", "site"],
    &["data", "procedures"],
    &["pool"],
    &["service"],
];

/// A module of NFS names lower ones only, and so does a module of its server.
pub(crate) fn nfs_layers(source: &Source) -> Vec<Violation> {
    let mut found = upward(source, "", LAYERS);
    found.extend(upward(source, "server", SERVER_LAYERS));
    found
}

/// Names of modules below `root` that are not in lower layers, in a file of one of these modules.
fn upward(source: &Source, root: &str, layers: &[&[&str]]) -> Vec<Violation> {
    let Some(own) = module_of(source, root) else { return Vec::new() };
    let rank_of = |module: &str| layers.iter().position(|layer| layer.contains(&module));
    let Some(rank) = rank_of(own) else {
        let problem = format!("`{own}` has no place among the layers of NFS");
        return vec![source.violation(0, problem, "give it one in the lists of this test")];
    };
    let named = paths(source);
    let upward = named.iter().filter_map(|path| {
        // Where something is visible, it does not name.
        if source.code[..path.at].trim_end().ends_with("pub(in") {
            return None;
        }
        let local = path.local()?;
        let target = match root {
            "" => local.first()?,
            _ => local.strip_prefix(&[root.to_owned()])?.first()?,
        };
        let is_below = rank_of(target).is_some_and(|other| other < rank);
        (target != own && !is_below && !source.is_test(path.at)).then(|| {
            let problem = format!("`{own}` names `{target}`, which is not below it");
            source.violation(path.at, problem, "move what both need to a lower layer")
        })
    });
    upward.collect()
}

/// The module below `root` that a file belongs to; none for files of other crates and modules, and for
/// the roots themselves.
fn module_of<'a>(source: &'a Source, root: &str) -> Option<&'a str> {
    let below = source.path.strip_prefix("apps/nfs/src/")?.strip_prefix(root)?;
    let name = below.trim_start_matches('/').split('/').next()?;
    Some(name.strip_suffix(".rs").unwrap_or(name)).filter(|name| !matches!(*name, "lib" | "mod"))
}

/// The files of NFS form no circle of imports but small ones.
pub(crate) fn nfs_circles(sources: &[Source]) -> Vec<Violation> {
    circles(sources.iter().filter(|source| source.path.starts_with("apps/nfs/src/")).collect())
}
