//! Common subexpression elimination: an earlier instruction in scope that computes the same replaces a later one.
//!
//! Covers pure ops, and loads through pointers that start from a `readonly` parameter. What a region computes is not
//! visible outside of it.
use crate::{BlockProgram, Const, Op, Region, Value, analysis};
use std::collections::HashMap;

pub fn run(k: &mut BlockProgram) {
    let facts = analysis::analyse(k);
    let readonly: Vec<Value> = k.params.iter().filter(|p| p.readonly).map(|p| p.value).collect();
    let mut body = std::mem::take(&mut k.body);
    let mut c = Cse { k, facts, readonly, seen: HashMap::new(), same: HashMap::new() };
    c.region(&mut body);
    k.body = body;
}

/// Op and result type as text (floats by bits), and operands.
type Key = (String, Vec<Value>);

struct Cse<'a> {
    k: &'a mut BlockProgram,
    facts: analysis::Analysis,
    readonly: Vec<Value>,
    seen: HashMap<Key, Value>,
    same: HashMap<Value, Value>,
}

impl Cse<'_> {
    fn region(&mut self, r: &mut Region) {
        let mut mine = vec![];
        let old = std::mem::take(&mut r.insts);
        for i in old {
            let mut data = self.k.inst(i).clone();
            data.args.iter_mut().for_each(|v| *v = self.same.get(v).copied().unwrap_or(*v));
            if let ([v], true) = (&data.results[..], self.takes(&data.op, &data.args)) {
                let key = self.key(&data.op, &data.args, *v);
                if let Some(first) = self.seen.get(&key) {
                    self.same.insert(*v, *first);
                    continue;
                }
                self.seen.insert(key.clone(), *v);
                mine.push(key);
            }
            for inner in &mut data.regions {
                self.region(inner);
            }
            *self.k.inst_mut(i) = data;
            r.insts.push(i);
        }
        for key in mine {
            self.seen.remove(&key);
        }
    }
    fn takes(&self, op: &Op, args: &[Value]) -> bool {
        let from = |v: &Value| self.facts.affine(*v).and_then(|f| f.root);
        op.is_pure()
            || (matches!(op, Op::Load(..)) && args.first().and_then(from).is_some_and(|r| self.readonly.contains(&r)))
    }
    fn key(&self, op: &Op, args: &[Value], result: Value) -> Key {
        let value = self.k.value(result);
        let op = match op {
            Op::Const(Const::Float(x)) => format!("float {:x}", x.to_bits()),
            op => format!("{op:?}"),
        };
        (format!("{op} {} {:?}", value.ty, value.layout), args.to_vec())
    }
}
