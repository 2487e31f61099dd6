//! Sessions for any thread with a server that answers what it must not.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test ends here")]

use rustix::event::{PollFd, PollFlags, poll};
use spinrpc::config::{IdlePolicy, RawConfig, Want};
use spinrpc::{Answer, AnswerQueue, Bulk, Call, ConnectOptions, Encoder, Engine, Procedure, Token};
use spinrpc_nfs::client::{Error, MountBy, NfsHandle, Options, Read, Target, Written};
use spinrpc_nfs::mount3::{self, MNT, Mounted, Mountstat3};
use spinrpc_nfs::nfs3;
use spinrpc_nfs::protocol::{FileHandle, Ftype3, Nfsstat3, ProcedureId, StableHow};
use std::os::fd::AsFd;

const ASKED: usize = 10;
const BYTES_MAX: u32 = 4096;

fn engine() -> Engine {
    let mut raw = RawConfig::default();
    raw.cores.max = 1;
    raw.poll.mode = IdlePolicy::Sleep;
    raw.mem.arena_mib = 8;
    (raw.mem.lock, raw.mem.hugepages) = (Want::Off, Want::Off);
    Engine::new(raw.validate().unwrap()).unwrap()
}

fn words(to: &mut Encoder<'_>, words: &[u32]) {
    words.iter().for_each(|word| to.u32(*word));
}

fn mount(mut call: Call<'_>) {
    let mounted = Mounted { handle: FileHandle::new(&[1]).unwrap(), flavors: Vec::new() };
    match call.procedure() {
        MNT if call.args().opaque(1024).unwrap() != b"/export" => {
            call.reply(|to| to.u32(Mountstat3::Mnt3errNoent as u32));
        }
        MNT => call.reply(|to| {
            to.u32(0);
            mounted.encode(to);
        }),
        // No exports.
        _ => call.reply(|to| to.u32(0)),
    }
}

fn attributes(kind: Ftype3, to: &mut Encoder<'_>) {
    words(to, &[kind as u32]);
    words(to, &[0; 20]);
}

/// The offset of a READ or WRITE says how it is answered, and the first letter of a name what it is: a file, a link, or else
/// a directory.
fn nfs(mut call: Call<'_>) {
    let Procedure(number) = call.procedure();
    let mut args = call.args();
    // NULL has none.
    let kind = match args.opaque(64).unwrap_or_default().first() {
        Some(b'f') => Ftype3::Nf3reg,
        Some(b'l') => Ftype3::Nf3lnk,
        _ => Ftype3::Nf3dir,
    };
    match ProcedureId::new(number).unwrap() {
        ProcedureId::Nfsproc3Fsinfo => call.reply(|to| {
            words(to, &[0, 0, BYTES_MAX, 0, 0, BYTES_MAX, 0, 0, 0, 0, 0, 0, 0, 0]);
        }),
        ProcedureId::Nfsproc3Getattr => call.reply(|to| {
            words(to, &[0]);
            attributes(kind, to);
        }),
        ProcedureId::Nfsproc3Lookup => {
            let found = args.opaque(64).unwrap()[0];
            call.reply(|to| {
                words(to, &[0]);
                to.opaque(&[found]);
                words(to, &[0, 0]);
            });
        }
        ProcedureId::Nfsproc3Create => {
            let made = args.opaque(64).unwrap()[0];
            call.reply(|to| {
                words(to, &[0, 1]);
                to.opaque(&[made]);
                words(to, &[0, 0, 0]);
            });
        }
        ProcedureId::Nfsproc3Read => {
            let offset = args.u64().unwrap();
            call.reply(|to| read(offset, to));
        }
        ProcedureId::Nfsproc3Write => {
            let offset = args.u64().unwrap();
            call.reply(|to| words(to, &[0, 0, 0, offset as u32, 0, 7, 7]));
        }
        _ => call.reply(|_| {}),
    }
}

