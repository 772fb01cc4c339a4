//! Which template a kernel was lowered by, read off its steps and not noted by who chose it. A constraint requests a
//! template through the plan, and lowering refuses where another one came out. Split-K and the order of tiles do not
//! show in the steps.
use kiln_block::{Kernel, Op, Type, Value, passes::layout::anchors::roles};
use kiln_plan::{Family, KernelKind, Parameters, Template, exec::Work};

/// What a step is made of.
pub enum Part<'a> {
    Program(&'a Kernel),
    Library,
}
impl<'a> From<&'a Work<Kernel>> for Part<'a> {
    fn from(work: &'a Work<Kernel>) -> Part<'a> {
        match work {
            Work::Block { code, .. } => Part::Program(code),
            _ => Part::Library,
        }
    }
}

/// The template of a kernel's steps; `rows` where there is no matmul in them.
pub fn of<'a>(kind: KernelKind, steps: impl Iterator<Item = Part<'a>>) -> Template {
    let templates = steps.filter_map(|part| match part {
        Part::Library => Some(Family::Library.into()),
        Part::Program(_) if kind == KernelKind::Attention => Some(Family::Flash.into()),
        Part::Program(k) => program(k),
    });
    // Programs around a library matmul prepare its operands or compute its epilogue.
    templates.max_by_key(|t| t.family == Family::Library).unwrap_or(Family::Rows.into())
}

/// The template of one program, if it has a matmul.
fn program(k: &Kernel) -> Option<Template> {
    let (mut tile, mut schedule, mut arrivals) = (None, Parameters::default(), 1);
    k.walk(&mut |_, d| {
        let result =
            d.results.first().filter(|_| matches!(d.op, Op::Dot { .. } | Op::Wgmma { .. } | Op::SharedDot { .. }));
        if let Some(&[m, n]) = result.map(|r| k.ty(*r).shape()) {
            tile.get_or_insert([m, n]);
            schedule.depth = schedule.depth.or_else(|| depth(k, d.args[0], m));
        }
        if let Some(Type::Barrier { count, arrivals: n }) = d.results.first().map(|r| k.ty(*r)) {
            // The barriers of the ring of stages come first.
            schedule.stages.get_or_insert(*count);
            arrivals = arrivals.max(*n);
        }
    });
    let [m, n] = tile?;
    Some(match roles(k) {
        Some(roles) => {
            let (copies, cluster) = (roles.iter().map(|r| r.copies).max().unwrap_or(1), k.cluster.max(1));
            // The consumers that share a tile all arrive at the barrier that frees a stage.
            let shares = arrivals / cluster;
            schedule.cluster = Some(cluster);
            schedule.tiles = Some(copies / shares);
            Template { family: Family::Warpgroup, tile: Some([m * shares, n]), schedule }
        }
        None => Template { family: Family::Tile, tile, schedule: Parameters::default() },
    })
}

/// Bytes of K in a tile of the left operand in shared memory that has `m` rows.
fn depth(k: &Kernel, tile: Value, m: usize) -> Option<usize> {
    let Type::Shared { elem, shape, .. } = k.ty(tile) else { return None };
    Some(shape.iter().product::<usize>() * elem.bytes() / m)
}
