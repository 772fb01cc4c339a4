//! The code of a plan: its kernels lowered to block programs, each distinct one compiled once, on all cores.
//!
//! Takes: kernels of a plan and the machine. Gives: their steps, and code for every block program, or why there is
//! none. What was compiled is kept ([`CodeCache`]), so that plans for one machine share it.
use super::{CompileOptions, CompiledCode, ProgramId, Timings, defect, interpreted, loadable, not_lowered};
use crate::{
    Error,
    assembler::Assembler,
    cache::{Cache, Key, Kind},
    workers,
};
use kiln_block::BlockProgram as Program;
use kiln_codegen::{
    CodegenError,
    host::{self, HostModule, Object},
    nvptx,
};
use kiln_lower::LowerError;
use kiln_machine::Machine;
use kiln_plan::exec::{Steps, Work};
use kiln_runtime::{CudaDevice, Device};
use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

/// A block program, and its text without the name.
pub(super) type Keyed = (Program, String);

/// Lowers a kernel.
pub(super) fn lower(kernel: &kiln_plan::Kernel, machine: &Machine) -> Result<Steps<Keyed>, Error> {
    let keyed = |mut program: Program| {
        let name = std::mem::take(&mut program.name);
        let key = kiln_block::text::print(&program);
        Ok((Program { name, ..program }, key))
    };
    match kiln_lower::lower_at(kernel, machine) {
        Ok(steps) => steps.map(keyed),
        Err(LowerError::Unsupported { why, .. }) => Ok(interpreted(kernel, why)),
        Err(defect @ LowerError::Invariant { .. }) => Err(not_lowered(defect)),
    }
}

/// Deduplicated block programs: repeated layers are compiled once.
#[derive(Default)]
pub(super) struct Programs {
    pub list: Vec<Program>,
    /// By text without the name.
    known: HashMap<String, ProgramId>,
}
impl Programs {
    pub fn add(&mut self, (program, key): Keyed) -> ProgramId {
        *self.known.entry(key).or_insert_with(|| {
            self.list.push(program);
            self.list.len() - 1
        })
    }
    pub fn canonicalise(&mut self) -> Result<(), Error> {
        let canonical = |p: &Program| {
            let mut p = p.clone();
            kiln_block::passes::canonicalise(&mut p).map(|()| p).map_err(defect)
        };
        self.list = workers::map(&self.list, canonical).into_iter().collect::<Result<_, _>>()?;
        Ok(())
    }
}

/// The programs that a GPU loads whatever its library takes: not those that are alternatives to each other.
pub(super) fn used(steps: &[Steps<ProgramId>]) -> HashSet<ProgramId> {
    let only = steps.iter().filter(|s| s.otherwise.is_none()).flat_map(|s| &s.steps);
    only.filter_map(|w| if let Work::Block { code, .. } = w { Some(*code) } else { None }).collect()
}

/// Code by the text of its block program without the name. Compilations for one machine that share it compile equal
/// programs once.
#[derive(Default)]
pub(crate) struct CodeCache {
    all: Mutex<HashMap<String, Coded>>,
    /// The GPU that will run the code, which loads each program as soon as its PTX is there and assembled, while others
    /// are generated.
    gpu: Option<CudaDevice>,
}

/// What code generation gives.
pub(super) struct Generated {
    pub code: CompiledCode,
    pub failed: Failed,
    /// Seconds of all threads.
    pub spent: Timings,
}

/// The code of one block program.
#[derive(Clone)]
enum Coded {
    /// Index in its module.
    Host(Arc<host::HostModule>, usize),
    Ptx(nvptx::Ptx),
    /// Why code generation does not support it; its kernels are interpreted.
    Refused(String),
}

/// Programs without code, with the reason.
type Failed = HashMap<ProgramId, String>;

pub(super) fn has_failed(work: &Work<ProgramId>, failed: &Failed) -> bool {
    matches!(work, Work::Block { code, .. } if failed.contains_key(code))
}

