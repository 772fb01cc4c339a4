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
//! **Dual GEMM.** Two matmuls that share their left operand (gate and up of a gated layer), or the two halves of one matmul,
//! share a kernel with two accumulators where the machine has tiles for that (`dual_gemm` in its description) and rows
//! are multiples of 16 bytes. To the planner they are a region like any other.
use crate::expr::{Expr, delinear, linear};
use crate::host::{Host, the_matmul};
use crate::launch;
use crate::lowering::Lowering;
use crate::multiply::{Multiply, Product};
use crate::placed;
use crate::resolve::{Body, Resolver, broadcast_index};
use crate::steps::Emitted;
use crate::warpgroup::FEW;
use crate::{LowerError, library, matmul, reduction, resolve, unsupported_as_none};
use kiln_block::Terms;
use kiln_graph::{DType, Graph, Op, ValueId};
use kiln_plan::exec::Matrix;
use kiln_plan::{Hardware, Precision};

/// A matmul as batches of `m × k` by `k × n`.
pub struct Dims {
    pub batch: Vec<usize>,
    pub m: usize,
    pub n: usize,
    pub k: usize,
}

/// Sizes of a `Dot` or `Linear`; the leading axes of a linear layer's input are its rows.
pub fn dims(g: &Graph, v: ValueId) -> Option<Dims> {
    let args = g.args(v);
    let out = g.shape(v);
    match g.op(v) {
        Op::Dot => {
            let (batch, mn) = out.split_at(out.len() - 2);
            Some(Dims { batch: batch.to_vec(), m: mn[0], n: mn[1], k: *g.shape(args[0]).last()? })
        }
        Op::Linear => {
            let (n, lead) = out.split_last()?;
            Some(Dims { batch: vec![], m: lead.iter().product(), n: *n, k: *g.shape(args[1]).last()? })
        }
        _ => None,
    }
}

/// Index of operand 0 (`at` = batch…, m, k) or 1 (`at` = batch…, k, n).
pub fn operand_index(g: &Graph, v: ValueId, which: usize, at: &[Expr]) -> Vec<Expr> {
    let args = g.args(v);
    let shape = g.shape(args[which]);
    let (batch, last) = at.split_at(at.len() - 2);
    match (g.op(v), which) {
        (Op::Linear, 0) => {
            let mut ix = delinear(&last[0], &shape[..shape.len() - 1]);
            ix.push(last[1].clone());
            ix
        }
        (Op::Linear, _) => vec![last[1].clone(), last[0].clone()],
        _ => {
            let mut ix = broadcast_index(batch, &shape[..shape.len() - 2]);
            ix.extend_from_slice(last);
            ix
        }
    }
}

/// The position in the matmul, (batch…, m, n), of an element of the value.
pub fn place(g: &Graph, v: ValueId, ix: &[Expr]) -> Vec<Expr> {
    match (g.op(v), ix.split_last()) {
        (Op::Linear, Some((column, lead))) => vec![linear(lead, &g.shape(v)[..lead.len()]), column.clone()],
        _ => ix.to_vec(),
    }
}

pub fn lower(of: &Lowering, machine: &Hardware) -> Result<Emitted, LowerError> {
    let g = of.graph;
    let Found { v, dual, d } = find(of, machine)?;
    // GPUs have no instructions for matmuls of integers; the host's library does them in blocks.
    let taken = if machine.arch.is_gpu() { g.dtype(v).is_float() } else { g.dtype(v) != DType::Bool };
    if !taken || d.k == 0 || g.ty(v).count() == 0 {
        return launch::body(of, 0);
    }
    match (machine.arch.is_gpu(), of.multiply) {
        (_, None) if of.schedule.is_some() => launch::body(of, 0),
        (_, Some(Multiply::Attention(_))) => Err(of.unsupported("the schedule is one of attention")),
        (false, Some(Multiply::Matmul(_))) => Err(of.unsupported(ON_HOST)),
        (false, _) => by_library(of, v, &d),
        (true, Some(Multiply::Library)) => match dual {
            Some(Second::Other(_)) => Err(of.unsupported("the library takes one matmul")),
            _ => library::lower(of, v, &whole(&d, dual)),
        },
        (true, None) => launch::body(of, 0),
        (true, Some(Multiply::Matmul(asked))) => match dual {
            Some(Second::Half(_)) if !asked.forms.dual => in_form(of, machine, (v, None), &whole(&d, dual), &asked),
            None if asked.forms.dual => {
                Err(of.unsupported("`dual-gemm` does not apply: the epilogue does not read the halves of the result"))
            }
            _ => in_form(of, machine, (v, dual), &d, &asked),
        },
    }
}

