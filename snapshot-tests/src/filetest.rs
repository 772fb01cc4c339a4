//! File tests: a graph as text and the output of a stage for it, in one file that shows one mechanism.
//!
//! ```text
//! # What the mechanism is for.
//! ; lower sm_90a
//! ; schedule split i0 8; split r 1024; bind warp 8
//! ; only for, async_*
//! graph NAME(…) { … }
//! ; gives
//! …
//! ```
//!
//! The first `;` line says what to run: `lower TARGET` (block programs and library steps), `ptx TARGET` (names of
//! instructions, with a count where one repeats), `plan MACHINE`. `schedule` is that of the kernel of the graph's first
//! result, for a mechanism that a cost model would choose today and not tomorrow. `only` keeps the lines that contain
//! one of its words (`tma_*`: any word that begins so) and the blocks that enclose them; values are then renumbered, so
//! that changes in other lines do not show. The text below `gives` is what [`FileTest::difference`] compares and
//! [`FileTest::blessed`] writes.
mod text;

use kiln::constraints::{Constraints, ScheduleText};
use kiln::{CompileOptions, Compiled, Error, Model, Target, compile::CompiledCode, snapshot, stages};
use similar::TextDiff;

const GIVES: &str = "; gives\n";

#[derive(Clone, PartialEq, Debug)]
pub struct FileTest {
    /// The file up to its expected text.
    head: String,
    run: Run,
    /// The schedule of the kernel of the first result, if it is not the cheapest.
    schedule: Option<String>,
    /// Words that select the lines to show; if empty, all lines are shown.
    only: Vec<String>,
    expected: String,
}

#[derive(Clone, PartialEq, Debug)]
enum Run {
    Lower(Target),
    Ptx(Target),
    Plan(String),
}

impl FileTest {
    /// Reads a file; the error says what is wrong with its header.
    pub fn parse(text: &str) -> Result<FileTest, String> {
        let (head, expected) = text.split_once(GIVES).unwrap_or((text, ""));
        let mut lines = head.lines().filter_map(|l| l.strip_prefix("; "));
        let run = lines.next().ok_or("the file does not say what to run; add `; lower sm_90a`")?;
        let (mut only, mut schedule) = (vec![], None);
        for line in lines {
            match line.split_once(' ') {
                Some(("only", words)) => only.extend(words.split(',').map(|w| w.trim().to_string())),
                Some(("schedule", steps)) => schedule = Some(steps.to_string()),
                _ => return Err(format!("`; {line}` is not known; write `; only WORDS` or `; schedule STEPS`")),
            }
        }
        let run = Run::parse(run)?;
        if matches!(run, Run::Plan(_)) && schedule.is_some() {
            return Err("`; schedule` is for lower and ptx: a plan shows the schedules that it chooses".into());
        }
        Ok(FileTest { head: head.into(), run, schedule, only, expected: expected.trim().into() })
    }

    /// The stage's output, reduced to the lines that the file shows.
    pub fn actual(&self) -> Result<String, String> {
        let said = |e: Error| format!("{e}; {}", e.help());
        let graph: Vec<&str> = self.head.lines().filter(|l| !l.starts_with(';')).collect();
        let graph: kiln::Graph = graph.join("\n").parse().map_err(|e| format!("the graph does not parse: {e}"))?;
        let model = Model::from_graph(graph).map_err(said)?;
        let mut constraints = Constraints::default();
        if let (Some(schedule), Some(result)) = (&self.schedule, model.graph.outputs.first()) {
            constraints.use_schedule.push(ScheduleText { at: result.to_string(), schedule: schedule.clone() });
        }
        let compile = |target| {
            let constraints = constraints.clone();
            kiln::compile(&model, &CompileOptions { target, constraints, ..CompileOptions::default() })
        };
        let whole = match &self.run {
            Run::Plan(machine) => snapshot::plan_text_of(&model, machine).map_err(said)?,
            Run::Lower(target) => lowered(&compile(*target).map_err(said)?).map_err(said)?,
            Run::Ptx(target) => instructions(&compile(*target).map_err(said)?)?,
        };
        let shown = match &self.run {
            _ if self.only.is_empty() => whole,
            Run::Lower(_) => text::renumbered(&text::only(&whole, &self.only)),
            Run::Ptx(_) | Run::Plan(_) => text::only(&whole, &self.only),
        };
        Ok(text::wrapped(shown.trim()))
    }

    /// The difference between the expected text and `actual`; `None` if they are equal.
    pub fn difference(&self, actual: &str) -> Option<String> {
        let same = self.expected == actual.trim();
        let diff = || {
            TextDiff::from_lines(self.expected.as_str(), actual).unified_diff().header("expected", "now").to_string()
        };
        (!same).then(diff)
    }

    /// The file with `actual` as its expected text.
    pub fn blessed(&self, actual: &str) -> String {
        format!("{}\n\n{GIVES}{}\n", self.head.trim_end(), actual.trim())
    }
}

impl Run {
    fn parse(line: &str) -> Result<Run, String> {
        let (what, on) = line.split_once(' ').unwrap_or((line, ""));
        let target = || {
            let all = [Target::Cpu, Target::Sm80, Target::Sm90a];
            all.into_iter().find(|t| t.name() == on).ok_or_else(|| format!("there is no target `{on}`"))
        };
        match what {
            "lower" => Ok(Run::Lower(target()?)),
            "ptx" => Ok(Run::Ptx(target()?)),
            "plan" => Ok(Run::Plan(on.into())),
            _ => Err(format!("`; {line}` is nothing to run; write lower, ptx or plan")),
        }
    }
}

fn lowered(c: &Compiled) -> Result<String, Error> {
    let kernels = (0..c.plan.kernels.len()).map(|k| stages::kernel::text(c, k, stages::Stage::Block));
    Ok(kernels.collect::<Result<Vec<_>, _>>()?.join("\n"))
}

fn instructions(c: &Compiled) -> Result<String, String> {
    let CompiledCode::Ptx(list) = &c.code else { return Err("a cpu has no PTX".into()) };
    let mut out = String::new();
    for p in list {
        let head = format!("kernel @{} grid {} threads {} cluster {}", p.name, p.grid, p.threads, p.cluster);
        out += &format!("{head} shared {}\n{}", p.shared, text::instructions(&p.text));
    }
    Ok(out)
}
