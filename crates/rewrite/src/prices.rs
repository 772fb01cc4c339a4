//! What kernels take by their cheapest schedules. The planner asks for it where the roofline cannot decide: by which
//! form a matmul, a convolution or attention is computed, and between programs that differ in these.
//!
//! The roofline ([`crate::cost`]) takes constant time and needs no schedule, so it orders the hundreds of regions that
//! are merged. A price needs a kernel's body and the schedules of each of its forms. What answers is lowering, which
//! takes the schedule of that price: there is one price, and the form is chosen by it once.
use kiln_graph::Type;
use kiln_graph::launch::LaunchOp;
use kiln_plan::form::ProgramFamily;
use kiln_plan::{Form, Kernel, LaunchAccess};

/// A kernel and the forms that rules give it.
pub struct Candidate {
    /// Without a form or a schedule.
    pub kernel: Kernel,
    /// None for a kernel that does not multiply.
    pub forms: Vec<Form>,
}

impl Candidate {
    /// Its forms, if it multiplies.
    pub fn allowed(&self) -> Option<&[Form]> {
        Some(&self.forms[..]).filter(|forms| !forms.is_empty())
    }
}

/// What a kernel takes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Priced {
    /// Microseconds of all its launches.
    pub us: f64,
    /// Of a kernel that multiplies: the programs that have this price.
    pub family: Option<ProgramFamily>,
}

/// What prices kernels, and chooses their forms by the same prices.
pub trait Prices {
    /// For each candidate, the price of its cheapest schedule in one of its forms; `None` where the model has none.
    fn price(&self, candidates: &[Candidate]) -> Vec<Option<Priced>>;
    /// The form of that schedule, of those that fit; `None` where none fits, or the kernel does not multiply.
    fn choose(&self, candidates: &[Candidate]) -> Vec<Option<Form>>;
}

/// What knows the accesses of launches.
pub trait Launches {
    /// Accesses of a launch to operands of these types.
    fn access(&self, launch: &LaunchOp, operands: &[&Type]) -> LaunchAccess;
}

/// What later stages say of kernels, for a target.
#[derive(Clone, Copy, Default)]
pub struct TargetInfo<'a> {
    /// None where the model has no prices.
    pub prices: Option<&'a dyn Prices>,
    /// Without it nothing is fused with a launch.
    pub launches: Option<&'a dyn Launches>,
}
