//! The man pages and completions of spintune.
#![allow(clippy::unwrap_used, reason = "a test ends here")]

#[path = "common/manual.rs"]
mod manual;

use std::path::Path;

#[test]
fn every_option_is_in_the_manual() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("spintune-manual");
    assert!(manual::check(env!("CARGO_BIN_EXE_spintune"), "spintune", 1, &folder) >= 10);
}

/// Expect the names of profiles next to files, and those of keys.
#[test]
fn shells_offer_names_of_profiles_and_keys() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("spintune-completions");
    manual::check(env!("CARGO_BIN_EXE_spintune"), "spintune", 1, &folder);
    let script = |file: &str| std::fs::read_to_string(folder.join(file)).unwrap();
    let [bash, zsh, fish] = [
        "bash-completion/completions/spintune",
        "zsh/site-functions/_spintune",
        "fish/vendor_completions.d/spintune.fish",
    ]
    .map(script);
    for of_shell in [&bash, &zsh, &fish] {
        for name in ["latency", "hosts/vm-2-vcpus", "rpc.credits=", "rpc.credits"] {
            assert!(of_shell.contains(name), "{name}");
        }
    }
    assert!(zsh.contains("PROFILE:{compadd base ") && !zsh.contains("PROFILE:(base"));
    assert!(fish.contains("-l profile ") && !fish.contains("-f -a \"base"));
    let completed = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let (last, before) = words.split_last().unwrap();
        let run = format!(
            "complete() {{ :; }}; compopt() {{ :; }}; {bash}\nCOMP_WORDS=({line}); COMP_CWORD={}; \
             _spintune spintune '{last}' '{}'; echo ${{COMPREPLY[@]}}",
            before.len(),
            before.last().unwrap()
        );
        let output = std::process::Command::new("bash").args(["-c", &run]).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    assert_eq!(completed("spintune plan --profile la"), "latency");
    assert_eq!(completed("spintune plan --set poll.m"), "poll.mode=");
    assert_eq!(completed("spintune explain rpc.reverse_c"), "rpc.reverse_calls");
    assert_eq!(completed("spintune show ver"), "verbs-mlx5 verbs-rxe verbs-siw");
    assert_eq!(completed("spintune plan --profile ./"), "", "bash offers files then");
}
