//! Compiled artifacts kept between processes: bytes under a key that the caller derives from everything they depend on.
//!
//! Takes: keys as hexadecimal digests, values as bytes. Never: fails a run. A missing, unwritable or damaged cache is a miss.
//! Processes may share a directory: entries are written to a file of their own and renamed into place.
use std::{
    fs::{self, File},
    io::{self, Read, Write},
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, SystemTime},
};

/// Size of all entries together, in bytes, beyond which the oldest go.
pub const DEFAULT_LIMIT: u64 = 2 << 30;

const MAGIC: &[u8; 8] = b"kiln-c01";
const HEADER: usize = MAGIC.len() + 16;
/// A writer that takes longer has died.
const STALE: Duration = Duration::from_secs(3600);

/// A directory of artifacts; without one, everything is a miss.
#[derive(Clone, Debug, Default)]
pub struct Cache {
    dir: Option<PathBuf>,
    limit: u64,
}

impl Cache {
    /// In `KILN_CACHE` if it is set (`off` or nothing: no cache), else in `$XDG_CACHE_HOME/kiln` or `~/.cache/kiln`.
    pub fn open() -> Cache {
        let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
        let dir = match std::env::var_os("KILN_CACHE") {
            Some(v) if v.is_empty() || v == "off" => None,
            Some(v) => Some(PathBuf::from(v)),
            None => absolute("XDG_CACHE_HOME")
                .or_else(|| absolute("HOME").map(|h| h.join(".cache")))
                .map(|c| c.join("kiln")),
        };
        dir.map_or_else(Cache::disabled, |d| Cache::at(d, DEFAULT_LIMIT))
    }
    /// In this directory, which is made if needed; disabled if nothing can be written there.
    pub fn at(dir: impl Into<PathBuf>, limit: u64) -> Cache {
        let cache = Cache { dir: Some(dir.into()), limit };
        let probe = || -> io::Result<()> {
            let dir = cache.dir.as_deref().unwrap_or(Path::new("."));
            fs::create_dir_all(dir)?;
            let probe = temporary(dir);
            File::create_new(&probe)?;
            fs::remove_file(probe)
        };
        if probe().is_ok() { cache } else { Cache::disabled() }
    }
    pub fn disabled() -> Cache {
        Cache::default()
    }
    /// Where entries are; `None` if disabled.
    pub fn dir(&self) -> Option<&Path> {
        self.dir.as_deref()
    }

    fn path(&self, key: &str) -> Option<PathBuf> {
        let fits = (16..=128).contains(&key.len()) && key.bytes().all(|b| b.is_ascii_hexdigit());
        Some(self.dir.as_ref()?.join(fits.then_some(key)?))
    }

    /// The value under a key. A damaged entry is removed.
    pub fn get(&self, key: &str) -> Option<Vec<u8>> {
        let path = self.path(key)?;
        let mut file = File::open(&path).ok()?;
        let mut bytes = vec![];
        file.read_to_end(&mut bytes).ok()?;
        let valid = bytes.split_at_checked(HEADER).is_some_and(|(header, value)| header == self::header(key, value));
        if !valid {
            let _ = fs::remove_file(&path);
            return None;
        }
        // Used entries are young ones. Fails on files opened for reading on some systems; then they age from writing.
        let _ = file.set_modified(SystemTime::now());
        bytes.drain(..HEADER);
        Some(bytes)
    }

    /// Stores a value, and drops the oldest entries beyond the limit.
    pub fn put(&self, key: &str, value: &[u8]) {
        let (Some(dir), Some(path)) = (self.dir(), self.path(key)) else { return };
        let temporary = temporary(dir);
        let write = || -> io::Result<()> {
            let mut file = File::create_new(&temporary)?;
            file.write_all(&header(key, value))?;
            file.write_all(value)?;
            drop(file);
            fs::rename(&temporary, &path)
        };
        if write().is_err() {
            let _ = fs::remove_file(&temporary);
        }
        let _ = self.evict(dir, &path);
    }

    fn evict(&self, dir: &Path, newest: &Path) -> io::Result<()> {
        let mut entries = vec![];
        let mut total = 0;
        for entry in fs::read_dir(dir)?.flatten() {
            let Ok(meta) = entry.metadata() else { continue };
            let age = meta.modified().ok().and_then(|m| m.elapsed().ok()).unwrap_or_default();
            let name = entry.file_name();
            if name.to_string_lossy().starts_with(TEMPORARY) {
                if age > STALE {
                    let _ = fs::remove_file(entry.path());
                }
            } else if meta.is_file() && self.path(&name.to_string_lossy()).is_some() {
                total += meta.len();
                entries.push((age, name, meta.len()));
            }
        }
        entries.sort_unstable();
        while total > self.limit {
            let Some((_, name, size)) = entries.pop() else { break };
            let path = dir.join(name);
            if path != newest || entries.is_empty() {
                let _ = fs::remove_file(path);
                total -= size;
            }
        }
        Ok(())
    }
}

const TEMPORARY: &str = ".new-";
/// A file name that no other writer uses.
fn temporary(dir: &Path) -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().subsec_nanos();
    dir.join(format!("{TEMPORARY}{}-{}-{now}", process::id(), COUNT.fetch_add(1, Ordering::Relaxed)))
}

