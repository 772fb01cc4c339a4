//! Answers why a kernel does not multiply by a form (`kiln explain --why-not KERNEL FORM`): plans again with that form,
//! and compares both plans.
use crate::explain::wrapped;
use crate::why::{Overturned, overturn};
use crate::{CompileOptions, Error, Model, compile};
use kiln_plan::Form;
use kiln_rewrite::{FormOf, Group};
use serde::Serialize;

/// A form of a kernel with its cheapest schedule.
#[derive(Clone, Debug, Serialize)]
pub struct FormPrice {
    /// As constraints name it.
    pub form: String,
    /// Its cheapest schedule that fits.
    pub schedule: String,
    /// Predicted microseconds of the kernel.
    pub us: f64,
}

/// The answer about a kernel and a form.
#[derive(Clone, Debug, Serialize)]
pub struct Answer {
    /// The kernel's name.
    pub kernel: String,
    /// The form that it has.
    pub chosen: Option<FormPrice>,
    /// The form that was asked about, if a schedule of it fits the kernel.
    pub asked: Option<FormPrice>,
    /// The plan under that form.
    pub plan: Overturned,
    /// Predicted time of the plan as it is.
    pub predicted_us: f64,
}

/// The form that a question names, if it names one.
pub fn named(text: &str) -> Option<Form> {
    text.parse().ok()
}

/// Answers about the kernel of this name.
///
/// # Errors
/// The plan has no kernel of that name, is for the host, or cannot be made.
pub fn ask(model: &Model, options: &CompileOptions, kernel: &str, form: Form) -> Result<Answer, Error> {
    let plan = compile::plan(model, options)?;
    let Some(k) = plan.kernels.iter().find(|k| k.name == kernel) else {
        return Err(crate::why_schedule::no_kernel(model, &plan, kernel));
    };
    let machine = options.machine();
    if !machine.arch.is_gpu() {
        return Err(Error::usage("the host has one program for each matmul", "ask with --target, for a GPU"));
    }
    let priced = kiln_lower::forms(k, machine).map_err(compile::not_lowered)?;
    let price = |form: Option<Form>| priced.iter().find(|p| Some(p.form) == form).map(FormPrice::new);
    let mut forced = options.constraints.resolve(&model.graph)?;
    let group = Group { label: format!("`{kernel}`"), ..Group::default() };
    let names = k.reason.origins.iter().filter_map(|o| o.names.first().cloned()).collect();
    forced.forms.push(FormOf { group, names, form });
    Ok(Answer {
        kernel: kernel.into(),
        chosen: price(k.form),
        asked: price(Some(form)),
        plan: overturn(model, options, &plan, &[k], &forced)?,
        predicted_us: plan.predicted_us(),
    })
}

impl FormPrice {
    pub(crate) fn new(p: &kiln_lower::PricedForm) -> FormPrice {
        let us = (p.us * 100.0).round() / 100.0;
        FormPrice { form: p.form.to_string(), schedule: p.schedule.to_string(), us }
    }
}

impl Answer {
    /// The text of the answer, wrapped to `width` columns.
    pub fn text(&self, width: usize) -> String {
        let mut t = String::new();
        for (label, price) in [("chosen      ", &self.chosen), ("asked       ", &self.asked)] {
            if let Some(p) = price {
                t += &wrapped(label, &format!("{:.2} us by {}: {}", p.us, p.form, p.schedule), width);
            }
        }
        if let Some(why) = &self.plan.forbidden {
            return t + &wrapped("asked       ", why, width);
        }
        let Some(us) = self.plan.predicted_us else { return t };
        let before = self.predicted_us;
        let change = 100.0 * (us - before) / before.max(1e-12);
        t += &wrapped(
            "plan        ",
            &format!("{us:.2} us with that form, {before:.2} us as it is ({change:+.1} %)"),
            width,
        );
        for (label, kernels) in [("gone        ", &self.plan.gone), ("new         ", &self.plan.new)] {
            let known = |us: Option<f64>| us.map_or("time unknown".to_string(), |us| format!("{us:.2} us"));
            let all: Vec<String> = kernels.iter().map(|(name, us)| format!("{name} {}", known(*us))).collect();
            if !all.is_empty() {
                t += &wrapped(label, &all.join(", "), width);
            }
        }
        let same = self.chosen.as_ref().map(|c| &c.form) == self.asked.as_ref().map(|a| &a.form);
        let why = match (&self.chosen, &self.asked) {
            _ if same => "it is the form of the kernel",
            (Some(chosen), Some(asked)) if chosen.us <= asked.us => "it is predicted to be slower",
            (Some(_), Some(_)) => {
                "prices within 2 per cent count as equal, and sums along rows replace tiles of at most 4 rows or \
                 columns, or those priced 1.5 times as high; `[[use_form]]` sets it"
            }
            _ => "no schedule of it fits the kernel as it is",
        };
        t + &wrapped("why         ", why, width)
    }
}