impl CodeCache {
    /// None yet, for sessions on this device.
    pub(crate) fn on(device: &Device) -> CodeCache {
        let gpu = if let Device::Cuda(d) = device { Some(d.clone()) } else { None };
        CodeCache { gpu, ..CodeCache::default() }
    }
    /// Code for every program. Also gives the programs that code generation does not support, with the reason; an error
    /// of LLVM is a bug. Those that are `used` are assembled, and loaded on the GPU.
    pub(super) fn generate(
        &self,
        programs: &Programs,
        used: &HashSet<ProgramId>,
        options: &CompileOptions,
    ) -> Result<Generated, Error> {
        let machine = options.machine();
        let mut texts: Vec<&str> = vec![""; programs.list.len()];
        programs.known.iter().for_each(|(text, id)| texts[*id] = text);
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let mut new: Vec<ProgramId> = (0..texts.len()).filter(|id| !all.contains_key(texts[*id])).collect();
        if machine.arch.is_gpu() {
            // The longest programs take longest.
            new.sort_by_key(|id| std::cmp::Reverse(texts[*id].len()));
        }
        let source =
            |id: &ProgramId| Source { program: &programs.list[*id], text: texts[*id], used: used.contains(id) };
        let list: Vec<Source> = new.iter().map(source).collect();
        let (made, spent) = generate(&list, machine, self.gpu.as_ref(), options.cache())?;
        for (id, coded) in new.iter().zip(made) {
            all.insert(texts[*id].to_string(), coded);
        }
        let coded = || texts.iter().map(|text| &all[*text]).enumerate();
        let why =
            |(id, c): (ProgramId, &Coded)| if let Coded::Refused(why) = c { Some((id, why.clone())) } else { None };
        let failed: Failed = coded().filter_map(why).collect();
        let code = match machine.arch.is_gpu() {
            false => {
                // In the place of a program that has no code.
                let nothing =
                    (!failed.is_empty()).then(|| host::compile(&[]).map(Arc::new).map_err(defect)).transpose()?;
                let host = |(_, c): (ProgramId, &Coded)| match (c, &nothing) {
                    (Coded::Host(module, index), _) => Some((module.clone(), *index)),
                    (_, nothing) => nothing.clone().map(|n| (n, 0)),
                };
                CompiledCode::Host(coded().filter_map(host).collect())
            }
            true => {
                let ptx = |(_, c): (ProgramId, &Coded)| if let Coded::Ptx(p) = c { p.clone() } else { no_ptx() };
                CompiledCode::Ptx(coded().map(ptx).collect())
            }
        };
        Ok(Generated { code, failed, spent })
    }
}

/// In the place of a program that has no code; its kernel is interpreted.
fn no_ptx() -> nvptx::Ptx {
    let (name, text, args) = (String::new(), String::new(), vec![]);
    nvptx::Ptx {
        name,
        text,
        grid: kiln_block::Grid::default(),
        threads: 1,
        shared: 0,
        cluster: 1,
        args,
        bank_ways: Default::default(),
    }
}

/// A block program whose code is wanted.
pub(crate) struct Source<'a> {
    pub program: &'a Program,
    /// Without the name.
    pub text: &'a str,
    /// Whether a GPU is to load it.
    pub used: bool,
}

/// Generates code for every program, on all cores, and has the GPU assemble those with which that is asked for.
fn generate(
    programs: &[Source],
    machine: &Machine,
    gpu: Option<&CudaDevice>,
    cache: Option<&Cache>,
) -> Result<(Vec<Coded>, Timings), Error> {
    let refused = |e: CodegenError| match e {
        CodegenError::Unsupported { .. } => Ok(Coded::Refused(e.to_string())),
        CodegenError::Llvm { .. } | CodegenError::Defect { .. } => Err(defect(e)),
    };
    let (generating, assembling) = (AtomicU64::new(0), AtomicU64::new(0));
    let count = programs.iter().filter(|p| p.used).count();
    let assembler = gpu.map(|gpu| Assembler::new(gpu, machine.arch, count, cache));
    let compiled: Vec<Result<Coded, CodegenError>> = match machine.arch.is_gpu() {
        false => {
            kiln_cpu::Level::chosen().map_err(|e| Error::usage(e.to_string(), ""))?;
            // One module for each core.
            let chunks: Vec<_> = programs.chunks(programs.len().div_ceil(crate::cores::cores()).max(1)).collect();
            let compile = |chunk: &&[Source]| timed(&generating, || on_host(chunk, cache));
            workers::map(&chunks, compile).into_iter().flatten().collect()
        }
        true => {
            let described = serde_json::to_vec(machine).ok();
            let cache = cache.zip(described.as_deref());
            workers::map(programs, |source| {
                let ptx = timed(&generating, || ptx_of(source, machine, cache))?;
                if let Some(assembler) = assembler.as_ref().filter(|_| source.used) {
                    timed(&assembling, || assembler.load(&loadable(&ptx, None)));
                }
                Ok(Coded::Ptx(ptx))
            })
        }
    };
    let seconds = |nanoseconds: AtomicU64| nanoseconds.into_inner() as f64 / 1e9;
    let spent = Timings { generating_s: seconds(generating), assembling_s: seconds(assembling), ..Timings::default() };
    Ok((compiled.into_iter().map(|r| r.or_else(refused)).collect::<Result<_, _>>()?, spent))
}

