//! Man pages and shell completions of a program, written from the definition of its command line.
//!
//! Each program of this workspace answers `PROGRAM --write-manual DIR`, for packagers: `DIR/man` and the folders of completions
//! are laid out as below `/usr/share`. The option is not among those of the help.

use crate::printable::to_stderr;
use crate::shipped::shipped;
use clap::builder::PossibleValuesParser;
use clap::{Command, ValueHint};
use clap_complete::Shell;
use clap_mangen::Man;
use spinrpc::config::KEYS;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The first of exactly two arguments that ask for the manual; the other one is the folder.
const OPTION: &str = "--write-manual";

/// Writes the manual if the arguments of this process ask for it, and returns how it went. Called first by programs.
#[must_use]
pub fn requested(command: impl FnOnce() -> Command, section: u8) -> Option<ExitCode> {
    let folder = folder(std::env::args_os())?;
    let command = command();
    let name = command.get_name().to_owned();
    Some(match write(command, section, &folder) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            to_stderr(format_args!("{name}: {}: {error}", folder.display()));
            ExitCode::FAILURE
        }
    })
}

fn folder(arguments: impl IntoIterator<Item = OsString>) -> Option<PathBuf> {
    let mut arguments = arguments.into_iter().skip(1);
    let option = arguments.next()?;
    let folder = arguments.next().filter(|_| option == OPTION)?;
    arguments.next().is_none().then(|| folder.into())
}

/// Writes pages of the program and of each of its commands, in this section of the manual, and completions for three shells.
///
/// # Errors
/// A folder or file cannot be created.
pub fn write(command: Command, section: u8, folder: &Path) -> io::Result<()> {
    let name = command.get_name().to_owned();
    let pages = folder.join(format!("man/man{section}"));
    fs::create_dir_all(&pages)?;
    let mut built = command.clone();
    built.build();
    write_pages(&built, section, &pages)?;
    for (shell, place, file) in [
        (Shell::Bash, "bash-completion/completions", name.clone()),
        (Shell::Zsh, "zsh/site-functions", format!("_{name}")),
        (Shell::Fish, "fish/vendor_completions.d", format!("{name}.fish")),
    ] {
        let place = folder.join(place);
        fs::create_dir_all(&place)?;
        fs::write(place.join(file), completions(&command, shell, &name))?;
    }
    Ok(())
}

/// Script of a shell. It offers the names of shipped profiles next to files, and the names of keys.
fn completions(command: &Command, shell: Shell, name: &str) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut with_names(command.clone()), name, &mut script);
    let script = String::from_utf8_lossy(&script).into_owned();
    // Values that are known are all that zsh and fish would offer; bash offers files if no value matches.
    let (profiles, first) = (profiles().join(" "), shipped()[0].name);
    let (only_names, with_files) = match shell {
        Shell::Zsh => (format!(":({profiles})"), format!(":{{compadd {profiles}; _files}}")),
        Shell::Fish => (format!("-f -a \"{first}\\t"), format!("-F -a \"{first}\\t")),
        _ => return script,
    };
    script.replace(&only_names, &with_files)
}

/// Gives arguments that take the name of a profile or a key the names that there are. The command line itself takes
/// files, too, and tells of unknown keys in its own words.
fn with_names(command: Command) -> Command {
    let command = command.mut_args(|argument| {
        let wants = |names: &[&str]| {
            let of_argument = argument.get_value_names().unwrap_or_default();
            of_argument.iter().any(|name| names.contains(&name.as_str()))
        };
        let keys = || KEYS.iter().map(|key| key.name);
        if wants(&["PROFILE", "NAME|FILE"]) {
            argument.value_parser(PossibleValuesParser::new(profiles()))
        } else if wants(&["KEY=VALUE"]) {
            // Clap takes names for ever, and the process ends soon.
            let keys = keys().map(|key| -> &'static str { format!("{key}=").leak() });
            // The hint keeps bash from adding a blank.
            argument.value_parser(PossibleValuesParser::new(keys)).value_hint(ValueHint::Other)
        } else if wants(&["KEY"]) {
            let groups = keys().filter_map(|key| Some(key.split_once('.')?.0));
            let groups: BTreeSet<&str> = groups.collect();
            argument.value_parser(PossibleValuesParser::new(keys().chain(groups)))
        } else {
            argument
        }
    });
    command.mut_subcommands(with_names)
}

fn profiles() -> Vec<&'static str> {
    shipped().iter().map(|profile| profile.name).collect()
}

fn write_pages(command: &Command, section: u8, folder: &Path) -> io::Result<()> {
    let name = command.get_display_name().unwrap_or(command.get_name()).to_owned();
    fs::write(folder.join(format!("{name}.{section}")), page(command, section)?)?;
    let commands = command.get_subcommands().filter(|command| !is_hidden(command));
    commands.into_iter().try_for_each(|command| write_pages(command, section, folder))
}

fn is_hidden(command: &Command) -> bool {
    command.is_hide_set() || command.get_name() == "help"
}

fn page(command: &Command, section: u8) -> io::Result<Vec<u8>> {
    let notes = command.get_after_help().or(command.get_after_long_help());
    let notes = notes.map(ToString::to_string).unwrap_or_default();
    // A page has no date: the same source makes the same page.
    let man = Man::new(command.clone()).section(section.to_string());
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    if command.get_arguments().any(|argument| !argument.is_hide_set()) {
        man.render_options_section(&mut page)?;
    }
    if command.get_subcommands().any(|command| !is_hidden(command)) {
        man.render_subcommands_section(&mut page)?;
    }
    page.extend(sections(&notes).as_bytes());
    Ok(page)
}

/// Sections after the help: a line that ends with a colon begins a section.
fn sections(notes: &str) -> String {
    let (mut page, mut is_open) = (String::new(), false);
    for line in notes.trim_end().lines() {
        let title = line.strip_suffix(':').filter(|_| !line.starts_with(' '));
        if title.is_some() || !is_open {
            let end = if is_open { ".fi\n" } else { "" };
            let title = title.unwrap_or("Notes").to_uppercase();
            page.push_str(&format!("{end}.SH \"{}\"\n.nf\n", escaped(&title)));
            is_open = true;
        }
        if title.is_none() {
            page.push_str(&format!("{}\n", escaped(line)));
        }
    }
    if is_open {
        page.push_str(".fi\n");
    }
    page
}

/// A line of text as roff: no control line, and with dashes that can be copied.
fn escaped(line: &str) -> String {
    let text = line.replace('\\', "\\e").replace('-', "\\-").replace('"', "\\(dq");
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_option_with_a_folder_asks_for_the_manual() {
        let asked = |words: &[&str]| folder(words.iter().map(OsString::from));
        assert_eq!(asked(&["tool", "--write-manual", "/d"]), Some("/d".into()));
        for words in [
            &["tool"][..],
            &["tool", "--write-manual"],
            &["tool", "--write-manual", "/d", "x"],
            &["tool", "put", "--write-manual"],
        ] {
            assert_eq!(asked(words), None, "{words:?}");
        }
    }

    #[test]
    fn notes_become_sections_whose_lines_are_kept() {
        let notes = "Examples:\n  tool --all\n.x \\n\n\nExit status: 0";
        let page = ".SH \"EXAMPLES\"\n.nf\n  tool \\-\\-all\n\\&.x \\en\n\nExit status: 0\n.fi\n";
        assert_eq!(sections(notes), page);
        assert_eq!(sections("'a"), ".SH \"NOTES\"\n.nf\n\\&'a\n.fi\n");
        assert_eq!(sections(""), "");
    }
}
