//! Reductions and scans by a region: element after element along the axis.
use super::{Flow, Frame, Machine, Said, Stop};
use crate::block::{memory::*, shape::lines, value::*};
use kiln_block::{InstData, Op, Region};
use std::rc::Rc;

impl<'a> Machine<'a, '_> {
    pub(super) fn combine(&mut self, flow: &mut Flow<'a>, data: &InstData) -> Said<()> {
        let (axis, scan, reverse) = match data.op {
            Op::ReduceBy { axis } => (axis as usize, false, false),
            Op::ScanBy { axis, reverse } => (axis as usize, true, reverse),
            _ => return Err("nothing to combine".into()),
        };
        let Some(inst) = self.k.insts.iter().find(|d| d.results == data.results && d.op == data.op) else {
            return Err("a combination without a region".into());
        };
        let operands = data.args.iter().map(|v| flow.block(*v)).collect::<Said<Vec<_>>>()?;
        let mut out: Vec<Vec<Scalar>> = operands.iter().map(|b| vec![Scalar::Int(0); b.count()]).collect();
        for (n, mut line) in lines(&operands[0].shape, axis).into_iter().enumerate() {
            if reverse {
                line.reverse();
            }
            let mut so_far: Option<Vec<Scalar>> = None;
            for at in line {
                let next: Vec<Scalar> = operands.iter().map(|b| element(b, at)).collect();
                let now = match so_far {
                    None => next,
                    Some(before) => self.combined(flow, &inst.regions[0], &operands, &before, &next)?,
                };
                let to = if scan { at } else { n };
                out.iter_mut().zip(&now).for_each(|(out, v)| out[to] = *v);
                so_far = Some(now);
            }
        }
        for ((v, b), all) in data.results.iter().zip(&operands).zip(out) {
            let shape = self.k.ty(*v).shape().to_vec();
            let count = shape.iter().product();
            let block = collected(b.elem, &shape, all.into_iter().take(count));
            flow.set(*v, Val::Block(Rc::new(block)));
        }
        Ok(())
    }
    /// What the region gives for an element of each operand and another of each.
    fn combined(
        &mut self,
        outer: &Flow<'a>,
        region: &'a Region,
        operands: &[Rc<Block>],
        before: &[Scalar],
        next: &[Scalar],
    ) -> Said<Vec<Scalar>> {
        let frames = vec![Frame { region, next: 0, owner: None, counter: None }];
        let mut flow = Flow { values: outer.values.clone(), frames, ..Flow::default() };
        let elems = operands.iter().chain(operands).map(|b| b.elem);
        for ((v, elem), x) in region.params.iter().zip(elems).zip(before.iter().chain(next)) {
            flow.set(*v, Val::Block(Rc::new(collected(elem, &[], std::iter::once(*x)))));
        }
        match self.run(&mut flow).map_err(|e| e.to_string())? {
            Stop::Done => {}
            Stop::Waiting => return Err("a region that waits".into()),
        }
        let last = region.insts.last().map(|i| self.k.inst(*i).args.clone()).unwrap_or_default();
        last.iter().map(|v| Ok(element(&*flow.block(*v)?, 0))).collect()
    }
}
