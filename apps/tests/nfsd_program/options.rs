//! Valid and invalid options of the program.

use crate::common::{fails, refusal, run};
use crate::server::{PROGRAM, Place, answer, file};
use std::fs;
use std::io;
use std::path::Path;

#[test]
fn a_check_says_what_would_be_served_and_leaves_no_trace() {
    let place = Place::new("check");
    let export = place.export(",client=192.0.2.0/24,ro");
    let output = place.command(&[&export, "--memory=none", "--check"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{output:?}");
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 3, "{said}");
    assert!(
        lines[0].contains("read-only to local:") && lines[0].contains("192.0.2.0/24"),
        "{said}"
    );
    assert!(lines[1].contains("/none (memory none) read-write to NO CLIENTS"), "{said}");
    assert_eq!(lines[2], format!("would listen on {}", place.address()));
    assert!(!Path::new(&place.path("state")).exists());
}

#[test]
fn a_check_refuses_what_serving_would() {
    let place = Place::new("check-serving");
    let check = |options: &[&str]| {
        let mut command = place.command(options);
        let output = command.arg("--check").output().unwrap();
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        Ok::<_, io::Error>((output.status.code(), complaint))
    };
    // A listing may return as much as READ.
    for bytes in [4096, 65_535, 65_536] {
        let set = format!("--set=rpc.max_read_bytes={bytes}");
        assert_eq!(check(&["--memory=a", &set]).unwrap(), (Some(0), String::new()), "{bytes}");
    }
    if cfg!(not(feature = "verbs")) {
        let arguments = ["--memory=a", "--listen=rdma://192.0.2.1", "--check"];
        fails(&run(PROGRAM, &arguments), 1, &["--features verbs"]);
    }
}

#[test]
fn a_check_names_every_error_at_once() {
    let place = Place::new("check-all");
    let config = place.path("nfsd.toml");
    fs::write(
        &config,
        "threads = 0\nlisen = \"shm:a\"\n[[export]]\ndirectory = \"/srv\"\nclients = \"any\"\nid = -1\n",
    ).unwrap();
    let said = |options: &[&str]| {
        let output = place.command(options).arg("--check").output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        Ok::<_, io::Error>((
            output.status.code(),
            text.lines().map(str::to_owned).collect::<Vec<_>>(),
        ))
    };
    let wrong = ["--config", &config, "--memory=a:ro,rw,squash=x", "--cores=y"];
    let (code, lines) = said(&wrong).unwrap();
    let words =
        ["1..=256", "\"lisen\"", "\"clients\"", "id: ", "exclude", "squash: ", "cores.list"];
    assert_eq!((code, lines.len()), (Some(2), words.len()), "{lines:#?}");
    for word in words {
        let of_program = |line: &String| line.starts_with("spin-nfsd: ") && line.contains(word);
        assert!(lines.iter().any(of_program), "{word}: {lines:#?}");
    }
    let wrong = ["--memory=a:squash=x", "--memory=b:path=rel", "--listen=tcp:1", "--threads=7"];
    let (code, lines) = said(&wrong).unwrap();
    assert_eq!((code, lines.len()), (Some(2), 3), "{lines:#?}");
    // What only the host can tell.
    let missing = [place.path("missing"), place.path("absent")];
    let options = missing.clone().map(|path| format!("--export={path}"));
    let (code, lines) =
        said(&[&options[0], &options[1], "--memory=a", "--memory=b:id=7", "--memory=c:id=7"])
            .unwrap();
    assert_eq!((code, lines.len()), (Some(2), 3), "{lines:#?}");
    assert!(lines[0].contains(&missing[0]) && lines[1].contains(&missing[1]), "{lines:#?}");
    assert!(lines[2].contains("both have the id 7"), "{lines:#?}");
}

/// `localhost` is in /etc/hosts, and no name below `invalid` is anywhere (RFC 6761).
#[test]
fn a_check_says_which_addresses_names_have() {
    let place = Place::new("check-names");
    let memory = "--memory=a:client=localhost,client=absent.invalid";
    let output = place.command(&[memory, "--check"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{output:?}");
    assert!(said.contains("localhost (") && said.contains("127.0.0.1"), "{said}");
    assert!(said.contains("absent.invalid (NO ACCESS: "), "{said}");
}

#[test]
fn a_file_says_what_the_command_line_does_not() {
    let place = Place::new("config");
    let file = place.path("nfsd.toml");
    let data = place.data().display().to_string();
    let text = format!(
        "listen = \"shm:elsewhere\"\nregister = \"no\"\n\
         [[export]]\ndirectory = \"{data}\"\nclient = [\"local\"]\npath = \"/data\"\n"
    );
    fs::write(&file, &text).unwrap();
    fs::write(place.data().join("file"), "content").unwrap();
    let _server = place.serve(&["--config", &file]);
    assert_eq!(answer(&["cat", &format!("{}//data/file", place.address())]), b"content");

    fs::write(&file, text.replace("client", "clients")).unwrap();
    fails(&run(PROGRAM, &["--config", &file]), 2, &[&file, "did you mean \"client\"?"]);
}

#[test]
fn what_cannot_be_is_one_line_that_says_what_can() {
    for (arguments, says) in [
        (&["--memory=a"][..], "--listen rdma://0.0.0.0:20049"),
        (&["--listen=shm:a"], "--export DIR"),
        (&["--memory=a", "--listen=tcp:1"], "rdma://HOST:PORT"),
        (&["--memory=a", "--listen=shm:a", "--listen=rdma://h"], "one kind"),
        (&["--memory=a:ro,rw", "--listen=shm:a"], "exclude each other"),
        (&["--memory=a:clients=any", "--listen=shm:a"], "did you mean \"client\"?"),
        (&["--memory=a:client=ho_st", "--listen=shm:a"], "192.0.2.0/24"),
        (&["--export=/:bytes=1G", "--listen=shm:a"], "in memory"),
        (&["--memory=a", "--memory=a", "--listen=shm:a"], "path="),
        (&["--memory=a:id=1", "--memory=b:id=1", "--listen=shm:a"], "id="),
        (&["--memory=a:path=b", "--listen=shm:a"], "begin with /"),
        (&["--memory=a", "--listen=shm:a", "--profile=latencie"], "latency"),
        (&["--memory=a", "--listen=shm:a", "--set=rpc.credit=1"], "rpc.credits"),
        (&["--memory=a", "--listen=shm:a", "--cores=x"], "cores.list"),
        (&["--memory=a", "--listen=shm:a", "--mount=x"], "IP:PORT"),
        (&["--memory=a", "--listen=shm:a", "--stats=0"], "0.1 to 86400"),
        (&["--config=/nonexistent"], "/nonexistent"),
        (&["--exports=/srv"], "--export"),
    ] {
        fails(&run(PROGRAM, &[arguments, &["--check"]].concat()), 2, &[says]);
    }
}

#[test]
fn what_the_host_does_not_have_is_one_line_that_says_what_to_do() {
    let place = Place::new("host");
    let missing = place.path("missing");
    for options in
        [&[&format!("--export={missing}")[..]][..], &["--memory=a", "--state=/proc/nowhere"]]
    {
        fails(&place.command(options).output().unwrap(), 1, &[]);
    }
}

/// Data inline, around the inline threshold, and in chunks in both directions; names in listings, and NULL.
#[test]
fn files_travel_by_every_protocol_that_both_ends_are_set_to() {
    for (number, sets) in [
        &["--set=rpc.protocol=rfc8166"][..],
        &["--set=rpc.protocol=rfc5666", "--set=rpc.ccp=both", "--set=rpc.ccp_auth=sys"],
        &["--set=rpc.protocol=draft03"],
        &["--set=rpc.protocol=draft00", "--set=rpc.ccp=both", "--set=rpc.msgp_align_bytes=1024"],
        &["--set=rpc.protocol=rfc5666", "--set=rpc.msgp_align_bytes=1024"],
        &["--set=rpc.version=2"],
    ]
    .into_iter()
    .enumerate()
    {
        let place = Place::new("protocols");
        let _server = place.serve(&[&[&place.export("")[..]], sets].concat());
        let with = |arguments: &[&str]| answer(&[arguments, sets].concat());
        for bytes in [0, 600, 3000, 5000, 70_001, 300_001, 1 << 20] {
            let source = place.root.join("source");
            let content = file(&source, bytes);
            let target = place.target(&format!("/file-{bytes}"));
            with(&["put", &target, &source.display().to_string()]);
            assert!(with(&["cat", &target]) == content, "{number}, {bytes} bytes");
        }
        let listed = String::from_utf8_lossy(&with(&["ls", &place.target("")])).into_owned();
        assert!(listed.contains(" file-600\n"), "{number}: {listed}");
        with(&["null", &place.target("")]);
    }
}

/// In a user namespace without a map, all users appear as 65534, including the server's.
#[test]
fn local_is_refused_where_all_users_look_alike() {
    let place = Place::new("overflow-user");
    let server = place.command(&["--memory=a:client=local", "--check"]);
    let mut command = std::process::Command::new("unshare");
    command.args(["--user", "--", PROGRAM]).args(server.get_args());
    let output = command.output();
    let refused = output.as_ref().map(refusal).unwrap_or_default();
    if output.is_err() || refused.1.contains("unshare") {
        eprintln!("not tested, as user namespaces are not available here: {output:?}");
        return;
    }
    assert_eq!(refused.0, Some(2), "{refused:?}");
    assert!(refused.1.contains("run as a user that is mapped"), "{refused:?}");
}
