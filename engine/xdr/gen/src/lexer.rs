//! Splits a description into tokens (RFC 4506 section 6.2). Used by the parser.

use crate::error::Mistake;
use crate::source;

/// Deepest nesting of braces. The parser recurses where types nest.
const NESTING_MAX: usize = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind<'t> {
    Word(&'t str),
    Text(&'t str),
    /// A number, in the range of the discriminants and sizes of XDR.
    Number(i128),
    Mark(char),
    /// An annotation: the words of `/*@ ... */`.
    Note(&'t str),
    End,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Token<'t> {
    pub(crate) kind: Kind<'t>,
    pub(crate) at: usize,
}

/// All tokens of `text`; the last is [`Kind::End`].
pub(crate) fn tokens(text: &str) -> Result<Vec<Token<'_>>, Mistake> {
    let (mut tokens, mut nesting, mut at) = (Vec::new(), 0usize, 0);
    while at < text.len() {
        let left = &text[at..];
        if let Some(length) = blank(left) {
            at += length;
            continue;
        }
        let (kind, length) = token(left).ok_or_else(|| bad_text(left, at))?;
        match kind {
            Kind::Mark('{') => nesting += 1,
            Kind::Mark('}') => nesting = nesting.saturating_sub(1),
            _ => {}
        }
        if nesting > NESTING_MAX {
            let problem = format!("types are nested more than {NESTING_MAX} deep");
            return Err(Mistake::new(at, problem, "give the inner types names of their own"));
        }
        tokens.push(Token { kind, at });
        at += length;
    }
    tokens.push(Token { kind: Kind::End, at });
    Ok(tokens)
}

/// Length of what stands between tokens: white space, a comment, the rest of a line that rpcgen hands on to its output, or
/// that by which the C preprocessor says where the next ones come from.
fn blank(text: &str) -> Option<usize> {
    let line = text.split('\n').next().unwrap_or_default();
    let spaces = text.len() - text.trim_start_matches([' ', '\t', '\r', '\n']).len();
    if spaces > 0 {
        return Some(spaces);
    }
    if text.starts_with('%') || text.starts_with("//") || source::marker(line).is_some() {
        return Some(line.len());
    }
    let comment = text.strip_prefix("/*").filter(|comment| !comment.starts_with('@'))?;
    comment.find("*/").map(|end| end + "/**/".len())
}

const MARKS: [char; 13] = ['{', '}', '(', ')', '[', ']', '<', '>', ';', ':', ',', '=', '*'];

fn token(text: &str) -> Option<(Kind<'_>, usize)> {
    match text.chars().next()? {
        '/' => {
            let (words, _) = text.strip_prefix("/*@")?.split_once("*/")?;
            Some((Kind::Note(words.trim()), words.len() + "/*@*/".len()))
        }
        // What C does with a backslash is not done here.
        '"' => {
            let (characters, _) = text[1..].split_once('"')?;
            let is_plain = !characters.contains(['\\', '\n']);
            is_plain.then_some((Kind::Text(characters), characters.len() + 2))
        }
        '-' | '0'..='9' => number(text),
        'a'..='z' | 'A'..='Z' | '_' => {
            let is_letter = |next: char| next.is_ascii_alphanumeric() || next == '_';
            let length = text.find(|next| !is_letter(next)).unwrap_or(text.len());
            Some((Kind::Word(&text[..length]), length))
        }
        mark => MARKS.contains(&mark).then_some((Kind::Mark(mark), 1)),
    }
}

/// Decimal, hexadecimal or octal, as in C.
fn number(text: &str) -> Option<(Kind<'_>, usize)> {
    let positive = text.strip_prefix('-').unwrap_or(text);
    let end = positive.find(|next: char| !next.is_ascii_alphanumeric());
    let digits = &positive[..end.unwrap_or(positive.len())];
    let length = text.len() - positive.len() + digits.len();
    let (digits, radix) = match digits.strip_prefix("0x").or(digits.strip_prefix("0X")) {
        Some(hexadecimal) => (hexadecimal, 16),
        None if digits.len() > 1 && digits.starts_with('0') => (digits, 8),
        None => (digits, 10),
    };
    let value = i128::from(u64::from_str_radix(digits, radix).ok()?);
    let value = if positive.len() < text.len() { -value } else { value };
    (value >= i128::from(i64::MIN)).then_some((Kind::Number(value), length))
}

fn bad_text(found: &str, at: usize) -> Mistake {
    let first = found.chars().next().unwrap_or_default();
    let (problem, remedy) = match first {
        '/' if found.starts_with("/*") => ("a comment without end", "end it with `*/`"),
        '#' => (
            "a line for the C preprocessor, which runs for files only",
            "give the text that `cpp -C -DRPC_HDR` makes of it",
        ),
        '"' => (
            "a string with a backslash or without end",
            "end it with `\"` on the same line, without backslashes",
        ),
        '-' | '0'..='9' => (
            "a number that is malformed or does not fit 64 bits",
            "write it as in C: 10, 0x1f, 017 or -1",
        ),
        _ => {
            return Mistake::new(at, format!("unexpected character {first:?}"), "take it out");
        }
    };
    Mistake::new(at, problem, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(text: &str) -> Vec<Kind<'_>> {
        tokens(text).unwrap().into_iter().map(|token| token.kind).collect()
    }

    #[test]
    fn words_numbers_marks_and_annotations_are_told_apart() {
        let found = kinds(
            "const A_1 = 0x1F; /* none */ /*@ ddp */ -017 // end\n%#include <x.h>\n# 7 \"t.x\" 2\n9 \"a b\"",
        );
        let expected = [
            Kind::Word("const"),
            Kind::Word("A_1"),
            Kind::Mark('='),
            Kind::Number(31),
            Kind::Mark(';'),
            Kind::Note("ddp"),
            Kind::Number(-15),
            Kind::Number(9),
            Kind::Text("a b"),
            Kind::End,
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn text_that_is_no_token_is_named_with_its_place() {
        for (text, at, problem) in [
            ("a /* b", 2, "without end"),
            ("#define A 1", 0, "preprocessor"),
            ("x \"abc", 2, "string"),
            ("\"a\\n\"", 0, "string"),
            ("x 12z4", 2, "number"),
            ("x 09", 2, "number"),
            ("18446744073709551616", 0, "number"),
            ("-9223372036854775809", 0, "number"),
            ("a ~", 2, "unexpected"),
            ("\u{e4}", 0, "unexpected"),
        ] {
            let mistake = tokens(text).unwrap_err();
            assert_eq!(mistake.at, at, "{text}");
            assert!(mistake.problem.contains(problem), "{text}: {}", mistake.problem);
        }
    }

    #[test]
    fn braces_nest_to_a_limit() {
        assert!(tokens(&"{".repeat(NESTING_MAX)).is_ok());
        assert!(tokens(&"{".repeat(NESTING_MAX + 1)).is_err());
    }
}
