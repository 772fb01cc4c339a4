//! Collectives: fallbacks that exchange tensors with other processes.
//!
//! They have an effect, which other values of a graph do not: every process of a group must run the same collectives in
//! the same order, or all of them wait for each other. Plans cannot promise that by themselves. Processes may have
//! shards of different shapes, so their plans differ, and two collectives that are independent of each other could
//! trade places in one of them.
//!
//! So the order is part of the graph: each collective has the one before it among its operands, as the last one if its
//! arguments do not name it ([`check_order`]). Any order of kernels that respects operands then respects the order of
//! collectives. The last one is an output of an imported graph, so that no rewrite finds the chain or a part of it
//! unused.
use super::{Operator, lines};
use crate::{Graph, GraphError, Op, ValueId};
use std::{collections::HashMap, sync::LazyLock};

const LIST: &str = include_str!("collectives.txt");

/// By their full names; there are no overloads.
pub(super) static COLLECTIVES: LazyLock<HashMap<&'static str, Operator>> = LazyLock::new(|| lines(LIST));

/// Whether a fallback of this name exchanges tensors with other processes.
pub fn is_collective(name: &str) -> bool {
    COLLECTIVES.contains_key(name)
}

/// Checks that every collective after the first has the one before it as an operand.
pub(crate) fn check_order(g: &Graph) -> Result<(), GraphError> {
    let mut last: Option<(ValueId, &str)> = None;
    for v in g.values() {
        let Op::Fallback(op) = g.op(v) else { continue };
        if !is_collective(&op.name) {
            continue;
        }
        if let Some((before, name)) = last
            && !g.args(v).contains(&before)
        {
            let what = format!(
                "`{}` could run before `{name}`, and processes that run collectives in different orders wait for each \
                 other forever; make {before} its last operand",
                op.name
            );
            return Err(GraphError::Invalid { value: v, what });
        }
        last = Some((v, &op.name));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_list_parses() {
        let all: Vec<&str> = LIST.lines().filter(|l| !l.is_empty() && !l.starts_with('#')).collect();
        assert_eq!(COLLECTIVES.len(), all.len());
        assert!(is_collective("_c10d_functional::all_reduce") && is_collective("_dtensor::shard_dim_alltoall"));
        for other in ["_c10d_functional::all_reduce_", "_c10d_functional::wait_tensor", "aten::add", "all_reduce"] {
            assert!(!is_collective(other), "{other}");
        }
    }

    /// Two sums over all processes; `%2` has `operands`.
    fn two(operands: &str) -> Result<Graph, String> {
        let call = r#"name="_c10d_functional::all_reduce" overload="" args="[{\"tensor\":0},\"sum\",\"0\"]" results=[f32[4]] why="""#;
        let text = format!(
            "graph g(%x: f32[4]) {{\n %1 = fallback %x {call}\n %2 = fallback {operands} {call}\n return %1, %2\n}}"
        );
        text.parse::<Graph>().map_err(|e| e.to_string())
    }

    #[test]
    fn collectives_are_a_chain() {
        assert_eq!(two("%x, %1").map(|g| g.outputs.len()), Ok(2));
        assert_eq!(two("%1").map(|g| g.outputs.len()), Ok(2));
        let e = two("%x").unwrap_err();
        assert!(e.contains("could run before `_c10d_functional::all_reduce`") && e.contains("its last operand"), "{e}");
        // One operand orders; another one has no meaning.
        let e = two("%x, %1, %x").unwrap_err();
        assert!(e.contains("has 3 operands, its arguments name 1"), "{e}");
    }

    #[test]
    fn arguments_are_those_of_the_schema() {
        let check = |name: &str, args: &str| {
            let ty = crate::Type::new(crate::DType::F32, [4]);
            super::super::check_arguments(name, "", args, &[&ty]).err().unwrap_or_default()
        };
        assert_eq!(check("_c10d_functional::all_gather_into_tensor", r#"[{"tensor":0},2,"0"]"#), "");
        let e = check("_c10d_functional::all_gather_into_tensor", r#"[{"tensor":0},2,0]"#);
        assert!(e.contains("argument `group_name`") && e.contains("not a string"), "{e}");
        let e = check("_c10d_functional::all_reduce_", r#"[{"tensor":0},"sum","0"]"#);
        assert!(e.contains("not among the operators"), "{e}");
        // A collective is not an operator of `aten`.
        let e = check("aten::_c10d_functional::all_reduce", r#"[{"tensor":0},"sum","0"]"#);
        assert!(e.contains("not among the operators"), "{e}");
    }
}
