//! Checks dependencies: licences against `licenses.allow` and `licenses.exceptions` of deny.toml, sources (registries
//! only, as deny.toml says), and versions (none may be `*`). Reads only `cargo metadata`, so it needs no network and no
//! other tool; security advisories are checked by `cargo deny`.
use crate::metadata::Metadata;
use std::collections::{BTreeMap, BTreeSet};

/// Number of packages checked, or the problems found.
pub fn check(metadata: &Metadata, deny: &str) -> Result<usize, Vec<String>> {
    let allow = allowed(deny).map_err(|e| vec![e])?;
    let mut exceptions = exceptions(deny).map_err(|e| vec![e])?;
    let (mut problems, mut used) = (vec![], BTreeSet::new());
    for p in &metadata.packages {
        let who = format!("{} {}", p.name, p.version);
        match &p.license {
            None => problems.push(format!("{who} names no licence in its Cargo.toml")),
            Some(text) => match Licence::parse(text) {
                Err(e) => problems.push(format!("{who}: cannot read the licence `{text}`: {e}")),
                Ok(l) if !l.met(&allow) && exceptions.remove(&p.name).is_some_and(|also| l.met(&also)) => {}
                Ok(l) if !l.met(&allow) => {
                    problems.push(format!("{who} is under `{text}`, which deny.toml's licenses.allow does not meet"));
                }
                Ok(l) => l.names(&mut used),
            },
        }
        if p.source.as_ref().is_some_and(|s| !s.starts_with("registry+")) {
            problems.push(format!("{who} is not from a registry; publish it there or depend on a release"));
        }
        // A path within the workspace needs no version.
        let wild = p.deps.iter().filter(|d| p.source.is_none() && d.from_registry && d.version == "*");
        problems.extend(wild.map(|d| format!("{who} takes any version of {}; name one", d.name)));
    }
    let unused = allow.iter().filter(|a| !used.contains(*a));
    problems.extend(unused.map(|a| format!("no dependency names {a}; remove it from deny.toml's licenses.allow")));
    let obsolete = exceptions
        .keys()
        .map(|name| format!("{name} needs no exception; remove it from deny.toml's licenses.exceptions"));
    problems.extend(obsolete);
    if problems.is_empty() { Ok(metadata.packages.len()) } else { Err(problems) }
}

fn allowed(deny: &str) -> Result<BTreeSet<String>, String> {
    let table: toml::Table = deny.parse().map_err(|e| format!("deny.toml: {e}"))?;
    let list = table.get("licenses").and_then(|l| l.get("allow")).and_then(|a| a.as_array());
    let list = list.ok_or("deny.toml has no list licenses.allow")?;
    Ok(list.iter().filter_map(|v| v.as_str()).map(str::to_string).collect())
}

/// What single packages are allowed besides.
fn exceptions(deny: &str) -> Result<BTreeMap<String, BTreeSet<String>>, String> {
    let table: toml::Table = deny.parse().map_err(|e| format!("deny.toml: {e}"))?;
    let list = table.get("licenses").and_then(|l| l.get("exceptions")).and_then(|a| a.as_array());
    let one = |e: &toml::Value| {
        let name = e.get("crate")?.as_str()?.to_string();
        let allow = e.get("allow")?.as_array()?;
        Some((name, allow.iter().filter_map(|v| v.as_str()).map(str::to_string).collect()))
    };
    let wrong = || "an exception of deny.toml has no `crate` or no `allow`".to_string();
    list.into_iter().flatten().map(|e| one(e).ok_or_else(wrong)).collect()
}

/// An SPDX expression; `/` is the older way to write OR.
#[derive(Debug, PartialEq)]
enum Licence {
    One(String),
    Any(Vec<Licence>),
    All(Vec<Licence>),
}

impl Licence {
    fn parse(text: &str) -> Result<Licence, String> {
        let spaced = text.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
        let mut words = spaced.split_whitespace().peekable();
        let licence = any(&mut words)?;
        words.next().map_or(Ok(licence), |w| Err(format!("unexpected `{w}`")))
    }
    fn met(&self, allow: &BTreeSet<String>) -> bool {
        match self {
            Licence::One(name) => allow.contains(name),
            Licence::Any(list) => list.iter().any(|l| l.met(allow)),
            Licence::All(list) => list.iter().all(|l| l.met(allow)),
        }
    }
    fn names(&self, into: &mut BTreeSet<String>) {
        match self {
            Licence::One(name) => _ = into.insert(name.clone()),
            Licence::Any(list) | Licence::All(list) => list.iter().for_each(|l| l.names(into)),
        }
    }
}

