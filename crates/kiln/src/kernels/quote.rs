//! What tuning asks about a configuration before anything is generated for the device: its price, its program, and
//! which tensors its runs change.
use super::footprint::Code;
use super::price::{LaunchPrice, price};
use super::{Failure, LaunchValues, Options, Place, Signature, Unit, canonical, checked, print, without_assembly};
use crate::digest::digest;
use kiln_block::analysis::Writes;
use kiln_block::{BlockProgram, Op, Type, Value, passes};
use kiln_machine::Machine;
use kiln_runtime::Device;
use serde::Serialize;

/// Answers about a configuration.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Quote {
    /// Predicted time of the launch.
    pub price: LaunchPrice,
    /// Of the program that code is generated from: configurations with the same one are the same.
    pub code: String,
    /// The arguments, by their numbers, that a run writes.
    pub written: Vec<usize>,
    /// Those of them that it reads, too: each further run starts from another state.
    pub changed: Vec<usize>,
}

/// The front half of a kernel, compiled: what a quote is made from.
pub struct Front {
    program: BlockProgram,
    placed: BlockProgram,
    parameters: Vec<Vec<usize>>,
}

impl Quote {
    /// Compiles the front half of a kernel.
    ///
    /// # Errors
    /// As [`Kernel::compile`](super::Kernel::compile), as far as the source goes.
    pub fn front(unit: &Unit, signature: &Signature, options: &Options, place: &Place) -> Result<Front, Failure> {
        let mut compiled = checked(unit, signature, options)?;
        if !place.machine().arch.is_gpu() {
            without_assembly(unit, &mut compiled)?;
        }
        let program = canonical(&compiled.program)?.0;
        let placed = placed(&program, place.machine());
        Ok(Front { program, placed, parameters: compiled.parameters })
    }
}

impl Front {
    /// For each parameter of the program the argument that it is, as [`Stages::parameters`](super::Stages::parameters).
    pub fn parameters(&self) -> &[Vec<usize>] {
        &self.parameters
    }
    /// The quote of a launch with these numbers.
    pub fn quote(&self, launch: &LaunchValues, place: &Place) -> Quote {
        let code = Code { program: &self.program, placed: &self.placed, assembled: None };
        let price = price(&code, launch, place.machine());
        let Accesses { written, changed } = Accesses::of(&self.program);
        let code = digest(print(&self.placed).as_bytes());
        Quote { price, code, written: self.arguments(&written), changed: self.arguments(&changed) }
    }
    /// The arguments that parameters are parts of.
    fn arguments(&self, parameters: &[usize]) -> Vec<usize> {
        let mut all: Vec<usize> = parameters.iter().filter_map(|n| self.parameters.get(*n)?.first().copied()).collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

/// The program that code is generated from, unless that needs more of a multiprocessor than there is.
fn placed(program: &BlockProgram, machine: &Machine) -> BlockProgram {
    if !machine.arch.is_gpu() || !passes::multiplies(program) {
        return program.clone();
    }
    let roles = passes::to_warpgroups(program, machine).map(|made| made.roles);
    roles.or_else(|_| passes::to_pipeline(program, machine)).unwrap_or_else(|_| program.clone())
}

/// Parameters whose memory a program writes, and those of them that it reads. What it only writes is the same after
/// each run.
struct Accesses {
    written: Vec<usize>,
    changed: Vec<usize>,
}

impl Accesses {
    fn of(program: &BlockProgram) -> Accesses {
        let writes = Writes::of(program);
        let Descriptors { loaded, stored } = Descriptors::of(program);
        let mut accesses = Accesses { written: vec![], changed: vec![] };
        for (n, param) in program.params.iter().enumerate() {
            if !matches!(program.ty(param.value), Type::Ptr { .. } | Type::Desc { .. }) {
                continue;
            }
            if writes.through(param.value) || stored.contains(&n) || writes.anywhere() {
                accesses.written.push(n);
                let is_read = writes.reads(param.value) || loaded.contains(&n) || writes.anywhere();
                if is_read || writes.updates(param.value) {
                    accesses.changed.push(n);
                }
            }
        }
        accesses
    }
}

/// The parameters that tiles are loaded from and stored to by descriptors: those of tensors where the launcher makes
/// the descriptor.
struct Descriptors {
    loaded: Vec<usize>,
    stored: Vec<usize>,
}

impl Descriptors {
    fn of(program: &BlockProgram) -> Descriptors {
        let parameter = |v: &Value| {
            let n = program.params.iter().position(|p| p.value == *v)?;
            Some(program.params[n].launch_array.as_ref().map_or(n, |array| array.base))
        };
        let mut found = Descriptors { loaded: vec![], stored: vec![] };
        program.walk(&mut |_, data| match data.op {
            Op::TileLoad => found.loaded.extend(data.args.first().and_then(parameter)),
            Op::TileStore => found.stored.extend(data.args.first().and_then(parameter)),
            _ => {}
        });
        found
    }
}

impl Place {
    /// The device as its driver or the system names it, with its target.
    pub fn tuned_machine(&self) -> kiln_tune::Machine {
        let target = self.machine().arch.name();
        match &self.device {
            Device::Host(_) => {
                let target = format!("{target} {}", self.host_level());
                kiln_tune::Machine { device: crate::doctor::processor_name(), target }
            }
            Device::Cuda(device) => kiln_tune::Machine { device: device.info().name.clone(), target: target.into() },
        }
    }
    /// The instruction sets that code for the host uses.
    fn host_level(&self) -> &'static str {
        kiln_cpu::Level::chosen().map_or("unknown", kiln_cpu::Level::name)
    }
}
