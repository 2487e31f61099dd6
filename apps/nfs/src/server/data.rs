//! READ, WRITE and COMMIT (RFC 1813 sections 3.3.6, 3.3.7 and 3.3.21) through the data paths of a core.
//!
//! READ reads into registered memory, from which the data are written into the client's Write chunk, if there is
//! one. WRITE data are in registered memory if they came in a Read chunk (RFC 8267 section 2).
//!
//! A READ is six types in turn. Each holds something that the one before cannot:
//!
//! | type | holds |
//! |---|---|
//! | [`Read3args`] | the arguments on the wire, with the handle |
//! | [`Request`] | memory for the data; it is all that a back end learns |
//! | `local_fs::transfer::Running` | the file and what the answer needs. The buffer is with the ring or a thread: the core cannot touch it while the kernel writes it. A `PartialRead` has that of a long read that the core does itself |
//! | `local_fs::transfer::Ended` | the buffer, again, and the status |
//! | [`Done`] | the data and the attributes afterwards: the answer of any back end |
//! | [`Read3resok`] | the results on the wire, without the data, which go by Write chunk |
//!
//! A back end in memory needs neither of the middle two.

use super::answer::{Answer, Owed};
use super::exports::{Export, Exports};
use super::file_system::{DataPath, Done, FileSystem, Outcome, Request, Started, WriteData};
use super::procedures::Arguments;
use super::site::{RequestContext, Site};
use super::stats::{Counters, Ticket};
use super::unix::FILE_BYTES_MAX;
use crate::protocol::{
    Commit3args, Commit3resok, Nfsstat3, PostOpAttr, ProcedureId, Read3args, Read3resok, WccData,
    Write3args, Write3resok, Writeverf3,
};
use spinrpc::{Bulk, CoreContext, Progress, ReplyData};
use spinrpc_xdr::{Encode, Placed};
use std::sync::Arc;

/// A READ is not shortened below this for lack of memory.
const SHORT_READ_BYTES_MIN: usize = 4096;

/// The write verifier at the start and at the end of a request. A WRITE returns the first and a
/// COMMIT the second, so that they differ if data may have been lost in between.
#[derive(Clone, Copy)]
struct Verifiers {
    began: Writeverf3,
    ended: Writeverf3,
}

pub(super) struct DataPaths {
    paths: Vec<ExportPath>,
    /// Index of the first path that may perform a part of a request in the next turn of the core: they take turns.
    first: usize,
}

struct ExportPath {
    /// `None` if it is not exported any more: kept until its requests have completed.
    export: Option<u32>,
    file_system: Arc<dyn FileSystem>,
    data: Box<dyn DataPath>,
    waiting: Waiting,
}

struct Pending {
    owed: Owed,
    ticket: Ticket,
    verifiers: Verifiers,
}

#[derive(Default)]
struct Waiting(Vec<Option<Pending>>);

impl Waiting {
    fn put(&mut self, number: u32, pending: Pending) {
        let place = number as usize;
        if self.0.len() <= place {
            self.0.resize_with(place + 1, || None);
        }
        if let Some(place) = self.0.get_mut(place) {
            *place = Some(pending);
        }
    }

    fn is_empty(&self) -> bool {
        self.0.iter().all(Option::is_none)
    }

    /// `None` for a call that could not be deferred, and was answered.
    fn take(&mut self, number: u32) -> Option<Pending> {
        self.0.get_mut(number as usize)?.take()
    }
}

impl ExportPath {
    fn new(export: &Export, core: &CoreContext) -> Self {
        Self {
            export: Some(export.id),
            file_system: Arc::clone(&export.file_system),
            data: Arc::clone(&export.file_system).data_path(core),
            waiting: Waiting::default(),
        }
    }
}

impl DataPaths {
    pub(super) fn new(exports: &Exports, core: &CoreContext) -> Self {
        let paths = exports.iter().map(|export| ExportPath::new(export, core)).collect();
        Self { paths, first: 0 }
    }

    pub(super) fn update(&mut self, exports: &Exports, core: &CoreContext) {
        for path in &mut self.paths {
            let is_same = |export: &&Export| {
                Some(export.id) == path.export
                    && Arc::ptr_eq(&export.file_system, &path.file_system)
            };
            path.export = exports.iter().find(is_same).map(|export| export.id);
        }
        for export in exports.iter() {
            if !self.paths.iter().any(|path| path.export == Some(export.id)) {
                self.paths.push(ExportPath::new(export, core));
            }
        }
        self.drop_ended();
    }

    fn drop_ended(&mut self) {
        self.paths.retain(|path| path.export.is_some() || !path.waiting.is_empty());
    }

