//! Pools whose windows overlap: a GPU thread computes a strip of results, a vector along the image's rows and several
//! rows of it, so that its loads and its partial result of a window's row serve all of its windows that have that row.
//!
//! Takes: a body with one pool, whose outputs have the pool's shape. Gives: one step over the strips, with a store for
//! each row.
use crate::LowerError;
use crate::dag::{Guard, Scene, Store};
use crate::expr::{CoordId, Expr, delinear};
use crate::reduction::row_len;
use crate::resolve::Body;
use crate::rows::Emitted;
use crate::space::Space;
use crate::tile::{Cut, Shape, open};
use crate::window::UNROLL;
use kiln_graph::{Graph, Op, ValueId};
use kiln_plan::Hardware;
use kiln_plan::exec::Slot;

/// Windows that share an element, from which on strips are profitable.
const SHARED: usize = 4;
/// Results of a thread, and rows of them.
const RESULTS: usize = 32;
const ROWS: usize = 8;
/// Threads that fill a GPU.
const THREADS: usize = 1 << 16;
/// Threads of a block, a strip each.
const BLOCK: usize = 128;

/// A pool along the last axes of a shape.
struct Pool<'a> {
    shape: &'a [usize],
    window: &'a [usize],
    stride: &'a [usize],
    /// Whether only the pool reads memory, so that points outside of the result may be computed.
    alone: bool,
}

/// Results of a thread: rows, and elements along each.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Strip {
    rows: usize,
    vector: usize,
}

/// Whether a pool is computed in strips.
pub fn applies(of: &Body, machine: &Hardware) -> Result<bool, LowerError> {
    let pool = the_pool(of.graph).is_some() && machine.arch.is_gpu() && !machine.contract.batch_invariant;
    Ok(pool && row_len(of)?.is_none())
}

/// The step over strips; `None` where windows have little in common, outputs are not of the pool's shape, or rows are reduced.
pub fn lower(of: &Body, machine: &Hardware) -> Result<Option<Emitted>, LowerError> {
    let Some(pool) = the_pool(of.graph) else { return Ok(None) };
    if !applies(of, machine)? {
        return Ok(None);
    }
    let g = of.graph;
    let bytes = g.inputs.iter().chain(&g.outputs).map(|v| g.dtype(*v).bytes()).max().unwrap_or(4);
    let strip = pool.strip(bytes);
    let Some(space) = Strips::new(&pool, strip) else { return Ok(None) };
    let scene = space.scene(of, &pool, strip)?;
    let mut frame = open(of.name, &scene, &space.shape(strip));
    scene.stores.iter().for_each(|s| frame.store(s));
    Ok(Some(Emitted::step(frame.finish()?)))
}

/// The body's only pool, if its windows overlap and all outputs have its shape.
fn the_pool(g: &Graph) -> Option<Pool<'_>> {
    let mut pools = g.values().filter(|v| matches!(g.op(*v), Op::Pool { .. }));
    let (Some(v), None) = (pools.next(), pools.next()) else { return None };
    let Op::Pool { window, stride, .. } = g.op(v) else { return None };
    let elements: usize = window.iter().product();
    let overlaps = elements <= UNROLL && elements / stride.iter().product::<usize>() >= SHARED;
    let shape = g.shape(v);
    let fits = g.outputs.iter().all(|&o| g.shape(o) == shape);
    let reads = |x: ValueId| g.values().filter(|u| g.args(*u).contains(&x)).count();
    let alone = matches!(g.inputs[..], [x] if reads(x) == 1);
    (overlaps && fits).then_some(Pool { shape, window, stride, alone })
}

