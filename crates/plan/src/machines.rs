//! The machine descriptions that come with Kiln: data, one file each under `machines/`.
use crate::Machine;

const FILES: [(&str, &str); 3] = [
    ("h200", include_str!("../machines/h200.json")),
    ("a100", include_str!("../machines/a100.json")),
    ("cpu", include_str!("../machines/cpu.json")),
];

/// Names of the machines that [`machine`] knows.
pub fn names() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|f| f.0)
}
/// The description of that name.
pub fn machine(name: &str) -> Option<Machine> {
    FILES.iter().find(|f| f.0 == name).and_then(|f| serde_json::from_str(f.1).ok())
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_machine_reads_and_has_its_name() {
        for name in super::names() {
            assert_eq!(super::machine(name).map(|m| m.name).as_deref(), Some(name));
        }
    }
}
