//! Loads, stores and atomic updates.
use super::arguments::{known_text, one_of, sizes, tensor};
use super::windows::{descriptor_load, descriptor_store, descriptor_update, pointer_load, pointer_store};
use super::{Primitive, Walk, row};
use crate::emit::Update;
use crate::error::{Eval, value_error};
use crate::ops::atomic;
use crate::ops::memory::{self, LoadOperands};
use crate::value::Value;
use kiln_block::{AtomicOp, Atomicity, CachePolicy, MemoryOrder, Scope};

const UPDATE: &str = "pointer, val, mask=None, sem=None, scope=None";

pub const TABLE: &[Primitive] = &[
    row(
        "load",
        "pointer, mask=None, other=None, boundary_check=(), padding_option='', cache_modifier='', eviction_policy='', \
         volatile=False",
        load,
    ),
    row("store", "pointer, value, mask=None, boundary_check=(), cache_modifier='', eviction_policy=''", store),
    row("atomic_add", UPDATE, |e, a| update(e, AtomicOp::Add, a)),
    row("atomic_max", UPDATE, |e, a| update(e, AtomicOp::Max, a)),
    row("atomic_min", UPDATE, |e, a| update(e, AtomicOp::Min, a)),
    row("atomic_and", UPDATE, |e, a| update(e, AtomicOp::And, a)),
    row("atomic_or", UPDATE, |e, a| update(e, AtomicOp::Or, a)),
    row("atomic_xor", UPDATE, |e, a| update(e, AtomicOp::Xor, a)),
    row("atomic_xchg", UPDATE, |e, a| update(e, AtomicOp::Exchange, a)),
    row("atomic_cas", "pointer, cmp, val, sem=None, scope=None", compare_and_swap),
];

const EVICTION: [&str; 3] = ["evict_last", "evict_first", "evict_normal"];

/// A modifier and an eviction policy as the one hint that they are; the policy counts where both are given.
fn cache_policy(modifier: &Value, modifiers: &[&str], eviction: &Value) -> Eval<CachePolicy> {
    let (modifier, eviction) = (known_text("cache_modifier", modifier)?, known_text("eviction_policy", eviction)?);
    one_of("cache_modifier", &modifier, modifiers)?;
    one_of("eviction_policy", &eviction, &EVICTION)?;
    Ok(match (&eviction[..], &modifier[..]) {
        ("evict_first", _) | ("" | "evict_normal", ".cs") => CachePolicy::EvictFirst,
        ("evict_last", _) => CachePolicy::EvictLast,
        (_, ".cg") => CachePolicy::L2Only,
        _ => CachePolicy::Normal,
    })
}

fn load(walk: &mut dyn Walk, arguments: &[Value]) -> Eval<Value> {
    let [pointer, mask, other, boundary, padding, cache, eviction, ..] = arguments else { return Ok(Value::NONE) };
    let cache = cache_policy(cache, &[".ca", ".cg", ".cs", ".cv"], eviction)?;
    let padding = known_text("padding_option", padding)?;
    one_of("padding_option", &padding, &["zero", "nan"])?;
    match pointer {
        Value::Descriptor(descriptor) => descriptor_load(walk, descriptor, mask),
        Value::BlockPointer(window) => {
            refuse_mask(mask, other)?;
            pointer_load(walk, window, boundary, &padding)
        }
        _ => {
            refuse_boundary(boundary, &padding)?;
            let pointer = tensor(walk, pointer)?;
            memory::load(walk.emit(), &pointer, &LoadOperands { mask, other, cache }).map(Value::Tensor)
        }
    }
}

fn store(walk: &mut dyn Walk, arguments: &[Value]) -> Eval<Value> {
    let [pointer, value, mask, boundary, cache, eviction] = arguments else { return Ok(Value::NONE) };
    let cache = cache_policy(cache, &[".wb", ".cg", ".cs", ".wt"], eviction)?;
    match pointer {
        Value::Descriptor(descriptor) => descriptor_store(walk, descriptor, value, mask)?,
        Value::BlockPointer(window) => {
            refuse_mask(mask, &Value::NONE)?;
            pointer_store(walk, window, value, boundary)?;
        }
        _ => {
            refuse_boundary(boundary, "")?;
            let pointer = tensor(walk, pointer)?;
            memory::store(walk.emit(), &pointer, value, &LoadOperands { mask, other: &Value::NONE, cache })?;
        }
    }
    Ok(Value::NONE)
}

fn refuse_mask(mask: &Value, other: &Value) -> Eval<()> {
    if mask.is_none() && other.is_none() {
        return Ok(());
    }
    Err(value_error("`mask` and `other` are not for block pointers", "use `boundary_check` and `padding_option`"))
}

fn refuse_boundary(boundary: &Value, padding: &str) -> Eval<()> {
    let unchecked = boundary.is_none() || sizes(boundary).is_ok_and(|axes| axes.is_empty());
    if unchecked && padding.is_empty() {
        return Ok(());
    }
    Err(value_error("`boundary_check` and `padding_option` are for block pointers", "use `mask` and `other`"))
}

fn update(walk: &mut dyn Walk, op: AtomicOp, arguments: &[Value]) -> Eval<Value> {
    let [pointer, value, mask, sem, scope] = arguments else { return Ok(Value::NONE) };
    let update = Update { op, how: atomicity(sem, scope)? };
    if let Value::Descriptor(descriptor) = pointer {
        return descriptor_update(walk, update, descriptor, value, mask);
    }
    let pointer = tensor(walk, pointer)?;
    atomic::update(walk.emit(), update, &pointer, value, mask).map(Value::Tensor)
}

/// Order and scope by their names; what is not named is the strictest order, and the device.
fn atomicity(sem: &Value, scope: &Value) -> Eval<Atomicity> {
    let (sem, scope) = (known_text("sem", sem)?, known_text("scope", scope)?);
    one_of("sem", &sem, &["acquire", "release", "acq_rel", "relaxed"])?;
    one_of("scope", &scope, &["gpu", "cta", "sys"])?;
    let order = match &sem[..] {
        "relaxed" => MemoryOrder::Relaxed,
        "acquire" => MemoryOrder::Acquire,
        "release" => MemoryOrder::Release,
        _ => MemoryOrder::AcquireRelease,
    };
    let scope = match &scope[..] {
        "cta" => Scope::Block,
        "sys" => Scope::System,
        _ => Scope::Device,
    };
    Ok(Atomicity { order, scope })
}

fn compare_and_swap(walk: &mut dyn Walk, arguments: &[Value]) -> Eval<Value> {
    let [pointer, expected, new, sem, scope] = arguments else { return Ok(Value::NONE) };
    let how = atomicity(sem, scope)?;
    let pointer = tensor(walk, pointer)?;
    atomic::compare_swap(walk.emit(), how, &pointer, expected, new).map(Value::Tensor)
}
