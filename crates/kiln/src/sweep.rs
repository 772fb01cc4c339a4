//! Sweeps: imports, compiles and measures an archive at several batch sizes.
use crate::{
    Error, Model,
    bench::{BenchOptions, Reference, Spread, bench, mark_means, marked},
    explain::wrapped,
    model::FileKind,
};
use kiln_graph::{Tensor, Type};
use serde::Serialize;
use std::{fmt::Write as _, path::Path};

/// What is varied, and over which values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axis {
    /// In ascending order, each once.
    pub values: Vec<usize>,
}
/// The only variable that can be swept.
const BATCH: &str = "batch";

impl Axis {
    /// Reads `batch=1,8,64`.
    pub fn parse(text: &str) -> Result<Axis, Error> {
        let wrong = |why: String| Error::usage(why, "write --sweep 'batch=1,8,64'");
        let (name, list) = text.split_once('=').ok_or_else(|| wrong(format!("`{text}` names no sizes")))?;
        if name.trim() != BATCH {
            return Err(wrong(format!("`{}` cannot be varied, only `{BATCH}` can", name.trim())));
        }
        let one = |n: &str| {
            let size = n.trim().parse().ok().filter(|n| (1..=1 << 20).contains(n));
            size.ok_or_else(|| wrong(format!("`{}` is not a size from 1 to 1048576", n.trim())))
        };
        let mut values = list.split(',').map(one).collect::<Result<Vec<usize>, Error>>()?;
        values.sort_unstable();
        values.dedup();
        Ok(Axis { values })
    }
}

/// `bench --sweep --json`.
#[derive(Clone, Debug, Serialize)]
pub struct Sweep {
    /// Name of the graph.
    pub model: String,
    /// Name of the device.
    pub device: String,
    /// What was varied.
    pub variable: String,
    /// One for each value.
    pub points: Vec<Point>,
}

/// What was measured at one value.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    /// The value.
    pub value: usize,
    /// Kernels of a run.
    pub kernels: usize,
    /// Sum over all kernels except those whose time is unknown.
    pub predicted_us: f64,
    /// Number of kernels whose time is unknown, because libtorch runs them.
    pub unpriced: usize,
    /// Runs of the fused plan.
    pub fused: Spread,
    /// Runs with one kernel per op.
    pub unfused: Option<Spread>,
    /// Runs by libtorch.
    pub torch: Option<Spread>,
    /// Largest relative difference from the reference; NaN (null in JSON) if there is none.
    pub max_rel_err: f64,
    /// What the results were compared with.
    pub reference: Reference,
    /// Requested sides that could not be measured, each with the reason.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
}
impl Point {
    /// What was measured, by name.
    pub fn sides(&self) -> Vec<(&'static str, Spread)> {
        let all = [("fused", Some(self.fused)), ("unfused", self.unfused), ("torch", self.torch)];
        all.into_iter().filter_map(|(name, s)| Some((name, s?))).collect()
    }
}

/// Measures the archive at `path` at every size; calls `say` before each.
pub fn sweep(
    path: &Path,
    inputs: &[Tensor],
    axis: &Axis,
    options: &BenchOptions,
    say: impl Fn(&str),
) -> Result<Sweep, Error> {
    if !matches!(FileKind::of(path)?, FileKind::TorchScript | FileKind::ExportedProgram) {
        return Err(Error::usage(
            format!("{} has fixed shapes, so its batch cannot be varied", path.display()),
            "give the TorchScript archive or the .pt2 program it came from, or measure one file for each size",
        ));
    }
    batch(inputs)?;
    let mut sweep = Sweep { model: String::new(), device: String::new(), variable: BATCH.to_string(), points: vec![] };
    for &value in &axis.values {
        say(&format!("measuring {BATCH}={value}"));
        let inputs = with_batch(inputs, value)?;
        let at = |e: Error| e.retold(|what| format!("at {BATCH}={value}: {what}"));
        let model = Model::open(path, &inputs).map_err(at)?;
        let (b, compiled) = bench(&model, &inputs, options).map_err(at)?;
        (sweep.model, sweep.device) = (b.model, b.device);
        sweep.points.push(Point {
            value,
            kernels: b.kernels.len(),
            predicted_us: compiled.plan.predicted_us(),
            unpriced: compiled.plan.unpriced(),
            fused: b.fused,
            unfused: b.unfused,
            torch: b.torch,
            max_rel_err: b.max_rel_err,
            reference: b.reference,
            missing: b.missing,
        });
    }
    Ok(sweep)
}

