//! The layers of the reactor, and import circles.

use crate::paths::paths;
use crate::source::{Source, Violation};
use std::collections::HashMap;

/// Folders of the reactor from the lowest layer to the highest; those in one line do not know each
/// other. Files outside these folders are above all.
const LAYERS: &[&[&str]] =
    &[&["words"], &["pending"], &["state"], &["common"], &["server", "client"]];

/// Files that may import each other in a circle. The head of each says why.
const CIRCLE_MAX: usize = 2;

/// A file of a layer imports only lower layers and its own.
pub(crate) fn reactor_layers(source: &Source) -> Vec<Violation> {
    let Some(own) = folder_of(source) else { return Vec::new() };
    let Some(rank) = LAYERS.iter().position(|layer| layer.contains(&own)) else {
        let problem = format!("`{own}` has no place among the layers of the reactor");
        return vec![source.violation(0, problem, "give it one in LAYERS of this test")];
    };
    let named = paths(source);
    let upward = named.iter().filter_map(|path| {
        let (reactor, below) = path.local()?.split_first()?;
        if source.code[..path.at].trim_end().ends_with("pub(in") {
            return None;
        }
        // Its root stands for all layers.
        let target = below.first().map_or("", String::as_str);
        let is_below = LAYERS[..rank].iter().any(|below| below.contains(&target));
        (reactor == "reactor" && target != own && !is_below).then(|| {
            let problem = format!("`{own}` names `reactor::{target}`, which is not below it");
            source.violation(path.at, problem, "move what both need to a lower layer")
        })
    });
    upward.collect()
}

/// The layer of a file of the reactor; none for the files above all.
fn folder_of(source: &Source) -> Option<&str> {
    Some(source.path.strip_prefix("engine/src/reactor/")?.split_once('/')?.0)
}

/// Types of the reactor whose methods are defined in many files.
const SPREAD: &[&str] = &["CoreCell", "Reactor", "Conn"];

/// Text before the name of a method where one of these is called.
const RECEIVERS: &[&str] = &["self.", "Self::", "reactor.", "reactor().", " c.", "(c."];

/// A file of a layer calls no method of a core or a connection that only higher layers define.
pub(crate) fn reactor_methods(sources: &[Source]) -> Vec<Violation> {
    let files: Vec<(&Source, usize)> =
        sources.iter().filter_map(|source| Some((source, rank_of(source)?))).collect();
    let mut definers: HashMap<&str, Vec<(usize, &Source)>> = HashMap::new();
    for (source, rank) in &files {
        methods(source).for_each(|name| definers.entry(name).or_default().push((*rank, *source)));
    }
    let mut found = Vec::new();
    for (source, rank) in &files {
        let is_known = |(defined, other): &(usize, &Source)| {
            defined < rank || (defined == rank && folder_of(other) == folder_of(source))
        };
        // A type of this file may have a method of the same name.
        let is_own = |name: &str| source.code.contains(&format!("fn {name}("));
        for (at, name) in calls(source) {
            let Some(places) = definers.get(name) else { continue };
            if !places.iter().any(is_known) && !is_own(name) {
                let problem = format!("calls `{name}`, which {} defines", places[0].1.path);
                let fix = "move it, or its caller, to another layer";
                found.push(source.violation(at, problem, fix));
            }
        }
    }
    found
}

/// The place of a file of the reactor among the layers; files outside the folders are above all.
fn rank_of(source: &Source) -> Option<usize> {
    let below = source.path.strip_prefix("engine/src/reactor/")?;
    let folder = below.split_once('/').map(|(folder, _)| folder);
    let of = |folder| LAYERS.iter().position(|layer| layer.contains(&folder));
    Some(folder.and_then(of).unwrap_or(LAYERS.len()))
}