/// The PTX of a program, from the cache if it is there; with the cache comes the machine's description.
pub(crate) fn ptx_of(
    source: &Source,
    machine: &Machine,
    cache: Option<(&Cache, &[u8])>,
) -> Result<nvptx::Ptx, CodegenError> {
    let Some((cache, described)) = cache else { return nvptx::compile(source.program, machine) };
    let key = Key::new(Kind::Ptx).with(described).with(source.program.name.as_bytes()).with(source.text.as_bytes());
    if let Some(known) = cache.get(&key).and_then(|bytes| serde_json::from_slice(&bytes).ok()) {
        return Ok(known);
    }
    let ptx = nvptx::compile(source.program, machine)?;
    if let Ok(bytes) = serde_json::to_vec(&ptx) {
        cache.put(&key, &bytes);
    }
    Ok(ptx)
}

/// Adds the nanoseconds that `f` takes to `sum`.
fn timed<T>(sum: &AtomicU64, f: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let done = f();
    sum.fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
    done
}

/// Code of these programs for the host, in one module.
fn on_host(programs: &[Source], cache: Option<&Cache>) -> Vec<Result<Coded, CodegenError>> {
    match host_module(programs, cache) {
        Ok(module) => {
            let module = Arc::new(module);
            (0..programs.len()).map(|i| Ok(Coded::Host(module.clone(), i))).collect()
        }
        // Compiles the programs one at a time to find which of them failed.
        Err(_) => {
            let alone = |p| host_module(std::slice::from_ref(p), cache).map(|m| Coded::Host(Arc::new(m), 0));
            programs.iter().map(alone).collect()
        }
    }
}

/// One module of these programs, from the cache if it is there.
pub(crate) fn host_module(programs: &[Source], cache: Option<&Cache>) -> Result<HostModule, CodegenError> {
    let texts = || programs.iter().map(|p| p.text);
    let key = cache.map(|cache| {
        let key = Key::new(Kind::Host).with(host::processor().as_bytes());
        (cache, texts().fold(key, |key, text| key.with(text.as_bytes())))
    });
    let known = key.as_ref().and_then(|(cache, key)| unpacked(&cache.get(key)?));
    if let Some(module) = known.filter(|o| o.kernels == programs.len()).and_then(|o| HostModule::load(&o).ok()) {
        return Ok(module);
    }
    let all: Vec<Program> = programs.iter().map(|p| p.program.clone()).collect();
    let object = host::object(&all)?;
    if let Some((cache, key)) = key {
        cache.put(&key, &packed(&object));
    }
    HostModule::load(&object)
}

/// An object as bytes: a line with the number of its kernels and what it calls, then the file.
fn packed(object: &Object) -> Vec<u8> {
    let mut all = format!("{} {}\n", object.kernels, object.externs.join(" ")).into_bytes();
    all.extend_from_slice(&object.bytes);
    all
}
fn unpacked(all: &[u8]) -> Option<Object> {
    let end = all.iter().position(|b| *b == b'\n')?;
    let mut words = std::str::from_utf8(&all[..end]).ok()?.split_whitespace();
    let kernels = words.next()?.parse().ok()?;
    Some(Object { bytes: all[end + 1..].to_vec(), externs: words.map(str::to_string).collect(), kernels })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_read_as_it_was_written() {
        for externs in [vec![], vec!["expf".to_string(), "pow".into()]] {
            let object = Object { bytes: vec![0, 10, 13, 10, 255], externs, kernels: 3 };
            assert_eq!(unpacked(&packed(&object)), Some(object));
        }
        assert_eq!(unpacked(b"no line"), None);
    }
}
