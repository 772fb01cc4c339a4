//! Expressions, by precedence.
use super::lexer::TokenKind;
use super::tree::{BinaryOp, CallArgument, CompareOp, Expr, ExprKind, LogicalOp, Span, Spread, UnaryOp};
use super::{Parsed, Parser};

/// Words that are no names.
const KEYWORDS: [&str; 35] = [
    "False", "None", "True", "and", "as", "assert", "async", "await", "break", "class", "continue", "def", "del",
    "elif", "else", "except", "finally", "for", "from", "global", "if", "import", "in", "is", "lambda", "nonlocal",
    "not", "or", "pass", "raise", "return", "try", "while", "with", "yield",
];

pub fn is_keyword(name: &str) -> bool {
    KEYWORDS.contains(&name)
}

/// Symbols of operators of two sides, loosest first.
const LEVELS: [&[BinaryOp]; 6] = [
    &[BinaryOp::Or],
    &[BinaryOp::Xor],
    &[BinaryOp::And],
    &[BinaryOp::Shl, BinaryOp::Shr],
    &[BinaryOp::Add, BinaryOp::Sub],
    &[BinaryOp::Mul, BinaryOp::Div, BinaryOp::FloorDiv, BinaryOp::Mod, BinaryOp::MatMul],
];

impl Parser<'_> {
    fn node(&self, start: u32, kind: ExprKind) -> Expr {
        Expr { span: self.since(start), kind }
    }

    /// One or more expressions with commas between them: a tuple if there is a comma.
    pub(super) fn expression_list(&mut self) -> Parsed<Expr> {
        let start = self.span().start;
        let mut items = vec![self.starred()?];
        let mut tuple = matches!(items[0].kind, ExprKind::Starred(_));
        while self.accept(",") {
            tuple = true;
            if !self.starts_expression() {
                break;
            }
            items.push(self.starred()?);
        }
        match (tuple, items.pop()) {
            (false, Some(only)) => Ok(only),
            (_, last) => {
                items.extend(last);
                Ok(self.node(start, ExprKind::Tuple(items)))
            }
        }
    }
    fn starts_expression(&self) -> bool {
        match self.peek() {
            TokenKind::Name(name) => {
                !is_keyword(name) || matches!(&name[..], "None" | "True" | "False" | "not" | "lambda" | "await")
            }
            TokenKind::Int(_) | TokenKind::Float(_) | TokenKind::Str { .. } => true,
            TokenKind::Symbol(s) => matches!(*s, "(" | "[" | "{" | "-" | "+" | "~" | "..." | "*"),
            TokenKind::Newline | TokenKind::Indent | TokenKind::Dedent | TokenKind::End => false,
        }
    }
    fn starred(&mut self) -> Parsed<Expr> {
        let start = self.span().start;
        if self.accept("*") {
            let value = self.binary(0)?;
            return Ok(self.node(start, ExprKind::Starred(Box::new(value))));
        }
        self.expression()
    }
    /// An expression without a comma.
    pub(super) fn expression(&mut self) -> Parsed<Expr> {
        self.nested(|parser| parser.assignment_expression())
    }
    fn assignment_expression(&mut self) -> Parsed<Expr> {
        let start = self.span().start;
        let names = matches!(self.peek(), TokenKind::Name(n) if !is_keyword(n));
        if names && matches!(self.peek_after(1), TokenKind::Symbol(":=")) {
            let name = self.identifier()?;
            self.expect(":=")?;
            let value = Box::new(self.expression()?);
            return Ok(self.node(start, ExprKind::Assign { name, value }));
        }
        if self.at_word("lambda") {
            return self.lambda();
        }
        let body = self.logical(LogicalOp::Or)?;
        if !self.at_word("if") {
            return Ok(body);
        }
        self.advance();
        let test = self.logical(LogicalOp::Or)?;
        self.expect_word("else")?;
        let otherwise = self.expression()?;
        let kind = ExprKind::Conditional { test: Box::new(test), body: Box::new(body), otherwise: Box::new(otherwise) };
        Ok(self.node(start, kind))
    }
    fn lambda(&mut self) -> Parsed<Expr> {
        let start = self.span().start;
        self.expect_word("lambda")?;
        while !self.at(":") && !self.at_end() {
            self.advance();
        }
        self.expect(":")?;
        self.expression()?;
        Ok(self.node(start, ExprKind::Unsupported("lambda")))
    }
    fn logical(&mut self, op: LogicalOp) -> Parsed<Expr> {
        let start = self.span().start;
        let word = if op == LogicalOp::Or { "or" } else { "and" };
        let operand = |parser: &mut Self| match op {
            LogicalOp::Or => parser.logical(LogicalOp::And),
            LogicalOp::And => parser.negation(),
        };
        let head = operand(self)?;
        if !self.at_word(word) {
            return Ok(head);
        }
        let mut operands = vec![head];
        while self.accept_word(word) {
            operands.push(operand(self)?);
        }
        Ok(self.node(start, ExprKind::Logical(op, operands)))
    }
    fn negation(&mut self) -> Parsed<Expr> {
        let start = self.span().start;
        if self.accept_word("not") {
            let operand = self.nested(|parser| parser.negation())?;
            return Ok(self.node(start, ExprKind::Unary(UnaryOp::Not, Box::new(operand))));
        }
        self.comparison()
    }
    fn comparison(&mut self) -> Parsed<Expr> {
        let start = self.span().start;
        let left = self.binary(0)?;
        let mut rest = vec![];
        while let Some(op) = self.compare_op() {
            rest.push((op, self.binary(0)?));
        }
        if rest.is_empty() {
            return Ok(left);
        }
        Ok(self.node(start, ExprKind::Compare { left: Box::new(left), rest }))
    }
    fn compare_op(&mut self) -> Option<CompareOp> {
        let op = match self.peek() {
            TokenKind::Symbol("==") => CompareOp::Eq,
            TokenKind::Symbol("!=") => CompareOp::Ne,
            TokenKind::Symbol("<") => CompareOp::Lt,
            TokenKind::Symbol("<=") => CompareOp::Le,
            TokenKind::Symbol(">") => CompareOp::Gt,
            TokenKind::Symbol(">=") => CompareOp::Ge,
            TokenKind::Name(name) if name == "in" => CompareOp::In,
            TokenKind::Name(name) if name == "is" => CompareOp::Is,
            TokenKind::Name(name) if name == "not" => CompareOp::NotIn,
            _ => return None,
        };
        self.advance();
        match op {
            CompareOp::Is if self.accept_word("not") => Some(CompareOp::IsNot),
            CompareOp::NotIn => {
                self.accept_word("in");
                Some(op)
            }
            _ => Some(op),
        }
    }
    pub(super) fn binary(&mut self, level: usize) -> Parsed<Expr> {
        let start = self.span().start;
        let Some(ops) = LEVELS.get(level) else { return self.unary() };
        let mut left = self.binary(level + 1)?;
        while let Some(op) = ops.iter().copied().find(|op| self.at(op.symbol())) {
            self.advance();
            let right = self.binary(level + 1)?;
            left = self.node(start, ExprKind::Binary(op, Box::new(left), Box::new(right)));
        }
        Ok(left)
    }
    fn unary(&mut self) -> Parsed<Expr> {
        let start = self.span().start;
        let op = match self.peek() {
            TokenKind::Symbol("-") => UnaryOp::Minus,
            TokenKind::Symbol("+") => UnaryOp::Plus,
            TokenKind::Symbol("~") => UnaryOp::Invert,
            _ => return self.power(),
        };
        self.advance();
        let operand = self.nested(|parser| parser.unary())?;
        Ok(self.node(start, ExprKind::Unary(op, Box::new(operand))))
    }
    fn power(&mut self) -> Parsed<Expr> {
        let start = self.span().start;
        if self.accept_word("await") {
            self.unary()?;
            return Ok(self.node(start, ExprKind::Unsupported("await")));
        }
        let base = self.postfix()?;
        if !self.accept("**") {
            return Ok(base);
        }
        let exponent = self.nested(|parser| parser.unary())?;
        Ok(self.node(start, ExprKind::Binary(BinaryOp::Pow, Box::new(base), Box::new(exponent))))
    }
    /// Calls, attributes and subscripts.
    fn postfix(&mut self) -> Parsed<Expr> {
        let start = self.span().start;
        let mut value = self.atom()?;
        loop {
            let kind = if self.accept(".") {
                ExprKind::Attribute(Box::new(value), self.identifier()?)
            } else if self.at("(") {
                let arguments = self.arguments()?;
                ExprKind::Call { function: Box::new(value), arguments }
            } else if self.accept("[") {
                let index = self.nested(|parser| parser.index())?;
                self.expect("]")?;
                ExprKind::Subscript(Box::new(value), Box::new(index))
            } else {
                return Ok(value);
            };
            value = self.node(start, kind);
        }
    }
    fn arguments(&mut self) -> Parsed<Vec<CallArgument>> {
        self.expect("(")?;
        let mut arguments = vec![];
        while !self.at(")") {
            arguments.push(self.argument()?);
            if !self.accept(",") {
                break;
            }
        }
        self.expect(")")?;
        Ok(arguments)
    }
    fn argument(&mut self) -> Parsed<CallArgument> {
        let start = self.span().start;
        let (spread, name) = if self.accept("**") {
            (Spread::Dict, None)
        } else if self.accept("*") {
            (Spread::Tuple, None)
        } else if matches!(self.peek_after(1), TokenKind::Symbol("=")) {
            let name = self.identifier()?;
            self.expect("=")?;
            (Spread::No, Some(name))
        } else {
            (Spread::No, None)
        };
        let mut value = self.expression()?;
        if self.at_word("for") {
            self.comprehension_clauses()?;
            value = self.node(start, ExprKind::Unsupported("generator expression"));
        }
        Ok(CallArgument { name, spread, value })
    }
    fn index(&mut self) -> Parsed<Expr> {
        let start = self.span().start;
        let head = self.slice()?;
        if !self.at(",") {
            return Ok(head);
        }
        let mut items = vec![head];
        while self.accept(",") {
            if self.at("]") {
                break;
            }
            items.push(self.slice()?);
        }
        Ok(self.node(start, ExprKind::Tuple(items)))
    }
    fn slice(&mut self) -> Parsed<Expr> {
        let start = self.span().start;
        let lower = if self.at(":") { None } else { Some(self.starred()?) };
        if !self.accept(":") {
            return match lower {
                Some(index) => Ok(index),
                None => self.unexpected("an index"),
            };
        }
        let end = |parser: &Self| parser.at(":") || parser.at("]") || parser.at(",");
        let upper = if end(self) { None } else { Some(self.expression()?) };
        let step = if self.accept(":") && !end(self) { Some(self.expression()?) } else { None };
        let [lower, upper, step] = [lower, upper, step].map(|part| part.map(Box::new));
        Ok(self.node(start, ExprKind::Slice { lower, upper, step }))
    }
    fn atom(&mut self) -> Parsed<Expr> {
        let start = self.span().start;
        let kind = match self.peek().clone() {
            TokenKind::Int(value) => ExprKind::Int(value),
            TokenKind::Float(value) => ExprKind::Float(value),
            TokenKind::Str { .. } => return self.strings(),
            TokenKind::Symbol("...") => ExprKind::Ellipsis,
            TokenKind::Symbol("(") => return self.nested(|parser| parser.parenthesised()),
            TokenKind::Symbol("[") => return self.nested(|parser| parser.list()),
            TokenKind::Symbol("{") => return self.nested(|parser| parser.braces()),
            TokenKind::Name(name) => match &name[..] {
                "None" => ExprKind::None,
                "True" => ExprKind::Bool(true),
                "False" => ExprKind::Bool(false),
                word if is_keyword(word) => return self.unexpected("an expression"),
                _ => ExprKind::Name(name),
            },
            _ => return self.unexpected("an expression"),
        };
        self.advance();
        Ok(self.node(start, kind))
    }
    fn parenthesised(&mut self) -> Parsed<Expr> {
        let start = self.span().start;
        self.expect("(")?;
        if self.accept(")") {
            return Ok(self.node(start, ExprKind::Tuple(vec![])));
        }
        if self.at_word("yield") {
            while !self.at(")") && !self.at_end() {
                self.advance();
            }
            self.expect(")")?;
            return Ok(self.node(start, ExprKind::Unsupported("yield")));
        }
        let mut value = self.expression_list()?;
        if self.at_word("for") {
            self.comprehension_clauses()?;
            value.kind = ExprKind::Unsupported("generator expression");
        }
        self.expect(")")?;
        Ok(Expr { span: self.since(start), ..value })
    }
    fn list(&mut self) -> Parsed<Expr> {
        let start = self.span().start;
        self.expect("[")?;
        if self.accept("]") {
            return Ok(self.node(start, ExprKind::List(vec![])));
        }
        let head = self.starred()?;
        if self.at_word("for") {
            let mut clauses = self.comprehension_clauses()?;
            self.expect("]")?;
            let kind = match (clauses.pop(), clauses.is_empty()) {
                (Some(clause), true) => ExprKind::ListOf {
                    element: Box::new(head),
                    target: Box::new(clause.target),
                    iterable: Box::new(clause.iterable),
                    conditions: clause.conditions,
                },
                _ => ExprKind::Unsupported("nested comprehension"),
            };
            return Ok(self.node(start, kind));
        }
        let mut items = vec![head];
        while self.accept(",") && !self.at("]") {
            items.push(self.starred()?);
        }
        self.expect("]")?;
        Ok(self.node(start, ExprKind::List(items)))
    }
    /// Dictionaries and sets: parsed so that they may stand where they are not evaluated.
    fn braces(&mut self) -> Parsed<Expr> {
        let start = self.span().start;
        self.expect("{")?;
        let mut kind = "dictionary";
        while !self.at("}") {
            let spread = self.accept("**");
            self.starred()?;
            if self.accept(":") {
                self.expression()?;
            } else if !spread {
                kind = "set";
            }
            if self.at_word("for") {
                self.comprehension_clauses()?;
            }
            if !self.accept(",") {
                break;
            }
        }
        self.expect("}")?;
        Ok(self.node(start, ExprKind::Unsupported(kind)))
    }
    fn comprehension_clauses(&mut self) -> Parsed<Vec<Clause>> {
        let mut clauses = vec![];
        while self.accept_word("for") {
            let target = self.target_list()?;
            self.expect_word("in")?;
            let iterable = self.logical(LogicalOp::Or)?;
            let mut conditions = vec![];
            while self.accept_word("if") {
                conditions.push(self.logical(LogicalOp::Or)?);
            }
            clauses.push(Clause { target, iterable, conditions });
        }
        Ok(clauses)
    }
    /// What a `for` assigns: names with commas between them.
    pub(super) fn target_list(&mut self) -> Parsed<Expr> {
        let start = self.span().start;
        let head = self.postfix()?;
        if !self.at(",") {
            return Ok(head);
        }
        let mut items = vec![head];
        while self.accept(",") && !self.at_word("in") {
            items.push(self.postfix()?);
        }
        Ok(self.node(start, ExprKind::Tuple(items)))
    }
    /// An expression in a part of the text, such as between the braces of a format string.
    pub(super) fn expression_within(&mut self, part: Span) -> Parsed<Expr> {
        let tokens = super::lexer::tokens_within(self.text, part)?;
        let mut inner = Parser { text: self.text, tokens, next: 0, depth: self.depth };
        let value = inner.nested(|parser| parser.expression_list())?;
        match inner.peek() {
            TokenKind::Newline | TokenKind::End => Ok(value),
            _ => inner.unexpected("the end of the expression"),
        }
    }
}

/// `for target in iterable if …`.
struct Clause {
    target: Expr,
    iterable: Expr,
    conditions: Vec<Expr>,
}
