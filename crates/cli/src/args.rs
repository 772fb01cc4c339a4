//! The command line, as scripts rely on it.
use clap::{
    Args, Parser, Subcommand, ValueEnum,
    builder::{PossibleValuesParser, TypedValueParser},
};
use kiln::Target;
use std::path::PathBuf;

/// Compiles exported PyTorch graphs to fused kernels, runs, explains and times them.
#[derive(Parser, Debug)]
#[command(name = "kiln", version, about, propagate_version = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
    /// Seconds that importing a TorchScript archive, which runs it, may take.
    #[arg(long, global = true, value_name = "N", default_value_t = 300.0, value_parser = positive)]
    pub import_seconds: f64,
    /// GiB of memory that it may use [default: three quarters of the machine's].
    #[arg(long, global = true, value_name = "GIB", value_parser = positive)]
    pub import_memory: Option<f64>,
}

fn positive(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|n: &f64| n.is_finite() && *n > 0.0);
    number.ok_or_else(|| format!("`{text}` is not a number above 0"))
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run a model on inputs from a file.
    Run(Run),
    /// Compile a model to an artifact.
    Compile(Compile),
    /// Say what was fused, why, at what predicted cost, and what fell back.
    Explain(Explain),
    /// Measure fused against unfused against PyTorch, kernel by kernel.
    Bench(Bench),
    /// Measure which template of each matmul is the fastest on this GPU, and keep it in a store.
    Tune(Tune),
    /// Write the plan's kernels as constraints.
    #[command(subcommand)]
    Plan(PlanCommand),
    /// Say how two plans differ. Exit status: 0 the same, 1 different, 2 trouble.
    Diff(Diff),
    /// Check or bless the plans of a folder's models. Exit status: 0 the same, 1 different, 2 trouble.
    #[command(subcommand)]
    Snapshot(SnapshotCommand),
    /// Print any stage as text.
    Print(Print),
    /// Print a kernel's PTX, or facts about it.
    Ptx(PtxArgs),
    /// Run passes on a block program.
    Opt(Opt),
    /// Say what was found on this machine, what is missing, and how to get it.
    Doctor(Doctor),
    /// Print completions for a shell.
    Completions { shell: clap_complete::Shell },
    /// Write man pages to a folder.
    Man { folder: PathBuf },
    /// The process that imports an archive for another: asked and answering through pipes.
    #[command(name = "__import", hide = true)]
    Import,
}

/// A model and what it is fed with.
#[derive(Args, Debug)]
pub struct ModelArgs {
    /// A TorchScript archive (.pt), a text graph or an artifact (.kiln).
    pub model: PathBuf,
    /// Inputs: a safetensors file with tensors named "0", "1", … in the order of forward's arguments.
    #[arg(long, value_name = "FILE")]
    pub inputs: Option<PathBuf>,
    /// Type of a random input, as 'f32[8,128]', integers as 'i64[2,32]<30522'; once for each, in order.
    #[arg(long = "input", value_name = "TYPE", conflicts_with = "inputs")]
    pub input: Vec<String>,
    #[command(flatten)]
    pub contract: ContractArgs,
}

/// What is promised of the results' numbers.
#[derive(Args, Clone, Copy, Default, Debug)]
pub struct ContractArgs {
    /// What may differ from the graph as written; default: what an artifact was compiled with, else torch.
    #[arg(long, value_enum)]
    pub numerics: Option<Numerics>,
    /// On GPUs large f32 matmuls may be three of tf32, as accurate for operands from 2^-100 to 2^126.
    #[arg(long)]
    pub splits: bool,
    /// A row's bytes do not depend on how many other rows there are.
    #[arg(long)]
    pub batch_invariant: bool,
}
impl ContractArgs {
    /// Nothing is asked for.
    pub fn is_empty(&self) -> bool {
        self.numerics.is_none() && !self.splits && !self.batch_invariant
    }
}

/// As [`kiln::Numerics`], for the command line's help.
#[derive(ValueEnum, Clone, Copy, Debug)]
pub enum Numerics {
    /// The graph's operations, each rounded to its type: nothing is regrouped.
    Exact,
    /// What PyTorch's defaults allow: sums regrouped, convolutions of f32 in tf32 on GPUs, matmuls in full f32.
    Torch,
    /// Approximations as well: matmuls of f32 in tf32 on GPUs.
    Fast,
}

/// Names of targets, which help and completions list.
fn targets() -> impl TypedValueParser<Value = Target> {
    PossibleValuesParser::new(Target::ALL.map(Target::name)).try_map(|name| name.parse())
}

