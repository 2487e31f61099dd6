//! C programs against each other and against Rust: servers and clients in processes of their own.
//!
//! SPINRPC_CAPI_CC names the compiler (`cc` if unset), SPINRPC_CAPI_CFLAGS adds options of the compiler, and
//! SPINRPC_CAPI_RUN has the programs run under another one, as `valgrind`. All programs end by themselves, in any
//! case after five minutes.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test ends here")]

mod rust_server;

use rust_server::nfs::serve_nfs;
use rust_server::{DATA_MAX, ECHO, LATER, PROGRAM, QUIT, REVERSE, SUM, VERSION, config};
use spinrpc::{CallSpec, Data, Engine, Procedure, blocking};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::{env, fs};

fn crate_path(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(file)
}

/// Cargo builds it with the tests, in the same folder.
fn static_library() -> PathBuf {
    let folder = env::current_exe().unwrap().parent().unwrap().to_owned();
    let library = folder.join("libspinrpc_capi.a");
    assert!(library.exists(), "{} is missing", library.display());
    library
}

/// Libraries that the static one needs, by what it was built with, as for `install`.
fn private_libraries() -> Vec<&'static str> {
    let uses = |name: &str| {
        let mut grep = Command::new("grep");
        grep.args(["-aqF", name])
            .arg(static_library())
            .env("LC_ALL", "C")
            .status()
            .unwrap()
            .success()
    };
    let mut libraries = Vec::new();
    if cfg!(feature = "verbs") {
        libraries.extend(["-libverbs", "-lrdmacm"]);
    }
    if uses("gss_krb5_export_lucid_sec_context") {
        libraries.extend(["-lgssapi_krb5", "-lkrb5"]);
    }
    libraries.extend(["-lpthread", "-ldl", "-lm"]);
    libraries
}

fn words(variable: &str) -> Vec<String> {
    env::var(variable).unwrap_or_default().split_whitespace().map(str::to_owned).collect()
}

fn compile(source: &Path, test: &str) -> PathBuf {
    let stem = source.file_stem().unwrap().to_str().unwrap();
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}-{stem}"));
    let mut compiler =
        Command::new(env::var("SPINRPC_CAPI_CC").unwrap_or_else(|_| "cc".to_owned()));
    compiler.args(["-std=c11", "-pedantic", "-Wall", "-Wextra", "-Werror", "-g"]);
    compiler.args(words("SPINRPC_CAPI_CFLAGS"));
    compiler.arg("-I").arg(crate_path("include")).arg(source).arg("-o").arg(&program);
    // Debug information of the library would take a hundred megabytes for each program, but says where it leaks.
    compiler.arg(static_library()).arg("-Wl,--gc-sections").args(private_libraries());
    let output = compiler.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

fn c_program(name: &str, test: &str) -> PathBuf {
    compile(&crate_path("tests/c").join(name).with_extension("c"), test)
}

fn command(program: &Path) -> Command {
    let mut runner = words("SPINRPC_CAPI_RUN").into_iter();
    match runner.next() {
        None => Command::new(program),
        Some(first) => {
            let mut command = Command::new(first);
            command.args(runner).arg(program);
            command
        }
    }
}

fn address(test: &str) -> String {
    format!("shm:capi-{test}-{}", std::process::id())
}

/// A server in a process of its own, which is killed if the test fails.
struct Server(Child);

