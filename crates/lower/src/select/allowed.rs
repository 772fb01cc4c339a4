//! The forms that a choice is among.
use crate::error::LowerError;
use kiln_machine::Machine;
use kiln_plan::form::{Form, GemmTemplate};
use kiln_plan::{Kernel, Schedule};

/// The form that a schedule gives a kernel on this machine; `None` on the host, which has one program for each matmul.
pub fn form_of(kernel: &Kernel, machine: &Machine, schedule: &Schedule) -> Option<Form> {
    if machine.arch.is_gpu() { kernel.form_of(schedule) } else { None }
}

/// The forms that a choice is among; all of them if none are named.
#[derive(Clone, Copy, Default)]
pub struct FormsAllowed<'a>(pub Option<&'a [Form]>);

impl<'a> FormsAllowed<'a> {
    /// These forms; the one that the plan states, if it states one.
    pub fn new(kernel: &'a Kernel, forms: Option<&'a [Form]>) -> FormsAllowed<'a> {
        FormsAllowed(kernel.form.as_ref().map(std::slice::from_ref).or(forms))
    }
    pub fn contain(self, form: &Form) -> bool {
        self.0.is_none_or(|all| all.contains(form))
    }
    /// Whether sums along rows are among them.
    pub fn rows(self) -> bool {
        self.0.is_none_or(|all| all.iter().any(is_by_rows))
    }
    /// Refuses nests where only other forms are allowed.
    pub fn nests(self, kernel: &Kernel) -> Result<(), LowerError> {
        match self.0 {
            Some([form]) if !self.rows() => {
                let why = format!(
                    "no schedule of the form `{form}` fits it; `kiln explain MODEL --kernel NAME` lists its forms"
                );
                Err(LowerError::Unsupported { kernel: kernel.name.clone(), why })
            }
            _ => Ok(()),
        }
    }
}

/// Whether a form is lowered as nests.
pub fn is_by_rows(form: &Form) -> bool {
    matches!(form, Form::Gemm(gemm) if gemm.template == GemmTemplate::Rows)
}
