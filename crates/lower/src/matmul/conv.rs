//! Convolutions as matmuls of the weight with patches of the input.
//!
//! - On the host ([`host`]), the matmul reads patches through strided windows of the input, which is copied to scratch
//!   only for padding.
//! - On GPUs: by windows of one point the images are read in place, in tf32 with operands swapped; else an implicit
//!   GEMM over a padded copy ([`implicit_gemm`]), or im2col with guarded loads.
//! - Transposed convolutions are convolutions of stride 1 ([`transposed`]), one launch for each part of the result.
//!   Those with too many parts, and on the host those that round as the graph does, are matmuls of every point's
//!   channels with the whole window; the epilogue sums what overlapping windows contribute to one place.
//! - Depthwise convolutions are direct.
pub mod host;
pub mod implicit_gemm;
pub mod transposed;

use crate::emit::launch;
use crate::error::LowerError;
use crate::matmul::conv::transposed::Part;
use crate::matmul::host::{ON_HOST, only_matmul};
use crate::matmul::{self, gemm};
use crate::nest::lowering::Lowering;
use crate::nest::{Visit, reduction};
use crate::scalar::composite::Decomposed;
use crate::scalar::dag::{Guard, Scene, Store};
use crate::scalar::epilogue_map::{self, Lattice};
use crate::scalar::expr::{Expr, delinear, linear};
use crate::scalar::resolve::{Body, MatmulSource, Resolved, Resolver};
use crate::scalar::space::Space;
use crate::scalar::window::{MAX_UNROLLED, or_zero};
use crate::steps::Emitted;
use kiln_block::Terms;
use kiln_graph::decompose::transposed_conv;
use kiln_graph::{Graph, Op, ValueId};
use kiln_plan::exec::Slot;
use kiln_plan::matmul_schedule::{MatmulSchedule, TiledMatmul};
use kiln_plan::{Hardware, Rounding, Step};

/// A convolution's operands and sizes.
pub struct Conv {
    pub x: ValueId,
    pub w: ValueId,
    pub x_shape: Vec<usize>,
    pub w_shape: Vec<usize>,
    pub out: Vec<usize>,
    pub stride: Vec<usize>,
    /// Zeros before the input's first position; negative: that many positions are not read.
    pub padding: Vec<i64>,
    pub dilation: Vec<usize>,
    pub groups: usize,
    pub transposed: bool,
    /// Input channels and rows of the weight in a group: output channels, in a part of a transposed convolution each
    /// with its residues.
    pub cin: usize,
    pub cout: usize,
    /// Elements of a patch, and points of an image of the result.
    pub k: usize,
    pub points: usize,
    /// What it computes of a transposed convolution.
    pub part: Option<Part>,
}

