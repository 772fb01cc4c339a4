//! What a running program tells: printed blocks, and assertions.
use super::{Flow, Machine, Said};
use crate::block::{memory::*, value::*};
use kiln_block::{Elem, Value};

impl Machine<'_, '_> {
    pub(super) fn print(&mut self, flow: &Flow, args: &[Value], text: &str) -> Said<()> {
        let value = args.first().map(|v| Ok::<_, String>(shown(&*flow.block(*v)?))).transpose()?;
        let (inst, instance) = (self.at, self.instance.at);
        self.observer.as_mut().map_or(Ok(()), |o| o.print(inst, instance, text, value.as_ref()))
    }
    pub(super) fn assert(&mut self, flow: &Flow, args: &[Value], text: &str) -> Said<()> {
        let holds = flow.block(args[0])?;
        let mask = args.get(1).map(|v| flow.block(*v)).transpose()?;
        let fails = |i: &usize| holds.ints()[*i] == 0 && mask.as_ref().is_none_or(|m| m.ints()[*i] != 0);
        match (0..holds.count()).find(fails) {
            Some(i) => Err(format!("the assertion does not hold for element {i}: {text}")),
            None => Ok(()),
        }
    }
}

/// A block as its reader sees it: pointers as numbers.
fn shown(block: &Block) -> Buffer {
    let elem = if matches!(block.data, Data::Ptr(_)) { Elem::I64 } else { block.elem };
    let mut buffer = Buffer::zeros(elem, &block.shape);
    (0..block.count()).for_each(|i| buffer.write(i, element(block, i)));
    buffer
}
