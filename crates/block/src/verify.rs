//! The verifier. Code generation and the interpreter take verified kernels only, so they never meet a violation of
//! these rules.
//!
//! BlockProgram:
//! - it has a name; parameters are pointers, descriptors or scalars, named differently, alignments powers of two;
//! - the array of a descriptor has its rank, contiguous rows, and an offset and strides that are multiples of 16 bytes;
//! - facts are those of integers, bools or pointers, and some value is as they say;
//! - the grid has fewer than 2^31 instances along each axis and 2^53 in all, or is of the launch; warps are 1 to 512, a
//!   power of two without roles, with roles the sum of theirs; a cluster is a power of two up to 16 that divides the
//!   grid's first axis; instances share blocks and clusters in constant grids only.
//!
//! Values and regions:
//! - every value is defined once, by a parameter, a region's parameter or an instruction, before its uses and in a
//!   region around them; every instruction occurs once; regions are nested at most [`crate::text::MAX_DEPTH`] deep;
//! - regions inside ops end in `yield`, which occurs nowhere else; what it yields has the types of the op's results;
//! - sizes of axes are powers of two, at most 6 axes and 2^24 elements; tiles have stages, barriers a count and
//!   arrivals;
//! - a layout has one basis coordinate per axis, inside the block, and five lane bits.
//!
//! Ops of the upper level:
//! - operands and results have the types of the op's description; operands of pointwise ops have one shape, masks the
//!   shape of what they mask, axes and permutations exist; a constant is of its type;
//! - arithmetic is on floats except 8-bit ones (which are only moved, converted and multiplied by `dot`), and on
//!   integers where the op's description says so; bool has and, or, xor, not and comparisons;
//! - nothing is stored through a `readonly` parameter; a loop's constant step is positive.
//!
//! Ops of the lower level:
//! - constant stages exist; tiles, descriptors and barriers fit each other and are defined outside of loops and
//!   branches;
//! - an asynchronous matmul (token) is read by `wgmma_wait` only, is used by at most one op, and is waited for after
//!   its `wgmma_commit`; its rows are a multiple of 64;
//! - reads (`shared_load`) of a tile that tensor maps are copied into are followed by `fence_async` in their region,
//!   before the next arrival at a barrier: an arrival hands the stage back, and without the fence the next copy may
//!   overtake the reads;
//! - `roles` occurs once, in the kernel's own list; a role contains no cluster barrier; multicast needs a cluster.
//!
//! Addresses, by [`offsets`]: no access takes an integer that may have wrapped.
mod lower;
mod offsets;
mod rules;
mod upper;

pub use offsets::{offsets, offsets_within};

use crate::{BlockError, BlockProgram, Grid, Inst, InstData, Op, Param, Region, Type, Value, text};
use std::collections::{HashMap, HashSet};

/// `Err`: what is wrong, and what is needed.
pub type Rule = Result<(), String>;

/// Whether a program may have this grid, else why not. Lowering asks before it emits a program, and refuses the kernel.
pub fn grid(grid: Grid) -> Rule {
    /// Log2 of the first instance counts that are too large, along an axis and in all.
    const AXIS: u32 = 31;
    const ALL: u32 = 53;
    let Grid::Constant(grid) = grid else { return Ok(()) };
    let all = grid.iter().try_fold(1usize, |a, b| a.checked_mul(*b));
    let fits = grid.iter().all(|n| *n < 1 << AXIS) && all.is_some_and(|n| n < 1 << ALL);
    rules::ensure(fits, || {
        format!(
            "a grid of {grid:?} is too large; fewer than 2^{AXIS} instances along each axis and 2^{ALL} in all are \
             possible"
        )
    })
}

/// Checks all invariants; the first broken one is the error, with the op in text form.
pub fn verify(k: &BlockProgram) -> Result<(), BlockError> {
    let wrong = |what: String| BlockError::BlockProgram { kernel: k.name.clone(), what };
    header(k).map_err(wrong)?;
    let mut v = Verifier {
        k,
        defined: HashSet::new(),
        visible: HashSet::new(),
        placed: HashSet::new(),
        facts: Facts { copied: copied(k), ..Facts::default() },
    };
    for p in &k.params {
        v.define(p.value).map_err(wrong)?;
        if p.readonly {
            v.facts.roots.insert(p.value, p.name.clone());
        }
    }
    if !k.body.params.is_empty() {
        return Err(wrong("the kernel's own region has parameters; use the kernel's".into()));
    }
    v.region(&k.body, None, &Place::default())
}

/// What is known about values at the instruction that is checked.
#[derive(Default)]
struct Facts {
    /// Name of the read-only parameter that a pointer starts from.
    roots: HashMap<Value, String>,
    /// Constant scalars.
    constants: HashMap<Value, i64>,
    /// Tokens that an op has used.
    consumed: HashSet<Value>,
    /// Tokens without a commit so far.
    uncommitted: HashSet<Value>,
    /// Shared tiles that tensor maps are copied into, and one that was read since the last `fence_async`.
    copied: HashSet<Value>,
    unfenced: Option<Value>,
    roles: bool,
}