impl Conv {
    fn new(g: &Graph, v: ValueId) -> Option<Conv> {
        let Op::Conv { stride, padding, dilation, groups, transposed, .. } = g.op(v) else { return None };
        let args = g.args(v);
        let (x_shape, w_shape, out) = (g.shape(args[0]).to_vec(), g.shape(args[1]).to_vec(), g.shape(v).to_vec());
        let (cin, cout) = (x_shape[1] / groups, out[1] / groups);
        let k = cin * w_shape[2..].iter().product::<usize>();
        let points = out[2..].iter().product();
        let (x, w, groups, transposed) = (args[0], args[1], *groups, *transposed);
        let (stride, dilation) = (stride.clone(), dilation.clone());
        let padding = padding.iter().map(|&p| p as i64).collect();
        let part = None;
        Some(Conv {
            x,
            w,
            x_shape,
            w_shape,
            out,
            stride,
            padding,
            dilation,
            groups,
            transposed,
            cin,
            cout,
            k,
            points,
            part,
        })
    }
    /// A window of one point, without strides and padding.
    fn is_pointwise(&self) -> bool {
        let window = self.w_shape[2..].iter().chain(&self.stride).all(|&n| n == 1);
        window && self.padding.iter().all(|&p| p == 0) && self.out[2..] == self.x_shape[2..]
    }
    /// Index of the weight's element for a row of a group, an input channel of the group, and a point of the window.
    fn weight_element(&self, at: [&Expr; 3], window: &[Expr]) -> Vec<Expr> {
        match &self.part {
            Some(part) => part.weight(self.cin, at, window),
            None => {
                let row = at[0].clone().scale(self.cout as i64).plus(at[1]);
                [&[row, at[2].clone()], window].concat()
            }
        }
    }
    /// Group, row of the weight in the group, and position, from an index of the value.
    fn place(&self, ix: &[Expr]) -> (Expr, Expr, Vec<Expr>) {
        match &self.part {
            Some(part) => part.place(ix),
            None => (ix[1].clone().div(self.cout as i64), ix[1].clone().rem(self.cout as i64), ix[2..].to_vec()),
        }
    }
    /// A position in a patch as channel and point of the window.
    fn in_patch(&self, k: &Expr) -> Vec<Expr> {
        delinear(k, &[&[self.cin], &self.w_shape[2..]].concat())
    }
    /// Index of the weight at (group, output channel, position in the patch).
    fn weight_index(&self, at: &[Expr]) -> Vec<Expr> {
        let inner = self.in_patch(&at[2]);
        self.weight_element([&at[0], &at[1], &inner[0]], &inner[1..])
    }
    /// Bounds within which the weight has an element, at its index: a part of a transposed convolution may have points
    /// that the window lacks.
    fn weight_bounds(&self, element: &[Expr]) -> Vec<(Expr, i64, i64)> {
        self.part.as_ref().map_or(vec![], |part| part.bounds(element))
    }
    /// The weight at (group, output channel, position in the patch); zero for points that the window lacks.
    fn weight_at(&self, r: &mut Resolver, at: &[Expr]) -> Resolved {
        let element = self.weight_index(at);
        or_zero(r, self.w, &element, self.weight_bounds(&element))
    }
    /// The input at (image, group, position in the patch, point of the result); zero in the padding.
    fn patch(&self, r: &mut Resolver, at: &[Expr]) -> Resolved {
        let inner = self.in_patch(&at[2]);
        let place = delinear(&at[3], &self.out[2..]);
        let mut ix = vec![at[0].clone(), at[1].clone().scale(self.cin as i64).plus(&inner[0])];
        let mut bounds = vec![];
        for d in 0..self.stride.len() {
            let (s, p) = (self.stride[d] as i64, self.padding[d]);
            let reach = inner[d + 1].clone().scale(self.dilation[d] as i64);
            let e = place[d].clone().scale(s).plus(&reach).shift(-p);
            bounds.push((e.clone(), 0, self.x_shape[d + 2] as i64));
            ix.push(e);
        }
        or_zero(r, self.x, &ix, bounds)
    }
}

/// The convolution of a body.
pub fn find(kernel: &Lowering) -> Result<(ValueId, Conv), LowerError> {
    let g = kernel.graph;
    let v = only_matmul(kernel, |v| matches!(g.op(v), Op::Conv { .. }))?;
    Ok((v, Conv::new(g, v).ok_or_else(|| kernel.unsupported("not a convolution"))?))
}

/// Depthwise, or nearly so: too small to be a matmul.
pub fn is_small(c: &Conv) -> bool {
    c.k == 0 || (c.cout <= 2 && c.k <= MAX_UNROLLED)
}

