//! Loops and branches: regions are opened, filled by the evaluator, and closed with what they yield.
use super::{Emitter, block_type};
use crate::error::Eval;
use crate::types::{Number, TensorType};
use crate::value::Tensor;
use kiln_block::{Inst, Op, Region, Type, Value};
use std::collections::HashSet;

/// A value that a loop hands from one iteration to the next.
#[derive(Clone)]
pub struct Carried {
    pub initial: Tensor,
    /// In the body.
    pub current: Tensor,
    pub next: Tensor,
}

/// An op that was emitted.
#[derive(Clone)]
pub struct Emitted {
    pub op: Op,
    pub args: Vec<Value>,
    pub result: Option<Value>,
}

/// A region that was filled, without its `yield`.
pub struct Filled(Region);

impl Emitter {
    /// Opens a region; gives its parameters.
    pub fn open(&mut self, parameters: &[TensorType]) -> Eval<Vec<Tensor>> {
        let types: Vec<Type> = parameters.iter().map(block_type).collect::<Eval<_>>()?;
        let values: Vec<Value> = types.into_iter().map(|ty| self.program.new_value(ty)).collect();
        self.open.push(Region { params: values.clone(), insts: vec![] });
        Ok(parameters.iter().cloned().zip(values).map(|(ty, value)| Tensor { ty, value }).collect())
    }
    /// Takes the innermost region out, to be opened again or closed.
    pub fn suspend(&mut self) -> Filled {
        Filled(self.open.pop().unwrap_or_default())
    }
    pub fn resume(&mut self, region: Filled) {
        self.open.push(region.0);
    }
    fn close(&mut self, yields: &[Value]) -> Region {
        self.inst(Op::Yield, yields, vec![], vec![]);
        self.suspend().0
    }
    /// Closes the innermost region as that of an op.
    pub(super) fn by_region(
        &mut self,
        op: Op,
        inputs: &[Tensor],
        types: Vec<TensorType>,
        yields: &[Tensor],
    ) -> Eval<Vec<Tensor>> {
        let yields: Vec<Value> = yields.iter().map(|tensor| tensor.value).collect();
        let region = self.close(&yields);
        let region = self.without_unused(region);
        let args: Vec<Value> = inputs.iter().map(|tensor| tensor.value).collect();
        let results = types.iter().map(block_type).collect::<Eval<_>>()?;
        let values = self.inst(op, &args, results, vec![region]);
        Ok(types.into_iter().zip(values).map(|(ty, value)| Tensor { ty, value }).collect())
    }
    /// The region without what it computes for nothing: regions that combine hold scalars alone, and blocks that were
    /// made only to ask for their type are none.
    fn without_unused(&self, mut region: Region) -> Region {
        if region.insts.iter().any(|inst| !self.program.inst(*inst).regions.is_empty()) {
            return region;
        }
        let mut used: HashSet<Value> = HashSet::new();
        let mut kept = vec![];
        for inst in region.insts.iter().rev() {
            let data = self.program.inst(*inst);
            let needed = !data.op.is_pure() || data.results.iter().any(|result| used.contains(result));
            if needed {
                used.extend(&data.args);
                kept.push(*inst);
            }
        }
        kept.reverse();
        region.insts = kept;
        region
    }
    /// Discards the innermost region; gives the ops that it holds.
    pub fn discard(&mut self) -> Vec<Emitted> {
        let region = self.suspend().0;
        let insts = region.insts.iter().map(|inst| self.program.inst(*inst));
        insts
            .map(|inst| Emitted { op: inst.op.clone(), args: inst.args.clone(), result: inst.results.first().copied() })
            .collect()
    }

    pub fn if_else(&mut self, condition: &Tensor, branches: [(Filled, Vec<Tensor>); 2]) -> Eval<Vec<Tensor>> {
        let types: Vec<TensorType> = branches[0].1.iter().map(|tensor| tensor.ty.clone()).collect();
        let results: Vec<Type> = types.iter().map(block_type).collect::<Eval<_>>()?;
        let regions = branches.map(|(region, yields)| {
            self.resume(region);
            let yields: Vec<Value> = yields.iter().map(|tensor| tensor.value).collect();
            self.close(&yields)
        });
        let values = self.inst(Op::If, &[condition.value], results, regions.into());
        Ok(types.into_iter().zip(values).map(|(ty, value)| Tensor { ty, value }).collect())
    }

