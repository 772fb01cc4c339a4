//! The store of measurements, as JSON text that later compilations read: one entry for each problem, machine and
//! compiler version, and one for each kernel written by hand ([`crate::kernels`]).
//!
//! Entries are not trusted: whoever uses one lowers the kernel by its schedule, and ignores the entry if lowering
//! refuses.
use crate::kernels::KernelEntry;
use crate::machine::Machine;
use kiln_plan::Schedule;
use serde::{Deserialize, Serialize};

/// Version of the text format. Other versions are refused.
pub const VERSION: u32 = 1;

/// What a measurement is valid for.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Key {
    /// The kernel's body without names: shapes, dtypes, which axes are contiguous, prologue and epilogue.
    pub problem: String,
    #[serde(flatten)]
    pub machine: Machine,
    /// Version of Kiln and of its programs.
    pub compiler: String,
}

/// The fastest schedule for a problem.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Entry {
    #[serde(flatten)]
    pub key: Key,
    /// In the syntax of constraints files.
    pub schedule: String,
    /// Median microseconds.
    pub us: f64,
    /// The schedule without the store, and its median in the same rounds.
    pub default: String,
    pub default_us: f64,
    /// Candidates that were compiled and measured.
    pub measured: usize,
}

/// Result of looking up a problem in a store.
#[derive(Clone, PartialEq, Debug)]
pub enum Found<'a> {
    Entry(&'a Entry, Schedule),
    /// An entry that cannot be used, and why.
    Useless(&'a Entry, String),
    Nothing,
}

#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum StoreError {
    #[error("it is damaged at line {line}: {what}")]
    Damaged { line: usize, what: String },
    #[error("it has format version {0}, but this Kiln reads version {VERSION}")]
    Version(u64),
}

/// Entries in the order of their keys, each key once.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Store {
    entries: Vec<Entry>,
    kernels: Vec<KernelEntry>,
}

#[derive(Serialize)]
struct WrittenFile<'a> {
    kiln_measurements: u64,
    entries: &'a [Entry],
    #[serde(skip_serializing_if = "<[KernelEntry]>::is_empty")]
    kernels: &'a [KernelEntry],
}

#[derive(Deserialize)]
struct ReadFile {
    entries: Vec<Entry>,
    #[serde(default)]
    kernels: Vec<KernelEntry>,
}

impl Store {
    pub fn parse(text: &str) -> Result<Store, StoreError> {
        #[derive(Deserialize)]
        struct Head {
            kiln_measurements: u64,
        }
        let damaged = |e: serde_json::Error| StoreError::Damaged { line: e.line(), what: plain(&e) };
        match serde_json::from_str::<Head>(text).map_err(damaged)?.kiln_measurements {
            n if n == u64::from(VERSION) => {}
            n => return Err(StoreError::Version(n)),
        }
        let file: ReadFile = serde_json::from_str(text).map_err(damaged)?;
        let mut store = Store::default();
        file.entries.into_iter().for_each(|e| store.put(e));
        file.kernels.into_iter().for_each(|e| store.put_kernel(e));
        Ok(store)
    }
    /// The text form, which [`Store::parse`] reads. The same entries give the same text, in whatever order they were
    /// added.
    pub fn text(&self) -> String {
        let (entries, kernels) = (&self.entries[..], &self.kernels[..]);
        let file = WrittenFile { kiln_measurements: u64::from(VERSION), entries, kernels };
        // Invariant: only strings and finite numbers, which JSON can represent.
        serde_json::to_string_pretty(&file).map(|t| t + "\n").unwrap_or_default()
    }
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }
    /// Adds an entry, replacing one with the same key.
    pub fn put(&mut self, entry: Entry) {
        match self.entries.binary_search_by(|e| e.key.cmp(&entry.key)) {
            Ok(i) => self.entries[i] = entry,
            Err(i) => self.entries.insert(i, entry),
        }
    }
    /// Kernels written by hand, in the order of their keys.
    pub fn kernels(&self) -> &[KernelEntry] {
        &self.kernels
    }
    /// The same, to pin configurations.
    pub fn kernels_mut(&mut self) -> impl Iterator<Item = &mut KernelEntry> {
        self.kernels.iter_mut()
    }
    /// Adds the configurations of a kernel to those of the same key.
    pub fn put_kernel(&mut self, entry: KernelEntry) {
        match self.kernels.binary_search_by(|e| e.key.cmp(&entry.key)) {
            Ok(i) => self.kernels[i].merge(entry),
            Err(i) => self.kernels.insert(i, KernelEntry::new(entry.key.clone()).merged(entry)),
        }
    }
    /// The entry of exactly this key. An entry that differs only in the compiler version is reported as useless.
    pub fn find(&self, key: &Key) -> Found<'_> {
        if let Ok(i) = self.entries.binary_search_by(|e| e.key.cmp(key)) {
            let entry = &self.entries[i];
            return match entry.schedule.parse() {
                Ok(schedule) => Found::Entry(entry, schedule),
                Err(why) => Found::Useless(entry, why),
            };
        }
        let alike = |e: &&Entry| e.key.problem == key.problem && e.key.machine == key.machine;
        match self.entries.iter().rfind(alike) {
            Some(e) => {
                Found::Useless(e, format!("it was measured with Kiln {}, and this is {}", e.key.compiler, key.compiler))
            }
            None => Found::Nothing,
        }
    }
    /// The machine of this target whose entries a compilation without a device uses: `usual` if the store has it, else
    /// the first by name.
    pub fn machine(&self, target: &str, usual: &str) -> Option<&Machine> {
        let mut all = self.entries.iter().map(|e| &e.key.machine).filter(|m| m.target == target);
        let first = all.clone().min();
        all.find(|m| m.device == usual).or(first)
    }
}

