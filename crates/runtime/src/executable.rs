//! What a session runs: buffers, kernels and the code of each kernel. Plain data made by the compiler and checked
//! before use.
//!
//! **An index out of range is an error.** Where a kernel reads an index from memory and nothing known of it
//! (`Dag::range` in kiln-lower) keeps it in range, its block program has a `check`: a conditional store of the index
//! and of the body's node to the kernel's record of 16 bytes ([`Slot::Faults`]). Loads and stores are masked as well,
//! so nothing outside of a buffer is touched. The session reads the records after each kernel on the host, and after a
//! whole run on a GPU, and turns the first one that is set into [`RuntimeError::Index`]. Only the importer knows
//! indices that count from the end (`x[-1]`): a negative index in a graph is out of range.
use crate::RuntimeError;
use kiln_graph::{DType, Type};
use kiln_plan::{
    Buffer, BufferId, BufferKind, Plan, Stage,
    exec::{AttentionCall, Axis, GemmCall, Matrix, Slot, Steps, Work},
    index::{Fault, IndexSite},
};
use std::{
    any::Any,
    collections::{BTreeSet, HashSet},
    fmt,
    sync::Arc,
};

/// Host code of a block program: runs the program instances `lo..hi` of the linearised grid. `args`: one address per
/// parameter.
pub type HostFn = unsafe extern "C" fn(args: *const *mut u8, lo: u64, hi: u64);

/// Machine code of one block step.
#[derive(Clone)]
pub enum Code {
    /// Code for the host.
    Host {
        /// The function; it runs any range of the grid.
        f: HostFn,
        /// Size of the linearised grid.
        instances: u64,
        /// Owner of the memory that holds the code.
        keep: Arc<dyn Any + Send + Sync>,
    },
    /// Code for an NVIDIA GPU.
    Ptx(Ptx),
}

/// How a kernel on an NVIDIA GPU receives an argument.
#[derive(Clone, PartialEq, Debug)]
pub enum Passed {
    /// A 64-bit address.
    Address,
    /// A number of so many bytes, by value.
    Scalar(usize),
    /// A tensor map (TMA descriptor) of an array in the buffer.
    Map(TensorMap),
    /// A tensor map that each launch makes of other arguments; these are not passed.
    LaunchMap(LaunchMap),
}

/// As a [`TensorMap`], of an array that begins at an argument of the launch and has numbers of it as sizes and strides.
#[derive(Clone, PartialEq, Debug)]
pub struct LaunchMap {
    /// Type of the elements.
    pub dtype: DType,
    /// The argument that is the array's address.
    pub base: usize,
    /// Length of each axis of the array, in elements.
    pub sizes: Vec<Extent>,
    /// Stride of each axis in elements; the last is 1.
    pub strides: Vec<Extent>,
    /// Length of each axis of a tile, in elements.
    pub tile: Vec<usize>,
    /// Bytes within which 16-byte chunks are permuted: 0 (none), 32, 64 or 128.
    pub swizzle: usize,
}

/// A product of a number and of integer arguments of a launch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Extent {
    /// The number.
    pub factor: i64,
    /// Positions of the arguments.
    pub arguments: Vec<usize>,
}

/// A strided array that the tensor memory accelerator (TMA) copies in tiles. Axes are outermost first.
#[derive(Clone, PartialEq, Debug)]
pub struct TensorMap {
    /// Type of the elements.
    pub dtype: DType,
    /// Offset from the start of the buffer, in elements.
    pub offset: usize,
    /// Length of each axis of the array, in elements.
    pub sizes: Vec<usize>,
    /// Stride of each axis in elements; the last is 1.
    pub strides: Vec<usize>,
    /// Length of each axis of a tile, in elements.
    pub tile: Vec<usize>,
    /// Bytes within which 16-byte chunks are permuted: 0 (none), 32, 64 or 128.
    pub swizzle: usize,
}

/// Machine code that was assembled from PTX (a cubin). The driver runs it as it is: whoever sets it trusts where it
/// comes from.
#[derive(Clone, PartialEq, Debug)]
pub struct Cubin {
    /// The compute capability (major, minor) that it runs on.
    pub capability: (u32, u32),
    /// The file that `ptxas` writes.
    pub bytes: Arc<[u8]>,
}