pub fn lower(kernel: &Lowering, machine: &Hardware) -> Result<Emitted, LowerError> {
    let (v, c) = find(kernel)?;
    match kernel.multiply {
        None if is_small(&c) || kernel.schedule.is_some() && !c.transposed => return launch::body(kernel, 0),
        Some(MatmulSchedule::Attention(_)) => return Err(kernel.unsupported("the schedule is one of attention")),
        Some(MatmulSchedule::Library) if machine.arch.is_gpu() && !c.transposed => {
            return Err(kernel.unsupported("the library takes matmuls, not convolutions"));
        }
        Some(MatmulSchedule::Matmul(_)) if !machine.arch.is_gpu() => return Err(kernel.unsupported(ON_HOST)),
        _ => {}
    }
    if c.transposed {
        let joined = kernel.product().map_or(0, |asked| asked.form.joined);
        return match (kernel.product(), parts(kernel, v, &c, machine, joined)) {
            (Some(asked), Some(parts)) => {
                let out = in_parts(kernel, v, (&c, &parts), machine, &asked)?;
                Ok(out.in_form(|form| form.joined = joined))
            }
            _ => match on_host(kernel, &c, machine) {
                Some(parts) => host::transposed(kernel, v, &c, &parts),
                None => by_columns(kernel, v, &mut |kernel| gemm::lower(kernel, machine)),
            },
        };
    }
    match kernel.product() {
        Some(asked) => gpu(kernel, v, (&c, &[]), machine, &asked),
        None if machine.arch.is_gpu() => launch::body(kernel, 0),
        None => host::lower(kernel, v, &c),
    }
}

/// What is made of a convolution's matmul.
type Then<'a, T> = &'a dyn Fn(&matmul::Matmul) -> Result<T, LowerError>;

/// A convolution by the schedule of a matmul: an implicit GEMM, or one that reads patches.
fn gpu(
    kernel: &Lowering,
    v: ValueId,
    c: (&Conv, &[Lattice]),
    machine: &Hardware,
    asked: &TiledMatmul,
) -> Result<Emitted, LowerError> {
    let images = images(c.0);
    match (asked.form.implicit, images) {
        (true, Images::Each) => {
            let step = Step::ImplicitGemm;
            Err(kernel.unsupported(format!("`{step}` does not fit: {}", implicit_gemm::NEEDS)))
        }
        (true, _) => {
            by_patches(kernel, v, c, (machine, images), &|p| implicit_gemm::lower(kernel, c.0, p, machine, asked))
        }
        (false, _) => by_patches(kernel, v, c, (machine, images), &|p| match asked.form.swap {
            true => p.with_swapped(|p| matmul::lower(kernel, p, machine, asked)),
            false => matmul::lower(kernel, p, machine, asked),
        })
        .map(|out| out.in_form(|form| form.swap = asked.form.swap)),
    }
}

/// The parts of a transposed convolution on a GPU, where its kernel can be computed part by part: one part has all
/// results; of several, each computes the epilogue of its own results.
pub fn parts(kernel: &Lowering, v: ValueId, c: &Conv, machine: &Hardware, joined: usize) -> Option<Vec<Part>> {
    // Weights of zero are multiplied by inputs that may not be finite, and batches of other sizes would choose another
    // form.
    let strict = kernel.rounding == Rounding::PerOp || machine.contract.batch_invariant;
    let applies = c.transposed && machine.arch.is_gpu() && !(joined > 0 && strict);
    let parts = transposed::parts(c, joined).filter(|_| applies)?;
    let sums = |p: &Part| p.window_points() > 0;
    let placed = |p: &Part| {
        let (conv, lattice) = (p.conv(c), p.lattice(c));
        let fits = |m: &matmul::Matmul| Ok(matmul::is_fused(kernel, m));
        by_patches(kernel, v, (&conv, &lattice), (machine, Images::All), &fits).unwrap_or(false)
    };
    let whole = parts.len() == 1 && sums(&parts[0]);
    (whole || sums(&parts[0]) && parts.iter().all(placed)).then_some(parts)
}

/// The parts of a transposed convolution on the host. They multiply weights by zeros around the input, so kernels that
/// round as the graph does are computed by columns.
fn on_host(kernel: &Lowering, c: &Conv, machine: &Hardware) -> Option<Vec<Part>> {
    let applies = !machine.arch.is_gpu() && kernel.rounding == Rounding::AtStores;
    transposed::parts(c, 0).filter(|_| applies)
}

