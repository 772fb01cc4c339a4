//! Prints one kernel at a stage, writes all kernels as files of a folder with the names of the report, and collects
//! facts about PTX.
use super::Stage;
use crate::{
    Compiled, Error,
    compile::{CompiledCode, ProgramId},
    facts::{self, Assembled},
    io,
};
use kiln_block::Grid;
use kiln_codegen::{host, nvptx};
use kiln_graph::count;
use kiln_machine::Machine;
use kiln_plan::exec::{AttentionCall, Work};
use serde::Serialize;
use std::{collections::BTreeMap, fmt::Write as _, path::Path};

impl Stage {
    /// What a comment line begins with.
    fn remark(self) -> &'static str {
        match self {
            Stage::Ptx => "//",
            Stage::Asm => "#",
            _ => ";",
        }
    }
    /// Whether the stage is printed per kernel rather than for the whole model.
    pub fn is_of_kernels(self) -> bool {
        !matches!(self, Stage::Graph | Stage::Plan)
    }
}

/// Index of the kernel of that name in the plan.
pub fn find(c: &Compiled, name: &str) -> Result<usize, Error> {
    c.plan.kernels.iter().position(|k| k.name == name).ok_or_else(|| {
        let names = c.plan.kernels.iter().map(|k| k.name.as_str());
        let help = crate::select::suggest(name, names);
        Error::usage(
            format!("{} has no kernel `{name}`", c.plan.name),
            help.unwrap_or_else(|| "`kiln explain MODEL --all` lists them".into()),
        )
    })
}

/// A kernel at a stage: its body as a graph, or its steps in order; steps without code become comments.
pub fn text(c: &Compiled, kernel: usize, stage: Stage) -> Result<String, Error> {
    let k = &c.plan.kernels[kernel];
    if !stage.is_of_kernels() {
        return Ok(super::graph_text(&k.body));
    }
    let mut t = String::new();
    let steps = &c.steps[kernel];
    let without = steps.otherwise.iter().flat_map(|o| &o.steps);
    for work in steps.steps.iter().chain(without) {
        let note = match work {
            Work::Block { code, .. } => {
                let named = &c.programs[*code].name;
                if *named != k.name && !named.starts_with(&format!("{}_", k.name)) {
                    let _ = writeln!(t, "{} {} shares this code with {named}", stage.remark(), k.name);
                }
                t += program(c, *code, stage)?.trim_end();
                t.push('\n');
                continue;
            }
            Work::Gemm(g) => {
                let more: String = g.epilogue.words().iter().map(|w| format!(", {w}")).collect();
                format!("a matmul by the library: {} x {} x {} in {}{more}", g.m, g.n, g.k, g.dtype.name())
            }
            Work::Attention(a) => attention(a),
            Work::Fallback(op) => format!("libtorch runs {}", op.op.name),
            Work::Interpret { why, .. } => format!("interpreted: {why}"),
        };
        let _ = writeln!(t, "{} {}: {note}", stage.remark(), k.name);
    }
    Ok(t)
}

/// Attention by the library in words.
fn attention(a: &AttentionCall) -> String {
    let (heads, more) = (
        a.batch.iter().product::<usize>() * a.group,
        [
            (a.causal, ", causal"),
            (a.mask.is_some(), ", with a mask in memory"),
            (a.ends.is_some(), ", as many keys of each query as memory says"),
            (a.sink.is_some(), ", with a sink"),
        ],
    );
    let more: String = more.into_iter().filter(|m| m.0).map(|m| m.1).collect();
    let (s, t, d, e) = (a.queries, a.keys, a.depth, a.width);
    format!("attention by the library: {heads} heads, {s} x {d} by {t} x {d} and {t} x {e} in {}{more}", a.dtype.name())
}

/// A block program of a compiled model at a stage.
pub(super) fn program(c: &Compiled, id: ProgramId, stage: Stage) -> Result<String, Error> {
    let ptx = if let CompiledCode::Ptx(list) = &c.code { list.get(id) } else { None };
    program_at(&c.programs[id], stage, c.options.machine(), ptx)
}

/// A block program at a stage: `ptx` is what code generation made of it for a GPU.
pub(crate) fn program_at(
    block: &kiln_block::BlockProgram,
    stage: Stage,
    machine: &Machine,
    ptx: Option<&nvptx::Ptx>,
) -> Result<String, Error> {
    let gpu = Some(machine).filter(|m| m.arch.is_gpu());
    let failed = |e: kiln_codegen::CodegenError| Error::caused(e.to_string(), "look at an earlier stage", e);
    let alone = std::slice::from_ref(block);
    match (stage, gpu, ptx) {
        (Stage::Block, ..) => Ok(kiln_block::text::print(block)),
        (Stage::Llvm, Some(m), _) => nvptx::llvm_text(block, m).map_err(failed),
        (Stage::Llvm, None, _) => host::llvm_text(alone).map_err(failed),
        (Stage::Ptx, _, Some(ptx)) => Ok(ptx.text.clone()),
        (Stage::Ptx, ..) => Err(Error::usage("the target cpu has no PTX", "add --target sm_90a (or sm_89, sm_80)")),
        (Stage::Asm, None, _) => host::assembly(alone).map_err(failed),
        (Stage::Asm, Some(_), _) => Err(Error::usage(
            "the driver generates a GPU's assembly, not Kiln",
            "use --stage ptx, or --target cpu for this processor's assembly",
        )),
        (Stage::Graph | Stage::Plan, ..) => {
            Err(Error::usage("a block program has no such stage", "use block or a later stage"))
        }
    }
}