/// A kernel for an NVIDIA GPU and how it is launched.
#[derive(Clone, PartialEq, Debug)]
pub struct Ptx {
    /// Name of the entry point in `text`.
    pub entry: String,
    /// The PTX of the whole module.
    pub text: Arc<str>,
    /// The same code, assembled before. A device of its compute capability loads it and leaves the PTX to others.
    pub cubin: Option<Cubin>,
    /// Blocks along x, y and z, unless each launch gives them; none are launched if one is 0.
    pub grid: [usize; 3],
    /// Threads per block.
    pub threads: usize,
    /// Dynamic shared memory in bytes.
    pub shared: usize,
    /// Blocks of a cluster along x; 0 and 1 mean no cluster.
    pub cluster: usize,
    /// How each argument is passed; arguments beyond the end of the list are passed by address.
    pub passed: Vec<Passed>,
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Code::Host { instances, .. } => write!(f, "Host({instances} instances)"),
            Code::Ptx(p) => write!(f, "Ptx({}, grid {:?} × {})", p.entry, p.grid, p.threads),
        }
    }
}

/// A kernel of the plan, with the code that computes it.
#[derive(Clone, Debug)]
pub struct KernelCode {
    /// Its name in the plan.
    pub name: String,
    /// Whether it runs at load time or in every run.
    pub stage: Stage,
    /// The buffers behind `Slot::Input`, in order.
    pub inputs: Vec<BufferId>,
    /// The buffers behind `Slot::Output`, in order.
    pub outputs: Vec<BufferId>,
    /// What runs, in order, and the types of its scratch buffers.
    pub steps: Steps<Code>,
    /// Nodes of the body that read indices, for the messages about indices out of range.
    pub sites: Vec<IndexSite>,
}

impl KernelCode {
    /// Whether no step uses this buffer as an input, so that the kernel may write it: the input's value was copied, and
    /// the copy is left out.
    fn ignores(&self, buffer: BufferId) -> bool {
        let slots = self.inputs.iter().enumerate().filter(|(_, b)| **b == buffer).map(|(i, _)| Slot::Input(i as u32));
        let used = |slot: &Slot| {
            self.steps.steps.iter().any(|w| match w {
                Work::Block { args, .. } => args.contains(slot),
                Work::Gemm(g) => g.slots().contains(slot),
                Work::Attention(a) => a.slots().contains(slot),
                Work::Fallback(_) | Work::Interpret { .. } => true,
            })
        };
        !slots.into_iter().any(|s| used(&s))
    }
    /// Whether its code checks indices and records one that is out of range.
    pub fn checks_indices(&self) -> bool {
        self.uses(Slot::Faults)
    }
    /// Whether its steps share a counter.
    pub fn counts(&self) -> bool {
        self.uses(Slot::Counter)
    }
    fn uses(&self, slot: Slot) -> bool {
        let used = |w: &Work<Code>| matches!(w, Work::Block { args, .. } if args.contains(&slot));
        self.steps.steps.iter().any(used)
    }
}

/// The type of [`Slot::Faults`].
static RECORD: Type = Type { dtype: DType::I64, shape: Vec::new() };
/// The type of [`Slot::Counter`].
static COUNTER: Type = Type { dtype: DType::I32, shape: Vec::new() };

/// An input of the model: its name in messages, and its type.
#[derive(Clone, PartialEq, Debug)]
pub struct InputSpec {
    /// May be empty; then messages say `input 0`.
    pub name: String,
    /// Dtype and shape.
    pub ty: Type,
}

/// A compiled model: everything that a [`crate::Session`] runs, but the values of parameters.
#[derive(Clone, Debug, Default)]
pub struct Executable {
    /// Name of the model, for messages.
    pub name: String,
    /// All inputs of the graph, used or not.
    pub inputs: Vec<InputSpec>,
    /// Types and kinds of all buffers; a [`BufferId`] is an index here.
    pub buffers: Vec<Buffer>,
    /// In launch order.
    pub kernels: Vec<KernelCode>,
    /// The buffers that a run returns. The same buffer may appear twice; inputs, parameters and frozen buffers may be
    /// outputs.
    pub outputs: Vec<BufferId>,
    /// Inputs that kernels write ([`Executable::write_in_place`]).
    pub written: Vec<u32>,
}

