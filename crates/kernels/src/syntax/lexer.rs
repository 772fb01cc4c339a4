//! Text → tokens: names, numbers, strings and symbols, with lines and indentation as Python has them.
use super::{Parsed, Span, SyntaxError};
use std::fmt;

#[derive(Clone, PartialEq, Debug)]
pub enum TokenKind {
    Name(String),
    Int(i128),
    Float(f64),
    /// The bytes between the quotes.
    Str {
        prefix: String,
        inner: Span,
    },
    Symbol(&'static str),
    Newline,
    Indent,
    Dedent,
    End,
}

impl fmt::Display for TokenKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TokenKind::Name(name) => write!(f, "`{name}`"),
            TokenKind::Int(value) => write!(f, "`{value}`"),
            TokenKind::Float(value) => write!(f, "`{value}`"),
            TokenKind::Str { .. } => f.write_str("a string"),
            TokenKind::Symbol(symbol) => write!(f, "`{symbol}`"),
            TokenKind::Newline => f.write_str("the end of the line"),
            TokenKind::Indent => f.write_str("an indented line"),
            TokenKind::Dedent => f.write_str("the end of the block"),
            TokenKind::End => f.write_str("the end of the source"),
        }
    }
}

#[derive(Clone, PartialEq, Debug)]
pub struct Token {
    pub span: Span,
    pub kind: TokenKind,
}

/// Longer symbols come before their prefixes.
const SYMBOLS: [&str; 47] = [
    "**=", "//=", ">>=", "<<=", "...", "!=", "%=", "&=", "**", "*=", "+=", "-=", "->", "//", "/=", ":=", "<<", "<=",
    "==", ">=", ">>", "@=", "^=", "|=", "%", "&", "(", ")", "*", "+", ",", "-", ".", "/", ":", ";", "<", "=", ">", "@",
    "[", "]", "^", "{", "|", "}", "~",
];

pub fn tokens(text: &str) -> Parsed<Vec<Token>> {
    let mut lexer = Lexer { text, bytes: text.as_bytes(), at: 0, brackets: 0, indents: vec![0], tokens: vec![] };
    lexer.line_start()?;
    lexer.run()?;
    Ok(lexer.tokens)
}

/// The tokens of an expression in a part of a text; lines mean nothing in it.
pub fn tokens_within(text: &str, part: Span) -> Parsed<Vec<Token>> {
    let text = &text[..part.end as usize];
    let at = part.start as usize;
    let mut lexer = Lexer { text, bytes: text.as_bytes(), at, brackets: 1, indents: vec![0], tokens: vec![] };
    lexer.run()?;
    Ok(lexer.tokens)
}

struct Lexer<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    /// Open brackets: newlines and indentation mean nothing inside.
    brackets: usize,
    indents: Vec<usize>,
    tokens: Vec<Token>,
}

