//! `--profile` and `--set` of spin-echo and spin-nfs from outside: both ends of every
//! protocol that a profile can select, with the real programs over shared memory.
#![allow(clippy::unwrap_used, reason = "a test ends here")]

mod common;

use common::{Server, fails, run};
use std::fs;
use std::path::PathBuf;

const ECHO: &str = env!("CARGO_BIN_EXE_spin-echo");
const NFS: &str = env!("CARGO_BIN_EXE_spin-nfs");

/// A profile in its own file.
fn profile(name: &str, keys: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.toml"));
    fs::write(&path, format!("schema = 1\n{keys}\n")).unwrap();
    path
}

/// An unsupported version at the other end shows that the options take effect.
#[test]
fn a_profile_in_a_file_and_values_over_it_have_their_effect() {
    let two = profile("version-two", "include = [\"base\"]\n[rpc]\nversion = \"2\"");
    let two = two.to_string_lossy();
    let server = Server::start_with(ECHO, "version-two", &["--profile", &two]);
    let client = |options: &[&str]| server.client("call", &[&["text"], options].concat());
    assert!(client(&["--profile", &two]).status.success());
    assert!(client(&["--set", "rpc.version=2"]).status.success());
    for wrong in [&["--set", "rpc.version=1"][..], &["--profile", &two, "--set", "rpc.version=1"]] {
        fails(&client(wrong), 1, &[]);
    }
}

#[test]
fn what_no_key_takes_is_a_wrong_command_line_that_names_the_key() {
    let unknown = profile("unknown-key", "[rpc]\ncredit = 3");
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
            fails(&run(start.0, &[start.1, &options].concat()), 2, &[named]);
        }
    }
}

#[test]
fn every_help_shows_the_options_with_an_example() {
    for program in [ECHO, NFS] {
        let help = run(program, &["--help"]);
        let help = String::from_utf8_lossy(&help.stdout).into_owned();
        for part in ["--profile <NAME|FILE>", "--set <KEY=VALUE>", "Examples:", "--set rpc."] {
            assert!(help.contains(part), "{program}: {part} is not in {help}");
        }
    }
}