#[derive(Args, Debug)]
pub struct DeviceArgs {
    /// cpu, cuda or cuda:0. Default: cuda:0 where there is a GPU, else cpu.
    #[arg(long)]
    pub device: Option<String>,
    /// Threads on the cpu (default: all).
    #[arg(long)]
    pub threads: Option<usize>,
}

/// What shall be fused, or shall not, and which templates matmuls take.
#[derive(Args, Debug)]
pub struct ConstraintArgs {
    /// Constraints on fusion, a TOML file: must_fuse, never_fuse, keep_in_memory, [[use_template]], [[kernel]].
    #[arg(long, value_name = "FILE")]
    pub constraints: Option<PathBuf>,
    /// Measurements to take templates of matmuls from, as `kiln tune` wrote them.
    #[arg(long, value_name = "STORE")]
    pub tuned: Option<PathBuf>,
    /// The description of the machine to plan for, as `kiln doctor --calibrate` wrote it, or the name of one that comes with Kiln
    /// (h100, l40s, …), instead of the target's own.
    #[arg(long, value_name = "FILE")]
    pub machine: Option<PathBuf>,
}
impl ConstraintArgs {
    pub fn is_empty(&self) -> bool {
        self.constraints.is_none() && self.tuned.is_none() && self.machine.is_none()
    }
}

