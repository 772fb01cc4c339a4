//! One write: the functional operator, its result scattered back to the root, and what becomes of other tensors in the
//! same memory.
use super::{Link, Program, Tensor, operators::result_dtype, problem, step::Step};
use crate::{
    error::Problem,
    raw::{Arg, Call},
};
use kiln_graph::DType;
use std::{collections::HashSet, rc::Rc};

impl Program {
    /// Calls the functional form and writes its result back.
    pub(super) fn in_place(&mut self, call: &Call, name: String, overload: String) -> Result<(), Problem> {
        let (Some(Arg::Value(id)), true) = (call.args.first(), call.outs.len() <= 1) else {
            return Err(problem(call, format!("`{}` changes several tensors in place", call.name)));
        };
        let target = self.names[*id];
        let own = &self.values[target];
        if own.shape.contains(&0) {
            return Ok(());
        }
        let (dtype, shape) = (own.dtype.clone(), own.shape.clone());
        self.check_path(target, call)?;
        let result = result_dtype(&name, call, own, &self.values);
        let args = call.args.iter().cloned().map(|a| self.argument(a)).collect();
        let mut value = self.push((&name, &overload, args), result.clone(), shape.clone(), call);
        if let (true, Ok(own)) = (result != dtype, dtype.parse::<DType>()) {
            let number = Arg::Int(own.torch_number().into());
            let args = vec![Arg::Value(value), number, Arg::Bool(false), Arg::Bool(false), Arg::None];
            value = self.push(("aten::to", "dtype", args), dtype, shape, call);
        }
        self.write_back(target, value, call);
        Ok(())
    }

    /// Refuses a write that cannot be put back into the group, or that an input or a constant may see or not.
    fn check_path(&self, target: usize, call: &Call) -> Result<(), Problem> {
        for link in self.bases(target) {
            if !link.certain {
                break;
            }
            if link.step == Step::Expand {
                let what = format!(
                    "`{}` writes into a view made by `{}`, which shows an element several times",
                    call.name, link.made.name
                );
                return Err(problem(call, what));
            }
            if !link.step.writable() {
                let what = format!(
                    "`{}` changes part of a tensor through a view made by `{}`, which Kiln cannot follow",
                    call.name, link.made.name
                );
                return Err(problem(call, what));
            }
        }
        let Tensor { root, group, .. } = self.tensors[target];
        if root != group && self.kept[root] {
            let of = match &self.values[root].name {
                Some(name) => format!("the model's own tensor `{name}`"),
                None => "an input or a constant".into(),
            };
            let by = self.bases(target).find(|l| !l.certain).map_or("a view", |l| &l.made.name);
            let what = format!("`{}` may change {of}: `{by}` gives a view or a copy, depending on strides", call.name);
            return Err(problem(call, what));
        }
        Ok(())
    }

    /// Makes `value` the elements of `target`, and updates what shares memory with it.
    fn write_back(&mut self, target: usize, value: usize, call: &Call) {
        let (root, group) = (self.tensors[target].root, self.tensors[target].group);
        // The target and its bases, in its own group first.
        let mut path = vec![target];
        let mut part = value;
        while let Some(Link { base, step, certain: true, .. }) = &self.tensors[path[path.len() - 1]].link {
            let (view, base, step) = (path[path.len() - 1], *base, step.clone());
            let whole = self.scatter(view, base, &step, part, call);
            self.set(view, part);
            part = whole;
            path.push(base);
        }
        self.set(group, part);
        if root == group && self.kept[root] && !self.written.contains(&root) {
            self.written.push(root);
        }
        let write = Rc::new(call.clone());
        let known = path.len();
        path.extend(self.bases(group).map(|l| l.base).collect::<Vec<_>>());
        for base in &path[known..] {
            self.tensors[*base].lost = Some(write.clone());
        }
        self.invalidate(root, group, &path, &write);
    }

    /// Marks the views of changed tensors: those of the group as stale, others as lost. `path`: the written tensor and
    /// its bases.
    fn invalidate(&mut self, root: usize, group: usize, path: &[usize], write: &Rc<Call>) {
        let mut changed: HashSet<usize> = path.iter().copied().collect();
        let family = self.families.entry(root).or_insert_with(|| vec![root]);
        for &other in family.iter() {
            // The example run saw some state of this memory, but it is not known which; and a constant that is written
            // is none.
            (self.values[other].folded, self.values[other].scalar) = (false, None);
            let Some(link) = self.tensors[other].link.as_ref().filter(|_| !changed.contains(&other)) else { continue };
            let apart = |p: &usize| {
                let written = self.tensors[*p].link.as_ref();
                written.is_some_and(|w| w.base == link.base && w.step.disjoint(&link.step))
            };
            if !changed.contains(&link.base) || path.iter().any(apart) {
                continue;
            }
            changed.insert(other);
            let tensor = &mut self.tensors[other];
            match tensor.group == group {
                true => tensor.stale = true,
                false => tensor.lost = Some(write.clone()),
            }
        }
    }

    fn set(&mut self, tensor: usize, value: usize) {
        let t = &mut self.tensors[tensor];
        (t.value, t.stale) = (value, false);
    }

    /// The elements of `base` with those that `view` shows replaced by `part`.
    fn scatter(&mut self, view: usize, base: usize, step: &Step, part: usize, at: &Call) -> usize {
        let whole = if step.covers(&self.values[base].shape) { part } else { self.read(base) };
        let (info, shape) = (&self.values[base], &self.values[view].shape);
        match step.scatter(whole, part, &info.shape, shape) {
            Some(form) => {
                let (dtype, shape) = (info.dtype.clone(), info.shape.clone());
                self.push(form, dtype, shape, at)
            }
            None => part,
        }
    }
}
