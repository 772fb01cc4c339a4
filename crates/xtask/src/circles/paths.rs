//! Finds the Rust paths in a module's text: `use` items, and paths in code that begin with `crate` or `super`.

/// Paths as lists of segments, such as `crate`, `host`, `nest`.
#[derive(Debug, Default)]
pub struct Paths {
    pub used: Vec<Vec<String>>,
    /// Re-exports (`pub use`): the name in this module, and the path.
    pub given: Vec<(String, Vec<String>)>,
}

/// Reads the paths of a module's text, up to its `#[cfg(test)]` module.
pub fn read(text: &str) -> Paths {
    let text = text.split("#[cfg(test)]\nmod ").next().unwrap_or(text);
    let code: String = text.lines().map(|l| l.split("//").next().unwrap_or(l).to_string() + "\n").collect();
    let mut paths = Paths::default();
    let mut at = 0;
    while let Some((start, word)) = next_word(&code, at) {
        at = start + word.len();
        match word {
            "use" if begins_item(&code[..start]) => {
                let end = code[at..].find(';').map_or(code.len(), |n| at + n);
                let all = expanded(&code[at..end]);
                if is_public(&code[..start]) {
                    let named = all.iter().filter_map(|(path, name)| Some((name.clone()?, path.clone())));
                    paths.given.extend(named);
                } else {
                    paths.used.extend(all.into_iter().map(|(path, _)| path));
                }
                at = end;
            }
            "crate" | "super" if code[at..].starts_with("::") => {
                let path: String = code[start..].chars().take_while(|c| part_of_word(*c) || *c == ':').collect();
                at = start + path.len();
                paths.used.push(path.split("::").filter(|p| !p.is_empty()).map(str::to_string).collect());
            }
            _ => {}
        }
    }
    paths
}

fn part_of_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

fn next_word(code: &str, from: usize) -> Option<(usize, &str)> {
    let start = from + code[from..].find(part_of_word)?;
    let len = code[start..].find(|c| !part_of_word(c)).unwrap_or(code.len() - start);
    Some((start, &code[start..start + len]))
}

/// The text before a word on its line.
fn line_before(before: &str) -> &str {
    before.rsplit('\n').next().unwrap_or(before).trim()
}

/// Whether a `use` after this text begins an item, rather than being a word in a string.
fn begins_item(before: &str) -> bool {
    let line = line_before(before);
    line.is_empty() || is_public(before)
}

/// Whether an item after this text is visible outside of its module: `pub`, `pub(crate)`.
fn is_public(before: &str) -> bool {
    let line = line_before(before);
    line == "pub" || line.starts_with("pub(") && line.ends_with(')')
}

/// The paths of a use tree such as `a::{b, c::{d as e}}`, each with the name it is bound to, if any.
fn expanded(tree: &str) -> Vec<(Vec<String>, Option<String>)> {
    let Some((open, close)) = tree.find('{').zip(tree.rfind('}')).filter(|(open, close)| open < close) else {
        let (path, name) = tree.split_once(" as ").map_or((tree, None), |(p, n)| (p, Some(n.trim().to_string())));
        let parts: Vec<String> = path.split("::").map(|p| p.trim().to_string()).filter(|p| !p.is_empty()).collect();
        let name = name.or_else(|| parts.last().cloned());
        return if parts.is_empty() { vec![] } else { vec![(parts, name)] };
    };
    let (before, inside) = (&tree[..open], &tree[open + 1..close]);
    let (mut depth, mut start, mut parts) = (0, 0, vec![]);
    for (i, c) in inside.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&inside[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    parts.push(&inside[start..]);
    let whole = |p: &&str| expanded(&format!("{before}{}", p.trim_start()));
    parts.iter().filter(|p| !p.trim().is_empty()).flat_map(whole).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_become_paths() {
        let p = read(
            "use crate::a::{b, c::{self, D as E}};\npub(crate) use x::Y;\nfn f() -> crate::g::H<u8> { super::i() }\n",
        );
        let used: Vec<String> = p.used.iter().map(|p| p.join("::")).collect();
        assert_eq!(used, ["crate::a::b", "crate::a::c::self", "crate::a::c::D", "crate::g::H", "super::i"]);
        assert_eq!(p.given, [("Y".to_string(), vec!["x".to_string(), "Y".to_string()])]);
    }
}
