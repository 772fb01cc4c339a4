//! Reads the table of crates in ARCHITECTURE.md: `| folder | what it is | may depend on |`.
use std::collections::BTreeMap;

/// The words in a crate's description that precede the names of external crates which only it may use.
const SOLE: &str = "only user of ";

/// Allowed dependencies, by crate folder.
#[derive(Debug, Default)]
pub struct Table {
    may_use: BTreeMap<String, Vec<String>>,
    /// External crates, and the folder of the only crate that may use each.
    sole: BTreeMap<String, String>,
}

impl Table {
    /// Reads the first table that begins with `| crate |`.
    pub fn parse(text: &str) -> Result<Table, String> {
        let mut table = Table::default();
        let rows = text.lines().skip_while(|l| !l.starts_with("| crate |")).skip(2).take_while(|l| l.starts_with('|'));
        for row in rows {
            let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
            let [folder, what, deps] = cells[..] else { return Err(format!("not three cells: {row}")) };
            let folder = folder.trim_matches('`').to_string();
            if let Some((_, names)) = what.split_once(SOLE) {
                // `a`, or `a` and `b`: names in backticks until other words come.
                let names = names.split('`').collect::<Vec<_>>();
                for (name, after) in names.iter().skip(1).step_by(2).zip(names.iter().skip(2).step_by(2)) {
                    table.sole.insert((*name).to_string(), folder.clone());
                    if after.trim() != "and" {
                        break;
                    }
                }
            }
            let deps = deps.split(',').map(str::trim).filter(|d| *d != "-").map(|d| format!("crates/{d}")).collect();
            table.may_use.insert(folder, deps);
        }
        if table.may_use.is_empty() { Err("ARCHITECTURE.md has no table of crates".into()) } else { Ok(table) }
    }
    pub fn folders(&self) -> impl Iterator<Item = &str> {
        self.may_use.keys().map(String::as_str)
    }
    /// Folders of the crates that this one may depend on.
    pub fn may_use(&self, folder: &str) -> Option<&[String]> {
        self.may_use.get(folder).map(Vec::as_slice)
    }
    /// Folder of the only crate that may use this external crate.
    pub fn sole_user(&self, outside: &str) -> Option<&str> {
        self.sole.get(outside).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_name_folders_dependencies_and_sole_users() {
        let text = "# A\n\n| crate | what | may depend on |\n|---|---|---|\n\
                    | `crates/a` | one. The only user of `x` and `y`, not `z` | - |\n\
                    | `b` | two (the only user of `w`) | a, c |\n\n| crate | other |\n";
        let t = Table::parse(text).expect("a table");
        assert_eq!(t.folders().collect::<Vec<_>>(), ["b", "crates/a"]);
        assert_eq!(t.may_use("crates/a"), Some(&[][..]));
        assert_eq!(t.may_use("b"), Some(&["crates/a".to_string(), "crates/c".to_string()][..]));
        let users = ["x", "y", "z", "w"].map(|n| t.sole_user(n));
        assert_eq!(users, [Some("crates/a"), Some("crates/a"), None, Some("b")]);
        assert!(Table::parse("no table").is_err());
        assert!(Table::parse("| crate |\n|---|\n| a | b |\n").is_err_and(|e| e.contains("three cells")));
    }
}