/// Magic, length and checksum over key and value.
fn header(key: &str, value: &[u8]) -> [u8; HEADER] {
    let mut h = [0; HEADER];
    h[..8].copy_from_slice(MAGIC);
    h[8..16].copy_from_slice(&(value.len() as u64).to_le_bytes());
    h[16..].copy_from_slice(&checksum(checksum(0, key.as_bytes()), value).to_le_bytes());
    h
}

/// Finds accidents, not attacks: multiply and rotate over 8-byte words.
fn checksum(seed: u64, bytes: &[u8]) -> u64 {
    let step = |h: u64, w: u64| (h ^ w).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29).wrapping_add(w);
    let (words, rest) = bytes.as_chunks::<8>();
    let h = words.iter().fold(seed ^ bytes.len() as u64, |h, w| step(h, u64::from_le_bytes(*w)));
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let h = step(h, u64::from_le_bytes(last));
    (h ^ (h >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory that goes with the test.
    struct Dir(PathBuf);
    impl Dir {
        fn new(name: &str) -> Dir {
            let dir = std::env::temp_dir().join(format!("kiln-cache-{name}-{}", process::id()));
            let _ = fs::remove_dir_all(&dir);
            Dir(dir)
        }
    }
    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
    fn key(i: usize) -> String {
        format!("{i:064x}")
    }

    #[test]
    fn what_is_put_is_got() {
        let dir = Dir::new("put");
        let cache = Cache::at(&dir.0, DEFAULT_LIMIT);
        assert_eq!(cache.get(&key(1)), None);
        for value in [vec![], vec![7], (0..100_000).map(|i| i as u8).collect()] {
            cache.put(&key(1), &value);
            assert_eq!(cache.get(&key(1)), Some(value));
        }
        assert_eq!(Cache::at(&dir.0, 0).get(&key(1)).map(|v| v.len()), Some(100_000));
        assert_eq!(fs::read_dir(&dir.0).unwrap().count(), 1, "temporary files were left behind");
    }

    #[test]
    fn damage_is_a_miss() {
        let dir = Dir::new("damage");
        let cache = Cache::at(&dir.0, DEFAULT_LIMIT);
        let value = b"some machine code, of a length that is no multiple of eight";
        cache.put(&key(1), value);
        let good = fs::read(dir.0.join(key(1))).unwrap();
        let mut all: Vec<Vec<u8>> = (0..good.len()).map(|n| good[..n].to_vec()).collect();
        all.extend((0..good.len() * 8).map(|bit| {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            bad
        }));
        all.push([&good[..], b"\0"].concat());
        for bad in all {
            fs::write(dir.0.join(key(1)), &bad).unwrap();
            assert_eq!(cache.get(&key(1)), None, "{bad:?}");
            assert!(!dir.0.join(key(1)).exists());
        }
        // Another key's entry under this name.
        fs::write(dir.0.join(key(2)), &good).unwrap();
        assert_eq!(cache.get(&key(2)), None);
    }

    #[test]
    fn the_oldest_go() {
        let dir = Dir::new("evict");
        let size = 1000 + HEADER as u64;
        let cache = Cache::at(&dir.0, 3 * size);
        for i in 0..5 {
            cache.put(&key(i), &[i as u8; 1000]);
            let old = SystemTime::now() - Duration::from_secs(100 - i as u64);
            let file = File::options().write(true).open(dir.0.join(key(i))).unwrap();
            file.set_modified(old).unwrap();
        }
        let left: Vec<bool> = (0..5).map(|i| dir.0.join(key(i)).exists()).collect();
        assert_eq!(left, [false, false, true, true, true]);
        // Larger than the cache: not kept, and what must go for it goes.
        cache.put(&key(9), &[0; 10_000]);
        assert_eq!(cache.get(&key(9)), None);
    }

    #[test]
    fn no_place_no_cache() {
        let dir = Dir::new("file");
        fs::write(&dir.0, b"a file").unwrap();
        let cache = Cache::at(dir.0.join("below"), DEFAULT_LIMIT);
        assert_eq!(cache.dir(), None);
        cache.put(&key(1), b"x");
        assert_eq!(cache.get(&key(1)), None);
        fs::remove_file(&dir.0).unwrap();
    }

    #[test]
    fn odd_keys_are_misses() {
        let dir = Dir::new("keys");
        let cache = Cache::at(dir.0.join("cache"), DEFAULT_LIMIT);
        for odd in ["", "..", "../../../etc/passwd", "xyz", &"0".repeat(500)] {
            cache.put(odd, b"x");
            assert_eq!(cache.get(odd), None);
        }
        assert_eq!(fs::read_dir(&dir.0).unwrap().count(), 1);
    }

    #[test]
    fn writers_do_not_disturb_each_other() {
        let dir = Dir::new("race");
        std::thread::scope(|s| {
            for t in 0..4u8 {
                let cache = Cache::at(&dir.0, DEFAULT_LIMIT);
                s.spawn(move || {
                    for _ in 0..50 {
                        cache.put(&key(1), &[t; 5000]);
                        if let Some(v) = cache.get(&key(1)) {
                            assert!(v.len() == 5000 && v.iter().all(|b| *b == v[0]));
                        }
                    }
                });
            }
        });
    }
}
