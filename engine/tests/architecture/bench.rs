//! The layers of spinperf.

use crate::layers::circles;
use crate::paths::paths;
use crate::source::{Source, Violation};

/// Modules of spinperf from the lowest layer to the highest; those in one line do not name each
/// other. The commands are in the last but one.
const LAYERS: &[&[&str]] = &[
    &["pattern", "progress", "units"],
    &["failure"],
    &["console", "cores", "interrupt", "latency", "profile_args", "ranks"],
    &["child", "fabric", "floor", "top"],
    &["env"],
    &["load"],
    &["profile", "report"],
    &["capture", "compare", "handles", "slabs"],
    &["output"],
    &["merge"],
    &["cli"],
    &["modes"],
    &["devices", "floor_job", "idle_job", "metrics", "run", "serve"],
    &["job", "main_job"],
];

/// Modules of tests, which may be named anywhere.
const TESTS: &[&str] = &["schema"];

/// A module of spinperf names lower ones only.
pub(crate) fn bench_layers(source: &Source) -> Vec<Violation> {
    let Some(own) = module_of(source) else { return Vec::new() };
    if TESTS.contains(&own) {
        return Vec::new();
    }
    let Some(rank) = rank_of(own) else {
        let problem = format!("`{own}` has no place among the layers of spinperf");
        return vec![source.violation(0, problem, "give it one in LAYERS of this test")];
    };
    let named = paths(source);
    let upward = named.iter().filter_map(|path| {
        let target = path.local()?.first()?.as_str();
        let is_known = target == own || TESTS.contains(&target);
        let is_below = rank_of(target).is_some_and(|other| other < rank);
        (!is_known && !is_below).then(|| {
            let problem = format!("`{own}` names `{target}`, which is not below it");
            source.violation(path.at, problem, "move what both need to a lower layer")
        })
    });
    upward.collect()
}

/// The top-level module of spinperf that a file belongs to; none for `main.rs`, which is above all.
fn module_of(source: &Source) -> Option<&str> {
    let below = source.path.strip_prefix("bench/src/")?;
    let name = below.split('/').next()?;
    Some(name.strip_suffix(".rs").unwrap_or(name)).filter(|name| *name != "main")
}

fn rank_of(module: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.contains(&module))
}

/// The files of spinperf form no circle of imports but small ones.
pub(crate) fn bench_circles(sources: &[Source]) -> Vec<Violation> {
    circles(sources.iter().filter(|source| module_of(source).is_some()).collect())
}
