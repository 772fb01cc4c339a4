//! What was compiled, kept on disk, so that another process that compiles the same takes it from there.
//!
//! Takes: the bytes of a part (a plan, code, machine code) and a [`Key`] of all that they were made from: graphs
//! without weights, the machine, contract and constraints, the sources of this Kiln. Gives: the same bytes for the same
//! key. A folder of files, one an entry: written whole and renamed, so that any number of processes may share it;
//! checked by digest when read. An entry that is broken or cannot be read is as none, and one that cannot be written is
//! left out: the cache never fails a compilation, and says nothing of it. The least recently used entries go when it is
//! larger than its limit.
//!
//! Entries hold machine code, which nothing can check: the folder is the user's own, and [`Cache::install`] is for
//! packs from who is trusted.
//!
//! `KILN_CACHE` names the folder, or is `off`; without it `$XDG_CACHE_HOME/kiln` or `~/.cache/kiln`. `KILN_CACHE_BYTES`
//! is the limit.
//!
//! The trace of a module is not kept. Its key would have to cover all that `forward` may reach: its code and that of
//! all it calls, closures, globals, attributes of objects, versions of extensions, flags of torch. No such key can be
//! shown to be complete, a wrong entry is a wrong result, and a trace costs 0.02 to 0.4 s. What follows the trace is a
//! function of data. The digest of Kiln's sources is part of every key (`build.rs`), so that a changed rule or price
//! leaves no stale entry. Weights are in no key: they are not in graphs, and what conversion has read of small ones is.
use crate::{Error, io};
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::{
    fs::{self, File},
    io::{Read, Write},
    path::{Path, PathBuf},
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};
use zip::{CompressionMethod, ZipArchive, ZipWriter, write::SimpleFileOptions};

/// Bytes that entries may take.
const LIMIT: u64 = 2 << 30;
/// What an entry begins with.
const START: &[u8; 8] = b"kiln-c1\n";
/// Bytes of a SHA-256.
const DIGEST: usize = 32;
/// Entries are marked as used at most so often.
const MARKED: Duration = Duration::from_secs(3600);
/// Bytes that a process writes before it looks at the size of the cache again.
const LOOKS: u64 = 64 << 20;

/// What an entry holds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A plan with its schedules, as text.
    Plan,
    /// An object file of kernels for the host's processor.
    Host,
    /// PTX and how it is launched.
    Ptx,
    /// PTX, assembled.
    Cubin,
}
impl Kind {
    const ALL: [Kind; 4] = [Kind::Plan, Kind::Host, Kind::Ptx, Kind::Cubin];
    /// The name of its folder.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Plan => "plan",
            Kind::Host => "host",
            Kind::Ptx => "ptx",
            Kind::Cubin => "cubin",
        }
    }
}

/// A digest of what an entry was made from.
pub(crate) struct Key {
    kind: Kind,
    sum: Sha256,
}
impl Key {
    /// Of what this Kiln makes.
    pub fn new(kind: Kind) -> Key {
        Key { kind, sum: Sha256::new() }.with(env!("KILN_SOURCES").as_bytes())
    }
    /// And of this.
    pub fn with(mut self, bytes: &[u8]) -> Key {
        self.sum.update((bytes.len() as u64).to_le_bytes());
        self.sum.update(bytes);
        self
    }
    fn name(&self) -> String {
        self.sum.clone().finalize().iter().map(|b| format!("{b:02x}")).collect()
    }
}

/// One entry, as `kiln cache list` shows it.
#[derive(Clone, Debug, Serialize)]
pub struct Entry {
    /// What it holds.
    pub kind: Kind,
    /// The digest of what it was made from.
    pub name: String,
    /// Of its file.
    pub bytes: u64,
    /// Seconds since it was used.
    pub idle_s: u64,
    #[serde(skip)]
    path: PathBuf,
}

/// A folder of entries.
pub struct Cache {
    folder: PathBuf,
    limit: u64,
    /// Bytes written since the size of the folder was looked at.
    written: AtomicU64,
}

