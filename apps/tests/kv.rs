//! spin-kv from outside: a store in one process, and values of other processes.

mod common;

use common::{PATIENCE, Server, refusal};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

const PROGRAM: &str = env!("CARGO_BIN_EXE_spin-kv");

/// A file of `bytes` bytes whose words are all different.
fn value_file(name: &str, bytes: u32) -> io::Result<(PathBuf, Vec<u8>)> {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut content: Vec<u8> = (0..=bytes / 4).flat_map(u32::to_le_bytes).collect();
    content.truncate(bytes as usize);
    fs::write(&path, &content)?;
    Ok((path, content))
}

fn scanned(server: &Server, prefix: &str) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&server.answer("scan", &[prefix])?).into_owned())
}

#[test]
fn a_value_is_there_from_put_to_delete() -> io::Result<()> {
    let server = Server::start(PROGRAM, "kv")?;
    server.answer("put", &["colour", "red"])?;
    server.answer("put", &["colour", "blue"])?;
    assert_eq!(server.answer("get", &["colour"])?, b"blue");
    server.answer("delete", &["colour"])?;
    for verb in ["get", "delete"] {
        let (code, line) = refusal(&server.client(verb, &["colour"])?);
        assert_eq!((code, line.as_str()), (Some(1), "spin-kv: no such key\n"), "{verb}");
    }
    Ok(())
}

#[test]
fn values_of_every_path_come_back_whole() -> io::Result<()> {
    let server = Server::start(PROGRAM, "kv-sizes")?;
    // Empty, small, the limit of small, inline, around the inline threshold, chunks, the maximum.
    for bytes in [0, 1, 512, 513, 3000, 4096, 70_001, 1 << 20] {
        let (path, content) = value_file(&format!("value-{bytes}"), bytes)?;
        let path = path.to_string_lossy();
        server.answer("put", &["key", "--file", &path])?;
        assert_eq!(server.answer("get", &["key"])?, content, "{bytes} bytes");
    }
    Ok(())
}

#[test]
fn a_dash_for_the_file_is_standard_input_and_standard_output() -> io::Result<()> {
    let server = Server::start(PROGRAM, "kv-stdin")?;
    for (bytes, fits) in [(0, true), (3000, true), (1 << 20, true), ((1 << 20) + 1, false)] {
        let (path, content) = value_file(&format!("stdin-{bytes}"), bytes)?;
        let mut put = Command::new(PROGRAM);
        put.args(["put", server.address(), "key", "--file", "-"]).stdin(File::open(path)?);
        let output = put.output()?;
        assert_eq!(output.status.success(), fits, "{bytes} bytes: {output:?}");
        if fits {
            assert_eq!(server.answer("get", &["key", "--file", "-"])?, content, "{bytes} bytes");
        } else {
            let line = refusal(&output).1;
            assert!(line.contains("standard input: expected at most 1048576"), "{line}");
        }
    }
    Ok(())
}

#[test]
fn a_value_beyond_the_limit_is_refused_in_one_line() -> io::Result<()> {
    let server = Server::start(PROGRAM, "kv-limit")?;
    let (path, _) = value_file("too-long", (1 << 20) + 1)?;
    let output = server.client("put", &["key", "--file", &path.to_string_lossy()])?;
    let (code, line) = refusal(&output);
    assert_eq!((code, line.lines().count()), (Some(1), 1), "{line}");
    assert!(line.contains("at most 1048576"), "{line}");
    Ok(())
}

#[test]
fn a_full_store_says_so_and_serves_on() -> io::Result<()> {
    let server = Server::start(PROGRAM, "kv-full")?;
    let (path, content) = value_file("megabyte", 1 << 20)?;
    let path = path.to_string_lossy();
    let put = |key: u32| server.client("put", &[&key.to_string(), "--file", &path]);
    let mut full = None;
    for key in 0..100 {
        let output = put(key)?;
        if !output.status.success() {
            full = Some((key, refusal(&output).1));
            break;
        }
    }
    let (stored, complaint) = full.ok_or_else(|| io::Error::other("100 MiB were accepted"))?;
    assert_eq!(complaint, "spin-kv: the store is full: delete something\n");
    assert!(stored > 0);
    server.answer("delete", &["0"])?;
    server.answer("put", &["again", "--file", &path])?;
    assert_eq!(server.answer("get", &["again"])?, content);
    Ok(())
}

