//! Generated codecs and codecs written by hand for the same messages of NFS version 3, whose instructions are counted.
//!
//! `codec_speed CASE hand|generated` runs one side of one case [`COUNTED`] times and prints nothing:
//! `engine/xdr/suite/instructions` counts its instructions with valgrind. `codec_speed --list` prints the cases.

use spinrpc_xdr::{Decode, DecodeError, Decoder, Encode, Encoder, List, Opaque, Placed, to_bytes};
use spinrpc_xdr_suite::nfs_prot::{
    Dirlistplus3, Entryplus3, Fattr3, Ftype3, Lookup3res, Lookup3resok, NfsFh3, Nfsstat3, Nfstime3,
    Read3args, Specdata3, StableHow, WccAttr, WccData, Write3args, Write3res, Write3resok,
};
use std::hint::black_box;

/// Calls of a run whose instructions are counted.
const COUNTED: u32 = 1_000;

/// Task for each case.
enum Job {
    List,
    Count { case: String, is_generated: bool },
}

fn job() -> Job {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match &words[..] {
        [list] if list == "--list" => Job::List,
        [case, side] if side == "hand" || side == "generated" => {
            Job::Count { case: case.clone(), is_generated: side == "generated" }
        }
        _ => {
            eprintln!("usage: codec_speed --list | CASE hand|generated");
            std::process::exit(2);
        }
    }
}

/// Runs `work` where valgrind counts.
#[inline(never)]
fn counted(work: &mut dyn FnMut()) {
    for _ in 0..COUNTED {
        work();
    }
}

fn main() {
    read_arguments();
    write_arguments();
    lookup();
    written();
    directory_plus();
}

fn compare(what: &str, mut by_hand: impl FnMut(), mut generated: impl FnMut()) {
    match job() {
        Job::List => println!("{what}"),
        Job::Count { case, is_generated: false } if case == what => counted(&mut by_hand),
        Job::Count { case, is_generated: true } if case == what => counted(&mut generated),
        Job::Count { .. } => {}
    }
}

/// Both ways to decode, which must take all bytes.
fn compare_decode<'a, H, G: Decode<'a>>(
    what: &str,
    bytes: &'a [u8],
    by_hand: impl Fn(&mut Decoder<'a>) -> Result<H, DecodeError>,
    used: impl Fn(G) -> u64,
) {
    compare(
        what,
        || {
            let mut from = Decoder::plain(black_box(bytes));
            let _ = black_box(by_hand(&mut from));
            let _ = black_box(from.finish());
        },
        || {
            let mut from = Decoder::plain(black_box(bytes));
            let _ = black_box(G::decode(&mut from).map(&used));
            let _ = black_box(from.finish());
        },
    );
}

fn compare_encode<T: Encode>(what: &str, value: &T, by_hand: impl Fn(&mut Encoder<'_>)) {
    let (mut one, mut other) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    let write = |room: &mut Vec<u8>, encode: &dyn Fn(&mut Encoder<'_>)| {
        let mut to = Encoder::new(room, &[]);
        encode(&mut to);
        black_box(to.finish().stream_bytes)
    };
    let bytes = write(&mut one, &by_hand);
    assert_eq!(one[..bytes], to_bytes(value), "both write the same");
    compare(
        what,
        || {
            let mut to = Encoder::new(black_box(&mut one), &[]);
            by_hand(&mut to);
            black_box(to.finish());
        },
        || {
            let mut to = Encoder::new(black_box(&mut other), &[]);
            black_box(value).encode(&mut to);
            black_box(to.finish());
        },
    );
}

fn handle() -> NfsFh3<'static> {
    NfsFh3 { data: Opaque::new(&[7; 32]).unwrap_or_default() }
}

fn read_arguments() {
    let args = Read3args { file: handle(), offset: 1 << 33, count: 4096 };
    let bytes = to_bytes(&args);
    let by_hand =
        |from: &mut Decoder<'_>| Ok((from.opaque(64)?.len() as u64, from.u64()?, from.u32()?));
    compare_decode("READ arguments, decode", &bytes, by_hand, |args: Read3args<'_>| {
        args.file.data.len() as u64 + args.offset + u64::from(args.count)
    });
    compare_encode("READ arguments, encode", &args, |to| {
        let args = black_box(&args);
        to.opaque(&args.file.data);
        to.u64(args.offset);
        to.u32(args.count);
    });
}

fn write_arguments() {
    let data = [9; 4000];
    let args = |data| Write3args {
        file: handle(),
        offset: 1 << 33,
        count: 4000,
        stable: StableHow::FileSync,
        data,
    };
    let bytes = to_bytes(&args(Placed::Inline(&data)));
    let by_hand = |from: &mut Decoder<'_>| {
        let file = from.opaque(64)?.len() as u64;
        let (offset, count, stable) = (from.u64()?, from.u32()?, from.u32()?);
        if stable > 2 {
            return Err(DecodeError::BadEnum { at: from.position(), value: stable });
        }
        let data = from.data(u32::MAX as usize)?.bytes().len() as u64;
        Ok((file, offset, count, stable, data))
    };
    compare_decode("WRITE arguments, decode", &bytes, by_hand, |args: Write3args<'_>| {
        args.file.data.len() as u64 + args.offset + args.data.bytes().len() as u64
    });
    let args = args(Placed::Inline(&data));
    compare_encode("WRITE arguments, encode", &args, |to| {
        let args = black_box(&args);
        to.opaque(&args.file.data);
        to.u64(args.offset);
        to.u32(args.count);
        to.u32(args.stable as u32);
        to.opaque(args.data.bytes());
    });
}

