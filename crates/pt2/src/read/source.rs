//! Where in the source a node is from, and what to do about an operator that is not PyTorch's.
use crate::schema::Node;
use kiln_aten::Problem;

/// The frames of a node's Python stack, innermost first, each as `file:line`.
pub fn frames(node: &Node) -> String {
    let trace = node.metadata.get("stack_trace").map(String::as_str).unwrap_or_default();
    let frame = |line: &str| {
        let (file, rest) = line.trim().strip_prefix("File \"")?.split_once("\", line ")?;
        let number: String = rest.chars().take_while(char::is_ascii_digit).collect();
        Some(format!("{file}:{number}"))
    };
    let mut all: Vec<String> = trace.lines().filter_map(frame).collect();
    all.reverse();
    all.join("\n")
}

/// The path of the innermost module: the last entry `key,path,class` of the node's stack.
pub fn module(node: &Node) -> String {
    let stack = node.metadata.get("nn_module_stack").map(String::as_str).unwrap_or_default();
    stack.rsplit(';').next().and_then(|entry| entry.split(',').nth(1)).unwrap_or_default().to_string()
}

/// What to do about a matmul of groups of rows whose sizes are data, as mixtures of experts have. Those of transformers
/// are written in several ways.
pub const EXPERTS: &str = "for a model of transformers, call model.set_experts_implementation(\"batched_mm\") before \
                           the export; torch.compile and kiln.compile take the model as it is";

/// Whether an operator is such a matmul.
pub fn is_of_experts(target: &str) -> bool {
    target.contains("grouped_mm")
}

/// Why an operator that is not ATen's is refused.
pub fn foreign(target: &str) -> Problem {
    let help = if target.starts_with("torch.ops._c10d_functional") {
        // An archive is run by one process.
        "it exchanges tensors with other processes: compile the model in Python under torchrun, with torch.compile"
    } else if is_of_experts(target) {
        EXPERTS
    } else if target.starts_with("torch.ops.higher_order") {
        "if it is not in `program.run_decompositions({})`, save that; else export the model without control flow"
    } else {
        "write it with ATen operators"
    };
    Problem::new(format!("`{target}` is not an ATen operator")).help(help)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn collectives_are_left_to_python() {
        let e = foreign("torch.ops._c10d_functional.all_reduce.default").to_string();
        assert!(e.contains("is not an ATen operator") && e.contains("in Python under torchrun"), "{e}");
        let e = foreign("torch.ops.torchvision.nms.default").to_string();
        assert!(e.contains("write it with ATen operators"), "{e}");
    }

    #[test]
    fn matmuls_of_experts_have_another_form() {
        let e = foreign("torch.ops.transformers.grouped_mm_fallback.default").to_string();
        assert!(e.contains("is not an ATen operator") && e.contains("set_experts_implementation"), "{e}");
    }

    #[test]
    fn frames_are_innermost_first() {
        let trace = "  File \"/m/model.py\", line 3, in forward\n    y = self.f(x)\n  File \"/m/layer.py\", line 12, \
                     in forward\n";
        let metadata = BTreeMap::from([
            ("stack_trace".to_string(), trace.to_string()),
            ("nn_module_stack".to_string(), "L__self__,,Net;L__self___layer,layer.0,Layer".to_string()),
        ]);
        let node = Node { target: String::new(), inputs: vec![], outputs: vec![], metadata };
        assert_eq!((frames(&node).as_str(), module(&node).as_str()), ("/m/layer.py:12\n/m/model.py:3", "layer.0"));
    }
}
