//! The grammar of RFC 4506 section 6.3 and RFC 5531 section 12.2, over tokens. Leniencies of rpcgen that
//! real files use are accepted: `struct NAME` as a type, `unsigned` alone, enumerators without value.

use crate::ast::{
    Arm, Basic, Body, Declaration, Definition, Name, Notes, Procedure, Program, Shape, Spec, Union,
    Value, Version,
};
use crate::error::Mistake;
use crate::lexer::{Kind, Token};
use std::collections::BTreeSet;
use winnow::combinator::{alt, cut_err, delimited, opt, preceded, repeat, separated, terminated};
use winnow::error::{ErrMode, ParserError};
use winnow::prelude::*;
use winnow::stream::TokenSlice;
use winnow::token::any;

type Input<'t, 's> = TokenSlice<'t, Token<'s>>;
type Parsed<T> = Result<T, ErrMode<Mistake>>;

impl<'t, 's> ParserError<Input<'t, 's>> for Mistake {
    type Inner = Self;

    fn from_input(input: &Input<'t, 's>) -> Self {
        unexpected(input, "something else")
    }

    fn into_inner(self) -> Result<Self::Inner, Self> {
        Ok(self)
    }
}

/// A definition that is repeated word by word counts once.
pub(crate) fn parse(tokens: &[Token<'_>]) -> Result<Vec<Definition>, Mistake> {
    let mut input = TokenSlice::new(tokens);
    let mut definitions = Vec::new();
    let mut seen = BTreeSet::new();
    while input.first().is_some_and(|token| token.kind != Kind::End) {
        let before = tokens.len() - input.eof_offset();
        match definition(&mut input) {
            // Two files may include a third one, or repeat what it says.
            Ok(definition) => {
                let words = &tokens[before..tokens.len() - input.eof_offset()];
                let words: Vec<Kind<'_>> = words.iter().map(|token| token.kind).collect();
                if seen.insert(words) {
                    definitions.push(definition);
                }
            }
            Err(ErrMode::Backtrack(mistake) | ErrMode::Cut(mistake)) => return Err(mistake),
            Err(ErrMode::Incomplete(_)) => return Err(unexpected(&input, "a definition")),
        }
    }
    Ok(definitions)
}

fn unexpected(input: &Input<'_, '_>, expected: &str) -> Mistake {
    let Some(token) = input.first() else {
        return Mistake::new(0, "the file ends too early", format!("write {expected} here"));
    };
    let found = match &token.kind {
        Kind::Word(word) => format!("`{word}`"),
        Kind::Text(text) => format!("`\"{text}\"`"),
        Kind::Number(number) => format!("`{number}`"),
        Kind::Mark(mark) => format!("`{mark}`"),
        Kind::Note(words) => format!("the annotation `{words}`"),
        Kind::End => "the end of the file".to_owned(),
    };
    Mistake::new(token.at, format!("unexpected {found}"), format!("write {expected} here"))
}

fn token<'t, 's: 't, T>(
    expected: impl AsRef<str>,
    take: impl Fn(&'t Token<'s>) -> Option<T>,
) -> impl FnMut(&mut Input<'t, 's>) -> Parsed<T> {
    move |input| {
        let missing = unexpected(input, expected.as_ref());
        any.verify_map(&take)
            .parse_next(input)
            .map_err(|_: ErrMode<Mistake>| ErrMode::Backtrack(missing))
    }
}

fn mark<'t, 's: 't>(mark: char) -> impl FnMut(&mut Input<'t, 's>) -> Parsed<()> {
    token(format!("`{mark}`"), move |token| (token.kind == Kind::Mark(mark)).then_some(()))
}

/// As [`mark`], where nothing else can stand.
fn then<'t, 's: 't>(expected: char) -> impl FnMut(&mut Input<'t, 's>) -> Parsed<()> {
    let mut parser = mark(expected);
    move |input| cut_err(&mut parser).parse_next(input)
}

fn keyword<'t, 's: 't>(word: &'static str) -> impl FnMut(&mut Input<'t, 's>) -> Parsed<()> {
    token(word, move |token| (token.kind == Kind::Word(word)).then_some(()))
}

const KEYWORDS: &str = "bool case char const default double enum float hyper int long opaque \
    program quadruple short string struct switch typedef union unsigned version void";

fn name(input: &mut Input<'_, '_>) -> Parsed<Name> {
    token("a name", |token| match token.kind {
        Kind::Word(text) if KEYWORDS.split(' ').all(|word| word != text) => {
            Some(Name { text: text.to_owned(), at: token.at })
        }
        _ => None,
    })
    .parse_next(input)
}

fn value(input: &mut Input<'_, '_>) -> Parsed<Value> {
    let number = token("a number or the name of a constant", |token| match token.kind {
        Kind::Number(number) => Some(Value::Number(number, token.at)),
        _ => None,
    });
    alt((name.map(Value::Named), number)).parse_next(input)
}

