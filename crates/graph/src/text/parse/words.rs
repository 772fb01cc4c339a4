//! The parser's building blocks: names, types, attributes, and token access.
use super::{Parsed, Parser};
use crate::ops::Attr;
use crate::text::{
    lex::{Token, error},
    ops::Attrs,
};
use crate::{DType, Scalar, Source, Type, infer::check_type};

impl Parser<'_> {
    /// Zero or more `key=value`.
    pub(super) fn attrs(&mut self) -> Parsed<Attrs> {
        let mut attrs: Vec<(String, Attr)> = Vec::new();
        while let (Token::Word(key), Token::Punct('=')) = (self.peek().clone(), self.peek_at(1)) {
            if attrs.iter().any(|(k, _)| *k == key) {
                return self.fail(format!("{key}= is given twice"));
            }
            self.next += 2;
            attrs.push((key, self.attr()?));
            self.eat(',');
        }
        Ok(Attrs(attrs))
    }

    fn attr(&mut self) -> Parsed<Attr> {
        if self.eat('[') {
            return self.attr_list();
        }
        match self.advance() {
            Token::Int(v) => Ok(Attr::Int(v)),
            Token::Str(s) => Ok(Attr::Str(s)),
            t => match (t.scalar(), t) {
                (Some(s), _) => Ok(Attr::Scalar(s)),
                (None, Token::Word(w)) => Ok(Attr::Word(w)),
                (None, t) => self.fail_back(format!("expected an attribute's value, found {}", t.describe())),
            },
        }
    }

    fn attr_list(&mut self) -> Parsed<Attr> {
        let (mut numbers, mut types) = (Vec::new(), Vec::new());
        while !self.eat(']') {
            match self.peek() {
                Token::Int(v) if types.is_empty() => {
                    numbers.push(*v);
                    self.next += 1;
                }
                Token::Word(_) if numbers.is_empty() => types.push(self.ty()?),
                other => {
                    return self.fail(format!("a list holds numbers or types; found {}", other.describe()));
                }
            }
            if !self.eat(',') {
                self.punct(']')?;
                break;
            }
        }
        Ok(if types.is_empty() { Attr::List(numbers) } else { Attr::Types(types) })
    }

    /// `f32[8,128]`; `f32` alone has rank 0.
    pub(super) fn ty(&mut self) -> Parsed<Type> {
        let place = self.place();
        let dtype: DType = match self.advance() {
            Token::Word(w) => w.parse().map_err(|e: String| error(self.text, place, e))?,
            other => return self.fail_back(format!("expected a type, as f32[8,128], found {}", other.describe())),
        };
        let mut shape = Vec::new();
        if self.eat('[') {
            while !self.eat(']') {
                match self.advance() {
                    Token::Int(v) if usize::try_from(v).is_ok() => shape.push(v as usize),
                    other => return self.fail_back(format!("expected a size, found {}", other.describe())),
                }
                if !self.eat(',') {
                    self.punct(']')?;
                    break;
                }
            }
        }
        let ty = Type { dtype, shape };
        check_type(&ty).map_err(|e| error(self.text, place, e))?;
        Ok(ty)
    }

    /// `("module", "file:line")`.
    pub(super) fn source(&mut self) -> Parsed<Source> {
        self.punct('(')?;
        let module = self.string()?;
        self.punct(',')?;
        let line = self.string()?;
        self.punct(')')?;
        Ok(Source { module, line })
    }

    pub(super) fn value_name(&mut self) -> Parsed<(usize, String)> {
        let place = self.place();
        match self.advance() {
            Token::Value(name) => Ok((place, name)),
            other => self.fail_back(format!("expected a value's name, as %0, found {}", other.describe())),
        }
    }
    pub(super) fn string(&mut self) -> Parsed<String> {
        match self.advance() {
            Token::Str(s) => Ok(s),
            other => self.fail_back(format!("expected a string in quotes, found {}", other.describe())),
        }
    }
    pub(super) fn scalar(&mut self) -> Parsed<Scalar> {
        match self.peek().scalar() {
            Some(s) => {
                self.next += 1;
                Ok(s)
            }
            None => self.fail(format!("expected a number, true or false, found {}", self.peek().describe())),
        }
    }
    pub(super) fn keyword(&mut self, word: &str) -> Parsed<()> {
        match self.peek() {
            Token::Word(w) if w == word => {
                self.next += 1;
                Ok(())
            }
            other => self.fail(format!("expected `{word}`, found {}", other.describe())),
        }
    }
    pub(super) fn punct(&mut self, c: char) -> Parsed<()> {
        if self.eat(c) { Ok(()) } else { self.fail(format!("expected `{c}`, found {}", self.peek().describe())) }
    }
    pub(super) fn eat(&mut self, c: char) -> bool {
        let found = *self.peek() == Token::Punct(c);
        self.next += usize::from(found);
        found
    }
    pub(super) fn peek(&self) -> &Token {
        self.peek_at(0)
    }
    fn peek_at(&self, ahead: usize) -> &Token {
        self.tokens.get(self.next + ahead).map_or(&Token::End, |t| &t.0)
    }
    pub(super) fn place(&self) -> usize {
        self.tokens.get(self.next).map_or(self.text.len(), |t| t.1)
    }
    pub(super) fn advance(&mut self) -> Token {
        let t = self.peek().clone();
        self.next += 1;
        t
    }
    pub(super) fn fail<T>(&self, what: impl Into<String>) -> Parsed<T> {
        Err(error(self.text, self.place(), what))
    }
    /// An error at the token just consumed.
    pub(super) fn fail_back<T>(&mut self, what: impl Into<String>) -> Parsed<T> {
        self.next = self.next.saturating_sub(1);
        self.fail(what)
    }
}
