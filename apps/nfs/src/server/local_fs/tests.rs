//! The back end on real directories, called like the service does.

mod data;
mod keys;
mod names;
mod rights;

use super::{Directory, DirectoryOptions, IoMode, KeyMode};
use crate::protocol::{Createhow3, Nfsstat3, Sattr3, StableHow};
use crate::server::caller::Caller;
use crate::server::file_system::{
    Change, DataPath, Done, FileKey, FileSystem, Found, ListFrom, Listed, NewFile, Outcome, Place,
    Request, Setting, SpecialFile, Started, WriteData,
};
use spinrpc::{Bulk, Config, CoreContext, Engine, Groups, Progress};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex, OnceLock};
use std::thread;

static ROOT: LazyLock<Caller> = LazyLock::new(|| user(0));

/// An exported directory; removed after the test.
struct Export {
    path: PathBuf,
    options: DirectoryOptions,
    directory: Arc<Directory>,
}

impl Export {
    fn new() -> Self {
        Self::with(DirectoryOptions::default())
    }

    fn with(options: DirectoryOptions) -> Self {
        Self::at(fresh_path(), options)
    }

    fn at(path: PathBuf, options: DirectoryOptions) -> Self {
        fs::create_dir(&path).unwrap();
        let directory = Directory::open(&path, &options).unwrap();
        Self { path, options, directory }
    }

    /// Reopens the same directory, like a restarted server.
    fn restart(&mut self) {
        self.directory = Directory::open(&self.path, &self.options).unwrap();
    }

    fn root(&self) -> FileKey {
        self.directory.root()
    }

    fn local(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    fn lookup(&self, directory: &FileKey, name: &str) -> Outcome<Found> {
        self.directory.lookup(&ROOT, at(directory, name))
    }

    /// The key of a file in the root.
    fn key(&self, name: &str) -> FileKey {
        self.lookup(&self.root(), name).unwrap().key
    }

    fn make(&self, caller: &Caller, name: &str, new: NewFile<'_>) -> Outcome<Found> {
        self.directory.make(by(caller, &mut Default::default()), at(&self.root(), name), new)
    }

    fn create_as(&self, caller: &Caller, name: &str, how: &Createhow3) -> Outcome<Found> {
        self.make(caller, name, NewFile::Regular(how))
    }

    fn create(&self, name: &str) -> FileKey {
        self.create_as(&ROOT, name, &Createhow3::Guarded(with_mode(0o644))).unwrap().key
    }

    fn make_directory(&self, name: &str) -> FileKey {
        self.make(&ROOT, name, NewFile::Directory(&with_mode(0o755))).unwrap().key
    }

    fn remove(&self, name: &str) -> Outcome<()> {
        self.directory.unlink(by(&ROOT, &mut Default::default()), at(&self.root(), name), false)
    }

    fn rename(&self, from: Place<'_>, to: Place<'_>) -> Outcome<()> {
        self.directory.rename(by(&ROOT, &mut Default::default()), from, to)
    }

    fn set(&self, caller: &Caller, file: &FileKey, new: &Sattr3) -> Outcome<()> {
        let to = Setting { new, guard: None };
        self.directory.setattr(by(caller, &mut Default::default()), file, to)
    }

    fn names(&self) -> Outcome<(Vec<String>, Listed)> {
        let mut names = Vec::new();
        let listed = self.directory.list(&ROOT, &beginning(self.root(), false), &mut |entry| {
            names.push(String::from_utf8_lossy(entry.name).into_owned());
            true
        })?;
        Ok((names, listed))
    }

    fn data(&self) -> Data {
        Data { path: Arc::clone(&self.directory).data_path(&context()) }
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.path).unwrap();
    }
}

fn beginning(directory: FileKey, with_files: bool) -> ListFrom {
    ListFrom { directory, cookie: 0, verifier: [0; 8], with_files }
}

/// A blocking data path of one core.
struct Data {
    path: Box<dyn DataPath>,
}

impl Data {
    fn run(&mut self, caller: &Caller, file: &FileKey, request: Request<WriteData<'_>>) -> Done {
        match self.path.start(caller, file, request) {
            Started::Done(done) => done,
            Started::Later(number) => self.wait(number),
        }
    }

    fn wait(&mut self, number: u32) -> Done {
        let mut found = None;
        while found.is_none() {
            self.path.poll(true, &mut |ended, done| {
                assert_eq!(ended, number, "one request at a time");
                found = Some(done);
            });
            thread::yield_now();
        }
        found.unwrap()
    }