/// The message without its position, which is reported separately.
fn plain(e: &serde_json::Error) -> String {
    let text = e.to_string();
    text.split(" at line ").next().unwrap_or(&text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(problem: &str, device: &str, compiler: &str) -> Key {
        let machine = Machine { device: device.into(), target: "sm_90a".into() };
        Key { problem: problem.into(), machine, compiler: compiler.into() }
    }
    fn entry(problem: &str, device: &str, schedule: &str) -> Entry {
        let key = key(problem, device, "0.1.0/1");
        let default = "tensor-core wgmma 128x256x64".to_string();
        Entry { key, schedule: schedule.into(), us: 12.5, default, default_us: 13.25, measured: 9 }
    }

    #[test]
    fn a_store_reads_back_and_its_text_does_not_depend_on_the_order() {
        let list = [
            entry("b", "H200", "split r 64"),
            entry("a", "H200", "tensor-core mma 64x64x64"),
            entry("a", "H100", "fma 64x64"),
        ];
        let (mut one, mut other) = (Store::default(), Store::default());
        list.iter().for_each(|e| one.put(e.clone()));
        list.iter().rev().for_each(|e| other.put(e.clone()));
        assert_eq!(one.text(), other.text());
        assert_eq!(Store::parse(&one.text()), Ok(one.clone()));
        one.put(Entry { us: 1.0, ..list[0].clone() });
        assert_eq!(one.entries().len(), 3, "an entry takes the place of the one before");
        assert_eq!(Store::parse(&Store::default().text()), Ok(Store::default()));
    }
    #[test]
    fn only_the_same_problem_machine_and_compiler_are_found() {
        let mut s = Store::default();
        s.put(entry("a", "H200", "tensor-core mma 64x64x64"));
        let schedule = "tensor-core mma 64x64x64";
        let is_entry = |found: Found| matches!(found, Found::Entry(e, t) if e.us == 12.5 && t.to_string() == schedule);
        assert!(is_entry(s.find(&key("a", "H200", "0.1.0/1"))));
        assert_eq!(s.find(&key("b", "H200", "0.1.0/1")), Found::Nothing);
        assert_eq!(s.find(&key("a", "H100", "0.1.0/1")), Found::Nothing);
        let Found::Useless(_, why) = s.find(&key("a", "H200", "0.1.0/2")) else {
            panic!("the entry is of another compiler")
        };
        assert_eq!(why, "it was measured with Kiln 0.1.0/1, and this is 0.1.0/2");
    }
    #[test]
    fn a_schedule_that_does_not_read_is_useless() {
        let mut s = Store::default();
        s.put(entry("a", "H200", "tensor-core wgmma 63x0x64"));
        assert!(matches!(s.find(&key("a", "H200", "0.1.0/1")), Found::Useless(_, why) if why.contains("63x0x64")));
    }
    #[test]
    fn without_a_machine_the_usual_one_or_the_first() {
        let mut s = Store::default();
        let device = |s: &Store, usual: &str| s.machine("sm_90a", usual).map(|m| m.device.clone());
        assert_eq!(device(&s, "H200"), None);
        s.put(entry("a", "H200", "split r 64"));
        s.put(entry("a", "H100", "split r 64"));
        assert_eq!(device(&s, "H200").as_deref(), Some("H200"));
        assert_eq!(device(&s, "B200").as_deref(), Some("H100"));
        assert_eq!(s.machine("sm_80", "A100"), None);
    }
    #[test]
    fn damaged_and_foreign_text_is_refused_with_its_line() {
        let mut s = Store::default();
        s.put(entry("a", "H200", "split r 64"));
        let good = s.text();
        let cut = &good[..good.len() / 2];
        assert!(matches!(Store::parse(cut), Err(StoreError::Damaged { line, .. }) if line > 3));
        let newer = good.replace("\"kiln_measurements\": 1", "\"kiln_measurements\": 2");
        assert_eq!(Store::parse(&newer), Err(StoreError::Version(2)));
        for other in ["", "[]", "{}", "{\"kiln_measurements\": \"1\"}", "not JSON", "{\"kiln_measurements\": 1}"] {
            assert!(matches!(Store::parse(other), Err(StoreError::Damaged { .. })), "{other}");
        }
        assert!(matches!(Store::parse(&good.replace("12.5", "\"fast\"")), Err(StoreError::Damaged { .. })));
    }
}
