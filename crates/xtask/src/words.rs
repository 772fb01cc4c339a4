//! Words of the field: phrases that only this project once used, and what the field says instead.
use std::path::Path;
use std::process::Command;

/// What is searched for, in lower case and as whole words, and what to write.
const WORDS: [(&str, &str); 27] = [
    ("matrix product", "matmul"),
    ("matrix products", "matmuls"),
    ("multiply-add", "FMA"),
    ("multiply-adds", "FMAs"),
    ("twin", "dual GEMM"),
    ("of one left operand", "dual GEMM"),
    ("under way", "in flight"),
    ("under_way", "in_flight"),
    ("by turns", "ping-pong"),
    ("takes turns", "ping-pong"),
    ("most_turns", "most_tiles_in_flight"),
    ("in_two", "3xTF32"),
    ("is_faster_in_two", "prefers_3xtf32"),
    ("no other way here", "template `X` does not apply; only `Y` does"),
    ("walk over rows", "persistent kernel, grid-stride loop"),
    ("walks over rows", "persistent kernel, grid-stride loop"),
    ("walk over what", "persistent kernel, grid-stride loop"),
    ("blocks that stay", "persistent kernel"),
    ("instances that stay", "persistent kernel"),
    ("clusters that stay", "persistent kernel"),
    ("asked for ahead", "prefetched"),
    ("ask_ahead", "prefetch"),
    ("start anywhere", "unaligned rows"),
    ("folded rows", "reshaped to wide rows"),
    ("parts of k", "split-K slices"),
    ("sums of a thread", "accumulators"),
    ("packed rows", "several rows per tile"),
];
/// Files that say it: this one, and the history of changes.
const EXEMPT: [&str; 2] = ["crates/xtask/src/words.rs", "CHANGELOG.md"];

/// Number of files searched, or every line with a word of the table.
pub fn check(root: &Path) -> Result<usize, Vec<String>> {
    let files = Command::new("git")
        .arg("-C")
        .arg(root)
        .args(["ls-files", "*.rs", "*.md", "*.py", "*.cpp", "*.h", "*.kiln", "*.test", "scripts"])
        .output();
    let files = files.map_err(|e| vec![format!("git ls-files: {e}")])?;
    let names = String::from_utf8_lossy(&files.stdout).into_owned();
    let mut problems = vec![];
    let mut count = 0;
    for name in names.lines().filter(|n| !EXEMPT.contains(n)) {
        let Ok(text) = std::fs::read_to_string(root.join(name)) else { continue };
        count += 1;
        let found = |(i, line): (usize, &str)| {
            let (word, say) = found(line)?;
            Some(format!("{name}:{}: `{word}`: write {say}", i + 1))
        };
        problems.extend(text.lines().enumerate().filter_map(found));
    }
    match (count, problems.is_empty()) {
        (0, _) => Err(vec!["git lists no file".into()]),
        (_, true) => Ok(count),
        (_, false) => Err(problems),
    }
}

/// The first word of the table in a line, and what to write.
fn found(line: &str) -> Option<(&'static str, &'static str)> {
    let line = line.to_lowercase();
    let inside = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    let whole = |word: &str| {
        line.match_indices(word)
            .any(|(at, _)| !inside(line[..at].chars().next_back()) && !inside(line[at + word.len()..].chars().next()))
    };
    WORDS.into_iter().find(|(word, _)| whole(word))
}

#[cfg(test)]
mod tests {
    use super::found;

    #[test]
    fn words_are_found_whole_and_in_any_case() {
        assert_eq!(found("/// A Matrix product of two.").map(|f| f.1), Some("matmul"));
        assert_eq!(found("let under_way = 2;").map(|f| f.1), Some("in_flight"));
        assert_eq!(found("entwined, matrix productivity"), None);
    }
}
