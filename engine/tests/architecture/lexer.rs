//! Just enough of Rust's lexical grammar to tell code from comments, strings and characters.

/// `text` with comments, string and character literals overwritten by spaces. Offsets and line
/// breaks stay as they are.
pub(crate) fn blank(text: &str) -> String {
    let mut blanker = Blanker { bytes: text.as_bytes(), out: text.as_bytes().to_vec(), at: 0 };
    while blanker.at < blanker.bytes.len() {
        blanker.step();
    }
    // Whole characters are overwritten byte by byte, so the rest is still UTF-8.
    String::from_utf8_lossy(&blanker.out).into_owned()
}

struct Blanker<'a> {
    bytes: &'a [u8],
    out: Vec<u8>,
    at: usize,
}

impl Blanker<'_> {
    fn step(&mut self) {
        match self.bytes[self.at] {
            b'/' if self.peek(1) == b'/' => self.erase_to(self.line_end()),
            b'/' if self.peek(1) == b'*' => self.erase_to(self.block_comment_end()),
            b'"' => self.erase_to(self.string_end(self.at + 1)),
            b'\'' => self.erase_to(self.character_end()),
            byte if is_word(byte) => self.word(),
            _ => self.at += 1,
        }
    }

    fn peek(&self, ahead: usize) -> u8 {
        self.bytes.get(self.at + ahead).copied().unwrap_or(0)
    }

    /// Overwrites up to `end`, which may be where we are: then the byte is code, and is skipped.
    fn erase_to(&mut self, end: usize) {
        let end = end.min(self.out.len());
        for byte in &mut self.out[self.at..end] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        self.at = end.max(self.at + 1);
    }

    fn line_end(&self) -> usize {
        let rest = &self.bytes[self.at..];
        self.at + rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len())
    }

    /// Block comments nest in Rust.
    fn block_comment_end(&self) -> usize {
        let (mut at, mut depth) = (self.at, 0_usize);
        while at < self.bytes.len() {
            match &self.bytes[at..self.bytes.len().min(at + 2)] {
                b"/*" => (depth, at) = (depth + 1, at + 2),
                b"*/" if depth == 1 => return at + 2,
                b"*/" => (depth, at) = (depth - 1, at + 2),
                _ => at += 1,
            }
        }
        at
    }

    fn string_end(&self, mut at: usize) -> usize {
        while at < self.bytes.len() {
            match self.bytes[at] {
                b'"' => return at + 1,
                b'\\' => at += 2,
                _ => at += 1,
            }
        }
        at
    }

    /// The end of a character literal, or where we are when the quote begins a lifetime.
    fn character_end(&self) -> usize {
        if self.peek(1) == b'\\' {
            let from = self.at + 3; // the escaped character itself may be a quote
            let rest = self.bytes.get(from..).unwrap_or(&[]);
            return from + 1 + rest.iter().position(|&byte| byte == b'\'').unwrap_or(rest.len());
        }
        let width = utf8_width(self.peek(1));
        if self.peek(1 + width) == b'\'' { self.at + width + 2 } else { self.at }
    }

    /// A word is code, unless it is the prefix of a raw string.
    fn word(&mut self) {
        let start = self.at;
        while self.at < self.bytes.len() && is_word(self.bytes[self.at]) {
            self.at += 1;
        }
        let raw = matches!(&self.bytes[start..self.at], b"r" | b"br" | b"cr");
        if let Some(end) = raw.then(|| self.raw_string_end()).flatten() {
            self.at = start;
            self.erase_to(end);
        }
    }

    /// The end of the raw string whose hashes and quote begin here, if they do.
    fn raw_string_end(&self) -> Option<usize> {
        let rest = &self.bytes[self.at..];
        let hashes = rest.iter().take_while(|&&byte| byte == b'#').count();
        if rest.get(hashes) != Some(&b'"') {
            return None;
        }
        let mut close = vec![b'"'];
        close.resize(1 + hashes, b'#');
        let body = &rest[hashes + 1..];
        let length = body.windows(close.len()).position(|window| window == close);
        Some(self.at + hashes + 1 + length.map_or(body.len(), |length| length + close.len()))
    }
}

fn utf8_width(first: u8) -> usize {
    match first {
        0xf0.. => 4,
        0xe0.. => 3,
        0xc0.. => 2,
        _ => 1,
    }
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

/// A word, `::`, or one byte of punctuation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Token<'a> {
    pub(crate) text: &'a str,
    pub(crate) at: usize,
}

/// The tokens of `code`, which [`blank`] has been over.
pub(crate) fn tokens(code: &str) -> Vec<Token<'_>> {
    let bytes = code.as_bytes();
    let (mut found, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let length = token_length(&bytes[at..]);
        if !bytes[at].is_ascii_whitespace() {
            found.push(Token { text: &code[at..at + length], at });
        }
        at += length;
    }
    found
}

fn token_length(rest: &[u8]) -> usize {
    match rest {
        [b':', b':', ..] => 2,
        [first, ..] if is_word(*first) => rest.iter().take_while(|&&byte| is_word(byte)).count(),
        _ => 1,
    }
}

/// Index of the token which closes the bracket opened at `open`; the last one if nothing does.
pub(crate) fn closing(tokens: &[Token<'_>], open: usize) -> usize {
    let mut depth = 0_usize;
    for (index, token) in tokens.iter().enumerate().skip(open) {
        match token.text {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" if depth <= 1 => return index,
            "}" | ")" | "]" => depth -= 1,
            _ => {}
        }
    }
    tokens.len() - 1
}

/// Index of the token that ends the item beginning at `start`: a closing brace, or a semicolon.
pub(crate) fn item_end(tokens: &[Token<'_>], start: usize) -> usize {
    let mut index = start;
    while index < tokens.len() {
        match tokens[index].text {
            "{" => return closing(tokens, index),
            "(" | "[" => index = closing(tokens, index),
            ";" => return index,
            _ => {}
        }
        index += 1;
    }
    tokens.len() - 1
}
