//! The epilogue of a matmul that was compiled for cuBLASLt and that the host computes instead: correct but slow.
use super::{offset, pack::Side};
use kiln_graph::Tensor;
use kiln_plan::exec::{Activation, Epilogue, GemmCall, Matrix};

/// Applies the epilogue of a call to the matmul in the tensor of c. `tensors`: those of [`GemmCall::slots`].
pub(crate) fn finish(g: &GemmCall, tensors: &mut [Tensor]) {
    let e = &*g.epilogue;
    if *e == Epilogue::default() {
        return;
    }
    let [_, _, c, extra @ ..] = tensors else { return };
    let (residual, bias) = extra.split_at(extra.len().min(usize::from(e.residual.is_some())));
    for i in 0..g.batch.iter().product() {
        let place = |m: &Matrix, row: usize, column: usize| {
            m.offset + offset(&m.batch_strides, &g.batch, i) + Side(&m.rows).at(row) + Side(&m.cols).at(column)
        };
        for (row, column) in (0..g.m).flat_map(|row| (0..g.n).map(move |column| (row, column))) {
            let at = place(&g.c, row, column);
            let mut v = e.scale * c.get_f64(at);
            if let (Some((m, factor)), [t]) = (&e.residual, residual) {
                v += factor * t.get_f64(place(m, row, column));
            }
            if let (Some((_, first)), [t]) = (e.bias, bias) {
                v += t.get_f64(first + column);
            }
            c.set_f64(at, activated(e.activation, v));
        }
    }
}

fn activated(activation: Option<Activation>, v: f64) -> f64 {
    match activation {
        None => v,
        // Not `max`, which drops NaN.
        Some(Activation::Relu) if v < 0.0 => 0.0,
        Some(Activation::Relu) => v,
        Some(Activation::GeluTanh) => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (v + 0.044715 * v * v * v);
            0.5 * v * (1.0 + inner.tanh())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kiln_graph::{DType, Type};
    use kiln_plan::exec::{Slot, axes};

    #[test]
    fn residual_and_bias_keep_their_own_strides() {
        let matrix = |slot, offset, pitch| {
            let (rows, cols) = (axes([(2, pitch)]), axes([(3, 1)]));
            Matrix { slot, offset, rows, cols, batch_strides: vec![] }
        };
        let (a, b) = (matrix(Slot::Input(0), 0, 3), matrix(Slot::Input(1), 0, 3));
        let residual = Some((matrix(Slot::Input(2), 1, 4), 10.0));
        let bias = Some((Slot::Input(3), 1));
        let epilogue = Epilogue { scale: 2.0, residual, bias, activation: Some(Activation::Relu) };
        let c = matrix(Slot::Output(0), 0, 3);
        let (dtype, c_dtype, tf32, batch, workspace) = (DType::F32, DType::F32, false, vec![], None);
        let g = GemmCall {
            batch_invariant: false,
            dtype,
            c_dtype,
            tf32,
            m: 2,
            n: 3,
            k: 1,
            batch,
            a,
            b,
            c,
            workspace,
            epilogue: Box::new(epilogue),
        };
        let tensor = |n: usize, f: &dyn Fn(usize) -> f64| Tensor::from_f64(Type::new(DType::F32, [n]), (0..n).map(f));
        let some = |i: usize| i as f64;
        let mut all =
            [tensor(1, &some), tensor(1, &some), tensor(6, &some), tensor(8, &some), tensor(4, &|i| -28.0 * i as f64)];
        finish(&g, &mut all);
        // Twice 0 to 5, plus ten times 1, 2, 3 and 5, 6, 7, minus 28, 56 and 84 per column; then ReLU.
        assert_eq!(all[2].to_f64_vec(), [0.0, 0.0, 0.0, 28.0, 12.0, 0.0]);
        assert!(activated(Some(Activation::Relu), f64::NAN).is_nan());
        assert!((activated(Some(Activation::GeluTanh), 1.0) - 0.841192).abs() < 1e-6);
    }
}
