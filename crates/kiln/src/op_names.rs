//! Names of ops in reports.
use kiln_graph::Op;

/// A short name of an op, as the text form spells it.
pub fn op_name(op: &Op) -> String {
    match op {
        Op::Fallback(f) => f.name.clone(),
        Op::Launch(launch) => launch.program.name.clone(),
        _ => op.name().into(),
    }
}
