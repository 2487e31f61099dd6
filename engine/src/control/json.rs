//! Writes one JSON object on one line. Uses nothing; `snapshot` and `server` are the callers.

use std::fmt::{Display, Write};

/// An object that is being written: a member for each call, the closing brace when it is dropped.
pub(crate) struct Object<'a> {
    out: &'a mut String,
    is_empty: bool,
}

impl<'a> Object<'a> {
    pub(crate) fn begin(out: &'a mut String) -> Self {
        out.push('{');
        Self { out, is_empty: true }
    }

    pub(crate) fn number(&mut self, name: &str, value: u64) -> &mut Self {
        self.literal(name, value)
    }

    pub(crate) fn flag(&mut self, name: &str, value: bool) -> &mut Self {
        self.literal(name, value)
    }

    pub(crate) fn text(&mut self, name: &str, value: impl Display) -> &mut Self {
        self.name(name);
        push_text(self.out, &value.to_string());
        self
    }

    /// A member that is an object itself.
    pub(crate) fn object(&mut self, name: &str, write: impl FnOnce(&mut Object<'_>)) -> &mut Self {
        self.name(name);
        write(&mut Object::begin(self.out));
        self
    }

    /// A member that is an array of objects, one for each item.
    pub(crate) fn objects<T>(
        &mut self,
        name: &str,
        items: impl IntoIterator<Item = T>,
        write: impl Fn(&mut Object<'_>, T),
    ) -> &mut Self {
        self.array(name, items, |out, item| write(&mut Object::begin(out), item))
    }

    /// A member that is an array of texts.
    pub(crate) fn texts<T: AsRef<str>>(
        &mut self,
        name: &str,
        items: impl IntoIterator<Item = T>,
    ) -> &mut Self {
        self.array(name, items, |out, item| push_text(out, item.as_ref()))
    }

    /// A member that is an array of numbers.
    pub(crate) fn numbers(
        &mut self,
        name: &str,
        items: impl IntoIterator<Item = u64>,
    ) -> &mut Self {
        self.array(name, items, |out, item| {
            // A string takes all that is written to it.
            let _ = write!(out, "{item}");
        })
    }

    fn array<T>(
        &mut self,
        name: &str,
        items: impl IntoIterator<Item = T>,
        write: impl Fn(&mut String, T),
    ) -> &mut Self {
        self.name(name);
        self.out.push('[');
        for (index, item) in items.into_iter().enumerate() {
            if index > 0 {
                self.out.push(',');
            }
            write(self.out, item);
        }
        self.out.push(']');
        self
    }

    fn literal(&mut self, name: &str, value: impl Display) -> &mut Self {
        self.name(name);
        // A string takes all that is written to it.
        let _ = write!(self.out, "{value}");
        self
    }

    fn name(&mut self, name: &str) {
        if !std::mem::take(&mut self.is_empty) {
            self.out.push(',');
        }
        push_text(self.out, name);
        self.out.push(':');
    }
}

impl Drop for Object<'_> {
    fn drop(&mut self) {
        self.out.push('}');
    }
}

/// RFC 8259 section 7: "the characters that MUST be escaped: quotation mark, reverse solidus, and
/// the control characters (U+0000 through U+001F)".
fn push_text(out: &mut String, text: &str) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => out.extend(['\\', character]),
            '\0'..='\x1f' => {
                let _ = write!(out, "\\u{:04x}", u32::from(character));
            }
            _ => out.push(character),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut Object<'_>)) -> String {
        let mut out = String::new();
        write(&mut Object::begin(&mut out));
        out
    }

    #[test]
    fn members_of_every_kind_stand_on_one_line() {
        let line = written(|object| {
            object.number("n", u64::MAX).flag("f", true).text("t", "x");
            object.object("o", |_| {}).texts("a", ["1", "2"]);
            object.numbers("ns", [3, 4]).objects("os", [1, 2], |inner, item| {
                inner.number("i", item);
            });
        });
        let expected = r#"{"n":18446744073709551615,"f":true,"t":"x","o":{},"a":["1","2"],"#;
        assert_eq!(line, expected.to_owned() + r#""ns":[3,4],"os":[{"i":1},{"i":2}]}"#);
    }

    #[test]
    fn text_is_escaped() {
        let line = written(|object| {
            object.text("a\"b", "c\\d\ne\u{7}µ");
        });
        assert_eq!(line, r#"{"a\"b":"c\\d\u000ae\u0007µ"}"#);
    }
}
