//! Differences of a product and something else as sums with the negative: `x * c - m` becomes `x * c + (-m)`, which
//! code generation may contract to one FMA, where it keeps differences apart.
//!
//! Only where nothing else has the product: `p - mean(p)` of one rounded `p` stays zero where all of `p` is equal.
//! Scores less their maximum are such differences, of one instruction an element then. The values are the same.
use crate::{BinaryOp as B, BlockProgram, Elem, Inst, InstData, Op, Region, UnaryOp, Value};
use std::collections::{HashMap, HashSet};

pub fn run(kernel: &BlockProgram) -> BlockProgram {
    let mut k = kernel.clone();
    let products = products_used_once(kernel);
    let mut body = std::mem::take(&mut k.body);
    region(&mut k, &mut body, &products);
    k.body = body;
    k
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

fn region(k: &mut BlockProgram, r: &mut Region, products: &HashSet<Value>) {
    for inst in std::mem::take(&mut r.insts) {
        let mut regions = std::mem::take(&mut k.inst_mut(inst).regions);
        regions.iter_mut().for_each(|inner| region(k, inner, products));
        k.inst_mut(inst).regions = regions;
        if let (Op::Binary(B::Sub), [product, taken]) = (&k.inst(inst).op, &k.inst(inst).args[..])
            && products.contains(product)
        {
            let (product, taken) = (*product, *taken);
            r.insts.push(as_sum(k, inst, product, taken));
        }
        r.insts.push(inst);
    }
}

/// Makes a difference a sum; gives the instruction of the negative.
fn as_sum(k: &mut BlockProgram, inst: Inst, product: Value, taken: Value) -> Inst {
    let negative = k.new_value(k.ty(taken).clone());
    let data = k.inst(inst).clone();
    *k.inst_mut(inst) = InstData { op: Op::Binary(B::Add), args: vec![product, negative], ..data };
    let negated = InstData { op: Op::Unary(UnaryOp::Neg), args: vec![taken], results: vec![negative], regions: vec![] };
    k.new_inst(negated)
}