#[test]
fn a_scan_lists_keys_in_order_with_sizes_and_checksums() -> io::Result<()> {
    let server = Server::start(PROGRAM, "kv-scan")?;
    for (key, value) in [("b", "123456789"), ("c", "x"), ("a", "")] {
        server.answer("put", &[key, value])?;
    }
    let all = "       0 00000000 a\n       9 cbf43926 b\n       1 8cdc1683 c\n";
    assert_eq!(scanned(&server, "")?, all);
    assert_eq!(scanned(&server, "b")?, "       9 cbf43926 b\n");
    assert_eq!(scanned(&server, "z")?, "");
    Ok(())
}

/// A process that watches a key.
struct Watch {
    process: Child,
    lines: Receiver<String>,
}

impl Watch {
    fn start(server: &Server, key: &str, lines: u32) -> io::Result<Self> {
        let mut command = Command::new(PROGRAM);
        command.args(["watch", server.address(), key, "--lines", &lines.to_string()]);
        let mut process = command.stdout(Stdio::piped()).spawn()?;
        let stdout = process.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let (tell, told) = channel();
        std::thread::spawn(move || {
            let lines = BufReader::new(stdout).lines().map_while(Result::ok);
            lines.map_while(|line| tell.send(line).ok()).for_each(drop);
        });
        Ok(Self { process, lines: told })
    }

    fn line(&self) -> io::Result<String> {
        self.lines.recv_timeout(PATIENCE).map_err(|_| io::ErrorKind::TimedOut.into())
    }

    /// Waits for the exit; returns the exit code.
    fn code(&mut self) -> io::Result<Option<i32>> {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            if let Some(status) = self.process.try_wait()? {
                return Ok(status.code());
            }
            std::thread::yield_now();
        }
        Err(io::ErrorKind::TimedOut.into())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

#[test]
fn a_watch_tells_of_every_change_of_its_key() -> io::Result<()> {
    let server = Server::start(PROGRAM, "kv-watch")?;
    let mut watches = [Watch::start(&server, "colour", 4)?, Watch::start(&server, "colour", 4)?];
    let expect = |watches: &[Watch], line: &str| -> io::Result<()> {
        for watch in watches {
            assert_eq!(watch.line()?, line);
        }
        Ok(())
    };
    expect(&watches, "       - colour")?;
    server.answer("put", &["shape", "round"])?;
    server.answer("put", &["colour", "red"])?;
    expect(&watches, "       3 colour")?;
    let (path, _) = value_file("watched", 70_001)?;
    server.answer("put", &["colour", "--file", &path.to_string_lossy()])?;
    expect(&watches, "   70001 colour")?;
    server.answer("delete", &["colour"])?;
    expect(&watches, "       - colour")?;
    for watch in &mut watches {
        assert_eq!(watch.code()?, Some(0), "as many lines as asked for");
    }
    server.answer("put", &["colour", "blue"])?;
    assert_eq!(server.answer("get", &["colour"])?, b"blue", "the store goes on");
    Ok(())
}

#[test]
fn a_watch_ends_with_its_store() -> io::Result<()> {
    let server = Server::start(PROGRAM, "kv-watch-end")?;
    let mut watch = Watch::start(&server, "colour", 4)?;
    assert_eq!(watch.line()?, "       - colour");
    drop(server);
    assert_eq!(watch.code()?, Some(1));
    Ok(())
}

/// Names of files and keys may contain terminal control characters.
#[test]
fn nothing_that_is_printed_commands_a_terminal() -> io::Result<()> {
    let server = Server::start(PROGRAM, "kv-terminal")?;
    let hostile = "a\u{1b}[2J\u{9b}1m\u{202e}";
    let output = server.client("put", &["key", "--file", &format!("/nowhere/{hostile}")])?;
    let (code, line) = refusal(&output);
    assert_eq!((code, line.lines().count()), (Some(1), 1), "{line}");
    server.answer("put", &[hostile, "value"])?;
    let watched = server.answer("watch", &[hostile, "--lines", "1"])?;
    let said = [line, scanned(&server, "")?, String::from_utf8_lossy(&watched).into_owned()];
    for text in said {
        let shown = |letter: char| letter == '\n' || spinrpc_tuning::text::is_harmless(letter);
        assert!(text.contains('a') && text.chars().all(shown), "{text:?}");
    }
    Ok(())
}
