//! Waiting for collectives. The collectives themselves are fallbacks, whose results are complete before anything reads
//! them: so waiting is the identity here.
use super::{
    Table,
    context::{Ctx, Res},
};
use crate::raw::Call;
use kiln_graph::ValueId;

pub const TABLE: Table = &[
    ("_c10d_functional::wait_tensor", operand),
    // What autograd wraps around a result.
    ("_c10d_functional::_wrap_tensor_autograd", operand),
];

fn operand(ctx: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    Ok(vec![ctx.tensor(call, 0)?])
}
