//! Checks that many ops share. Each says what is wrong and what is needed.
use super::{Facts, Rule};
use crate::{Array, BlockProgram, Elem, Extent, InstData, LaunchArray, Layout, Param, Swizzle, Type};

/// The op being checked.
pub struct Checked<'a> {
    pub k: &'a BlockProgram,
    pub data: &'a InstData,
    pub facts: &'a Facts,
}

impl<'a> Checked<'a> {
    /// Type of the n-th operand.
    pub fn ty(&self, n: usize) -> &'a Type {
        self.k.ty(self.data.args[n])
    }
    /// Type of the result.
    pub fn out(&self) -> &'a Type {
        self.k.ty(self.data.results[0])
    }
    /// Whether it has this number of operands and results, and no regions.
    pub fn arity(&self, least: usize, most: usize, out: usize) -> Rule {
        count("operands", self.data.args.len(), least, most)?;
        count("results", self.data.results.len(), out, out)?;
        count("regions", self.data.regions.len(), 0, 0)
    }
}

pub fn ensure(holds: bool, what: impl FnOnce() -> String) -> Rule {
    if holds { Ok(()) } else { Err(what()) }
}

/// The invariants of a type by itself.
pub fn well_formed(ty: &Type) -> Rule {
    let shape = ty.shape();
    // What threads hold has power-of-two sizes; tiles in shared memory may have any multiple of 8.
    let tile = matches!(ty, Type::Shared { .. } | Type::Desc { .. });
    let sizes = shape.iter().all(|n| n.is_power_of_two() || tile && *n > 0 && n.is_multiple_of(8));
    ensure(sizes, || {
        format!("{ty}: sizes of axes must be powers of two{}", if tile { " or multiples of 8" } else { "" })
    })?;
    let count = shape.iter().try_fold(1usize, |a, b| a.checked_mul(*b)).unwrap_or(usize::MAX);
    ensure(shape.len() <= 6 && count <= 1 << 24, || format!("{ty}: at most 6 axes and 2^24 elements"))?;
    match ty {
        Type::Barrier { count, arrivals } => {
            ensure((1..=1024).contains(count) && (1..1 << 20).contains(arrivals), || {
                format!("{ty}: from 1 to 1024 barriers, each with at least one arrival")
            })
        }
        Type::Shared { elem, stages, swizzle, .. } => {
            ensure((1..=1024).contains(stages), || format!("{ty}: from 1 to 1024 stages"))?;
            swizzled(ty, *elem, *swizzle)
        }
        Type::Desc { elem, shape, swizzle } => {
            ensure((1..=5).contains(&shape.len()), || format!("{ty}: a descriptor's tile has 1 to 5 axes"))?;
            swizzled(ty, *elem, *swizzle)
        }
        Type::Token { shape, .. } => ensure(shape.len() == 2, || format!("{ty}: a token stands for a 2-D matmul")),
        _ => Ok(()),
    }
}

/// Rows of a swizzled tile are stored in panels of the swizzle's span, whose 16-byte chunks are permuted; the last
/// panel of a row need not be full.
fn swizzled(ty: &Type, elem: Elem, swizzle: Swizzle) -> Rule {
    const CHUNK: usize = 16;
    if swizzle == Swizzle::None {
        return Ok(());
    }
    let row = ty.shape().last().map_or(0, |n| n * elem.bytes());
    ensure(ty.shape().len() >= 2, || format!("{ty}: a swizzled tile has two axes at least"))?;
    ensure(row > 0 && row.is_multiple_of(CHUNK), || format!("{ty}: a row of {row} bytes is no multiple of {CHUNK}"))
}

/// The array of a descriptor of this type.
pub fn array(a: &Array, ty: Option<&Type>) -> Rule {
    let Some(Type::Desc { elem, shape, .. }) = ty else { return Err("only a descriptor is of an array".into()) };
    let rank = shape.len();
    ensure(a.sizes.len() == rank && a.strides.len() == rank, || {
        format!("the array has {} sizes and {} strides; {rank} of each are needed", a.sizes.len(), a.strides.len())
    })?;
    let (row, rest) = a.strides.split_last().ok_or("an array has an axis")?;
    ensure(*row == 1, || format!("the last stride is {row}; rows must be contiguous"))?;
    ensure(a.sizes.iter().all(|n| (1..1 << 32).contains(n)), || format!("sizes {:?}; from 1 to 2^32", a.sizes))?;
    ensure(rest.iter().chain([&a.offset]).all(|n| (n * elem.bytes()).is_multiple_of(16) && *n < 1 << 36), || {
        format!("strides {:?} and offset {} of {elem}; multiples of 16 bytes are needed", a.strides, a.offset)
    })
}