/// Why a schedule of a GPU is refused on the host.
pub const ON_HOST: &str = "the host multiplies by its library: `call library`";

/// The number of rows or that of columns, whichever is less; under a batch-invariant contract that of columns.
pub fn least(of: &Lowering, machine: &Hardware) -> Result<usize, LowerError> {
    let Found { d, .. } = find(of, machine)?;
    Ok(if machine.contract.batch_invariant { d.n } else { d.m.min(d.n) })
}

/// The matmul on a GPU by a schedule.
fn in_form(
    of: &Lowering,
    machine: &Hardware,
    (v, dual): (ValueId, Option<Second>),
    d: &Dims,
    asked: &Product,
) -> Result<Emitted, LowerError> {
    let swap = dual.is_none() && asked.forms.swap;
    let out = on_gpu(of, (v, dual, swap), d, |p| matmul::lower(of, p, machine, asked))?;
    let halves = matches!(dual, Some(Second::Half(_)));
    Ok(out.in_forms(|forms| (forms.swap, forms.dual) = (swap, halves)))
}

/// Schedules of the kernel's matmul on a GPU, with the microseconds they are predicted to take. Not all of them fit.
pub fn candidates(of: &Lowering, machine: &Hardware) -> Result<Vec<(Multiply, f64)>, LowerError> {
    let g = of.graph;
    let Found { v, dual, d } = find(of, machine)?;
    if !g.dtype(v).is_float() || d.k == 0 || g.ty(v).count() == 0 {
        return Ok(vec![]);
    }
    let all_of = |(dual, swap): (Option<Second>, bool), d: &Dims| -> Result<Vec<(Product, f64)>, LowerError> {
        let mut all = on_gpu(of, (v, dual, swap), d, |p| match swap {
            true => matmul::swapped_candidates(of, p, machine),
            false => matmul::candidates(of, p, machine),
        })?;
        let halves = matches!(dual, Some(Second::Half(_)));
        all.iter_mut().for_each(|c| (c.0.forms.swap, c.0.forms.dual) = (swap, halves));
        Ok(all)
    };
    let mut all = all_of((dual, false), &d)?;
    if let Some(Second::Half(_)) = dual {
        all.extend(all_of((None, false), &whole(&d, dual))?);
    }
    if dual.is_none() && may_swap(of, v, &d) {
        all.extend(all_of((None, true), &d)?);
    }
    let mut all: Vec<(Multiply, f64)> = all.into_iter().map(|(p, us)| (Multiply::Matmul(p), us)).collect();
    let Some(best) = all.iter().min_by(|a, b| a.1.total_cmp(&b.1)).copied() else { return Ok(all) };
    // Operands that are not both K-major.
    let other = |m: &Multiply| matches!(m, Multiply::Matmul(p) if p.forms.copies.contains(&true) || p.forms.swap);
    let share = library::share(of, v, &whole(&d, dual), other(&best.0));
    // It was measured beside warpgroups.
    let share = if machine.arch.has_wgmma() { share } else { share.max(1.0) };
    let of_library = Lowering { multiply: Some(Multiply::Library), ..*of };
    if let Some(steps) = unsupported_as_none(lower(&of_library, machine))? {
        all.push((Multiply::Library, library::us(&of_library, &whole(&d, dual), &steps, best.1 * share)));
    }
    Ok(all)
}

/// Sizes of the whole matmul; `d` has those of one half where the halves are a dual GEMM.
fn whole(d: &Dims, dual: Option<Second>) -> Dims {
    let halves = if matches!(dual, Some(Second::Half(_))) { 2 } else { 1 };
    Dims { batch: d.batch.clone(), n: halves * d.n, ..*d }
}

/// The second half of a dual GEMM: another matmul of the same left operand, or the other half of the same matmul's
/// columns.
#[derive(Clone, Copy)]
enum Second {
    Other(ValueId),
    /// The last `n` columns, which are read together with the `n` before them.
    Half(usize),
}

/// The matmul of a body and, on a GPU, its dual; for halves of a matmul, the sizes are those of one half.
struct Found {
    v: ValueId,
    dual: Option<Second>,
    d: Dims,
}

fn find(of: &Lowering, machine: &Hardware) -> Result<Found, LowerError> {
    let g = of.graph;
    let is = |v: ValueId| matches!(g.op(v), Op::Dot | Op::Linear);
    let sizes = |v| dims(g, v).ok_or_else(|| of.unsupported("not a matmul"));
    if let (true, [v, other]) = (machine.arch.is_gpu(), &g.values().filter(|v| is(*v)).collect::<Vec<_>>()[..])
        && g.op(*v) == g.op(*other)
        && g.ty(*v) == g.ty(*other)
        && g.args(*v).first() == g.args(*other).first()
    {
        return Ok(Found { v: *v, dual: Some(Second::Other(*other)), d: sizes(*v)? });
    }
    let v = the_matmul(of, is)?;
    let mut d = sizes(v)?;
    let half = d.n / 2;
    let halves = machine.arch.is_gpu() && d.n == 2 * half && placed::reads_halves(of, v, half);
    d.n = if halves { half } else { d.n };
    Ok(Found { v, dual: halves.then_some(Second::Half(half)), d })
}

