//! Parses a plan's text.
use super::words::{Lines, Parsed, Words};
use crate::form::Form;
use crate::{
    Alternative, Buffer, BufferKind, Cost, FormNeeds, Kernel, KernelKind, Origin, Plan, PlanError, Precision, Reason,
    Rounding, Schedule, Search, Stage, Stop, Tuning,
};
use kiln_graph::{Graph, ParamId};

/// Parses the text that [`print`](super::print()) writes. The error names the line and what was expected there. The
/// result is not verified: see [`verify`](crate::verify::verify()).
pub fn parse(text: &str) -> Result<Plan, PlanError> {
    let mut lines = Lines { lines: text.lines().collect(), at: 0 };
    plan(&mut lines).map_err(|what| PlanError::Parse { line: lines.at, what })
}

/// Microseconds: `unknown` for what libtorch runs.
fn known(word: &str) -> Parsed<Option<f64>> {
    match word {
        "unknown" => Ok(None),
        us => us.parse().map(Some).map_err(|_| format!("`{us}` is neither a number nor `unknown`")),
    }
}

fn plan(lines: &mut Lines) -> Parsed<Plan> {
    let mut p = Plan::default();
    let mut w = lines.next()?;
    w.expect("plan")?;
    p.name = w.string()?;
    w.key("machine")?;
    p.machine = w.string()?;
    w.key("numerics")?;
    p.contract = w.word()?.parse()?;
    p.lower_bound_us = w.keyed("lower_bound_us")?;
    w.expect("{")?;
    loop {
        let mut w = lines.next()?;
        let start = w.rest;
        match w.word()? {
            "search" => p.search = search(&mut w)?,
            "kernel" => p.kernels.push(parse_kernel(&mut w, lines)?),
            "return" => {
                p.outputs = w.buffers()?;
                w.end()?;
                lines.next()?.expect("}")?;
                return Ok(p);
            }
            _ => {
                w.rest = start;
                let id = w.buffer()?;
                if id.0 as usize != p.buffers.len() {
                    return Err(format!("expected b{}, found {id}; buffers are numbered from 0", p.buffers.len()));
                }
                p.buffers.push(buffer(&mut w)?);
            }
        }
        w.end()?;
    }
}
fn search(w: &mut Words) -> Parsed<Search> {
    Ok(Search {
        iterations: w.keyed("iterations")?,
        enodes_before: w.keyed("before")?,
        enodes_after: w.keyed("after")?,
        stopped: {
            w.key("stopped")?;
            w.string()?
        },
        candidates: w.keyed("candidates")?,
        tried: w.keyed("tried")?,
        greedy_us: w.keyed("greedy_us")?,
    })
}
fn buffer(w: &mut Words) -> Parsed<Buffer> {
    w.expect(":")?;
    let (ty, kind) = w.rest.split_once(" = ").ok_or("expected `= input`, `= param`, `= frozen` or `= temp`")?;
    w.rest = kind;
    let kind = match w.word()? {
        "input" => BufferKind::Input(w.value()?),
        "param" => {
            let word = w.word()?;
            let id = word.strip_prefix('@').and_then(|n| n.parse().ok());
            BufferKind::Param(ParamId(id.ok_or_else(|| format!("`{word}` is not a parameter; write it as @3"))?))
        }
        "frozen" => BufferKind::Frozen,
        "temp" => BufferKind::Temp,
        other => return Err(format!("`{other}` is not input, param, frozen or temp")),
    };
    Ok(Buffer { ty: ty.trim().parse()?, kind })
}
fn parse_kernel(w: &mut Words, lines: &mut Lines) -> Parsed<Kernel> {
    let name = w.string()?;
    let kind = w.word()?;
    let kind =
        KernelKind::ALL.into_iter().find(|k| k.name() == kind).ok_or_else(|| format!("no kernel kind `{kind}`"))?;
    let stage = match w.word()? {
        "load" => Stage::Load,
        "run" => Stage::Run,
        other => return Err(format!("`{other}` is not load or run")),
    };
    w.expect("(")?;
    let inputs = w.buffers()?;
    w.expect(")")?;
    w.expect("->")?;
    w.expect("(")?;
    let outputs = w.buffers()?;
    w.expect(")")?;
    w.expect("{")?;
    w.end()?;
    let mut properties = Properties::default();
    loop {
        let mut w = lines.next()?;
        match w.word()? {
            "graph" => break,
            word => properties.read(word, &mut w)?,
        }
        w.end()?;
    }
    let body = body(lines)?;
    lines.next()?.expect("}")?;
    let Properties { cost, precision, rounding, batch_invariant, form, schedule, reason } = properties;
    Ok(Kernel {
        name,
        kind,
        stage,
        body,
        inputs,
        outputs,
        cost,
        precision,
        rounding,
        batch_invariant,
        form,
        schedule,
        reason,
    })
}

