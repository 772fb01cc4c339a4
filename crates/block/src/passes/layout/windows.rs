//! Finds the loads of windows: three or more loads of one buffer, each of which reads the neighbours of what the others
//! read.
use crate::{BlockProgram, LoadMode, Op, Value};
use std::collections::HashMap;

/// Least number of loads from one buffer that make a window.
pub const WINDOW: usize = 3;

/// Marks them [`LoadMode::Window`].
pub(super) fn mark(k: &mut BlockProgram) {
    let mut roots: HashMap<Value, Value> = HashMap::new();
    let mut loads: HashMap<Value, Vec<Value>> = HashMap::new();
    k.walk(&mut |_, d| {
        let (Some(&from), Some(&to)) = (d.args.first(), d.results.first()) else { return };
        let root = roots.get(&from).copied().unwrap_or(from);
        match d.op {
            Op::PtrAdd | Op::Splat | Op::Broadcast | Op::ExpandDims(_) => _ = roots.insert(to, root),
            Op::Load(..) => loads.entry(root).or_default().push(to),
            _ => {}
        }
    });
    let windows: Vec<Value> = loads.into_values().filter(|l| l.len() >= WINDOW).flatten().collect();
    for data in &mut k.insts {
        if let Op::Load(_, cache) = data.op
            && windows.contains(&data.results[0])
        {
            data.op = Op::Load(LoadMode::Window, cache);
        }
    }
}