impl Lexer<'_> {
    fn run(&mut self) -> Parsed<()> {
        while let Some(byte) = self.byte(0) {
            match byte {
                b' ' | b'\t' | b'\r' | 0x0c => self.at += 1,
                b'#' => self.skip_comment(),
                b'\n' => self.newline()?,
                b'\\' if self.byte(1) == Some(b'\n') => self.at += 2,
                b'\\' if self.byte(1) == Some(b'\r') && self.byte(2) == Some(b'\n') => self.at += 3,
                b'0'..=b'9' => self.number()?,
                b'.' if self.byte(1).is_some_and(|b| b.is_ascii_digit()) => self.number()?,
                b'"' | b'\'' => self.string(self.at)?,
                _ if is_name(byte) => self.name()?,
                _ => self.symbol()?,
            }
        }
        if !matches!(self.tokens.last().map(|t| &t.kind), None | Some(TokenKind::Newline)) {
            self.push(self.at, TokenKind::Newline);
        }
        while self.indents.len() > 1 {
            self.indents.pop();
            self.push(self.at, TokenKind::Dedent);
        }
        self.push(self.at, TokenKind::End);
        Ok(())
    }
    fn byte(&self, ahead: usize) -> Option<u8> {
        self.bytes.get(self.at + ahead).copied()
    }
    fn push(&mut self, start: usize, kind: TokenKind) {
        let span = Span { start: start as u32, end: self.at as u32 };
        self.tokens.push(Token { span, kind });
    }
    fn error<T>(&self, start: usize, message: impl Into<String>) -> Parsed<T> {
        let span = Span { start: start as u32, end: (self.at.max(start + 1)) as u32 };
        Err(SyntaxError { span, message: message.into() })
    }
    fn skip_comment(&mut self) {
        while self.byte(0).is_some_and(|b| b != b'\n') {
            self.at += 1;
        }
    }
    fn newline(&mut self) -> Parsed<()> {
        let start = self.at;
        self.at += 1;
        if self.brackets > 0 {
            return Ok(());
        }
        if !matches!(
            self.tokens.last().map(|t| &t.kind),
            None | Some(TokenKind::Newline | TokenKind::Indent | TokenKind::Dedent)
        ) {
            self.push(start, TokenKind::Newline);
        }
        self.line_start()
    }
    /// Indentation of the next line that holds something.
    fn line_start(&mut self) -> Parsed<()> {
        loop {
            let mut width = 0;
            while let Some(byte @ (b' ' | b'\t' | b'\r' | 0x0c)) = self.byte(0) {
                width = if byte == b'\t' { (width / 8 + 1) * 8 } else { width + 1 };
                self.at += 1;
            }
            match self.byte(0) {
                None => return Ok(()),
                Some(b'#') => self.skip_comment(),
                Some(b'\n') => self.at += 1,
                Some(_) => return self.indent(width),
            }
        }
    }
    fn indent(&mut self, width: usize) -> Parsed<()> {
        let current = self.indents.last().copied().unwrap_or(0);
        if width > current {
            self.indents.push(width);
            self.push(self.at, TokenKind::Indent);
        }
        while self.indents.last().is_some_and(|i| *i > width) {
            self.indents.pop();
            self.push(self.at, TokenKind::Dedent);
        }
        if self.indents.last() != Some(&width) {
            return self.error(self.at, "the indentation fits no block around it");
        }
        Ok(())
    }
    fn name(&mut self) -> Parsed<()> {
        let start = self.at;
        while self.byte(0).is_some_and(|b| is_name(b) || b.is_ascii_digit()) {
            self.at += 1;
        }
        let name = self.text[start..self.at].to_string();
        let quoted = matches!(self.byte(0), Some(b'"' | b'\''));
        if quoted && name.len() <= 2 && name.chars().all(|c| "rRbBuUfF".contains(c)) {
            return self.string(start);
        }
        self.push(start, TokenKind::Name(name));
        Ok(())
    }
    fn number(&mut self) -> Parsed<()> {
        let start = self.at;
        let radix = match (self.byte(0), self.byte(1)) {
            (Some(b'0'), Some(b'x' | b'X')) => 16,
            (Some(b'0'), Some(b'o' | b'O')) => 8,
            (Some(b'0'), Some(b'b' | b'B')) => 2,
            _ => 10,
        };
        if radix != 10 {
            self.at += 2;
            while self.byte(0).is_some_and(|b| b.is_ascii_alphanumeric() || b == b'_') {
                self.at += 1;
            }
            let digits = self.text[start + 2..self.at].replace('_', "");
            return match i128::from_str_radix(&digits, radix) {
                Ok(value) => {
                    self.push(start, TokenKind::Int(value));
                    Ok(())
                }
                Err(_) => self.error(start, "the number cannot be read"),
            };
        }
        self.digits();
        let mut float = false;
        if self.byte(0) == Some(b'.') {
            float = true;
            self.at += 1;
            self.digits();
        }
        let sign = usize::from(matches!(self.byte(1), Some(b'+' | b'-')));
        if matches!(self.byte(0), Some(b'e' | b'E')) && self.byte(1 + sign).is_some_and(|b| b.is_ascii_digit()) {
            float = true;
            self.at += 1 + sign;
            self.digits();
        }
        let digits = self.text[start..self.at].replace('_', "");
        let kind = match float {
            true => digits.parse().ok().map(TokenKind::Float),
            false => digits.parse().ok().map(TokenKind::Int),
        };
        match kind {
            Some(_) if self.byte(0).is_some_and(is_name) => self.error(start, "the number ends in a letter"),
            Some(kind) => {
                self.push(start, kind);
                Ok(())
            }
            None => self.error(start, "the number is too large"),
        }
    }
    fn digits(&mut self) {
        while self.byte(0).is_some_and(|b| b.is_ascii_digit() || b == b'_') {
            self.at += 1;
        }
    }
    /// A string whose prefix starts at `start`, and whose quotes come next.
    fn string(&mut self, start: usize) -> Parsed<()> {
        let prefix = self.text[start..self.at].to_lowercase();
        let quote = self.byte(0).unwrap_or(b'"');
        let triple = self.byte(1) == Some(quote) && self.byte(2) == Some(quote);
        let width = if triple { 3 } else { 1 };
        self.at += width;
        let from = self.at;
        loop {
            match self.byte(0) {
                None => return self.error(start, "the string has no end"),
                Some(b'\n') if !triple => return self.error(start, "the string has no end on its line"),
                Some(b'\\') => self.at += 2,
                Some(byte) if byte == quote && (0..width).all(|i| self.byte(i) == Some(quote)) => break,
                Some(_) => self.at += 1,
            }
        }
        let inner = Span { start: from as u32, end: self.at as u32 };
        self.at += width;
        self.push(start, TokenKind::Str { prefix, inner });
        Ok(())
    }
    fn symbol(&mut self) -> Parsed<()> {
        let start = self.at;
        let rest = &self.bytes[self.at..];
        let Some(symbol) = SYMBOLS.iter().find(|s| rest.starts_with(s.as_bytes())) else {
            return self.error(start, "this character has no meaning in Python");
        };
        match *symbol {
            "(" | "[" | "{" => self.brackets += 1,
            ")" | "]" | "}" => self.brackets = self.brackets.saturating_sub(1),
            _ => {}
        }
        self.at += symbol.len();
        self.push(start, TokenKind::Symbol(symbol));
        Ok(())
    }
}

/// Letters, `_`, and everything beyond ASCII.
fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || byte == b'_' || byte >= 0x80
}
