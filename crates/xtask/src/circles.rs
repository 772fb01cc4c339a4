//! Checks for circular imports inside a crate: modules that use each other and can only be understood together, and
//! folders whose modules do. A module and its submodules may use each other: a parent calls its children, and these use
//! what the parent defines.
//!
//! Imports are read from the source text: `use` items, and paths that begin with `crate` or `super`, resolved through
//! `pub use`.
mod paths;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

/// Modules by path (`host::nest`; empty for the crate's root), and the modules each uses.
type Uses = BTreeMap<String, BTreeSet<String>>;

/// Number of crates checked, or the circular imports between modules and between folders.
pub fn check(packages: &[crate::metadata::Package]) -> Result<usize, Vec<String>> {
    let mut problems = vec![];
    for p in packages {
        let files = sources(&p.folder.join("src")).map_err(|e| vec![format!("{}: {e}", p.name)])?;
        let uses = uses(&files);
        let modules = circles(&uses);
        let folders = if modules.is_empty() { folder_circles(&uses) } else { vec![] };
        problems.extend(modules.iter().map(|c| {
            format!("circular imports in {}: {}; move what they share into its own module", p.name, c.join(", "))
        }));
        problems.extend(folders.iter().map(|c| {
            format!("folders of {} use each other: {}; move what they share below both", p.name, c.join(", "))
        }));
    }
    if problems.is_empty() { Ok(packages.len()) } else { Err(problems) }
}

/// Source text of each module.
fn sources(src: &Path) -> std::io::Result<BTreeMap<String, String>> {
    let (mut files, mut folders) = (BTreeMap::new(), vec![src.to_path_buf()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let inside = path.strip_prefix(src).unwrap_or(&path).with_extension("");
                let parts: Vec<String> = inside.iter().map(|p| p.to_string_lossy().into_owned()).collect();
                let name = parts.join("::");
                let name = if matches!(name.as_str(), "lib" | "main") { String::new() } else { name };
                files.insert(name, std::fs::read_to_string(&path)?);
            }
        }
    }
    Ok(files)
}

/// The modules that each module uses, except its parents and its submodules.
fn uses(files: &BTreeMap<String, String>) -> Uses {
    let read: BTreeMap<&str, paths::Paths> = files.iter().map(|(m, t)| (m.as_str(), paths::read(t))).collect();
    let known = |m: &str| files.contains_key(m);
    // Re-exports: from a module and a name in it to the module and name that `pub use` points to.
    let mut given = BTreeMap::new();
    for (module, paths) in &read {
        for (name, path) in &paths.given {
            given.extend(resolve(module, path, &known).map(|to| ((module.to_string(), name.clone()), to)));
        }
    }
    let mut all = Uses::new();
    for (module, paths) in &read {
        let into = all.entry(module.to_string()).or_default();
        for path in &paths.used {
            let Some((mut to, mut item)) = resolve(module, path, &known) else { continue };
            // A name may be re-exported several times; the bound ends the loop if two modules re-export it from each
            // other.
            for _ in 0..files.len() {
                let Some(next) = given.get(&(to.clone(), item.clone())).filter(|n| n.0 != to) else { break };
                (to, item) = next.clone();
            }
            if !inside(&to, module) && !inside(module, &to) {
                into.insert(to);
            }
        }
    }
    all
}

fn inside(a: &str, b: &str) -> bool {
    b.is_empty() || a == b || a.strip_prefix(b).is_some_and(|rest| rest.starts_with("::"))
}

/// The module that a path in `module` points into, and the item's name there; `None` for paths into other crates.
fn resolve(module: &str, path: &[String], known: &dyn Fn(&str) -> bool) -> Option<(String, String)> {
    let mut at: Vec<&str> = module.split("::").filter(|s| !s.is_empty()).collect();
    let mut rest = path.iter().map(String::as_str).peekable();
    let first = *rest.peek()?;
    if first == "crate" {
        at.clear();
        rest.next();
    }
    while let Some(word) = rest.next_if(|w| matches!(*w, "super" | "self")) {
        if word == "super" {
            at.pop();
        }
    }
    let child = |at: &[&str], name: &str| known(&[at, &[name]].concat().join("::"));
    if !matches!(first, "crate" | "super" | "self") && !child(&at, first) {
        return None;
    }
    while let Some(name) = rest.next_if(|name| child(&at, name)) {
        at.push(name);
    }
    Some((at.join("::"), rest.next().unwrap_or_default().to_string()))
}

