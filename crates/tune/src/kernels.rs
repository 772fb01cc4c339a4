//! Times of configurations of kernels written by hand, as rows of the same store.
//!
//! A row has all configurations that were measured for one kernel, one machine and one combination of arguments, so
//! that a further configuration is measured alone. The fastest one runs, or the one that somebody pinned.
use crate::machine::Machine;
use serde::{Deserialize, Serialize};

/// What times are valid for.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct KernelKey {
    /// The kernel's name, for readers.
    pub kernel: String,
    /// Of the text of the kernel and of all that it calls.
    pub digest: String,
    /// Values of the key, and element types of tensors.
    pub arguments: String,
    #[serde(flatten)]
    pub machine: Machine,
    /// Version of Kiln and of its code generation.
    pub compiler: String,
}

/// What became of a configuration.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Measured {
    /// Microseconds: the median, and where the fastest fifth ends and the slowest begins.
    Us { median: f64, low: f64, high: f64 },
    /// It does not compile, or does not fit the device; why.
    Failed(String),
}

/// A configuration by its text, such as `BLOCK: 128, num_warps: 4`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ConfigurationTime {
    pub configuration: String,
    pub measured: Measured,
}

/// The configurations of a kernel that were measured.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct KernelEntry {
    #[serde(flatten)]
    pub key: KernelKey,
    /// By their texts.
    pub configurations: Vec<ConfigurationTime>,
    /// The configuration that runs, whatever was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned: Option<String>,
}

impl KernelEntry {
    /// Without configurations.
    pub fn new(key: KernelKey) -> KernelEntry {
        KernelEntry { key, configurations: vec![], pinned: None }
    }
    /// The configuration that runs: the pinned one, otherwise the fastest.
    pub fn choice(&self) -> Option<&str> {
        let time = |c: &ConfigurationTime| match c.measured {
            Measured::Us { median, .. } => median,
            Measured::Failed(_) => f64::INFINITY,
        };
        let finished = self.configurations.iter().filter(|c| time(c).is_finite());
        let fastest = finished.min_by(|a, b| time(a).total_cmp(&time(b))).map(|c| c.configuration.as_str());
        self.pinned.as_deref().or(fastest)
    }
    /// Adds a configuration, or replaces the one of the same text.
    pub fn put(&mut self, new: ConfigurationTime) {
        match self.configurations.binary_search_by(|c| c.configuration.cmp(&new.configuration)) {
            Ok(i) => self.configurations[i] = new,
            Err(i) => self.configurations.insert(i, new),
        }
    }
    /// With what another entry of the same key knows, in order whatever the other's was.
    pub(crate) fn merged(mut self, other: KernelEntry) -> KernelEntry {
        self.merge(other);
        self
    }
    /// Adds what another entry of the same key knows; where both know a configuration, the other's time is kept.
    pub fn merge(&mut self, other: KernelEntry) {
        other.configurations.into_iter().for_each(|c| self.put(c));
        self.pinned = other.pinned.or(self.pinned.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Store;

    fn entry(arguments: &str, times: &[(&str, f64)]) -> KernelEntry {
        let machine = Machine { device: "NVIDIA H200".into(), target: "sm_90a".into() };
        let (kernel, digest, compiler) = ("softmax".into(), "af01".into(), "0.1.0/1".into());
        let mut entry = KernelEntry::new(KernelKey { kernel, digest, arguments: arguments.into(), machine, compiler });
        for (text, median) in times {
            let measured = match median.is_finite() {
                true => Measured::Us { median: *median, low: median * 0.75, high: median * 1.5 },
                false => Measured::Failed("out of shared memory".into()),
            };
            entry.put(ConfigurationTime { configuration: (*text).into(), measured });
        }
        entry
    }

    #[test]
    fn kernels_and_schedules_share_a_text_that_reads_back() {
        let mut store = Store::default();
        store.put_kernel(entry("n=64", &[("BLOCK: 64", 4.0), ("BLOCK: 32", 2.0), ("BLOCK: 16", f64::INFINITY)]));
        store.put_kernel(entry("n=32", &[("BLOCK: 32", 8.0)]));
        assert_eq!(Store::parse(&store.text()), Ok(store.clone()));
        let order: Vec<&str> = store.kernels().iter().map(|e| e.key.arguments.as_str()).collect();
        assert_eq!(order, ["n=32", "n=64"]);
        // Stores of earlier versions have no kernels, and their text stays as it was.
        assert!(!Store::default().text().contains("kernels"));
    }
    #[test]
    fn a_further_configuration_joins_those_that_are_known() {
        let mut store = Store::default();
        store.put_kernel(entry("n=64", &[("BLOCK: 64", 4.0), ("BLOCK: 32", 2.0)]));
        store.put_kernel(entry("n=64", &[("BLOCK: 128", 1.0), ("BLOCK: 64", 3.0)]));
        let [known] = store.kernels() else { panic!("the entries have one key") };
        let texts: Vec<&str> = known.configurations.iter().map(|c| c.configuration.as_str()).collect();
        assert_eq!(texts, ["BLOCK: 128", "BLOCK: 32", "BLOCK: 64"]);
        assert_eq!(known.choice(), Some("BLOCK: 128"));
    }
    #[test]
    fn what_is_pinned_runs_and_what_failed_does_not() {
        let mut known = entry("n=64", &[("BLOCK: 64", f64::INFINITY)]);
        assert_eq!(known.choice(), None);
        known.merge(entry("n=64", &[("BLOCK: 32", 2.0)]));
        assert_eq!(known.choice(), Some("BLOCK: 32"));
        known.pinned = Some("BLOCK: 64".into());
        known.merge(entry("n=64", &[("BLOCK: 16", 1.0)]));
        assert_eq!(known.choice(), Some("BLOCK: 64"));
    }
}
