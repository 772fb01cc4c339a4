//! Snapshots of plans: the text to compare, and the comparison for a folder of models.
//!
//! The text is the plan's text form, which for a given machine description is the same wherever it is made. In a test
//! of your own:
//!
//! ```no_run
//! # fn main() -> Result<(), kiln::Error> {
//! let plan = kiln::snapshot::plan_text("graphs/softmax.kiln".as_ref(), &[], "h200")?;
//! // insta::assert_snapshot!(plan);
//! # Ok(()) }
//! ```
use crate::{CompileOptions, Error, Model, compile, diff, io};
use kiln_graph::Tensor;
use kiln_plan::Plan;
use similar::TextDiff;
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

/// Options to compile for a built-in machine description.
pub fn options(machine: &str) -> Result<CompileOptions, Error> {
    let found = kiln_machine::machine(machine).ok_or_else(|| {
        let names: Vec<&str> = kiln_machine::names().collect();
        Error::usage(format!("there is no machine `{machine}`"), format!("the machines are {}", names.join(", ")))
    })?;
    let own = found != found.arch.machine();
    Ok(CompileOptions { target: found.arch, machine: own.then(|| found.clone()), ..CompileOptions::default() })
}

/// The plan of a model for a machine, as text.
pub fn plan_text(path: &Path, inputs: &[Tensor], machine: &str) -> Result<String, Error> {
    plan_text_of(&Model::open(path, inputs)?, machine)
}
/// The same of a model that is open.
pub fn plan_text_of(model: &Model, machine: &str) -> Result<String, Error> {
    Ok(text(&compile::plan(model, &options(machine)?)?))
}
/// A plan as text.
pub fn text(plan: &Plan) -> String {
    kiln_plan::text::print(plan)
}

/// Result of comparing one model's plan with its snapshot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum State {
    /// The plan equals the snapshot.
    Same,
    /// There is no snapshot yet.
    Missing,
    /// There is a snapshot, but no model of that name any more.
    Stale,
    /// The plan differs; how, as text.
    Changed(String),
    /// The model was not planned since its inputs are missing; the reason.
    Skipped(String),
    /// Planning failed; the error.
    Failed(String),
}
impl State {
    /// Whether the state needs no attention.
    pub fn is_fine(&self) -> bool {
        matches!(self, State::Same | State::Skipped(_))
    }
}
/// A model of a folder and its plan's text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Snapshot {
    /// Name of the model's file, without extension.
    pub name: String,
    /// The snapshot's file.
    pub file: PathBuf,
    /// Result of the comparison.
    pub state: State,
}

/// A model of a folder, not yet opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Name of the file, without extension.
    pub name: String,
    /// Path of the file.
    pub path: PathBuf,
}
impl Entry {
    /// Opens the model. An archive is specialised to the inputs in the file next to it; a `.pt2` program without such a
    /// file to the sizes at export.
    pub fn open(&self) -> Result<Model, Error> {
        let beside = self.path.with_extension("safetensors");
        let needed = has_extension(&self.path, "pt") || has_extension(&self.path, "pt2") && beside.exists();
        Model::open(&self.path, &if needed { io::read(&beside)? } else { vec![] })
    }
}

fn has_extension(path: &Path, wanted: &str) -> bool {
    path.extension().is_some_and(|e| e == wanted)
}

/// Models in a folder, sorted by name: text graphs, programs of torch.export (`NAME.pt2`), and archives of TorchScript
/// with their inputs (`NAME.pt` and `NAME.safetensors`).
pub fn models(folder: &Path) -> Result<Vec<Entry>, Error> {
    Ok(found(folder)?.0)
}
/// The same, and archives without inputs.
fn found(folder: &Path) -> Result<(Vec<Entry>, Vec<Entry>), Error> {
    let entries = std::fs::read_dir(folder).map_err(|e| Error::reading(folder, e))?;
    let mut paths: Vec<PathBuf> = entries.filter_map(|e| Some(e.ok()?.path())).collect();
    paths.retain(|p| ["kiln", "pt", "pt2"].iter().any(|e| has_extension(p, e)));
    paths.sort();
    let (skipped, paths): (Vec<PathBuf>, Vec<PathBuf>) =
        paths.into_iter().partition(|p| has_extension(p, "pt") && !p.with_extension("safetensors").exists());
    if paths.is_empty() && skipped.is_empty() {
        return Err(Error::failed(
            format!("{} holds no models", folder.display()),
            "put text graphs (NAME.kiln), programs of torch.export (NAME.pt2), or archives with their inputs (NAME.pt \
             and NAME.safetensors) there",
        ));
    }
    let name = |p: &PathBuf| p.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let entries = |paths: Vec<PathBuf>| paths.into_iter().map(|path| Entry { name: name(&path), path }).collect();
    Ok((entries(paths), entries(skipped)))
}

