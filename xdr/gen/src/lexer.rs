//! Splits a description into tokens (RFC 4506 section 6.2). Used by the parser.

use crate::error::Mistake;
use std::ops::Range;
use winnow::ascii::multispace1;
use winnow::combinator::{alt, delimited, preceded};
use winnow::error::{ContextError, ErrMode};
use winnow::prelude::*;
use winnow::stream::{LocatingSlice, Location};
use winnow::token::{any, one_of, rest, take_till, take_until, take_while};

/// Deepest nesting of braces. The parser recurses where types nest.
const NESTING_MAX: usize = 32;

/// A word of the description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind<'t> {
    /// A name or a keyword.
    Word(&'t str),
    /// A number, in the range of the discriminants and sizes of XDR.
    Number(i128),
    /// A bracket, or another character of the grammar.
    Mark(char),
    /// An annotation: the words of `/*@ ... */`.
    Note(&'t str),
    /// The end of the file.
    End,
}

/// A word and its place in the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Token<'t> {
    pub(crate) kind: Kind<'t>,
    pub(crate) at: Range<usize>,
}

type Input<'t> = LocatingSlice<&'t str>;
type Lexed<T> = Result<T, ErrMode<ContextError>>;

/// All tokens of `text`; the last is [`Kind::End`].
pub(crate) fn tokens(text: &str) -> Result<Vec<Token<'_>>, Mistake> {
    let mut input = LocatingSlice::new(text);
    let (mut tokens, mut nesting) = (Vec::new(), 0usize);
    loop {
        let start = input.current_token_start();
        let lexed = piece(&mut input);
        let at = start..input.current_token_start();
        match lexed {
            Ok(Piece::Token(kind)) => {
                nesting = nested(&kind, nesting, &at)?;
                let is_end = kind == Kind::End;
                tokens.push(Token { kind, at });
                if is_end {
                    return Ok(tokens);
                }
            }
            Ok(Piece::Blank) => {}
            Err(_) => return Err(bad_text(text, start)),
        }
    }
}

fn nested(kind: &Kind<'_>, nesting: usize, at: &Range<usize>) -> Result<usize, Mistake> {
    let nesting = match kind {
        Kind::Mark('{') => nesting + 1,
        Kind::Mark('}') => nesting.saturating_sub(1),
        _ => nesting,
    };
    if nesting > NESTING_MAX {
        let problem = format!("types are nested more than {NESTING_MAX} deep");
        return Err(Mistake::new(at.clone(), problem, "give the inner types names of their own"));
    }
    Ok(nesting)
}

/// A token, or text between tokens.
#[derive(Clone)]
enum Piece<'t> {
    Token(Kind<'t>),
    Blank,
}

fn piece<'t>(input: &mut Input<'t>) -> Lexed<Piece<'t>> {
    if input.is_empty() {
        return Ok(Piece::Token(Kind::End));
    }
    alt((
        multispace1.value(Piece::Blank),
        pass_through.value(Piece::Blank),
        note.map(|words| Piece::Token(Kind::Note(words))),
        comment.value(Piece::Blank),
        word.map(|word| Piece::Token(Kind::Word(word))),
        number.map(|number| Piece::Token(Kind::Number(number))),
        one_of(MARKS).map(|mark| Piece::Token(Kind::Mark(mark))),
    ))
    .parse_next(input)
}

const MARKS: [char; 13] = ['{', '}', '(', ')', '[', ']', '<', '>', ';', ':', ',', '=', '*'];

/// A line that rpcgen hands on to its output.
fn pass_through<'t>(input: &mut Input<'t>) -> Lexed<&'t str> {
    preceded('%', take_till(0.., '\n')).parse_next(input)
}

fn note<'t>(input: &mut Input<'t>) -> Lexed<&'t str> {
    delimited("/*@", take_until(0.., "*/"), "*/").map(str::trim).parse_next(input)
}

