//! The store of measured configurations of kernels: a folder of the cache, with a text for each kernel in the format of
//! `kiln tune` ([`kiln_tune::Store`]).
//!
//! Texts are replaced as a whole, after what others wrote meanwhile has been read again: of two processes that write at
//! the same moment one may lose its rows, which are then measured once more. A text that does not read is as none.
use crate::cache::Cache;
use crate::{Error, io};
pub use kiln_tune::{ConfigurationTime, KernelEntry, KernelKey, Machine, Measured, Store};
use std::path::{Path, PathBuf};

/// Digits of a digest in a file's name.
const NAME_DIGITS: usize = 16;

/// The store in a folder.
pub struct Tunings {
    folder: PathBuf,
}

/// Which rows to pin.
pub struct Pin<'a> {
    /// The kernel's name.
    pub kernel: &'a str,
    /// The arguments as the store has them; `None`: all.
    pub arguments: Option<&'a str>,
    /// The configuration; `None` unpins.
    pub configuration: Option<&'a str>,
}

impl Tunings {
    /// That of the cache; `None` where there is no cache.
    pub fn standard() -> Option<Tunings> {
        Some(Tunings::at(Cache::standard()?.folder().join("tunings")))
    }
    /// That of a folder, which is made when something is written.
    pub fn at(folder: PathBuf) -> Tunings {
        Tunings { folder }
    }
    fn path(&self, key: &KernelKey) -> PathBuf {
        let name: String = key.kernel.chars().map(|c| if c.is_alphanumeric() { c } else { '_' }).collect();
        let digest = key.digest.get(..NAME_DIGITS).unwrap_or(&key.digest);
        self.folder.join(format!("{name}-{digest}.json"))
    }
    /// What is known of a kernel for these arguments, this machine and this compiler.
    pub fn find(&self, key: &KernelKey) -> Option<KernelEntry> {
        text(&self.path(key))?.kernels().iter().find(|entry| entry.key == *key).cloned()
    }
    /// Adds rows to those that are known.
    ///
    /// # Errors
    /// If the folder cannot be written.
    pub fn add(&self, entry: KernelEntry) -> Result<(), Error> {
        let path = self.path(&entry.key);
        let mut store = text(&path).unwrap_or_default();
        store.put_kernel(entry);
        self.write(&path, &store)
    }
    fn write(&self, path: &Path, store: &Store) -> Result<(), Error> {
        std::fs::create_dir_all(&self.folder).map_err(|e| Error::writing(&self.folder, e))?;
        io::write_whole(path, store.text().as_bytes())
    }
    /// All rows, as one store.
    pub fn all(&self) -> Store {
        let mut all = Store::default();
        for path in self.paths() {
            let store = text(&path).unwrap_or_default();
            store.kernels().iter().for_each(|entry| all.put_kernel(entry.clone()));
        }
        all
    }
    /// Adds the kernels of a store; says how many rows these are.
    ///
    /// # Errors
    /// If the folder cannot be written.
    pub fn import(&self, store: &Store) -> Result<usize, Error> {
        store.kernels().iter().try_for_each(|entry| self.add(entry.clone()))?;
        Ok(store.kernels().len())
    }
    /// Pins a configuration of a kernel; says of how many rows.
    ///
    /// # Errors
    /// If the folder cannot be written.
    pub fn pin(&self, pin: &Pin) -> Result<usize, Error> {
        let mut pinned = 0;
        for path in self.paths() {
            let Some(mut store) = text(&path) else { continue };
            let wanted = |entry: &KernelEntry| {
                entry.key.kernel == pin.kernel && pin.arguments.is_none_or(|text| entry.key.arguments == text)
            };
            let before = pinned;
            for entry in store.kernels_mut().filter(|entry| wanted(entry)) {
                entry.pinned = pin.configuration.map(String::from);
                pinned += 1;
            }
            if pinned > before {
                self.write(&path, &store)?;
            }
        }
        Ok(pinned)
    }
    fn paths(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(&self.folder).into_iter().flatten().flatten().map(|entry| entry.path());
        let mut paths: Vec<PathBuf> = entries.filter(|path| path.extension().is_some_and(|e| e == "json")).collect();
        paths.sort();
        paths
    }
}

