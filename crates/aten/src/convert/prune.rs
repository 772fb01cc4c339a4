//! Drops dead nodes, such as those of failed conversions, and parameters that nothing reads. All inputs stay.
use super::{Converted, ParamData};
use kiln_graph::{Graph, Op, ParamId, ValueId};

pub fn prune(old: Graph, data: Vec<ParamData>) -> Converted {
    let mut live = vec![false; old.len()];
    for v in old.inputs.iter().chain(&old.outputs) {
        live[v.0 as usize] = true;
    }
    for v in old.values().rev() {
        if live[v.0 as usize] {
            old.args(v).into_iter().for_each(|a| live[a.0 as usize] = true);
        }
    }
    let mut new = Graph::new(old.name.clone());
    let mut params = vec![];
    let mut map = vec![ValueId(0); old.len()];
    for v in old.values().filter(|v| live[v.0 as usize]) {
        let args: Vec<ValueId> = old.args(v).into_iter().map(|a| map[a.0 as usize]).collect();
        let node = old.node(v);
        let op = match &node.op {
            Op::Param(p) => {
                let index = p.0 as usize;
                new.params.push(old.params[index].clone());
                params.push(data[index].clone());
                Op::Param(ParamId(new.params.len() as u32 - 1))
            }
            op => op.clone(),
        };
        let at = new.push(op, node.ty.clone(), &args);
        new.set_source(at, node.source.clone());
        map[v.0 as usize] = at;
    }
    new.inputs = old.inputs.iter().map(|v| map[v.0 as usize]).collect();
    new.outputs = old.outputs.iter().map(|v| map[v.0 as usize]).collect();
    Converted { graph: new, params }
}
