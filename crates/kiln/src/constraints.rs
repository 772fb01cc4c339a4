//! Constraints files (TOML): what must or must not be fused, which schedules kernels have; and a plan's kernels written
//! as such a file.
//!
//! ```toml
//! must_fuse = [["%67", "%68"]]                       # one kernel computes all of these
//! never_fuse = [["op:gelu_erf", "op:linear"]]        # no kernel computes both; a single name: not fused
//! keep_in_memory = ["encoder.layer.0.output"]        # always written to memory and read from there
//!
//! [[kernel]]                                         # exactly this kernel; `kiln plan pin` writes these
//! name = "gemm_gelu_erf_23"
//! stores = ["%68"]
//! reads = ["%64"]
//!
//! [[use_schedule]]                                   # how kernels are mapped onto a GPU
//! at = "op:softmax"
//! schedule = "split r 4096; bind warp 8"             # as `explain --kernel` names them
//!
//! [[use_form]]                                       # by which template it multiplies
//! at = "mlp.down_proj"
//! form = "gemm{wgmma, split}(a, b)"                  # as `explain --kernel` names them
//! ```
//! Names are the selectors of [`crate::select`], except names of kernels, since the kernels follow from the
//! constraints.
use crate::{Error, select::select};
use kiln_graph::{Graph, Op};
use kiln_machine::Arch;
use kiln_plan::{BufferId, Kernel, KernelKind, Plan, Schedule, Stage};
use kiln_rewrite::{FormOf, Group, Pinned};
use serde::Deserialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    path::Path,
};

/// The content of a constraints file.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Constraints {
    /// Values of each list are computed by one kernel.
    pub must_fuse: Vec<Vec<String>>,
    /// No kernel computes values of all names of a list.
    pub never_fuse: Vec<Vec<String>>,
    /// Values that are written to memory and read from there.
    pub keep_in_memory: Vec<String>,
    /// Kernels that the plan must contain exactly as given.
    pub kernel: Vec<KernelText>,
    /// Schedules of kernels.
    pub use_schedule: Vec<ScheduleText>,
    /// Forms of kernels that multiply.
    pub use_form: Vec<FormText>,
}
/// The form of the kernel that computes a value.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FormText {
    /// Selector of values.
    pub at: String,
    /// A form, such as `gemm{wgmma}(a, b)`.
    pub form: String,
}
/// The schedule of the kernel that computes a value.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScheduleText {
    /// Selector of values.
    pub at: String,
    /// Steps, such as `split r 4096; bind warp 8`.
    pub schedule: String,
}
/// A kernel that the plan must contain.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelText {
    /// For messages.
    #[serde(default)]
    pub name: String,
    /// Values that it writes.
    pub stores: Vec<String>,
    /// Values that it reads.
    #[serde(default)]
    pub reads: Vec<String>,
    /// Its schedule, if that is fixed, and the target that it is for: on others it is left out.
    #[serde(default)]
    pub schedule: Option<String>,
    /// See [`KernelText::schedule`].
    #[serde(default)]
    pub target: Option<String>,
}

