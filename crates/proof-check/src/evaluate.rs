//! Compares two terms on random values of their leaves: in f64, at a sample of the elements where all of them are too
//! much work.
use crate::terms::Terms;
use kiln_graph::{DType, Graph, Op, Random, Scalar, Tensor, Type, ValueId, random_tensor};
use kiln_interp::graph::{Demand, no_fallback, run_parts};
use std::collections::{HashMap, HashSet};

/// Most work of the interpreter for one comparison, in the units of [`Demand::work`].
const WORK: u64 = 1 << 24;
/// Most terms of two forms above their leaves.
const MOST: usize = 400;
/// Most ops between a leaf and what a rule matched.
const DEEPEST: usize = 24;

/// Comparisons that were made; the same two forms of the same types are compared once.
#[derive(Default)]
pub struct Evaluated {
    known: HashSet<String>,
}

/// Two terms as a graph over the leaves of both.
struct Pair<'a> {
    t: &'a Terms,
    g: Graph,
    of: HashMap<usize, ValueId>,
    /// Classes above the leaves, and how far.
    height: HashMap<usize, usize>,
    /// Classes whose value is being made.
    open: HashSet<usize>,
}

impl Evaluated {
    /// An error if two terms differ for some values of these leaves. `matched`: the terms that the first one is made
    /// of, the outermost first. `rounds`: numbers that one form has and the other has not may be rounded to their
    /// type, as a rule computes them.
    pub fn equal(
        &mut self,
        t: &Terms,
        [from, to]: [usize; 2],
        matched: &[usize],
        leaves: &[usize],
        rounds: bool,
    ) -> Result<(), String> {
        if t.ty(from) != t.ty(to) {
            return Err(format!("one form is {}, the other {}", t.ty(from), t.ty(to)));
        }
        let height = heights(t, leaves);
        let mut p = Pair { t, g: Graph::new("pair"), of: HashMap::new(), height, open: HashSet::new() };
        for &leaf in leaves {
            p.leaf(leaf);
        }
        for &m in matched.iter().rev() {
            p.matched(m)?;
        }
        let a = p.matched(from)?;
        let b = p.value(to)?;
        p.g.outputs = vec![a, b];
        p.g.verify().map_err(|e| e.to_string())?;
        let text = kiln_graph::text::print(&p.g);
        if self.known.contains(&text) {
            return Ok(());
        }
        // Numbers of any sign, then positive ones, for which roots and logarithms are defined.
        let mut compared = 0;
        for positive in [false, true] {
            compared += compare(&p.g, positive, rounds)?;
        }
        if compared == 0 {
            return Err("no element of either form is a finite number".into());
        }
        self.known.insert(text);
        Ok(())
    }
}

impl Pair<'_> {
    fn leaf(&mut self, x: usize) {
        let class = self.t.find(x);
        if self.of.contains_key(&class) {
            return;
        }
        let v = match self.t.number(x) {
            Some(n) => self.number(n, self.t.ty(x)),
            None => self.g.input(self.t.ty(x).clone()),
        };
        self.of.insert(class, v);
    }
    fn number(&mut self, n: f64, ty: &Type) -> ValueId {
        let value = match ty.dtype {
            DType::Bool => Scalar::Bool(n != 0.),
            d if d.is_int() => Scalar::Int(n as i64),
            _ => Scalar::Float(n),
        };
        let c = self.g.constant(ty.dtype, value);
        match ty.shape.is_empty() {
            true => c,
            false => self.g.push(Op::Broadcast(ty.shape.clone()), ty.clone(), &[c]),
        }
    }
    /// A term of the first form, whose operands are opened as far as leaves are below them.
    fn matched(&mut self, x: usize) -> Result<ValueId, String> {
        let class = self.t.find(x);
        if let Some(&v) = self.of.get(&class) {
            return Ok(v);
        }
        let n = self.t.term(x).clone();
        let args = n.args.iter().map(|a| self.opened(*a)).collect::<Result<Vec<ValueId>, String>>()?;
        let v = self.g.push(n.op, n.ty, &args);
        self.of.insert(class, v);
        Ok(v)
    }
    /// A value of a class: from the form by which leaves are nearest, else from constants, else whatever it is.
    fn opened(&mut self, x: usize) -> Result<ValueId, String> {
        let class = self.t.find(x);
        if let Some(&v) = self.of.get(&class) {
            return Ok(v);
        }
        if self.g.len() > MOST {
            return Err("the forms have more than 400 terms above their leaves".into());
        }
        let members = self.t.members(x);
        if let Some(&constant) = members.iter().find(|m| self.t.term(**m).constant) {
            return self.value(constant);
        }
        let below = |m: &usize| self.t.term(*m).args.iter().filter_map(|a| self.height.get(&self.t.find(*a))).min();
        let nearest = members.iter().filter_map(|m| Some((below(m)?, *m))).min();
        let form = nearest.filter(|(below, _)| self.height.get(&class).is_some_and(|h| *below < h)).map(|n| n.1);
        let v = match form {
            Some(form) if self.open.insert(class) => {
                let n = self.t.term(form).clone();
                let args = n.args.iter().map(|a| self.opened(*a)).collect::<Result<Vec<ValueId>, String>>()?;
                self.open.remove(&class);
                self.g.push(n.op, n.ty, &args)
            }
            _ => self.g.input(self.t.ty(x).clone()),
        };
        self.of.insert(class, v);
        Ok(v)
    }
    /// A value of each class, from the operands of the term by which it is met first.
    fn value(&mut self, x: usize) -> Result<ValueId, String> {
        let class = self.t.find(x);
        if let Some(&v) = self.of.get(&class) {
            return Ok(v);
        }
        if self.g.len() > MOST {
            return Err("the forms have more than 400 terms above their leaves".into());
        }
        let n = self.t.term(x).clone();
        let v = if matches!(n.op, Op::Input(_) | Op::Param(_)) {
            self.g.input(n.ty)
        } else {
            let args = n.args.iter().map(|a| self.value(*a)).collect::<Result<Vec<ValueId>, String>>()?;
            self.g.push(n.op, n.ty, &args)
        };
        self.of.insert(class, v);
        Ok(v)
    }
}

