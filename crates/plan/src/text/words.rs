//! Splits a plan's text into lines and words.
use crate::BufferId;
use kiln_graph::ValueId;
use std::str::FromStr;

/// Words of one line: quoted strings are one word; so are each `(`, `)`, `,`, `=` and `:`.
pub struct Words<'a> {
    pub rest: &'a str,
}
pub type Parsed<T> = Result<T, String>;
impl<'a> Words<'a> {
    pub fn peek(&mut self) -> Option<char> {
        self.rest = self.rest.trim_start();
        self.rest.chars().next()
    }
    pub fn word(&mut self) -> Parsed<&'a str> {
        let first = self.peek().ok_or("the line ends too early")?;
        let end = match first {
            '(' | ')' | ',' | '=' | ':' => 1,
            _ => self.rest.find(|c: char| c.is_whitespace() || "(),=:".contains(c)).unwrap_or(self.rest.len()),
        };
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        Ok(word)
    }
    pub fn expect(&mut self, want: &str) -> Parsed<()> {
        let found = self.word()?;
        if found == want { Ok(()) } else { Err(format!("expected `{want}`, found `{found}`")) }
    }
    pub fn string(&mut self) -> Parsed<String> {
        self.rest = self.rest.trim_start();
        let mut stream = serde_json::Deserializer::from_str(self.rest).into_iter::<String>();
        let text = stream.next().and_then(Result::ok).ok_or("expected a quoted string")?;
        self.rest = &self.rest[stream.byte_offset()..];
        Ok(text)
    }
    pub fn value<T: FromStr>(&mut self) -> Parsed<T> {
        let word = self.word()?;
        word.parse().map_err(|_| format!("`{word}` is not a valid value here"))
    }
    /// `key=`.
    pub fn key(&mut self, key: &str) -> Parsed<()> {
        self.expect(key)?;
        self.expect("=")
    }
    pub fn keyed<T: FromStr>(&mut self, key: &str) -> Parsed<T> {
        self.key(key)?;
        self.value()
    }
    pub fn strings(&mut self) -> Parsed<Vec<String>> {
        let mut out = vec![];
        while self.peek().is_some() {
            out.push(self.string()?);
        }
        Ok(out)
    }
    pub fn body_value(&mut self) -> Parsed<ValueId> {
        let word = self.word()?;
        let id = word.strip_prefix('%').and_then(|n| n.parse().ok());
        id.map(ValueId).ok_or_else(|| format!("`{word}` is not a value; write it as %3"))
    }
    pub fn buffer(&mut self) -> Parsed<BufferId> {
        let word = self.word()?;
        let id = word.strip_prefix('b').and_then(|n| n.parse().ok());
        id.map(BufferId).ok_or_else(|| format!("`{word}` is not a buffer; write it as b3"))
    }
    pub fn buffers(&mut self) -> Parsed<Vec<BufferId>> {
        let mut out = vec![];
        while self.peek().is_some_and(|c| c != ')') {
            if !out.is_empty() {
                self.expect(",")?;
            }
            out.push(self.buffer()?);
        }
        Ok(out)
    }
    pub fn end(&mut self) -> Parsed<()> {
        if self.peek().is_none() { Ok(()) } else { Err(format!("unexpected `{}` at the end of the line", self.rest)) }
    }
}

pub struct Lines<'a> {
    pub lines: Vec<&'a str>,
    pub at: usize,
}
impl<'a> Lines<'a> {
    /// The next line that is not empty, as words.
    pub fn next(&mut self) -> Parsed<Words<'a>> {
        while self.lines.get(self.at).is_some_and(|l| l.trim().is_empty()) {
            self.at += 1;
        }
        let line = self.lines.get(self.at).ok_or("the text ends too early")?;
        self.at += 1;
        Ok(Words { rest: line })
    }
}
