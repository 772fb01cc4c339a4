//! Execution by libtorch: whole modules as the reference, and single operators for fallback nodes. An operator is
//! checked against the list of allowed ones ([`kiln_graph::fallback`]) before it runs.
use crate::{
    ffi::{self, RawSession, RawValue, TorchTensor, c_string, checked, checked_count},
    import::borrow_all,
};
use kiln_aten::{ImportErrors, Problem};
use kiln_graph::{Tensor, Type};
use serde_json::Value;
use std::{
    collections::HashSet,
    ffi::c_void,
    hash::{BuildHasher, RandomState},
    path::Path,
    ptr::{NonNull, null_mut},
    sync::{LazyLock, Mutex, PoisonError},
};

/// More results than any operator has.
const MOST_RESULTS: usize = 256;

/// A loaded module with its inputs, for repeated runs.
pub struct Session {
    raw: NonNull<RawSession>,
    outputs: usize,
    /// Kept alive, since the module's arguments may point into them.
    _inputs: Vec<Tensor>,
}

impl Drop for Session {
    fn drop(&mut self) {
        // SAFETY: owned, closed once.
        unsafe { ffi::kt_session_close(self.raw.as_ptr()) }
    }
}

impl Session {
    /// Loads a module. `device` is a CUDA device's number, or -1 for the host. `threads` sets libtorch's threads; 0
    /// keeps its default.
    pub fn open(path: &Path, inputs: &[Tensor], device: i32, threads: usize) -> Result<Session, ImportErrors> {
        if threads > 0 {
            // SAFETY: plain number.
            unsafe { ffi::kt_set_threads(threads.min(4096) as i32) };
        }
        let inputs = inputs.to_vec();
        let tensors = borrow_all(&inputs)?;
        let raw: Vec<_> = tensors.iter().map(TorchTensor::as_ptr).collect();
        let c_path = c_string(&path.to_string_lossy())?;
        let n = raw.len() as i32;
        // SAFETY: pointers are valid for the call; `e` can be written.
        let raw = checked(|e| unsafe { ffi::kt_session(c_path.as_ptr(), device, raw.as_ptr(), n, e) })?;
        Ok(Session { raw, outputs: 0, _inputs: inputs })
    }

    /// Runs forward once and waits until it is done. Returns the number of flattened outputs.
    pub fn run(&mut self) -> Result<usize, ImportErrors> {
        // SAFETY: a live session; pointers are valid for the call; `e` can be written.
        self.outputs = checked_count(|e| unsafe { ffi::kt_session_run(self.raw.as_ptr(), e) })?;
        Ok(self.outputs)
    }

    /// A host copy of output `i` of the last run.
    pub fn output(&self, i: usize) -> Result<Tensor, ImportErrors> {
        // SAFETY: a live session; pointers are valid for the call; `e` can be written.
        let raw = checked(|e| unsafe { ffi::kt_session_output(self.raw.as_ptr(), i as i32, e) })?;
        // SAFETY: the shim transfers ownership.
        unsafe { TorchTensor::from_raw(raw) }.to_host()
    }

    pub fn outputs(&self) -> Result<Vec<Tensor>, ImportErrors> {
        (0..self.outputs).map(|i| self.output(i)).collect()
    }
}

/// A dense tensor in memory owned by the caller, on the host or on a CUDA device.
#[derive(Debug, Clone)]
pub struct Memory {
    pub ptr: *mut c_void,
    pub ty: Type,
}

/// An argument as a `c10::IValue`, freed on drop.
struct Argument(NonNull<RawValue>);

impl Drop for Argument {
    fn drop(&mut self) {
        // SAFETY: owned, freed once.
        unsafe { ffi::kt_iv_free(self.0.as_ptr()) }
    }
}

impl Argument {
    fn from_json(v: &Value, tensors: &[TorchTensor]) -> Result<Argument, ImportErrors> {
        let bad = || ImportErrors::from(Problem::new(format!("a fallback's argument `{v}` is not a valid argument")));
        // SAFETY: the constructors take plain values or live pointers, and transfer ownership.
        let raw = unsafe {
            match v {
                Value::Null => ffi::kt_iv_none(),
                Value::Bool(b) => ffi::kt_iv_bool(i32::from(*b)),
                Value::Number(n) => match n.as_i64() {
                    Some(i) => ffi::kt_iv_int(i),
                    None => ffi::kt_iv_float(n.as_f64().ok_or_else(bad)?),
                },
                Value::String(s) => ffi::kt_iv_str(c_string(s)?.as_ptr()),
                Value::Array(items) => {
                    let items: Vec<Argument> =
                        items.iter().map(|i| Argument::from_json(i, tensors)).collect::<Result<_, _>>()?;
                    let raw: Vec<_> = items.iter().map(|i| i.0.as_ptr()).collect();
                    ffi::kt_iv_list(raw.as_ptr(), raw.len() as i32)
                }
                Value::Object(o) => {
                    if let Some(i) = o.get("tensor").and_then(Value::as_u64) {
                        ffi::kt_iv_tensor(tensors.get(i as usize).ok_or_else(bad)?.as_ptr())
                    } else if let Some(f) = o.get("float").and_then(Value::as_str) {
                        ffi::kt_iv_float(f.parse().map_err(|_| bad())?)
                    } else if o.contains_key("device") {
                        ffi::kt_iv_device()
                    } else {
                        return Err(bad());
                    }
                }
            }
        };
        NonNull::new(raw).map(Argument).ok_or_else(bad)
    }
}