fn some_attributes() -> Fattr3 {
    let time = Nfstime3 { seconds: 1_700_000_000, nseconds: 5 };
    Fattr3 {
        r#type: Ftype3::Nf3reg,
        mode: 0o644,
        nlink: 1,
        uid: 1000,
        gid: 1000,
        size: 1 << 30,
        used: 1 << 30,
        rdev: Specdata3 { specdata1: 0, specdata2: 0 },
        fsid: 77,
        fileid: 1 << 40,
        atime: time,
        mtime: time,
        ctime: time,
    }
}

/// Uses every field.
fn sum(attributes: &Fattr3) -> u64 {
    let words = [attributes.mode, attributes.nlink, attributes.uid, attributes.gid];
    let times = [attributes.atime, attributes.mtime, attributes.ctime];
    let times = times.iter().map(|time| u64::from(time.seconds ^ time.nseconds)).sum::<u64>();
    let rdev = attributes.rdev.specdata1 ^ attributes.rdev.specdata2;
    words.iter().map(|word| u64::from(*word)).sum::<u64>()
        + (attributes.size ^ attributes.used ^ attributes.fsid ^ attributes.fileid)
        + times
        + u64::from(rdev)
        + attributes.r#type as u64
}

fn ok_by_hand(from: &mut Decoder<'_>) -> Result<(), DecodeError> {
    match from.u32()? {
        0 => Ok(()),
        value => Err(DecodeError::BadEnum { at: 0, value }),
    }
}

fn bare_attributes_by_hand(from: &mut Decoder<'_>) -> Result<Fattr3, DecodeError> {
    let time = |from: &mut Decoder<'_>| {
        Ok::<_, DecodeError>(Nfstime3 { seconds: from.u32()?, nseconds: from.u32()? })
    };
    let bad = |value| Err(DecodeError::BadEnum { at: 0, value });
    Ok(Fattr3 {
        r#type: match from.u32()? {
            1 => Ftype3::Nf3reg,
            2 => Ftype3::Nf3dir,
            3 => Ftype3::Nf3blk,
            4 => Ftype3::Nf3chr,
            5 => Ftype3::Nf3lnk,
            6 => Ftype3::Nf3sock,
            7 => Ftype3::Nf3fifo,
            value => return bad(value),
        },
        mode: from.u32()?,
        nlink: from.u32()?,
        uid: from.u32()?,
        gid: from.u32()?,
        size: from.u64()?,
        used: from.u64()?,
        rdev: Specdata3 { specdata1: from.u32()?, specdata2: from.u32()? },
        fsid: from.u64()?,
        fileid: from.u64()?,
        atime: time(from)?,
        mtime: time(from)?,
        ctime: time(from)?,
    })
}

fn put_attributes(to: &mut Encoder<'_>, attributes: &Fattr3) {
    to.u32(attributes.r#type as u32);
    for word in [attributes.mode, attributes.nlink, attributes.uid, attributes.gid] {
        to.u32(word);
    }
    to.u64(attributes.size);
    to.u64(attributes.used);
    to.u32(attributes.rdev.specdata1);
    to.u32(attributes.rdev.specdata2);
    to.u64(attributes.fsid);
    to.u64(attributes.fileid);
    for time in [attributes.atime, attributes.mtime, attributes.ctime] {
        to.u32(time.seconds);
        to.u32(time.nseconds);
    }
}

fn put_optional(to: &mut Encoder<'_>, attributes: Option<&Fattr3>) {
    to.bool(attributes.is_some());
    if let Some(attributes) = attributes {
        put_attributes(to, attributes);
    }
}

fn optional_by_hand(from: &mut Decoder<'_>) -> Result<Option<Fattr3>, DecodeError> {
    match from.bool()? {
        true => bare_attributes_by_hand(from).map(Some),
        false => Ok(None),
    }
}

/// The sum of attributes that may be missing.
fn sum_of(attributes: Option<&Fattr3>) -> u64 {
    attributes.map_or(0, sum)
}

fn lookup() {
    let found = Lookup3resok {
        object: handle(),
        obj_attributes: Some(some_attributes()),
        dir_attributes: Some(some_attributes()),
    };
    let result = Lookup3res::Nfs3Ok(found);
    let bytes = to_bytes(&result);
    let by_hand = |from: &mut Decoder<'_>| {
        ok_by_hand(from)?;
        let length = from.opaque(64)?.len() as u64;
        let (object, directory) = (optional_by_hand(from)?, optional_by_hand(from)?);
        Ok(length + sum_of(object.as_ref()) + sum_of(directory.as_ref()))
    };
    compare_decode("LOOKUP result, decode", &bytes, by_hand, |res: Lookup3res<'_>| match res {
        Lookup3res::Nfs3Ok(ok) => {
            let length = ok.object.data.len() as u64;
            length + sum_of(ok.obj_attributes.as_ref()) + sum_of(ok.dir_attributes.as_ref())
        }
        Lookup3res::Default(status, _) => status as u64,
    });
    compare_encode("LOOKUP result, encode", &result, |to| {
        let found = black_box(&found);
        to.u32(Nfsstat3::Nfs3Ok as u32);
        to.opaque(&found.object.data);
        put_optional(to, found.obj_attributes.as_ref());
        put_optional(to, found.dir_attributes.as_ref());
    });
}