    /// Closes the innermost region as the body of a loop whose bounds are `[from, to, step]`; gives the last values.
    pub fn for_loop(&mut self, bounds: [&Tensor; 3], carried: &[Carried]) -> Eval<Vec<Tensor>> {
        let bounds: Vec<Value> = bounds.iter().map(|bound| bound.value).collect();
        self.close_loop(Op::For, &bounds, &[], carried)
    }
    /// Closes the innermost region as the body of a loop that runs again while `condition` holds at its end; gives the
    /// last values.
    pub fn do_while(&mut self, condition: &Tensor, carried: &[Carried]) -> Eval<Vec<Tensor>> {
        self.close_loop(Op::While, &[], &[condition.value], carried)
    }
    /// Values that no iteration changes are not carried.
    fn close_loop(
        &mut self,
        op: Op,
        leading_args: &[Value],
        leading_yields: &[Value],
        carried: &[Carried],
    ) -> Eval<Vec<Tensor>> {
        let kept = self.drop_unchanged(carried);
        let changed: Vec<&Carried> = kept.iter().map(|at| &carried[*at]).collect();
        let yielded = |value: Value| {
            let mut unchanged = carried.iter().enumerate().filter(|(at, _)| !kept.contains(at));
            unchanged.find(|(_, c)| c.current.value == value).map_or(value, |(_, c)| c.initial.value)
        };
        let next = changed.iter().map(|c| c.next.value);
        let yields: Vec<Value> = leading_yields.iter().copied().chain(next).map(yielded).collect();
        let body = self.close(&yields);
        let initial = changed.iter().map(|c| c.initial.value);
        let args: Vec<Value> = leading_args.iter().copied().chain(initial).collect();
        let types: Vec<Type> = changed.iter().map(|c| block_type(&c.initial.ty)).collect::<Eval<_>>()?;
        let results = self.inst(op, &args, types, vec![body]);
        Ok(last_values(carried, &kept, &results))
    }
    /// Which of the carried values change; uses of the others become uses of their initial values.
    fn drop_unchanged(&mut self, carried: &[Carried]) -> Vec<usize> {
        let mut kept: Vec<usize> = (0..carried.len()).collect();
        let index = self.open.last().map_or(0, |region| region.params.len() - carried.len());
        while let Some(at) = kept.iter().position(|i| carried[*i].next.value == carried[*i].current.value) {
            let unchanged = &carried[kept.remove(at)];
            let insts = self.open.last().map(|region| region.insts.clone()).unwrap_or_default();
            self.replace(&insts, unchanged.current.value, unchanged.initial.value);
        }
        if let Some(region) = self.open.last_mut() {
            let parameters = region.params.clone();
            region.params.truncate(index);
            region.params.extend(kept.iter().map(|i| parameters[index + i]));
        }
        kept
    }
    fn replace(&mut self, insts: &[Inst], old: Value, new: Value) {
        for inst in insts {
            let data = self.program.inst_mut(*inst);
            for arg in data.args.iter_mut().filter(|arg| **arg == old) {
                *arg = new;
            }
            let inner: Vec<Inst> = data.regions.iter().flat_map(|region| region.insts.clone()).collect();
            self.replace(&inner, old, new);
        }
    }
}

/// The type that a loop counts in if its index has this one: the IR's loops count in signed integers.
pub fn loop_counter(index: Number) -> Number {
    match index {
        Number::Int64 | Number::UInt32 | Number::UInt64 => Number::Int64,
        _ => Number::Int32,
    }
}

fn last_values(carried: &[Carried], kept: &[usize], results: &[Value]) -> Vec<Tensor> {
    let mut last: Vec<Tensor> = carried.iter().map(|c| c.initial.clone()).collect();
    for (at, value) in kept.iter().zip(results) {
        last[*at].value = *value;
    }
    last
}
