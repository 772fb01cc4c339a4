//! The roofline price of a region: what it reads, once all its accesses are known.
use super::{CheckedRegion, Use, launch};
use crate::cost::{OpTypes, Price};
use crate::dag::Dag;
use crate::space::{Atom, AxisMap, Map};
use kiln_graph::ops::Class;
use kiln_plan::{Hardware, LaunchAccess};

/// Price of one op that reads its operands and writes its result. `access`: what is known of it, if it is a launch.
pub fn alone(dag: &Dag, v: usize, machine: &Hardware, access: Option<&LaunchAccess>) -> Price {
    if dag.class[v] == Class::Launch {
        return launch::alone(dag, v, machine, access);
    }
    let op = OpTypes::of(dag, v);
    let price = Price {
        read: dag.args(v).iter().map(|&a| dag.bytes(a)).sum(),
        written: dag.bytes(v),
        matrix: op.matrix_flops(),
        matrix_seconds: op.matrix_seconds(machine),
        other: dag.op(v).weight() * dag.count(v),
        ..Price::default()
    };
    match dag.class[v] {
        // libtorch's time is unknown, and no choice changes it.
        Class::Fallback => price,
        _ => price.timed(machine),
    }
}

impl CheckedRegion<'_> {
    /// Completes the price with the bytes read, once all maps are known.
    pub(super) fn priced(mut self, members: &[usize]) -> Price {
        let row: Vec<Atom> = self.rows.as_ref().map(|r| self.space.now(&r.along)).unwrap_or_default();
        let innermost = |m: &Map| m.iter().rev().find_map(|w| self.space.now(&w.atoms).pop());
        let lane = innermost(&self.root);
        let inputs: Vec<(usize, &Vec<Use>)> =
            self.uses.iter().filter(|(v, _)| members.binary_search(v).is_err()).map(|(&v, us)| (v, us)).collect();
        let on_row =
            |us: &[Use]| !row.is_empty() && us.iter().any(|u| row.iter().all(|a| self.space.flat(&u.map).contains(a)));
        // Gains and biases are the same for every row: they need not be held on chip, as reading them again is cheap.
        let own = |v: usize, us: &[Use]| on_row(us) && self.dag.count(v) > self.space.extent(&row) as f64;
        let live = 1. + inputs.iter().filter(|(v, us)| own(*v, us)).count() as f64;
        // A row that does not fit on chip is legal: it is read once per reduction, and once more for outputs as long as
        // the row.
        let wide = self.space.extent(&row) as f64 * 4. * live > self.machine.templates.on_chip as f64;
        let along = self.space.flat(&self.root);
        let last = if row.iter().all(|a| along.contains(a)) { 1. } else { 0. };
        let passes = if wide { self.levels as f64 + last } else { 1. };
        let mut read = 0.;
        let loads: f64 = inputs.iter().map(|(_, us)| self.loads(us)).sum();
        for (v, us) in inputs {
            let crosses =
                |u: &Use| innermost(&u.map) != lane && lane.is_some_and(|l| self.space.flat(&u.map).contains(&l));
            let transposed = self.anchor.is_none() && us.iter().any(crosses);
            let bytes = self.touched(v, us) * self.dag.ty(v).dtype.bytes() as f64;
            read += bytes * if on_row(us) { passes } else { 1. } * if transposed { 1.1 } else { 1. };
        }
        self.price.read = read;
        self.price.other += loads;
        if self.price.needs.computes_operands() && self.anchor.is_some_and(|v| self.dag.class[v] == Class::Matmul) {
            // Sums along rows multiply by FMAs.
            self.price.matrix_seconds = self.price.matrix_seconds.max(self.price.matrix / self.machine.rates.alu);
        }
        self.price.timed(self.machine)
    }

    /// Elements of `v` that are read: the sum over accessed parts (slices, shifted windows) that are not contained in
    /// another, at most all elements.
    fn touched(&self, v: usize, uses: &[Use]) -> f64 {
        // Of an access that could not be followed, only the number of reads is known.
        if uses.iter().any(|u| u.map.len() > 1 && u.map.iter().all(|w| w.computed)) {
            let times = |u: &Use| self.space.extent(&self.space.flat(&u.map)) as f64;
            return uses.iter().map(times).sum::<f64>().min(self.dag.count(v));
        }
        let part = |u: &Use| -> Vec<Reach> {
            let axes = u.map.iter().zip(self.dag.shape(v));
            let one =
                |(w, &s): (&AxisMap, &usize)| Reach::of(w, self.space.extent(&self.space.now(&w.atoms)).min(s as i64));
            axes.map(one).collect()
        };
        let count = |part: &[Reach]| part.iter().map(|axis| axis.count as f64).product::<f64>();
        let mut parts: Vec<Vec<Reach>> = uses.iter().map(part).collect();
        parts.sort_by(|a, b| count(b).total_cmp(&count(a)));
        let mut kept: Vec<Vec<Reach>> = vec![];
        for part in parts {
            if !kept.iter().any(|k| k.iter().zip(&part).all(|(k, p)| k.low <= p.low && p.high <= k.high)) {
                kept.push(part);
            }
        }
        kept.iter().map(|part| count(part)).sum::<f64>().min(self.dag.count(v))
    }
}

/// Range of the indices along an axis that are read, and their number.
struct Reach {
    low: i64,
    high: i64,
    count: i64,
}
impl Reach {
    fn of(w: &AxisMap, count: i64) -> Reach {
        let last = w.from + w.step * (count - 1);
        Reach { low: w.from.min(last), high: w.from.max(last), count }
    }
}
