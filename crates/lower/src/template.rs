//! Which template a kernel was lowered by, as its steps show it: parts of K and the order of tiles they do not show.
use kiln_block::{Kernel, Op, Type, Value, passes::layout::anchors::roles};
use kiln_plan::{Family, KernelKind, Schedule, Template, exec::Work};

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

/// The template of a kernel's steps; `rows` where there is no product in them.
pub fn of<'a>(kind: KernelKind, steps: impl Iterator<Item = Part<'a>>) -> Template {
    let templates = steps.filter_map(|part| match part {
        Part::Library => Some(Family::Library.into()),
        Part::Program(k) if kind == KernelKind::Attention => program(k).map(|_| Family::Flash.into()),
        Part::Program(k) => program(k),
    });
    // What stands beside a library's product prepares its operands or finishes its result.
    templates.max_by_key(|t| t.family == Family::Library).unwrap_or(Family::Rows.into())
}

/// The template of one program, if it has a product.
fn program(k: &Kernel) -> Option<Template> {
    let (mut tile, mut schedule) = (None, Schedule::default());
    k.walk(&mut |_, d| {
        let result =
            d.results.first().filter(|_| matches!(d.op, Op::Dot { .. } | Op::Wgmma { .. } | Op::SharedDot { .. }));
        if let Some(&[m, n]) = result.map(|r| k.ty(*r).shape()) {
            tile.get_or_insert([m, n]);
            schedule.depth = schedule.depth.or_else(|| depth(k, d.args[0], m));
        }
        if let Some(Type::Barrier { count, .. }) = d.results.first().map(|r| k.ty(*r)) {
            schedule.stages = Some(*count);
        }
    });
    let [m, n] = tile?;
    Some(match roles(k) {
        Some(roles) => {
            let copies = roles.iter().map(|r| r.copies).max().unwrap_or(1);
            schedule.cluster = Some(k.cluster.max(1));
            Template { family: Family::Warpgroup, tile: Some([m * copies, n]), schedule }
        }
        None => Template { family: Family::Tile, tile, schedule: Schedule::default() },
    })
}

/// Bytes of K in a tile of the left operand in shared memory that has `m` rows.
fn depth(k: &Kernel, tile: Value, m: usize) -> Option<usize> {
    let Type::Shared { elem, shape, .. } = k.ty(tile) else { return None };
    Some(shape.iter().product::<usize>() * elem.bytes() / m)
}