/// Writes stages to a folder: `model.graph`, `model.plan`, and `KERNEL.STAGE` for every kernel.
pub fn write_folder(c: &Compiled, stages: &[Stage], folder: &Path) -> Result<usize, Error> {
    std::fs::create_dir_all(folder).map_err(|e| Error::writing(folder, e))?;
    let mut written = 0;
    let mut put = |name: String, text: &str| {
        written += 1;
        io::write_whole(&folder.join(name), text.as_bytes())
    };
    for &stage in stages {
        if !stage.is_of_kernels() {
            put(format!("model.{}", stage.name()), &super::text(c, stage)?)?;
            continue;
        }
        for (i, k) in c.plan.kernels.iter().enumerate() {
            put(format!("{}.{}", k.name, stage.name()), &text(c, i, stage)?)?;
        }
    }
    Ok(written)
}

/// Facts about the code of one launch.
#[derive(Clone, Debug, Serialize)]
pub struct Facts {
    /// The plan's kernel.
    pub kernel: String,
    /// Entry point of the code.
    pub entry: String,
    /// Blocks along each axis.
    pub grid: Grid,
    /// Threads per block.
    pub threads: usize,
    /// Blocks per cluster; 1 without clusters.
    pub cluster: usize,
    /// Bytes of dynamic shared memory.
    pub shared: usize,
    /// Number of PTX instructions.
    pub instructions: usize,
    /// Bytes of the widest load from global memory.
    pub widest_load: usize,
    /// Bytes of the widest store to global memory.
    pub widest_store: usize,
    /// Counts of selected instructions.
    pub counts: BTreeMap<String, usize>,
    /// `None` without ptxas.
    pub assembled: Option<Assembled>,
}

/// Facts about every launch of a kernel; those from ptxas only if one is given.
pub fn facts(c: &Compiled, kernel: usize, ptxas: Option<&Path>) -> Result<Vec<Facts>, Error> {
    let CompiledCode::Ptx(list) = &c.code else {
        return Err(Error::usage("the target cpu has no PTX", "add --target sm_90a (or sm_89, sm_80)"));
    };
    let launches = c.steps[kernel].steps.iter().filter_map(|w| match w {
        Work::Block { code, .. } => Some(&list[*code]),
        _ => None,
    });
    let (name, arch) = (&c.plan.kernels[kernel].name, c.options.target.name());
    launches.map(|ptx| Facts::of(name, ptx, ptxas.map(|path| (path, arch)))).collect()
}

impl Facts {
    /// Facts about a program; those from ptxas only if one is given, with the architecture that it assembles for.
    pub(crate) fn of(kernel: &str, ptx: &nvptx::Ptx, ptxas: Option<(&Path, &str)>) -> Result<Facts, Error> {
        Ok(Facts {
            kernel: kernel.to_string(),
            entry: ptx.name.clone(),
            grid: ptx.grid,
            threads: ptx.threads,
            cluster: ptx.cluster,
            shared: ptx.shared,
            instructions: facts::instructions(&ptx.text),
            widest_load: facts::widest(&ptx.text, "ld.global").max(facts::widest(&ptx.text, "cp.async.cg")),
            widest_store: facts::widest(&ptx.text, "st.global"),
            counts: facts::instruction_counts(&ptx.text),
            assembled: ptxas.map(|(path, arch)| facts::assemble(path, &ptx.text, arch)).transpose()?,
        })
    }
    /// The facts as text, one per line.
    pub fn text(&self) -> String {
        let mut t = format!("{}\n", self.entry);
        let mut row = |name: &str, text: String| {
            let _ = writeln!(t, "  {name:18} {text}");
        };
        let grid = match self.grid {
            Grid::Constant([x, y, z]) => format!("{x} x {y} x {z}"),
            grid @ Grid::Launch => grid.to_string(),
        };
        row("launch", format!("{grid} blocks of {}", count(self.threads, "thread")));
        if self.cluster > 1 {
            row("cluster", format!("{} blocks", self.cluster));
        }
        row("shared memory", count(self.shared, "byte"));
        match &self.assembled {
            Some(a) => {
                row("registers", a.registers.to_string());
                row("spills", format!("{} stored, {} loaded", count(a.spill_stores as usize, "byte"), a.spill_loads));
                a.warnings.iter().for_each(|w| row("warning", w.clone()));
            }
            None => row("registers", "unknown without ptxas; `kiln doctor` says how to get it".into()),
        }
        row("widest load", count(self.widest_load, "byte"));
        row("widest store", count(self.widest_store, "byte"));
        row("instructions", self.instructions.to_string());
        self.counts.iter().for_each(|(name, n)| row(&format!("  {name}"), n.to_string()));
        t
    }
}
