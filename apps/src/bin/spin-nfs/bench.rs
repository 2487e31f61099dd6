//! One procedure repeatedly: rate and latency of the calls.

use crate::cli::{BenchOptions, Operation, Stable};
use crate::{Opened, interruption, print, show};
use serde_json::{Value, json};
use spinrpc_nfs::client::{Error, Files, Load, Loaded, Nfs, Work};
use spinrpc_nfs::nfs3;
use spinrpc_nfs::protocol::{FileHandle, Ftype3, Nfsstat3, StableHow};
use std::sync::atomic::Ordering;

const NEW_MODE: u32 = 0o644;

pub(crate) fn run(
    nfs: &Nfs,
    opened: &Opened<'_>,
    operation: Operation,
    depth: usize,
    options: &BenchOptions,
) -> Result<(), Error> {
    let (file, span_bytes) = file_for(nfs, opened, operation, options)?;
    let load = Load {
        work: work(operation, options.stable),
        block_bytes: options.size,
        span_bytes,
        depth,
        warmup: options.warmup,
        duration: options.duration,
        calls: options.calls,
    };
    let is_interrupted = interruption()?;
    let stop = || is_interrupted.load(Ordering::Relaxed);
    let loaded = nfs.load(&opened.root, &file, &load, stop).map_err(|e| e.at(opened.path))?;
    let shown = if options.json { json } else { text };
    print(&shown(opened.path, &load, &loaded))?;
    if stop() { Err(Error::Interrupted) } else { Ok(()) }
}

fn work(operation: Operation, stable: Stable) -> Work {
    match operation {
        Operation::Getattr => Work::Getattr,
        Operation::Read => Work::Read,
        Operation::Write => Work::Write(match stable {
            Stable::Unstable => StableHow::Unstable,
            Stable::Data => StableHow::DataSync,
            Stable::File => StableHow::FileSync,
        }),
    }
}

fn file_for(
    nfs: &Nfs,
    opened: &Opened<'_>,
    operation: Operation,
    options: &BenchOptions,
) -> Result<(FileHandle, u64), Error> {
    let found = nfs.find(&opened.root, &opened.below, true);
    let is_new = |error: &Error| error.status() == Some(Nfsstat3::Nfs3errNoent);
    let found = match found {
        Err(error) if operation == Operation::Write && is_new(&error) => {
            let (parent, name) = nfs.find_parent(&opened.root, &opened.below)?;
            let made = nfs.create(&parent.handle, name, NEW_MODE, Some(0));
            return Ok((made.map_err(|error| error.at(opened.path))?, options.span));
        }
        found => found?,
    };
    let (path, size, bytes) = (opened.path, options.size, found.attributes.size);
    let wrong = |problem| Err(Error::Path(format!("{path}: {problem}")));
    match operation {
        Operation::Getattr => Ok((found.handle, options.span)),
        _ if found.attributes.r#type != Ftype3::Nf3reg => wrong("not a regular file".to_owned()),
        Operation::Read if bytes < size.into() => {
            wrong(format!("{bytes} bytes, less than one READ of {size} (--size)"))
        }
        Operation::Read => Ok((found.handle, options.span.min(bytes))),
        Operation::Write if bytes > 0 && !options.overwrite => {
            wrong(format!("the file already has {bytes} bytes; use --overwrite to overwrite them"))
        }
        Operation::Write => Ok((found.handle, options.span)),
    }
}

fn bytes_per_call(load: &Load) -> u32 {
    if load.work == Work::Getattr { 0 } else { load.block_bytes }
}

fn rates(load: &Load, loaded: &Loaded) -> (f64, f64) {
    let seconds = loaded.elapsed.as_secs_f64();
    let calls = if seconds > 0.0 { loaded.round_trips.len() as f64 / seconds } else { 0.0 };
    (calls, calls * f64::from(bytes_per_call(load)))
}

fn text(path: &str, load: &Load, loaded: &Loaded) -> String {
    let (calls, bytes) = rates(load, loaded);
    let (of_bytes, at_bytes) = match bytes_per_call(load) {
        0 => Default::default(),
        each => (format!(" of {each} bytes"), format!(", {:.1} MB/s", bytes / 1e6)),
    };
    let mut text = format!(
        "{path}: {}{of_bytes}, {} in flight: {} calls in {:.3} s\nrate: {calls:.0} calls/s{at_bytes}{}",
        name(load.work),
        load.depth,
        loaded.round_trips.len(),
        loaded.elapsed.as_secs_f64(),
        show::round_trips(&loaded.round_trips),
    );
    if let Some(commit) = loaded.commit {
        text += &format!("\nCOMMIT at the end: {}", show::time(commit.as_nanos() as f64));
    }
    text
}

fn json(path: &str, load: &Load, loaded: &Loaded) -> String {
    let (calls, bytes) = rates(load, loaded);
    json!({
        "path": path,
        "operation": name(load.work),
        "bytes": bytes_per_call(load),
        "depth": load.depth,
        "calls": loaded.round_trips.len(),
        "seconds": loaded.elapsed.as_secs_f64(),
        "calls_per_second": calls,
        "bytes_per_second": bytes,
        "round_trip_ns": show::json_round_trips(&loaded.round_trips),
        "commit_ns": loaded.commit.map_or(Value::Null, |time| (time.as_nanos() as u64).into()),
    })
    .to_string()
}

fn name(work: Work) -> String {
    let procedure = nfs3::name(work.operation());
    match work {
        Work::Write(stable) => format!("{procedure} {stable}"),
        _ => procedure.to_owned(),
    }
}
