//! Checks the man pages and completions that a program writes.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Writes them to `folder`, and expects every option in the help of the program and of its commands in its page and in
/// every completion. Returns the number of pages.
pub(crate) fn check(program: &str, name: &str, section: u8, folder: &Path) -> usize {
    let _ = fs::remove_dir_all(folder);
    let written = Command::new(program).arg("--write-manual").arg(folder).output().unwrap();
    assert!(written.status.success(), "{}", String::from_utf8_lossy(&written.stderr));
    let pages = folder.join(format!("man/man{section}"));
    let of_shells = [
        format!("bash-completion/completions/{name}"),
        format!("zsh/site-functions/_{name}"),
        format!("fish/vendor_completions.d/{name}.fish"),
    ];
    let scripts = of_shells.map(|file| fs::read_to_string(folder.join(file)).unwrap());
    let mut commands = vec![Vec::new()];
    let mut count = 0;
    while let Some(words) = commands.pop() {
        let help = help(program, &words);
        let page = [&[name.to_owned()][..], &words].concat().join("-");
        let page = fs::read_to_string(pages.join(format!("{page}.{section}"))).unwrap();
        count += 1;
        let options = options(&help);
        assert!(options.contains("--help"), "{name} {words:?}: {help}");
        for option in options {
            let in_page = option.replace('-', "\\-");
            assert!(page.contains(&in_page), "{name} {words:?}: {option} is not in {page}");
            // fish leaves the dashes out.
            let bare = option.trim_start_matches('-');
            for script in &scripts {
                let has = script.contains(&option) || script.contains(&format!("-l {bare}"));
                assert!(has, "{name} {words:?}: {option} is not completed");
            }
        }
        let of_help = self::commands(&help);
        commands.extend(of_help.into_iter().map(|command| [&words[..], &[command]].concat()));
    }
    assert_eq!(fs::read_dir(&pages).unwrap().count(), count, "pages of {name}");
    count
}

fn help(program: &str, words: &[String]) -> String {
    let output = Command::new(program).args(words).arg("--help").output().unwrap();
    assert!(output.status.success(), "{words:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Options at the beginnings of lines.
fn options(help: &str) -> BTreeSet<String> {
    let lines = help.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
    let words = lines
        .filter_map(|line| line.split([' ', ',', '=', '[']).find(|word| word.starts_with("--")));
    words.map(str::to_owned).collect()
}

/// Commands of the section with this title.
fn commands(help: &str) -> Vec<String> {
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let lines = lines.take_while(|line| !line.is_empty());
    let names = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names = names.filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help").map(str::to_owned).collect()
}