impl Pool<'_> {
    /// The strip whose rows start at multiples of its vector, and which shares most rows of windows.
    fn strip(&self, bytes: usize) -> Strip {
        let vector = (1 << self.width().trailing_zeros()).min(16 / bytes.max(1)).max(1);
        let [.., window, _] = self.window[..] else { return Strip { rows: 1, vector } };
        let [.., stride, _] = self.stride[..] else { return Strip { rows: 1, vector } };
        let (height, count) = (self.height(), self.shape.iter().product::<usize>());
        // A thread's elements of a row share loads already, so more rows than a window has are not worth their
        // registers.
        let outer: usize = self.window[..self.window.len() - 1].iter().product();
        let most = if vector == 1 { ROWS } else { ROWS.min(outer.saturating_sub(1)) };
        let fits = |rows: &usize| {
            let whole = self.alone || height.is_multiple_of(*rows);
            *rows == 1 || whole && rows * vector <= RESULTS && count / (rows * vector) >= THREADS
        };
        let read = |rows: &usize| height.div_ceil(*rows) * (rows * stride + window.saturating_sub(stride));
        let rows = (1..=most.min(height)).filter(fits).min_by_key(read).unwrap_or(1);
        Strip { rows, vector }
    }
    fn width(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }
    /// Rows of an image; images of one axis have one.
    fn height(&self) -> usize {
        let n = self.shape.len();
        if self.window.len() > 1 { self.shape[n - 2] } else { 1 }
    }
}

/// Strips as one coordinate, and the elements along a row of one.
struct Strips {
    space: Space,
    strip: CoordId,
    count: usize,
}

impl Strips {
    fn new(pool: &Pool, strip: Strip) -> Option<Strips> {
        let (rows, columns) = (pool.height().div_ceil(strip.rows), pool.width() / strip.vector);
        let images = pool.shape.iter().product::<usize>() / (pool.width() * pool.height()).max(1);
        let mut space = Space::new(&[images, rows, columns, strip.vector], &[false; 4]);
        let across = space.coords.len() - usize::from(strip.vector > 1);
        let ids: Vec<CoordId> = space.coords[..across].iter().map(|c| c.id).collect();
        let id = space.merge(&ids)?;
        Some(Strips { space, strip: id, count: images * rows * columns })
    }
    fn shape(&self, strip: Strip) -> Shape {
        let mut cuts = vec![Cut { id: self.strip, extent: self.count, block: BLOCK, axis: 0 }];
        if let Some(c) = self.space.coords.last().filter(|_| strip.vector > 1) {
            cuts.push(Cut { id: c.id, extent: strip.vector, block: strip.vector, axis: 1 });
        }
        Shape { rank: cuts.len(), cuts, parts: 1, warps: BLOCK / 32, blocks: 1, reversed: false }
    }
    /// The body at every row of a strip.
    fn scene(&self, of: &Body, pool: &Pool, strip: Strip) -> Result<Scene, LowerError> {
        let [image, rows, columns, element] = &self.space.axes[..] else {
            return Err(of.unsupported("a pool without strips"));
        };
        let mut r = of.resolver();
        let column = columns.clone().scale(strip.vector as i64).plus(element);
        let height = pool.height();
        let mut stores = vec![];
        for k in 0..strip.rows {
            let row = rows.clone().scale(strip.rows as i64).shift(k as i64);
            let guard = Guard { expr: row.clone(), lo: 0, hi: height as i64 };
            let guards: Vec<Guard> = Some(guard).filter(|g| g.expr.range().1 >= g.hi).into_iter().collect();
            let position = image.clone().scale(height as i64).plus(&row);
            let at = position.scale(pool.width() as i64).plus(&column);
            let ix = self.index(image, &row, &column, pool);
            for (i, &v) in of.graph.outputs.iter().enumerate() {
                let value = r.at(v, &ix, &[])?;
                let (slot, dtype, at) = (Slot::Output(i as u32), of.graph.dtype(v), at.clone());
                stores.push(Store::new(slot, dtype, at, value).within(guards.clone()));
            }
        }
        Ok(Scene { dag: r.dag, stores })
    }
    /// A point of the result by its axes.
    fn index(&self, image: &Expr, row: &Expr, column: &Expr, pool: &Pool) -> Vec<Expr> {
        let spatial = pool.window.len().min(2);
        let lead = &pool.shape[..pool.shape.len() - spatial];
        let mut ix = delinear(image, lead);
        ix.extend((spatial > 1).then(|| row.clone()));
        ix.push(column.clone());
        ix
    }
}
