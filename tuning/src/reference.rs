//! The reference of all keys, as a profile that can be copied and edited.

use spinrpc::config::{KEYS, Key};

/// A profile that sets every key to its default and says of each what it does, what is allowed and
/// why the default is what it is. The shipped profile `base` is this text.
pub fn reference() -> String {
    let mut text = String::from(HEAD);
    let mut group = "";
    for key in KEYS {
        if key.parts().0 != group {
            group = key.parts().0;
            text.push_str(&format!("\n[{group}]\n"));
        }
        text.push_str(&entry(key));
    }
    text
}

fn entry(key: &Key) -> String {
    let unit = if key.unit.is_empty() { String::new() } else { format!(" ({})", key.unit) };
    let effect = comment(key.effect);
    let allowed = comment(&format!("Takes {}{unit}. {}", key.allowed(), key.reason));
    format!("{effect}{allowed}{} = {}\n", key.parts().1, key.default_value())
}

/// Words as comment lines no wider than the rest of the sources.
fn comment(words: &str) -> String {
    let mut lines = vec![String::from("#")];
    for word in words.split_whitespace() {
        let full = lines.last().is_none_or(|line| line.chars().count() + 1 + word.len() > WIDTH);
        if full {
            lines.push(String::from("#"));
        }
        if let Some(line) = lines.last_mut() {
            line.push(' ');
            line.push_str(word);
        }
    }
    lines.join("\n") + "\n"
}

const WIDTH: usize = 100;
const HEAD: &str = "\
# Every key with its default: what it does, what it takes, and why the default is what it is.
# To make a profile, include this one and set what differs.
schema = 1
description = \"the defaults of every key\"
";