/// Whether a form may be that of several launches that share a kernel's results.
pub fn is_shared(p: &TiledMatmul) -> bool {
    p.form.slices == 1 && !p.form.separate_epilogue && p.form.copies == [false; 2]
}

/// A transposed convolution by the schedule of a matmul, part by part.
fn in_parts(
    kernel: &Lowering,
    v: ValueId,
    (c, parts): (&Conv, &[Part]),
    machine: &Hardware,
    asked: &TiledMatmul,
) -> Result<Emitted, LowerError> {
    if let [part] = parts {
        return gpu(kernel, v, (&part.conv(c), &part.lattice(c)), machine, asked);
    }
    if !is_shared(asked) {
        return Err(kernel.unsupported(
            "parts of a transposed convolution do not share sums, or copies of operands other than an implicit GEMM's",
        ));
    }
    let mut out = Emitted::default();
    for (n, part) in parts.iter().enumerate() {
        let name = format!("{}_part{n}", kernel.name);
        let kernel = &kernel.with_body(Body { name: if n == 0 { kernel.name } else { &name }, ..kernel.body });
        let (conv, lattice) = (part.conv(c), part.lattice(c));
        if part.window_points() == 0 {
            out = out.then(without_sums(kernel, v, &lattice)?);
            continue;
        }
        // The number of resident blocks is that of the largest part, where it is given.
        let tile =
            kiln_plan::matmul_schedule::MatmulTile { persist: asked.tile.persist.filter(|_| n == 0), ..asked.tile };
        let asked = &TiledMatmul { tile, ..*asked };
        let before = std::mem::take(&mut out);
        let schedule = before.matmul_schedule;
        let images = (machine, Images::All);
        out = by_patches(kernel, v, (&conv, &lattice), images, &|p| match asked.form.implicit {
            true => implicit_gemm::part(kernel, &conv, p, machine, asked, before.clone()),
            false => matmul::with_operands(kernel, p, machine, asked, before.clone()),
        })?;
        out.matmul_schedule = schedule.or(out.matmul_schedule);
    }
    Ok(out)
}

/// Results of residues that no point of the window reaches: the epilogue of zero.
pub fn without_sums(kernel: &Lowering, v: ValueId, lattice: &[Lattice]) -> Result<Emitted, LowerError> {
    let (node, zero) = (
        Body { matmul: Some((v, MatmulSource::Node)), ..kernel.body },
        Body { matmul: Some((v, MatmulSource::Zero)), ..kernel.body },
    );
    let mut all = Emitted::default();
    for (i, &out) in kernel.graph.outputs.iter().enumerate() {
        let shape = kernel.graph.shape(out).to_vec();
        let mut space = Space::new(&shape, &vec![false; shape.len()]);
        let left = epilogue_map::on_lattice(&node, out, &mut space, lattice)
            .ok_or_else(|| kernel.unsupported("an output that is not elementwise in the transposed convolution"))?;
        let extents: Vec<usize> = space.coords.iter().map(|c| c.extent).collect();
        let scene = |axes: &[Expr]| -> Result<Scene, LowerError> {
            let find = |id| space.coords.iter().position(|c| c.id == id).map(|n| axes[n].clone());
            let ix: Vec<Expr> = space.axes.iter().map(|e| e.substitute(&find)).collect();
            let guards: Vec<Guard> =
                left.iter().map(|&a| Guard { expr: ix[a].clone(), lo: 0, hi: shape[a] as i64 }).collect();
            let mut r = zero.resolver();
            let value = r.at(out, &ix, &guards)?;
            let store = Store::new(Slot::Output(i as u32), kernel.graph.dtype(out), linear(&ix, &shape), value);
            Ok(Scene { dag: r.dag, stores: vec![store.within(guards)] })
        };
        all = all.then(launch::points(kernel, &format!("without{i}"), &extents, &scene)?);
    }
    Ok(all)
}