/// Classes that are made of these leaves, and how many ops are between.
fn heights(t: &Terms, leaves: &[usize]) -> HashMap<usize, usize> {
    let mut found: HashMap<usize, usize> = leaves.iter().map(|l| (t.find(*l), 0)).collect();
    let mut next: Vec<usize> = found.keys().copied().collect();
    next.sort_unstable();
    for height in 1..DEEPEST {
        let mut above: Vec<usize> = next.iter().flat_map(|c| t.users(*c)).map(|u| t.find(*u)).collect();
        above.sort_unstable();
        above.dedup();
        above.retain(|c| !found.contains_key(c));
        found.extend(above.iter().map(|c| (*c, height)));
        next = above;
    }
    found
}

/// Number of elements that were compared.
fn compare(g: &Graph, positive: bool, rounds: bool) -> Result<usize, String> {
    let mut random = Random::new(if positive { 2 } else { 1 });
    // Indices stay inside of the shortest axis that anything indexes.
    let indexed = g.values().filter_map(|v| match g.op(v) {
        Op::Gather { axis } | Op::Take { axis } | Op::Scatter { axis, .. } => Some(g.shape(g.args(v)[0])[*axis]),
        _ => None,
    });
    let limit = indexed.min().unwrap_or(5).max(1);
    let inputs: Vec<Tensor> = g
        .inputs
        .iter()
        .map(|v| {
            let ty = g.ty(*v).clone();
            let seed = random.next_u64();
            match ty.dtype {
                d if d.is_float() && positive => {
                    let mut r = Random::new(seed);
                    let numbers: Vec<f64> = (0..ty.count()).map(|_| 0.5 + r.uniform()).collect();
                    Tensor::from_f64(ty, numbers)
                }
                d if d.is_float() => random_tensor(ty, seed, 1.0),
                _ => random_tensor(ty, seed, limit as f64),
            }
        })
        .collect();
    let whole = Demand::whole(g);
    let demand = if whole.work(g) <= WORK {
        whole
    } else {
        let sample = Demand::sampled(g, WORK).ok_or("one element takes too much work")?;
        // The same elements of both.
        let region = sample.outputs().first().cloned().unwrap_or_default();
        Demand::new(g, vec![region.clone(), region])
    };
    let results = run_parts(g, &inputs, &[], &demand, &mut no_fallback).map_err(|e| e.to_string())?;
    let [a, b] = &results[..] else { return Err("the interpreter gave no results".into()) };
    let slack = if rounds { slack(g) } else { 1e-9 };
    let (a, b) = (a.to_f64_vec(), b.to_f64_vec());
    let size = a.iter().filter(|x| x.is_finite()).fold(0.0, |most: f64, x| most.max(x.abs()));
    let mut compared = 0;
    for (i, (x, y)) in a.iter().zip(&b).enumerate() {
        if x == y || x.is_nan() && y.is_nan() || (x - y).abs() <= slack * size {
            compared += usize::from(x.is_finite());
        } else {
            return Err(format!("element {i} of the sample is {x} in one form and {y} in the other"));
        }
    }
    Ok(compared)
}

/// How far two forms may be apart, beside rounding in f64: numbers that one of them has alone may be rounded to their
/// type.
fn slack(g: &Graph) -> f64 {
    let reached = |from: ValueId| {
        let (mut seen, mut todo) = (HashSet::new(), vec![from]);
        while let Some(v) = todo.pop() {
            if seen.insert(v) {
                todo.extend(g.args(v));
            }
        }
        seen
    };
    let both: Vec<HashSet<ValueId>> = g.outputs.iter().map(|o| reached(*o)).collect();
    let alone = |v: &ValueId| both.iter().filter(|seen| seen.contains(v)).count() == 1;
    let rounded = g.values().filter(alone).filter_map(|v| match g.op(v) {
        Op::Const(Scalar::Float(c)) if (c * 1024.).fract() != 0. => g.dtype(v).format().map(|f| 4. * f.epsilon()),
        _ => None,
    });
    rounded.fold(1e-9, f64::max)
}
