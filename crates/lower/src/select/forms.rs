//! Forms of a kernel with their prices, which `explain` lists.
use crate::dispatch::{Lowered, lower_scheduled, with_contract};
use crate::error::{LowerError, unsupported_as_none};
use crate::select::allowed::form_of;
use crate::select::candidates::{MAX_TRIES_OF_FORM, schedules};
use crate::select::propose;
use kiln_machine::Machine;
use kiln_plan::exec::Work;
use kiln_plan::form::Form;
use kiln_plan::matmul_schedule::MatmulSchedule;
use kiln_plan::{Kernel, Schedule};

/// Where a form computes what comes after the matmul, the convolution or attention.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Epilogue {
    /// In its tiles, or along the rows that it sums.
    Fused,
    /// By the launch that sums slices of K.
    SumOfSlices,
    /// By the library.
    Library,
    /// By a launch of its own, from memory.
    Launch,
}

/// A form of a kernel that multiplies, by its cheapest schedule that fits.
#[derive(Clone, Debug)]
pub struct PricedForm {
    /// The template.
    pub form: Form,
    /// Its cheapest schedule that fits.
    pub schedule: Schedule,
    /// Microseconds that it is predicted to take.
    pub us: f64,
    /// Where what comes after is computed.
    pub epilogue: Epilogue,
}

/// The forms of a kernel on a GPU, the cheapest first. Empty for a kernel that does not multiply.
pub fn forms(kernel: &Kernel, machine: &Machine) -> Result<Vec<PricedForm>, LowerError> {
    let kernel = &Kernel { form: None, schedule: None, ..kernel.clone() };
    let mut all: Vec<PricedForm> = vec![];
    let mut refused: Vec<(Form, usize)> = vec![];
    for (schedule, price) in schedules(kernel, machine)? {
        let Some(form) = form_of(kernel, machine, &schedule) else { continue };
        let tries = refused.iter().find(|r| r.0 == form).map_or(0, |r| r.1);
        if tries >= MAX_TRIES_OF_FORM || all.iter().any(|known| known.form == form) {
            continue;
        }
        let by = Kernel { schedule: Some(schedule.clone()), ..kernel.clone() };
        let lowered = lower_scheduled(&by, &with_contract(machine, &by), propose::schedules_of);
        if let Some(lowered) = unsupported_as_none(lowered)? {
            all.push(PricedForm { form, schedule, us: price.us, epilogue: epilogue(&lowered) });
        } else {
            match refused.iter_mut().find(|r| r.0 == form) {
                Some(known) => known.1 += 1,
                None => refused.push((form, 1)),
            }
        }
    }
    all.sort_by(|a, b| a.us.total_cmp(&b.us));
    Ok(all)
}

/// Where the steps of a kernel compute what comes after the matmul.
fn epilogue(lowered: &Lowered) -> Epilogue {
    match lowered.matmul_schedule {
        Some(MatmulSchedule::Matmul(p)) if p.form.separate_epilogue => Epilogue::Launch,
        Some(MatmulSchedule::Matmul(p)) if p.form.slices > 1 => Epilogue::SumOfSlices,
        Some(MatmulSchedule::Library) => match lowered.steps.steps.last() {
            Some(Work::Block { .. }) => Epilogue::Launch,
            _ => Epilogue::Library,
        },
        _ => Epilogue::Fused,
    }
}
