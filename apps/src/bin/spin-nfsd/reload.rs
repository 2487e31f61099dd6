//! `spin-nfsd reload`, and the socket in the state directory of a server that it asks.

use crate::cli::Reload;
use crate::config_file;
use crate::failure::Failure;
use crate::socket::Answers;
use crate::state;
use spinrpc_apps::command_line;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

const REQUEST: &str = "reload";
/// First line of an answer.
const DONE: &str = "done";
const REFUSED: &str = "refused";
const NAME: &str = "control";
/// Far longer than a reload takes: names are waited for 10 seconds.
const PATIENCE: Duration = Duration::from_secs(120);
/// Maximum length of an answer, in bytes.
const ANSWER_BYTES_MAX: u64 = 4 << 20;

/// Changes in words, or errors.
pub(crate) type Outcome = Result<Vec<String>, Vec<String>>;

/// A request, with the place for its outcome.
pub(crate) type Request = Sender<Outcome>;

/// The socket of a server with this state directory.
pub(crate) fn socket(state: &Path) -> PathBuf {
    state.join(NAME)
}

/// Asks the server of the state directory.
pub(crate) fn ask(options: &Reload) -> Result<(), Vec<Failure>> {
    // The server itself reports what is wrong in the file.
    let file = options.config.as_deref().and_then(|path| config_file::read(path).ok());
    let state = options.state.clone().or(file.and_then(|(file, _)| file.state));
    let state = state::directory(state).map_err(|problem| vec![Failure::Usage(problem)])?;
    let path = socket(&state);
    let answer = exchange(&path).map_err(|error| {
        let hint = "is the server running, with this state directory (--state)?";
        vec![Failure::failed(path.display(), format!("{error}: {hint}"))]
    })?;
    let mut lines = answer.lines();
    match lines.next() {
        Some(DONE) => {
            for line in lines {
                command_line::say(line)
                    .map_err(|error| vec![Failure::failed("standard output", error)])?;
            }
            Ok(())
        }
        Some(REFUSED) => Err(lines.map(|line| Failure::Failed(line.to_owned())).collect()),
        _ => Err(vec![Failure::failed(path.display(), "the server has ended without an answer")]),
    }
}

fn exchange(path: &Path) -> io::Result<String> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    writeln!(stream, "{REQUEST}")?;
    let mut text = String::new();
    stream.take(ANSWER_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

/// Passes requests on, and waits for their outcomes.
pub(crate) struct Control<F>(pub(crate) Mutex<F>);

impl<F: Fn(Request) + Send> Answers for Control<F> {
    fn request_bytes_max(&self) -> usize {
        64
    }

    fn answer(&self, request: &str) -> String {
        if request != REQUEST {
            return format!("{REFUSED}\nunknown request {request:?}; the request is {REQUEST}\n");
        }
        let (sender, outcome) = channel();
        (spinrpc::sync::lock(&self.0))(sender);
        // Without an outcome the server ends.
        let (word, lines) = match outcome.recv() {
            Ok(Ok(lines)) => (DONE, lines),
            Ok(Err(lines)) => (REFUSED, lines),
            Err(_) => (REFUSED, vec!["the server is shutting down".to_owned()]),
        };
        let lines: String = lines.iter().map(|line| format!("{line}\n")).collect();
        format!("{word}\n{lines}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_the_outcome_and_a_server_that_ends_is_said() {
        let all = |request: Request| {
            request.send(Err(vec!["a".to_owned(), "b".to_owned()])).unwrap();
        };
        assert_eq!(Control(Mutex::new(all)).answer("reload"), "refused\na\nb\n");
        let done =
            |request: Request| request.send(Ok(vec!["export /a is new".to_owned()])).unwrap();
        assert_eq!(Control(Mutex::new(done)).answer("reload"), "done\nexport /a is new\n");
        let ends = |request: Request| drop(request);
        let said = Control(Mutex::new(ends)).answer("reload");
        assert_eq!(said, "refused\nthe server is shutting down\n");
        let unknown = Control(Mutex::new(|_| unreachable!())).answer("stop\nx");
        assert_eq!(unknown, "refused\nunknown request \"stop\\nx\"; the request is reload\n");
    }
}
