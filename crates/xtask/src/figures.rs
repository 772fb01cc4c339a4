//! Checks that hardware constants occur in crates/machine alone, so that a plan for one GPU uses no constant of another.
use std::path::{Path, PathBuf};

/// Tokens that betray a constant of some GPU: the number of multiprocessors of an H100 or H200 and its multiples, the clock in MHz and Hz,
/// a block's shared memory in bytes; and names of constants that held such values.
const WORDS: [&str; 11] =
    ["132", "264", "528", "1056", "1755", "1755e6", "232448", "166912", "101376", "PROCESSORS", "CLOCK"];
/// The same for constants written as expressions, without spaces.
const TERMS: [&str; 7] = ["1.755e9", "227<<10", "227*1024", "163<<10", "163*1024", "99<<10", "99*1024"];

/// Modules of elementary functions, whose coefficients may be any number, are skipped.
const FUNCTIONS: [&str; 2] = ["math", "special"];

/// Number of source files checked, or every line with such a constant. `crates`: those that depend on crates/machine.
pub fn check(crates: &[PathBuf]) -> Result<usize, Vec<String>> {
    let (mut count, mut problems) = (0, vec![]);
    for folder in crates.iter().map(|c| c.join("src")) {
        let mut files = vec![];
        if let Err(e) = sources(&folder, &mut files) {
            problems.push(format!("cannot list {}: {e}", folder.display()));
        }
        files.sort();
        for file in files {
            count += 1;
            match std::fs::read_to_string(&file) {
                Ok(text) => problems.extend(found(&text).map(|(line, what)| {
                    let file = file.display();
                    format!(
                        "{file}:{line}: `{what}` is a hardware constant; move it to crates/machine and read it from there"
                    )
                })),
                Err(e) => problems.push(format!("cannot read {}: {e}", file.display())),
            }
        }
    }
    if problems.is_empty() { Ok(count) } else { Err(problems) }
}

/// Rust files of a folder, except tests and elementary functions.
fn sources(folder: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.file_stem().is_some_and(|s| s == "tests" || FUNCTIONS.iter().any(|f| s == *f)) {
            continue;
        }
        if path.is_dir() {
            sources(&path, files)?;
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

/// Line numbers, from 1, and constants found, up to the file's test module (the only module with a body). Comments and strings are ignored.
fn found(text: &str) -> impl Iterator<Item = (usize, &'static str)> {
    let code = text.lines().take_while(|l| !l.starts_with("mod ") || !l.ends_with('{'));
    code.enumerate().filter_map(|(n, line)| Some((n + 1, figure(&bare(line))?)))
}

fn figure(code: &str) -> Option<&'static str> {
    let plain = code.replace('_', "");
    let has = |word: &&&str| {
        let mut words = code.split(|c: char| !c.is_alphanumeric() && c != '_');
        words.any(|w| w == **word || w.starts_with(|c: char| c.is_ascii_digit()) && w.replace('_', "") == **word)
    };
    let term = |term: &&&str| plain.split_whitespace().collect::<String>().contains(**term);
    WORDS.iter().find(has).or_else(|| TERMS.iter().find(term)).copied()
}

/// A line without its comment and without string literals.
fn bare(line: &str) -> String {
    let (mut out, mut quoted, mut last) = (String::new(), false, ' ');
    for c in line.chars() {
        match c {
            '"' if last != '\\' => quoted = !quoted,
            '/' if !quoted && last == '/' => {
                out.pop();
                break;
            }
            c if !quoted => out.push(c),
            _ => {}
        }
        last = c;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_in_code_are_found_with_their_line() {
        let text = "//! An H200 has 132 of them.\nlet n = 4 * 132;\nlet s = \"528 bytes\"; // 264\nlet m = 1_056;\n\
                    const MEMORY: usize = (227 << 10) - 1024;\nlet c = 1.755e9;\nlet d = 1320 + a_132;\nmod tests {\nlet e = 132;\n";
        let lines: Vec<(usize, &str)> = found(text).collect();
        assert_eq!(lines, [(2, "132"), (4, "1056"), (5, "227<<10"), (6, "1.755e9")]);
    }
}
