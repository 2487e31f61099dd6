//! This test's own binary again, as another process.

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdout, Command, Stdio};

/// Killed and waited for when it goes out of scope. Its standard input ends with it, so that none outlives a failed test.
pub(crate) struct Other {
    pub(crate) child: Child,
    pub(crate) lines: Lines<BufReader<ChildStdout>>,
}

impl Other {
    /// Runs that test with these variables, until it has said that it is ready.
    #[track_caller]
    pub(crate) fn start(test: &str, variables: &[(&str, &str)]) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        Self::run(test, command.envs(variables.iter().copied()))
    }

    #[track_caller]
    pub(crate) fn run(test: &str, command: &mut Command) -> Self {
        let mut child = command
            .args(["--exact", test, "--nocapture", "--test-threads=1"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready = lines.any(|line| line.is_ok_and(|line| line.ends_with("ready")));
        let other = Self { child, lines };
        assert!(ready, "the process ended before it was ready");
        other
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // An error says that it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn say_ready() {
    let mut out = std::io::stdout();
    out.write_all(b"ready\n").and_then(|()| out.flush()).unwrap();
}
