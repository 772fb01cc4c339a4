//! Matmuls with views before and pointwise work (or a reduction of rows) after.
//!
//! Takes: a body with one matmul, or two of the same left operand. Gives: steps by one way: [`matmul`] on GPUs,
//! [`library`], [`reduction`] for few rows or columns and for integers on GPUs, or the host's library.
//!
//! **Operands swapped.** On `sm_90` the transpose of a matmul's result can be computed, and stored as the result:
//! - in half precision, of 5 to 32 rows (skinny GEMM), in tiles as narrow as 16 columns: a tile has at least 64 rows,
//!   all of which tensor cores multiply;
//! - in tf32, where the right operand is N-major: tensor cores take only left operands that are not K-major, from
//!   registers.
//!
//! **Dual GEMM.** Two matmuls that share their left operand (gate and up of a gated layer), or the two halves of one
//! matmul, share a kernel with two accumulators where the machine has tiles for that (`dual_gemm` in its description)
//! and rows are multiples of 16 bytes. To the planner they are a region like any other.
use crate::emit::launch;
use crate::error::LowerError;
pub use crate::matmul::dims::Dims;
pub use crate::matmul::dims::place;
use crate::matmul::dims::{dims, operand_index};
pub use crate::matmul::host::by_library;
use crate::matmul::host::{ON_HOST, only_matmul};
use crate::matmul::{self, library};
use crate::nest::lowering::Lowering;
use crate::nest::reduction;
use crate::scalar::epilogue_map;
use crate::scalar::expr::Expr;
use crate::scalar::resolve::{self, Body, Resolver};
use crate::steps::Emitted;
use kiln_block::Terms;
use kiln_graph::{DType, Op, ValueId};
use kiln_plan::Hardware;
use kiln_plan::matmul_schedule::{MatmulSchedule, TiledMatmul};

pub fn lower(kernel: &Lowering, machine: &Hardware) -> Result<Emitted, LowerError> {
    let g = kernel.graph;
    let Found { v, dual, d } = find(kernel, machine)?;
    // GPUs have no instructions for matmuls of integers; the host's library does them in blocks.
    let taken = if machine.arch.is_gpu() { g.dtype(v).is_float() } else { g.dtype(v) != DType::Bool };
    if !taken || d.k == 0 || g.ty(v).count() == 0 {
        return launch::body(kernel, 0);
    }
    match (machine.arch.is_gpu(), kernel.multiply) {
        (_, None) if kernel.schedule.is_some() => launch::body(kernel, 0),
        (_, Some(MatmulSchedule::Attention(_))) => Err(kernel.unsupported("the schedule is one of attention")),
        (false, Some(MatmulSchedule::Matmul(_))) => Err(kernel.unsupported(ON_HOST)),
        (false, _) => by_library(kernel, v, &d),
        (true, Some(MatmulSchedule::Library)) => match dual {
            Some(Second::Other(_)) => Err(kernel.unsupported("the library takes one matmul")),
            _ => library::lower(kernel, v, &whole(&d, dual)),
        },
        (true, None) => launch::body(kernel, 0),
        (true, Some(MatmulSchedule::Matmul(asked))) => {
            match dual {
                Some(Second::Half(_)) if !asked.form.dual => {
                    let dims = &whole(&d, dual);
                    in_form(kernel, machine, Multiplied { v, dual: None, swap: asked.form.swap, dims }, &asked)
                }
                None if asked.form.dual => Err(kernel
                    .unsupported("`dual-gemm` does not apply: the epilogue does not read the halves of the result")),
                _ => {
                    let swap = dual.is_none() && asked.form.swap;
                    in_form(kernel, machine, Multiplied { v, dual, swap, dims: &d }, &asked)
                }
            }
        }
    }
}

/// The matmul on a GPU by a schedule.
fn in_form(
    kernel: &Lowering,
    machine: &Hardware,
    multiplied: Multiplied,
    asked: &TiledMatmul,
) -> Result<Emitted, LowerError> {
    let out = on_gpu(kernel, multiplied, |p| matmul::lower(kernel, p, machine, asked))?;
    Ok(out.in_form(|form| (form.swap, form.dual) = (multiplied.swap, multiplied.has_halves())))
}

/// Sizes of the whole matmul; `d` has those of one half where the halves are a dual GEMM.
pub fn whole(d: &Dims, dual: Option<Second>) -> Dims {
    let halves = if matches!(dual, Some(Second::Half(_))) { 2 } else { 1 };
    Dims { batch: d.batch.clone(), n: halves * d.n, ..*d }
}