fn on_gpu<T>(
    of: &Lowering,
    (v, dual, swap): (ValueId, Option<Second>, bool),
    d: &Dims,
    then: impl FnOnce(&matmul::Matmul) -> T,
) -> T {
    let g = of.graph;
    let args = g.args(v);
    let other = |r: &mut Resolver, at: &[Expr]| {
        let (mut at, of) = (at.to_vec(), if let Some(Second::Other(v)) = dual { v } else { v });
        if let (Some(Second::Half(n)), Some(column)) = (dual, at.last_mut()) {
            *column = column.clone().shift(n as i64);
        }
        r.at(g.args(of)[1], &operand_index(g, of, 1, &at), &[])
    };
    let own = |t| if let Second::Other(v) = t { Some(v) } else { None };
    let left = |r: &mut Resolver, at: &[Expr]| r.at(args[0], &operand_index(g, v, 0, at), &[]);
    let right = |r: &mut Resolver, at: &[Expr]| r.at(args[1], &operand_index(g, v, 1, at), &[]);
    let place = |ix: &[Expr]| place(g, v, ix);
    let (precision, after) = (matmul::precision(of, v), matmul::after(of, v));
    let beside = matmul::beside(of.graph, of.bytes, v) as f64;
    let row = if dual.is_none() { reduced(of, v) } else { None };
    let matmul = matmul::Matmul {
        v,
        batch: d.batch.clone(),
        m: d.m,
        n: d.n,
        k: d.k,
        whole: None,
        run: None,
        machine: of.machine,
        precision,
        nearest: false,
        rounded: false,
        transposed: false,
        low: None,
        lattice: &[],
        sectors: 1.0,
        terms: Terms::Products,
        row,
        after,
        beside,
        dual: dual.map(|t| matmul::Dual { b: &other, v: own(t) }),
        a: &left,
        b: &right,
        place: &place,
    };
    if swap { matmul.with_swapped(then) } else { then(&matmul) }
}

/// Length of the rows that the epilogue reduces.
fn reduced(of: &Lowering, v: ValueId) -> Option<usize> {
    let rest = Body { matmul: Some((v, resolve::Matmul::Node)), ..of.body };
    reduction::row_len(&rest).ok().flatten()
}

/// Whether the operands may be swapped: those of a skinny GEMM, so that its few rows are columns, or in tf32.
fn may_swap(of: &Lowering, v: ValueId, d: &Dims) -> bool {
    let skinny = matches!(of.graph.dtype(v), DType::Bf16 | DType::F16) && d.m <= FEW;
    let applies = skinny || matmul::precision(of, v) == Precision::Tf32;
    applies && !of.machine.contract.batch_invariant && of.machine.arch.has_wgmma()
}

/// The matmul by the target's library, with programs that prepare its operands and compute its epilogue.
pub fn by_library(of: &Lowering, v: ValueId, d: &Dims) -> Result<Emitted, LowerError> {
    let (mut h, [a, b]) = for_library(of, v, d)?;
    let place = h.destination(v)?;
    let shape = [&d.batch[..], &[d.m, d.n]].concat();
    let strides = kiln_graph::Type::new(place.1, shape.clone()).strides();
    let c = crate::host::Operand { slot: place.0, offset: 0, strides };
    h.gemm(of.graph.dtype(v), place.1, &shape, d.k, [a, b, c.matrix([d.m, d.n])]);
    h.finish(v, place)
}

/// Operands as matrices, with the steps that copy them where they cannot be read in place.
pub fn for_library<'a>(of: &Lowering<'a>, v: ValueId, d: &Dims) -> Result<(Host<'a>, [Matrix; 2]), LowerError> {
    let (g, mut h) = (of.graph, Host::new(*of));
    let args = g.args(v);
    let shape = |r: usize, c: usize| [&d.batch[..], &[r, c]].concat();
    let a = h.operand(args[0], &shape(d.m, d.k), "a", |at| operand_index(g, v, 0, at))?;
    let b = h.operand(args[1], &shape(d.k, d.n), "b", |at| operand_index(g, v, 1, at))?;
    Ok((h, [a.matrix([d.m, d.k]), b.matrix([d.k, d.n])]))
}
