//! Cells of recurrent networks: one step in time. Whole networks over sequences are left to libtorch.
use super::{
    Table,
    context::{Ctx, Res},
};
use crate::raw::Call;
use kiln_graph::{BinaryOp, DType, Op, UnaryOp, ValueId};
use {BinaryOp::*, UnaryOp::*};

pub const TABLE: Table = &[
    ("aten::rnn_tanh_cell", |c, call| simple_cell(c, call, Tanh)),
    ("aten::rnn_relu_cell", |c, call| simple_cell(c, call, Relu)),
    ("aten::gru_cell", gru_cell),
    ("aten::lstm_cell", lstm_cell),
    ("aten::_thnn_fused_gru_cell", |c, call| {
        let gates = [gates(c, call, 0, 3)?, gates(c, call, 1, 4)?];
        let h = c.tensor(call, 2)?;
        gru_step(c, gates, h)
    }),
    ("aten::_thnn_fused_lstm_cell", |c, call| {
        let gates = [gates(c, call, 0, 3)?, gates(c, call, 1, 4)?];
        let cell = c.tensor(call, 2)?;
        lstm_step(c, gates, cell)
    }),
];

/// Projected input or hidden state at `at`, plus the bias at `bias_at` if there is one.
fn gates(c: &mut Ctx, call: &Call, at: usize, bias_at: usize) -> Res<ValueId> {
    let x = c.tensor(call, at)?;
    match c.opt_tensor(call, bias_at)? {
        Some(bias) => c.binary(Add, x, bias),
        None => Ok(x),
    }
}

/// Linear projections of input and hidden state, from the weights and biases at `at`: `(w of x, w of h, b of x?, b of
/// h?)`.
fn projected(c: &mut Ctx, call: &Call, x: ValueId, h: ValueId, at: usize) -> Res<[ValueId; 2]> {
    let project = |c: &mut Ctx, x, i| {
        let mut args = vec![x, c.tensor(call, at + i)?];
        args.extend(c.opt_tensor(call, at + 2 + i)?);
        c.node(Op::Linear, &args)
    };
    Ok([project(c, x, 0)?, project(c, h, 1)?])
}

/// Part `i` of `n` equal parts of the last axis.
fn part(c: &mut Ctx, x: ValueId, i: usize, n: usize) -> Res<ValueId> {
    let last = c.last_axis(x)?;
    let len = c.size(x, last)? / n;
    c.slice(x, last, i * len, len, 1)
}

/// `(x, h, …)`: `activation(W x + V h)`.
fn simple_cell(c: &mut Ctx, call: &Call, activation: UnaryOp) -> Res<Vec<ValueId>> {
    let (x, h) = (c.tensor(call, 0)?, c.tensor(call, 1)?);
    let [x, h] = projected(c, call, x, h, 2)?;
    let sum = c.binary(Add, x, h)?;
    Ok(vec![c.unary(activation, sum)?])
}

/// `(x, h, …)`.
fn gru_cell(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (x, h) = (c.tensor(call, 0)?, c.tensor(call, 1)?);
    let gates = projected(c, call, x, h, 2)?;
    gru_step(c, gates, h)
}

/// `(x, [h, cell], …)`.
fn lstm_cell(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (x, state) = (c.tensor(call, 0)?, c.tensors(call, 1)?);
    let [h, cell] = state[..] else { return Err("an LSTM cell without its two states".into()) };
    let gates = projected(c, call, x, h, 2)?;
    lstm_step(c, gates, cell)
}

/// The type in which steps compute: gates and states in f32 for narrower floats, rounded once.
fn wide(c: &mut Ctx, values: [ValueId; 3]) -> Res<([ValueId; 3], DType)> {
    let dtype = c.dtype(values[2]);
    let mut all = values;
    for v in &mut all {
        *v = c.cast(*v, dtype.compute())?;
    }
    Ok((all, dtype))
}

/// Gates of the input and of the hidden state, each (reset, update, new) along the last axis: `n + z (h - n)` with
/// `n = tanh(n_x + r n_h)`.
fn gru_step(c: &mut Ctx, [x, h]: [ValueId; 2], state: ValueId) -> Res<Vec<ValueId>> {
    let ([x, h, state], dtype) = wide(c, [x, h, state])?;
    let gate = |c: &mut Ctx, i| {
        let (a, b) = (part(c, x, i, 3)?, part(c, h, i, 3)?);
        let sum = c.binary(Add, a, b)?;
        c.unary(Sigmoid, sum)
    };
    let (reset, update) = (gate(c, 0)?, gate(c, 1)?);
    let (new_x, new_h) = (part(c, x, 2, 3)?, part(c, h, 2, 3)?);
    let kept = c.binary(Mul, reset, new_h)?;
    let new = c.binary(Add, new_x, kept)?;
    let new = c.unary(Tanh, new)?;
    let back = c.binary(Sub, state, new)?;
    let back = c.binary(Mul, back, update)?;
    let r = c.binary(Add, back, new)?;
    Ok(vec![c.cast(r, dtype)?])
}

/// Gates of the input and of the hidden state, each (input, forget, cell, output) along the last axis. Results: hidden
/// state and cell.
fn lstm_step(c: &mut Ctx, [x, h]: [ValueId; 2], cell: ValueId) -> Res<Vec<ValueId>> {
    let ([x, h, cell], dtype) = wide(c, [x, h, cell])?;
    let sum = c.binary(Add, x, h)?;
    let gate = |c: &mut Ctx, i, activation| {
        let gate = part(c, sum, i, 4)?;
        c.unary(activation, gate)
    };
    let (input, forget, new, output) =
        (gate(c, 0, Sigmoid)?, gate(c, 1, Sigmoid)?, gate(c, 2, Tanh)?, gate(c, 3, Sigmoid)?);
    let (kept, added) = (c.binary(Mul, forget, cell)?, c.binary(Mul, input, new)?);
    let cell = c.binary(Add, kept, added)?;
    let shown = c.unary(Tanh, cell)?;
    let hidden = c.binary(Mul, output, shown)?;
    Ok(vec![c.cast(hidden, dtype)?, c.cast(cell, dtype)?])
}