/// Which images a matmul computes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Images {
    /// All of them: its columns are the points of all.
    All,
    /// Each by one of a batch of matmuls.
    Each,
}

/// The matmul of the weight with patches of the input, by address.
pub fn by_patches<T>(
    kernel: &Lowering,
    v: ValueId,
    (c, lattice): (&Conv, &[Lattice]),
    (machine, images): (&Hardware, Images),
    then: Then<T>,
) -> Result<T, LowerError> {
    let all = images == Images::All;
    let (count, points) = (c.x_shape[0], c.points as i64);
    let bytes = kernel.graph.dtype(v).bytes();
    // Of what follows, a part computes that of its own results.
    let share = epilogue_map::share(lattice);
    let matmul = matmul::Matmul {
        v,
        batch: if all { vec![c.groups] } else { vec![count, c.groups] },
        m: c.cout,
        n: if all { count * c.points } else { c.points },
        k: c.k,
        full_k: None,
        run: None,
        dual: None,
        machine,
        precision: matmul::precision(kernel, v),
        nearest: true,
        rounded: false,
        transposed: false,
        low: None,
        lattice,
        sectors: epilogue_map::sectors(lattice, c.out.len() - 1, bytes),
        terms: Terms::Products,
        row: None,
        epilogue_ops: matmul::epilogue_ops(kernel, v) * share,
        epilogue_bytes: matmul::epilogue_bytes(kernel, v) * share,
        a: &|r, at| c.weight_at(r, &at[usize::from(!all)..]),
        b: &|r, at| match all {
            true => {
                let (image, point) = (at[2].clone().div(points), at[2].clone().rem(points));
                c.patch(r, &[image, at[0].clone(), at[1].clone(), point])
            }
            false => c.patch(r, at),
        },
        place: &|ix| {
            let (group, row, position) = c.place(ix);
            let point = linear(&position, &c.out[2..]);
            match all {
                true => vec![group, row, ix[0].clone().scale(points).plus(&point)],
                false => vec![ix[0].clone(), group, row, point],
            }
        },
    };
    then(&matmul)
}

/// Points of an image that fill a tile by themselves.
const MIN_POINTS_PER_IMAGE: usize = 192;

/// How images are divided among matmuls where patches are read by address: each by itself where it has points enough
/// and its window is one point, so that the input is read in place.
pub fn images(c: &Conv) -> Images {
    if c.is_pointwise() && c.points >= MIN_POINTS_PER_IMAGE { Images::Each } else { Images::All }
}

/// A transposed convolution as a matmul with an epilogue that sums overlapping windows.
pub fn by_columns<T>(
    kernel: &Lowering,
    v: ValueId,
    then: &mut dyn FnMut(&Lowering) -> Result<T, LowerError>,
) -> Result<T, LowerError> {
    let graph = kernel.graph.rebuild(|new, u, args| match u == v {
        true => transposed_conv(new, kernel.graph.op(v), args).map(Some),
        false => Ok(None),
    });
    let graph = graph.map_err(|e| LowerError::Invariant {
        kernel: kernel.name.to_string(),
        what: format!("a transposed convolution cannot be written as a matmul: {e}"),
    })?;
    let decomposed = Decomposed::of(kernel.name, &graph)?;
    then(&kernel.with_body(Body { graph: &graph, decomposed: &decomposed, ..kernel.body }))
}

/// The nests of a convolution that is not computed as a matmul of large tiles.
pub fn visit_nests(kernel: &Lowering, machine: &Hardware, f: &mut Visit) -> Result<(), LowerError> {
    let (v, c) = find(kernel)?;
    match c.transposed && !is_small(&c) {
        true => by_columns(kernel, v, &mut |kernel| reduction::visit_nests(kernel, machine, f)),
        false => reduction::visit_nests(kernel, machine, f),
    }
}