    /// Returns the number of parts that the polls have read.
    fn wait_for_all(&mut self, mut done: impl FnMut(u32, Done)) -> usize {
        let mut events = 0;
        loop {
            let polled = self.path.poll(true, &mut done);
            events += polled.events;
            if !polled.is_waiting {
                return events;
            }
            thread::yield_now();
        }
    }

    fn write_as(
        &mut self,
        caller: &Caller,
        file: &FileKey,
        (offset, bytes): (u64, &[u8]),
        stable: StableHow,
    ) -> Outcome<u32> {
        let data = WriteData::Inline(bytes);
        match self.run(caller, file, Request::Write { offset, data, stable }) {
            Done::Written { count, committed, .. } => {
                assert_eq!(committed, stable);
                Ok(count)
            }
            Done::Failed { status, .. } => Err(status),
            other => panic!("{other:?}"),
        }
    }

    fn read_as(
        &mut self,
        caller: &Caller,
        file: &FileKey,
        (offset, count): (u64, usize),
    ) -> Outcome<(Vec<u8>, bool)> {
        let into = Bulk::from_vec(vec![0xee; count]);
        match self.run(caller, file, Request::Read { offset, into }) {
            Done::Read { data, is_end, attributes } => {
                assert!(attributes.is_some());
                Ok((data.bytes().to_vec(), is_end))
            }
            Done::Failed { status, .. } => Err(status),
            other => panic!("{other:?}"),
        }
    }

    fn commit(&mut self, file: &FileKey) -> Outcome<()> {
        match self.run(&ROOT, file, Request::Commit { offset: 0, count: 0 }) {
            Done::Committed { .. } => Ok(()),
            Done::Failed { status, .. } => Err(status),
            other => panic!("{other:?}"),
        }
    }
}

fn at<'a>(directory: &'a FileKey, name: &'a str) -> Place<'a> {
    Place { directory, name: name.as_bytes() }
}

fn by<'a, W>(caller: &'a Caller, wcc: &'a mut W) -> Change<'a, W> {
    Change { caller, wcc }
}

fn user(uid: u32) -> Caller {
    Caller { uid, gid: uid, groups: Groups::default().into() }
}

fn with_mode(mode: u32) -> Sattr3 {
    Sattr3 { mode: Some(mode), ..Sattr3::default() }
}

fn status<T: std::fmt::Debug>(outcome: Outcome<T>) -> Nfsstat3 {
    outcome.expect_err("a failure")
}

fn fresh_path() -> PathBuf {
    let path = std::env::temp_dir().join(fresh_name());
    let _ = fs::remove_dir_all(&path); // of a killed run with the same process id
    path
}

fn fresh_name() -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    format!("spin-nfsd-directory-{}-{number}", std::process::id())
}

/// Memory of an otherwise idle core.
fn context() -> CoreContext {
    static CONTEXT: OnceLock<Mutex<CoreContext>> = OnceLock::new();
    let make = || {
        let made =
            thread::spawn(|| Engine::new(Config::default()).unwrap().core(0).unwrap().context());
        Mutex::new(made.join().unwrap())
    };
    spinrpc::sync::lock(CONTEXT.get_or_init(make)).clone()
}

/// Returns whether this process has its own mount namespace. If not, runs the test again in one that has, as far as this
/// host allows that.
fn is_in_a_namespace(test: &str) -> bool {
    const IN_A_NAMESPACE: &str = "SPIN_NFSD_TEST_IN_A_NAMESPACE";
    if std::env::var_os(IN_A_NAMESPACE).is_some() {
        return true;
    }
    let (_, module) = module_path!().split_once("::").unwrap();
    let mut command = std::process::Command::new("unshare");
    command.args(["--mount", "--"]).arg(std::env::current_exe().unwrap());
    command.args(["--exact", "--nocapture"]).arg(format!("{module}::{test}"));
    let output = is_root().then(|| command.env(IN_A_NAMESPACE, "1").output().ok()).flatten();
    let said = output.as_ref().map(|output| String::from_utf8_lossy(&output.stdout));
    match said {
        // A container may deny namespaces.
        Some(said) if said.contains("running 1 test") => {
            assert!(said.contains("1 passed"), "{output:?}");
        }
        _ => eprintln!("not tested, as it takes root, and unshare(1): {output:?}"),
    }
    false
}

/// For tests that only root can run.
fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn inode(path: &Path) -> u64 {
    std::os::unix::fs::MetadataExt::ino(&fs::symlink_metadata(path).unwrap())
}
