//! The steps that a kernel is lowered to, while they are put together.
use kiln_block::BlockProgram;
use kiln_graph::Type;
use kiln_plan::Schedule;
use kiln_plan::exec::Work;
use kiln_plan::matmul_schedule::{MatmulForm, MatmulSchedule};

/// Steps with the scratch they use.
#[derive(Clone, Debug, Default)]
pub struct Emitted {
    pub scratch: Vec<Type>,
    pub steps: Vec<Work<BlockProgram>>,
    /// The schedule of the matmul or attention among them.
    pub matmul_schedule: Option<MatmulSchedule>,
    /// The nests among them that have schedules of their own.
    pub launches: Vec<Launched>,
}

/// A nest that is one of several launches of a kernel.
#[derive(Clone, Debug)]
pub struct Launched {
    /// What the plan calls it.
    pub name: String,
    /// Its schedule, then others that fit it, the cheapest first; one that the plan states comes without others.
    pub schedules: Vec<Schedule>,
}

impl Emitted {
    /// These steps, then those of `rest`, whose scratch buffers are numbered after these.
    pub fn then(mut self, rest: Emitted) -> Emitted {
        self.scratch.extend(rest.scratch);
        self.steps.extend(rest.steps);
        self.matmul_schedule = self.matmul_schedule.or(rest.matmul_schedule);
        self.launches.extend(rest.launches);
        self
    }
    /// One step.
    pub fn step(step: Work<BlockProgram>) -> Emitted {
        Emitted { steps: vec![step], ..Emitted::default() }
    }
    /// The same, of a matmul in other forms.
    pub fn in_form(mut self, change: impl FnOnce(&mut MatmulForm)) -> Emitted {
        if let Some(MatmulSchedule::Matmul(p)) = &mut self.matmul_schedule {
            change(&mut p.form);
        }
        self
    }
}

/// Limits the registers of a thread.
pub fn limit_registers(step: &mut Work<kiln_block::BlockProgram>, limit: Option<usize>) {
    if let Work::Block { code, .. } = step {
        code.registers = limit;
    }
}
