//! Differences of a product and something else as sums with the negative: `x * c - m` becomes `x * c + (-m)`, which
//! code generation may contract to one FMA, where it keeps differences apart.
//!
//! Only where nothing else has the product: `p - mean(p)` of one rounded `p` stays zero where all of `p` is equal.
//! Scores less their maximum are such differences, of one instruction an element then. The values are the same.
use crate::{BinaryOp as B, BlockProgram, Builder, Elem, Op, UnaryOp, Value};
use std::collections::{HashMap, HashSet};

pub fn run(kernel: &BlockProgram) -> BlockProgram {
    let products = products_used_once(kernel);
    Builder::rewrite(kernel.clone(), |b, i| {
        let data = kernel.inst(i);
        match (&data.op, &data.args[..]) {
            (Op::Binary(B::Sub), [product, taken]) if products.contains(product) => {
                let negative = b.unary(UnaryOp::Neg, *taken);
                b.define(&data.results, Op::Binary(B::Add), &[*product, negative], vec![]);
            }
            _ => b.keep(i),
        }
    })
}

fn products_used_once(k: &BlockProgram) -> HashSet<Value> {
    let mut uses: HashMap<Value, usize> = HashMap::new();
    let mut products = HashSet::new();
    k.walk(&mut |_, d| {
        d.args.iter().for_each(|v| *uses.entry(*v).or_default() += 1);
        let is_f32 = |v: &Value| k.ty(*v).elem() == Some(Elem::F32);
        products.extend(d.results.iter().filter(|v| d.op == Op::Binary(B::Mul) && is_f32(v)));
    });
    products.retain(|v| uses.get(v) == Some(&1));
    products
}