/// An array that the launcher describes.
pub fn launch_array(k: &BlockProgram, p: &Param, a: &LaunchArray) -> Rule {
    let Some(Type::Desc { elem, shape, .. }) = k.values.get(p.value.0 as usize).map(|v| &v.ty) else {
        return Err("only a descriptor is of an array".into());
    };
    ensure(p.array.is_none(), || "an array is either constant or of the launch".into())?;
    let rank = shape.len();
    ensure(a.sizes.len() == rank && a.strides.len() == rank, || {
        format!("the array has {} sizes and {} strides; {rank} of each are needed", a.sizes.len(), a.strides.len())
    })?;
    let place = k.params.iter().position(|other| other.value == p.value).unwrap_or(0);
    ensure(k.params[place..].iter().all(|p| p.launch_array.is_some()), || {
        "an argument follows it; arrays that the launcher describes are the last parameters".into()
    })?;
    let earlier = |n: usize| k.params.get(n).filter(|_| n < place);
    let base = earlier(a.base).ok_or("the array's pointer is no parameter before it")?;
    ensure(*k.ty(base.value) == Type::ptr(*elem, []) && base.align.is_multiple_of(16), || {
        format!("the array is behind {}; a pointer to {elem} that is aligned to 16 bytes is needed", base.name)
    })?;
    let is_number = |ty: &Type| match ty {
        Type::Block { elem, shape } => elem.is_int() && elem.is_signed() && shape.is_empty(),
        _ => false,
    };
    for n in a.sizes.iter().chain(&a.strides).flat_map(|e| &e.params) {
        ensure(earlier(*n).is_some_and(|p| is_number(k.ty(p.value))), || {
            format!("parameter {n} is no signed integer before the array; sizes and strides are products of these")
        })?;
    }
    let (row, rest) = a.strides.split_last().ok_or("an array has an axis")?;
    ensure(*row == Extent::constant(1), || "the last stride is not 1; rows must be contiguous".into())?;
    let divisor = |e: &Extent| e.params.iter().fold(e.factor, |d, n| d.saturating_mul(k.params[*n].facts.div));
    ensure(rest.iter().all(|e| (divisor(e).saturating_mul(elem.bytes() as i64)) % 16 == 0), || {
        format!("strides of {elem} that are not known to be multiples of 16 bytes (facts `div`)")
    })
}

/// Facts about a parameter of this type.
pub fn facts(f: &crate::Facts, ty: &Type) -> Rule {
    let number = match ty {
        Type::Block { elem: Elem::Bool, .. } => Some((0, 1)),
        Type::Block { elem, .. } => elem.int_range(),
        _ => None,
    };
    let of_number = f.div != 1 || f.equals.is_some() || f.least.is_some() || f.most.is_some();
    ensure(number.is_some() || !of_number, || {
        format!("div, equals, least and most are facts of integers and bools, not of {ty}; pointers have `align`")
    })?;
    ensure(matches!(ty, Type::Ptr { .. }) || !(f.span32 || f.noalias), || {
        format!("span32 and noalias are facts of pointers, not of {ty}")
    })?;
    ensure(f.div > 0, || format!("div {}; a positive number is needed", f.div))?;
    let Some((lo, hi)) = number else { return Ok(()) };
    let (least, most) = f.range((lo, hi));
    let within = [f.equals, f.least, f.most].iter().flatten().all(|n| (lo..=hi).contains(n));
    let some =
        least <= most && f.equals.is_none_or(|n| f.allow(n) && Some(n) >= f.least && f.most.is_none_or(|m| n <= m));
    ensure(within && some, || format!("no {ty} is as the facts say"))
}

pub fn layout(l: &Layout, shape: &[usize]) -> Rule {
    ensure(l.lanes.len() == 5, || format!("the layout has {} lane bits; 5 are needed", l.lanes.len()))?;
    ensure(l.registers.len() <= 24 && l.warps.len() <= 9, || "the layout has too many bits".into())?;
    let inside = |b: &crate::layout::Basis| {
        b.len() == shape.len()
            && b.iter().zip(shape).all(|(b, n)| (*b as usize) < *n && (*b == 0 || b.is_power_of_two()))
    };
    ensure(l.registers.iter().chain(&l.lanes).chain(&l.warps).all(inside), || {
        "every basis of the layout needs one coordinate an axis, inside the block, zero or a power of two".into()
    })
}

pub fn count(name: &str, found: usize, least: usize, most: usize) -> Rule {
    ensure((least..=most).contains(&found), || {
        let wanted = if least == most { least.to_string() } else { format!("{least} to {most}") };
        format!("{found} {name}; {wanted} expected")
    })
}
pub fn same(name: &str, found: &Type, wanted: &Type) -> Rule {
    ensure(found == wanted, || format!("{name} is {found}; {wanted} is needed"))
}
/// A block (or scalar): its element and shape.
pub fn block<'a>(name: &str, ty: &'a Type) -> Result<(Elem, &'a [usize]), String> {
    match ty {
        Type::Block { elem, shape } => Ok((*elem, shape)),
        Type::Token { .. } => Err(format!("{name} is {ty}, a matmul in flight; read it after `wgmma_wait`")),
        _ => Err(format!("{name} is {ty}; a block is needed")),
    }
}
pub fn pointer<'a>(name: &str, ty: &'a Type) -> Result<(Elem, &'a [usize]), String> {
    match ty {
        Type::Ptr { elem, shape } => Ok((*elem, shape)),
        _ => Err(format!("{name} is {ty}; a pointer is needed")),
    }
}
/// A block or a block of pointers: what ops that move elements take.
pub fn held(name: &str, ty: &Type) -> Rule {
    match ty {
        Type::Ptr { .. } => Ok(()),
        _ => block(name, ty).map(|_| ()),
    }
}
pub fn scalar_i32(name: &str, ty: &Type) -> Rule {
    same(name, ty, &Type::scalar(Elem::I32))
}
/// Floats on which arithmetic is done.
pub fn is_arithmetic_float(e: Elem) -> bool {
    e.is_float() && !e.is_f8()
}
pub fn is_number(e: Elem) -> bool {
    e.is_int() || is_arithmetic_float(e)
}