/// Whether a model's plan is shown to compute its graph.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Proved {
    /// Name of the model's file, without extension.
    pub name: String,
    /// What was checked, or why it is not shown.
    pub found: Result<kiln_proof_check::Checked, String>,
}

/// Whether the plan of each model of a folder is shown to compute its graph, by a checker that shares no code with the
/// rewriter: what was checked, or why not.
///
/// # Errors
/// If there is no such machine, or no model in the folder.
pub fn proofs(folder: &Path, machine: &str) -> Result<Vec<Proved>, Error> {
    let options = options(machine)?;
    let one = |entry: &Entry| -> Result<kiln_proof_check::Checked, String> {
        let model = entry.open().map_err(|e| e.to_string())?;
        let certificate = crate::proof::certificate(&model, &options).map_err(|e| e.to_string())?;
        let text = serde_json::to_string(&certificate).map_err(|e| e.to_string())?;
        kiln_proof_check::check(&text).map_err(|e| e.to_string())
    };
    Ok(models(folder)?.iter().map(|entry| Proved { name: entry.name.clone(), found: one(entry) }).collect())
}

/// Compares the plans of a folder's models with the snapshots in `folder/plans`; updates these if `bless`. If a model
/// cannot be planned, the others are still compared, and its snapshot stays.
pub fn folder(folder: &Path, machine: &str, bless: bool) -> Result<Vec<Snapshot>, Error> {
    options(machine)?;
    let plans = folder.join("plans");
    let (mut out, mut known) = (vec![], BTreeSet::new());
    let (entries, skipped) = found(folder)?;
    let file = |name: &str| plans.join(format!("{name}.plan"));
    for Entry { name, .. } in skipped {
        let file = file(&name);
        known.insert(file.clone());
        let why = format!("{name}.safetensors, which gives its inputs, is missing");
        out.push(Snapshot { name, file, state: State::Skipped(why) });
    }
    for entry in entries {
        let (name, file) = (entry.name.clone(), file(&entry.name));
        known.insert(file.clone());
        let text = match entry.open().and_then(|model| plan_text_of(&model, machine)) {
            Ok(text) => text,
            Err(e) => {
                out.push(Snapshot { name, file, state: State::Failed(e.to_string()) });
                continue;
            }
        };
        let state = match std::fs::read_to_string(&file) {
            Ok(old) if old == text => State::Same,
            Ok(old) => State::Changed(readable(&old, &text)),
            Err(_) => State::Missing,
        };
        if bless && state != State::Same {
            std::fs::create_dir_all(&plans).map_err(|e| Error::writing(&plans, e))?;
            io::write_whole(&file, text.as_bytes())?;
        }
        out.push(Snapshot { name, file, state });
    }
    let old = std::fs::read_dir(&plans).into_iter().flatten().filter_map(|e| Some(e.ok()?.path()));
    let mut stale: Vec<PathBuf> =
        old.filter(|p| p.extension().is_some_and(|e| e == "plan") && !known.contains(p)).collect();
    stale.sort();
    for file in stale {
        if bless {
            std::fs::remove_file(&file).map_err(|e| Error::writing(&file, e))?;
        }
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        out.push(Snapshot { name, file, state: State::Stale });
    }
    Ok(out)
}

/// Most lines shown of one difference.
const MAX_LINES: usize = 60;

/// The differences between two plan texts: first by kernels, then by lines.
pub fn readable(old: &str, new: &str) -> String {
    let mut t = match (old.parse::<Plan>(), new.parse::<Plan>()) {
        (Ok(a), Ok(b)) => diff::diff(&a, &b).text(100) + "\n",
        (Err(e), _) => format!("the snapshot is not a plan: {e}\n"),
        (_, Err(e)) => format!("the new plan's text does not parse: {e}\n"),
    };
    let lines = TextDiff::from_lines(old, new).unified_diff().context_radius(1).to_string();
    let count = lines.lines().count();
    lines.lines().take(MAX_LINES).for_each(|l| t += &format!("{l}\n"));
    if count > MAX_LINES {
        t += &format!("… and {}\n", kiln_graph::count(count - MAX_LINES, "more line"));
    }
    t
}
