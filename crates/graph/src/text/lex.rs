//! Lexer: text to tokens, each with its byte offset.
use super::programs::{program_at, string_end};
use crate::{GraphError, Scalar, launch::ProgramText, scalar::float_text};

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    /// `%name`, without the `%`.
    Value(String),
    /// `@name`, without the `@`.
    Param(String),
    Word(String),
    /// A quoted string, with escapes decoded.
    Str(String),
    Int(i128),
    Float(f64),
    Punct(char),
    /// A whole block program, `kernel @name(…) … { … }`.
    Program(ProgramText),
    End,
}

impl Token {
    pub fn describe(&self) -> String {
        match self {
            Token::Value(n) => format!("`%{n}`"),
            Token::Param(n) => format!("`@{n}`"),
            Token::Word(w) => format!("`{w}`"),
            Token::Str(s) => format!("{s:?}"),
            Token::Int(v) => format!("`{v}`"),
            Token::Float(v) => format!("`{v:?}`"),
            Token::Punct(c) => format!("`{c}`"),
            Token::Program(program) => format!("`kernel @{}`", program.name),
            Token::End => "the end of the text".into(),
        }
    }
    /// The scalar that the token denotes.
    pub fn scalar(&self) -> Option<Scalar> {
        match self {
            Token::Int(v) => i64::try_from(*v).ok().map(Scalar::Int),
            Token::Float(v) => Some(Scalar::Float(*v)),
            Token::Word(w) if w == "true" => Some(Scalar::Bool(true)),
            Token::Word(w) if w == "false" => Some(Scalar::Bool(false)),
            _ => None,
        }
    }
}

/// All tokens with their byte offsets; the last is `End`.
pub(super) fn lex(text: &str) -> Result<Vec<(Token, usize)>, GraphError> {
    let bytes = text.as_bytes();
    let mut tokens = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let start = at;
        let token = match bytes[at] {
            b' ' | b'\t' | b'\r' | b'\n' => {
                at += 1;
                continue;
            }
            b'#' | b';' => {
                while at < bytes.len() && bytes[at] != b'\n' {
                    at += 1;
                }
                continue;
            }
            sign @ (b'%' | b'@') => {
                let name = word(bytes, at + 1);
                if name.is_empty() {
                    let what = "expected a name of letters, digits, `_` or `.` after the sign";
                    return Err(error(text, start, what));
                }
                at += 1 + name.len();
                if sign == b'%' { Token::Value(name) } else { Token::Param(name) }
            }
            b'"' => {
                at = string_end(bytes, at).ok_or_else(|| error(text, start, "this string has no closing quote"))?;
                let decoded = serde_json::from_str(&text[start..at]);
                Token::Str(decoded.map_err(|_| error(text, start, "not a string with JSON escapes"))?)
            }
            b'0'..=b'9' | b'-' | b'+' => {
                let (token, end) = number(text, at).ok_or_else(|| error(text, start, "not a number"))?;
                at = end;
                token
            }
            b'a'..=b'z' | b'A'..=b'Z' | b'_' => {
                let name = word(bytes, at);
                at += name.len();
                match name.as_str() {
                    "kernel" if is_program(&text[at..]) => {
                        let (program, end) = program_at(text, start)
                            .ok_or_else(|| error(text, start, "this kernel has no closing brace `}`"))?;
                        at = end;
                        Token::Program(program)
                    }
                    "nan" => Token::Float(nan_bits(text, &mut at)),
                    "inf" => Token::Float(f64::INFINITY),
                    _ => Token::Word(name),
                }
            }
            c if c.is_ascii() => {
                at += 1;
                Token::Punct(c as char)
            }
            _ => return Err(error(text, start, "non-ASCII characters are allowed only in strings and comments")),
        };
        tokens.push((token, start));
    }
    tokens.push((Token::End, text.len()));
    Ok(tokens)
}

/// Whether what follows the word `kernel` is a program, rather than the file that it is in.
fn is_program(rest: &str) -> bool {
    let rest = rest.trim_start();
    let parameters = rest.find('(').unwrap_or(usize::MAX);
    rest.starts_with('@') && parameters < rest.find(" from ").unwrap_or(usize::MAX)
}

pub(super) fn error(text: &str, offset: usize, what: impl Into<String>) -> GraphError {
    let before = &text.as_bytes()[..offset.min(text.len())];
    let line = before.iter().filter(|b| **b == b'\n').count() + 1;
    let column = before.iter().rev().take_while(|b| **b != b'\n').count() + 1;
    GraphError::Parse { line, column, what: what.into() }
}

fn word(bytes: &[u8], at: usize) -> String {
    let part = |b: &&u8| b.is_ascii_alphanumeric() || **b == b'_' || **b == b'.';
    bytes[at..].iter().take_while(part).map(|b| *b as char).collect()
}

/// `12`, `-0.5`, `1e-5`, `-inf`; an integer has neither point nor exponent.
fn number(text: &str, start: usize) -> Option<(Token, usize)> {
    let bytes = text.as_bytes();
    let mut at = start + usize::from(matches!(bytes[start], b'-' | b'+'));
    if text[at..].starts_with("inf") {
        let v = if bytes[start] == b'-' { f64::NEG_INFINITY } else { f64::INFINITY };
        return Some((Token::Float(v), at + 3));
    }
    let mut float = false;
    while at < bytes.len() {
        match bytes[at] {
            b'0'..=b'9' => {}
            b'.' => float = true,
            b'e' | b'E' => {
                float = true;
                if matches!(bytes.get(at + 1), Some(b'-' | b'+')) {
                    at += 1;
                }
            }
            _ => break,
        }
        at += 1;
    }
    let digits = &text[start..at];
    let token = if float { Token::Float(digits.parse().ok()?) } else { Token::Int(digits.parse().ok()?) };
    Some((token, at))
}

/// The optional bits after `nan`, as in `nan(7ff8000000000001)`.
fn nan_bits(text: &str, at: &mut usize) -> f64 {
    let bits = text[*at..].strip_prefix('(').and_then(|t| t.split_once(')'));
    match bits.and_then(|(bits, _)| Some((bits, float_text::parse_special(&format!("nan:{bits}"))?))) {
        Some((bits, v)) => {
            *at += bits.len() + 2;
            v
        }
        None => f64::NAN,
    }
}
