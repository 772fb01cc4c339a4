//! Which instructions read each value.
use crate::{BlockProgram, Inst, Value};
use std::collections::HashMap;

/// The instructions that read each value, in program order.
pub(crate) struct Readers(HashMap<Value, Vec<Inst>>);

impl Readers {
    pub fn of(k: &BlockProgram) -> Readers {
        let mut all: HashMap<Value, Vec<Inst>> = HashMap::new();
        k.walk(&mut |i, d| d.args.iter().for_each(|v| all.entry(*v).or_default().push(i)));
        Readers(all)
    }
    pub fn reading(&self, v: Value) -> &[Inst] {
        self.0.get(&v).map_or(&[], |all| &all[..])
    }
}
