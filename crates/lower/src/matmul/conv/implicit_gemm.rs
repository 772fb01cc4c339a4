//! Implicit GEMM: convolutions on GPUs without im2col patches in memory, as matmuls with the rows of a padded copy of
//! the input.
//!
//! Takes: a convolution and its im2col matmul. Gives: the copies and the matmul.
//!
//! The rows of the copy are the points of all images, each image with its padding; channels lie along a row. A point of
//! the window reads, for all points of the result at once, the same rows shifted by a constant: K runs over points of
//! the window and their channels, and a stage of K is a tile of some channels, from rows that are shifted by the
//! window's point.
//!
//! Without strides neighbouring lines share their padding: that after a line of points is that before the next. With
//! strides, positions of each remainder (phase) are stored together; those of the innermost axis are in one row, so
//! that the copy reads consecutive elements. Rows that are padding, not points of the result, are multiplied and not
//! stored ([`crate::scalar::invert`] gives the guards).
//!
//! A stage of K is 128 bytes, which few channels do not fill. A row may hold the channels of several points of the
//! window that are neighbours along the innermost axis (`fold-window`); their number divides the window's extent, so
//! that no zero is multiplied by an input.
use crate::emit::launch;
use crate::error::LowerError;
use crate::matmul::conv::Conv;
use crate::matmul::conv::transposed::Part;
use crate::matmul::operands::CopyLaunch;
use crate::matmul::wgmma::strided::{Major, SPAN, Side};
use crate::matmul::{self, Matmul, Run, wgmma};
use crate::nest::lowering::Lowering;
use crate::scalar::dag::{NodeOp, Scene, Store, Tf32};
use crate::scalar::expr::{Expr, delinear, linear};
use crate::scalar::resolve::{Resolved, Resolver};
use crate::scalar::window::or_zero;
use crate::steps::Emitted;
use kiln_graph::{DType, Type, ValueId};
use kiln_plan::exec::Slot;
use kiln_plan::matmul_schedule::TiledMatmul;
use kiln_plan::{Hardware, Precision, Step};

/// The scratch buffer of the input's copy.
const INPUT: Slot = Slot::Scratch(0);
/// Operands are K-major, in rows of whole lines.
pub const DEEP: Side = Side { major: Major::Depth, lines: true };
/// Most elements of a buffer.
const MAX_ELEMENTS: usize = 1 << 32;

/// Where an implicit GEMM's copy of the input comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Input {
    /// It is made from the input.
    Read,
    /// A part before has made it.
    Copied,
}

/// What it needs, as an error message.
pub const NEEDS: &str = "it is for convolutions of half types, or in tf32, from sm_90 on, whose results do not depend \
                         on the batch's size otherwise; not for transposed ones, or a window of one point";

pub struct Windows<'a> {
    c: &'a Conv,
    /// The convolution.
    v: ValueId,
    dtype: DType,
    /// Phases (remainders of positions by the stride) that the window reads, along each axis.
    phases: Vec<usize>,
    /// Positions of one phase along each axis, padding included.
    padded: Vec<usize>,
    /// Points of the window along the innermost axis whose channels are in one row, and the window and its dilations by
    /// so many points.
    folded: usize,
    window: Vec<usize>,
    dilation: Vec<usize>,
    /// Elements of a row: channels of a group at all folded points, rounded up to whole stages of K.
    channels: usize,
    points: usize,
    /// Zeros before the input along each axis, and the first position of the copy that the window reads.
    front: Vec<i64>,
    first: Vec<usize>,
    /// The scratch buffer of the weight in the order of K.
    weight: Slot,
}

/// The implicit GEMM of a convolution (`by_patches`: as an im2col matmul), by a schedule.
pub fn lower(
    kernel: &Lowering,
    c: &Conv,
    by_patches: &Matmul,
    machine: &Hardware,
    asked: &TiledMatmul,
) -> Result<Emitted, LowerError> {
    part(kernel, c, by_patches, machine, asked, Emitted::default())
}

