//! Commands on plans that run nothing: pin, diff, snapshots; and shell completions and man pages.
use super::{constrained, json, open, options};
use crate::{
    args::{self, Cli, SnapshotCommand},
    render::{self, Progress},
};
use clap::CommandFactory;
use kiln::{
    CompileOptions, Error, Model, Plan, Tensor, compile, explain::count, model::FileKind, snapshot::State, stages,
};
use std::{path::Path, process::ExitCode};

pub fn pin(a: &args::Pin) -> Result<(), Error> {
    let progress = Progress::new("loading");
    let options = constrained(options(&a.model, a.target, true)?, &a.constraints)?;
    let plan = if FileKind::of(&a.model.model)? == FileKind::PlanText {
        stages::read_plan(&a.model.model)?
    } else {
        let (model, _) = open(&a.model, &progress)?;
        compile::plan(&model, &options)?
    };
    drop(progress);
    render::to(&a.output, &kiln::why::pinned_text(&plan))
}

/// Exit status of a comparison: 0 if equal, 1 if different, 2 on error.
fn status(same: Result<bool, Error>) -> ExitCode {
    match same {
        Ok(same) => ExitCode::from(u8::from(!same)),
        Err(e) => {
            render::error(&e);
            ExitCode::from(2)
        }
    }
}

pub fn diff(a: &args::Diff) -> ExitCode {
    status(diff_is_same(a))
}
fn diff_is_same(a: &args::Diff) -> Result<bool, Error> {
    let progress = Progress::new("planning");
    let found = compare(a)?;
    drop(progress);
    match &a.json {
        Some(path) => render::to(path, &json(&found)?)?,
        None => render::out(&found.text(render::width()))?,
    }
    Ok(found.is_same())
}

fn compare(a: &args::Diff) -> Result<kiln::diff::Diff, Error> {
    let model = |path: &Path| args::ModelArgs {
        model: path.into(),
        inputs: a.inputs.clone(),
        input: a.input.clone(),
        dim: vec![],
        contract: a.contract,
    };
    let (before, after) = (model(&a.before), model(&a.after));
    let before = plan(&before, a.target, options(&before, a.target, true)?, true)?;
    let made = constrained(options(&after, a.target, !a.unfused)?, &a.constraints)?;
    let after = plan(&after, a.target, made, a.constraints.is_empty())?;
    Ok(kiln::diff::diff(&before, &after))
}

/// The plan in a file, or the plan made for the model in it. `unbound`: no constraints were given.
fn plan(
    a: &args::ModelArgs,
    target: Option<kiln::Target>,
    options: CompileOptions,
    unbound: bool,
) -> Result<Plan, Error> {
    let as_compiled = target.is_none() && a.contract.is_empty() && options.fuse && unbound;
    match FileKind::of(&a.model)? {
        FileKind::PlanText => stages::read_plan(&a.model),
        FileKind::Artifact if as_compiled => kiln::artifact::plan(&a.model),
        _ => {
            let given: Vec<Tensor> = super::inputs(a)?;
            compile::plan(&Model::open_at(&a.model, &given, &super::sizes(a)?)?, &options)
        }
    }
}

pub fn snapshot(command: &SnapshotCommand) -> ExitCode {
    status(snapshots_are_same(command))
}
fn snapshots_are_same(command: &SnapshotCommand) -> Result<bool, Error> {
    let (a, bless, proofs) = match command {
        SnapshotCommand::Check(a) => (&a.snapshot, false, a.proofs),
        SnapshotCommand::Bless(a) => (a, true, false),
    };
    let progress = Progress::new("planning");
    let list = kiln::snapshot::folder(&a.folder, &a.machine, bless)?;
    drop(progress);
    let (mut text, mut same, mut last) = (String::new(), 0, String::new());
    for s in &list {
        text += &match (&s.state, bless) {
            (State::Same, _) => {
                same += 1;
                continue;
            }
            (State::Skipped(why), _) => {
                last += &format!("skipped  {}: {why}\n", s.name);
                continue;
            }
            (State::Failed(why), _) => {
                last += &format!("failed   {}: {why}\n", s.name);
                continue;
            }
            (State::Missing, true) => format!("new      {}\n", s.name),
            (State::Missing, false) => format!("missing  {}: write it with `kiln snapshot bless`\n", s.name),
            (State::Stale, true) => format!("removed  {}\n", s.name),
            (State::Stale, false) => format!("stale    {}: the folder has no model of that name\n", s.name),
            (State::Changed(_), true) => format!("changed  {}\n", s.name),
            (State::Changed(how), false) => format!("changed  {}\n{how}\n", s.name),
        };
    }
    let compared = list.iter().filter(|s| !matches!(s.state, State::Skipped(_))).count();
    let were = match (bless, compared) {
        (true, 1) => "was",
        (true, _) => "were",
        (false, 1) => "is",
        (false, _) => "are",
    };
    text += &format!("{last}{same} of {} {were} the same ({})\n", count(compared, "plan"), a.machine);
    let mut shown = true;
    if proofs {
        let progress = Progress::new("checking");
        let all = kiln::snapshot::proofs(&a.folder, &a.machine)?;
        drop(progress);
        let held = all.iter().filter(|p| p.found.is_ok()).count();
        for p in &all {
            if let Err(why) = &p.found {
                text += &format!("no proof {}: {why}\n", p.name);
            }
        }
        let steps: usize = all.iter().filter_map(|p| Some(p.found.as_ref().ok()?.steps)).sum();
        text += &format!(
            "{held} of {} shown to compute their graphs ({})\n",
            count(all.len(), "plan"),
            count(steps, "step")
        );
        shown = held == all.len();
    }
    render::out(&text)?;
    let failed = |s: &kiln::snapshot::Snapshot| matches!(s.state, State::Failed(_));
    Ok(if bless { !list.iter().any(failed) } else { shown && list.iter().all(|s| s.state.is_fine()) })
}

pub fn completions(shell: clap_complete::Shell) -> Result<(), Error> {
    let mut text = vec![];
    clap_complete::generate(shell, &mut Cli::command(), "kiln", &mut text);
    render::out(&String::from_utf8_lossy(&text))
}

pub fn man(folder: &Path) -> Result<(), Error> {
    std::fs::create_dir_all(folder).map_err(|e| Error::writing(folder, e))?;
    clap_mangen::generate_to(Cli::command(), folder).map_err(|e| Error::writing(folder, e))
}