impl Cache {
    /// The one of `KILN_CACHE`; `None` if that is `off`, or there is no home.
    pub fn standard() -> Option<&'static Cache> {
        static STANDARD: OnceLock<Option<Cache>> = OnceLock::new();
        STANDARD.get_or_init(|| Some(Cache::at(standard_folder()?))).as_ref()
    }
    /// The one in this folder, which is made when it is needed.
    pub fn at(folder: PathBuf) -> Cache {
        let limit = std::env::var("KILN_CACHE_BYTES").ok().and_then(|n| n.parse().ok()).unwrap_or(LIMIT);
        Cache { folder, limit, written: AtomicU64::new(LOOKS) }
    }
    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
    /// Bytes that it may take.
    pub fn limit(&self) -> u64 {
        self.limit
    }
    fn path(&self, kind: Kind, name: &str) -> PathBuf {
        self.folder.join(kind.name()).join(&name[..2]).join(name)
    }

    /// The entry of a key, if there is one.
    pub(crate) fn get(&self, key: &Key) -> Option<Vec<u8>> {
        let path = self.path(key.kind, &key.name());
        let mut all = vec![];
        let mut file = File::open(&path).ok()?;
        file.read_to_end(&mut all).ok()?;
        if !is_whole(&all) {
            let _ = fs::remove_file(&path);
            return None;
        }
        // Not at every use: a folder may be on a network.
        let is_old = |m: &fs::Metadata| m.modified().is_ok_and(|t| t.elapsed().is_ok_and(|e| e > MARKED));
        if file.metadata().is_ok_and(|m| is_old(&m)) {
            let _ = File::options().append(true).open(&path).and_then(|f| f.set_modified(SystemTime::now()));
        }
        all.drain(..START.len() + DIGEST);
        Some(all)
    }
    /// Keeps an entry.
    pub(crate) fn put(&self, key: &Key, bytes: &[u8]) {
        let mut all = Vec::with_capacity(START.len() + DIGEST + bytes.len());
        all.extend_from_slice(START);
        all.extend_from_slice(&Sha256::digest(bytes));
        all.extend_from_slice(bytes);
        self.write(key.kind, &key.name(), &all);
    }
    fn write(&self, kind: Kind, name: &str, all: &[u8]) {
        if all.len() as u64 > self.limit {
            return;
        }
        let path = self.path(kind, name);
        let Some(folder) = path.parent() else { return };
        if !self.folder.is_dir() && private(&self.folder).is_err() {
            return;
        }
        if fs::create_dir_all(folder).is_err() || io::write_whole(&path, all).is_err() {
            return;
        }
        if self.written.fetch_add(all.len() as u64, Ordering::Relaxed) >= LOOKS {
            self.written.store(0, Ordering::Relaxed);
            self.trim(self.limit);
        }
    }

    /// All entries, the least recently used first.
    pub fn entries(&self) -> Vec<Entry> {
        let mut found = vec![];
        let below = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path());
        for kind in Kind::ALL {
            for path in below(&self.folder.join(kind.name())).flat_map(|folder| below(&folder).collect::<Vec<_>>()) {
                let Ok(meta) = fs::metadata(&path) else { continue };
                let idle_s = meta.modified().ok().and_then(|t| t.elapsed().ok()).map_or(0, |e| e.as_secs());
                let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
                if is_name(&name) {
                    found.push(Entry { kind, name, bytes: meta.len(), idle_s, path });
                }
            }
        }
        found.sort_by(|a, b| b.idle_s.cmp(&a.idle_s).then_with(|| a.name.cmp(&b.name)));
        found
    }
    /// Removes the least recently used entries until they take no more than this; gives how many.
    pub fn trim(&self, bytes: u64) -> usize {
        let entries = self.entries();
        let mut left: u64 = entries.iter().map(|e| e.bytes).sum();
        let mut removed = 0;
        for entry in entries {
            if left <= bytes {
                break;
            }
            left -= entry.bytes;
            removed += usize::from(fs::remove_file(&entry.path).is_ok());
        }
        removed
    }
    /// Writes all entries to a file, which [`Cache::install`] takes on another machine; gives how many.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn pack(&self, path: &Path) -> Result<usize, Error> {
        let encode = |e: &dyn std::fmt::Display| {
            Error::failed(
                format!("cannot pack the cache: {e}"),
                "free disk space, or trim the cache with `kiln cache trim`",
            )
        };
        let mut zip = ZipWriter::new(std::io::Cursor::new(vec![]));
        let options = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
        let mut count = 0;
        for entry in self.entries() {
            let Some(all) = fs::read(&entry.path).ok().filter(|all| is_whole(all)) else { continue };
            zip.start_file(format!("{}/{}", entry.kind.name(), entry.name), options).map_err(|e| encode(&e))?;
            zip.write_all(&all).map_err(|e| encode(&e))?;
            count += 1;
        }
        let bytes = zip.finish().map_err(|e| encode(&e))?.into_inner();
        io::write_whole(path, &bytes)?;
        Ok(count)
    }
    /// Takes the entries of a pack; gives how many. Their machine code runs as it is: install packs of those whom you
    /// trust alone.
    ///
    /// # Errors
    /// If the file is no pack, or an entry of it is broken; entries before it are kept.
    pub fn install(&self, path: &Path) -> Result<usize, Error> {
        let unusable = |what: &dyn std::fmt::Display| {
            Error::failed(
                format!("{} is no pack of a cache: {what}", path.display()),
                "write it with `kiln cache pack FILE`",
            )
        };
        let file = File::open(path).map_err(|e| Error::reading(path, e))?;
        let whole = file.metadata().map_err(|e| Error::reading(path, e))?.len();
        let mut zip = ZipArchive::new(file).map_err(|e| unusable(&e))?;
        for i in 0..zip.len() {
            let mut part = zip.by_index(i).map_err(|e| unusable(&e))?;
            let full = part.name().to_string();
            let known = full.split_once('/').and_then(|(kind, name)| {
                Some((Kind::ALL.into_iter().find(|k| k.name() == kind)?, Some(name).filter(|n| is_name(n))?))
            });
            let (kind, name) = known.ok_or_else(|| unusable(&format!("it has a part `{full}`")))?;
            if part.size() > whole {
                return Err(unusable(&format!("`{full}` claims more bytes than the file has")));
            }
            let mut all = vec![];
            part.read_to_end(&mut all).map_err(|e| unusable(&e))?;
            if !is_whole(&all) {
                return Err(unusable(&format!("`{full}` does not match its digest")));
            }
            self.write(kind, name, &all);
        }
        Ok(zip.len())
    }
}