/// One of several parts of a transposed convolution, after the others in `before`.
pub fn part(
    kernel: &Lowering,
    c: &Conv,
    by_patches: &Matmul,
    machine: &Hardware,
    asked: &TiledMatmul,
    before: Emitted,
) -> Result<Emitted, LowerError> {
    let weight = Slot::Scratch(before.scratch.len().max(1) as u32);
    let folded = asked.form.folded;
    let lowered = with(kernel, c, by_patches, (machine, weight, folded), &|w, matmul| {
        let [input, weight] = w.scratch();
        let mut out = before.clone();
        if out.scratch.is_empty() {
            out = w.copy_input(kernel)?;
            out.scratch.push(input);
        }
        out = out.then(w.copy_weight(kernel)?);
        out.scratch.push(weight);
        matmul::with_operands(kernel, matmul, machine, asked, out)
    })?;
    let Some(out) = lowered else {
        let ways = folds(c, matmul::operand_dtype(kernel, by_patches.v));
        return Err(kernel.unsupported(match ways.contains(&folded) {
            true => format!("`{}` does not fit: {NEEDS}", Step::ImplicitGemm),
            false => {
                let counts: Vec<String> = ways.into_iter().skip(1).map(|n| n.to_string()).collect();
                let some = if counts.is_empty() { "none".into() } else { counts.join(", ") };
                format!(
                    "`{}` does not fit: numbers of points that divide the window and multiply fewer zeros: {some}",
                    Step::FoldWindow(folded)
                )
            }
        }));
    };
    Ok(out.in_form(|form| (form.implicit, form.folded) = (true, folded)))
}

/// Ways to fold the window: not at all, and those that multiply less.
pub fn folds(c: &Conv, dtype: DType) -> Vec<usize> {
    let extent = c.w_shape.last().copied().unwrap_or(1);
    let depth = |folded: usize| extent / folded * stages(folded * c.cin, dtype);
    // Parts of a transposed convolution read one copy.
    let is_one = c.part.as_ref().is_none_or(Part::is_whole);
    let shorter = (2..=extent).filter(|n| is_one && extent.is_multiple_of(*n) && depth(*n) < depth(1));
    std::iter::once(1).chain(shorter).collect()
}

/// So many channels, rounded up to whole stages of K.
fn stages(channels: usize, dtype: DType) -> usize {
    channels.next_multiple_of(SPAN / dtype.bytes())
}

/// What is made of an implicit GEMM.
type Then<'a, T> = &'a dyn Fn(&Windows, &Matmul) -> Result<T, LowerError>;

/// Calls `then` with the implicit GEMM, where there is one.
pub fn with<T>(
    kernel: &Lowering,
    c: &Conv,
    by_patches: &Matmul,
    (machine, weight, folded): (&Hardware, Slot, usize),
    then: Then<T>,
) -> Result<Option<T>, LowerError> {
    let dtype = matmul::operand_dtype(kernel, by_patches.v);
    // Exact f32 wants M-major and N-major operands, in which tiles cannot be shifted by a point: their starts are
    // multiples of 16 bytes.
    let deep = matches!(dtype, DType::F16 | DType::Bf16) || by_patches.precision == Precision::Tf32;
    if !folds(c, dtype).contains(&folded) {
        return Ok(None);
    }
    let w = Windows::new(c, by_patches.v, dtype, weight, folded);
    // Batch invariance: im2col sums in another order, and which is faster depends on the number of images.
    let either = !machine.contract.batch_invariant && wgmma::takes(dtype, machine);
    if !either || !deep || c.transposed || !(1..=MAX_ELEMENTS).contains(&w.input().iter().product()) {
        return Ok(None);
    }
    let matmul = Matmul {
        batch: by_patches.batch.clone(),
        n: w.points,
        k: w.depth(),
        run: Some(Run { len: w.channels, pitch: w.input()[2], rows: w.input()[1] - w.skipped() }),
        a: &|r, at| w.weight_at(r, at),
        b: &|r, at| w.input_at(r, at),
        place: &|ix| {
            let (group, row, position) = c.place(ix);
            vec![group, row, linear(&[&ix[..1], &position[..]].concat(), &w.images())]
        },
        ..*by_patches
    };
    then(&w, &matmul).map(Some)
}

