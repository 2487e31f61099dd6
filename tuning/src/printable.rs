//! Makes untrusted text safe to print.
//!
//! Names of files, hosts, devices and programs, and the contents of files and messages from peers
//! and processes, may contain anything: terminal control sequences, line feeds, shell syntax. All
//! programs of this workspace print such text through [`printable`], or through [`shell_word`] and
//! [`shell_comment`] in scripts.

use std::ffi::OsStr;
use std::fmt::{Display, Write as _};
use std::io::{self, Read, Write as _};
use std::os::unix::ffi::OsStrExt;

/// Text on one line, without characters that a terminal obeys or that change the order of others:
/// control characters and Unicode's bidirectional controls are escaped as in Rust.
///
/// ```
/// use spinrpc_tuning::printable::printable;
///
/// assert_eq!(printable("größe 7"), "größe 7");
/// assert_eq!(printable("a\x1b[2J\nb"), "a\\u{1b}[2J\\nb");
/// ```
pub fn printable(text: &str) -> String {
    escaped(text, is_harmless, |letter| letter.escape_default().to_string())
}

/// Like [`printable`] for text with several lines: line feeds and tabs stay.
pub fn printable_lines(text: &str) -> String {
    let is_kept = |letter: char| matches!(letter, '\n' | '\t') || is_harmless(letter);
    escaped(text, is_kept, |letter| letter.escape_default().to_string())
}

/// Prints a line on standard error, made [`printable`]. If it cannot be written, the exit code is all that remains.
pub fn to_stderr(line: impl Display) {
    drop(writeln!(io::stderr(), "{}", printable(&line.to_string())));
}

/// Leaves out the middle of a long text, such as an error that quotes an argument.
pub fn abridged(text: &str) -> String {
    let letters = text.chars().count();
    if letters <= 2 * ABRIDGED_CHARS {
        return text.to_owned();
    }
    let (head, tail) =
        (text.chars().take(ABRIDGED_CHARS), text.chars().skip(letters - ABRIDGED_CHARS));
    head.chain(" ... ".chars()).chain(tail).collect()
}

/// At each end of a longer text.
const ABRIDGED_CHARS: usize = 250;

/// JSON with the same meaning, in which characters that are not harmless to a terminal are escaped;
/// line feeds stay.
pub fn json(document: &str) -> String {
    // All characters that are escaped have four digits at most.
    let escape = |letter: char| format!("\\u{:04x}", u32::from(letter));
    escaped(document, |letter| letter == '\n' || is_harmless(letter), escape)
}

fn escaped(text: &str, is_kept: impl Fn(char) -> bool, escape: impl Fn(char) -> String) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match is_kept(letter) {
            true => safe.push(letter),
            false => safe.push_str(&escape(letter)),
        }
    }
    safe
}