/// Version of Kiln and of its code generation, for which times are valid.
pub fn compiler() -> String {
    crate::tune::compiler()
}

fn text(path: &Path) -> Option<Store> {
    Store::parse(&std::fs::read_to_string(path).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(digest: &str, configuration: &str, median: f64) -> KernelEntry {
        let machine = Machine { device: "NVIDIA H200".into(), target: "sm_90a".into() };
        let (kernel, arguments) = ("f.<locals>.softmax".into(), "n=64 float32".into());
        let mut entry =
            KernelEntry::new(KernelKey { kernel, digest: digest.into(), arguments, machine, compiler: compiler() });
        let measured = Measured::Us { median, low: median, high: median };
        entry.put(ConfigurationTime { configuration: configuration.into(), measured });
        entry
    }

    #[test]
    fn rows_are_kept_by_the_kernels_text() {
        let folder = tempfile::tempdir().expect("a folder");
        let tunings = Tunings::at(folder.path().join("tunings"));
        assert!(tunings.all().kernels().is_empty());
        for (digest, configuration, median) in
            [("aa", "BLOCK: 64", 4.0), ("aa", "BLOCK: 32", 2.0), ("bb", "BLOCK: 64", 1.0)]
        {
            tunings.add(entry(digest, configuration, median)).expect("is written");
        }
        let known = tunings.find(&entry("aa", "", 0.0).key).expect("is known");
        assert_eq!((known.configurations.len(), known.choice()), (2, Some("BLOCK: 32")));
        assert_eq!(tunings.find(&entry("cc", "", 0.0).key), None);
        assert_eq!(tunings.all().kernels().len(), 2);
    }
    #[test]
    fn rows_move_to_another_folder_and_are_pinned_there() {
        let folder = tempfile::tempdir().expect("a folder");
        let [here, there] = ["here", "there"].map(|name| Tunings::at(folder.path().join(name)));
        here.add(entry("aa", "BLOCK: 64", 4.0)).expect("is written");
        here.add(entry("aa", "BLOCK: 32", 2.0)).expect("is written");
        let moved = Store::parse(&here.all().text()).expect("reads");
        assert_eq!(there.import(&moved).expect("is written"), 1);
        let pin = |configuration| Pin { kernel: "f.<locals>.softmax", arguments: None, configuration };
        let choice = || there.find(&entry("aa", "", 0.0).key).and_then(|e| e.choice().map(String::from));
        assert_eq!(there.pin(&pin(Some("BLOCK: 64"))).expect("is written"), 1);
        assert_eq!(choice().as_deref(), Some("BLOCK: 64"));
        assert_eq!(there.pin(&pin(None)).expect("is written"), 1);
        assert_eq!(choice().as_deref(), Some("BLOCK: 32"));
        assert_eq!(there.pin(&Pin { kernel: "other", ..pin(None) }).expect("is written"), 0);
    }
    #[test]
    fn a_damaged_text_is_as_none() {
        let folder = tempfile::tempdir().expect("a folder");
        let tunings = Tunings::at(folder.path().to_path_buf());
        tunings.add(entry("aa", "BLOCK: 64", 4.0)).expect("is written");
        let path = tunings.path(&entry("aa", "", 0.0).key);
        std::fs::write(&path, "{").expect("is written");
        assert_eq!(tunings.find(&entry("aa", "", 0.0).key), None);
        tunings.add(entry("aa", "BLOCK: 32", 2.0)).expect("is written");
        assert_eq!(tunings.find(&entry("aa", "", 0.0).key).map(|e| e.configurations.len()), Some(1));
    }
}
