//! Operands that stay the same over many matmuls, packed once.
//!
//! Takes: a call and the address of one of its operands. Gives: the panels, or `None` if the call reads this operand in
//! place.
#[cfg(target_arch = "x86_64")]
use super::amx;
use super::{
    Parallel, Shared,
    block::pitch_a,
    buffer::Buffer,
    flipped,
    kernel::Real,
    offset,
    pack::{Side, Source, pack},
    vector,
};
use crate::shared::Value;
use kiln_cpu::Level;
use kiln_graph::DType;
use kiln_plan::exec::GemmCall;
use std::sync::Arc;

/// Which operand of a call.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Role {
    A,
    B,
}

/// The operands of a call that are packed; `None` for those read in place.
#[derive(Default)]
pub(crate) struct Weights {
    pub a: Option<Packed>,
    pub b: Option<Packed>,
}
/// An operand that sessions share.
pub(crate) type Packed = Arc<Value<Panels>>;

/// An operand packed over all of K, once for each distinct matrix of the batch.
pub(crate) struct Panels {
    data: Buffer,
    form: Form,
}

/// How an operand is packed.
#[derive(PartialEq, Eq, Debug)]
struct Form {
    level: Level,
    /// Whether it is the left operand of the matmul as it is computed, perhaps transposed.
    left: bool,
    /// Lanes of a panel.
    pitch: usize,
    /// Lanes of a matrix.
    count: usize,
    /// Depth of a panel, padding included.
    depth: usize,
    /// Bytes of one packed matrix.
    bytes: usize,
    /// Strides of the batch axes, in matrices; 0 where the operand is broadcast.
    strides: Vec<usize>,
    /// Number of distinct matrices.
    matrices: usize,
}

/// The form in which an operand is packed; `None` if it is read in place.
fn form(level: Level, g: &GemmCall, role: Role) -> Option<Form> {
    let flip = flipped(g);
    let rows = if flip { g.n } else { g.m };
    let batches: usize = g.batch.iter().product();
    if g.m * g.n * g.k * batches == 0 {
        return None;
    }
    let (m, count) = match role {
        Role::A => (&g.a, g.m),
        Role::B => (&g.b, g.n),
    };
    let left = (role == Role::A) != flip;
    let (pitch, depth, size) = match g.dtype {
        DType::F32 if !vector::few(rows) => (pitch::<f32>(level, left, rows), g.k, size_of::<f32>()),
        DType::F64 if !vector::few(rows) => (pitch::<f64>(level, left, rows), g.k, size_of::<f64>()),
        #[cfg(target_arch = "x86_64")]
        DType::Bf16 if level == Level::Amx => (amx::LANES, amx::padded(g.k), size_of::<u16>()),
        // Others are read in place: half types would take twice the memory once widened, and skinny matmuls are bound
        // by memory bandwidth.
        _ => return None,
    };
    let mut matrices = 1;
    let mut strides = vec![0; g.batch.len()];
    for ((stride, n), original) in strides.iter_mut().zip(&g.batch).zip(&m.batch_strides).rev() {
        if *original != 0 {
            *stride = matrices;
            matrices *= n;
        }
    }
    let bytes = count.next_multiple_of(pitch) * depth * size;
    Some(Form { level, left, pitch, count, depth, bytes, strides, matrices })
}

/// Lanes of a panel.
fn pitch<T: Real>(level: Level, left: bool, rows: usize) -> usize {
    if left { pitch_a::<T>(level, rows) } else { T::kernels(level).nr }
}

impl Panels {
    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        self.form.bytes * self.form.matrices
    }
    /// Panels of batch `i`.
    pub(super) fn at<T>(&self, batch: &[usize], i: usize) -> *const T {
        self.data.at::<u8>().wrapping_add(offset(&self.form.strides, batch, i) * self.form.bytes).cast()
    }
}

/// The form in which `prepack` packs an operand, and what it reads of the operand's buffer; `None` if it does not pack
/// it.
pub(crate) fn packs(g: &GemmCall, role: Role) -> Option<String> {
    let form = form(Level::used(), g, role)?;
    let m = if role == Role::A { &g.a } else { &g.b };
    // Batches that read the same matrix make no difference.
    let batch: Vec<_> = g.batch.iter().zip(&m.batch_strides).filter(|(_, stride)| **stride != 0).collect();
    Some(format!("{:?} {form:?} at {} {:?} {:?} {batch:?}", g.dtype, m.offset, m.rows, m.cols))
}

/// Packs an operand of a call, unless the call reads it in place.
///
/// # Safety
/// `at` is the address of the operand's buffer, which holds all elements that the call reads.
pub(crate) unsafe fn prepack(p: Parallel, g: &GemmCall, role: Role, at: *const u8) -> Option<Panels> {
    // SAFETY: as this function's.
    unsafe { prepack_by(Level::used(), p, g, role, at) }
}

/// Packs for an instruction set of this processor.
///
/// # Safety
/// As [`prepack`].
pub(super) unsafe fn prepack_by(level: Level, p: Parallel, g: &GemmCall, role: Role, at: *const u8) -> Option<Panels> {
    let form = form(level, g, role)?;
    let (pitch, k) = (form.pitch, g.k);
    // SAFETY: this function's contract; the sources hold these lanes over the whole depth.
    Some(unsafe {
        match g.dtype {
            #[cfg(target_arch = "x86_64")]
            DType::Bf16 => {
                let operand = if form.left { amx::Operand::A } else { amx::Operand::B };
                fill(p, g, role, form, at.cast::<u16>(), |s, lanes, to| amx::pack(operand, s, lanes, k, to))
            }
            DType::F64 => fill(p, g, role, form, at.cast::<f64>(), |s, lanes, to| {
                pack(level, s, lanes, [0, k], to, pitch);
            }),
            _ => fill(p, g, role, form, at.cast::<f32>(), |s, lanes, to| {
                pack(level, s, lanes, [0, k], to, pitch);
            }),
        }
    })
}

/// Packs all panels. `panel` packs one: its source, its first lane and number of lanes, and the destination.
///
/// # Safety
/// As [`prepack`].
unsafe fn fill<T: Copy>(
    p: Parallel,
    g: &GemmCall,
    role: Role,
    form: Form,
    at: *const T,
    panel: impl Fn(Source<T>, [usize; 2], *mut T) + Send + Sync,
) -> Panels {
    let (m, lanes, depth) = match role {
        Role::A => (&g.a, Side(&g.a.rows), Side(&g.a.cols)),
        Role::B => (&g.b, Side(&g.b.cols), Side(&g.b.rows)),
    };
    let mut data = Buffer::new();
    let size = form.bytes / size_of::<T>();
    let to = Shared(data.room::<T>(form.matrices * size));
    let at = Shared(at);
    let mut next = 0;
    for i in 0..g.batch.iter().product() {
        // Broadcast batches share a matrix that is packed already.
        if offset(&form.strides, &g.batch, i) != next {
            continue;
        }
        next += 1;
        let first = m.offset + offset(&m.batch_strides, &g.batch, i);
        p.each(form.count.div_ceil(form.pitch), |t| {
            let (lane, n) = (t * form.pitch, form.pitch.min(form.count - t * form.pitch));
            let source = Source { at: at.get().wrapping_add(first), lanes, depth };
            panel(source, [lane, n], to.get().wrapping_add((next - 1) * size + lane * form.depth));
        });
    }
    Panels { data, form }
}