/// Groups of folders that use each other: at each level of a crate, modules count as their ancestor there, so that
/// arrows between folders run one way.
fn folder_circles(uses: &Uses) -> Vec<Vec<String>> {
    let parent = |m: &str| m.rsplit_once("::").map_or(String::new(), |(parent, _)| parent.to_string());
    let parents: BTreeSet<String> = uses.keys().filter(|m| !m.is_empty()).map(|m| parent(m)).collect();
    let child = |m: &str, of: &str| -> Option<String> {
        let rest = if of.is_empty() { m } else { m.strip_prefix(of)?.strip_prefix("::")? };
        let name = rest.split("::").next().filter(|name| !name.is_empty())?;
        Some(if of.is_empty() { name.to_string() } else { format!("{of}::{name}") })
    };
    let level = |of: &String| {
        let mut collapsed = Uses::new();
        for (from, all) in uses {
            let Some(from) = child(from, of) else { continue };
            let others = all.iter().filter_map(|to| child(to, of)).filter(|to| *to != from);
            collapsed.entry(from.clone()).or_default().extend(others);
        }
        circles(&collapsed)
    };
    parents.iter().flat_map(level).collect()
}

/// The strongly connected components with a cycle: groups of modules each of which reaches all others.
fn circles(uses: &Uses) -> Vec<Vec<String>> {
    let reach = |from: &String| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(to) = next.pop().and_then(|m| uses.get(m)) {
            next.extend(to.iter().filter(|m| seen.insert((*m).clone())));
        }
        seen
    };
    let reached: BTreeMap<&String, BTreeSet<String>> = uses.keys().map(|m| (m, reach(m))).collect();
    let mut found: Vec<Vec<String>> = vec![];
    for (module, others) in reached.iter().filter(|(m, r)| r.contains(**m)) {
        if !found.iter().any(|c| c.contains(module)) {
            let back = |o: &&String| reached.get(o).is_some_and(|r| r.contains(*module));
            found.push(others.iter().filter(back).cloned().collect());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        circles(&uses(&files.iter().map(|(m, t)| (m.to_string(), t.to_string())).collect()))
    }

    #[test]
    fn modules_that_use_each_other_are_found() {
        assert_eq!(
            found(&[("", "mod a; mod b;"), ("a", "use crate::b::B;"), ("b", "fn f() { super::a::g() }")]),
            [["a", "b"]]
        );
        assert!(found(&[("", "mod a; mod b;"), ("a", "use crate::b::B;"), ("b", "use std::fmt;")]).is_empty());
        let three = [("a", "use crate::b::B;"), ("b", "use crate::{c::{C, D}, E};"), ("c", "use super::a::{self, A};")];
        assert_eq!(found(&three), [["a", "b", "c"]]);
    }

    /// No two modules use each other, but their folders do.
    #[test]
    fn folders_that_use_each_other_are_found() {
        let files =
            [("a", ""), ("a::x", "use crate::b::y::Y;"), ("a::z", ""), ("b", ""), ("b::y", "use crate::a::z::Z;")];
        assert!(found(&files).is_empty());
        let all = uses(&files.iter().map(|(m, t)| (m.to_string(), t.to_string())).collect());
        assert_eq!(folder_circles(&all), [["a", "b"]]);
    }

    #[test]
    fn names_are_followed_to_where_they_are_from() {
        let files = [("", "pub use b::B;"), ("a", "use crate::B;"), ("b", "use crate::a::A;")];
        assert_eq!(found(&files), [["a", "b"]]);
    }

    /// A parent and its children may use each other; comments and tests do not count.
    #[test]
    fn what_is_no_circle_is_not_one() {
        assert!(found(&[("a", "mod c; use c::C;"), ("a::c", "use super::A; use crate::a::B;")]).is_empty());
        let tests = "// use crate::b::B;\n#[cfg(test)]\nmod tests {\n use crate::b::B;\n}";
        assert!(found(&[("a", tests), ("b", "use crate::a::A;")]).is_empty());
    }
}