/// Whether an entry is as it was written.
fn is_whole(all: &[u8]) -> bool {
    let rest = all.strip_prefix(START.as_slice());
    rest.and_then(|r| r.split_at_checked(DIGEST)).is_some_and(|(sum, bytes)| sum == Sha256::digest(bytes).as_slice())
}

/// Whether this is the name of an entry: a digest in hexadecimal.
fn is_name(name: &str) -> bool {
    name.len() == 2 * DIGEST && name.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Makes a folder that only its user may read and write.
fn private(folder: &Path) -> std::io::Result<()> {
    fs::create_dir_all(folder)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(folder, fs::Permissions::from_mode(0o700))?;
    }
    Ok(())
}

fn standard_folder() -> Option<PathBuf> {
    match std::env::var_os("KILN_CACHE") {
        Some(off) if off == "off" => None,
        Some(folder) if !folder.is_empty() => Some(folder.into()),
        _ => {
            let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
            let cache =
                set("XDG_CACHE_HOME").filter(|p| p.is_absolute()).or_else(|| Some(set("HOME")?.join(".cache")))?;
            Some(cache.join("kiln"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(limit: u64) -> (tempfile::TempDir, Cache) {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = Cache { limit, ..Cache::at(folder.path().join("cache")) };
        (folder, cache)
    }
    fn key(n: u8) -> Key {
        Key::new(Kind::Plan).with(&[n])
    }

    #[test]
    fn an_entry_is_found_by_all_that_it_was_made_from() {
        let (_folder, cache) = cache(LIMIT);
        assert!(cache.get(&key(1)).is_none());
        cache.put(&key(1), b"a plan");
        assert_eq!(cache.get(&key(1)).as_deref(), Some(&b"a plan"[..]));
        assert!(cache.get(&key(2)).is_none() && cache.get(&Key::new(Kind::Host).with(&[1])).is_none());
        // The borders of parts count.
        let joined = |a: &[u8], b: &[u8]| Key::new(Kind::Plan).with(a).with(b).name();
        assert_ne!(joined(b"ab", b"c"), joined(b"a", b"bc"));
    }

    #[test]
    fn a_broken_entry_is_as_none() {
        let (_folder, cache) = cache(LIMIT);
        cache.put(&key(1), b"a plan");
        let path = cache.entries()[0].path.clone();
        let mut all = fs::read(&path).expect("written");
        for broken in [all.len() - 1, 3, 0] {
            fs::write(&path, &all[..broken]).expect("a file");
            assert!(cache.get(&key(1)).is_none() && !path.exists(), "cut to {broken}");
        }
        *all.last_mut().expect("bytes") ^= 1;
        fs::write(&path, &all).expect("a file");
        assert!(cache.get(&key(1)).is_none());
        cache.put(&key(1), b"a plan");
        assert!(cache.get(&key(1)).is_some());
    }

    #[test]
    fn the_least_recently_used_go_first() {
        let (_folder, cache) = cache(LIMIT);
        for n in 0..4 {
            cache.put(&key(n), &[n; 100]);
        }
        let old = SystemTime::now() - 2 * MARKED;
        for n in [1, 2] {
            let path = cache.path(Kind::Plan, &key(n).name());
            File::options().append(true).open(path).and_then(|f| f.set_modified(old)).expect("there");
        }
        // A use makes it recent.
        assert!(cache.get(&key(1)).is_some());
        let one = cache.entries()[0].bytes;
        assert_eq!(cache.trim(3 * one), 1);
        assert!(cache.get(&key(2)).is_none() && [0, 1, 3].iter().all(|n| cache.get(&key(*n)).is_some()));
        assert_eq!((cache.trim(0), cache.entries().len()), (3, 0));
    }

    #[test]
    fn it_stays_below_its_limit() {
        let (_folder, cache) = cache(1000);
        cache.put(&key(0), &[0; 2000]);
        assert_eq!(cache.entries().len(), 0, "an entry larger than the cache");
        for n in 1..9 {
            cache.written.store(LOOKS, Ordering::Relaxed);
            cache.put(&key(n), &[n; 300]);
        }
        assert!(cache.entries().iter().map(|e| e.bytes).sum::<u64>() <= 1000);
    }

    #[test]
    fn a_pack_is_installed_elsewhere() {
        let (folder, from) = cache(LIMIT);
        let (_other, to) = cache(LIMIT);
        (0..3).for_each(|n| from.put(&key(n), &[n; 10]));
        let pack = folder.path().join("pack.zip");
        assert_eq!(from.pack(&pack).expect("packed"), 3);
        assert_eq!(to.install(&pack).expect("a pack"), 3);
        assert!((0..3).all(|n| to.get(&key(n)) == from.get(&key(n))));
        // A changed entry is refused.
        let mut bytes = fs::read(&pack).expect("written");
        let at = bytes.windows(START.len()).position(|w| w == START).expect("an entry");
        bytes[at + START.len()] ^= 1;
        fs::write(&pack, &bytes).expect("a file");
        assert!(to.install(&pack).is_err());
        fs::write(&pack, b"no zip").expect("a file");
        let e = to.install(&pack).expect_err("no pack");
        assert!(e.help().contains("kiln cache pack"), "{e}");
    }

    #[test]
    fn many_writers_leave_whole_entries() {
        let (_folder, cache) = cache(LIMIT);
        std::thread::scope(|s| {
            for n in 0..8u8 {
                let cache = &cache;
                s.spawn(move || (0..50).for_each(|_| cache.put(&key(n % 2), &[n % 2; 5000])));
            }
            for _ in 0..200 {
                for n in 0..2 {
                    if let Some(found) = cache.get(&key(n)) {
                        assert_eq!(found, [n; 5000]);
                    }
                }
            }
        });
        assert_eq!(cache.entries().len(), 2);
    }
}
