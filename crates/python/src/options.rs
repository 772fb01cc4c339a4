//! The options of an engine, as Python passes them.
use crate::errors::{UsageError, raised};
use kiln::{CompileOptions, Device, DeviceKind, Numerics, compile::open_device, engine::Limits};
use pyo3::{prelude::*, types::PyDict};
use std::collections::BTreeMap;

/// What an engine is made with.
pub struct Options {
    pub compile: CompileOptions,
    pub device: Device,
    pub kind: DeviceKind,
    pub limits: Limits,
    /// Programs with operators that Kiln does not compile are refused.
    pub refuses_fallbacks: bool,
    /// New bindings are compiled on another thread, and a call meanwhile runs nothing.
    pub in_background: bool,
    /// Sizes to round up to, by dimension.
    pub buckets: BTreeMap<String, Vec<i64>>,
}

const KNOWN: &str = "device, numerics, splits, no_tf32, batch_invariant, fuse, threads, cache, cache_size, \
                     cache_bytes, fallback, while_compiling, buckets and machine_code";

impl Options {
    /// Reads the options; what is left out is as in `compile`, or has its default.
    pub fn read(given: &Bound<'_, PyDict>, mut compile: CompileOptions) -> PyResult<Options> {
        let (mut kind, mut threads, mut limits, mut refuses_fallbacks, mut in_background) =
            (DeviceKind::Cpu, None, Limits::default(), false, false);
        let mut buckets = BTreeMap::new();
        for (key, value) in given {
            let key: String = key.extract()?;
            let wrong = |want: &str| {
                let shown = value.repr().map_or_else(|_| "another value".into(), |r| r.to_string());
                UsageError::new_err(format!("option {} is {shown}; give {want}", Quoted(&key)))
            };
            let number = || value.extract::<usize>().ok().filter(|n| *n > 0).ok_or_else(|| wrong("a number above 0"));
            let flag = || value.extract::<bool>().map_err(|_| wrong("True or False"));
            let text = || value.extract::<String>().map_err(|_| wrong("a text"));
            if value.is_none() {
                continue;
            }
            match key.as_str() {
                "device" => kind = text()?.parse().map_err(|_| wrong("'cpu' or 'cuda:0'"))?,
                "numerics" => {
                    compile.contract.numerics = match text()?.as_str() {
                        "exact" => Numerics::Exact,
                        "torch" => Numerics::Torch,
                        "fast" => Numerics::Fast,
                        _ => return Err(wrong("'exact', 'torch' or 'fast'")),
                    }
                }
                "splits" => compile.contract.splits = flag()?,
                "no_tf32" => compile.contract.no_tf32 = flag()?,
                "batch_invariant" => compile.contract.batch_invariant = flag()?,
                "machine_code" => compile.machine_code = flag()?,
                "fuse" => compile.fuse = flag()?,
                "cache" => compile.cache = flag()?,
                "threads" => threads = Some(number()?),
                "cache_size" => limits.bindings = number()?,
                "cache_bytes" => limits.bytes = number()?,
                "fallback" => {
                    refuses_fallbacks = match text()?.as_str() {
                        "torch" => false,
                        "error" => true,
                        _ => return Err(wrong("'torch' or 'error'")),
                    }
                }
                "while_compiling" => {
                    in_background = match text()?.as_str() {
                        "wait" => false,
                        "eager" => true,
                        _ => return Err(wrong("'wait' or 'eager'")),
                    }
                }
                "buckets" => {
                    let wanted = "a dict of lists of numbers above 1, such as {'x.0': [8, 32]}";
                    buckets = value.extract::<BTreeMap<String, Vec<i64>>>().map_err(|_| wrong(wanted))?;
                    if buckets.values().any(|all| all.is_empty() || all.iter().any(|n| *n < 2)) {
                        return Err(wrong(wanted));
                    }
                }
                _ => {
                    let what = format!("there is no option {}; the options are {KNOWN}", Quoted(&key));
                    return Err(UsageError::new_err(what));
                }
            }
        }
        let compile = compile.on(kind).map_err(raised)?;
        let device = open_device(kind, threads).map_err(raised)?;
        Ok(Options { compile, device, kind, limits, refuses_fallbacks, in_background, buckets })
    }
}

/// A text in Python's quotes.
struct Quoted<'a>(&'a str);
impl std::fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "'{}'", self.0)
    }
}
