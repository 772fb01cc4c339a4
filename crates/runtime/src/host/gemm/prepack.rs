//! Operands that stay the same over many products, packed once.
use super::{
    Parallel, Shared,
    block::pitch_a,
    buffer::Buffer,
    flipped,
    kernel::{Isa, Real},
    offset,
    pack::{Element, Side, Source, pack},
    vector,
};
use kiln_graph::DType;
use kiln_plan::exec::GemmCall;
use std::sync::Arc;

/// Which operand of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    A,
    B,
}

/// A call's operands in panels, as far as they are.
#[derive(Default)]
pub(crate) struct Weights {
    pub a: Option<Arc<Panels>>,
    pub b: Option<Arc<Panels>>,
}

/// An operand in panels over its whole depth, for every batch that differs.
pub(crate) struct Panels {
    data: Buffer,
    /// Rows or columns of a panel.
    pitch: usize,
    /// Elements of one matrix.
    size: usize,
    /// Matrices from batch to batch, per axis of the batch.
    strides: Vec<usize>,
}

/// How an operand is packed.
#[derive(PartialEq, Eq)]
struct Form {
    pitch: usize,
    /// Rows or columns.
    count: usize,
    size: usize,
    strides: Vec<usize>,
    matrices: usize,
}

fn form<T: Real>(g: &GemmCall, role: Role) -> Option<Form> {
    let isa = Isa::best();
    let flip = flipped(g);
    let rows = if flip { g.n } else { g.m };
    let batches: usize = g.batch.iter().product();
    if g.m * g.n * g.k * batches == 0 || vector::few(rows) {
        return None;
    }
    let (m, count) = match role {
        Role::A => (&g.a, g.m),
        Role::B => (&g.b, g.n),
    };
    let pitch = if (role == Role::A) != flip { pitch_a::<T>(isa, rows) } else { T::kernels(isa).nr };
    let mut matrices = 1;
    let mut strides = vec![0; g.batch.len()];
    for ((stride, n), original) in strides.iter_mut().zip(&g.batch).zip(&m.batch_strides).rev() {
        if *original != 0 {
            *stride = matrices;
            matrices *= n;
        }
    }
    Some(Form { pitch, count, size: count.next_multiple_of(pitch) * g.k, strides, matrices })
}

impl Panels {
    /// Panels of batch `i`.
    pub(super) fn at<T>(&self, batch: &[usize], i: usize) -> *const T {
        self.data.at::<T>().wrapping_add(offset(&self.strides, batch, i) * self.size)
    }
    /// Whether an operand would be packed like this.
    pub(crate) fn fit(&self, g: &GemmCall, role: Role) -> bool {
        let form = if g.dtype == DType::F64 { form::<f64>(g, role) } else { form::<f32>(g, role) };
        form.is_some_and(|f| f.pitch == self.pitch && f.size == self.size && f.strides == self.strides)
    }
}

/// Packs an operand of a call, unless the call reads it as it lies. Half types stay as they are: widened they would take
/// twice the memory, and products with few rows run at its speed.
///
/// # Safety
/// `at` is the address of the operand's slot, which holds what the call reaches.
pub(crate) unsafe fn prepack(p: Parallel, g: &GemmCall, role: Role, at: *const u8) -> Option<Panels> {
    // SAFETY: this function's contract.
    unsafe {
        match g.dtype {
            DType::F32 => typed::<f32>(p, g, role, at.cast()),
            DType::F64 => typed::<f64>(p, g, role, at.cast()),
            _ => None,
        }
    }
}

/// # Safety
/// As [`prepack`].
unsafe fn typed<S: Element>(p: Parallel, g: &GemmCall, role: Role, at: *const S) -> Option<Panels> {
    let Form { pitch, count, size, strides, matrices } = form::<S::Acc>(g, role)?;
    let (m, lanes, depth) = match role {
        Role::A => (&g.a, Side(&g.a.rows), Side(&g.a.cols)),
        Role::B => (&g.b, Side(&g.b.cols), Side(&g.b.rows)),
    };
    let mut data = Buffer::new();
    let to = Shared(data.room::<S::Acc>(matrices * size));
    let at = Shared(at);
    let mut next = 0;
    for i in 0..g.batch.iter().product() {
        // Batches that share a matrix come back to one that is packed.
        if offset(&strides, &g.batch, i) != next {
            continue;
        }
        next += 1;
        let first = m.offset + offset(&m.batch_strides, &g.batch, i);
        p.each(count.div_ceil(pitch), |t| {
            let (lane, n) = (t * pitch, pitch.min(count - t * pitch));
            // SAFETY: this function's contract; panels are apart.
            unsafe {
                let source = Source { at: at.get().add(first), lanes, depth };
                let to = to.get().add((next - 1) * size + lane * g.k);
                pack(Isa::best(), source, [lane, n], [0, g.k], to, pitch);
            }
        });
    }
    Some(Panels { data, pitch, size, strides })
}
