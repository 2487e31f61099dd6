//! `spin-nfsd reload`, and the socket in the state directory of a server that commands ask.

use crate::cli::AtServer;
use crate::config_file;
use crate::failure::Failure;
use crate::state;
use spinrpc::sys::line_server::REQUEST_BYTES_MAX;
use spinrpc_apps::command_line;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

const REQUEST: &str = "reload";
const DONE: &str = "done";
const REFUSED: &str = "refused";
const NAME: &str = "control";
/// Far longer than a reload takes: names are waited for 10 seconds.
const RELOAD_TIMEOUT: Duration = Duration::from_secs(120);
/// Others are answered at once, unless reloads are before them.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
const ANSWER_BYTES_MAX: u64 = 16 << 20;

pub(crate) type Outcome = Result<Vec<String>, Vec<String>>;

/// A request, with the place for its outcome.
pub(crate) type Request = Sender<Outcome>;

pub(crate) fn socket(state: &Path) -> PathBuf {
    state.join(NAME)
}

pub(crate) fn run(server: &AtServer) -> Result<(), Vec<Failure>> {
    for line in ask(server, REQUEST)? {
        command_line::say(line).map_err(|error| vec![Failure::failed("standard output", error)])?;
    }
    Ok(())
}

pub(crate) fn ask(options: &AtServer, request: &str) -> Result<Vec<String>, Vec<Failure>> {
    let path = socket(&state_of(options)?);
    let answer = exchange(&path, request).map_err(|error| {
        let problem = match error.kind() {
            io::ErrorKind::WouldBlock => {
                "the server does not answer: it reloads, or is stopped".to_owned()
            }
            _ => format!("{error}: is the server running, with this state directory (--state)?"),
        };
        vec![Failure::failed(path.display(), problem)]
    })?;
    let mut lines = answer.lines();
    match lines.next() {
        Some(DONE) => Ok(lines.map(str::to_owned).collect()),
        Some(REFUSED) => Err(lines.map(|line| Failure::Failed(line.to_owned())).collect()),
        _ => Err(vec![Failure::failed(path.display(), "the server has ended without an answer")]),
    }
}

/// A file with a wrong key, or that cannot be parsed, may mean another directory than the default one, where another server may be.
/// Errors in exports are for the server to report.
fn state_of(options: &AtServer) -> Result<PathBuf, Vec<Failure>> {
    let usage = |problem| vec![Failure::Usage(problem)];
    let state = match (&options.state, &options.config) {
        (None, Some(path)) => match config_file::read(path).map_err(usage)? {
            (file, problems) if file.state.is_some() || problems.is_empty() => file.state,
            (_, problems) => return Err(problems.into_iter().map(Failure::Usage).collect()),
        },
        (state, _) => state.clone(),
    };
    state::directory(state).map_err(usage)
}

fn exchange(path: &Path, request: &str) -> io::Result<String> {
    let timeout = if request == REQUEST { RELOAD_TIMEOUT } else { ANSWER_TIMEOUT };
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    writeln!(stream, "{request}")?;
    let mut text = String::new();
    stream.take(ANSWER_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

/// Passes requests to reload on, and waits for their outcomes. Answers others itself. One thread answers all requests in turn:
/// one that comes during a reload waits for its end, which names may delay by 10 seconds.
pub(crate) struct Control<F, G> {
    pub(crate) reload: F,
    /// `None` if there is no such request.
    pub(crate) others: G,
}

impl<F: Fn(Request), G: Fn(&str) -> Option<Outcome>> Control<F, G> {
    /// `None` is a request that is too long.
    pub(crate) fn answer(&self, request: Option<&str>) -> String {
        let outcome = match request {
            Some(REQUEST) => self.reload(),
            Some(other) => (self.others)(other)
                .unwrap_or_else(|| Err(vec![format!("the server does not know {other:?}")])),
            None => Err(vec![format!("a request has at most {REQUEST_BYTES_MAX} bytes")]),
        };
        let (word, lines) = match outcome {
            Ok(lines) => (DONE, lines),
            Err(lines) => (REFUSED, lines),
        };
        let lines: String = lines.iter().map(|line| format!("{line}\n")).collect();
        format!("{word}\n{lines}")
    }

    fn reload(&self) -> Outcome {
        let (sender, outcome) = channel();
        (self.reload)(sender);
        // Without an outcome the server ends.
        let ends = |_| Err(vec!["the server is shutting down".to_owned()]);
        outcome.recv().unwrap_or_else(ends)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(reload: impl Fn(Request), request: &str) -> String {
        let others = |request: &str| (request == "clients").then(|| Ok(vec!["{}".to_owned()]));
        Control { reload, others }.answer(Some(request))
    }

    #[test]
    fn an_answer_has_the_outcome_and_a_server_that_ends_is_said() {
        let all = |request: Request| {
            request.send(Err(vec!["a".to_owned(), "b".to_owned()])).unwrap();
        };
        assert_eq!(answer(all, "reload"), "refused\na\nb\n");
        let done =
            |request: Request| request.send(Ok(vec!["export /a is new".to_owned()])).unwrap();
        assert_eq!(answer(done, "reload"), "done\nexport /a is new\n");
        let ends = |request: Request| drop(request);
        let said = answer(ends, "reload");
        assert_eq!(said, "refused\nthe server is shutting down\n");
        let unknown = answer(|_| unreachable!(), "stop\nx");
        assert!(unknown.starts_with("refused\n") && unknown.lines().count() == 2, "{unknown}");
        assert_eq!(answer(|_| unreachable!(), "clients"), "done\n{}\n");
    }
}