impl<'a> Windows<'a> {
    fn new(c: &'a Conv, v: ValueId, dtype: DType, weight: Slot, folded: usize) -> Windows<'a> {
        let (dims, last) = (0..c.stride.len(), c.stride.len() - 1);
        let (mut window, mut dilation) = (c.w_shape[2..].to_vec(), c.dilation.clone());
        window[last] /= folded;
        dilation[last] *= folded;
        // Parts of a transposed convolution read one copy.
        let (front, reach) = match &c.part {
            Some(part) => (part.front.clone(), part.reach.clone()),
            None => (c.padding.clone(), dims.clone().map(|d| (window[d] - 1) * dilation[d]).collect()),
        };
        let first = dims.clone().map(|d| (front[d] - c.padding[d]) as usize).collect();
        let phases = dims.clone().map(|d| c.stride[d].min(reach[d] + 1)).collect();
        let padded = |d: usize| {
            let (size, all) = (c.x_shape[d + 2] as i64 + front[d], c.out[d + 2] + reach[d] / c.stride[d]);
            let shared = all.saturating_sub(front[d].max(0) as usize).max(c.out[d + 2]).max(size.max(0) as usize);
            // A folded row before a line reads that line.
            let shares = c.stride[d] == 1 && (d < last || folded == 1);
            if shares { all.min(shared) } else { all }
        };
        let padded: Vec<usize> = dims.map(padded).collect();
        let points = c.x_shape[0] * padded.iter().product::<usize>();
        let channels = stages(folded * c.cin, dtype);
        Windows { c, v, dtype, phases, padded, folded, window, dilation, channels, points, front, first, weight }
    }
    /// Buffers of the copies.
    fn scratch(&self) -> [Type; 2] {
        [self.input().iter().product(), self.weight().iter().product()].map(|n: usize| Type::new(self.dtype, [n]))
    }
    /// The launches that make the copies; parts of a transposed convolution after the first use the copy of the input.
    pub fn copies(&self, input: Input) -> Vec<CopyLaunch> {
        let copied = self.scratch().into_iter().skip(usize::from(input == Input::Copied));
        copied.map(|ty| CopyLaunch::Copy { bytes: ty.bytes() }).collect()
    }
    fn depth(&self) -> usize {
        self.window.iter().product::<usize>() * self.channels
    }
    /// The phases of the innermost axis, and of the others.
    fn inner_and_outer_phases(&self) -> (usize, &[usize]) {
        self.phases.split_last().map_or((1, &[]), |(inner, outer)| (*inner, outer))
    }
    /// Axes of the copy: groups, points of all phases but those of the innermost axis, channels of these.
    fn input(&self) -> [usize; 3] {
        let (inner, outer) = self.inner_and_outer_phases();
        [self.c.groups, outer.iter().product::<usize>() * self.points, inner * self.channels]
    }
    fn weight(&self) -> [usize; 3] {
        [self.c.groups, self.c.cout, self.depth()]
    }
    /// Rows of the copy before the first that the window reads.
    fn skipped(&self) -> usize {
        self.first.iter().zip(&self.padded).fold(0, |row, (first, n)| row * n + first)
    }
    /// A position of K as point of the folded window and element of a row.
    fn in_window(&self, k: &Expr) -> (Vec<Expr>, Expr) {
        let channels = self.channels as i64;
        (delinear(&k.clone().div(channels), &self.window), k.clone().rem(channels))
    }
    /// An element of a row as folded point and channel, and the bounds of those that there are.
    fn in_row(&self, element: &Expr) -> (Expr, Expr, (Expr, i64, i64)) {
        let (cin, all) = (self.c.cin as i64, (self.folded * self.c.cin) as i64);
        let bounds = (element.clone(), 0, all);
        match self.folded {
            1 => (Expr::constant(0), element.clone(), bounds),
            _ => (element.clone().div(cin), element.clone().rem(cin), bounds),
        }
    }
    /// The element of the copy at (group, k, n).
    fn input_at(&self, r: &mut Resolver, at: &[Expr]) -> Resolved {
        let (point, channel) = self.in_window(&at[1]);
        let far = |d: usize| point[d].clone().scale(self.dilation[d] as i64).shift(self.first[d] as i64);
        let dims = 0..self.padded.len();
        let phases: Vec<Expr> = dims.clone().map(|d| far(d).rem(self.c.stride[d] as i64)).collect();
        let shift: Vec<Expr> = dims.map(|d| far(d).div(self.c.stride[d] as i64)).collect();
        let (_, outer) = self.inner_and_outer_phases();
        let rows = linear(&phases[..outer.len()], outer).scale(self.points as i64);
        let row = rows.plus(&linear(&shift, &self.padded)).plus(&at[2]);
        let column = phases[outer.len()].clone().scale(self.channels as i64).plus(&channel);
        let at = linear(&[at[0].clone(), row, column], &self.input());
        Ok(r.dag.add(NodeOp::Load { slot: INPUT, at, guards: vec![] }, self.dtype))
    }
    /// The element of the weight at (group, m, k).
    fn weight_at(&self, r: &mut Resolver, at: &[Expr]) -> Resolved {
        let at = linear(at, &self.weight());
        Ok(r.dag.add(NodeOp::Load { slot: self.weight, at, guards: vec![] }, self.dtype))
    }
    /// Images and their padded axes.
    fn images(&self) -> Vec<usize> {
        [&self.c.x_shape[..1], &self.padded[..]].concat()
    }
    fn copy_input(&self, kernel: &Lowering) -> Result<Emitted, LowerError> {
        let (c, (inner, outer)) = (self.c, self.inner_and_outer_phases());
        let last = outer.len();
        // Positions along the innermost axis are one axis, in the order of the input.
        let mut images = self.images();
        images[last + 1] *= inner;
        let space = [&[c.groups], outer, &images, &[self.channels]].concat();
        let scene = |axes: &[Expr]| -> Result<Scene, LowerError> {
            let (phase, point) = (&axes[1..=last], &axes[last + 1..axes.len() - 1]);
            let (folded, channel, there) = self.in_row(&axes[axes.len() - 1]);
            let mut ix = vec![point[0].clone(), axes[0].clone().scale(c.cin as i64).plus(&channel)];
            let mut bounds = vec![there];
            for d in 0..=last {
                let (at, stride) = (point[d + 1].clone(), c.stride[d] as i64);
                let position = match () {
                    () if d < last => at.scale(stride).plus(&phase[d]),
                    () if inner == c.stride[d] => at,
                    () => at.clone().div(inner as i64).scale(stride).plus(&at.rem(inner as i64)),
                };
                let mut position = position.shift(-self.front[d]);
                if d == last {
                    position = position.plus(&folded.clone().scale(c.dilation[d] as i64));
                }
                bounds.push((position.clone(), 0, c.x_shape[d + 2] as i64));
                ix.push(position);
            }
            self.copy(kernel, c.x, (&ix, bounds), (INPUT, linear(axes, &space)))
        };
        launch::points(kernel, "input", &space, &scene)
    }
    fn copy_weight(&self, kernel: &Lowering) -> Result<Emitted, LowerError> {
        let c = self.c;
        let space = [&[c.groups, c.cout], &self.window[..], &[self.channels]].concat();
        let scene = |axes: &[Expr]| -> Result<Scene, LowerError> {
            let (folded, channel, there) = self.in_row(&axes[axes.len() - 1]);
            let mut point = axes[2..axes.len() - 1].to_vec();
            if let Some(inner) = point.last_mut() {
                *inner = inner.clone().scale(self.folded as i64).plus(&folded);
            }
            let ix = c.weight_element([&axes[0], &axes[1], &channel], &point);
            let bounds = [vec![there], c.weight_bounds(&ix)].concat();
            self.copy(kernel, c.w, (&ix, bounds), (self.weight, linear(axes, &space)))
        };
        launch::points(kernel, "weight", &space, &scene)
    }
    /// Stores what a value is at an index, or zero where that is out of bounds.
    fn copy(
        &self,
        kernel: &Lowering,
        v: ValueId,
        (ix, bounds): (&[Expr], Vec<(Expr, i64, i64)>),
        (slot, at): (Slot, Expr),
    ) -> Result<Scene, LowerError> {
        let mut r = kernel.resolver();
        let mut value = or_zero(&mut r, v, ix, bounds)?;
        if matmul::precision(kernel, self.v) == Precision::Tf32 {
            value = r.dag.add(NodeOp::Tf32 { of: value, part: Tf32::Nearest }, self.dtype);
        }
        Ok(Scene { dag: r.dag, stores: vec![Store::new(slot, self.dtype, at, value)] })
    }
}