impl Constraints {
    /// Reads a file; the error names the wrong line.
    pub fn read(path: &Path) -> Result<Constraints, Error> {
        let text = std::fs::read_to_string(path).map_err(|e| Error::reading(path, e))?;
        toml::from_str(&text).map_err(|e| {
            let line = e.span().map_or(1, |s| text[..s.start].matches('\n').count() + 1);
            Error::failed(
                format!("{} is not a constraints file; line {line}: {}", path.display(), e.message()),
                "it may have must_fuse, never_fuse (lists of lists of names), keep_in_memory (a list), \
                 [[use_schedule]], [[use_form]] and [[kernel]] tables",
            )
        })
    }
    /// Whether there are no constraints.
    pub fn is_empty(&self) -> bool {
        *self == Constraints::default()
    }
    /// Resolves names to values of `graph`.
    pub fn resolve(&self, graph: &Graph) -> Result<kiln_rewrite::Constraints, Error> {
        let group = |names: &[String]| -> Result<Group, Error> {
            let found = names.iter().map(|n| select(n, graph, None)).collect::<Result<Vec<_>, _>>()?;
            let quoted: Vec<String> = names.iter().map(|n| format!("`{n}`")).collect();
            Ok(Group { label: quoted.join(", "), values: found.into_iter().flatten().collect() })
        };
        let each =
            |names: &[String]| names.iter().map(|n| group(std::slice::from_ref(n))).collect::<Result<Vec<_>, _>>();
        Ok(kiln_rewrite::Constraints {
            must_fuse: self.must_fuse.iter().map(|names| group(names)).collect::<Result<_, _>>()?,
            never_fuse: self.never_fuse.iter().map(|names| each(names)).collect::<Result<_, _>>()?,
            keep_in_memory: each(&self.keep_in_memory)?,
            kernels: self.kernel.iter().map(|k| k.pinned(graph)).collect::<Result<_, _>>()?,
            forms: self.use_form.iter().map(|f| form_of(f, graph)).collect::<Result<_, _>>()?,
        })
    }
    /// Sets the schedules of a plan's kernels. Whether they fit is left to lowering.
    ///
    /// # Errors
    /// If a schedule cannot be read, or no kernel of its values takes one.
    pub fn schedule(&self, plan: &mut Plan, graph: &Graph, target: Arch) -> Result<(), Error> {
        let stored: BTreeMap<BufferId, String> =
            stored_names(plan).into_iter().map(|(b, name)| (b, name.to_string())).collect();
        let pins = self.kernel.iter().filter(|k| k.target.as_deref().is_none_or(|t| t == target.name()));
        for (pin, text) in pins.filter_map(|k| Some((k, k.schedule.as_ref()?))) {
            let of = |k: &&mut Kernel| k.outputs.first().and_then(|b| stored.get(b)) == pin.stores.first();
            let Some(k) = plan.kernels.iter_mut().find(of) else { continue };
            k.schedule = Some(schedule(text)?);
        }
        for u in &self.use_schedule {
            let schedule = schedule(&u.schedule)?;
            // A kernel's name means that kernel, not others that compute its values too; these may be values that rules
            // made.
            let named = plan.kernels.iter().any(|k| k.name == u.at);
            let wanted = if named { BTreeSet::new() } else { select(&u.at, graph, Some(plan))? };
            let names: Vec<String> = wanted.iter().map(|v| v.to_string()).collect();
            let computes = |k: &Kernel| match named {
                true => k.name == u.at,
                false => k.reason.origins.iter().any(|o| o.names.iter().any(|n| names.contains(n))),
            };
            let all: Vec<&mut Kernel> = plan.kernels.iter_mut().filter(|k| computes(k)).collect();
            // The value may be computed beside a matmul, and without one.
            let nests = all.iter().any(|k| takes_schedule(k) && !multiplies(k));
            let takes = |k: &&mut Kernel| match schedule.multiplies() {
                true if schedule.is_call() => multiplies(k),
                true if schedule.is_attention() => k.kind == KernelKind::Attention,
                true => matches!(k.kind, KernelKind::Gemm | KernelKind::Conv | KernelKind::Reduction),
                false => takes_schedule(k) && (!nests || !multiplies(k)),
            };
            let mut all: Vec<&mut Kernel> = all.into_iter().filter(takes).collect();
            if all.is_empty() {
                let of =
                    if schedule.multiplies() { "a kernel that multiplies" } else { "a kernel that takes a schedule" };
                return Err(Error::usage(
                    format!("use_schedule `{}` names no value of {of}", u.at),
                    "`kiln explain MODEL --kernel NAME` shows the schedule of a kernel; what libtorch runs has none",
                ));
            }
            all.iter_mut().for_each(|k| k.schedule = Some(schedule.clone()));
        }
        Ok(())
    }
    /// Whether `use_schedule` asks for this schedule. Pins repeat what a plan had, code or not.
    pub fn ask(&self, schedule: &Schedule) -> bool {
        self.use_schedule.iter().any(|u| u.schedule.parse::<Schedule>().is_ok_and(|s| s == *schedule))
    }
    /// Constraints that fix every kernel of a plan's run as it is.
    pub fn pin(plan: &Plan) -> Constraints {
        let target = kiln_machine::machine(&plan.machine).map(|m| m.arch);
        let names = stored_names(plan);
        let name = |b: &BufferId| names.get(b).map(|n| n.to_string());
        let kernel = |k: &kiln_plan::Kernel| KernelText {
            name: k.name.clone(),
            stores: k.outputs.iter().filter_map(name).collect(),
            reads: k.inputs.iter().filter_map(name).collect(),
            schedule: target.and(k.schedule.as_ref()).map(|s| s.to_string()),
            target: target.filter(|_| k.schedule.is_some()).map(|t| t.to_string()),
        };
        // A launch without neighbours is a kernel of its own wherever these have kernels.
        let run = plan.kernels.iter().filter(|k| k.stage == Stage::Run && !is_only_launch(k));
        Constraints { kernel: run.map(kernel).collect(), ..Constraints::default() }
    }
    /// The TOML text, which [`Constraints::read`] reads.
    pub fn text(&self) -> String {
        let quoted = |s: &String| toml::Value::from(s.as_str()).to_string();
        let list = |l: &[String]| format!("[{}]", l.iter().map(quoted).collect::<Vec<_>>().join(", "));
        let lists = |l: &[Vec<String>]| format!("[{}]", l.iter().map(|l| list(l)).collect::<Vec<_>>().join(", "));
        let mut t = String::new();
        for (key, value) in [("must_fuse", &self.must_fuse), ("never_fuse", &self.never_fuse)] {
            if !value.is_empty() {
                let _ = writeln!(t, "{key} = {}", lists(value));
            }
        }
        if !self.keep_in_memory.is_empty() {
            let _ = writeln!(t, "keep_in_memory = {}", list(&self.keep_in_memory));
        }
        for k in &self.kernel {
            let (name, stores, reads) = (quoted(&k.name), list(&k.stores), list(&k.reads));
            let _ = writeln!(t, "\n[[kernel]]\nname = {name}\nstores = {stores}\nreads = {reads}");
            if let (Some(schedule), Some(target)) = (&k.schedule, &k.target) {
                let _ = writeln!(t, "schedule = {}\ntarget = {}", quoted(schedule), quoted(target));
            }
        }
        for u in &self.use_schedule {
            let _ = writeln!(t, "\n[[use_schedule]]\nat = {}\nschedule = {}", quoted(&u.at), quoted(&u.schedule));
        }
        for f in &self.use_form {
            let _ = writeln!(t, "\n[[use_form]]\nat = {}\nform = {}", quoted(&f.at), quoted(&f.form));
        }
        t
    }
}

