//! Decompositions of the composites of a body ([`kiln_graph::decompose`]).
use crate::error::LowerError;
use kiln_graph::decompose::decompose;
use kiln_graph::ops::Class;
use kiln_graph::{Graph, Op, ValueId};
use std::collections::HashMap;

/// The decompositions of a body's row-wise and pointwise composites.
#[derive(Default)]
pub struct Decomposed(HashMap<ValueId, Graph>);

impl Decomposed {
    pub fn of(kernel: &str, body: &Graph) -> Result<Decomposed, LowerError> {
        let mut all = HashMap::new();
        for v in body.values().filter(|&v| is_decomposed(body.op(v))) {
            let invariant = |what: String| LowerError::Invariant { kernel: kernel.to_string(), what };
            if let Some(part) =
                decompose(body, v).map_err(|e| invariant(format!("{} has no form: {e}", body.op(v).name())))?
            {
                all.insert(v, part);
            }
        }
        Ok(Decomposed(all))
    }
    pub fn get(&self, v: ValueId) -> Option<&Graph> {
        self.0.get(&v)
    }
}

/// Whether scalar programs take an op apart: unary functions have instructions or formulas ([`crate::emit::math`]), and
/// ops that are computed whole, as matmuls and convolutions, have programs of their own.
fn is_decomposed(op: &Op) -> bool {
    let row = op.row();
    row.decompose.is_some() && matches!(row.class, Class::Row | Class::Pointwise) && !matches!(op, Op::Softmax { .. })
}
