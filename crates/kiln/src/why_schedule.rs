//! Answers why a kernel does not have a schedule (`kiln explain --why-not KERNEL SCHEDULE`): the step that does not
//! fit, or the prices of both, term by term, and what decides between them.
use crate::explain::{ScheduleReport, wrapped};
use crate::{CompileOptions, Error, Model, compile};
use kiln_plan::{Plan, Schedule};
use serde::Serialize;

/// The answer about a kernel and a schedule.
#[derive(Clone, Debug, Serialize)]
pub struct Answer {
    /// The kernel's name.
    pub kernel: String,
    /// Its schedule, if that has a price.
    pub chosen: Option<ScheduleReport>,
    /// The schedule that was asked about, if it fits.
    pub asked: Option<ScheduleReport>,
    /// Why it does not fit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// The schedule that a question names, if it names one and not a part of a model.
pub fn named(text: &str) -> Option<Schedule> {
    text.parse().ok().filter(|s: &Schedule| !s.steps.is_empty())
}

/// Answers about the kernel of this name.
///
/// # Errors
/// The plan has no kernel of that name, is for the host, or cannot be made.
pub fn ask(model: &Model, options: &CompileOptions, kernel: &str, schedule: &Schedule) -> Result<Answer, Error> {
    let plan = compile::plan(model, options)?;
    let Some(k) = plan.kernels.iter().find(|k| k.name == kernel) else {
        return Err(no_kernel(model, &plan, kernel));
    };
    let machine = options.machine();
    if !machine.arch.is_gpu() {
        return Err(Error::usage("schedules of the host have no prices", "ask with --target, for a GPU"));
    }
    let priced = |s: &Schedule| kiln_lower::priced(k, machine, s);
    let own = k.schedule.as_ref().and_then(|s| Some((s, priced(s).ok()?)));
    let asked = priced(schedule);
    Ok(Answer {
        kernel: kernel.into(),
        chosen: own.map(|(s, price)| ScheduleReport::new(s, price.as_ref())),
        asked: asked.as_ref().ok().map(|price| ScheduleReport::new(schedule, price.as_ref())),
        refused: asked.err().map(kiln_lower::LowerError::why),
    })
}

/// The error for a name that no kernel of a plan has.
pub(crate) fn no_kernel(model: &Model, plan: &Plan, name: &str) -> Error {
    let near = crate::select::suggest(name, plan.kernels.iter().map(|k| k.name.as_str()));
    let help = near.unwrap_or_else(|| "`kiln explain MODEL --all` lists the kernels".to_string());
    Error::usage(format!("{} has no kernel `{name}`", model.graph.name), help)
}

impl Answer {
    /// The text of the answer, wrapped to `width` columns.
    pub fn text(&self, width: usize) -> String {
        let mut t = String::new();
        let both = [(&self.chosen, "chosen      "), (&self.asked, "asked       ")];
        for (report, label) in both.into_iter().filter_map(|(r, label)| Some((r.as_ref()?, label))) {
            t += &wrapped(label, &report.text(), width);
            t += &report.terms().map_or(String::new(), |terms| wrapped("            ", &terms, width));
        }
        if let Some(why) = &self.refused {
            return t + &wrapped("asked       ", why, width);
        }
        let (Some(chosen), Some(asked)) = (&self.chosen, &self.asked) else { return t };
        let parsed = |text: &str| text.parse::<Schedule>().unwrap_or_default();
        let (own, other) = (parsed(&chosen.schedule), parsed(&asked.schedule));
        // Launches that it does not name have the same schedules.
        let same = own.main() == other.main() && other.launches().all(|l| own.launches().any(|o| o == l));
        let kept = if same {
            "it is the schedule of the kernel"
        } else if chosen.us.is_none() || asked.us.is_none() {
            "the cost model has no time for one of them"
        } else if chosen.us <= asked.us {
            "it is predicted to be slower"
        } else if other.multiplies() {
            "of prices within 2 per cent the schedule is taken that leaves the fewest multiprocessors idle, then the \
             larger tile; sums along rows replace tiles of a matmul that are priced 1.5 times as high, or of at most 4 \
             rows or columns"
        } else {
            "of prices within 2 per cent the schedule is taken whose warps have the fewest elements, within 3 that of \
             the fewest warps where columns are only reduced, or it is not among those that are proposed"
        };
        let measure = if chosen.us > asked.us { "; `kiln tune` measures both, `[[use_schedule]]` sets it" } else { "" };
        t + &wrapped("why         ", &format!("{kept}{measure}"), width)
    }
}