fn number_of(input: &mut Input<'_, '_>) -> Parsed<Value> {
    preceded(then('='), cut_err(value)).parse_next(input)
}

fn definition(input: &mut Input<'_, '_>) -> Parsed<Definition> {
    let found = alt((constant, type_definition, alias, program.map(Definition::Program)))
        .parse_next(input)
        .map_err(|error| match error {
            ErrMode::Backtrack(_) => ErrMode::Cut(unexpected(
                input,
                "`const`, `typedef`, `enum`, `struct`, `union` or `program`",
            )),
            other => other,
        })?;
    then(';').parse_next(input)?;
    Ok(found)
}

fn constant(input: &mut Input<'_, '_>) -> Parsed<Definition> {
    let name = preceded(keyword("const"), cut_err(name)).parse_next(input)?;
    then('=').parse_next(input)?;
    let text = opt(token("a string", |token| match token.kind {
        Kind::Text(text) => Some(text.to_owned()),
        _ => None,
    }));
    Ok(match { text }.parse_next(input)? {
        Some(text) => Definition::TextConstant { name, text },
        None => Definition::Constant { name, value: cut_err(value).parse_next(input)? },
    })
}

fn alias(input: &mut Input<'_, '_>) -> Parsed<Definition> {
    let at = input.first().map_or(0, |token| token.at);
    let Notes { ddp, bytes } = notes(input)?;
    match preceded(keyword("typedef"), cut_err(declaration)).parse_next(input)? {
        Some(mut alias) => {
            alias.notes.ddp |= ddp;
            alias.notes.bytes |= bytes;
            let name = alias.name.clone();
            Ok(Definition::Type { name, body: Body::Alias(alias) })
        }
        None => Err(ErrMode::Cut(Mistake::new(at, "a typedef of void", "take it out"))),
    }
}

fn type_definition(input: &mut Input<'_, '_>) -> Parsed<Definition> {
    let body = body_after_keyword(input)?;
    let (name, body) = (cut_err(name), cut_err(body)).parse_next(input)?;
    Ok(Definition::Type { name, body })
}

type BodyParser<'t, 's> = fn(&mut Input<'t, 's>) -> Parsed<Body>;

fn body_after_keyword<'t, 's>(input: &mut Input<'t, 's>) -> Parsed<BodyParser<'t, 's>> {
    let body = |token: &Token<'s>| -> Option<BodyParser<'t, 's>> {
        match token.kind {
            Kind::Word("enum") => Some(enum_body),
            Kind::Word("struct") => Some(struct_body),
            Kind::Word("union") => Some(union_body),
            _ => None,
        }
    };
    token("a type", body).parse_next(input)
}

fn enum_body(input: &mut Input<'_, '_>) -> Parsed<Body> {
    let enumerator = (name, opt(preceded(mark('='), cut_err(value))));
    delimited(mark('{'), separated(1.., enumerator, mark(',')), then('}'))
        .map(Body::Enum)
        .parse_next(input)
}

fn struct_body(input: &mut Input<'_, '_>) -> Parsed<Body> {
    let fields = repeat(1.., terminated(field, then(';')));
    delimited(mark('{'), cut_err(fields), then('}')).map(Body::Struct).parse_next(input)
}

/// A declaration that cannot be void.
fn field(input: &mut Input<'_, '_>) -> Parsed<Declaration> {
    let void = unexpected(input, "a type other than void");
    match declaration(input)? {
        Some(declaration) => Ok(declaration),
        None => Err(ErrMode::Cut(void)),
    }
}

fn union_body(input: &mut Input<'_, '_>) -> Parsed<Body> {
    keyword("switch").parse_next(input)?;
    let discriminant = delimited(then('('), cut_err(field), then(')')).parse_next(input)?;
    then('{').parse_next(input)?;
    let arms = cut_err(repeat(1.., arm)).parse_next(input)?;
    let default = preceded((keyword("default"), then(':')), cut_err(declaration));
    let default = opt(terminated(default, then(';'))).parse_next(input)?;
    then('}').parse_next(input)?;
    Ok(Body::Union(Box::new(Union { discriminant, arms, default })))
}

fn arm(input: &mut Input<'_, '_>) -> Parsed<Arm> {
    let case = delimited(keyword("case"), cut_err(value), then(':'));
    let cases = repeat(1.., case).parse_next(input)?;
    let body = terminated(cut_err(declaration), then(';')).parse_next(input)?;
    Ok(Arm { cases, body })
}

/// `None` is void.
fn declaration(input: &mut Input<'_, '_>) -> Parsed<Option<Declaration>> {
    let notes = notes(input)?;
    if opt(keyword("void")).parse_next(input)?.is_some() {
        return Ok(None);
    }
    let spec = spec(input)?;
    let is_optional = opt(mark('*')).parse_next(input)?.is_some();
    let name = cut_err(name).parse_next(input)?;
    let shape = match is_optional {
        true => Shape::Optional,
        false => shape(input)?,
    };
    Ok(Some(Declaration { name, spec, shape, notes }))
}

