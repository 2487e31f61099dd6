//! Exports that are replaced while clients use them, and the log of what clients do.

use crate::clients::metrics;
use crate::common::fails;
use crate::server::{CLIENT, PROGRAM, Place, Server, answer, file, in_time, refused};
use rustix::process::Signal;
use std::fs::{self, File};
use std::io::{self, Write};
use std::process::{Command, Output, Stdio};
use std::thread;

/// A server whose exports are in a file, and whose log is in another one.
struct Reloadable {
    place: Place,
    server: Server,
}

impl Reloadable {
    fn start(name: &'static str, exports: &str) -> Self {
        let place = Place::new(name);
        write(&place, exports);
        let mut command = place.command(&["--config", &place.path("nfsd.toml")]);
        command.stderr(File::create(place.path("log")).unwrap()).env_remove("RUST_LOG");
        let server = Server::start(&mut command);
        Self { place, server }
    }

    fn reload(&self) -> Output {
        let state = format!("--state={}", self.place.path("state"));
        Command::new(PROGRAM).args(["reload", &state]).output().unwrap()
    }

    /// Waits until these words are in the log.
    fn logged(&self, words: &str) {
        let has = || {
            let log = fs::read_to_string(self.place.path("log")).unwrap();
            log.contains(words).then_some(())
        };
        in_time(has);
    }

    fn target(&self, path: &str) -> String {
        format!("{}/{path}", self.place.address())
    }
}

fn write(place: &Place, exports: &str) {
    fs::write(place.path("nfsd.toml"), exports).unwrap();
}

const A: &str = "[[memory]]\nname = \"a\"\nclient = \"local\"\n";
const B: &str = "[[memory]]\nname = \"b\"\nclient = \"local\"\n";