/// Calls that have run once and returned the declared types. Such a call need not be checked again, and may use the
/// operator's out= overload. (An out= overload casts to and resizes the given outputs, so it would hide a wrong result
/// type.)
struct Seen {
    calls: Mutex<HashSet<u64>>,
    hasher: RandomState,
}

static SEEN: LazyLock<Seen> = LazyLock::new(|| Seen { calls: Mutex::default(), hasher: RandomState::new() });

impl Seen {
    fn key(&self, call: [&str; 3], ins: &[Memory], outs: &[Memory], device: i32) -> u64 {
        let types = |list: &[Memory]| list.iter().map(|m| m.ty.clone()).collect::<Vec<_>>();
        self.hasher.hash_one((call, types(ins), types(outs), device))
    }
    fn has(&self, key: u64) -> bool {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).contains(&key)
    }
    fn put(&self, key: u64) {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).insert(key);
    }
}

/// Calls an allowed fallback operator and copies its first results to `outs`, which must have the results' types.
/// Results whose `Memory` is null are skipped.
///
/// # Safety
/// Every `Memory` holds a dense tensor of its type on `device` (-1: host), and no result overlaps an operand.
pub unsafe fn call(
    name: &str,
    overload: &str,
    args: &str,
    ins: &[Memory],
    outs: &[Memory],
    device: i32,
) -> Result<(), ImportErrors> {
    let key = SEEN.key([name, overload, args], ins, outs, device);
    let seen = SEEN.has(key);
    if !seen {
        let types: Vec<&Type> = ins.iter().map(|m| &m.ty).collect();
        kiln_graph::fallback::check_arguments(name, overload, args, &types).map_err(Problem::new)?;
    }
    let parsed: Vec<Value> = serde_json::from_str(args)
        .map_err(|e| Problem::new(format!("the arguments of fallback `{name}` do not parse: {e}")))?;
    // SAFETY: this function's contract: dense tensors of these types on that device.
    let over = |m: &Memory| unsafe { TorchTensor::over(m.ptr, &m.ty, device) };
    let tensors: Vec<TorchTensor> = ins.iter().map(over).collect::<Result<_, _>>()?;
    let arguments: Vec<Argument> = parsed.iter().map(|a| Argument::from_json(a, &tensors)).collect::<Result<_, _>>()?;
    let raw: Vec<_> = arguments.iter().map(|a| a.0.as_ptr()).collect();
    // If every result has memory, an out= overload may write to it directly.
    let whole = seen && outs.iter().all(|m| !m.ptr.is_null());
    let into: Vec<TorchTensor> = outs.iter().filter(|_| whole).map(over).collect::<Result<_, _>>()?;
    let raw_into: Vec<_> = into.iter().map(TorchTensor::as_ptr).collect();
    let (c_name, c_overload) = (c_string(name)?, c_string(overload)?);
    let mut results = vec![null_mut(); MOST_RESULTS];
    // SAFETY: live values and tensors with their counts; room for `MOST_RESULTS` results; `e` can be written.
    let n = checked_count(|e| unsafe {
        ffi::kt_call(
            c_name.as_ptr(),
            c_overload.as_ptr(),
            raw.as_ptr(),
            raw.len() as i32,
            raw_into.as_ptr(),
            raw_into.len() as i32,
            device,
            results.as_mut_ptr(),
            MOST_RESULTS as i32,
            e,
        )
    })
    .map_err(|mut e| {
        e.errors.iter_mut().for_each(|p| p.message = format!("libtorch cannot run `{name}`: {}", p.message));
        e
    })?;
    let results: Vec<TorchTensor> = results
        .into_iter()
        .take(n)
        .filter_map(NonNull::new)
        // SAFETY: the shim transfers ownership.
        .map(|r| unsafe { TorchTensor::from_raw(r) })
        .collect();
    if results.len() < outs.len() {
        let message = format!("fallback `{name}` gave {} results, {} were expected", results.len(), outs.len());
        return Err(Problem::new(message).into());
    }
    for (i, (result, out)) in results.iter().zip(outs).enumerate() {
        let found = result.ty()?;
        if found != out.ty {
            return Err(misfit(name, &format!("result {i} is {found}, where the graph declares {}", out.ty)));
        }
        if !out.ptr.is_null() {
            over(out)?.copy_from(result)?;
        }
    }
    SEEN.put(key);
    Ok(())
}

/// The error for a result whose type differs from the example run.
fn misfit(name: &str, what: &str) -> ImportErrors {
    Problem::new(format!("libtorch's `{name}` gave another type than on the example inputs: {what}"))
        .help(
            "its shape depends on data, which a compiled graph cannot follow: keep it fixed, e.g. by a mask instead \
             of a selection",
        )
        .into()
}