/// Where an instruction is.
#[derive(Clone, Default)]
struct Place {
    depth: usize,
    /// Inside a loop or a branch.
    nested: bool,
    in_role: bool,
}

struct Verifier<'a> {
    k: &'a BlockProgram,
    defined: HashSet<Value>,
    visible: HashSet<Value>,
    placed: HashSet<Inst>,
    facts: Facts,
}

/// Shared tiles that tensor maps are copied into.
fn copied(k: &BlockProgram) -> HashSet<Value> {
    let loads = k.insts.iter().filter(|d| matches!(d.op, Op::TmaLoad { .. }));
    loads.filter_map(|d| d.args.first().copied()).collect()
}

fn header(k: &BlockProgram) -> Rule {
    rules::ensure(!k.name.is_empty(), || "a kernel needs a name".into())?;
    grid(k.grid)?;
    threads(k)?;
    let mut names = HashSet::new();
    for p in &k.params {
        rules::ensure(!p.name.is_empty() && names.insert(&p.name), || {
            format!("two parameters are called {:?} or one has no name; rename", p.name)
        })?;
        param(k, p)?;
    }
    Ok(())
}

/// Warps, blocks, clusters, and what a thread has.
fn threads(k: &BlockProgram) -> Rule {
    let roles = k.body.insts.iter().filter_map(|i| k.insts.get(i.0 as usize)).any(|d| matches!(d.op, Op::Roles(_)));
    rules::ensure((1..=512).contains(&k.warps) && (roles || k.warps.is_power_of_two()), || {
        format!("{} warps; from 1 to 512, a power of two without roles", k.warps)
    })?;
    let shared = k.blocks.is_power_of_two() && k.blocks <= 16 && k.warps.is_multiple_of(k.blocks.max(1));
    rules::ensure(shared && (k.blocks == 1 || !roles && k.cluster == 1), || {
        format!(
            "{} blocks that share an instance; a power of two up to 16 that divides the warps, without roles and \
             clusters",
            k.blocks
        )
    })?;
    rules::ensure(k.vector.is_none_or(|n| n.is_power_of_two() && n <= 16 && !roles), || {
        format!("{} neighbours of a thread; a power of two to 16, without roles", k.vector.unwrap_or_default())
    })?;
    rules::ensure(k.lanes.is_none_or(|n| n.is_power_of_two() && n <= 32 && !roles), || {
        format!("{} lanes along an axis; a power of two to 32, without roles", k.lanes.unwrap_or_default())
    })?;
    rules::ensure(k.registers.is_none_or(|n| (16..=255).contains(&n)), || {
        format!("{} registers of a thread; from 16 to 255", k.registers.unwrap_or_default())
    })?;
    let Some(along) = k.grid.along(0) else {
        return rules::ensure(k.blocks == 1 && k.cluster == 1, || {
            "a grid of the launch has neither clusters nor blocks that share an instance; make it a constant".into()
        });
    };
    rules::ensure(k.cluster.is_power_of_two() && k.cluster <= 16 && along.is_multiple_of(k.cluster), || {
        format!("a cluster of {}; a power of two up to 16 that divides the grid's {along}", k.cluster)
    })
}

fn param(k: &BlockProgram, p: &Param) -> Rule {
    rules::ensure(p.align.is_power_of_two(), || {
        format!("parameter {} is aligned to {}; a power of two is needed", p.name, p.align)
    })?;
    let ty = k.values.get(p.value.0 as usize).map(|v| &v.ty);
    let fits = match ty {
        Some(Type::Ptr { shape, .. } | Type::Block { shape, .. }) => shape.is_empty(),
        Some(Type::Desc { .. }) => true,
        _ => false,
    };
    rules::ensure(fits, || format!("parameter {} must be a pointer, a descriptor or a scalar", p.name))?;
    let about = |e: String| format!("parameter {}: {e}", p.name);
    if let Some(array) = &p.array {
        rules::array(array, ty).map_err(about)?;
    }
    if let Some(array) = &p.launch_array {
        rules::launch_array(k, p, array).map_err(about)?;
    }
    ty.map_or(Ok(()), |ty| rules::facts(&p.facts, ty).map_err(about))
}