fn written() {
    let time = Nfstime3 { seconds: 1_700_000_000, nseconds: 5 };
    let before = WccAttr { size: 1 << 30, mtime: time, ctime: time };
    let done = Write3resok {
        file_wcc: WccData { before: Some(before), after: Some(some_attributes()) },
        count: 4096,
        committed: StableHow::FileSync,
        verf: [7; 8],
    };
    let result = Write3res::Nfs3Ok(done);
    let bytes = to_bytes(&result);
    let by_hand = |from: &mut Decoder<'_>| {
        ok_by_hand(from)?;
        let size = match from.bool()? {
            true => {
                let size = from.u64()?;
                let times = [from.u32()?, from.u32()?, from.u32()?, from.u32()?];
                size + u64::from(times[0] ^ times[3])
            }
            false => 0,
        };
        let after = optional_by_hand(from)?;
        let (count, committed) = (from.u32()?, from.u32()?);
        if committed > 2 {
            return Err(DecodeError::BadEnum { at: from.position(), value: committed });
        }
        let verifier = u64::from(from.fixed(8)?[7]);
        Ok(size + sum_of(after.as_ref()) + u64::from(count) + verifier)
    };
    compare_decode("WRITE result, decode", &bytes, by_hand, |res: Write3res| match res {
        Write3res::Nfs3Ok(ok) => {
            let size = ok.file_wcc.before.map_or(0, |before| {
                before.size + u64::from(before.mtime.seconds ^ before.ctime.nseconds)
            });
            let after = sum_of(ok.file_wcc.after.as_ref());
            size + after + u64::from(ok.count) + u64::from(ok.verf[7])
        }
        Write3res::Default(status, _) => status as u64,
    });
    compare_encode("WRITE result, encode", &result, |to| {
        let done = black_box(&done);
        to.u32(Nfsstat3::Nfs3Ok as u32);
        to.bool(done.file_wcc.before.is_some());
        if let Some(before) = &done.file_wcc.before {
            to.u64(before.size);
            for time in [before.mtime, before.ctime] {
                to.u32(time.seconds);
                to.u32(time.nseconds);
            }
        }
        put_optional(to, done.file_wcc.after.as_ref());
        to.u32(done.count);
        to.u32(done.committed as u32);
        to.fixed(&done.verf);
    });
}

fn directory_plus() {
    let names: Vec<String> = (0..64).map(|number| format!("file-{number:05}.dat")).collect();
    let entry = |(index, name)| Entryplus3 {
        fileid: index as u64,
        name: Opaque::new(String::as_bytes(name)).unwrap_or_default(),
        cookie: index as u64,
        name_attributes: Some(some_attributes()),
        name_handle: Some(handle()),
    };
    let entries: Vec<Entryplus3<'_>> = names.iter().enumerate().map(entry).collect();
    let list = Dirlistplus3 { entries: List::new(&entries), eof: true };
    let bytes = to_bytes(&list);
    let by_hand = |from: &mut Decoder<'_>| {
        let mut sum = 0;
        while from.bool()? {
            sum += from.u64()? + from.opaque(1024)?.len() as u64 + from.u64()?;
            sum += sum_of(optional_by_hand(from)?.as_ref());
            if from.bool()? {
                sum += from.opaque(64)?.len() as u64;
            }
        }
        Ok(sum + u64::from(from.bool()?))
    };
    let used = |list: Dirlistplus3<'_>| {
        let each = |entry: Entryplus3<'_>| {
            let handle = entry.name_handle.map_or(0, |handle| handle.data.len() as u64);
            let names = entry.fileid + entry.name.len() as u64 + entry.cookie;
            names + sum_of(entry.name_attributes.as_ref()) + handle
        };
        list.entries.iter().map(each).sum::<u64>() + u64::from(list.eof)
    };
    compare_decode("64 entries with attributes, decode", &bytes, by_hand, used);
    compare_encode("64 entries with attributes, encode", &list, |to| {
        for entry in black_box(&entries) {
            to.bool(true);
            to.u64(entry.fileid);
            to.opaque(&entry.name);
            to.u64(entry.cookie);
            put_optional(to, entry.name_attributes.as_ref());
            to.bool(entry.name_handle.is_some());
            if let Some(handle) = &entry.name_handle {
                to.opaque(&handle.data);
            }
        }
        to.bool(false);
        to.bool(true);
    });
}