/// The first dimension of the first input that has one.
fn batch(inputs: &[Tensor]) -> Result<usize, Error> {
    let first = inputs.iter().find_map(|t| t.ty.shape.first().copied());
    first.filter(|n| *n > 0).ok_or_else(|| {
        Error::usage("no input has a first dimension to vary", "give --inputs FILE or --input TYPE with a batch first")
    })
}

/// The inputs at another batch size: those whose first dimension is the batch get `n` rows, which repeat their own.
pub fn with_batch(inputs: &[Tensor], n: usize) -> Result<Vec<Tensor>, Error> {
    let old = batch(inputs)?;
    let one = |t: &Tensor| {
        if t.ty.shape.first() != Some(&old) {
            return Ok(t.clone());
        }
        let ty = Type::new(t.ty.dtype, [&[n], &t.ty.shape[1..]].concat());
        let bytes: Vec<u8> = t.bytes().iter().copied().cycle().take(ty.bytes()).collect();
        Tensor::from_bytes(ty, &bytes)
            .ok_or_else(|| Error::failed(format!("an input cannot have {n} rows"), "give smaller sizes"))
    };
    inputs.iter().map(one).collect()
}

impl Sweep {
    /// A table with one line per size.
    pub fn text(&self, width: usize) -> String {
        let mut t = wrapped("", &format!("{} on {}, times in ms", self.model, self.device), width);
        let sides: Vec<&str> = self
            .points
            .iter()
            .map(Point::sides)
            .max_by_key(Vec::len)
            .unwrap_or_default()
            .into_iter()
            .map(|s| s.0)
            .collect();
        let _ = write!(t, "\n  {:>8} {:>7}", self.variable, "kernels");
        sides.iter().for_each(|s| t += &format!(" {s:>10}"));
        sides.iter().skip(1).for_each(|s| t += &format!(" {:>9}", format!("/{s}")));
        t.push('\n');
        for p in &self.points {
            let at = |name: &str| p.sides().into_iter().find(|s| s.0 == name).map(|s| s.1);
            let _ = write!(t, "  {:>8} {:>7}", p.value, p.kernels);
            for s in &sides {
                let ms = at(s).map_or("-".into(), |s| marked(s.noisy(), format!("{:.4}", s.median_ms)));
                t += &format!(" {ms:>10}");
            }
            for s in sides.iter().skip(1) {
                let ratio = at(s).map_or("-".into(), |s| {
                    marked(s.noisy() || p.fused.noisy(), format!("{:.2}x", s.median_ms / p.fused.median_ms))
                });
                t += &format!(" {ratio:>9}");
            }
            t.push('\n');
        }
        if self.points.iter().flat_map(Point::sides).any(|s| s.1.noisy()) {
            t += &mark_means();
        }
        for m in self.points.iter().flat_map(|p| &p.missing).collect::<std::collections::BTreeSet<_>>() {
            t += &wrapped("  no ", m, width);
        }
        t
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_inputs_repeat_their_rows() {
        assert_eq!(Axis::parse("batch=8, 1,8").expect("sizes").values, [1, 8]);
        for wrong in ["batch", "batch=", "batch=0", "batch=x", "heads=2"] {
            assert!(Axis::parse(wrong).is_err(), "{wrong}");
        }
        let ty = |shape: &[usize]| Type::new(kiln_graph::DType::F32, shape.to_vec());
        let x = Tensor::from_f64(ty(&[2, 1]), [1.0, 2.0]);
        let w = Tensor::from_f64(ty(&[3]), [7.0, 8.0, 9.0]);
        let got = with_batch(&[x, w.clone()], 3).expect("resizes");
        assert_eq!((got[0].ty.shape.clone(), got[1].clone()), (vec![3, 1], w));
        assert_eq!((0..3).map(|i| got[0].get_f64(i)).collect::<Vec<_>>(), [1.0, 2.0, 1.0]);
    }
}
