//! Loop-invariant code motion: what a loop computes from values outside of it moves in front of it.
//!
//! Pure ops always; loads through `readonly` pointers only where the loop is known to run, so that no load is executed
//! that was not before.
use crate::{BlockProgram, Inst, InstData, Op, Region, Value, analysis};
use std::collections::HashSet;

pub fn run(k: &mut BlockProgram) {
    let facts = analysis::analyse(k);
    let mut body = std::mem::take(&mut k.body);
    region(k, &facts, &mut body);
    k.body = body;
}

fn region(k: &mut BlockProgram, facts: &analysis::Analysis, r: &mut Region) {
    let old = std::mem::take(&mut r.insts);
    for i in old {
        let mut regions = std::mem::take(&mut k.inst_mut(i).regions);
        for inner in &mut regions {
            region(k, facts, inner);
        }
        if matches!(k.inst(i).op, Op::For | Op::While) {
            let runs = k.inst(i).op == Op::While || runs(facts, k.inst(i));
            for inner in &mut regions {
                r.insts.append(&mut invariant(k, facts, runs, inner));
            }
        }
        k.inst_mut(i).regions = regions;
        r.insts.push(i);
    }
}

/// Whether the loop has at least one iteration in every instance.
fn runs(facts: &analysis::Analysis, data: &InstData) -> bool {
    let number = |v: Value| facts.affine(v).and_then(analysis::Affine::as_constant);
    matches!((number(data.args[0]), number(data.args[1])), (Some(lo), Some(hi)) if lo < hi)
}

/// Takes the instructions out of the region that depend on nothing inside it.
fn invariant(k: &BlockProgram, facts: &analysis::Analysis, runs: bool, r: &mut Region) -> Vec<Inst> {
    let mut inside: HashSet<Value> = r.params.iter().copied().collect();
    let readonly = |v: Value| {
        let root = facts.affine(v).and_then(|f| f.root);
        k.params.iter().any(|p| p.readonly && Some(p.value) == root)
    };
    let (mut out, mut rest) = (vec![], vec![]);
    for i in std::mem::take(&mut r.insts) {
        let data = k.inst(i);
        let may = data.op.is_pure() || (runs && matches!(data.op, Op::Load(..)) && readonly(data.args[0]));
        if may && data.args.iter().all(|v| !inside.contains(v)) {
            out.push(i);
        } else {
            inside.extend(&data.results);
            rest.push(i);
        }
    }
    r.insts = rest;
    out
}
