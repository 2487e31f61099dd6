//! Descriptions in files: what they include, the C preprocessor, and the program.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends here")]

use spinrpc_xdrgen::{BuildError, Generator};
use std::path::PathBuf;
use std::process::Command;

/// A directory of the test `name` with these files.
fn directory(name: &str, files: &[(&str, &str)]) -> PathBuf {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("files").join(name);
    std::fs::create_dir_all(&directory).unwrap();
    for (name, text) in files {
        std::fs::write(directory.join(name), text).unwrap();
    }
    directory
}

const OTHER: (&str, &str) = ("other.x", "typedef hyper other_t;\n");

#[test]
fn a_header_is_its_description() {
    let files = [
        OTHER,
        ("between.x", "%#include \"other.h\"\n%#include \"main.h\"\ntypedef other_t between_t;\n"),
        (
            "main.x",
            "%#include <other.h>\n%#include \"missing.h\"\n%#include \"between.h\"\n%#include \"other.h\"\nstruct s { other_t x; between_t y; };\n",
        ),
    ];
    let rust = Generator::new().file(directory("header", &files).join("main.x")).unwrap();
    let order = ["type OtherT = i64;", "type BetweenT = OtherT;", "struct S {"];
    let places = order.map(|item| rust.find(item).expect(item));
    assert!(places.is_sorted(), "{rust}");
    assert_eq!(rust.matches("type OtherT").count(), 1);
}

#[test]
fn the_preprocessor_runs_where_it_is_needed() {
    let main = "#include \"other.x\"\n#ifdef RPC_HDR\n#define NUMBER 3\n#endif\n#ifdef __linux__\nstruct { };\n#endif\n\
        struct s { /*@ ddp */ opaque x<NUMBER>; other_t linux[LENGTH]; };\n";
    let directory = directory("preprocessor", &[OTHER, ("main.x", main)]);
    let generator = Generator::new().define("LENGTH=2");
    let rust = generator.file(directory.join("main.x")).unwrap();
    for expected in ["pub x: spinrpc_xdr::Placed<'a, 3>,", "pub linux: [OtherT; 2],"] {
        assert!(rust.contains(expected), "{rust}");
    }
    let again = Generator::new().rust("main.x", &generator.text(directory.join("main.x")).unwrap());
    assert_eq!(again, Ok(rust), "a text that was preprocessed");
}

#[test]
fn mistakes_are_in_the_file_that_has_them() {
    let wrong = "#define A 1\n\n\n\n\n\n\n\n\n\n\n\ntypedef missing a<A>;\n";
    let main = ("main.x", "#include \"wrong.x\"\n");
    let directory = directory("mistakes", &[("wrong.x", wrong), main]);
    let Err(BuildError::Description(error)) = Generator::new().file(directory.join("main.x"))
    else {
        panic!("a description with a mistake");
    };
    assert_eq!((error.line, error.column), (13, 9), "{error}");
    assert_eq!(PathBuf::from(error.file), directory.join("wrong.x"));
}

#[test]
fn a_preprocessor_that_fails_is_an_error() {
    let directory = directory("fails", &[("main.x", "#include \"missing.x\"\n")]);
    let failed = Generator::new().file(directory.join("main.x"));
    let Err(BuildError::Preprocessor { problem, .. }) = failed else { panic!("{failed:?}") };
    assert!(problem.contains("missing.x"), "{problem}");
}

#[test]
fn only_files_that_need_the_preprocessor_need_it_installed() {
    let directory = directory("program", &[OTHER, ("main.x", "#include \"other.x\"\n")]);
    let run = |file: &str| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_spinrpc-xdrgen"));
        program.env("PATH", "/nonexistent").arg(directory.join(file)).output().unwrap()
    };
    assert!(run("other.x").status.success());
    let missing = run("main.x");
    assert_eq!(missing.status.code(), Some(1));
    let said = String::from_utf8(missing.stderr).unwrap();
    assert!(said.contains("main.x") && said.contains("cpp"), "{said}");
}

#[test]
fn comments_in_other_encodings_are_taken() {
    let directory = directory("latin1", &[]);
    std::fs::write(directory.join("main.x"), b"/* J\xf6rg */ typedef int a;").unwrap();
    assert!(Generator::new().file(directory.join("main.x")).is_ok());
}