/// Whether a kernel has nothing but a launch.
fn is_only_launch(k: &Kernel) -> bool {
    let is_part = |op: &Op| matches!(op, Op::Input(_) | Op::Launch(_) | Op::Result(_));
    k.kind == KernelKind::Launch && k.body.values().all(|v| is_part(k.body.op(v)))
}

fn form_of(f: &FormText, graph: &Graph) -> Result<FormOf, Error> {
    let form = f.form.parse().map_err(|why: String| {
        Error::usage(format!("use_form: {why}"), "`kiln explain MODEL --kernel NAME` shows the forms of a kernel")
    })?;
    let group = Group { label: format!("`{}`", f.at), values: select(&f.at, graph, None)? };
    Ok(FormOf { group, names: BTreeSet::new(), form })
}

fn schedule(text: &str) -> Result<Schedule, Error> {
    let help = "`kiln explain MODEL --kernel NAME` shows which schedule a kernel has, and others that fit it";
    text.parse().map_err(|why: String| Error::usage(why, help))
}

/// Whether a kernel has a schedule.
pub fn takes_schedule(k: &Kernel) -> bool {
    !matches!(k.kind, KernelKind::Fallback | KernelKind::Launch)
}
fn multiplies(k: &Kernel) -> bool {
    matches!(k.kind, KernelKind::Gemm | KernelKind::Conv | KernelKind::Attention)
}

impl KernelText {
    fn pinned(&self, graph: &Graph) -> Result<Pinned, Error> {
        // Values of the graph are checked here, where similar names can be suggested; values made by rules are checked
        // by the planner.
        for v in self.stores.iter().chain(&self.reads).filter(|n| n.starts_with('%')) {
            select(v, graph, None)?;
        }
        let first = self.stores.first().cloned().unwrap_or_default();
        let name = if self.name.is_empty() { first } else { self.name.clone() };
        Ok(Pinned { name, stores: self.stores.clone(), reads: self.reads.clone() })
    }
}

/// The unique names of the values that kernels write to buffers.
pub fn stored_names(plan: &Plan) -> BTreeMap<BufferId, &str> {
    let mut names = BTreeMap::new();
    for k in &plan.kernels {
        for o in &k.reason.origins {
            let stored = k.outputs.iter().zip(&k.body.outputs).filter(|(_, v)| **v == o.value);
            names.extend(stored.filter_map(|(b, _)| Some((*b, o.names.first()?.as_str()))));
        }
    }
    names
}
