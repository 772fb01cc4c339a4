//! What is known of integers and conditions that depend on no input: positions, and masks made of them.
//!
//! Takes a graph. Gives, for its values, simpler equal forms: one number everywhere, or positions along an axis. Models
//! compute masks from positions in several steps (numbers of packed sequences by a running sum of differences, indices
//! that may be negative); what remains here is a comparison of positions, which fused kernels compute themselves. Small
//! tensors are evaluated; of large ones it is only found that they are uniform.
use kiln_graph::ops::Class;
use kiln_graph::{BinaryOp, DType, Graph, Op, Scalar, Tensor, Type, ValueId};
use kiln_interp::graph::{no_fallback, run};

/// A simpler form of a value.
#[derive(Clone, PartialEq, Debug)]
pub enum Known {
    /// Every element is this number.
    Uniform(Scalar),
    /// The position along an axis, plus a number.
    Position { axis: usize, first: i64 },
    /// Another value, with as many elements after broadcasting.
    Same(ValueId),
}

/// Elements of the largest tensor that is evaluated.
const LARGEST: usize = 1 << 16;

/// Simpler forms of the values of a graph, in its order.
pub fn known(g: &Graph) -> Vec<Option<Known>> {
    let mut facts: Vec<Evaluated> = Vec::with_capacity(g.len());
    for v in g.values() {
        let fact = fact(g, v, &facts);
        facts.push(fact);
    }
    facts.into_iter().map(|f| f.known).collect()
}

#[derive(Clone, Default)]
struct Evaluated {
    data: Option<Tensor>,
    known: Option<Known>,
}

fn fact(g: &Graph, v: ValueId, facts: &[Evaluated]) -> Evaluated {
    let (op, ty, args) = (g.op(v), g.ty(v), g.args(v));
    let exact = |t: &Type| t.dtype.is_int() || t.dtype == DType::Bool;
    if !exact(ty) || !args.iter().all(|a| exact(g.ty(*a))) || ty.count() == 0 {
        return Evaluated::default();
    }
    let class = Class::of(op);
    let generated = matches!(op, Op::Const(_) | Op::Iota { .. });
    let computed = matches!(class, Class::View | Class::Pointwise | Class::Movement | Class::Reduce | Class::Scan);
    if !generated && !computed {
        return Evaluated::default();
    }
    let of = |a: &ValueId| &facts[a.0 as usize];
    if ty.count() <= LARGEST && args.iter().all(|a| of(a).data.is_some()) {
        let operands: Vec<Tensor> = args.iter().filter_map(|a| of(a).data.clone()).collect();
        let data = evaluated(op, ty, &operands);
        // A leaf is as simple as it can be.
        let known = data.as_ref().filter(|_| !generated).and_then(described);
        return Evaluated { data, known };
    }
    let uniform = |a: &ValueId| match (&of(a).known, &of(a).data) {
        (Some(Known::Uniform(s)), _) => Some(*s),
        (_, Some(data)) => described(data).and_then(|k| if let Known::Uniform(s) = k { Some(s) } else { None }),
        _ => None,
    };
    let all: Option<Vec<Scalar>> = args.iter().map(uniform).collect();
    let moves = matches!(class, Class::View | Class::Pointwise);
    if let (Some(all), true, false) = (all, moves, generated) {
        let one = |(s, a): (&Scalar, &ValueId)| Tensor::from_f64(Type::new(g.dtype(*a), []), [s.as_f64()]);
        let operands: Vec<Tensor> = all.iter().zip(&args).map(one).collect();
        let known = match class {
            Class::View => all.first().copied(),
            _ => evaluated(op, &Type::new(ty.dtype, []), &operands).map(|t| number(&t, 0)),
        };
        return Evaluated { data: None, known: known.map(Known::Uniform) };
    }
    // A condition that always holds leaves the other one.
    if let (Op::Binary(BinaryOp::And), [x, y], DType::Bool) = (op, &args[..], ty.dtype) {
        for (constant, other) in [(x, y), (y, x)] {
            if uniform(constant) == Some(Scalar::Bool(true)) && g.shape(*other) == ty.shape {
                return Evaluated { data: None, known: Some(Known::Same(*other)) };
            }
        }
    }
    Evaluated::default()
}

/// The op's result on these operands; `None` if it fails, as a run would.
fn evaluated(op: &Op, ty: &Type, operands: &[Tensor]) -> Option<Tensor> {
    let mut g = Graph::new("constant");
    let args: Vec<ValueId> = operands.iter().map(|t| g.input(t.ty.clone())).collect();
    let out = g.push(op.clone(), ty.clone(), &args);
    g.outputs.push(out);
    run(&g, operands, &[], &mut no_fallback).ok()?.pop()
}

fn number(t: &Tensor, i: usize) -> Scalar {
    match t.ty.dtype {
        DType::Bool => Scalar::Bool(t.get_i64(i) != 0),
        _ => Scalar::Int(t.get_i64(i)),
    }
}

/// The form of a tensor, if it has a simpler one.
fn described(t: &Tensor) -> Option<Known> {
    let count = t.ty.count();
    let first = t.get_i64(0);
    if (1..count).all(|i| t.get_i64(i) == first) {
        return Some(Known::Uniform(number(t, 0)));
    }
    let strides = t.ty.strides();
    let axis = t.ty.shape.iter().zip(&strides).position(|(n, s)| *n > 1 && t.get_i64(*s) != first)?;
    let at = |i: usize| (i / strides[axis] % t.ty.shape[axis]) as i64;
    let counts = t.ty.dtype.is_int() && (0..count).all(|i| t.get_i64(i).checked_sub(first) == Some(at(i)));
    counts.then_some(Known::Position { axis, first })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(lines: &str) -> Vec<Option<Known>> {
        let g: Graph = format!("graph g(%x: i64[4]) {{\n{lines}\n return %x\n}}").parse().unwrap();
        known(&g)
    }

    #[test]
    fn a_running_sum_of_equal_differences_is_uniform() {
        let all = of("%i = iota axis=0 : i64[9]\n %a = slice %i axis=0 start=1 len=8 step=1\n %b = slice %i axis=0 start=0 len=8 step=1
             %d = sub %a, %b\n %n = ne %d, 1\n %c = cast %n to=i64\n %s = scan.sum %c axis=0");
        assert_eq!(all.last().unwrap(), &Some(Known::Uniform(Scalar::Int(0))));
        assert_eq!(all[2], Some(Known::Position { axis: 0, first: 1 }));
    }
    #[test]
    fn large_conditions_are_uniform_and_leave_the_other_one() {
        let all = of("%i = iota axis=0 : i64[999,1]\n %j = iota axis=1 : i64[1,999]\n %z = mul %j, 0\n %y = mul %i, 0\n %e = eq %y, %z
             %m = le %j, %i\n %b = and %e, %m");
        assert_eq!(all.last().unwrap(), &Some(Known::Same(ValueId(all.len() as u32 - 2))));
        assert!(all[all.len() - 2].is_none());
    }
    #[test]
    fn bits_of_integers_are_no_conditions() {
        let all = of("%o = const 1 : i64[]\n %i = iota axis=0 : i64[4]\n %x1 = add %x, %i\n %a = and %x1, %o");
        assert!(all.last().unwrap().is_none());
    }
    #[test]
    fn what_depends_on_inputs_or_is_out_of_range_is_not_known() {
        let all = of("%i = iota axis=0 : i64[4]\n %a = add %x, %i\n %k = add %i, 2\n %t = take %i, %k axis=0");
        assert!(all[2].is_none() && all.last().unwrap().is_none());
    }
}