#[derive(Args, Debug)]
pub struct Run {
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub constraints: ConstraintArgs,
    /// Outputs, named "0", "1", … in the order of the flattened outputs.
    #[arg(long, value_name = "FILE")]
    pub outputs: PathBuf,
    #[command(flatten)]
    pub device: DeviceArgs,
    /// One kernel per op, as a framework runs them.
    #[arg(long)]
    pub unfused: bool,
    /// Write what was done, with times.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct Compile {
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub constraints: ConstraintArgs,
    #[arg(long, value_parser = targets(), default_value_t)]
    pub target: Target,
    /// The artifact to write.
    #[arg(short, long, value_name = "OUT.kiln")]
    pub output: PathBuf,
    /// Stages to write beside it as OUT.STAGE: graph, plan, block, llvm, ptx, asm.
    #[arg(long, value_delimiter = ',', value_name = "STAGE")]
    pub emit: Vec<String>,
    /// Write those stages (default: all) to a folder instead, one file a kernel, named as in the report.
    #[arg(long, value_name = "DIR")]
    pub emit_dir: Option<PathBuf>,
    /// Write where the time went.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct Explain {
    /// The model may also be a report that `--json` wrote.
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub constraints: ConstraintArgs,
    /// Default: what an artifact was compiled for, else cpu.
    #[arg(long, value_parser = targets())]
    pub target: Option<Target>,
    #[arg(long)]
    pub unfused: bool,
    /// One kernel in depth.
    #[arg(long, value_name = "NAME", group = "question")]
    pub kernel: Option<String>,
    /// Why A and B share a kernel: values (%12), module paths, source lines (file.py:12), op:NAME or kernels.
    #[arg(long, value_names = ["A", "B"], num_args = 2, group = "question")]
    pub why: Vec<String>,
    /// Why A and B do not share a kernel, and what it would cost if they did.
    #[arg(long, value_names = ["A", "B"], num_args = 2, group = "question")]
    pub why_not: Vec<String>,
    /// Every kernel, a line each.
    #[arg(long, group = "question")]
    pub all: bool,
    /// Write the report ("-" for standard output).
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the report as a page.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct Bench {
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub constraints: ConstraintArgs,
    #[command(flatten)]
    pub device: DeviceArgs,
    /// What to compare with: unfused, torch.
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    pub against: Vec<String>,
    /// The TorchScript archive that PyTorch runs in comparisons, where the model is an artifact. An archive is a program.
    #[arg(long, value_name = "FILE.pt", conflicts_with = "sweep")]
    pub archive: Option<PathBuf>,
    /// Seconds of measured runs for each side.
    #[arg(long, default_value_t = 1.0)]
    pub seconds: f64,
    /// Write the report of the fused plan as a page, prediction beside measurement.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Write the kernels under the machine's roofs as an SVG.
    #[arg(long, value_name = "FILE.svg")]
    pub roofline: Option<PathBuf>,
    /// Measure an archive at several sizes of its inputs' first dimension, as 'batch=1,8,64'.
    #[arg(long, value_name = "SIZES", conflicts_with_all = ["html", "trace", "roofline"])]
    pub sweep: Option<String>,
    /// Write times over the sweep as an SVG.
    #[arg(long, value_name = "FILE.svg", requires = "sweep")]
    pub plot: Option<PathBuf>,
    /// Write a trace of a few runs, host and device, for Perfetto or chrome://tracing.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Write the figures ("-" for standard output).
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct Tune {
    #[command(flatten)]
    pub model: ModelArgs,
    /// The store: made if it is not there, and added to if it is.
    #[arg(long, value_name = "FILE")]
    pub store: PathBuf,
    /// Constraints on fusion, a TOML file, as for the other commands.
    #[arg(long, value_name = "FILE")]
    pub constraints: Option<PathBuf>,
    /// cuda or cuda:0 (default).
    #[arg(long)]
    pub device: Option<String>,
    /// Tune this kernel alone.
    #[arg(long, value_name = "NAME")]
    pub kernel: Option<String>,
    /// Measure what the store already has, too.
    #[arg(long)]
    pub again: bool,
    /// Candidates that are compiled and measured for a matmul; about as many variants of the best follow.
    #[arg(long, default_value_t = 20, value_name = "N")]
    pub candidates: usize,
    /// Write what was found ("-" for standard output).
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

#[derive(Subcommand, Debug)]
pub enum PlanCommand {
    /// Write the kernels of the plan as constraints that give this plan again.
    Pin(Pin),
}

#[derive(Args, Debug)]
pub struct Pin {
    #[command(flatten)]
    pub model: ModelArgs,
    #[arg(long, value_parser = targets())]
    pub target: Option<Target>,
    #[command(flatten)]
    pub constraints: ConstraintArgs,
    /// The constraints file to write ("-" for standard output).
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
}

#[derive(Args, Debug)]
pub struct Diff {
    /// A model, an artifact, or a plan's text.
    pub before: PathBuf,
    pub after: PathBuf,
    /// Inputs of archives, as for the other commands.
    #[arg(long, value_name = "FILE")]
    pub inputs: Option<PathBuf>,
    #[arg(long = "input", value_name = "TYPE", conflicts_with = "inputs")]
    pub input: Vec<String>,
    #[command(flatten)]
    pub contract: ContractArgs,
    /// What models are planned for; default: what an artifact was compiled for, else cpu.
    #[arg(long, value_parser = targets())]
    pub target: Option<Target>,
    /// Constraints on the second plan.
    #[command(flatten)]
    pub constraints: ConstraintArgs,
    /// Plan the second one kernel per op.
    #[arg(long)]
    pub unfused: bool,
    /// Write the difference ("-" for standard output).
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

#[derive(Subcommand, Debug)]
pub enum SnapshotCommand {
    /// Compare the plans with those in DIR/plans.
    Check(Snapshot),
    /// Write the plans to DIR/plans.
    Bless(Snapshot),
}

#[derive(Args, Debug)]
pub struct Snapshot {
    /// A folder of models: text graphs, and archives with their inputs beside them (NAME.pt, NAME.safetensors).
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// The machine that comes with Kiln to make the plans for: h200, h100, a100, rtx4090, l40s or cpu.
    #[arg(long, default_value = "h200")]
    pub machine: String,
}

#[derive(Args, Debug)]
pub struct Print {
    #[command(flatten)]
    pub model: ModelArgs,
    /// graph, plan, block, llvm, ptx or asm.
    #[arg(long, default_value = "graph")]
    pub stage: String,
    /// Of this kernel alone.
    #[arg(long, value_name = "NAME")]
    pub kernel: Option<String>,
    #[arg(long, value_parser = targets(), default_value_t)]
    pub target: Target,
    #[arg(long)]
    pub unfused: bool,
}

#[derive(Args, Debug)]
pub struct PtxArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub constraints: ConstraintArgs,
    /// A GPU: sm_80, sm_89 or sm_90a.
    #[arg(long, value_parser = targets(), default_value_t = Target::Sm90a)]
    pub target: Target,
    /// Default: all kernels.
    #[arg(long, value_name = "NAME")]
    pub kernel: Option<String>,
    /// Registers, spills, vector widths and instruction counts instead of the text.
    #[arg(long)]
    pub facts: bool,
    /// Write the facts ("-" for standard output).
    #[arg(long, value_name = "FILE", requires = "facts")]
    pub json: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct Opt {
    /// A block program.
    pub file: PathBuf,
    /// Passes, in order (default: all).
    #[arg(long, value_delimiter = ',')]
    pub passes: Vec<String>,
}

#[derive(Args, Debug)]
pub struct Doctor {
    /// Fit the description of this machine, by which plans are priced, to measurements, and write it here.
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    pub calibrate: Option<PathBuf>,
    #[command(flatten)]
    pub device: DeviceArgs,
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}
