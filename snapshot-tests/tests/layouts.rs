//! The layout of a tile that a price assumes is the one that the layout pass gives the program: of every nest of the
//! file tests and the sample graphs, by each of its cheapest schedules.
use kiln::{CompileOptions, Model, Target, compile::plan};
use kiln_block::layout::{Basis, Layout};
use kiln_block::passes::{canonicalise, layout};
use kiln_block::{BlockProgram, Elem, Op, Value};
use kiln_lower::tile_layout::TileLayout;
use kiln_plan::exec::Work;
use kiln_plan::{Kernel, Schedule, Step};
use std::path::{Path, PathBuf};

/// Schedules of a nest that are compared.
const SCHEDULES: usize = 40;

/// A bit of a coordinate: its axis, and its number.
type Bit = (usize, u32);

/// Bits of coordinates that the numbers of registers, lanes and warps select; `None` selects replicas.
#[derive(PartialEq, Debug)]
struct Bits {
    registers: Vec<Option<Bit>>,
    lanes: Vec<Option<Bit>>,
    warps: Vec<Option<Bit>>,
}

impl Bits {
    fn of_pass(layout: &Layout) -> Bits {
        let bit = |basis: &Basis| basis.iter().position(|b| *b != 0).map(|axis| (axis, basis[axis].trailing_zeros()));
        let all = |bases: &[Basis]| bases.iter().map(bit).collect();
        Bits { registers: all(&layout.registers), lanes: all(&layout.lanes), warps: all(&layout.warps) }
    }
    fn of_price(layout: &TileLayout) -> Bits {
        let mut lanes: Vec<Option<Bit>> = layout.lanes.iter().copied().map(Some).collect();
        lanes.resize(5, None);
        Bits { registers: layout.registers.iter().copied().map(Some).collect(), lanes, warps: layout.warps.clone() }
    }
}

/// Graphs as text: those of file tests for GPUs, and the samples.
fn graphs() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = vec![];
    for (folder, extension) in [("filetests", "test"), ("../graphs", "kiln")] {
        let entries = std::fs::read_dir(root.join(folder)).expect("the folder exists");
        let mut files: Vec<PathBuf> = entries.map(|e| e.expect("an entry").path()).collect();
        files.retain(|f| f.extension().is_some_and(|e| e == extension));
        files.sort();
        for file in files {
            let text = std::fs::read_to_string(&file).expect("readable");
            let head = text.split("; gives\n").next().unwrap_or_default();
            let graph: Vec<&str> = head.lines().filter(|l| !l.starts_with(';')).collect();
            found.push((file.file_name().unwrap_or_default().to_string_lossy().into_owned(), graph.join("\n")));
        }
    }
    found
}

/// A block of a program in registers, as the layout pass placed it.
struct Block {
    shape: Vec<usize>,
    bits: Bits,
}

/// The largest block of this rank that a program loads or stores, or takes apart into rows of shared memory.
fn heaviest(code: &BlockProgram, rank: usize) -> Option<Block> {
    let mut accesses: Vec<Value> = vec![];
    code.walk(&mut |_, data| match data.op {
        Op::Load(..) | Op::Unpack { .. } => accesses.push(data.results[0]),
        Op::Store(_) => accesses.push(data.args[1]),
        Op::Pack { .. } => accesses.push(data.args[0]),
        _ => {}
    });
    accesses.retain(|v| code.ty(*v).shape().len() == rank);
    let bytes = |v: &Value| code.ty(*v).count() * code.ty(*v).elem().map_or(1, Elem::bytes);
    // The first of the largest ones.
    let heaviest = accesses.iter().rev().max_by_key(|v| bytes(v)).copied()?;
    let layout = code.values[heaviest.0 as usize].layout.as_ref()?;
    Some(Block { shape: code.ty(heaviest).shape().to_vec(), bits: Bits::of_pass(layout) })
}

