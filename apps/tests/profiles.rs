//! `--profile` and `--set` of spin-echo and spin-nfs from outside: both ends of every
//! protocol that a profile can select, with the real programs over shared memory.

mod common;

use common::{Server, refusal, run};
use std::fs;
use std::io;
use std::path::PathBuf;

const ECHO: &str = env!("CARGO_BIN_EXE_spin-echo");
const NFS: &str = env!("CARGO_BIN_EXE_spin-nfs");

/// Values for both ends, over the defaults.
const PROTOCOLS: [&[&str]; 8] = [
    &["rpc.protocol=rfc8166"],
    &["rpc.protocol=rfc5666"],
    &["rpc.protocol=draft03"],
    &["rpc.protocol=draft00"],
    &["rpc.protocol=rfc5666", "rpc.msgp_align_bytes=1024"],
    &["rpc.protocol=rfc5666", "rpc.ccp=both", "rpc.ccp_auth=sys"],
    &["rpc.protocol=draft00", "rpc.ccp=both", "rpc.msgp_align_bytes=1024"],
    &["rpc.version=2"],
];

fn sets<'a>(values: &[&'a str]) -> Vec<&'a str> {
    values.iter().flat_map(|value| ["--set", value]).collect()
}

/// A profile in its own file.
fn profile(name: &str, keys: &str) -> io::Result<PathBuf> {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.toml"));
    fs::write(&path, format!("schema = 1\n{keys}\n"))?;
    Ok(path)
}

#[test]
fn texts_travel_by_every_protocol() -> io::Result<()> {
    for (number, values) in PROTOCOLS.into_iter().enumerate() {
        let server = Server::start_with(ECHO, &format!("echo-protocol-{number}"), &sets(values))?;
        let text = "x".repeat(512);
        let answer = server.answer("call", &[&[&text[..]], &sets(values)[..]].concat())?;
        assert_eq!(answer, format!("{text}\n").into_bytes(), "{values:?}");
    }
    Ok(())
}

/// An unsupported version at the other end shows that the options take effect.
#[test]
fn a_profile_in_a_file_and_values_over_it_have_their_effect() -> io::Result<()> {
    let two = profile("version-two", "include = [\"base\"]\n[rpc]\nversion = \"2\"")?;
    let two = two.to_string_lossy();
    let server = Server::start_with(ECHO, "version-two", &["--profile", &two])?;
    let client = |options: &[&str]| server.client("call", &[&["text"], options].concat());
    assert!(client(&["--profile", &two])?.status.success());
    assert!(client(&["--set", "rpc.version=2"])?.status.success());
    for wrong in [&["--set", "rpc.version=1"][..], &["--profile", &two, "--set", "rpc.version=1"]] {
        let (code, line) = refusal(&client(wrong)?);
        assert_eq!((code, line.lines().count()), (Some(1), 1), "{wrong:?}: {line}");
    }
    Ok(())
}

#[test]
fn what_no_key_takes_is_a_wrong_command_line_that_names_the_key() -> io::Result<()> {
    let unknown = profile("unknown-key", "[rpc]\ncredit = 3")?;
    let unknown = unknown.to_string_lossy();
    let wrong = [
        (["--set", "rpc.credits=0"], "rpc.credits"),
        (["--set", "rpc.credits"], "KEY=VALUE"),
        (["--profile", "latncy"], "did you mean \"latency\"?"),
        (["--profile", &unknown], "unknown-key.toml:3"),
    ];
    for (options, named) in wrong {
        for start in [
            (ECHO, &["serve", "shm:unused"][..]),
            (ECHO, &["call", "shm:unused", "text"]),
            (NFS, &["null", "shm:unused"]),
        ] {
            let (code, line) = refusal(&run(start.0, &[start.1, &options].concat())?);
            assert_eq!((code, line.lines().count()), (Some(2), 1), "{start:?} {options:?}: {line}");
            assert!(line.contains(named), "{start:?} {options:?}: {line}");
        }
    }
    Ok(())
}

#[test]
fn every_help_shows_the_options_with_an_example() -> io::Result<()> {
    for program in [ECHO, NFS] {
        let help = run(program, &["--help"])?;
        let help = String::from_utf8_lossy(&help.stdout).into_owned();
        for part in ["--profile <NAME|FILE>", "--set <KEY=VALUE>", "Examples:", "--set rpc."] {
            assert!(help.contains(part), "{program}: {part} is not in {help}");
        }
    }
    Ok(())
}
