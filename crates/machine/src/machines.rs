//! The machine descriptions that are built into Kiln: one JSON file each under `machines/`, found by name or by device.
use crate::{Arch, Machine};
use std::sync::LazyLock;

const FILES: [(&str, &str); 6] = [
    ("h200", include_str!("../machines/h200.json")),
    ("h100", include_str!("../machines/h100.json")),
    ("a100", include_str!("../machines/a100.json")),
    ("rtx4090", include_str!("../machines/rtx4090.json")),
    ("l40s", include_str!("../machines/l40s.json")),
    ("cpu", include_str!("../machines/cpu.json")),
];

/// The parsed descriptions.
static MACHINES: LazyLock<Vec<Machine>> = LazyLock::new(|| {
    // Invariant: the files are part of the program, and a test reads each of them.
    let read = |(name, text): &(&str, &str)| {
        Machine::parse(text).unwrap_or_else(|e| panic!("the description of the machine {name}: {e}"))
    };
    FILES.iter().map(read).collect()
});

/// Every built-in machine.
pub fn machines() -> &'static [Machine] {
    &MACHINES
}
/// Names of the machines that [`machine`] knows.
pub fn names() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|f| f.0)
}
/// The built-in description of this name.
pub fn machine(name: &str) -> Option<&'static Machine> {
    machines().iter().find(|m| m.name == name)
}
/// The built-in description for this target of the device with this name, as its driver reports it.
pub fn of_device(arch: Arch, device: &str) -> Option<&'static Machine> {
    machines().iter().find(|m| m.arch == arch && !m.device.is_empty() && m.device == device)
}

impl Arch {
    /// The machine that stands for this target where none is named.
    pub fn machine(self) -> &'static Machine {
        let name = match self {
            Arch::Cpu => "cpu",
            Arch::Sm80 => "a100",
            Arch::Sm89 => "rtx4090",
            Arch::Sm90a => "h200",
        };
        // Invariant: the files are part of the program, and a test looks each of these up.
        machine(name).unwrap_or_else(|| panic!("the description of the machine {name} is missing"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_machine_reads_has_its_name_and_says_where_its_figures_come_from() {
        for (name, text) in FILES {
            let m = Machine::parse(text).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_eq!(m.name, name);
            let json: serde_json::Value = serde_json::from_str(text).expect("is JSON");
            let sections =
                json.as_object().expect("is an object").iter().filter(|(k, v)| v.is_object() && *k != "sources");
            for (section, _) in sections {
                assert!(m.sources.contains_key(section), "{name} has no source of its {section}");
            }
            for section in m.sources.keys() {
                assert!(json.get(section).is_some(), "{name} has a source of {section}, which it lacks");
            }
            let again = serde_json::to_string(&m).expect("writes");
            assert_eq!(Machine::parse(&again).ok().as_ref(), Some(&m), "{name}");
        }
    }

    #[test]
    fn devices_are_found_by_their_whole_name() {
        let of = |arch, device| of_device(arch, device).map(|m| m.name.as_str());
        assert_eq!(of(Arch::Sm90a, "NVIDIA H200"), Some("h200"));
        assert_eq!(of(Arch::Sm90a, "NVIDIA H100 80GB HBM3"), Some("h100"));
        assert_eq!(of(Arch::Sm89, "NVIDIA L40S"), Some("l40s"));
        // The laptop GPU has fewer multiprocessors than the card of that name.
        assert_eq!(of(Arch::Sm89, "NVIDIA GeForce RTX 4090 Laptop GPU"), None);
        assert_eq!(of(Arch::Sm80, "NVIDIA H200"), None);
        assert_eq!(of(Arch::Cpu, ""), None);
    }
}