    pub(super) fn begin(
        &mut self,
        context: &RequestContext<'_>,
        arguments: Arguments<'_>,
        answer: Answer<'_, '_>,
    ) {
        let visit = &context.visit;
        let Some(path) = self.paths.iter_mut().find(|path| path.export == Some(visit.export.id))
        else {
            return fail(answer, Nfsstat3::Nfs3errStale, None);
        };
        let request = match request(context, arguments, &answer) {
            Ok(request) => request,
            Err(status) => return fail(answer, status, None),
        };
        let (ticket, counters) = (answer.ticket, answer.counters);
        // Before the request starts: once it is in progress, it cannot be deferred any more.
        let answer = match path.file_system.blocks() {
            false => answer,
            true => match answer.defer() {
                Ok(owed) => Answer::owed(owed, ticket, counters),
                Err(answer) => return fail(answer, Nfsstat3::Nfs3errJukebox, None),
            },
        };
        let began = context.site.verifier(&*path.file_system);
        let started = path.data.start(&visit.caller, &visit.file, request);
        let verifiers = Verifiers { began, ended: context.site.verifier(&*path.file_system) };
        match started {
            Started::Done(done) => give(done, verifiers, answer),
            Started::Later(number) => {
                if let Ok(owed) = answer.defer() {
                    path.waiting.put(number, Pending { owed, ticket, verifiers });
                }
            }
        }
    }

    /// Answers requests that have completed. At most one of the paths performs a part of a request on the core.
    pub(super) fn poll(&mut self, site: &Site, counters: &Counters) -> Progress {
        let (mut progress, mut has_ended) = (Progress::default(), false);
        in_turns(&mut self.paths, &mut self.first, |path, may_perform| {
            let ExportPath { export, file_system, data, waiting } = path;
            let polled = data.poll(may_perform, &mut |number, done| {
                progress.events += 1;
                if let Some(Pending { owed, ticket, verifiers }) = waiting.take(number) {
                    let verifiers = Verifiers { ended: site.verifier(&**file_system), ..verifiers };
                    give(done, verifiers, Answer::owed(owed, ticket, counters));
                }
            });
            progress.events += polled.events;
            progress.is_waiting |= polled.is_waiting;
            has_ended |= export.is_none() && waiting.is_empty();
            polled.events > 0
        });
        if has_ended {
            self.drop_ended();
        }
        progress
    }
}

/// Polls each of the paths, from index `first` on. `poll` is told whether the path may perform a part of a request, and
/// returns whether it has: then no other path may, and the next time it is the last one.
fn in_turns<T>(paths: &mut [T], first: &mut usize, mut poll: impl FnMut(&mut T, bool) -> bool) {
    let (mut may_perform, from) = (true, (*first).min(paths.len()));
    let (before, after) = paths.split_at_mut(from);
    for (index, path) in (from..).zip(after).chain((0..).zip(before)) {
        if poll(path, may_perform) {
            (may_perform, *first) = (false, index + 1);
        }
    }
}

fn request<'a>(
    context: &RequestContext<'_>,
    arguments: Arguments<'a>,
    answer: &Answer<'_, '_>,
) -> Outcome<Request<WriteData<'a>>> {
    match arguments {
        Arguments::Read(Read3args { offset, count, .. }) => read(context, answer, offset, count),
        Arguments::Write(Write3args { offset, count, stable, data, .. }) => {
            let data = written(context, offset, count, data)?;
            Ok(Request::Write { offset, data, stable })
        }
        Arguments::Commit(Commit3args { offset, count, .. }) => commit(context, offset, count),
        _ => Err(Nfsstat3::Nfs3errServerfault),
    }
}

/// "If greater, the server may return only rtmax bytes, resulting in a short read" (RFC 1813
/// section 3.3.6). Requests no bytes beyond the maximum file size.
fn read(
    context: &RequestContext<'_>,
    answer: &Answer<'_, '_>,
    offset: u64,
    count: u32,
) -> Outcome<Request<WriteData<'static>>> {
    let offset = offset.min(FILE_BYTES_MAX);
    let count = count.min(context.site.options.read_bytes_max).into();
    let count = (FILE_BYTES_MAX - offset).min(count) as usize;
    let into = room(|bytes| answer.bulk(bytes), count).ok_or(Nfsstat3::Nfs3errJukebox)?;
    Ok(Request::Read { offset, into })
}

/// For a part if memory is short: clients request the rest at once, but wait for seconds after NFS3ERR_JUKEBOX.
fn room(take: impl Fn(usize) -> Option<Bulk>, bytes: usize) -> Option<Bulk> {
    let halves = std::iter::successors(Some(bytes / 2), |bytes| Some(bytes / 2));
    let mut shorter = halves.take_while(|bytes| *bytes >= SHORT_READ_BYTES_MIN);
    take(bytes).or_else(|| shorter.find_map(take))
}

/// "If greater, the server may write only wtmax bytes, resulting in a short write" (RFC 1813 section
/// 3.3.7).
fn written<'a>(
    context: &RequestContext<'_>,
    offset: u64,
    count: u32,
    data: Placed<'a>,
) -> Outcome<WriteData<'a>> {
    let mut data = match data {
        Placed::Inline(bytes) => WriteData::Inline(bytes),
        Placed::Bulk(bulk) => WriteData::Placed(bulk),
        // Never decoded from a message.
        Placed::Beside => WriteData::Inline(&[]),
    };
    if context.visit.export.options.read_only {
        return Err(Nfsstat3::Nfs3errRofs);
    }
    if data.bytes().len() != count as usize {
        return Err(Nfsstat3::Nfs3errInval);
    }
    let end = offset.checked_add(count.into());
    end.filter(|end| *end <= FILE_BYTES_MAX).ok_or(Nfsstat3::Nfs3errFbig)?;
    shorten(&mut data, context.site.options.write_bytes_max as usize);
    Ok(data)
}

