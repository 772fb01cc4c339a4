//! Selects and formats the part of a stage's text that a file test shows.
use std::{collections::HashMap, fmt::Write as _};

/// A program's header that is longer than this is wrapped, one parameter per line.
const WIDTH: usize = 140;

/// Lines with one of the words (`tma_*`: any word that begins so), with the headers of programs and the blocks that
/// enclose them.
pub fn only(text: &str, words: &[String]) -> String {
    // Lines that opened the current blocks, and how many of them are shown.
    let (mut open, mut shown) = (Vec::<&str>::new(), 0);
    let mut out = String::new();
    for line in text.lines() {
        let wanted = line.starts_with("kernel @") || has_one(line, words);
        if line.trim_start().starts_with('}') {
            open.pop();
            let is_shown = shown > open.len();
            if is_shown {
                shown = open.len();
                let _ = writeln!(out, "{line}");
            }
            // `} consumer … {`: the next block of the same op.
            if line.ends_with('{') {
                open.push(line);
                shown += usize::from(is_shown);
            }
            continue;
        }
        if wanted {
            open[shown..].iter().for_each(|l| _ = writeln!(out, "{l}"));
            shown = open.len();
            let _ = writeln!(out, "{line}");
        }
        if line.ends_with('{') {
            open.push(line);
            shown += usize::from(wanted);
        }
    }
    out
}

fn has_one(line: &str, words: &[String]) -> bool {
    let of_line = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | ':' | '%');
    line.split(|c| !of_line(c))
        .any(|token| words.iter().any(|w| w.strip_suffix('*').map_or(token == w, |start| token.starts_with(start))))
}

/// Renumbers values such as `v7` in the order of their first occurrence in a block program.
pub fn renumbered(text: &str) -> String {
    let (mut out, mut names) = (String::new(), HashMap::new());
    for line in text.lines() {
        if line.starts_with("kernel @") {
            names.clear();
        }
        for word in line.split_inclusive(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '_' | '@' | '%')) {
            let name = word.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
            let is_value =
                name.strip_prefix('v').is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
            if is_value {
                let next = names.len();
                let _ = write!(out, "v{}{}", names.entry(name).or_insert(next), &word[name.len()..]);
            } else {
                out += word;
            }
        }
        out.push('\n');
    }
    out
}

/// Names of PTX instructions, one per line; `×n` where one repeats n times in a row.
pub fn instructions(ptx: &str) -> String {
    let mut list: Vec<(&str, usize)> = vec![];
    // A line of inline assembly has several instructions.
    let all = ptx.lines().filter(|l| l.trim_end().ends_with([';', '}'])).flat_map(|l| l.split(';'));
    for one in all.map(|i| i.trim().trim_start_matches(['{', ' '])).filter(|i| !i.starts_with(['.', '}', '/'])) {
        let one = if one.starts_with('@') { one.split_once(' ').map_or(one, |i| i.1).trim() } else { one };
        let name = one.split([' ', '\t']).next().unwrap_or(one);
        if !name.starts_with(|c: char| c.is_ascii_lowercase()) {
            continue;
        }
        match list.last_mut().filter(|l| l.0 == name) {
            Some(last) => last.1 += 1,
            None => list.push((name, 1)),
        }
    }
    list.iter().map(|(name, n)| if *n == 1 { format!("  {name}\n") } else { format!("  {name} ×{n}\n") }).collect()
}

/// Wraps long headers of programs, with one line per parameter.
pub fn wrapped(text: &str) -> String {
    let line = |l: &str| {
        let long = l.starts_with("kernel @") && l.len() > WIDTH;
        if long {
            l.replacen("(%", "(\n    %", 1).replace(", %", ",\n    %").replace(") grid", "\n) grid")
        } else {
            l.into()
        }
    };
    text.lines().map(line).collect::<Vec<String>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_with_what_encloses_them() {
        let text = "kernel @a(%v1: ptr) {\n  v7 = iota\n  for v9 in v7..v8 {\n    v3 = load v9\n    yield\n  }\n  if v7 {\n    yield\n  }\n}\n";
        let now = only(text, &["load".into()]);
        assert_eq!(renumbered(&now), "kernel @a(%v1: ptr) {\n  for v0 in v1..v2 {\n    v3 = load v0\n  }\n}\n");
        let text = "kernel @a() {\n  roles producer {\n    tma_load v4\n  } consumer {\n    wgmma v5\n  }\n}\n";
        assert_eq!(only(text, &["tma_*".into()]).matches("consumer").count(), 1);
        assert!(only(text, &["none".into()]).lines().count() == 2);
    }

    #[test]
    fn instructions_are_counted_where_they_repeat() {
        let ptx = ".reg .b32 %r<2>;\n\tld.global.v4.b32 \t{%r1}, [%rd1];\n\tld.global.v4.b32 \t{%r1}, [%rd1];\n$L1:\n\t@%p1 bra \t$L1;\n{ .reg .b32 a; mapa.u32 a, 1; @p st.b32 [a], 1; }\n\tret;\n";
        assert_eq!(instructions(ptx), "  ld.global.v4.b32 ×2\n  bra\n  mapa.u32\n  st.b32\n  ret\n");
    }
}
