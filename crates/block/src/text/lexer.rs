//! Text to tokens, each with its line and column.
use crate::BlockError;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A bare word; `v3` too.
    Word,
    /// `%name`; the text is without the sign.
    Local,
    /// `@name`.
    Global,
    /// Digits, floats, `0x…`; with its sign.
    Number,
    Str,
    /// One of `( ) [ ] { } < > , : = ..`.
    Punct,
    End,
}

#[derive(Clone, PartialEq, Debug)]
pub struct Token {
    pub kind: Kind,
    pub text: String,
    pub line: usize,
    pub column: usize,
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// True if a name needs no quotes after `%` or `@`.
pub fn is_plain(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| is_word(c) || c == '$')
}

struct Lexer {
    chars: Vec<char>,
    at: usize,
    line: usize,
    column: usize,
}

pub fn tokens(text: &str) -> Result<Vec<Token>, BlockError> {
    let mut l = Lexer { chars: text.chars().collect(), at: 0, line: 1, column: 1 };
    let mut out = vec![];
    loop {
        l.skip_space();
        let (line, column) = (l.line, l.column);
        let Some((kind, text)) = l.token()? else {
            out.push(Token { kind: Kind::End, text: "the end of the text".into(), line, column });
            return Ok(out);
        };
        out.push(Token { kind, text, line, column });
    }
}

impl Lexer {
    fn peek(&self, ahead: usize) -> Option<char> {
        self.chars.get(self.at + ahead).copied()
    }
    fn next(&mut self) -> Option<char> {
        let c = self.peek(0)?;
        self.at += 1;
        (self.line, self.column) = if c == '\n' { (self.line + 1, 1) } else { (self.line, self.column + 1) };
        Some(c)
    }
    fn error<T>(&self, what: String) -> Result<T, BlockError> {
        Err(BlockError::Parse { line: self.line, column: self.column, what })
    }
    fn skip_space(&mut self) {
        while let Some(c) = self.peek(0) {
            if c == '#' || c == ';' {
                while self.peek(0).is_some_and(|c| c != '\n') {
                    self.next();
                }
            } else if c.is_whitespace() {
                self.next();
            } else {
                return;
            }
        }
    }
    fn take(&mut self, more: impl Fn(char) -> bool) -> String {
        let mut s = String::new();
        while let Some(c) = self.peek(0).filter(|c| more(*c)) {
            s.push(c);
            self.next();
        }
        s
    }
    fn token(&mut self) -> Result<Option<(Kind, String)>, BlockError> {
        let Some(c) = self.peek(0) else { return Ok(None) };
        Ok(Some(match c {
            '%' | '@' => {
                self.next();
                let kind = if c == '%' { Kind::Local } else { Kind::Global };
                let name = match self.peek(0) {
                    Some('"') => self.string()?,
                    _ => self.take(|c| is_word(c) || c == '$'),
                };
                if name.is_empty() {
                    return self.error(format!("a name must follow `{c}`"));
                }
                (kind, name)
            }
            '"' => (Kind::Str, self.string()?),
            '.' if self.peek(1) == Some('.') => {
                self.next();
                self.next();
                (Kind::Punct, "..".into())
            }
            '(' | ')' | '[' | ']' | '{' | '}' | '<' | '>' | ',' | ':' | '=' => {
                self.next();
                (Kind::Punct, c.to_string())
            }
            '-' => {
                self.next();
                let rest = match self.peek(0) {
                    Some(c) if c.is_ascii_digit() => self.number(),
                    _ => self.take(is_word),
                };
                if rest.is_empty() {
                    return self.error("a number must follow `-`".into());
                }
                (Kind::Number, format!("-{rest}"))
            }
            c if c.is_ascii_digit() => (Kind::Number, self.number()),
            c if is_word(c) => (Kind::Word, self.take(is_word)),
            c => return self.error(format!("`{}` has no meaning here; remove it", c.escape_default())),
        }))
    }
    /// Digits, letters (hex, exponent), a point before a digit, a sign after an exponent.
    fn number(&mut self) -> String {
        let mut s = String::new();
        while let Some(c) = self.peek(0) {
            let hex = s.starts_with("0x");
            let more = match c {
                '.' => self.peek(1).is_some_and(|c| c.is_ascii_digit()),
                '+' | '-' => !hex && s.ends_with(['e', 'E']),
                c => is_word(c),
            };
            if !more {
                break;
            }
            s.push(c);
            self.next();
        }
        s
    }
    /// A quoted string with `\" \\ \n \t \u{…}`.
    fn string(&mut self) -> Result<String, BlockError> {
        self.next();
        let mut s = String::new();
        loop {
            match self.next() {
                Some('"') => return Ok(s),
                Some('\\') => match self.next() {
                    Some('n') => s.push('\n'),
                    Some('t') => s.push('\t'),
                    Some('r') => s.push('\r'),
                    Some('0') => s.push('\0'),
                    Some(c @ ('"' | '\\' | '\'')) => s.push(c),
                    Some('u') if self.peek(0) == Some('{') => {
                        self.next();
                        let hex = self.take(|c| c.is_ascii_hexdigit());
                        let c = u32::from_str_radix(&hex, 16).ok().and_then(char::from_u32);
                        match (c, self.next()) {
                            (Some(c), Some('}')) => s.push(c),
                            _ => return self.error("`\\u{…}` must hold the hexadecimal number of a character".into()),
                        }
                    }
                    _ => return self.error("unknown escape; write \\\" \\\\ \\n \\t or \\u{…}".into()),
                },
                Some(c) if c != '\n' => s.push(c),
                _ => return self.error("the string is not closed; add `\"`".into()),
            }
        }
    }
}
