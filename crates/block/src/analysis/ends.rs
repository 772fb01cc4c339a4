//! Loops that end at a number read from memory.
use crate::{BlockProgram, Op, Type, Value};
use std::collections::BTreeSet;

/// The pointer parameters that upper bounds of loops are read through.
pub fn loop_ends(k: &BlockProgram) -> BTreeSet<Value> {
    let (made, mut open) = (k.definitions(), vec![]);
    k.walk(&mut |_, d| {
        if d.op == Op::For {
            open.extend(d.args.get(1));
        }
    });
    let mut seen: BTreeSet<Value> = BTreeSet::new();
    while let Some(v) = open.pop() {
        if seen.insert(v)
            && let Some(i) = made.get(&v)
        {
            open.extend(&k.inst(*i).args);
        }
    }
    let pointers = k.params.iter().map(|p| p.value).filter(|v| matches!(k.ty(*v), Type::Ptr { .. }));
    pointers.filter(|v| seen.contains(v)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Builder, Elem};

    #[test]
    fn of_two_loops_one_ends_at_what_is_read() {
        let mut b = Builder::new("k", [1, 1, 1], 1);
        let [x, n] = [("x", Elem::F32), ("n", Elem::I32)].map(|(name, elem)| b.param(name, elem, true));
        let (lo, step) = (b.i32(0), b.i32(1));
        let end = b.load(n, None, None);
        for hi in [step, end] {
            let start = b.load(x, None, None);
            b.for_loop([lo, hi, step], &[start], |_, _, now| now.to_vec());
        }
        assert_eq!(loop_ends(&b.finish()), BTreeSet::from([n]));
    }
}
