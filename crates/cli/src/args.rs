//! The command line's grammar (clap), on which scripts rely. Doc comments of commands and options are the `--help`
//! texts and man pages.
mod tunings;
pub use tunings::TuningsCommand;

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
    /// Time limit in seconds for importing a TorchScript archive; importing runs the archive's code.
    #[arg(long, global = true, value_name = "N", default_value_t = 300.0, value_parser = positive)]
    pub import_seconds: f64,
    /// Memory limit in GiB for importing a TorchScript archive [default: three quarters of the machine's memory].
    #[arg(long, global = true, value_name = "GIB", value_parser = positive)]
    pub import_memory: Option<f64>,
}

fn positive(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|n: &f64| n.is_finite() && *n > 0.0);
    number.ok_or_else(|| format!("`{text}` is not a number above 0"))
}

/// Warps of an instance: as many as a block of any GPU has.
fn warps(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|n: &usize| n.is_power_of_two() && *n <= 32);
    number.ok_or_else(|| format!("`{text}` is not a power of two from 1 to 32"))
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run a model on inputs from a file.
    Run(Run),
    /// Compile a model to an artifact.
    Compile(Compile),
    /// Report which ops were fused, why, at what predicted cost, and which ops fall back.
    Explain(Explain),
    /// Time the fused plan and each of its kernels; --against adds the unfused plan and PyTorch.
    Bench(Bench),
    /// Find the fastest schedule of each kernel by measuring on this GPU, and save it in a store.
    Tune(Tune),
    /// Show, move and pin times of kernels written by hand, which autotuning has measured.
    #[command(subcommand)]
    Tunings(TuningsCommand),
    /// Write a plan's kernels as a constraints file.
    #[command(subcommand)]
    Plan(PlanCommand),
    /// Compare two plans. Exit status: 0 if they are the same, 1 if they differ, 2 on error.
    Diff(Diff),
    /// Compare the plans of a folder's models with stored snapshots, or update these. Exit status: 0 if they are the
    /// same, 1 if they differ, 2 on error.
    #[command(subcommand)]
    Snapshot(SnapshotCommand),
    /// Print any compilation stage as text.
    Print(Print),
    /// Print the PTX of kernels, or facts about it: registers, spills, instruction counts.
    Ptx(PtxArgs),
    /// Run passes on a block program.
    Opt(Opt),
    /// Compile a kernel written by hand and show it at any stage, with or without a GPU.
    Kernel(KernelArgs),
    /// List, trim, pack or install what earlier compilations have kept on disk (KILN_CACHE names the folder, or is
    /// `off`).
    #[command(subcommand)]
    Cache(CacheCommand),
    /// Report what Kiln can use on this machine, what is missing, and how to install it.
    Doctor(Doctor),
    /// Print completions for a shell.
    Completions { shell: clap_complete::Shell },
    /// Write man pages to a folder.
    Man { folder: PathBuf },
    /// Child process that imports an archive; request and result go through pipes.
    #[command(name = "__import", hide = true)]
    Import,
}

/// What is done with the cache.
#[derive(Subcommand, Debug)]
pub enum CacheCommand {
    /// Show its folder, and how many entries of which size it has.
    List {
        /// Also write every entry to this file, as JSON.
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
    },
    /// Remove the entries that were not used for longest.
    Trim {
        /// Bytes that are left; 0 removes all entries.
        #[arg(long, value_name = "N")]
        bytes: u64,
    },
    /// Write all entries to a file, from which other machines of the same kind start warm.
    Pack {
        /// The file, a zip.
        file: PathBuf,
    },
    /// Take the entries of a pack. Their machine code runs as it is: install packs of those whom you trust.
    Install {
        /// What `kiln cache pack` has written.
        file: PathBuf,
    },
}