/// Names of the methods that a file defines on the types of [`SPREAD`].
fn methods(source: &Source) -> impl Iterator<Item = &str> {
    let blocks = source.code.split("\nimpl ").skip(1);
    let of_spread = blocks.filter(|block| {
        let head = block.split('{').next().unwrap_or_default().trim();
        SPREAD.contains(&head.rsplit(' ').next().unwrap_or_default())
    });
    let bodies = of_spread.map(|block| block.split("\n}").next().unwrap_or_default());
    bodies.flat_map(|body| body.split("\n    ").filter_map(defined_name))
}

/// The name of the method that a line of an `impl` begins.
fn defined_name(line: &str) -> Option<&str> {
    let (before, behind) = line.split_once("fn ")?;
    let is_definition = before.is_empty() || before.starts_with("pub");
    is_definition.then(|| behind.split(['(', '<']).next().unwrap_or_default())
}

/// Calls of methods by the [`RECEIVERS`], outside of tests: where, and of which name.
fn calls(source: &Source) -> Vec<(usize, &str)> {
    let of = |receiver: &'static str| {
        source.code.match_indices(receiver).filter_map(move |(at, _)| {
            let behind = &source.code[at + receiver.len()..];
            let is_part = |letter: char| letter.is_alphanumeric() || letter == '_';
            let end = behind.find(|letter| !is_part(letter))?;
            let before = source.code[..at].chars().next_back();
            let is_whole =
                !receiver.starts_with(char::is_alphabetic) || !before.is_some_and(is_part);
            let is_call = is_whole && behind[end..].starts_with('(') && !source.is_test(at);
            is_call.then_some((at, &behind[..end]))
        })
    };
    RECEIVERS.iter().flat_map(|receiver| of(receiver)).collect()
}

/// The files of the reactor form no circle of imports but small ones.
pub(crate) fn reactor_circles(sources: &[Source]) -> Vec<Violation> {
    let in_reactor = |source: &&Source| source.module().first() == Some(&"reactor");
    circles(sources.iter().filter(in_reactor).collect())
}

/// Circles of imports among these files, of more than [`CIRCLE_MAX`].
pub(crate) fn circles(files: Vec<&Source>) -> Vec<Violation> {
    let reach: Vec<Vec<bool>> = (0..files.len()).map(|from| reach(&files, from)).collect();
    let circle = |at: usize| {
        let is_member = |other: &usize| reach[at][*other] && reach[*other][at];
        (0..files.len()).filter(is_member).collect::<Vec<_>>()
    };
    let circles = (0..files.len()).map(|at| (at, circle(at)));
    let first_of_large =
        circles.filter(|(at, members)| members.len() > CIRCLE_MAX && members.first() == Some(at));
    first_of_large
        .map(|(at, members)| {
            let names: Vec<&str> = members.iter().map(|at| files[*at].path.as_str()).collect();
            let problem = format!("{} files import each other: {}", names.len(), names.join(" "));
            files[at].violation(0, problem, "move what they share to a file below them")
        })
        .collect()
}

/// Files that a file imports, by way of others, too.
fn reach(files: &[&Source], from: usize) -> Vec<bool> {
    let (mut reached, mut next) = (vec![false; files.len()], vec![from]);
    while let Some(at) = next.pop() {
        for target in imports(files, files[at]) {
            if !std::mem::replace(&mut reached[target], true) {
                next.push(target);
            }
        }
    }
    reached
}

/// Files that a file names outside of its tests; not those whose folder it declares.
fn imports(files: &[&Source], source: &Source) -> Vec<usize> {
    let own = source.module();
    let named = paths(source);
    let of_code = named.iter().filter(|path| !source.is_test(path.at));
    let targets = of_code.filter_map(|path| {
        let local = path.local()?;
        let is_of = |file: &&Source| {
            let module = file.module();
            module != own && local.iter().map(String::as_str).take(module.len()).eq(module)
        };
        let best = files.iter().enumerate().filter(|(_, file)| is_of(file));
        best.max_by_key(|(_, file)| file.module().len()).map(|(at, _)| at)
    });
    targets.filter(|at| !files[*at].path.ends_with("mod.rs")).collect()
}