impl Executable {
    /// Joins a plan with the code of its kernels. `inputs`: all inputs of the graph; `steps`: one for each kernel, in
    /// the plan's order.
    pub fn new(plan: &Plan, inputs: Vec<InputSpec>, steps: Vec<Steps<Code>>) -> Executable {
        let kernels = plan.kernels.iter().zip(steps).map(|(k, steps)| KernelCode {
            name: k.name.clone(),
            stage: k.stage,
            inputs: k.inputs.clone(),
            outputs: k.outputs.clone(),
            steps,
            sites: IndexSite::all(k),
        });
        Executable {
            name: plan.name.clone(),
            inputs,
            buffers: plan.buffers.clone(),
            kernels: kernels.collect(),
            outputs: plan.outputs.clone(),
            written: vec![],
        }
    }
    /// Parameters whose values a session computes with when it is loaded, and not in each run: those that load-time
    /// kernels read, and matrices of matmuls on the host, which it packs.
    pub fn frozen_params(&self) -> BTreeSet<usize> {
        let param = |b: &BufferId| match self.buffers[b.0 as usize].kind {
            BufferKind::Param(p) => Some(p.0 as usize),
            _ => None,
        };
        let loads = |k: &&KernelCode| k.stage == Stage::Load;
        let folded = self.kernels.iter().filter(loads).flat_map(|k| &k.inputs).filter_map(param);
        let packs = |k: &&KernelCode| k.steps.steps.iter().any(|w| matches!(w, Work::Gemm(_)));
        let packed = self.kernels.iter().filter(packs).flat_map(|k| &k.inputs).filter_map(param);
        folded.chain(packed).collect()
    }
    /// A copy in which kernels with a matmul that the library does not take (`takes` is false) use their steps without
    /// a library (`Steps::otherwise`), if they have any.
    pub fn without_library(&self, takes: impl Fn(&KernelCode, &GemmCall) -> bool) -> Executable {
        let mut exe = self.clone();
        for k in &mut exe.kernels {
            let refused = |w: &Work<Code>| matches!(w, Work::Gemm(g) if !takes(k, g));
            if k.steps.steps.iter().any(refused)
                && let Some(steps) = k.steps.otherwise.take()
            {
                k.steps = *steps;
            }
        }
        exe
    }
    /// The type of a buffer, which must exist.
    pub fn ty(&self, b: BufferId) -> &Type {
        &self.buffers[b.0 as usize].ty
    }
    /// The n-th input as messages name it.
    pub fn input_name(&self, n: usize) -> String {
        match self.inputs.get(n) {
            Some(s) if !s.name.is_empty() => format!("input {n} (`{}`)", s.name),
            _ => format!("input {n}"),
        }
    }
    /// The type of a slot of a kernel; `None` if the kernel has no such slot.
    pub fn slot_type<'a>(&'a self, k: &'a KernelCode, s: Slot) -> Option<&'a Type> {
        match s {
            Slot::Input(i) => k.inputs.get(i as usize).map(|b| self.ty(*b)),
            Slot::Output(i) => k.outputs.get(i as usize).map(|b| self.ty(*b)),
            Slot::Scratch(i) => k.steps.scratch.get(i as usize),
            Slot::Faults => Some(&RECORD),
            Slot::Counter => Some(&COUNTER),
        }
    }

    /// The error for a kernel's record of an out-of-range index; `None` if the record is clear.
    pub(crate) fn index_error(&self, kernel: usize, record: i64) -> Option<RuntimeError> {
        let fault = Fault::of(record)?;
        let k = &self.kernels[kernel];
        let what = match k.sites.iter().find(|s| s.node == fault.site) {
            Some(site) => site.sentence(fault.index),
            // The code was not generated from this kernel's body.
            None => format!("index {} is out of range", fault.index),
        };
        Some(RuntimeError::Index { model: self.name.clone(), kernel: k.name.clone(), what })
    }

