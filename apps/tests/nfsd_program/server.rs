//! The program in its own process, with a directory to serve and one for its state.

#[allow(unused_imports, reason = "the tests of Kerberos use a part of it")]
pub(crate) use crate::common::{self, SPIN_NFS as CLIENT, answer, refused, spin_nfs};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_spin-nfsd");

/// Far longer than any step of a test takes, even on a loaded machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(150);

/// Directories of one test, initially empty.
pub(crate) struct Place {
    pub(crate) root: PathBuf,
    name: &'static str,
}

impl Place {
    pub(crate) fn new(name: &'static str) -> Self {
        let root = std::env::temp_dir().join(format!("spin-nfsd-{name}-{}", std::process::id()));
        drop(fs::remove_dir_all(&root));
        fs::create_dir_all(root.join("data")).unwrap();
        // As root, the server acts as nobody for others, who must be able to write there.
        fs::set_permissions(root.join("data"), fs::Permissions::from_mode(0o777)).unwrap();
        Self { root, name }
    }

    /// The served directory.
    pub(crate) fn data(&self) -> PathBuf {
        self.root.join("data")
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.root.join(name).display().to_string()
    }

    pub(crate) fn address(&self) -> String {
        format!("shm:nfsd-{}-{}", self.name, std::process::id())
    }

    /// `--export` of the directory, for this user over shared memory, with more options.
    pub(crate) fn export(&self, options: &str) -> String {
        format!("--export={}:client=local{options}", self.data().display())
    }

    /// The command line of a server here.
    pub(crate) fn command(&self, options: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command.args(["--listen", &self.address()]);
        for usual in [&format!("--state={}", self.path("state"))[..], "--register=no"] {
            let (name, _) = usual.split_once('=').unwrap_or_default();
            if !options.iter().any(|option| option.starts_with(name)) {
                command.arg(usual);
            }
        }
        command.args(options);
        command
    }

    /// A server, as soon as it listens.
    pub(crate) fn serve(&self, options: &[&str]) -> Server {
        Server::start(&mut self.command(options))
    }

    /// A path below the directory, as a target for spin-nfs.
    pub(crate) fn target(&self, path: &str) -> String {
        format!("{}/{}{path}", self.address(), self.data().display())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.root));
    }
}

/// The process; killed on drop.
pub(crate) struct Server {
    process: Child,
    out: BufReader<ChildStdout>,
    /// Lines printed at startup.
    pub(crate) said: Vec<String>,
}

impl Server {
    pub(crate) fn start(command: &mut Command) -> Self {
        Self::try_start(command).expect("it listens")
    }

    pub(crate) fn try_start(command: &mut Command) -> Option<Self> {
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(process.stdout.take().unwrap());
        let mut server = Self { process, out, said: Vec::new() };
        while !server.said.last().is_some_and(|line| line.starts_with("listening on ")) {
            let line = server.next_line()?;
            server.said.push(line);
        }
        Some(server)
    }

    /// The next line that it prints.
    pub(crate) fn line(&mut self) -> String {
        self.next_line().expect("it goes on")
    }

    fn next_line(&mut self) -> Option<String> {
        let mut line = String::new();
        let bytes = self.out.read_line(&mut line).unwrap();
        (bytes > 0).then(|| line.trim_end().to_owned())
    }

    /// Leaves its standard output without a reader.
    pub(crate) fn close_output(&mut self) {
        let empty = fs::File::open("/dev/null").unwrap();
        self.out = BufReader::new(OwnedFd::from(empty).into());
    }

    /// TCP address of MOUNT.
    pub(crate) fn mount_address(&self) -> SocketAddr {
        let line = self.said.iter().find_map(|line| line.strip_prefix("mount by tcp at "));
        line.unwrap().parse().unwrap()
    }

    /// Process id.
    #[allow(dead_code, reason = "for the tests of Kerberos")]
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }

    /// The exit code, if it was not killed, and the remaining output.
    pub(crate) fn end_by(mut self, signal: Signal) -> (Option<i32>, String) {
        self.signal(signal);
        self.ended()
    }

    pub(crate) fn ended(&mut self) -> (Option<i32>, String) {
        let code = in_time(|| self.process.try_wait().unwrap()).code();
        let mut rest = String::new();
        self.out.read_to_string(&mut rest).unwrap();
        (code, rest)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// Repeats `look` until it finds something.
#[track_caller]
pub(crate) fn in_time<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "waited {PATIENCE:?}");
        thread::yield_now();
    }
}

/// Output of spin-nfs getattr for a path.
pub(crate) fn attributes(target: &str) -> serde_json::Value {
    serde_json::from_slice(&answer(&["getattr", "--json", target])).unwrap()
}

/// The handle of a path, in hexadecimal.
pub(crate) fn handle(target: &str) -> String {
    attributes(target)["handle"].as_str().unwrap_or_default().to_owned()
}

/// A running spin-nfs; the receiver gets its output.
pub(crate) fn in_background(arguments: &[&str]) -> mpsc::Receiver<Output> {
    let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
    let (done, result) = mpsc::channel();
    thread::spawn(move || {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        drop(done.send(spin_nfs(&arguments)));
    });
    result
}

/// A file whose words are all different.
pub(crate) fn file(path: &Path, bytes: usize) -> Vec<u8> {
    let content = common::content(bytes);
    fs::write(path, &content).unwrap();
    content
}
