//! A kernel at every stage, for reading: the program as it was written and after each pass, LLVM IR, PTX or assembly,
//! facts, and one page of all of it.
use super::footprint::Code;
use super::price::{LaunchPrice, price};
use super::{LaunchValues, Unit, defect};
use crate::bounds::{self, Outside};
use crate::error::Error;
use crate::facts::cubin;
use crate::ptxas::{find_nvdisasm, find_ptxas};
use crate::stages::{Stage, kernel::program_at};
use kiln_block::{BlockProgram, passes, text::print};
use kiln_codegen::nvptx::Ptx;
use kiln_kernels::Site;
use kiln_machine::Machine;
use similar::TextDiff;
use std::{io::Write as _, process::Command};

/// A kernel that was compiled for a target.
pub struct Stages {
    pub(super) unit: Unit,
    /// Of each instruction before the first pass, where it is in the source.
    pub(super) sites: Vec<Site>,
    /// Before the first pass.
    pub(super) written: BlockProgram,
    /// After the passes that every program goes through.
    pub(super) program: BlockProgram,
    /// What code is generated from.
    pub(super) placed: BlockProgram,
    pub(super) parameters: Vec<Vec<usize>>,
    pub(super) machine: Machine,
    /// For a GPU.
    pub(super) ptx: Option<Ptx>,
}

/// The pass that drops facts about parameters which change nothing.
const FACTS: &str = "relevant_facts";

/// What a pass made of the program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PassResult {
    /// Its name; `written` is the program before the first one.
    pub name: &'static str,
    /// The program after it.
    pub text: String,
    /// The lines that it changed, as a unified diff; empty if it changed nothing. Or why it does not apply.
    pub diff: String,
}

/// Programs after passes, in order.
struct Shown(Vec<PassResult>);

impl Shown {
    fn of(name: &'static str, program: &BlockProgram) -> Shown {
        Shown(vec![PassResult { name, text: print(program), diff: String::new() }])
    }
    fn before(&self) -> String {
        self.0.last().map(|pass| pass.text.clone()).unwrap_or_default()
    }
    fn add(&mut self, name: &'static str, program: &BlockProgram) {
        let (before, text) = (self.before(), print(program));
        let diff = TextDiff::from_lines(&before, &text).unified_diff().context_radius(2).to_string();
        self.0.push(PassResult { name, text, diff });
    }
    /// Notes a pass that does not apply.
    fn refuse(&mut self, name: &'static str, why: &str) {
        let diff = format!("does not apply: {why}\n");
        self.0.push(PassResult { name, text: self.before(), diff });
    }
}

impl Stages {
    /// The block program after the passes that every program goes through.
    pub fn program(&self) -> &BlockProgram {
        &self.program
    }
    /// For each parameter of the program the argument that it is: its number among the kernel's parameters, then the
    /// place in tuples.
    pub fn parameters(&self) -> &[Vec<usize>] {
        &self.parameters
    }
    /// Bytes of shared memory of an instance; 0 on the processor.
    pub fn shared(&self) -> usize {
        self.ptx.as_ref().map_or(0, |ptx| ptx.shared)
    }
    /// The PTX, for a GPU.
    pub fn ptx(&self) -> Option<&str> {
        self.ptx.as_ref().map(|ptx| &ptx.text[..])
    }
    /// The block program, LLVM IR, PTX or assembly.
    ///
    /// # Errors
    /// If the target has no such stage, or ptxas or nvdisasm is missing for a GPU's assembly.
    pub fn text(&self, stage: Stage) -> Result<String, Error> {
        match &self.ptx {
            Some(ptx) if stage == Stage::Asm => sass(ptx, self.machine.arch.name()),
            ptx => program_at(&self.placed, stage, &self.machine, ptx.as_ref()),
        }
    }
    /// The program as it was written, then after each pass. The last ones are for GPUs: `launch_maps` and `roles`, of
    /// programs that multiply, with why they do not apply, and `layout`.
    ///
    /// # Errors
    /// If a pass breaks the program, which is a defect of Kiln.
    pub fn passes(&self) -> Result<Vec<PassResult>, Error> {
        let mut program = self.written.clone();
        let mut shown = Shown::of("written", &program);
        for name in [FACTS].into_iter().chain(passes::CANONICAL.iter().copied()) {
            match name {
                FACTS => _ = passes::drop_irrelevant_facts(&mut program),
                _ => passes::run(&[name], &mut program, &self.machine).map_err(defect)?,
            }
            shown.add(name, &program);
        }
        if self.machine.arch.is_gpu() && passes::multiplies(&program) {
            match passes::to_warpgroups(&program, &self.machine) {
                Ok(made) => {
                    shown.add("launch_maps", &made.mapped);
                    shown.add("roles", &made.roles);
                    program = made.roles;
                }
                Err(why) => {
                    shown.refuse("roles", &why.to_string());
                    match passes::to_pipeline(&program, &self.machine) {
                        Ok(made) => {
                            shown.add("pipeline", &made);
                            program = made;
                        }
                        Err(why) => shown.refuse("pipeline", &why.to_string()),
                    }
                }
            }
        }
        if self.machine.arch.is_gpu() {
            passes::run(&["layout"], &mut program, &self.machine).map_err(defect)?;
            shown.add("layout", &program);
        }
        Ok(shown.0)
    }
    /// The predicted time of a launch with these numbers, before the code is assembled.
    pub fn price(&self, launch: &LaunchValues) -> LaunchPrice {
        let code = Code { program: &self.program, placed: &self.placed, assembled: None };
        price(&code, launch, &self.machine)
    }
    /// Sentences about accesses that are out of bounds in this launch whatever memory holds: they have no mask.
    pub fn outside(&self, launch: &LaunchValues) -> Vec<String> {
        let told = |o: &Outside| {
            let name = &self.written.params[o.parameter].name;
            let done = if o.writes { "written" } else { "read" };
            let (element, elements) = (o.element, o.elements);
            let place = self.sites.get(o.inst.0 as usize).and_then(|site| self.unit.place(*site));
            let place = place.map_or(String::new(), |place| format!("\n{place}"));
            format!(
                "`{name}` is {done} at element {element}, and has {elements}: the access has no mask{place}\nhelp: give it \
                 a mask, such as `mask=offsets < n`"
            )
        };
        bounds::outside(&self.written, launch).iter().map(told).collect()
    }
}

/// A GPU's assembly of PTX, by NVIDIA's assembler and disassembler.
fn sass(ptx: &Ptx, arch: &str) -> Result<String, Error> {
    let missing = |what: &str| {
        Error::failed(
            format!("{what} is not found, which a GPU's assembly needs"),
            "install the CUDA toolkit or Triton, or look at the PTX",
        )
    };
    let ptxas = find_ptxas().ok_or_else(|| missing("ptxas"))?;
    let nvdisasm = find_nvdisasm(&ptxas).ok_or_else(|| missing("nvdisasm"))?;
    let code = cubin(&ptxas, &ptx.text, arch)?;
    let failed = |e: std::io::Error| Error::failed(format!("{}: {e}", nvdisasm.display()), "look at the PTX");
    let mut file = tempfile::NamedTempFile::new().map_err(failed)?;
    file.write_all(&code).map_err(failed)?;
    let out = Command::new(&nvdisasm).arg("-c").arg(file.path()).output().map_err(failed)?;
    match out.status.success() {
        true => Ok(String::from_utf8_lossy(&out.stdout).into_owned()),
        false => Err(failed(std::io::Error::other(String::from_utf8_lossy(&out.stderr).trim().to_string()))),
    }
}
