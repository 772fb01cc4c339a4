//! Checks that hardware constants occur in crates/machine alone, so that a plan for one GPU uses no constant of
//! another.
use std::path::{Path, PathBuf};

/// Tokens that betray a constant of some GPU: the number of multiprocessors of an H100 or H200 and its multiples, the
/// clock in MHz and Hz, a block's shared memory in bytes; and names of constants that held such values.
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
                Ok(text) => {
                    let name = file.display();
                    problems.extend(found(&text).map(|(line, what)| {
                        format!(
                            "{name}:{line}: `{what}` is a hardware constant; move it to crates/machine and read it \
                             from there"
                        )
                    }));
                    if PRICES.iter().any(|folder| file.parent().is_some_and(|p| p.ends_with(folder))) {
                        problems.extend(lines(&text).filter_map(|(line, code)| {
                            let what = fitted(&code)?;
                            Some(format!(
                                "{name}:{line}: {what} was fitted; move it to crates/machine, with its source"
                            ))
                        }));
                    }
                }
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

/// Folders of cost models: what was fitted is in crates/machine.
const PRICES: [&str; 1] = ["lower/src/cost"];

/// Whether a number may stand in a cost model: 0, a power of two, or of ten (a unit).
fn is_exact(number: f64) -> bool {
    number == 0.0 || number.log2().fract() == 0.0 || number.log10().fract() == 0.0
}

/// Numbers with a fraction or an exponent in a line of a cost model that are not exact.
fn fitted(code: &str) -> Option<f64> {
    let mut parts = code.split(|c: char| !c.is_alphanumeric() && !matches!(c, '_' | '.' | '-'));
    parts.find_map(|word| {
        let word = word.trim_start_matches('-').replace('_', "");
        let word = word.strip_suffix("f64").unwrap_or(&word);
        let is_float = word.starts_with(|c: char| c.is_ascii_digit())
            && word.contains(['.', 'e'])
            && !word.contains("..")
            && !word.starts_with("0x");
        word.parse::<f64>().ok().filter(|number| is_float && !is_exact(*number))
    })
}

/// Line numbers, from 1, and constants found, up to the file's test module (the only module with a body). Comments and
/// strings are ignored.
fn found(text: &str) -> impl Iterator<Item = (usize, &'static str)> {
    lines(text).filter_map(|(n, code)| Some((n, figure(&code)?)))
}

/// Lines of code with their numbers.
fn lines(text: &str) -> impl Iterator<Item = (usize, String)> {
    let code = text.lines().take_while(|l| !l.starts_with("mod ") || !l.ends_with('{'));
    code.enumerate().map(|(n, line)| (n + 1, bare(line)))
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
    fn fitted_numbers_of_prices_are_found() {
        for code in ["let x = 0.35 * y;", "34.0 + z", "f(1.5e-3)", "a - 2.3"] {
            assert!(fitted(code).is_some(), "{code}");
        }
        for code in ["x * 0.5 + 2.0", "1e6", "1e-9", "x.0 + y.1", "256.0f64", "0..3", "n >> 3"] {
            assert_eq!(fitted(code), None, "{code}");
        }
    }

    #[test]
    fn figures_in_code_are_found_with_their_line() {
        let text = "//! An H200 has 132 of them.\nlet n = 4 * 132;\nlet s = \"528 bytes\"; // 264\nlet m = 1_056;\n\
                    const MEMORY: usize = (227 << 10) - 1024;\nlet c = 1.755e9;\nlet d = 1320 + a_132;\nmod tests {\n\
                    let e = 132;\n";
        let lines: Vec<(usize, &str)> = found(text).collect();
        assert_eq!(lines, [(2, "132"), (4, "1056"), (5, "227<<10"), (6, "1.755e9")]);
    }
}
