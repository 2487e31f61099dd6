//! A C program that decodes and encodes with rpcgen's code, fed through pipes.

use crate::common;
use spinrpc_xdrgen::model::Model;
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// The answer of C about some bytes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// They begin with a value.
    pub(crate) is_read: bool,
    /// Bytes of the value.
    pub(crate) read: usize,
    /// The value could be written again.
    pub(crate) is_written: bool,
    /// Its encoding.
    pub(crate) written: Vec<u8>,
}

/// The C program of one description.
pub(crate) struct Helper {
    child: Child,
    input: ChildStdin,
    output: ChildStdout,
}

impl Helper {
    /// Generates, compiles and starts it.
    pub(crate) fn build(description: &str, model: &Model) -> Self {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("rpcgen").join(description);
        std::fs::create_dir_all(&directory).unwrap();
        let (header, source) = (format!("{description}.h"), format!("{description}.c"));
        let x = directory.join(format!("{description}.x"));
        std::fs::write(&x, c_names(&common::text(description))).unwrap();
        for (flag, output) in [("-h", &header), ("-c", &source)] {
            let _ = std::fs::remove_file(directory.join(output));
            let x = format!("{description}.x");
            run(Command::new("rpcgen").current_dir(&directory).args([flag, "-o", output, &x]));
        }
        std::fs::write(directory.join("table.h"), table(&header, model)).unwrap();
        let program = directory.join("helper");
        compile(&directory, &source, &program);
        let mut command = Command::new(&program);
        // libtirpc says there that it is out of memory, when a count asks for too much.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { child, input, output }
    }

    /// Has type `index` read from `bytes` and written again.
    pub(crate) fn again(&mut self, index: usize, bytes: &[u8]) -> Answer {
        let mut request = (index as u32).to_ne_bytes().to_vec();
        request.extend((bytes.len() as u32).to_ne_bytes());
        request.extend(bytes);
        self.input.write_all(&request).unwrap();
        let mut words = [0; 16];
        self.output.read_exact(&mut words).expect("the C program lives");
        let word = |at: usize| u32::from_ne_bytes(words[at..at + 4].try_into().unwrap());
        let mut written = vec![0; word(12) as usize];
        self.output.read_exact(&mut written).unwrap();
        Answer { is_read: word(0) != 0, read: word(4) as usize, is_written: word(8) != 0, written }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The description without what libtirpc has: the types of C with so many bits, which would replace those
/// that its own codecs call, and a name that is taken by another type in its headers. Files that it includes are in it.
fn c_names(text: &str) -> String {
    let is_there = |line: &str| {
        let end = ["int32_t;", "int64_t;"].iter().any(|end| line.ends_with(end));
        line.starts_with("typedef ") && end
    };
    let is_include = |line: &str| ["# ", "%#include "].iter().any(|start| line.starts_with(start));
    let kept: Vec<&str> =
        text.lines().filter(|line| !is_there(line) && !is_include(line)).collect();
    kept.join("\n").replace("netobj", "nlm_netobj")
}

/// The types, in the order of the model.
fn table(header: &str, model: &Model) -> String {
    let mut table = format!("#include \"{header}\"\n#define TYPES \\\n");
    for found in &model.types {
        let name = c_names(&found.name);
        writeln!(table, "    {{ (xdrproc_t) xdr_{name}, sizeof({name}) }}, \\").unwrap();
    }
    table.push('\n');
    table
}

fn compile(directory: &Path, source: &str, program: &PathBuf) {
    let helper = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/rpcgen/helper.c");
    let mut command = Command::new("cc");
    command.current_dir(directory).args(["-O1", "-w", "-I.", "-I/usr/include/tirpc", "-o"]);
    run(command.arg(program).arg(helper).arg(source).arg("-ltirpc"));
}

fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} failed:\n{errors}");
}