/// Reads a text of at most `bytes_max` bytes, so that a wrong path, such as a device or a core dump, causes an error instead of
/// exhausting memory.
///
/// # Errors
/// It cannot be read, or is longer or not UTF-8 (`InvalidData`).
pub fn read_bounded(file: impl Read, bytes_max: u64) -> io::Result<String> {
    let mut text = String::new();
    file.take(bytes_max + 1).read_to_string(&mut text)?;
    if text.len() as u64 > bytes_max {
        let message = format!("longer than {bytes_max} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    Ok(text)
}

/// Returns whether a terminal only displays the character.
#[must_use]
pub fn is_harmless(letter: char) -> bool {
    let reorders = matches!(
        letter,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    !letter.is_control() && !reorders
}

/// One word of a POSIX shell that stands for exactly these bytes. It contains no control characters
/// except line feeds at its end, if the bytes end in them.
///
/// ```
/// use spinrpc_tuning::printable::shell_word;
///
/// assert_eq!(shell_word("/sys/kernel"), "/sys/kernel");
/// assert_eq!(shell_word("it's $(reboot)"), r"'it'\''s $(reboot)'");
/// assert_eq!(shell_word("a\nb"), r#""$(printf 'a\012b')""#);
/// ```
pub fn shell_word(word: impl AsRef<OsStr>) -> String {
    let word = word.as_ref();
    match word.to_str().filter(|text| text.chars().all(is_harmless)) {
        Some(text) if is_plain(text) => text.to_owned(),
        Some(text) => format!("'{}'", text.replace('\'', r"'\''")),
        None => printed_by_shell(word.as_bytes()),
    }
}

/// Returns whether the text needs no quotes and cannot be taken for an option or a comment.
fn is_plain(text: &str) -> bool {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "/-_.:@,+".contains(letter);
    !text.is_empty() && !text.starts_with('-') && text.chars().all(is_plain)
}

/// The shell makes the bytes from octal numbers. It drops trailing line feeds of a command
/// substitution, so these follow as they are.
fn printed_by_shell(bytes: &[u8]) -> String {
    let end = bytes.iter().rposition(|byte| *byte != b'\n').map_or(0, |last| last + 1);
    let mut word = String::from("\"$(printf '");
    for byte in &bytes[..end] {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'_' | b'.' => {
                word.push(char::from(*byte));
            }
            // Writing to a string does not fail.
            _ => drop(write!(word, "\\{byte:03o}")),
        }
    }
    word.push_str("')\"");
    if end < bytes.len() {
        word.push_str(&format!("'{}'", "\n".repeat(bytes.len() - end)));
    }
    word
}

/// A shell comment line with the text, which is made safe; ends with a line feed.
pub fn shell_comment(text: &str) -> String {
    format!("# {}\n", printable(text))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;
    use std::process::Command;

    /// Arguments with many bytes that are special to shells and terminals; without NUL, which
    /// arguments cannot contain.
    fn hostile() -> impl Strategy<Value = Vec<u8>> {
        let special =
            b"\n\r\t\x1b\x07\x9b'\"\\$`(){}[]<>|&;*?~#!=%- \x7f\xc2\xe2\x80\xae\xff".to_vec();
        let byte = prop_oneof![prop::sample::select(special), 1..=255_u8];
        prop::collection::vec(byte, 0..20)
    }

    /// The arguments that a shell passes on for these words.
    fn obeyed(words: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let mut script = String::from("printf '%s\\0'");
        for word in words {
            script.push(' ');
            script.push_str(&shell_word(OsString::from_vec(word.clone())));
        }
        let output = Command::new("sh").arg("-c").arg(script).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let words = output.stdout.strip_suffix(b"\0").unwrap();
        words.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect()
    }

    proptest! {
        #[test]
        fn a_shell_takes_a_word_for_exactly_its_bytes(
            words in prop::collection::vec(hostile(), 1..40)
        ) {
            prop_assert_eq!(obeyed(&words), words);
        }

        #[test]
        fn a_comment_is_one_line_that_does_nothing(text in hostile()) {
            let comment = shell_comment(&String::from_utf8_lossy(&text));
            prop_assert_eq!(comment.matches('\n').count(), 1);
            let output = Command::new("sh").arg("-c").arg(&comment).output().unwrap();
            prop_assert!(output.status.success() && output.stderr.is_empty());
        }

        #[test]
        fn nothing_printable_is_obeyed_by_a_terminal(text in hostile()) {
            let text = String::from_utf8_lossy(&text);
            prop_assert!(printable(&text).chars().all(is_harmless));
            let lines = printable_lines(&text);
            let is_kept = |letter: char| matches!(letter, '\n' | '\t');
            prop_assert!(lines.chars().all(|letter| is_kept(letter) || is_harmless(letter)));
            prop_assert_eq!(lines.matches(is_kept).count(), text.matches(is_kept).count());
        }

        #[test]
        fn json_keeps_its_meaning(text in hostile()) {
            let text = String::from_utf8_lossy(&text);
            let document = json(&serde_json::to_string_pretty(&[&text]).unwrap());
            prop_assert!(document.chars().all(|letter| letter == '\n' || is_harmless(letter)));
            prop_assert_eq!(serde_json::from_str::<Vec<String>>(&document).unwrap(), [text]);
        }
    }

    #[test]
    fn words_that_end_in_line_feeds_or_look_like_options_stay_themselves() {
        let words =
            [&b"-n"[..], b"--", b"", b"\n", b"a\n\n", b"\xff\n", b"\xe2\x80\xaeexe", b"#x", b"~"];
        let words = words.map(<[u8]>::to_vec);
        assert_eq!(obeyed(&words), words);
    }
}
