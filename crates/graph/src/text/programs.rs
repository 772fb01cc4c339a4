//! Block programs inside the text of a graph: where one ends, and its text without and with indentation.
//!
//! Only brackets, strings and comments are looked at: what a program says is not this crate's matter.
use crate::launch::ProgramText;

/// The program that begins at byte `start` of a text, at the word `kernel`, and the byte behind it. `None` if it has no
/// name or does not end.
pub(super) fn program_at(text: &str, start: usize) -> Option<(ProgramText, usize)> {
    let name = name(text[start..].strip_prefix("kernel")?.trim_start().strip_prefix('@')?)?;
    let end = start + end(&text[start..])?;
    Some((ProgramText { name, text: unindented(text, start, end) }, end))
}

/// The only program of a text of its own.
pub(super) fn program_in(text: &str) -> Option<ProgramText> {
    let is_start = |line: &&str| line.trim_start().starts_with("kernel");
    let line = text.lines().find(is_start)?.trim_start();
    // `lines` gives parts of the text itself.
    let start = line.as_ptr() as usize - text.as_ptr() as usize;
    program_at(text, start).map(|found| found.0)
}

/// The name at the start of a text: a word, or a string.
fn name(text: &str) -> Option<String> {
    if text.starts_with('"') {
        return serde_json::from_str(&text[..string_end(text.as_bytes(), 0)?]).ok();
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '$';
    let word: String = text.chars().take_while(|c| plain(*c)).collect();
    (!word.is_empty()).then_some(word)
}

/// The byte behind the brace that closes a program.
fn end(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let (mut at, mut depth) = (0, 0usize);
    while at < bytes.len() {
        match bytes[at] {
            b'"' => at = string_end(bytes, at)? - 1,
            b'#' | b';' => at += bytes[at..].iter().position(|b| *b == b'\n')?,
            b'(' | b'[' | b'{' => depth += 1,
            closing @ (b')' | b']' | b'}') => {
                depth = depth.checked_sub(1)?;
                if depth == 0 && closing == b'}' {
                    return Some(at + 1);
                }
            }
            _ => {}
        }
        at += 1;
    }
    None
}

/// A part of a text, without the indentation of the line that it begins on.
fn unindented(text: &str, start: usize, end: usize) -> String {
    let line = text[..start].rfind('\n').map_or(0, |n| n + 1);
    let indentation = text[line..start].len() - text[line..start].trim_start().len();
    let shorter = |line: &str| {
        let spaces = line.len() - line.trim_start().len();
        line[spaces.min(indentation)..].trim_end().to_string()
    };
    text[start..end].lines().map(shorter).collect::<Vec<_>>().join("\n")
}

/// The text of a program in lines of a graph.
pub(super) fn indented(text: &str) -> String {
    let longer = |line: &str| if line.is_empty() { "\n".to_string() } else { format!("  {line}\n") };
    text.lines().map(longer).collect()
}

/// The byte behind the string that begins at byte `open`.
pub(super) fn string_end(bytes: &[u8], open: usize) -> Option<usize> {
    let mut at = open + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return Some(at + 1),
            _ => at += 1,
        }
    }
    None
}
