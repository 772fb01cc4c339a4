//! The steps that a kernel is lowered to, while they are put together.
use crate::multiply::{Forms, Multiply};
use kiln_block::Kernel;
use kiln_graph::Type;
use kiln_plan::Schedule;
use kiln_plan::exec::Work;

/// Steps with the scratch they use.
#[derive(Clone, Debug, Default)]
pub struct Emitted {
    pub scratch: Vec<Type>,
    pub steps: Vec<Work<Kernel>>,
    /// The schedule of the matmul or attention among them.
    pub made: Option<Multiply>,
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
        self.made = self.made.or(rest.made);
        self.launches.extend(rest.launches);
        self
    }
    /// One step.
    pub fn step(step: Work<Kernel>) -> Emitted {
        Emitted { steps: vec![step], ..Emitted::default() }
    }
    /// The same, of a matmul in other forms.
    pub fn in_forms(mut self, change: impl FnOnce(&mut Forms)) -> Emitted {
        if let Some(Multiply::Matmul(p)) = &mut self.made {
            change(&mut p.forms);
        }
        self
    }
}