    /// Checks that all buffers and slots exist, that everything is written before it is read, and that matmuls stay
    /// within their buffers.
    ///
    /// # Errors
    /// [`RuntimeError::Invalid`] with the first contradiction.
    pub fn check(&self) -> Result<(), RuntimeError> {
        let fail = |at: String, what: String| Err(RuntimeError::Invalid { model: self.name.clone(), at, what });
        for (i, b) in self.buffers.iter().enumerate() {
            if let BufferKind::Input(n) = b.kind {
                match self.inputs.get(n as usize) {
                    Some(s) if s.ty == b.ty => {}
                    Some(s) => return fail(format!("b{i}"), format!("is {}, but input {n} is {}", b.ty, s.ty)),
                    None => return fail(format!("b{i}"), format!("holds input {n} of {} inputs", self.inputs.len())),
                }
            }
        }
        let given = |b: &Buffer| matches!(b.kind, BufferKind::Input(_) | BufferKind::Param(_)) || b.ty.count() == 0;
        let mut ready: HashSet<BufferId> =
            (0..self.buffers.len() as u32).map(BufferId).filter(|b| given(&self.buffers[b.0 as usize])).collect();
        for stage in [Stage::Load, Stage::Run] {
            for k in self.kernels.iter().filter(|k| k.stage == stage) {
                let at = || format!("kernel `{}`", k.name);
                if let Some(b) = k.inputs.iter().chain(&k.outputs).find(|b| b.0 as usize >= self.buffers.len()) {
                    return fail(at(), format!("uses {b}, which does not exist"));
                }
                if let Some(b) = k.inputs.iter().find(|b| !ready.contains(b)) {
                    return fail(at(), format!("reads {b} before anything wrote it"));
                }
                let from_input = |b: &&BufferId| matches!(self.buffers[b.0 as usize].kind, BufferKind::Input(_));
                if let Some(b) = k.inputs.iter().find(|b| stage == Stage::Load && from_input(b)) {
                    return fail(at(), format!("runs at load time but reads input {b}"));
                }
                let fixed = |b: &&BufferId| match self.buffers[b.0 as usize].kind {
                    BufferKind::Input(i) if self.written.contains(&i) => !k.ignores(**b),
                    BufferKind::Input(_) | BufferKind::Param(_) => true,
                    BufferKind::Frozen | BufferKind::Temp => k.inputs.contains(b),
                };
                if let Some(b) = k.outputs.iter().find(fixed) {
                    return fail(at(), format!("writes {b}, which it may only read"));
                }
                for w in &k.steps.steps {
                    if let Err(what) = self.check_step(k, w) {
                        return fail(at(), what);
                    }
                }
                ready.extend(&k.outputs);
            }
        }
        match self.outputs.iter().enumerate().find(|(_, b)| !ready.contains(b)) {
            Some((i, b)) => fail(format!("output {i}"), format!("{b} is never written")),
            None => Ok(()),
        }
    }

    fn check_step(&self, k: &KernelCode, w: &Work<Code>) -> Result<(), String> {
        match w {
            Work::Block { args, .. } => match args.iter().find(|s| self.slot_type(k, **s).is_none()) {
                Some(s) => Err(format!("has no {s:?}")),
                None => Ok(()),
            },
            Work::Gemm(g) => self.check_gemm(k, g),
            Work::Attention(a) => self.check_attention(k, a),
            Work::Fallback(call) => match call.operands.iter().find(|i| **i >= k.inputs.len()) {
                Some(i) => Err(format!("has no input {i}")),
                None => Ok(()),
            },
            Work::Interpret { .. } => Ok(()),
        }
    }

    fn check_gemm(&self, k: &KernelCode, g: &GemmCall) -> Result<(), String> {
        let half = matches!(g.dtype, DType::F16 | DType::Bf16);
        let exists = g.dtype.is_int() || g.dtype.is_float() && !g.dtype.is_f8();
        if !exists || !(g.c_dtype == g.dtype || half && g.c_dtype == DType::F32) {
            return Err(format!("there is no matmul of {} operands with a result of {}", g.dtype, g.c_dtype));
        }
        if matches!(g.c.slot, Slot::Input(_)) {
            return Err("a matmul writes an input".into());
        }
        if let Some((slot, offset)) = g.epilogue.bias {
            let ty = self.slot_type(k, slot).ok_or_else(|| format!("has no {slot:?}"))?;
            let end = offset.checked_add(g.n);
            if ty.dtype != g.c_dtype || end.is_none_or(|end| end > ty.count()) {
                let (n, dtype) = (g.n, g.c_dtype);
                return Err(format!("the bias of a matmul is {ty}, not {n} values of {dtype} from element {offset}"));
            }
        }
        let residual = g.epilogue.residual.as_ref().map(|r| ("residual", &r.0, g.m, g.n, g.c_dtype));
        let all = [("a", &g.a, g.m, g.k, g.dtype), ("b", &g.b, g.k, g.n, g.dtype), ("c", &g.c, g.m, g.n, g.c_dtype)];
        let mut all = all.into_iter().chain(residual);
        all.try_for_each(|(name, x, rows, cols, dtype)| {
            self.check_operand(k, &format!("operand {name} of a matmul"), x, &g.batch, [rows, cols], dtype)
        })
    }

