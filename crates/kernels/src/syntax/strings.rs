//! Strings: escapes, format strings, and neighbours that are one string.
use super::lexer::TokenKind;
use super::tree::{Expr, ExprKind, FormatPart, Span};
use super::{Parsed, Parser, SyntaxError};

impl Parser<'_> {
    /// One or more strings next to each other.
    pub(super) fn strings(&mut self) -> Parsed<Expr> {
        let start = self.span().start;
        let mut parts = vec![];
        let mut bytes = false;
        while let TokenKind::Str { prefix, inner } = self.peek().clone() {
            self.advance();
            let raw = prefix.contains('r');
            bytes |= prefix.contains('b');
            if prefix.contains('f') {
                self.format_parts(inner, raw, &mut parts)?;
            } else {
                let text = &self.text[inner.start as usize..inner.end as usize];
                parts.push(FormatPart::Text(if raw { text.to_string() } else { unescaped(text) }));
            }
        }
        let plain: Option<String> = parts
            .iter()
            .map(|part| match part {
                FormatPart::Text(text) => Some(&text[..]),
                FormatPart::Value { .. } => None,
            })
            .collect();
        let kind = match plain {
            _ if bytes => ExprKind::Unsupported("bytes"),
            Some(text) => ExprKind::Str(text),
            None => ExprKind::Format(parts),
        };
        Ok(Expr { span: self.since(start), kind })
    }

    fn format_parts(&mut self, inner: Span, raw: bool, parts: &mut Vec<FormatPart>) -> Parsed<()> {
        let source = self.text.as_bytes();
        let (mut at, end) = (inner.start as usize, inner.end as usize);
        let mut text = String::new();
        while at < end {
            let doubled = at + 1 < end && source[at + 1] == source[at];
            match source[at] {
                b'{' | b'}' if doubled => {
                    text.push(source[at] as char);
                    at += 2;
                }
                b'{' => {
                    parts.push(FormatPart::Text(std::mem::take(&mut text)));
                    let close = closing_brace(source, at + 1, end).ok_or_else(|| SyntaxError {
                        span: Span { start: at as u32, end: end as u32 },
                        message: "the `{` of the format string has no `}`".into(),
                    })?;
                    self.format_value(Span { start: at as u32 + 1, end: close as u32 }, parts)?;
                    at = close + 1;
                }
                _ => {
                    let stop = (at + 1..end).find(|i| matches!(source[*i], b'{' | b'}')).unwrap_or(end);
                    let piece = &self.text[at..stop];
                    text += &if raw { piece.to_string() } else { unescaped(piece) };
                    at = stop;
                }
            }
        }
        parts.push(FormatPart::Text(text));
        Ok(())
    }

    /// `value`, `value=`, `value!r`, `value:spec`.
    fn format_value(&mut self, part: Span, parts: &mut Vec<FormatPart>) -> Parsed<()> {
        let text = &self.text[part.start as usize..part.end as usize];
        let bytes = text.as_bytes();
        let mut depth = 0;
        let mut cut = bytes.len();
        for (i, byte) in bytes.iter().enumerate() {
            match byte {
                b'(' | b'[' | b'{' => depth += 1,
                b')' | b']' | b'}' => depth -= 1,
                b':' if depth == 0 => cut = i,
                b'!' if depth == 0 && bytes.get(i + 1) != Some(&b'=') => cut = i,
                _ => continue,
            }
            if cut < bytes.len() {
                break;
            }
        }
        let tail = &text[cut..];
        let mut repr = tail.starts_with("!r");
        let mut length = cut;
        if let Some(named) = text[..cut].trim_end().strip_suffix('=').filter(|name| !name.ends_with(COMPARED)) {
            parts.push(FormatPart::Text(text[..cut].to_string()));
            repr |= tail.is_empty();
            length = named.len();
        }
        let spec = tail.split_once(':').map_or("", |(_, spec)| spec).to_string();
        let value = self.expression_within(Span { start: part.start, end: part.start + length as u32 })?;
        parts.push(FormatPart::Value { value, repr, spec });
        Ok(())
    }
}

/// What `=` ends that is an operator.
const COMPARED: [char; 4] = ['=', '!', '<', '>'];

fn closing_brace(source: &[u8], from: usize, end: usize) -> Option<usize> {
    let mut depth = 0;
    for (at, byte) in source.iter().enumerate().take(end).skip(from) {
        match byte {
            b'{' | b'[' | b'(' => depth += 1,
            b'}' if depth == 0 => return Some(at),
            b'}' | b']' | b')' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// Python's common escapes; others stay as they are written.
fn unescaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('n') => out.push('\n'),
            Some('t') => out.push('\t'),
            Some('r') => out.push('\r'),
            Some('0') => out.push('\0'),
            Some('\n') => {}
            Some(c @ ('\\' | '\'' | '"')) => out.push(c),
            Some(c) => out.extend(['\\', c]),
            None => out.push('\\'),
        }
    }
    out
}
