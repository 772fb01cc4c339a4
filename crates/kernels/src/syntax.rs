//! Python source of one function → its syntax tree.
//!
//! Takes: the dedented text of a `def` with its decorators. Gives: a tree whose nodes say which bytes of the text they
//! came from, or the first error with its bytes. All of Python that kernels are written in is parsed; what has no
//! meaning in a kernel (`lambda`, `try`, …) becomes a node that says its name, so that it is refused only where it is
//! evaluated: code behind a compile-time condition may hold anything.
//! Never: names, types, values.
mod expressions;
mod lexer;
pub mod module;
mod statements;
mod strings;
pub mod tree;

pub use tree::{FunctionTree, Parameter, Span};

use lexer::{Token, TokenKind};

/// What is wrong with the text, and where.
#[derive(Clone, PartialEq, Debug)]
pub struct SyntaxError {
    pub span: Span,
    pub message: String,
}

pub type Parsed<T> = Result<T, SyntaxError>;

/// The function that a text defines; decorators are skipped.
pub fn parse_function(text: &str) -> Parsed<FunctionTree> {
    let functions = parse_module(text)?;
    let count = functions.len();
    let mut functions = functions.into_iter();
    match (functions.next(), count) {
        (Some(function), 1) => Ok(function),
        _ => Err(SyntaxError {
            span: Span::default(),
            message: format!("the source holds {count} functions; one `def` is needed"),
        }),
    }
}

/// The functions of a text that holds nothing else.
pub fn parse_module(text: &str) -> Parsed<Vec<FunctionTree>> {
    let mut parser = Parser { text, tokens: lexer::tokens(text)?, next: 0, depth: 0 };
    let mut functions = vec![];
    while !parser.at_end() {
        functions.push(parser.function()?);
    }
    Ok(functions)
}

/// Expressions nested deeper than this are refused: the parser and the evaluator recurse.
const MAX_DEPTH: usize = 200;

/// Tokens, and which of them comes next.
struct Parser<'a> {
    text: &'a str,
    tokens: Vec<Token>,
    next: usize,
    depth: usize,
}

impl<'a> Parser<'a> {
    fn at_end(&self) -> bool {
        self.peek() == &TokenKind::End
    }
    /// Tokens end in `End`, which is never passed.
    fn token(&self) -> &Token {
        &self.tokens[self.next.min(self.tokens.len() - 1)]
    }
    fn peek(&self) -> &TokenKind {
        &self.token().kind
    }
    fn peek_after(&self, count: usize) -> &TokenKind {
        &self.tokens[(self.next + count).min(self.tokens.len() - 1)].kind
    }
    fn span(&self) -> Span {
        self.token().span
    }
    /// The end of the token before the next one.
    fn last_end(&self) -> u32 {
        self.next.checked_sub(1).map_or(0, |last| self.tokens[last].span.end)
    }
    fn since(&self, start: u32) -> Span {
        Span { start, end: self.last_end().max(start) }
    }
    fn advance(&mut self) -> TokenKind {
        let kind = self.peek().clone();
        if kind != TokenKind::End {
            self.next += 1;
        }
        kind
    }
    fn at(&self, symbol: &str) -> bool {
        matches!(self.peek(), TokenKind::Symbol(s) if *s == symbol)
    }
    fn at_word(&self, word: &str) -> bool {
        matches!(self.peek(), TokenKind::Name(name) if name == word)
    }
    /// Whether the symbol came next, and was passed.
    fn accept(&mut self, symbol: &str) -> bool {
        let found = self.at(symbol);
        if found {
            self.next += 1;
        }
        found
    }
    fn accept_word(&mut self, word: &str) -> bool {
        let found = self.at_word(word);
        if found {
            self.next += 1;
        }
        found
    }
    fn expect(&mut self, symbol: &str) -> Parsed<()> {
        if self.accept(symbol) { Ok(()) } else { self.unexpected(&format!("`{symbol}`")) }
    }
    fn expect_word(&mut self, word: &str) -> Parsed<()> {
        if self.accept_word(word) { Ok(()) } else { self.unexpected(&format!("`{word}`")) }
    }
    fn identifier(&mut self) -> Parsed<String> {
        match self.peek().clone() {
            TokenKind::Name(name) if !expressions::is_keyword(&name) => {
                self.next += 1;
                Ok(name)
            }
            _ => self.unexpected("a name"),
        }
    }
    fn unexpected<T>(&self, wanted: &str) -> Parsed<T> {
        Err(self.error(format!("{} where {wanted} is needed", self.peek())))
    }
    fn error(&self, message: String) -> SyntaxError {
        SyntaxError { span: self.span(), message }
    }
    /// Runs a rule one level deeper, unless the text is nested too deeply.
    fn nested<T>(&mut self, rule: impl FnOnce(&mut Parser<'a>) -> Parsed<T>) -> Parsed<T> {
        if self.depth >= MAX_DEPTH {
            return Err(
                self.error(format!("the source is nested more than {MAX_DEPTH} levels deep; write it in parts"))
            );
        }
        self.depth += 1;
        let parsed = rule(self);
        self.depth -= 1;
        parsed
    }
}