    fn check_attention(&self, k: &KernelCode, a: &AttentionCall) -> Result<(), String> {
        let sums = a.dtype.compute();
        if !matches!(a.dtype, DType::F16 | DType::Bf16 | DType::F32 | DType::F64) {
            return Err(format!("the library has no attention of {} operands", a.dtype));
        }
        if a.out_dtype != a.dtype && a.out_dtype != sums {
            return Err(format!("there is no attention of {} operands with a result of {}", a.dtype, a.out_dtype));
        }
        if matches!(a.out.slot, Slot::Input(_)) {
            return Err("attention writes an input".into());
        }
        if a.keys == 0 || a.depth == 0 {
            return Err("attention without keys, or of heads of width 0".into());
        }
        let plain = |m: &Matrix| m.rows.len() <= 1 && m.cols.len() <= 1;
        if !plain(&a.k) || !plain(&a.v) {
            return Err("keys and values of attention need one axis for their rows and one for their columns".into());
        }
        if let Some(m) = &a.mask
            && (![DType::Bool, a.dtype, sums].contains(&m.dtype) || m.matrix.cols.len() > 1)
        {
            return Err(format!("a mask of {} does not fit attention of {}", m.dtype, a.dtype));
        }
        if let Some(s) = &a.sink
            && s.dtype != a.dtype
            && s.dtype != sums
        {
            return Err(format!("a sink of {} does not fit attention of {}", s.dtype, a.dtype));
        }
        let rows = a.group.checked_mul(a.queries).ok_or("attention of more rows than memory has")?;
        let all = [
            ("q", &a.q, rows, a.depth, a.dtype),
            ("k", &a.k, a.keys, a.depth, a.dtype),
            ("v", &a.v, a.keys, a.width, a.dtype),
            ("out", &a.out, rows, a.width, a.out_dtype),
        ];
        let mask = a.mask.iter().map(|m| ("mask", &m.matrix, rows, a.keys, m.dtype));
        let ends = a.ends.iter().map(|m| ("ends", m, rows, 1, DType::I64));
        let sink = a.sink.iter().map(|s| ("sink", &s.matrix, rows, 1, s.dtype));
        all.into_iter().chain(mask).chain(ends).chain(sink).try_for_each(|(name, x, rows, cols, dtype)| {
            self.check_operand(k, &format!("operand {name} of attention"), x, &a.batch, [rows, cols], dtype)
        })
    }

    /// Whether a strided operand has these sizes and lies within its buffer.
    fn check_operand(
        &self,
        k: &KernelCode,
        what: &str,
        x: &Matrix,
        batch: &[usize],
        [rows, cols]: [usize; 2],
        dtype: DType,
    ) -> Result<(), String> {
        let ty = self.slot_type(k, x.slot).ok_or_else(|| format!("has no {:?}", x.slot))?;
        if ty.dtype != dtype {
            return Err(format!("{what} is {ty}, not {dtype}"));
        }
        if x.batch_strides.len() != batch.len() {
            return Err(format!("{what} has the wrong number of batch strides"));
        }
        if positions(&x.rows) != Some(rows) || positions(&x.cols) != Some(cols) {
            return Err(format!("the axes of {what} do not make {rows}×{cols} elements"));
        }
        if extent(x, batch).is_none_or(|e| e > ty.count()) {
            return Err(format!("{what} reaches beyond its buffer of {ty}"));
        }
        Ok(())
    }
}

/// The number of positions on these axes; `None` on overflow.
fn positions(axes: &[Axis]) -> Option<usize> {
    axes.iter().try_fold(1usize, |n, a| n.checked_mul(a.size))
}

/// One past the last element that a strided operand touches; `None` on overflow.
fn extent(x: &Matrix, batch: &[usize]) -> Option<usize> {
    let batch = batch.iter().copied().zip(x.batch_strides.iter().copied());
    let mut all = x.rows.iter().chain(&x.cols).map(|a| (a.size, a.stride)).chain(batch);
    if all.clone().any(|(n, _)| n == 0) {
        return Some(0);
    }
    all.try_fold(x.offset.checked_add(1)?, |e, (n, s)| e.checked_add((n - 1).checked_mul(s)?))
}