/// A model and its inputs.
#[derive(Args, Debug)]
pub struct ModelArgs {
    /// A program of torch.export (.pt2), a TorchScript archive (.pt), a text graph or an artifact (.kiln).
    pub model: PathBuf,
    /// Inputs: a safetensors file with tensors named "0", "1", … in the order of forward's arguments, or named as
    /// these.
    #[arg(long, value_name = "FILE")]
    pub inputs: Option<PathBuf>,
    /// Type of a random input: 'f32[8,128]', or 'i64[2,32]<30522' for integers below 30522. Repeat once per input, in
    /// order.
    #[arg(long = "input", value_name = "TYPE", conflicts_with = "inputs")]
    pub input: Vec<String>,
    /// Size of a symbolic dimension of a .pt2 program: s53=128 by its symbol, or x.0=128 by input and axis. May be
    /// repeated.
    #[arg(long = "dim", value_name = "NAME=SIZE", value_parser = dimension)]
    pub dim: Vec<(String, i64)>,
    #[command(flatten)]
    pub contract: ContractArgs,
}

/// `NAME=SIZE`.
fn dimension(text: &str) -> Result<(String, i64), String> {
    let usage = || format!("`{text}` is not NAME=SIZE, such as x.0=128");
    let (name, size) = text.split_once('=').ok_or_else(usage)?;
    let size = size.trim().parse().ok().filter(|n: &i64| *n >= 0).ok_or_else(usage)?;
    Ok((name.trim().to_string(), size))
}

/// An input that takes an output of the run before, by their numbers.
#[derive(Clone, Copy, Debug)]
pub struct Feed {
    pub input: usize,
    pub output: usize,
}
fn feed(text: &str) -> Result<Feed, String> {
    let read = || {
        let (input, output) = text.split_once("=output:")?;
        Some(Feed { input: input.trim().parse().ok()?, output: output.trim().parse().ok()? })
    };
    read().ok_or_else(|| format!("`{text}` is not INPUT=output:OUTPUT, such as 0=output:2"))
}
fn count(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|n| *n > 0).ok_or_else(|| format!("`{text}` is no number from 1"))
}

/// The numerics contract: what the plan guarantees about results.
#[derive(Args, Clone, Copy, Default, Debug)]
pub struct ContractArgs {
    /// How results may differ from the graph as written [default: what an artifact was compiled with, else torch].
    #[arg(long, value_enum)]
    pub numerics: Option<Numerics>,
    /// On GPUs, allow large f32 matmuls and f32 attention as 3xTF32: as accurate as f32 for operands from 2^-100 to
    /// 2^126.
    #[arg(long)]
    pub splits: bool,
    /// Do not round operands of f32 convolutions to tf32 on GPUs, as with `torch.backends.cudnn.allow_tf32 = False`.
    #[arg(long)]
    pub no_tf32: bool,
    /// Make each row's result bitwise independent of the number of other rows in the batch.
    #[arg(long)]
    pub batch_invariant: bool,
}
impl ContractArgs {
    /// Whether no option of the contract was given.
    pub fn is_empty(&self) -> bool {
        self.numerics.is_none() && !self.splits && !self.no_tf32 && !self.batch_invariant
    }
}

/// As [`kiln::Numerics`], for the command line's help.
#[derive(ValueEnum, Clone, Copy, Debug)]
pub enum Numerics {
    /// Every op rounds to its own type, as in the graph; rewrites that change rounding are not used.
    Exact,
    /// What PyTorch's defaults allow: sums may be reassociated; on GPUs f32 convolutions use tf32, f32 matmuls do not.
    Torch,
    /// Approximations as well: on GPUs f32 matmuls use tf32.
    Fast,
}

/// Parser of target names; help and completions list them.
fn targets() -> impl TypedValueParser<Value = Target> {
    PossibleValuesParser::new(Target::ALL.map(Target::name)).try_map(|name| name.parse())
}

#[derive(Args, Debug)]
pub struct DeviceArgs {
    /// Device to run on: cpu, cuda or cuda:N [default: cuda:0 if there is a GPU, else cpu].
    #[arg(long)]
    pub device: Option<String>,
    /// Number of CPU threads [default: one per core].
    #[arg(long)]
    pub threads: Option<usize>,
}