fn shorten(data: &mut WriteData<'_>, most: usize) {
    match data {
        WriteData::Inline(bytes) => *bytes = bytes.get(..most).unwrap_or(bytes),
        WriteData::Placed(bulk) if bulk.len() > most => bulk.set_len(most),
        WriteData::Placed(_) => {}
    }
}

/// A range that extends beyond the largest possible file is truncated.
fn commit(
    context: &RequestContext<'_>,
    offset: u64,
    count: u32,
) -> Outcome<Request<WriteData<'static>>> {
    if context.visit.export.options.read_only {
        return Err(Nfsstat3::Nfs3errRofs);
    }
    let end = offset.checked_add(count.into()).filter(|end| *end <= FILE_BYTES_MAX);
    Ok(Request::Commit { offset: offset.min(FILE_BYTES_MAX), count: end.map_or(0, |_| count) })
}

fn give(done: Done, verifiers: Verifiers, answer: Answer<'_, '_>) {
    match done {
        Done::Read { data, is_end, attributes } => give_data(data, is_end, attributes, answer),
        Done::Written { count, committed, wcc } => {
            answer.counters.bytes_written.add(count.into());
            let results = Write3resok { file_wcc: wcc, count, committed, verf: verifiers.began };
            answer.succeed(ReplyData::new(), |to| results.encode(to));
        }
        Done::Committed { wcc } => {
            let results = Commit3resok { file_wcc: wcc, verf: verifiers.ended };
            answer.succeed(ReplyData::new(), |to| results.encode(to));
        }
        Done::Failed { status, attributes } => fail(answer, status, attributes),
    }
}

fn give_data(data: Bulk, eof: bool, attributes: PostOpAttr, answer: Answer<'_, '_>) {
    let count = data.len() as u32;
    answer.counters.bytes_read.add(count.into());
    let results = Read3resok { file_attributes: attributes, count, eof, data: Placed::Beside };
    answer.succeed(ReplyData::new().bulk(data), |to| results.encode(to));
}

fn fail(answer: Answer<'_, '_>, status: Nfsstat3, attributes: PostOpAttr) {
    match answer.ticket.operation {
        ProcedureId::Nfsproc3Read => answer.fail(status, &attributes),
        _ => answer.fail(status, &WccData { before: None, after: attributes }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spinrpc::{Engine, RawConfig};

    /// However many exports a client reads from, other calls wait for one part in each turn of the core.
    #[test]
    fn one_path_performs_a_part_in_each_turn_and_they_take_turns() {
        let (mut first, mut polled) = (0, 0);
        let mut turn = |paths: &mut [(char, u32)]| {
            let mut performed = String::new();
            in_turns(paths, &mut first, |(name, parts), may_perform| {
                polled += 1;
                let performs = may_perform && *parts > 0;
                if performs {
                    *parts -= 1;
                    performed.push(*name);
                }
                performs
            });
            performed
        };
        let mut paths = [('a', 3), ('b', 0), ('c', 2), ('d', 1)];
        let turns: Vec<String> = (0..8).map(|_| turn(&mut paths)).collect();
        assert_eq!(turns, ["a", "c", "d", "a", "c", "a", "", ""]);
        // Exports have gone: the index is beyond the rest.
        let mut rest = [('d', 1), ('e', 1)];
        assert_eq!(
            [turn(&mut [('d', 1); 4][..]), turn(&mut rest), turn(&mut rest)],
            ["d", "d", "e"]
        );
        assert_eq!(turn(&mut []), "");
        assert_eq!(polled, 8 * 4 + 4 + 2 * 2, "each path, in each turn");
    }

    #[test]
    fn no_memory_for_a_whole_read_expect_a_shorter_one_and_none_at_last() {
        let mut raw = RawConfig::default();
        (raw.cores.max, raw.mem.arena_mib) = (1, 4);
        let core = Engine::new(raw.validate().unwrap()).unwrap().core(0).unwrap();
        let context = core.context();
        let take = |bytes| context.bulk(bytes);
        let taken = || room(take, 1 << 20);
        let all: Vec<Bulk> = std::iter::from_fn(taken).collect();
        let lengths: Vec<usize> = all.iter().map(Bulk::len).collect();
        assert!(lengths.is_sorted_by(|a, b| a >= b), "{lengths:?}");
        assert_eq!((lengths[0], lengths[lengths.len() - 1]), (1 << 20, 8 << 10));
        assert!([1 << 20, 1, 0].iter().all(|bytes| room(take, *bytes).is_none()));
    }
}
