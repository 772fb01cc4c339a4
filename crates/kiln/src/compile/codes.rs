//! The code of a plan: its kernels lowered to block programs, each distinct one compiled once, on all cores.
//!
//! Takes: kernels of a plan and the machine. Gives: their steps, and code for every block program, or why there is none. What was compiled
//! is kept ([`Codes`]), so that plans for one machine share it.
use super::{CompiledCode, ProgramId, defect, interpreted, not_lowered};
use crate::Error;
use kiln_block::Kernel as Program;
use kiln_codegen::{CodegenError, host, nvptx};
use kiln_lower::LowerError;
use kiln_machine::Machine;
use kiln_plan::exec::{Steps, Work};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

/// Deduplicated block programs: repeated layers are compiled once.
#[derive(Default)]
pub(super) struct Programs {
    pub list: Vec<Program>,
    /// By text without the name.
    known: HashMap<String, ProgramId>,
}
impl Programs {
    pub fn lower(&mut self, kernel: &kiln_plan::Kernel, machine: &Machine) -> Result<Steps<ProgramId>, Error> {
        match kiln_lower::lower_at(kernel, machine) {
            Ok(steps) => steps.map(|p| self.add(p)),
            Err(LowerError::Unsupported { why, .. }) => Ok(interpreted(kernel, why)),
            Err(defect @ LowerError::Invariant { .. }) => Err(not_lowered(defect)),
        }
    }
    fn add(&mut self, mut program: Program) -> Result<ProgramId, Error> {
        let mut nameless = program.clone();
        nameless.name.clear();
        let key = kiln_block::text::print(&nameless);
        if let Some(id) = self.known.get(&key) {
            return Ok(*id);
        }
        kiln_block::passes::canonicalise(&mut program).map_err(defect)?;
        let id = self.list.len();
        self.list.push(program);
        self.known.insert(key, id);
        Ok(id)
    }
}

/// Code by the text of its block program without the name. Compilations for one machine that share it compile equal programs once.
#[derive(Default)]
pub(crate) struct Codes(Mutex<HashMap<String, Coded>>);

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

impl Codes {
    /// Code for every program. Also gives the programs that code generation does not support, with the reason; an error of LLVM is a bug.
    pub(super) fn generate(&self, programs: &Programs, machine: &Machine) -> Result<(CompiledCode, Failed), Error> {
        let mut texts: Vec<&str> = vec![""; programs.list.len()];
        programs.known.iter().for_each(|(text, id)| texts[*id] = text);
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let new: Vec<ProgramId> = (0..texts.len()).filter(|id| !all.contains_key(texts[*id])).collect();
        let list: Vec<&Program> = new.iter().map(|id| &programs.list[*id]).collect();
        for (id, coded) in new.iter().zip(generate(&list, machine)?) {
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
        Ok((code, failed))
    }
}

/// In the place of a program that has no code; its kernel is interpreted.
fn no_ptx() -> nvptx::Ptx {
    let (name, text, args) = (String::new(), String::new(), vec![]);
    nvptx::Ptx { name, text, grid: [0; 3], threads: 1, shared: 0, cluster: 1, args }
}

/// Generates code for every program, on all cores.
fn generate(programs: &[&Program], machine: &Machine) -> Result<Vec<Coded>, Error> {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let chunk = programs.len().div_ceil(cores).max(1);
    let refused = |e: CodegenError| match e {
        CodegenError::Unsupported { .. } => Ok(Coded::Refused(e.to_string())),
        CodegenError::Llvm { .. } | CodegenError::Defect { .. } => Err(defect(e)),
    };
    let compiled = match machine.arch.is_gpu() {
        false => {
            kiln_cpu::Level::chosen().map_err(|e| Error::usage(e.to_string(), ""))?;
            parallel(programs, chunk, |chunk| {
                let chunk: Vec<Program> = chunk.iter().map(|p| (*p).clone()).collect();
                match host::compile(&chunk) {
                    Ok(module) => {
                        let module = Arc::new(module);
                        (0..chunk.len()).map(|i| Ok(Coded::Host(module.clone(), i))).collect()
                    }
                    // Compiles the programs one at a time to find which of them failed.
                    Err(_) => {
                        let alone = |p| host::compile(std::slice::from_ref(p)).map(|m| Coded::Host(Arc::new(m), 0));
                        chunk.iter().map(alone).collect::<Vec<_>>()
                    }
                }
            })
        }
        true => {
            let compile = |p: &&Program| nvptx::compile(p, machine).map(Coded::Ptx);
            parallel(programs, chunk, |chunk| chunk.iter().map(compile).collect())
        }
    };
    compiled.into_iter().map(|r| r.or_else(refused)).collect()
}

/// Runs `f` on chunks, each on its own thread; gives the results in order.
fn parallel<T: Send>(programs: &[&Program], chunk: usize, f: impl Fn(&[&Program]) -> Vec<T> + Sync) -> Vec<T> {
    let mut out = vec![];
    std::thread::scope(|s| {
        let handles: Vec<_> = programs.chunks(chunk).map(|c| s.spawn(|| f(c))).collect();
        for h in handles {
            match h.join() {
                Ok(list) => out.extend(list),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
    });
    out
}
