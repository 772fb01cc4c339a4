//! Rewriting a program: its instructions keep their values, and what is built goes between them.
//!
//! A pass visits a program's instructions and appends to the open region what is to be there: instructions that it
//! keeps, copies of them on other values, and new ones. [`Builder::rewrite`] does the visiting where what becomes of an
//! instruction does not depend on its region; passes that change regions open them themselves.
use super::Builder;
use crate::{BlockProgram, Inst, InstData, Op, Region, Type, Value};
use std::collections::HashMap;

/// Values, by those in whose place they are.
pub(crate) type Names = HashMap<Value, Value>;

/// A value in place of another, or that one itself.
pub(crate) fn renamed(names: &Names, v: Value) -> Value {
    names.get(&v).copied().unwrap_or(v)
}

impl Builder {
    /// The program with what `rewrite` appends in place of each instruction, whose regions are rewritten before.
    pub(crate) fn rewrite(program: BlockProgram, mut rewrite: impl FnMut(&mut Builder, Inst)) -> BlockProgram {
        let mut b = Builder::of(program);
        let body = std::mem::take(&mut b.kernel.body.insts);
        b.visit(body, &mut rewrite);
        b.finish()
    }
    fn visit(&mut self, insts: Vec<Inst>, rewrite: &mut impl FnMut(&mut Builder, Inst)) {
        for inst in insts {
            let mut regions = std::mem::take(&mut self.kernel.inst_mut(inst).regions);
            for region in &mut regions {
                self.open_list();
                self.visit(std::mem::take(&mut region.insts), rewrite);
                region.insts = self.close_list();
            }
            self.kernel.inst_mut(inst).regions = regions;
            rewrite(self, inst);
        }
    }
    /// Appends an instruction of the program.
    pub(crate) fn keep(&mut self, inst: Inst) {
        if let Some(region) = self.open.last_mut() {
            region.insts.push(inst);
        }
    }
    /// Appends an instruction that gives these values of the program.
    pub(crate) fn define(&mut self, results: &[Value], op: Op, args: &[Value], regions: Vec<Region>) {
        let data = InstData { op, args: args.to_vec(), results: results.to_vec(), regions };
        let inst = self.kernel.new_inst(data);
        self.keep(inst);
    }
    /// Appends copies of instructions without regions, on the values that are in place of their operands; notes what
    /// they give in place of their results.
    pub(crate) fn copies(&mut self, k: &BlockProgram, insts: &[Inst], names: &mut Names) {
        for data in insts.iter().map(|i| k.inst(*i)) {
            let args: Vec<Value> = data.args.iter().map(|v| renamed(names, *v)).collect();
            let types: Vec<Type> = data.results.iter().map(|v| k.ty(*v).clone()).collect();
            let made = self.inst(data.op.clone(), &args, &types, vec![]);
            names.extend(data.results.iter().copied().zip(made));
        }
    }
    /// The instruction that was appended last.
    pub(crate) fn last(&self) -> Option<Inst> {
        self.open.last()?.insts.last().copied()
    }
    /// New values of the types of others.
    pub(crate) fn like(&mut self, values: &[Value]) -> Vec<Value> {
        let types: Vec<Type> = values.iter().map(|v| self.ty(*v).clone()).collect();
        types.into_iter().map(|ty| self.kernel.new_value(ty)).collect()
    }
    /// A value that an instruction will define.
    pub(crate) fn new_value(&mut self, ty: Type) -> Value {
        self.kernel.new_value(ty)
    }
    /// Opens a region with values of the program as parameters.
    pub(crate) fn open_region_of(&mut self, params: Vec<Value>) {
        self.open.push(Region { params, insts: vec![] });
    }
    /// Opens a list of instructions, which [`Builder::close_list`] takes out again.
    pub(crate) fn open_list(&mut self) {
        self.open.push(Region::default());
    }
    pub(crate) fn close_list(&mut self) -> Vec<Inst> {
        self.open.pop().map(|region| region.insts).unwrap_or_default()
    }
    /// Appends what was taken out.
    pub(crate) fn append(&mut self, insts: Vec<Inst>) {
        if let Some(region) = self.open.last_mut() {
            region.insts.extend(insts);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::{parse, print};
    use crate::{BinaryOp, verify::verify};

    const LOOP: &str = "\
kernel @k(%n: i32, %out: ptr<i32>) grid launch warps 1 {
  v2 = const 0 : i32
  v3 = const 1 : i32
  v7 = for v4 in v2..%n step v3 with (v5 = v2 : i32) {
    v6 = add v5, v4 : i32
    yield v6
  }
  store %out, v7
}
";

    #[test]
    fn regions_are_rewritten_before_the_instruction_that_has_them() {
        let program = parse(LOOP).expect("valid");
        let mut order = vec![];
        let same = Builder::rewrite(program.clone(), |b, i| {
            order.push(b.program().inst(i).op.clone());
            b.keep(i);
        });
        assert_eq!(print(&same), print(&program));
        let at = |op: &Op| order.iter().position(|o| o == op);
        assert!(at(&Op::Binary(BinaryOp::Add)) < at(&Op::For), "{order:?}");
    }

    #[test]
    fn what_is_built_lies_where_the_instruction_did() {
        let program = parse(LOOP).expect("valid");
        let twice = Builder::rewrite(program.clone(), |b, i| {
            b.keep(i);
            if program.inst(i).op == Op::Binary(BinaryOp::Add) {
                b.copies(&program, &[i], &mut Names::new());
            }
        });
        verify(&twice).expect("sound");
        assert_eq!(print(&twice).matches(" = add v5, v4 : i32\n").count(), 2, "{}", print(&twice));
    }
}