/// The program that computes a nest: the first that neither clears nor copies, nor has totals for a scan.
fn program(kernel: &Kernel, schedule: &Schedule) -> BlockProgram {
    let what = format!("{}: {schedule}", kernel.name);
    let kernel = Kernel { schedule: Some(schedule.clone()), ..kernel.clone() };
    let lowered = kiln_lower::lower_at(&kernel, Target::Sm90a.machine()).unwrap_or_else(|e| panic!("{what}: {e}"));
    let is_scan = |code: &BlockProgram| code.insts.iter().any(|i| matches!(i.op, Op::Scan { .. }));
    let programs = lowered.steps.into_iter().filter_map(|step| match step {
        Work::Block { code, .. } if !code.name.ends_with("_clear") && !code.name.ends_with("_copies") => Some(code),
        _ => None,
    });
    let programs: Vec<BlockProgram> = programs.collect();
    let at = programs.iter().position(is_scan).unwrap_or(0);
    let mut code = programs.into_iter().nth(at).unwrap_or_else(|| panic!("{what}: no program"));
    canonicalise(&mut code).unwrap_or_else(|e| panic!("{what}: {e}"));
    layout::assign(&code)
}

/// The schedule with blocks of this shape.
fn with_blocks(schedule: &Schedule, shape: &[usize]) -> Schedule {
    let mut sizes = shape.iter();
    let resized = |step: &Step| match step {
        Step::Split(axis, block) => Step::Split(*axis, sizes.next().copied().unwrap_or(*block)),
        step => step.clone(),
    };
    schedule.steps.iter().map(resized).collect()
}

/// What was compared.
#[derive(Default, Debug)]
struct Seen {
    schedules: usize,
    scans: usize,
    staged_rows: usize,
    /// Reductions along another axis than the contiguous one.
    columns: usize,
    /// Schedules whose program has larger or smaller blocks than they state.
    resized: usize,
}

#[test]
fn prices_assume_the_layouts_of_programs() {
    let (mut seen, mut wrong) = (Seen::default(), vec![]);
    for (file, text) in graphs() {
        let graph = text.parse().unwrap_or_else(|e| panic!("{file}: {e}"));
        let model = Model::from_graph(graph).unwrap_or_else(|e| panic!("{file}: {e}"));
        let options = CompileOptions { target: Target::Sm90a, cache: false, ..CompileOptions::default() };
        let plan = plan(&model, &options).unwrap_or_else(|e| panic!("{file}: {e}"));
        for kernel in &plan.kernels {
            let nest = kiln_lower::scheduled(kernel, Target::Sm90a.machine());
            let Some(nest) = nest.unwrap_or_else(|e| panic!("{file}: {e}")) else { continue };
            for (schedule, _) in nest.schedules.iter().take(SCHEDULES) {
                let has = |f: fn(&Step) -> bool| schedule.steps.iter().any(f);
                // The programs of these are of another nest.
                if has(|s| matches!(s, Step::Widen(..) | Step::Unroll(..))) {
                    continue;
                }
                let splits = schedule.steps.iter().filter_map(|s| match s {
                    Step::Split(_, block) => Some(*block),
                    _ => None,
                });
                let splits: Vec<usize> = splits.collect();
                let what = format!("{file}: {}: {schedule}", kernel.name);
                let block = heaviest(&program(kernel, schedule), splits.len());
                let block = block.unwrap_or_else(|| panic!("{what}: no block in registers"));
                // A tail is a tile of its own, and a row that is peeled starts anywhere in its block.
                if block.shape != splits {
                    assert!(has(|s| matches!(s, Step::Tail(..) | Step::Peel(..))), "{what}: {:?}", block.shape);
                    seen.resized += 1;
                }
                let price = TileLayout::of(&nest.facts, &with_blocks(schedule, &block.shape));
                seen.schedules += 1;
                seen.scans += usize::from(nest.facts.scans > 0);
                seen.staged_rows += usize::from(has(|s| *s == Step::StageRows));
                seen.columns += usize::from(nest.facts.levels > 0 && price.row.is_some() && price.fastest != price.row);
                let price = Bits::of_price(&price);
                if price != block.bits {
                    wrong.push(format!("{what}\n  price {price:?}\n  pass  {:?}", block.bits));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {} differ:\n{}", wrong.len(), seen.schedules, wrong.join("\n"));
    let enough = seen.schedules >= 2000 && seen.scans >= 50 && seen.staged_rows >= 10 && seen.columns >= 50;
    assert!(enough && seen.resized * 10 < seen.schedules, "{seen:?}");
}