impl Server {
    fn start(program: &Path, arguments: &[&str]) -> Self {
        let mut command = command(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut server = Self(command.spawn().unwrap());
        let mut line = String::new();
        BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        server
    }

    /// Waits until it ends; it is told to by a call, or by the end of its input.
    fn wait(mut self) -> ExitStatus {
        self.0.wait().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Fails if it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_c_client_calls_a_c_server() {
    let (test, address) = ("both", address("both"));
    let server = Server::start(&c_program("server", test), &[&address]);
    let client = command(&c_program("client", test)).args([&address, "quit"]).status().unwrap();
    assert!(client.success(), "{client}");
    assert!(server.wait().success());
}

#[test]
fn a_c_client_calls_a_rust_server() {
    let address = address("client");
    let engine = Engine::new(config()).unwrap();
    rust_server::serve(&engine);
    engine.listen(&address).unwrap();
    let running = engine.start().unwrap();
    let client = command(&c_program("client", "client")).arg(&address).status().unwrap();
    engine.shutdown();
    running.join().unwrap();
    assert!(client.success(), "{client}");
}

#[test]
fn a_rust_client_calls_a_c_server() {
    let address = address("server");
    let server = Server::start(&c_program("server", "server"), &[&address]);
    let mut client = blocking::Client::connect_with(config(), &address, PROGRAM, VERSION).unwrap();
    let echoed = client.call(ECHO, |to| to.opaque(b"hello"), |from| from.opaque(8).map(Vec::from));
    assert_eq!(echoed.unwrap(), b"hello");
    let add = |to: &mut spinrpc::Encoder<'_>| {
        to.u32(u32::MAX);
        to.u64(1);
    };
    assert_eq!(client.call(SUM, add, |from| from.u64()).unwrap(), 1 << 32);
    assert_eq!(client.call(LATER, |to| to.u32(41), |from| from.u32()).unwrap(), 42);
    let error = client.call(SUM, |to| to.u32(1), |from| from.u64()).unwrap_err();
    assert!(error.to_string().contains("GarbageArgs"), "{error}");
    let error = client.call(Procedure(99), |_| {}, |_| Ok(())).unwrap_err();
    assert!(error.to_string().contains("ProcUnavail"), "{error}");
    for length in [3, DATA_MAX] {
        place(&mut client, length);
    }
    client.call(QUIT, |_| {}, |_| Ok(())).unwrap();
    drop(client);
    assert!(server.wait().success());
}

fn place(client: &mut blocking::Client, length: usize) {
    let mut sent = client.bulk(length).unwrap();
    for (at, byte) in sent.bytes_mut().iter_mut().enumerate() {
        *byte = (at % 251) as u8;
    }
    let expected: Vec<u8> = sent.bytes().iter().rev().copied().collect();
    let mut spec = CallSpec::new().argument(sent).result_into(client.bulk(length).unwrap());
    let (count, is_placed, data) = client
        .call_with(
            REVERSE,
            &mut spec,
            |to| to.bulk(),
            |from| {
                let count = from.u32()?;
                let data = from.data(DATA_MAX)?;
                Ok((count, matches!(data, Data::Bulk(_)), data.bytes().to_vec()))
            },
        )
        .unwrap();
    assert_eq!(count as usize, length);
    assert!(is_placed, "the data came in the message");
    assert!(data == expected, "other data");
}

/// Files of a directory: written, committed, read, lost with a restart of the server, and gone.
#[test]
fn a_c_client_uses_files_of_an_nfs_server() {
    let address = address("nfs");
    let folder = env::temp_dir().join(format!("capi-nfs-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    let mut server = serve_nfs(&folder, &address);
    let mut client = command(&c_program("nfs", "nfs"));
    client.arg(format!("{address}//data")).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut client = Server(client.spawn().unwrap());
    let (mut input, output) = (client.0.stdin.take().unwrap(), client.0.stdout.take().unwrap());
    let mut asked = Vec::new();
    for line in BufReader::new(output).lines().map(Result::unwrap) {
        match &*line {
            "restart" => {
                server.end();
                server = serve_nfs(&folder, &address);
            }
            _ => fs::remove_file(folder.join("data")).unwrap(),
        }
        input.write_all(b"\n").unwrap();
        asked.push(line);
    }
    let status = client.wait();
    server.end();
    fs::remove_dir_all(&folder).unwrap();
    assert!(status.success(), "{status}");
    assert_eq!(asked, ["restart", "remove"]);
}

/// Writes the program of the README.
fn hello(name: &str) -> PathBuf {
    let readme = fs::read_to_string(crate_path("README.md")).unwrap();
    let code = readme.split("```c\n").nth(1).unwrap().split("```").next().unwrap();
    let source = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::write(&source, code).unwrap();
    source
}

/// Options of the compiler: what pkg-config says, or where that is missing, what it should.
fn pkg_config(prefix: &Path) -> Vec<String> {
    if Command::new("pkg-config").arg("--version").output().is_err() {
        println!("NOT TESTED: the file for pkg-config, which is missing");
        let at = |option, folder| format!("{option}{}", prefix.join(folder).display());
        return vec![at("-I", "include"), at("-L", "lib"), "-lspinrpc".to_owned()];
    }
    let mut command = Command::new("pkg-config");
    command.args(["--cflags", "--libs", "spinrpc"]);
    let output = command.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().split_whitespace().map(str::to_owned).collect()
}

/// As `install` leaves them: compiled against by what pkg-config says, and loaded by the name that the library has.
#[test]
fn what_is_installed_is_found_by_pkg_config_and_by_the_loader() {
    let prefix = Path::new(env!("CARGO_TARGET_TMPDIR")).join("installed");
    let _ = fs::remove_dir_all(&prefix);
    let built = static_library().parent().unwrap().to_owned();
    let status = Command::new(crate_path("install")).args([&prefix, &built]).status().unwrap();
    assert!(status.success(), "{status}");
    let program = prefix.join("hello");
    let mut compiler =
        Command::new(env::var("SPINRPC_CAPI_CC").unwrap_or_else(|_| "cc".to_owned()));
    compiler.args(["-std=c11", "-Wall", "-Wextra", "-Werror"]).arg(hello("installed.c"));
    let output = compiler.arg("-o").arg(&program).args(pkg_config(&prefix)).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // The name for the linker is not needed any more.
    fs::remove_file(prefix.join("lib/libspinrpc.so")).unwrap();
    let mut run = Command::new(&program);
    let output = run.env("LD_LIBRARY_PATH", prefix.join("lib")).output().unwrap();
    let usage = "usage: hello serve ADDRESS | hello call ADDRESS NAME\n";
    assert_eq!(String::from_utf8_lossy(&output.stderr), usage, "{output:?}");
    let other = Command::new(crate_path("install")).args([&prefix, &prefix]).output().unwrap();
    assert!(!other.status.success() && !other.stderr.is_empty());
}

/// The program of the README, in both of its roles.
#[test]
fn the_example_of_the_readme_works() {
    let source = hello("hello.c");
    let (program, address) = (compile(&source, "readme"), address("readme"));
    let mut server = Server::start(&program, &["serve", &address]);
    let call = command(&program).args(["call", &address, "world"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&call.stdout), "hello, world\n", "{call:?}");
    assert!(call.status.success());
    drop(server.0.stdin.take());
    assert!(server.wait().success());
}