impl Verifier<'_> {
    fn define(&mut self, v: Value) -> Rule {
        let Some(data) = self.k.values.get(v.0 as usize) else { return Err(format!("{v} does not exist")) };
        rules::well_formed(&data.ty).map_err(|e| format!("{v}: {e}"))?;
        if let Some(l) = &data.layout {
            rules::layout(l, data.ty.shape()).map_err(|e| format!("{v}: {e}"))?;
        }
        rules::ensure(self.defined.insert(v), || format!("{v} is defined twice"))?;
        self.visible.insert(v);
        Ok(())
    }
    /// Checks a region; what it defines is not visible after it.
    fn region(&mut self, r: &Region, owner: Option<&InstData>, place: &Place) -> Result<(), BlockError> {
        let k = self.k;
        let kernel = |what: String| BlockError::BlockProgram { kernel: k.name.clone(), what };
        if place.depth > text::MAX_DEPTH {
            return Err(kernel(format!("regions are nested deeper than {}", text::MAX_DEPTH)));
        }
        let mut mine = r.params.clone();
        for v in &r.params {
            self.define(*v).map_err(kernel)?;
        }
        for (n, &i) in r.insts.iter().enumerate() {
            let Some(data) = k.insts.get(i.0 as usize) else {
                return Err(kernel(format!("instruction {} does not exist", i.0)));
            };
            let here = |what: String| BlockError::Op { op: text::print_inst(k, i), what };
            rules::ensure(self.placed.insert(i), || "the instruction stands in two places".into()).map_err(here)?;
            for a in &data.args {
                rules::ensure(self.visible.contains(a), || {
                    let defined = self.defined.contains(a);
                    let why =
                        if defined { "is of a region that ended; yield it" } else { "is used before it is defined" };
                    format!("{a} {why}")
                })
                .map_err(here)?;
            }
            // Types first: rules read the results' types.
            for v in &data.results {
                rules::ensure((v.0 as usize) < k.values.len(), || format!("{v} does not exist")).map_err(here)?;
            }
            let last = n + 1 == r.insts.len();
            self.inst(data, owner, last, place).map_err(here)?;
            for (n, inner) in data.regions.iter().enumerate() {
                let in_role = place.in_role || matches!(data.op, Op::Roles(_));
                let nested = place.nested || !matches!(data.op, Op::Roles(_));
                self.enter(data, n);
                self.region(inner, Some(data), &Place { depth: place.depth + 1, nested, in_role })?;
            }
            for v in &data.results {
                self.define(*v).map_err(here)?;
                mine.push(*v);
            }
            self.learn(data);
        }
        let ends = r.insts.last().is_some_and(|i| k.inst(*i).op == Op::Yield);
        if owner.is_some() && !ends {
            let op = owner.and_then(|o| k.insts.iter().position(|d| std::ptr::eq(d, o)));
            let op = op.map_or(String::new(), |n| text::print_inst(k, Inst(n as u32)));
            return Err(BlockError::Op { op, what: "a region must end in `yield`".into() });
        }
        for v in mine {
            self.visible.remove(&v);
        }
        Ok(())
    }
    fn inst(&mut self, data: &InstData, owner: Option<&InstData>, last: bool, place: &Place) -> Rule {
        match &data.op {
            Op::Yield => {
                let owner = owner.ok_or("`yield` ends regions inside ops; the kernel's own list has none")?;
                rules::ensure(last, || "`yield` must be the last of its region".into())?;
                lower::fenced(&self.facts)?;
                upper::yields(self.k, data, owner)
            }
            _ => {
                upper::check(self.k, data, &self.facts)?;
                lower::check(self.k, data, &mut self.facts, place)
            }
        }
    }
    /// Passes facts from a loop's initial values to its region's parameters.
    fn enter(&mut self, data: &InstData, region: usize) {
        let (carried, initial) = match data.op {
            Op::For => (1, 3),
            Op::While => (0, 0),
            _ => return,
        };
        for (v, init) in data.regions[region].params.iter().skip(carried).zip(data.args.iter().skip(initial)) {
            if let Some(root) = self.facts.roots.get(init).cloned() {
                self.facts.roots.insert(*v, root);
            }
        }
    }
    /// Facts about an instruction's results.
    fn learn(&mut self, data: &InstData) {
        let [v, ..] = data.results[..] else { return };
        if let (Op::Const(crate::Const::Int(c)), true) = (&data.op, self.k.ty(v).is_scalar()) {
            self.facts.constants.insert(v, *c);
        }
        let from: Vec<Option<Value>> = match &data.op {
            Op::For => data.args.iter().skip(3).map(|v| Some(*v)).collect(),
            Op::While => data.args.iter().map(|v| Some(*v)).collect(),
            Op::If => {
                let yields = data.regions.iter().filter_map(|r| r.insts.last()).map(|i| &self.k.inst(*i).args);
                yields.fold(vec![None; data.results.len()], |all, args| {
                    let known = |v: &Value| self.facts.roots.contains_key(v);
                    all.into_iter().zip(args).map(|(a, b)| a.or(known(b).then_some(*b))).collect()
                })
            }
            Op::Select => vec![data.args.iter().skip(1).find(|v| self.facts.roots.contains_key(v)).copied()],
            _ => vec![data.args.first().copied()],
        };
        for (v, from) in data.results.iter().zip(from) {
            if matches!(self.k.ty(*v), Type::Ptr { .. })
                && let Some(root) = from.and_then(|f| self.facts.roots.get(&f)).cloned()
            {
                self.facts.roots.insert(*v, root);
            }
        }
    }
}
