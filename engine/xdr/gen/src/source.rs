//! Reads descriptions from files: runs the C preprocessor where it is needed, and brings in the files that are included.

use crate::BuildError;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The text of the description at `path`, after those that it includes, with lines that say where each part comes from.
pub(crate) fn read(path: &Path, defines: &[String]) -> Result<String, BuildError> {
    let mut reader = Reader { defines, seen: BTreeSet::new(), text: String::new() };
    reader.add(path)?;
    Ok(reader.text)
}

/// The files that a text was made of, as [`marker`]s name them.
pub(crate) fn files(text: &str) -> BTreeSet<&str> {
    let files = text.lines().filter_map(marker).map(|(_, file)| file);
    files.filter(|file| !file.starts_with('<')).collect()
}

/// The number and file of the line after this one, if the preprocessor wrote it: `# 12 "kv.x" 2`.
pub(crate) fn marker(line: &str) -> Option<(usize, &str)> {
    let (number, file) = line.strip_prefix("# ")?.split_once(" \"")?;
    Some((number.parse().ok()?, file.split_once('"')?.0))
}

struct Reader<'d> {
    defines: &'d [String],
    seen: BTreeSet<PathBuf>,
    text: String,
}

impl Reader<'_> {
    fn add(&mut self, path: &Path) -> Result<(), BuildError> {
        let failed = |source| BuildError::File { path: path.to_owned(), source };
        if !self.seen.insert(path.canonicalize().map_err(failed)?) {
            return Ok(());
        }
        // What is not UTF-8 is in comments, mostly of names.
        let text = std::fs::read(path).map_err(failed)?;
        let mut text = String::from_utf8_lossy(&text).into_owned();
        if !self.defines.is_empty() || text.lines().any(is_directive) {
            text = self.preprocessed(path)?;
        }
        let mut from = path;
        for line in text.lines() {
            from = marker(line).map_or(from, |(_, file)| Path::new(file));
            let other =
                included(line).map(|header| from.with_file_name(header).with_extension("x"));
            if let Some(other) = other.filter(|other| other.is_file()) {
                self.add(&other)?;
            }
        }
        self.text += &format!("# 1 \"{}\"\n{text}\n", path.display());
        Ok(())
    }

    /// As rpcgen has it done for a header: comments stay, since some are annotations. Macros of the system would have the
    /// Rust depend on the machine.
    fn preprocessed(&self, path: &Path) -> Result<String, BuildError> {
        let failed = |problem| BuildError::Preprocessor { path: path.to_owned(), problem };
        let mut cpp = Command::new("cpp");
        cpp.args(["-C", "-undef", "-DRPC_HDR"]).stdin(Stdio::null());
        cpp.args(self.defines.iter().map(|define| format!("-D{define}")));
        let output = cpp.arg(path).output().map_err(|error| {
            failed(format!(
                "{error}; install cpp (Debian: package cpp), or give the text that \
                 `cpp -C -undef -DRPC_HDR` makes of the file on another machine"
            ))
        })?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
        }
    }
}

fn is_directive(line: &str) -> bool {
    line.trim_start().starts_with('#') && marker(line).is_none()
}

/// The header of `%#include "other.h"`, which rpcgen makes of other.x.
fn included(line: &str) -> Option<&str> {
    let directive = line.strip_prefix('%')?.trim_start().strip_prefix('#')?.trim_start();
    let (header, _) =
        directive.strip_prefix("include")?.trim_start().strip_prefix('"')?.split_once('"')?;
    Some(header)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_preprocessor_are_recognized() {
        for (line, expected) in [
            ("# 12 \"kv.x\"", Some((12, "kv.x"))),
            ("# 0 \"<built-in>\" 2", Some((0, "<built-in>"))),
            ("#define A \"b\"", None),
            ("# if \"a\"", None),
            ("# 1", None),
        ] {
            assert_eq!(marker(line), expected, "{line}");
        }
        assert_eq!(included("%#include \"other.h\""), Some("other.h"));
        assert_eq!(included("% # include \"a/b.x\" /* */"), Some("a/b.x"));
        assert_eq!(included("%#include <other.h>"), None);
        assert_eq!(included("#include \"other.x\""), None);
    }
}
