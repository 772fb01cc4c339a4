//! Tokens of the text one by one, and lists of them.
use super::{Parser, Result, fail_at};
use crate::text::lexer::{Kind, Token};

impl Parser {
    pub(super) fn peek(&self) -> &Token {
        self.ahead(0)
    }
    pub(super) fn ahead(&self, n: usize) -> &Token {
        // The list ends in an End token, which is never passed.
        &self.tokens[(self.at + n).min(self.tokens.len() - 1)]
    }
    pub(super) fn next(&mut self) -> Token {
        let t = self.peek().clone();
        if t.kind != Kind::End {
            self.at += 1;
        }
        t
    }
    pub(super) fn fail<T>(&self, what: impl Into<String>) -> Result<T> {
        fail_at(self.peek(), what)
    }
    /// Whether the next token is on the line of the one before.
    pub(super) fn same_line(&self) -> bool {
        self.at > 0 && self.tokens[self.at - 1].line == self.peek().line
    }
    pub(super) fn is(&self, punct: &str) -> bool {
        self.peek().kind == Kind::Punct && self.peek().text == punct
    }
    pub(super) fn is_word(&self, word: &str) -> bool {
        self.peek().kind == Kind::Word && self.peek().text == word
    }
    pub(super) fn eat(&mut self, punct: &str) -> bool {
        let yes = self.is(punct);
        self.at += usize::from(yes);
        yes
    }
    pub(super) fn eat_word(&mut self, word: &str) -> bool {
        let yes = self.is_word(word);
        self.at += usize::from(yes);
        yes
    }
    pub(super) fn expect(&mut self, punct: &str) -> Result<()> {
        if self.eat(punct) {
            return Ok(());
        }
        self.fail(format!("`{punct}` is expected here, not `{}`", self.peek().text))
    }
    pub(super) fn expect_word(&mut self, word: &str) -> Result<()> {
        if self.eat_word(word) {
            return Ok(());
        }
        self.fail(format!("`{word}` is expected here, not `{}`", self.peek().text))
    }
    pub(super) fn word(&mut self, what: &str) -> Result<String> {
        match self.peek().kind {
            Kind::Word => Ok(self.next().text),
            _ => self.fail(format!("{what} is expected here, not `{}`", self.peek().text)),
        }
    }
    pub(super) fn integer<T: std::str::FromStr>(&mut self, what: &str) -> Result<T> {
        let t = self.peek();
        match t.text.parse() {
            Ok(n) if t.kind == Kind::Number => {
                self.at += 1;
                Ok(n)
            }
            _ => self.fail(format!("{what} is expected here, not `{}`", t.text)),
        }
    }
    pub(super) fn list<T>(&mut self, close: &str, mut one: impl FnMut(&mut Parser) -> Result<T>) -> Result<Vec<T>> {
        let mut all = vec![];
        while !self.eat(close) {
            if !all.is_empty() {
                self.expect(",")?;
            }
            all.push(one(self)?);
        }
        Ok(all)
    }
    pub(super) fn numbers<T: std::str::FromStr>(&mut self, what: &str) -> Result<Vec<T>> {
        self.expect("[")?;
        self.list("]", |p| p.integer(what))
    }
}
