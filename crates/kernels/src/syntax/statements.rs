//! Statements, blocks and definitions.
use super::lexer::TokenKind;
use super::tree::{BinaryOp, Expr, ExprKind, FunctionTree, Parameter, ParameterKind, Stmt, StmtKind, WithItem};
use super::{Parsed, Parser};

/// Compound statements that have no meaning in a kernel.
const UNSUPPORTED_BLOCKS: [&str; 5] = ["try", "class", "def", "async", "match"];

/// Simple statements that have no meaning in a kernel.
const UNSUPPORTED: [&str; 9] = ["break", "continue", "del", "global", "import", "from", "nonlocal", "raise", "yield"];

impl Parser<'_> {
    /// A `def`, after its decorators.
    pub(super) fn function(&mut self) -> Parsed<FunctionTree> {
        while self.at("@") {
            while !matches!(self.peek(), TokenKind::Newline | TokenKind::End) {
                self.advance();
            }
            self.advance();
        }
        self.expect_word("def")?;
        let name_span = self.span();
        let name = self.identifier()?;
        self.expect("(")?;
        let parameters = self.parameters()?;
        self.expect(")")?;
        if self.accept("->") {
            self.expression()?;
        }
        let body = self.block()?;
        Ok(FunctionTree { name, name_span, parameters, body })
    }
    fn parameters(&mut self) -> Parsed<Vec<Parameter>> {
        let mut parameters = vec![];
        let mut keyword_only = false;
        while !self.at(")") {
            if self.accept("/") {
                self.accept(",");
                continue;
            }
            let kind = if self.accept("**") {
                ParameterKind::Keywords
            } else if self.accept("*") {
                keyword_only = true;
                if self.accept(",") {
                    continue;
                }
                ParameterKind::Rest
            } else {
                ParameterKind::Plain
            };
            let span = self.span();
            let name = self.identifier()?;
            let annotation = if self.accept(":") { Some(self.expression()?) } else { None };
            let default = if self.accept("=") { Some(self.expression()?) } else { None };
            let keyword_only = keyword_only && kind == ParameterKind::Plain;
            parameters.push(Parameter { name, span, kind, keyword_only, annotation, default });
            if !self.accept(",") {
                break;
            }
        }
        Ok(parameters)
    }
    /// `: statements`, on the same line or indented.
    fn block(&mut self) -> Parsed<Vec<Stmt>> {
        self.expect(":")?;
        if self.peek() != &TokenKind::Newline {
            let mut body = vec![];
            self.simple_line(&mut body)?;
            return Ok(body);
        }
        self.advance();
        if self.peek() != &TokenKind::Indent {
            return self.unexpected("an indented block");
        }
        self.advance();
        let body = self.nested(|parser| {
            let mut body = vec![];
            while !matches!(parser.peek(), TokenKind::Dedent | TokenKind::End) {
                parser.statement(&mut body)?;
            }
            Ok(body)
        })?;
        self.advance();
        Ok(body)
    }
    fn statement(&mut self, body: &mut Vec<Stmt>) -> Parsed<()> {
        let start = self.span().start;
        let word = match self.peek() {
            TokenKind::Name(name) => name.clone(),
            TokenKind::Symbol("@") => "def".to_string(),
            _ => return self.simple_line(body),
        };
        let kind = match &word[..] {
            "if" => self.if_statement()?,
            "for" => self.for_statement()?,
            "while" => self.while_statement()?,
            "with" => self.with_statement()?,
            block if self.opens_unsupported(block) => self.unsupported_block(block)?,
            _ => return self.simple_line(body),
        };
        body.push(Stmt { span: self.since(start), kind });
        Ok(())
    }
    /// `match` is a name unless another name or value follows.
    fn opens_unsupported(&self, word: &str) -> bool {
        let follows = matches!(self.peek_after(1), TokenKind::Name(_) | TokenKind::Int(_) | TokenKind::Str { .. });
        UNSUPPORTED_BLOCKS.contains(&word) && (word != "match" || follows)
    }
    /// `if`, or `elif` as one that stands alone in an `else`.
    fn if_statement(&mut self) -> Parsed<StmtKind> {
        self.advance();
        let test = self.expression()?;
        let body = self.block()?;
        let start = self.span().start;
        let otherwise = if self.at_word("elif") {
            let kind = self.nested(|parser| parser.if_statement())?;
            vec![Stmt { span: self.since(start), kind }]
        } else if self.accept_word("else") {
            self.block()?
        } else {
            vec![]
        };
        Ok(StmtKind::If { test, body, otherwise })
    }
    fn for_statement(&mut self) -> Parsed<StmtKind> {
        self.advance();
        let target = self.target_list()?;
        self.expect_word("in")?;
        let iterable = self.expression_list()?;
        let body = self.block()?;
        let has_else = self.loop_else()?;
        Ok(StmtKind::For { target, iterable, body, has_else })
    }
    fn while_statement(&mut self) -> Parsed<StmtKind> {
        self.advance();
        let test = self.expression()?;
        let body = self.block()?;
        let has_else = self.loop_else()?;
        Ok(StmtKind::While { test, body, has_else })
    }
    fn loop_else(&mut self) -> Parsed<bool> {
        let found = self.accept_word("else");
        if found {
            self.block()?;
        }
        Ok(found)
    }
    fn with_statement(&mut self) -> Parsed<StmtKind> {
        self.advance();
        let mut items = vec![];
        loop {
            let context = self.expression()?;
            let target = if self.accept_word("as") { Some(self.target_list()?) } else { None };
            items.push(WithItem { context, target });
            if !self.accept(",") {
                break;
            }
        }
        let body = self.block()?;
        Ok(StmtKind::With { items, body })
    }
    /// Skips a compound statement with the blocks that continue it.
    fn unsupported_block(&mut self, word: &str) -> Parsed<StmtKind> {
        let name = UNSUPPORTED_BLOCKS.iter().find(|w| **w == word).copied().unwrap_or("block");
        loop {
            while !matches!(self.peek(), TokenKind::Newline | TokenKind::End) {
                self.advance();
            }
            self.advance();
            let mut depth = 0usize;
            while !self.at_end() {
                match self.peek() {
                    TokenKind::Indent => depth += 1,
                    TokenKind::Dedent if depth == 0 => break,
                    TokenKind::Dedent => depth -= 1,
                    _ if depth == 0 => break,
                    _ => {}
                }
                self.advance();
            }
            if !(self.at_word("except") || self.at_word("finally") || (name == "try" && self.at_word("else"))) {
                return Ok(StmtKind::Unsupported(name));
            }
        }
    }
    /// Statements on one line, with semicolons between them.
    fn simple_line(&mut self, body: &mut Vec<Stmt>) -> Parsed<()> {
        loop {
            let start = self.span().start;
            let kind = self.simple()?;
            body.push(Stmt { span: self.since(start), kind });
            let more = self.accept(";");
            if matches!(self.peek(), TokenKind::Newline | TokenKind::End) {
                self.advance();
                return Ok(());
            }
            if !more {
                return self.unexpected("the end of the statement");
            }
        }
    }
    fn simple(&mut self) -> Parsed<StmtKind> {
        let word = match self.peek() {
            TokenKind::Name(name) => name.clone(),
            _ => String::new(),
        };
        match &word[..] {
            "pass" => {
                self.advance();
                return Ok(StmtKind::Pass);
            }
            "return" => {
                self.advance();
                let ends = matches!(self.peek(), TokenKind::Newline | TokenKind::End) || self.at(";");
                return Ok(StmtKind::Return(if ends { None } else { Some(self.expression_list()?) }));
            }
            "assert" => {
                self.advance();
                let test = self.expression()?;
                let message = if self.accept(",") { Some(self.expression()?) } else { None };
                return Ok(StmtKind::Assert { test, message });
            }
            _ => {}
        }
        if let Some(name) = UNSUPPORTED.iter().find(|w| **w == word) {
            while !matches!(self.peek(), TokenKind::Newline | TokenKind::End) && !self.at(";") {
                self.advance();
            }
            return Ok(StmtKind::Unsupported(name));
        }
        self.assignment()
    }
    fn assignment(&mut self) -> Parsed<StmtKind> {
        let head = self.expression_list()?;
        if self.accept(":") {
            let annotation = self.expression()?;
            let value = if self.accept("=") { Some(self.expression_list()?) } else { None };
            return Ok(StmtKind::Annotated { target: head, annotation, value });
        }
        if let TokenKind::Symbol(symbol) = self.peek()
            && let Some(op) = BinaryOp::augmented(symbol)
        {
            self.advance();
            let value = self.expression_list()?;
            return Ok(StmtKind::Augmented { target: head, op, value });
        }
        let mut sides = vec![head];
        while self.accept("=") {
            sides.push(self.expression_list()?);
        }
        let Some(value) = sides.pop() else { return self.unexpected("an expression") };
        if sides.is_empty() {
            return Ok(StmtKind::Expr(value));
        }
        for target in &sides {
            assignable(target).map_err(|message| super::SyntaxError { span: target.span, message })?;
        }
        Ok(StmtKind::Assign { targets: sides, value })
    }
}

/// Whether Python can assign to it.
fn assignable(target: &Expr) -> Result<(), String> {
    match &target.kind {
        ExprKind::Name(_) | ExprKind::Attribute(..) | ExprKind::Subscript(..) => Ok(()),
        ExprKind::Starred(inner) => assignable(inner),
        ExprKind::Tuple(items) | ExprKind::List(items) => items.iter().try_for_each(assignable),
        _ => Err("this cannot be assigned to; write a name".into()),
    }
}