type Words<'a> = std::iter::Peekable<std::str::SplitWhitespace<'a>>;

/// `a OR b`, the operator with the lowest precedence.
fn any(words: &mut Words) -> Result<Licence, String> {
    let mut list = vec![all(words)?];
    while words.next_if_eq(&"OR").is_some() {
        list.push(all(words)?);
    }
    Ok(if list.len() == 1 { list.remove(0) } else { Licence::Any(list) })
}

fn all(words: &mut Words) -> Result<Licence, String> {
    let mut list = vec![one(words)?];
    while words.next_if_eq(&"AND").is_some() {
        list.push(one(words)?);
    }
    Ok(if list.len() == 1 { list.remove(0) } else { Licence::All(list) })
}

fn one(words: &mut Words) -> Result<Licence, String> {
    match words.next() {
        Some("(") => {
            let inner = any(words)?;
            words.next_if_eq(&")").map(|_| inner).ok_or_else(|| "a bracket is not closed".into())
        }
        None | Some(")" | "AND" | "OR" | "WITH") => Err("a name is missing".into()),
        Some(name) if words.next_if_eq(&"WITH").is_some() => {
            let exception = words.next().ok_or("a name is missing after WITH")?;
            Ok(Licence::One(format!("{name} WITH {exception}")))
        }
        Some(name) => Ok(Licence::One(name.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::{Dep, Package};

    const DENY: &str = "[licenses]\nallow = [\"MIT\", \"Zlib\"]\n";

    fn met(text: &str) -> bool {
        Licence::parse(text).expect(text).met(&allowed(DENY).expect("a list"))
    }

    #[test]
    fn expressions_are_read_as_spdx_does() {
        for yes in
            ["MIT", "MIT/Apache-2.0", "GPL-3.0 OR Zlib", "(GPL-3.0 OR MIT) AND Zlib", "GPL-3.0 AND MPL-2.0 OR MIT"]
        {
            assert!(met(yes), "{yes}");
        }
        for no in ["GPL-3.0", "MIT AND GPL-3.0", "MIT WITH an-exception", "(MIT OR GPL-3.0) AND ISC"] {
            assert!(!met(no), "{no}");
        }
        for wrong in ["", "MIT OR", "(MIT", "MIT Zlib", "MIT WITH"] {
            assert!(Licence::parse(wrong).is_err(), "{wrong}");
        }
    }

    fn package(name: &str, license: Option<&str>, source: Option<&str>) -> Package {
        let (license, source) = (license.map(str::to_string), source.map(str::to_string));
        Package { name: name.into(), version: "1.0.0".into(), license, source, ..Package::default() }
    }

    #[test]
    fn an_exception_is_for_one_package() {
        let deny = DENY.to_string() + "exceptions = [{ allow = [\"MPL-2.0\"], crate = \"tool\" }]\n";
        let registry = Some("registry+x");
        let mut packages =
            vec![package("a", Some("MIT AND Zlib"), registry), package("tool", Some("MPL-2.0"), registry)];
        assert_eq!(check(&Metadata { packages: packages.clone() }, &deny), Ok(2));
        packages[1].name = "other".into();
        let problems = check(&Metadata { packages }, &deny).expect_err("another package");
        assert!(problems[0].contains("other 1.0.0 is under `MPL-2.0`"), "{problems:?}");
        assert!(problems[1].contains("tool needs no exception"), "{problems:?}");
    }

    #[test]
    fn each_breach_is_named() {
        let any = Dep { name: "z".into(), version: "*".into(), from_registry: true, ..Dep::default() };
        let packages = vec![
            package("good", Some("MIT"), Some("registry+x")),
            package("copyleft", Some("GPL-3.0"), Some("registry+x")),
            package("silent", None, Some("registry+x")),
            package("branch", Some("MIT"), Some("git+x")),
            Package { deps: vec![any], ..package("own", Some("MIT"), None) },
        ];
        let problems = check(&Metadata { packages }, DENY).expect_err("five problems");
        let words = [
            "copyleft 1.0.0 is under `GPL-3.0`",
            "silent",
            "branch 1.0.0 is not from",
            "own 1.0.0 takes any version of z",
            "names Zlib",
        ];
        assert_eq!(problems.len(), words.len(), "{problems:?}");
        for (p, w) in problems.iter().zip(words) {
            assert!(p.contains(w), "{p} without {w}");
        }
    }
}