/// The second half of a dual GEMM: another matmul of the same left operand, or the other half of the same matmul's
/// columns.
#[derive(Clone, Copy)]
pub enum Second {
    Other(ValueId),
    /// The last `n` columns, which are read together with the `n` before them.
    Half(usize),
}

/// The matmul of a body and, on a GPU, its dual; for halves of a matmul, the sizes are those of one half.
pub struct Found {
    pub v: ValueId,
    pub dual: Option<Second>,
    pub d: Dims,
}

pub fn find(kernel: &Lowering, machine: &Hardware) -> Result<Found, LowerError> {
    let g = kernel.graph;
    let is = |v: ValueId| matches!(g.op(v), Op::Dot | Op::Linear);
    let sizes = |v| dims(g, v).ok_or_else(|| kernel.unsupported("not a matmul"));
    if let (true, [v, other]) = (machine.arch.is_gpu(), &g.values().filter(|v| is(*v)).collect::<Vec<_>>()[..])
        && g.op(*v) == g.op(*other)
        && g.ty(*v) == g.ty(*other)
        && g.args(*v).first() == g.args(*other).first()
    {
        return Ok(Found { v: *v, dual: Some(Second::Other(*other)), d: sizes(*v)? });
    }
    let v = only_matmul(kernel, is)?;
    let mut d = sizes(v)?;
    let half = d.n / 2;
    let halves = machine.arch.is_gpu() && d.n == 2 * half && epilogue_map::reads_halves(kernel, v, half);
    d.n = if halves { half } else { d.n };
    Ok(Found { v, dual: halves.then_some(Second::Half(half)), d })
}

/// A matmul of a body in a form.
#[derive(Clone, Copy)]
pub struct Multiplied<'d> {
    pub v: ValueId,
    /// What is computed with it, by a second accumulator.
    pub dual: Option<Second>,
    /// Whether the operands are swapped.
    pub swap: bool,
    /// Its sizes; those of one half where the halves are a dual GEMM.
    pub dims: &'d Dims,
}

impl Multiplied<'_> {
    /// Whether the two halves of one matmul are a dual GEMM.
    pub fn has_halves(&self) -> bool {
        matches!(self.dual, Some(Second::Half(_)))
    }
}

/// Calls `then` with the matmul of a body in a form.
pub fn on_gpu<T>(kernel: &Lowering, multiplied: Multiplied, then: impl FnOnce(&matmul::Matmul) -> T) -> T {
    let g = kernel.graph;
    let Multiplied { v, dual, swap, dims: d } = multiplied;
    let args = g.args(v);
    let second_value = if let Some(Second::Other(v)) = dual { Some(v) } else { None };
    let second_right = |r: &mut Resolver, at: &[Expr]| {
        let (mut at, v) = (at.to_vec(), second_value.unwrap_or(v));
        if let (Some(Second::Half(n)), Some(column)) = (dual, at.last_mut()) {
            *column = column.clone().shift(n as i64);
        }
        r.at(g.args(v)[1], &operand_index(g, v, 1, &at), &[])
    };
    let left = |r: &mut Resolver, at: &[Expr]| r.at(args[0], &operand_index(g, v, 0, at), &[]);
    let right = |r: &mut Resolver, at: &[Expr]| r.at(args[1], &operand_index(g, v, 1, at), &[]);
    let place = |ix: &[Expr]| place(g, v, ix);
    let row = if dual.is_none() { reduced(kernel, v) } else { None };
    let matmul = matmul::Matmul {
        v,
        batch: d.batch.clone(),
        m: d.m,
        n: d.n,
        k: d.k,
        full_k: None,
        run: None,
        machine: kernel.machine,
        precision: matmul::precision(kernel, v),
        nearest: false,
        rounded: false,
        transposed: false,
        low: None,
        lattice: &[],
        sectors: 1.0,
        terms: Terms::Products,
        row,
        epilogue_ops: matmul::epilogue_ops(kernel, v),
        epilogue_bytes: matmul::epilogue_bytes(kernel, v),
        dual: dual.map(|_| matmul::Dual { b: &second_right, v: second_value }),
        a: &left,
        b: &right,
        place: &place,
    };
    if swap { matmul.with_swapped(then) } else { then(&matmul) }
}

/// Length of the rows that the epilogue reduces.
fn reduced(kernel: &Lowering, v: ValueId) -> Option<usize> {
    let rest = Body { matmul: Some((v, resolve::MatmulSource::Node)), ..kernel.body };
    reduction::row_len(&rest).ok().flatten()
}
