//! Launches of kernels written by hand, which an archive holds as calls of an operator with their program as text.
use super::{Reader, frames, module};
use crate::schema::{Argument, Node};
use kiln_aten::Problem;
use kiln_aten::convert::launch::{LAUNCH, PARAMETERS};
use kiln_aten::raw::Call;

/// The operator as archives name it.
pub const TARGET: &str = "torch.ops.kiln.launch.default";

impl<'a> Reader<'a> {
    /// Adds the call of a launch.
    pub(super) fn launch(&mut self, node: &'a Node) -> Result<(), Problem> {
        let lacks = |what: String| Problem::new(format!("a launch lacks {what}")).help("save the program again");
        let one = |name: &&str| {
            let given = node.inputs.iter().find(|i| i.name == *name);
            self.argument(&given.ok_or_else(|| lacks(format!("its argument `{name}`")))?.arg)
        };
        let args = PARAMETERS.iter().map(one).collect::<Result<Vec<_>, _>>()?;
        let mut outs = vec![];
        for out in &node.outputs {
            let Argument::AsTensors(all) = out else { return Err(lacks("results".into())) };
            for tensor in all {
                outs.push(self.value(&tensor.name, None)?);
            }
        }
        let (source, module) = (frames(node), module(node));
        let (name, overload) = (LAUNCH.to_string(), String::new());
        self.program.calls.push(Call { name, overload, args, outs, source, module, vouched: false });
        Ok(())
    }
}