fn read(offset: u64, to: &mut Encoder<'_>) {
    let (count, is_end, data) = match offset {
        1 => (3, 0, &b"abc"[..]),
        2 => (4, 0, &b"abc"[..]),
        3 => (11, 1, &b"more than t"[..]),
        4 => (0, 0, &b""[..]),
        5 => (0, 1, &b""[..]),
        6 => return words(to, &[Nfsstat3::Nfs3errStale as u32, 0]),
        _ => return,
    };
    words(to, &[0, 0, count, is_end]);
    to.opaque(data);
}

fn next(queue: &AnswerQueue) -> Answer {
    loop {
        if let Some((_, answer)) = queue.next() {
            return answer.unwrap();
        }
        if queue.arm() {
            poll(&mut [PollFd::new(&queue.as_fd(), PollFlags::IN)], None).unwrap();
        }
    }
}

/// The bytes, and whether the file ends behind them.
fn outcome(read: Result<Read, Error>) -> Result<(Vec<u8>, bool), u8> {
    let read = read.map_err(|error| error.exit_code())?;
    Ok((read.data.bytes().to_vec(), read.is_end))
}

#[test]
fn answers_that_cannot_be_right_are_refused() {
    let address = format!("shm:nfs-handle-{}", std::process::id());
    let (server, client) = (engine(), engine());
    server.serve(nfs3::PROGRAM, nfs3::VERSION, |_| nfs).unwrap();
    server.serve(mount3::PROGRAM, mount3::VERSION, |_| mount).unwrap();
    server.listen(&address).unwrap();
    let running = [server.start().unwrap(), client.start().unwrap()];
    let target = Target::parse(&format!("{address}//export/below")).unwrap();
    let (connect, options) = (ConnectOptions::new(), Options::default());
    let no_directory = Target::parse(&format!("{address}//export/file")).unwrap();
    let refused =
        NfsHandle::mount((&client, 0), &no_directory, MountBy::Auto, connect.clone(), &options);
    let refused = refused.err().map(|error| error.to_string()).unwrap();
    assert!(refused.contains("/export/file") && refused.contains("NFS3ERR_NOTDIR"), "{refused}");
    let mounted = NfsHandle::mount((&client, 0), &target, MountBy::Auto, connect, &options);
    let (nfs, mount) = mounted.unwrap();
    for (name, status) in [("directory", "NFS3ERR_ISDIR"), ("link", "NFS3ERR_EXIST")] {
        let refused = nfs.open(name, Some((0o600, None))).unwrap_err().to_string();
        assert!(refused.contains(name) && refused.contains(status), "{refused}");
    }
    assert_eq!(nfs.bytes_max(), (BYTES_MAX, BYTES_MAX));
    let file = nfs.open("file", Some((0o600, None))).unwrap();
    let queue = AnswerQueue::new(1).unwrap();
    let answer = (&queue, Token(0));

    let read = |offset| {
        nfs.read(&file, offset, Bulk::from_vec(vec![0; ASKED]), answer).unwrap();
        outcome(Read::of(next(&queue), ASKED as u32))
    };
    assert_eq!(read(1), Ok((b"abc".to_vec(), false)));
    assert_eq!(read(5), Ok((Vec::new(), true)));
    assert_eq!(read(6), Err(4), "the status of the server");
    for wrong in [2, 3, 4, 7] {
        assert_eq!(read(wrong), Err(6), "{wrong}");
    }
    let write = |count| {
        let data = Bulk::from_vec(vec![0; ASKED]);
        nfs.write(&file, count, data, StableHow::Unstable, answer).unwrap();
        file.written(next(&queue), ASKED as u32).map_err(|error| error.exit_code())
    };
    assert_eq!(write(4), Ok(Written { bytes: 4, is_stable: false }));
    assert_eq!([write(0), write(11)], [Err(6); 2]);
    nfs.commit(&file, answer).unwrap();
    assert_eq!(file.committed(next(&queue)).map_err(|error| error.exit_code()), Err(6));

    mount.end().unwrap();
    drop(nfs);
    for (engine, running) in [server, client].iter().zip(running) {
        engine.shutdown();
        running.join().unwrap();
    }
}