/// What the lines of a kernel before its graph say.
#[derive(Default)]
struct Properties {
    cost: Cost,
    precision: Precision,
    rounding: Rounding,
    batch_invariant: bool,
    form: Option<Form>,
    schedule: Option<Schedule>,
    reason: Reason,
}

impl Properties {
    /// Reads a line, after the word that it begins with.
    fn read(&mut self, word: &str, w: &mut Words) -> Parsed<()> {
        let reason = &mut self.reason;
        match word {
            "cost" => self.cost = cost(w)?,
            "precision" => {
                let name = w.word()?;
                let known = [Precision::Tf32x3, Precision::Tf32].into_iter().find(|p| p.name() == Some(name));
                self.precision = known.ok_or_else(|| format!("`{name}` is not tf32x3 or tf32"))?;
            }
            "batch_invariant" => self.batch_invariant = true,
            "rounding" => {
                w.expect("per-op")?;
                self.rounding = Rounding::PerOp;
            }
            "rules" => reason.rules = w.strings()?,
            "form" => self.form = Some(w.string()?.parse()?),
            "schedule" => self.schedule = Some(w.string()?.parse()?),
            "tuned" => {
                let (device, us, default_us) = (w.string()?, w.keyed("us")?, w.keyed("default")?);
                reason.tuning = Some(Tuning::Measured { device, us, default_us });
            }
            "not_tuned" => reason.tuning = Some(Tuning::Unused { why: w.string()? }),
            "values" => reason.origins = origins(w)?,
            "made" => {
                let value = w.body_value()?;
                let found = reason.origins.iter_mut().find(|o| o.value == value);
                found.ok_or_else(|| format!("{value} is made by a rule but not among the values"))?.rules =
                    w.strings()?;
            }
            "alternative" => reason.alternative = Some(Alternative { what: w.string()?, us: w.keyed("us")? }),
            "stop" => reason.stops.push(stop(w)?),
            other => {
                return Err(format!(
                    "`{other}` is not cost, precision, rounding, batch_invariant, form, schedule, rules, tuned, \
                     not_tuned, alternative, stop, values, made or graph"
                ));
            }
        }
        Ok(())
    }
}

/// A kernel's cost, after its word.
fn cost(w: &mut Words) -> Parsed<Cost> {
    let mut cost = Cost {
        bytes_read: w.keyed("read")?,
        bytes_written: w.keyed("written")?,
        matrix_flops: w.keyed("matrix")?,
        other_flops: w.keyed("other")?,
        us: known(&w.keyed::<String>("us")?)?,
        roofline_us: None,
    };
    // Plans of older versions have the roofline alone.
    let states_roofline = w.peek().is_some();
    cost.roofline_us = if states_roofline { known(&w.keyed::<String>("roofline")?)? } else { cost.us };
    Ok(cost)
}
fn origins(w: &mut Words) -> Parsed<Vec<Origin>> {
    let mut out = vec![];
    while w.peek().is_some() {
        let (value, names) = (w.body_value()?, w.string()?);
        out.push(Origin { value, names: names.split_whitespace().map(String::from).collect(), rules: vec![] });
    }
    Ok(out)
}
/// Parses the graph that begins on the line just read, up to the line of its closing brace.
fn body(lines: &mut Lines) -> Parsed<Graph> {
    let from = lines.at - 1;
    // Block programs in it have braces on lines of their own, which are indented further.
    let indentation = |line: &str| line.len() - line.trim_start().len();
    let outer = indentation(lines.lines[from]);
    let ends = |line: &str| line.trim() == "}" && indentation(line) <= outer;
    while !ends(lines.lines.get(lines.at).ok_or("the text ends inside a body")?) {
        lines.at += 1;
    }
    lines.at += 1;
    let text = lines.lines[from..lines.at].join("\n");
    kiln_graph::text::parse(&text).map_err(|e| format!("body that begins on line {}: {e}", from + 1))
}
/// A neighbour that the kernel was not merged with.
fn stop(w: &mut Words) -> Parsed<Stop> {
    let (kernel, why) = (w.string()?, w.string()?);
    let mut names = vec![];
    while w.peek().is_some() {
        names.push(w.word()?);
    }
    let unknown = || format!("`{}` is not what a form fuses", names.join(" "));
    let needs = FormNeeds::from_names(&names).ok_or_else(unknown)?;
    Ok(Stop { kernel, why, needs })
}