fn data(place: &Place) -> String {
    format!(
        "[[export]]\ndirectory = \"{}\"\npath = \"/data\"\nclient = \"local\"\n",
        place.data().display()
    )
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn exports_come_go_and_change_and_what_stays_keeps_its_files() {
    let it = Reloadable::start("reload", &[A, B].concat());
    let source = it.place.path("source");
    let content = file(source.as_ref(), 100_000);
    for name in ["a", "b"] {
        answer(&["put", &it.target(&format!("/{name}/file")), &source]);
    }
    fs::write(it.place.data().join("file"), &content).unwrap();
    write(&it.place, &[A.replace("client", "ro = true\nclient"), data(&it.place)].concat());
    let output = it.reload();
    let said = text(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    // No longer shown, and not as a part of others: a sum of these would fall when it comes back.
    let metrics = metrics(&it.server);
    let calls = metrics.iter().find(|metric| metric["name"] == "nfs_export").unwrap();
    let paths = calls["series"].as_array().unwrap().iter().map(|one| &one["values"][0]);
    assert!(paths.eq(["/a"]), "{calls}");
    assert_eq!(said, "export /data is new\nexport /a has changed\nexport /b is gone\n");
    // The tree in memory is the same one, now read-only, and the first directory has its threads.
    assert_eq!(answer(&["cat", &it.target("/a/file")]), content);
    assert!(refused(&["put", &it.target("/a/file"), &source]).1.contains("NFS3ERR_ROFS"));
    assert_eq!(answer(&["cat", &it.target("/data/file")]), content);
    assert_eq!(refused(&["ls", &it.target("/b")]).0, Some(4));
    // By the signal it is the same.
    write(&it.place, A);
    it.server.signal(Signal::HUP);
    it.logged("reloaded: export /data is gone");
    answer(&["put", &it.target("/a/file"), &source]);
    assert_eq!(it.server.end_by(Signal::TERM).0, Some(0));
}

/// The thread that reloads keeps off the CPUs of the cores, and may not see them any more.
#[test]
fn a_server_on_cpus_of_its_choice_reloads() {
    let cpu = spinrpc::config::Host::current().allowed[0];
    let it = Reloadable::start("reload-cores", &format!("cores = \"{cpu}\"\n{A}"));
    let output = it.reload();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(text(&output.stdout), "no export has changed\n");
    assert_eq!(it.server.end_by(Signal::TERM).0, Some(0));
}

/// Reload all the time during a transfer, whose last bytes come after the last reload.
#[test]
fn a_client_keeps_its_connection_and_its_transfer_over_reloads() {
    let place = Place::new("reload-load-data");
    let it = Reloadable::start("reload-load", &data(&place));
    let reload = |further: &str| {
        write(&it.place, &[&data(&place), further].concat());
        assert!(it.reload().status.success());
        Ok::<_, io::Error>(())
    };
    // The log has all that happened before a reload once it has that.
    let connections = |mark: &str| {
        reload(&A.replace("\"a\"", &format!("\"{mark}\""))).unwrap();
        it.logged(&format!("export /{mark} is new"));
        let log = fs::read_to_string(it.place.path("log")).unwrap();
        log.lines().filter(|line| line.contains("a connection is open")).count()
    };
    let source = it.place.path("source");
    file(source.as_ref(), 10);
    answer(&["put", &it.target("/data/small"), &source]);
    let of_one = connections("first");
    let content = file(source.as_ref(), 32 << 20);
    let (most, last) = content.split_at(content.len() - 10);
    let mut put = Command::new(CLIENT);
    put.args(["put", &it.target("/data/file"), "-", "--depth", "2", "--block", "4096"]);
    let mut put = put.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut input = put.stdin.take().unwrap();
    input.write_all(&most[..1 << 20]).unwrap();
    thread::scope(|scope| {
        let transfer = scope.spawn(|| input.write_all(&most[1 << 20..]));
        for number in 0..4 {
            reload(if number % 2 == 0 { B } else { A }).unwrap();
        }
        transfer.join().unwrap().unwrap();
    });
    reload(B).unwrap();
    input.write_all(last).unwrap();
    drop(input);
    let output = put.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(fs::read(place.data().join("file")).unwrap() == content);
    assert_eq!(connections("last"), 2 * of_one);
}

#[test]
fn a_wrong_configuration_leaves_the_exports_in_force_and_every_error_is_said() {
    let it = Reloadable::start("reload-wrong", A);
    let source = it.place.path("source");
    file(source.as_ref(), 10);
    let wrong = [&A.replace("local", "ho_st"), B, "sqash = \"all\"\n"].concat();
    write(&it.place, &wrong);
    let output = it.reload();
    let said = text(&output.stderr);
    assert_eq!((output.status.code(), said.lines().count()), (Some(1), 2), "{said}");
    assert!(said.contains("ho_st") && said.contains("did you mean \"squash\"?"), "{said}");
    answer(&["put", &it.target("/a/file"), &source]);
    assert_eq!(refused(&["ls", &it.target("/b")]).0, Some(4));
    it.server.signal(Signal::HUP);
    it.logged("not reloaded: ");
    // A directory that cannot be opened is found out before anything changes, too.
    let missing = data(&it.place).replace("/data\"", "/missing\"");
    write(&it.place, &[&missing[..], B].concat());
    assert_eq!(it.reload().status.code(), Some(1));
    assert_eq!(refused(&["ls", &it.target("/b")]).0, Some(4));
    // Other keys are not looked at before a restart.
    write(&it.place, &["threads = 7\n", A, B].concat());
    let output = it.reload();
    assert!(text(&output.stdout).contains("a restart is needed for changes of threads"));
    answer(&["ls", &it.target("/b")]);
    // The limits of a tree in memory are.
    write(&it.place, &[A, "bytes = \"2G\"\n", B].concat());
    assert!(text(&it.reload().stderr).contains("only change with a restart"));
}

#[test]
fn without_a_server_a_reload_says_so() {
    let place = Place::new("reload-none");
    let output =
        Command::new(PROGRAM).args(["reload", "--state", &place.path("state")]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("is the server running"), "{output:?}");
}

/// The file may name the directory of another server than the default one.
#[test]
fn commands_with_a_file_that_cannot_be_read_ask_no_other_server() {
    let place = Place::new("reload-other");
    let state = place.path("state");
    let server = place.serve(&["--memory=a:client=local"]);
    let broken = place.path("broken.toml");
    fs::write(&broken, "state = ").unwrap();
    let misspelt = place.path("misspelt.toml");
    fs::write(&misspelt, "sate = '/srv/other'").unwrap();
    for file in [&place.path("absent.toml"), &broken, &misspelt] {
        for words in [&["reload"][..], &["clients"], &["slow"], &["disconnect", "local:7"]] {
            let output = |more: &[&str]| {
                let mut command = Command::new(PROGRAM);
                command.args(words).args(["--config", file]).args(more);
                command.env("STATE_DIRECTORY", &state).output().unwrap()
            };
            fails(&output(&[]), 2, &[file]);
            let asked = output(&["--state", &state]);
            // That client is not connected.
            let code = if words[0] == "disconnect" { 1 } else { 0 };
            assert_eq!(asked.status.code(), Some(code), "{words:?}: {asked:?}");
        }
    }
    assert_eq!(server.end_by(Signal::TERM).0, Some(0));
}

#[test]
fn connections_mounts_and_refusals_are_logged() {
    let it = Reloadable::start("journal", &[A, B].concat().replacen("local", "192.0.2.7", 1));
    let me = format!("local:{}", rustix::process::geteuid().as_raw());
    answer(&["ls", &it.target("/b")]);
    assert_eq!(refused(&["ls", &it.target("/a")]).0, Some(4));
    assert_eq!(refused(&["ls", &it.target("/absent")]).0, Some(4));
    for words in [
        "a connection is open".to_owned(),
        format!("{me} mounted \"/b\""),
        "a connection has ended".to_owned(),
        format!("rejected a mount of \"/a\" by {me}: it is not a client of this export"),
        format!("rejected a mount of \"/absent\" by {me}: there is no such export"),
    ] {
        it.logged(&words);
    }
    // A call with the handle of an export that has excluded its client meanwhile.
    let handle = crate::server::handle(&it.target("/b"));
    write(&it.place, &[A, &B.replace("local", "192.0.2.7")].concat());
    assert!(it.reload().status.success());
    let root = it.place.address();
    let said = refused(&["getattr", &root, "--handle", &handle]).1;
    assert!(said.contains("NFS3ERR_ACCES"), "{said}");
    it.logged(&format!("rejected a call of {me}: it is not a client of the export"))
}
