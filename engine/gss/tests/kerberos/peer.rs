//! The other end of a context by MIT's library alone, in a process of its own: see `peer.c`.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::realm::{Home, source};

pub(crate) struct Peer {
    process: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Peer {
    /// `what` is `accept` or `initiate`; cache or keytab are the default ones of the realm.
    pub(crate) fn start(home: &Home, what: &str, name: &str) -> Self {
        let program = home.path("peer");
        let text = source("peer.c");
        home.run("cc", &["-o", &program, text.to_str().unwrap(), "-lgssapi_krb5"]);
        let mut command = Command::new(program);
        command.args([what, name]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let commands = process.stdin.take().unwrap();
        let answers = BufReader::new(process.stdout.take().unwrap());
        Self { process, commands, answers }
    }

    fn ask(&mut self, command: &str, words: &[&[u8]]) -> String {
        let words: Vec<String> = words.iter().map(|bytes| hex(bytes)).collect();
        writeln!(self.commands, "{command} {}", words.join(" ")).unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        answer.trim_end().to_owned()
    }

    /// Gives a token, and returns the flags of the context and the peer's token.
    pub(crate) fn token(&mut self, token: &[u8]) -> (u32, Vec<u8>) {
        let answer = self.ask("token", &[token]);
        let (flags, token) = answer.split_once(' ').unwrap();
        (flags.parse().unwrap(), unhex(token))
    }

    pub(crate) fn mic(&mut self, message: &[u8]) -> Vec<u8> {
        unhex(&self.ask("mic", &[message]))
    }

    pub(crate) fn wrap(&mut self, message: &[u8]) -> Vec<u8> {
        unhex(&self.ask("wrap", &[message]))
    }

    pub(crate) fn verifies(&mut self, message: &[u8], mic: &[u8]) -> bool {
        match self.ask("verify", &[message, mic]).as_str() {
            "yes" => true,
            "no" => false,
            other => panic!("{other}"),
        }
    }

    pub(crate) fn unwrap(&mut self, token: &[u8]) -> Vec<u8> {
        unhex(&self.ask("unwrap", &[token]))
    }
}

/// The process ends by itself when its input does.
impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn hex(bytes: &[u8]) -> String {
    match bytes {
        [] => "-".to_owned(),
        bytes => bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
    }
}

fn unhex(text: &str) -> Vec<u8> {
    if text == "-" {
        return Vec::new();
    }
    let byte = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap();
    text.as_bytes().chunks(2).map(byte).collect()
}