fn shape(input: &mut Input<'_, '_>) -> Parsed<Shape> {
    let fixed = delimited(mark('['), cut_err(value), then(']')).map(Shape::Fixed);
    let counted = delimited(mark('<'), opt(value), then('>')).map(Shape::Counted);
    Ok(opt(alt((fixed, counted))).parse_next(input)?.unwrap_or(Shape::One))
}

fn notes(input: &mut Input<'_, '_>) -> Parsed<Notes> {
    let mut notes = Notes::default();
    let mut note = opt(token("an annotation", |token| match token.kind {
        Kind::Note(words) => Some((words, token.at)),
        _ => None,
    }));
    while let Some((words, at)) = note.parse_next(input)? {
        for word in words.split_whitespace() {
            match word {
                "ddp" => notes.ddp = true,
                "bytes" => notes.bytes = true,
                _ => {
                    let problem = format!("unknown annotation `{word}`");
                    let mistake = Mistake::new(at, problem, "there are `ddp` and `bytes`");
                    return Err(ErrMode::Cut(mistake));
                }
            }
        }
    }
    Ok(notes)
}

fn spec(input: &mut Input<'_, '_>) -> Parsed<Spec> {
    alt((basic, inline, name.map(Spec::Named))).parse_next(input).map_err(|error| match error {
        ErrMode::Backtrack(_) => ErrMode::Backtrack(unexpected(input, "a type")),
        other => other,
    })
}

fn basic(input: &mut Input<'_, '_>) -> Parsed<Spec> {
    let word = token("a type", |token| match token.kind {
        Kind::Word(word) => Some((word, token.at)),
        _ => None,
    });
    let (word, at) = { word }.parse_next(input)?;
    let mut unsigned = opt(alt((
        alt((keyword("int"), keyword("long"))).value(Basic::UnsignedInt),
        keyword("hyper").value(Basic::UnsignedHyper),
        keyword("short").value(Basic::UnsignedShort),
        keyword("char").value(Basic::UnsignedChar),
    )));
    let basic = match word {
        // A `long` is a word in a message, whatever it is in C.
        "int" | "long" => Basic::Int,
        "unsigned" => unsigned.parse_next(input)?.unwrap_or(Basic::UnsignedInt),
        "hyper" => Basic::Hyper,
        "float" => Basic::Float,
        "double" => Basic::Double,
        "bool" => Basic::Bool,
        "char" => Basic::Char,
        "short" => Basic::Short,
        "opaque" => return Ok(Spec::Opaque),
        "string" => return Ok(Spec::Text),
        "quadruple" => {
            let problem = "the type `quadruple` is not supported";
            return Err(ErrMode::Cut(Mistake::new(at, problem, "declare it as `opaque x[16]`")));
        }
        _ => return Err(ErrMode::Backtrack(unexpected(input, "a type"))),
    };
    Ok(Spec::Basic(basic))
}

/// `struct NAME` as a type, or a body in the place of a type.
fn inline(input: &mut Input<'_, '_>) -> Parsed<Spec> {
    let body = body_after_keyword(input)?;
    let body = body.map(|body| Spec::Inline(Box::new(body)));
    cut_err(alt((name.map(Spec::Named), body))).parse_next(input)
}

fn program(input: &mut Input<'_, '_>) -> Parsed<Program> {
    let name = preceded(keyword("program"), cut_err(name)).parse_next(input)?;
    let versions =
        delimited(then('{'), cut_err(repeat(1.., version)), then('}')).parse_next(input)?;
    Ok(Program { name, versions, number: number_of(input)? })
}

fn version(input: &mut Input<'_, '_>) -> Parsed<Version> {
    let name = preceded(keyword("version"), cut_err(name)).parse_next(input)?;
    let procedures = repeat(1.., procedure);
    let procedures = delimited(then('{'), cut_err(procedures), then('}')).parse_next(input)?;
    let number = terminated(number_of, then(';')).parse_next(input)?;
    Ok(Version { name, number, procedures })
}

fn procedure(input: &mut Input<'_, '_>) -> Parsed<Procedure> {
    let result = parameter(input)?;
    let name = cut_err(name).parse_next(input)?;
    let comma = token("`,` or `)`", |token| (token.kind == Kind::Mark(',')).then_some(()));
    let arguments: Vec<Option<Spec>> =
        delimited(then('('), separated(1.., cut_err(argument), comma), then(')'))
            .parse_next(input)?;
    let number = terminated(number_of, then(';')).parse_next(input)?;
    Ok(Procedure { name, number, result, arguments: arguments.into_iter().flatten().collect() })
}

/// An argument may have a name, which says nothing on the wire.
fn argument(input: &mut Input<'_, '_>) -> Parsed<Option<Spec>> {
    terminated(parameter, opt(name)).parse_next(input)
}

/// `None` is void.
fn parameter(input: &mut Input<'_, '_>) -> Parsed<Option<Spec>> {
    alt((keyword("void").value(None), spec.map(Some))).parse_next(input)
}
