//! What a Python file defines and imports at its top level: functions as text, imports, constants. Bodies of functions
//! and classes are passed over; the bodies of `if`, `try` and `with` count as the top level.
use super::lexer::{TokenKind, tokens};
use super::tree::Expr;
use super::{Parsed, Parser, Span};

/// A name of a module.
#[derive(Clone, PartialEq, Debug)]
pub enum Item {
    /// `import path as name`
    Module(String),
    /// `from module import name`; `level` dots come before the module.
    From {
        level: usize,
        module: String,
        name: String,
    },
    Function(Definition),
    Constant(Expr),
}

/// A function's place in the text.
#[derive(Clone, PartialEq, Debug)]
pub struct Definition {
    pub span: Span,
    /// The last part of each decorator's dotted name.
    pub decorators: Vec<String>,
}

/// The names of a module in the order in which they are bound.
pub fn items(text: &str) -> Parsed<Vec<(String, Item)>> {
    let mut parser = Parser { text, tokens: tokens(text)?, next: 0, depth: 0 };
    let mut found = vec![];
    let mut decorators = vec![];
    while !parser.at_end() {
        if matches!(parser.peek(), TokenKind::Indent | TokenKind::Dedent | TokenKind::Newline) {
            parser.advance();
            continue;
        }
        if parser.accept("@") {
            decorators.push(parser.decorator());
            continue;
        }
        let mark = parser.next;
        match parser.item(std::mem::take(&mut decorators)) {
            Some(items) => found.extend(items),
            None => {
                parser.next = mark;
                parser.rest_of_line();
            }
        }
    }
    Ok(found)
}

impl Parser<'_> {
    /// The last name before the line ends or the call's arguments begin.
    fn decorator(&mut self) -> String {
        let mut last = String::new();
        while let TokenKind::Name(name) = self.peek().clone() {
            self.advance();
            last = name;
            self.accept(".");
        }
        self.rest_of_line();
        last
    }
    fn rest_of_line(&mut self) {
        while !matches!(self.peek(), TokenKind::Newline | TokenKind::End) {
            self.advance();
        }
        self.advance();
    }
    /// The names that a statement binds; `None` if it is passed over by its line.
    fn item(&mut self, decorators: Vec<String>) -> Option<Vec<(String, Item)>> {
        let start = self.span().start;
        if self.accept_word("import") {
            return self.imports();
        }
        if self.accept_word("from") {
            return self.imports_from();
        }
        let is_function = self.accept_word("def") || self.accept_word("async") && self.accept_word("def");
        if is_function || self.accept_word("class") {
            let name = self.identifier().ok()?;
            self.skip_block();
            let span = self.since(start);
            let item = (name, Item::Function(Definition { span, decorators }));
            return Some(if is_function { vec![item] } else { vec![] });
        }
        let name = self.identifier().ok()?;
        if self.accept(":") {
            self.expression().ok()?;
        }
        self.accept("=").then_some(())?;
        let value = self.expression_list().ok()?;
        self.ends_line().then(|| vec![(name, Item::Constant(value))])
    }
    fn ends_line(&mut self) -> bool {
        let ends = matches!(self.peek(), TokenKind::Newline | TokenKind::End);
        self.advance();
        ends
    }
    /// Passes over the rest of a definition, up to the dedent that ends it.
    fn skip_block(&mut self) {
        self.rest_of_line();
        let mut depth = 0usize;
        while !self.at_end() {
            match self.peek() {
                TokenKind::Indent => depth += 1,
                TokenKind::Dedent => depth = depth.saturating_sub(1),
                _ if depth == 0 => return,
                _ => {}
            }
            if depth == 0 {
                return;
            }
            self.advance();
        }
    }
    fn path(&mut self) -> Option<String> {
        let mut path = self.identifier().ok()?;
        while self.accept(".") {
            path = format!("{path}.{}", self.identifier().ok()?);
        }
        Some(path)
    }
    fn imports(&mut self) -> Option<Vec<(String, Item)>> {
        let mut found = vec![];
        loop {
            let path = self.path()?;
            let root = path.split('.').next().unwrap_or(&path).to_string();
            found.push(match self.accept_word("as") {
                true => (self.identifier().ok()?, Item::Module(path)),
                false => (root.clone(), Item::Module(root)),
            });
            if !self.accept(",") {
                break;
            }
        }
        self.ends_line().then_some(found)
    }
    fn imports_from(&mut self) -> Option<Vec<(String, Item)>> {
        let mut level = 0;
        loop {
            match () {
                () if self.accept("...") => level += 3,
                () if self.accept(".") => level += 1,
                () => break,
            }
        }
        let module = if self.at_word("import") { String::new() } else { self.path()? };
        self.accept_word("import").then_some(())?;
        let in_brackets = self.accept("(");
        let mut found = vec![];
        while !matches!(self.peek(), TokenKind::Newline | TokenKind::End) && !self.at(")") {
            let name = self.identifier().ok()?;
            let bound = if self.accept_word("as") { self.identifier().ok()? } else { name.clone() };
            found.push((bound, Item::From { level, module: module.clone(), name }));
            if !self.accept(",") {
                break;
            }
        }
        if in_brackets {
            self.accept(")").then_some(())?;
        }
        self.ends_line().then_some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_a_file() {
        let text = "import a.b\nimport triton.language as tl\nfrom . import near\nfrom ..up.x import (\n    y as z,\n    \
                    w,\n)\ntry:\n    import numpy as np\nexcept ImportError:\n    np = None\nBLOCK: tl.constexpr = 128\n\
                    @triton.jit(do_not_specialize=['n'])\n@other\ndef f(\n    a,\n):\n    if a:\n        return 1\n    \
                    return 2\n\nclass C:\n    X = 1\n    def m(self): pass\nTWO = (1, 2)\nx.y = 3\n";
        let found = items(text).unwrap();
        let names: Vec<&str> = found.iter().map(|item| &item.0[..]).collect();
        assert_eq!(names, ["a", "tl", "near", "z", "w", "np", "np", "BLOCK", "f", "TWO"]);
        assert_eq!(found[1].1, Item::Module("triton.language".into()));
        assert_eq!(found[2].1, Item::From { level: 1, module: String::new(), name: "near".into() });
        assert_eq!(found[3].1, Item::From { level: 2, module: "up.x".into(), name: "y".into() });
        let Item::Function(f) = &found[8].1 else { panic!("f is no function") };
        assert_eq!(f.decorators, ["jit", "other"]);
        let body = &text[f.span.start as usize..f.span.end as usize];
        assert!(body.starts_with("def f(") && body.trim_end().ends_with("return 2"), "{body}");
    }
}
