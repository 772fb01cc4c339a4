//! Copies instructions of one kernel into another, with renamed operands.
use super::form::is_scalar;
use crate::{BlockProgram, Builder, Inst, InstData, Op, Value};
use std::collections::{HashMap, HashSet};

/// New names of old values, by scope.
#[derive(Clone)]
pub struct Copier<'k> {
    pub k: &'k BlockProgram,
    definitions: HashMap<Value, Inst>,
    scopes: Vec<HashMap<Value, Value>>,
    /// The first value that was looked up and has no new name.
    pub missing: Option<Value>,
}

impl<'k> Copier<'k> {
    pub fn new(k: &'k BlockProgram) -> Copier<'k> {
        let mut definitions = HashMap::new();
        k.walk(&mut |i, data| {
            // Results of loops and branches are not copied.
            if data.regions.is_empty() {
                data.results.iter().for_each(|v| _ = definitions.insert(*v, i));
            }
        });
        Copier { k, definitions, scopes: vec![HashMap::new()], missing: None }
    }
    pub fn definition(&self, v: Value) -> Option<&'k InstData> {
        self.definitions.get(&v).map(|i| self.k.inst(*i))
    }
    pub fn get(&self, v: Value) -> Option<Value> {
        self.scopes.iter().rev().find_map(|s| s.get(&v)).copied()
    }
    pub fn set(&mut self, old: Value, new: Value) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.insert(old, new);
        }
    }
    pub fn enter(&mut self) {
        self.scopes.push(HashMap::new());
    }
    pub fn leave(&mut self) {
        self.scopes.pop();
    }
    /// The new names; a value without one keeps its old name and is recorded as missing.
    pub fn all(&mut self, old: &[Value]) -> Vec<Value> {
        let mut one = |v: &Value| {
            self.get(*v).unwrap_or_else(|| {
                self.missing.get_or_insert(*v);
                *v
            })
        };
        old.iter().map(&mut one).collect()
    }
    /// Copies scalar instructions whose operands have new names: pure ones, and reads of what is never written.
    pub fn scalars(&mut self, b: &mut Builder, insts: &[Inst]) {
        insts.iter().for_each(|i| self.scalar(b, *i));
    }
    pub fn scalar(&mut self, b: &mut Builder, i: Inst) {
        let data = self.k.inst(i);
        if self.is_copied(data) && data.args.iter().all(|v| self.get(*v).is_some()) {
            self.copy(b, i);
        }
    }
    /// Copies an instruction without regions.
    pub fn copy(&mut self, b: &mut Builder, i: Inst) {
        let data = self.k.inst(i);
        let args = self.all(&data.args);
        let types: Vec<_> = data.results.iter().map(|v| self.k.ty(*v).clone()).collect();
        let made = b.inst(data.op.clone(), &args, &types, vec![]);
        data.results.iter().zip(made).for_each(|(old, new)| self.set(*old, new));
    }
    fn is_copied(&self, data: &InstData) -> bool {
        let read = |v: Value| self.k.ty(v).is_scalar() && self.is_readonly(v);
        is_scalar(self.k, data) || matches!(data.op, Op::Load(..)) && data.args.first().is_some_and(|v| read(*v))
    }
    /// Of these values, one that [`Copier::scalars`] of the instructions would not make; `params`: what they may use.
    pub fn underivable(&self, params: &[Value], insts: &[Inst], wanted: &[Value]) -> Option<Value> {
        let mut known: HashSet<Value> = self.k.params.iter().map(|p| p.value).chain(params.iter().copied()).collect();
        for data in insts.iter().map(|i| self.k.inst(*i)) {
            if self.is_copied(data) && data.args.iter().all(|v| known.contains(v)) {
                known.extend(&data.results);
            }
        }
        wanted.iter().copied().find(|v| !known.contains(v))
    }
    /// Whether a pointer starts from a `readonly` parameter.
    pub fn is_readonly(&self, mut pointer: Value) -> bool {
        while let Some(data) = self.definition(pointer) {
            match (&data.op, data.args.first()) {
                (
                    Op::PtrAdd | Op::Splat | Op::Broadcast | Op::ExpandDims(_) | Op::Reshape | Op::Permute(_),
                    Some(from),
                ) => pointer = *from,
                _ => return false,
            }
        }
        self.k.params.iter().any(|p| p.value == pointer && p.readonly)
    }
}