fn comment<'t>(input: &mut Input<'t>) -> Lexed<&'t str> {
    let block = delimited("/*", take_until(0.., "*/"), "*/");
    let line = preceded("//", take_till(0.., '\n'));
    alt((block, line)).parse_next(input)
}

fn word<'t>(input: &mut Input<'t>) -> Lexed<&'t str> {
    let letters = |next: char| next.is_ascii_alphanumeric() || next == '_';
    (one_of(|next: char| next.is_ascii_alphabetic() || next == '_'), take_while(0.., letters))
        .take()
        .parse_next(input)
}

/// Decimal, hexadecimal or octal, as in C.
fn number(input: &mut Input<'_>) -> Lexed<i128> {
    let digits = take_while(1.., |next: char| next.is_ascii_alphanumeric());
    let unsigned = digits.verify_map(|digits: &str| {
        let (digits, radix) = match digits.strip_prefix("0x").or(digits.strip_prefix("0X")) {
            Some(hexadecimal) => (hexadecimal, 16),
            None if digits.len() > 1 && digits.starts_with('0') => (digits, 8),
            None => (digits, 10),
        };
        u64::from_str_radix(digits, radix).ok().map(i128::from)
    });
    let (minus, value) = (winnow::combinator::opt('-'), unsigned).parse_next(input)?;
    let value = if minus.is_some() { -value } else { value };
    if value < i128::from(i64::MIN) {
        return Err(ErrMode::Backtrack(ContextError::new()));
    }
    Ok(value)
}

fn bad_text(text: &str, at: usize) -> Mistake {
    let mut left = text.get(at..).unwrap_or_default();
    let found = left;
    let first = any::<&str, ContextError>.parse_next(&mut left).unwrap_or(' ');
    let all = rest::<&str, ContextError>.parse_next(&mut left).unwrap_or_default();
    let (problem, remedy) = match first {
        '/' if all.starts_with('*') => ("a comment without end", "end it with `*/`"),
        '#' => (
            "a line for the C preprocessor, which is not run",
            "run `cpp -P` on the file before, or take the line out",
        ),
        '-' | '0'..='9' => (
            "a number that is malformed or does not fit 64 bits",
            "write it as in C: 10, 0x1f, 017 or -1",
        ),
        _ => {
            let problem = format!("unexpected character {first:?}");
            let end = at + first.len_utf8();
            return Mistake::new(at..end, problem, "take it out");
        }
    };
    Mistake::new(at..at + found.chars().next().map_or(0, char::len_utf8), problem, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(text: &str) -> Vec<Kind<'_>> {
        tokens(text).unwrap().into_iter().map(|token| token.kind).collect()
    }

    #[test]
    fn words_numbers_marks_and_annotations_are_told_apart() {
        let found =
            kinds("const A_1 = 0x1F; /* none */ /*@ ddp */ -017 // end\n%#include <x.h>\n9");
        let expected = [
            Kind::Word("const"),
            Kind::Word("A_1"),
            Kind::Mark('='),
            Kind::Number(31),
            Kind::Mark(';'),
            Kind::Note("ddp"),
            Kind::Number(-15),
            Kind::Number(9),
            Kind::End,
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn text_that_is_no_token_is_named_with_its_place() {
        for (text, at, problem) in [
            ("a /* b", 2, "without end"),
            ("#define A 1", 0, "preprocessor"),
            ("x 12z4", 2, "number"),
            ("x 09", 2, "number"),
            ("18446744073709551616", 0, "number"),
            ("-9223372036854775809", 0, "number"),
            ("a ~", 2, "unexpected"),
            ("\u{e4}", 0, "unexpected"),
        ] {
            let mistake = tokens(text).unwrap_err();
            assert_eq!(mistake.at.start, at, "{text}");
            assert!(mistake.problem.contains(problem), "{text}: {}", mistake.problem);
        }
    }

    #[test]
    fn braces_nest_to_a_limit() {
        assert!(tokens(&"{".repeat(NESTING_MAX)).is_ok());
        assert!(tokens(&"{".repeat(NESTING_MAX + 1)).is_err());
    }
}
