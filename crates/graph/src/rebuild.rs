//! Copies of graphs: with substitutions, without dead nodes, with other graphs inlined, without names.
use crate::{Graph, GraphError, Op, Source, Type, ValueId};

impl Graph {
    /// Copies the graph node by node, in topological order. For every node, `replace` gets the new graph, the old
    /// value, and its operands in the new graph. It returns the replacement value, or `None` to copy the node
    /// unchanged, with its type inferred again. Nodes that `replace` adds get the old node's source. Inputs, outputs
    /// and parameters keep their order; inputs stay even if replaced.
    pub fn rebuild(
        &self,
        mut replace: impl FnMut(&mut Graph, ValueId, &[ValueId]) -> Result<Option<ValueId>, GraphError>,
    ) -> Result<Graph, GraphError> {
        let mut new = Graph::new(self.name.clone());
        new.params = self.params.clone();
        let mut inputs = vec![None; self.inputs.len()];
        let mut map: Vec<ValueId> = Vec::with_capacity(self.len());
        for v in self.values() {
            let args: Vec<ValueId> = self.args(v).iter().map(|a| map[a.0 as usize]).collect();
            let first = new.len();
            let kept = match self.op(v) {
                Op::Input(i) => {
                    let kept = new.push(Op::Input(*i), self.ty(v).clone(), &[]);
                    inputs[*i as usize] = Some(kept);
                    Some(kept)
                }
                _ => None,
            };
            let value = match (replace(&mut new, v, &args)?, kept) {
                (Some(replacement), _) | (None, Some(replacement)) => replacement,
                (None, None) if self.op(v).is_leaf() => new.push(self.op(v).clone(), self.ty(v).clone(), &[]),
                (None, None) => new.add(self.op(v).clone(), &args)?,
            };
            for made in first..new.len() {
                let made = ValueId(made as u32);
                if *new.source(made) == Source::default() {
                    new.set_source(made, self.source(v).clone());
                }
            }
            map.push(value);
        }
        new.inputs = inputs.into_iter().flatten().collect();
        new.outputs = self.outputs.iter().map(|o| map[o.0 as usize]).collect();
        Ok(new)
    }

    /// For each value, whether an output depends on it.
    pub fn live(&self) -> Vec<bool> {
        let mut live = vec![false; self.len()];
        for o in &self.outputs {
            live[o.0 as usize] = true;
        }
        for v in self.values().rev() {
            if live[v.0 as usize] {
                for a in self.args(v) {
                    live[a.0 as usize] = true;
                }
            }
        }
        live
    }

    /// A copy without dead nodes. All inputs stay, since they are the signature, and so does the list of parameters,
    /// since its order is that of their data.
    pub fn without_dead(&self) -> Graph {
        let live = self.live();
        let mut new = Graph::new(self.name.clone());
        new.params = self.params.clone();
        let mut map = vec![ValueId(0); self.len()];
        for v in self.values().filter(|v| live[v.0 as usize] || matches!(self.op(*v), Op::Input(_))) {
            let args: Vec<ValueId> = self.args(v).iter().map(|a| map[a.0 as usize]).collect();
            let copy = new.push(self.op(v).clone(), self.ty(v).clone(), &args);
            new.set_source(copy, self.source(v).clone());
            map[v.0 as usize] = copy;
        }
        new.inputs = self.inputs.iter().map(|v| map[v.0 as usize]).collect();
        new.outputs = self.outputs.iter().map(|v| map[v.0 as usize]).collect();
        new
    }

    /// Copies the nodes of `part` into this graph with `args` as its inputs; returns its outputs. An error if `part`
    /// has parameters, or if `args` do not have the types of its inputs.
    pub fn inline(&mut self, part: &Graph, args: &[ValueId]) -> Result<Vec<ValueId>, GraphError> {
        let invalid = |what: String| GraphError::Invalid { value: ValueId(0), what };
        if !part.params.is_empty() {
            return Err(invalid(format!("`{}` has parameters of its own; pass them as inputs", part.name)));
        }
        let given: Vec<&Type> = args.iter().map(|a| self.ty(*a)).collect();
        if !given.iter().copied().eq(part.inputs.iter().map(|i| part.ty(*i))) {
            return Err(invalid(format!("operands {given:?} do not have the types of the inputs of `{}`", part.name)));
        }
        let mut map: Vec<ValueId> = Vec::with_capacity(part.len());
        for v in part.values() {
            let value = match part.op(v) {
                Op::Input(i) => args[*i as usize],
                op => {
                    let operands: Vec<ValueId> = part.args(v).iter().map(|a| map[a.0 as usize]).collect();
                    let value = self.push(op.clone(), part.ty(v).clone(), &operands);
                    self.set_source(value, part.source(v).clone());
                    value
                }
            };
            map.push(value);
        }
        Ok(part.outputs.iter().map(|o| map[o.0 as usize]).collect())
    }

    /// A copy without names and source locations.
    pub fn bare(&self) -> Graph {
        let mut bare = self.clone();
        bare.name.clear();
        for p in &mut bare.params {
            p.name.clear();
        }
        for v in self.values() {
            bare.set_source(v, Source::default());
        }
        bare
    }
}