/// What must or must not be fused, which schedules kernels have, and the machine that plans are priced for.
#[derive(Args, Debug)]
pub struct ConstraintArgs {
    /// TOML file with constraints on fusion: must_fuse, never_fuse, keep_in_memory, [[use_schedule]], [[use_form]],
    /// [[kernel]].
    #[arg(long, value_name = "FILE")]
    pub constraints: Option<PathBuf>,
    /// Store written by `kiln tune`: kernels measured there have the fastest schedule found.
    #[arg(long, value_name = "STORE")]
    pub tuned: Option<PathBuf>,
    /// Machine description to plan for in place of the target's default: a file written by `kiln doctor --calibrate`,
    /// or the name of a built-in description (h100, l40s, …).
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
    /// Safetensors file to write; tensors are named "0", "1", … in the order of the flattened outputs.
    #[arg(long, value_name = "FILE")]
    pub outputs: PathBuf,
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Do not fuse: one kernel per op, as a framework runs them.
    #[arg(long)]
    pub unfused: bool,
    /// Run so many times, each run after the one before: state goes on. The outputs are those of the last run.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = count)]
    pub steps: usize,
    /// From the second run on, an input takes an output of the run before, as 0=output:2.
    #[arg(long, value_name = "INPUT=output:OUTPUT", value_parser = feed)]
    pub feed: Vec<Feed>,
    /// Run the machine code of an artifact as it is, which nothing can check: for files whose writer you trust.
    #[arg(long)]
    pub trust_machine_code: bool,
    /// Write a summary of the run, with times, as JSON ("-" for standard output).
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct Compile {
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub constraints: ConstraintArgs,
    /// Target to compile for.
    #[arg(long, value_parser = targets(), default_value_t)]
    pub target: Target,
    /// Artifact to write.
    #[arg(short, long, value_name = "OUT.kiln")]
    pub output: PathBuf,
    /// Also write these stages next to the artifact, as OUT.STAGE: graph, plan, block, llvm, ptx, asm. `cubin` adds
    /// machine code to the artifact itself, which ptxas makes; `kiln run --trust-machine-code` then loads it without
    /// compiling PTX.
    #[arg(long, value_delimiter = ',', value_name = "STAGE")]
    pub emit: Vec<String>,
    /// Write the stages of --emit (default: all) to this folder instead, one file per kernel, named as in the report.
    #[arg(long, value_name = "DIR")]
    pub emit_dir: Option<PathBuf>,
    /// Write the time spent in each stage as JSON ("-" for standard output).
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct Explain {
    /// The model may also be a report written by `--json`.
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub constraints: ConstraintArgs,
    /// Target to plan for [default: what an artifact was compiled for, else cpu].
    #[arg(long, value_parser = targets())]
    pub target: Option<Target>,
    /// Do not fuse: one kernel per op.
    #[arg(long)]
    pub unfused: bool,
    /// Show one kernel in detail.
    #[arg(long, value_name = "NAME", group = "question")]
    pub kernel: Option<String>,
    /// Show which rules lead from the graph as it was written to a kernel's body, step by step. Without NAME: of all
    /// kernels, checked by a checker that shares no code with the rewriter; --json writes the certificate that it
    /// reads.
    #[arg(long, value_name = "NAME", num_args = 0..=1, default_missing_value = "", group = "question")]
    pub proof: Option<String>,
    /// Explain why A and B share a kernel. Each names values (%12), a module path, a source line (file.py:12), op:NAME
    /// or a kernel.
    #[arg(long, value_names = ["A", "B"], num_args = 2, group = "question")]
    pub why: Vec<String>,
    /// Explain why A and B do not share a kernel, and what the plan would cost if they did; or, of a kernel and a
    /// schedule or a form such as 'gemm{mma}(a, b)', why the kernel does not have it.
    #[arg(long, value_names = ["A", "B"], num_args = 2, group = "question")]
    pub why_not: Vec<String>,
    /// List every kernel, one line each.
    #[arg(long, group = "question")]
    pub all: bool,
    /// Write the report as JSON ("-" for standard output).
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the report as an HTML page.
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
    /// Also time these, for comparison: unfused, torch.
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    pub against: Vec<String>,
    /// TorchScript archive for PyTorch to run in comparisons, if the model is an artifact. An archive contains code
    /// that will be run.
    #[arg(long, value_name = "FILE.pt", conflicts_with = "sweep")]
    pub archive: Option<PathBuf>,
    /// Seconds to spend measuring each of fused, unfused and torch.
    #[arg(long, default_value_t = 1.0)]
    pub seconds: f64,
    /// Write the report of the fused plan as an HTML page, with predicted and measured times.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Write a roofline plot of the kernels as SVG.
    #[arg(long, value_name = "FILE.svg")]
    pub roofline: Option<PathBuf>,
    /// Measure an archive at several batch sizes (first dimension of its inputs): 'batch=1,8,64'.
    #[arg(long, value_name = "SIZES", conflicts_with_all = ["html", "trace", "roofline"])]
    pub sweep: Option<String>,
    /// Plot the times of the sweep as SVG.
    #[arg(long, value_name = "FILE.svg", requires = "sweep")]
    pub plot: Option<PathBuf>,
    /// Write a trace of a few runs, host and device, for Perfetto or chrome://tracing.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Write the measurements as JSON ("-" for standard output).
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct Tune {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Store of measurements: created if it does not exist, added to if it does.
    #[arg(long, value_name = "FILE")]
    pub store: PathBuf,
    /// TOML file with constraints on fusion, as for the other commands.
    #[arg(long, value_name = "FILE")]
    pub constraints: Option<PathBuf>,
    /// GPU to tune on: cuda or cuda:N [default: cuda:0].
    #[arg(long)]
    pub device: Option<String>,
    /// Tune only this kernel.
    #[arg(long, value_name = "NAME")]
    pub kernel: Option<String>,
    /// Measure matmuls again that the store already has.
    #[arg(long)]
    pub again: bool,
    /// Candidate schedules to compile and measure per kernel; up to as many variants of the best one follow.
    #[arg(long, default_value_t = 20, value_name = "N")]
    pub candidates: usize,
    /// Write the results as JSON ("-" for standard output).
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

#[derive(Subcommand, Debug)]
pub enum PlanCommand {
    /// Write the plan's kernels as a constraints file that reproduces this plan.
    Pin(Pin),
}

#[derive(Args, Debug)]
pub struct Pin {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Target to plan for [default: what an artifact was compiled for, else cpu].
    #[arg(long, value_parser = targets())]
    pub target: Option<Target>,
    #[command(flatten)]
    pub constraints: ConstraintArgs,
    /// Constraints file to write ("-" for standard output).
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
}

#[derive(Args, Debug)]
pub struct Diff {
    /// First plan: a model, an artifact, or a plan as text.
    pub before: PathBuf,
    /// Second plan, of the same kinds.
    pub after: PathBuf,
    /// Inputs of archives: a safetensors file, as for the other commands.
    #[arg(long, value_name = "FILE")]
    pub inputs: Option<PathBuf>,
    /// Types of random inputs of archives, as for the other commands.
    #[arg(long = "input", value_name = "TYPE", conflicts_with = "inputs")]
    pub input: Vec<String>,
    #[command(flatten)]
    pub contract: ContractArgs,
    /// Target to plan models for [default: what an artifact was compiled for, else cpu].
    #[arg(long, value_parser = targets())]
    pub target: Option<Target>,
    /// Constraints on the second plan.
    #[command(flatten)]
    pub constraints: ConstraintArgs,
    /// Do not fuse in the second plan: one kernel per op.
    #[arg(long)]
    pub unfused: bool,
    /// Write the differences as JSON ("-" for standard output).
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

#[derive(Subcommand, Debug)]
pub enum SnapshotCommand {
    /// Compare the models' plans with the snapshots in DIR/plans.
    Check(SnapshotCheck),
    /// Write the models' plans to DIR/plans as the new snapshots.
    Bless(Snapshot),
}

#[derive(Args, Debug)]
pub struct SnapshotCheck {
    #[command(flatten)]
    pub snapshot: Snapshot,
    /// Check that each plan computes its graph too: by a certificate, and a checker that shares no code with the
    /// rewriter.
    #[arg(long)]
    pub proofs: bool,
}

#[derive(Args, Debug)]
pub struct Snapshot {
    /// Folder of models: text graphs (NAME.kiln), and archives with their inputs (NAME.pt and NAME.safetensors).
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// Built-in machine description to plan for: h200, h100, a100, rtx4090, l40s or cpu.
    #[arg(long, default_value = "h200")]
    pub machine: String,
}

#[derive(Args, Debug)]
pub struct Print {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Stage to print: graph, plan, block, llvm, ptx or asm.
    #[arg(long, default_value = "graph")]
    pub stage: String,
    /// Print only this kernel.
    #[arg(long, value_name = "NAME")]
    pub kernel: Option<String>,
    #[command(flatten)]
    pub constraints: ConstraintArgs,
    /// Target to compile for.
    #[arg(long, value_parser = targets(), default_value_t)]
    pub target: Target,
    /// Do not fuse: one kernel per op.
    #[arg(long)]
    pub unfused: bool,
}

#[derive(Args, Debug)]
pub struct PtxArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub constraints: ConstraintArgs,
    /// GPU target: sm_80, sm_89 or sm_90a.
    #[arg(long, value_parser = targets(), default_value_t = Target::Sm90a)]
    pub target: Target,
    /// Print only this kernel [default: all kernels].
    #[arg(long, value_name = "NAME")]
    pub kernel: Option<String>,
    /// Print registers, spills, vector widths and instruction counts in place of the PTX.
    #[arg(long)]
    pub facts: bool,
    /// Write the facts as JSON ("-" for standard output).
    #[arg(long, value_name = "FILE", requires = "facts")]
    pub json: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct Opt {
    /// Text file with a block program.
    pub file: PathBuf,
    /// Passes to run, in order [default: all those that apply to every program].
    #[arg(long, value_delimiter = ',')]
    pub passes: Vec<String>,
}

#[derive(Args, Debug)]
pub struct KernelArgs {
    /// The kernel, as FILE.py:NAME. The file is read, not run: names are those that its text imports and defines.
    #[arg(value_name = "FILE.py:NAME")]
    pub kernel: String,
    /// Arguments by commas, in the order of the parameters or as NAME=…: '*f32' is a tensor, '*f32[8,64]' an array with its shape, 'i32=4096' or 'f32' a
    /// number ('i32:16': a multiple of 16), anything else the value of a constexpr.
    #[arg(long, value_name = "LIST", default_value = "")]
    pub args: String,
    /// What to print: block, passes (what each pass changed), llvm, ptx, asm or facts.
    #[arg(long, default_value = "facts", value_parser = ["block", "passes", "llvm", "ptx", "asm", "facts"])]
    pub stage: String,
    /// Sizes of the launch's grid, for the predicted time: 128 or 8,4,2.
    #[arg(long, value_name = "N", value_delimiter = ',', num_args = 1..=3)]
    pub grid: Vec<usize>,
    /// Warps of an instance.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = warps)]
    pub num_warps: usize,
    /// Target to compile for.
    #[arg(long, value_parser = targets(), default_value_t = Target::Sm90a)]
    pub target: Target,
    /// Write everything as one HTML page.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Write the facts as JSON ("-" for standard output).
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct Doctor {
    /// Measure this machine and write the description by which the cost model prices plans to this file.
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    pub calibrate: Option<PathBuf>,
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Write the findings as JSON ("-" for standard output).
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}
