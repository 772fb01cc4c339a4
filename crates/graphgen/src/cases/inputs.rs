//! Random inputs for cases, including special values.
use kiln_graph::Random;
use kiln_graph::{DType, Graph, Op, Tensor, ValueId, random_tensor};

/// Inputs for a case: normally distributed; for some seeds with NaNs, infinities and zeros, with many equal values, or
/// large. Indices stay in range of the axes that they index. Weights of convolutions and the V operand of causal
/// attention stay finite: implementations differ in whether they multiply padding, or the zero weight of a masked key,
/// by them.
pub fn case_inputs(g: &Graph, seed: u64) -> Vec<Tensor> {
    let mut r = Random::new(seed ^ 0x5eed);
    let kind = r.next_below(8);
    let finite = kept_finite(g);
    let mut one = |i: usize, v: ValueId| {
        let ty = g.ty(v).clone();
        let own = seed.wrapping_mul(31).wrapping_add(i as u64);
        if !ty.dtype.is_float() {
            return integers(g, v, own);
        }
        let mut t = random_tensor(ty, own, if kind == 3 { 8.0 } else { 1.0 });
        match kind {
            0 | 1 if !finite[v.0 as usize] => {
                let specials = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0];
                sprinkle(&mut t, &mut r, &specials[2 * kind..]);
            }
            2 => (0..t.ty.count()).for_each(|j| t.set_f64(j, (t.get_f64(j) * 2.0).round() / 2.0)),
            _ => {}
        }
        t
    };
    g.inputs.iter().enumerate().map(|(i, v)| one(i, *v)).collect()
}

/// Overwrites a few random elements with values from `of`.
fn sprinkle(t: &mut Tensor, r: &mut Random, of: &[f64]) {
    let n = t.ty.count();
    for _ in 0..(n.min(1) + n / 200).min(50) {
        let at = r.next_below(n);
        t.set_f64(at, r.choose(of));
    }
}

/// For each value, whether a convolution's weights, the input of a transposed one whose window is no multiple of its
/// stride, or the V operand of attention that skips keys depend on it: zeros of padding, of joined residues and of
/// probabilities are multiplied by these.
fn kept_finite(g: &Graph) -> Vec<bool> {
    let mut marked = vec![false; g.len()];
    for v in g.values().rev() {
        let args = g.args(v);
        let of = match g.op(v) {
            _ if marked[v.0 as usize] => &args[..],
            Op::Conv { transposed: true, stride, .. } if !is_multiple(&g.shape(args[1])[2..], stride) => &args[..],
            Op::Conv { .. } => &args[1..],
            Op::Attention { causal: true, .. } => &args[2..3],
            op @ Op::Attention { .. }
                if args.get(op.mask_place()).is_some_and(|m| matches!(g.op(*m), Op::Compare(_))) =>
            {
                &args[2..3]
            }
            _ => &[],
        };
        of.iter().for_each(|a| marked[a.0 as usize] = true);
    }
    marked
}

fn is_multiple(window: &[usize], stride: &[usize]) -> bool {
    window.iter().zip(stride).all(|(window, stride)| window.is_multiple_of(*stride))
}

/// Integers for an input: valid indices if it is used as an index, else small numbers of either sign.
fn integers(g: &Graph, v: ValueId, seed: u64) -> Tensor {
    let ty = g.ty(v).clone();
    let along = |user: ValueId| {
        let axis = match g.op(user) {
            Op::Take { axis } | Op::Gather { axis } | Op::Scatter { axis, .. } => *axis,
            _ => return None,
        };
        let args = g.args(user);
        (args[1] == v).then(|| g.shape(args[0])[axis])
    };
    let bound = g.users(v).into_iter().filter_map(along).min();
    let mut r = Random::new(seed);
    // The range of indices that the dtype can hold.
    let reach = ty.dtype.int_range().map_or(256, |(_, last)| last.min(255) as usize + 1);
    let count = ty.count();
    let dtype = ty.dtype;
    Tensor::from_f64(
        ty,
        (0..count).map(|_| match bound {
            _ if dtype == DType::Bool => r.next_below(2) as f64,
            Some(n) => r.next_below(n.min(reach)) as f64,
            None if dtype == DType::U8 => r.next_below(200) as f64,
            None => r.next_below(15) as f64 - 7.0,
        }),
    )
}
