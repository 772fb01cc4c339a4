//! `kiln cache`: what earlier compilations have kept on disk.
use crate::{args::CacheCommand, render};
use kiln::{
    Error,
    cache::{Cache, Entry},
    io,
};
use std::collections::BTreeMap;

pub fn run(command: &CacheCommand) -> Result<(), Error> {
    let cache = Cache::standard().ok_or_else(|| {
        Error::usage("there is no cache: KILN_CACHE is `off`, or there is no home", "set KILN_CACHE to a folder")
    })?;
    match command {
        CacheCommand::List { json } => {
            let entries = cache.entries();
            if let Some(path) = json {
                let text = serde_json::to_vec_pretty(&entries)
                    .map_err(|e| Error::failed(format!("cannot encode the list: {e}"), "please report it"))?;
                io::write_whole(path, &text)?;
            }
            render::out(&summary(cache, &entries))
        }
        CacheCommand::Trim { bytes } => {
            let removed = cache.trim(*bytes);
            render::out(&format!("removed {removed} of {}\n", cache.folder().display()))
        }
        CacheCommand::Pack { file } => {
            let count = cache.pack(file)?;
            render::out(&format!("{}: {count} entries\n", file.display()))
        }
        CacheCommand::Install { file } => {
            let count = cache.install(file)?;
            render::out(&format!("{}: {count} entries\n", cache.folder().display()))
        }
    }
}

/// The folder, and a line for each kind of entries.
fn summary(cache: &Cache, entries: &[Entry]) -> String {
    let mut kinds: BTreeMap<&str, (usize, u64)> = BTreeMap::new();
    for entry in entries {
        let (count, bytes) = kinds.entry(entry.kind.name()).or_default();
        *count += 1;
        *bytes += entry.bytes;
    }
    let mib = |bytes: u64| bytes as f64 / (1u64 << 20) as f64;
    let total: u64 = entries.iter().map(|e| e.bytes).sum();
    let mut text = format!("{}: {:.1} of {:.0} MiB\n", cache.folder().display(), mib(total), mib(cache.limit()));
    for (kind, (count, bytes)) in kinds {
        text.push_str(&format!("  {kind:<6} {count:>6} {:>9.1} MiB\n", mib(bytes)));
    }
    text
}
