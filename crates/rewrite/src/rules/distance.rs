//! Squared pairwise distances, written as differences, computed by matmuls.
use super::{Right::By, Rule};
use crate::build::Builder;
use crate::pattern::{Bindings, axes};
use egg::Id;
use kiln_graph::pairwise::{Pairwise, padded, pairs};
use kiln_graph::{BinaryOp::*, DType, Op, ReduceOp};
use kiln_plan::Numerics::*;

/// Length of the summed axis from which a matmul does less work than the differences.
const TERMS: usize = 8;

/// `max(|x|² + |y|² - 2 x·y, 0)`, as PyTorch's `cdist` computes distances of many rows: the distance of near points
/// suffers from cancellation, and rows with infinite elements give NaN. Half types are widened first, so that only the
/// rounding of products in f32 remains.
fn by_matmul(b: &mut Builder, m: &Bindings) -> Option<Id> {
    let (x, y) = (m.var("x")?, m.var("y")?);
    let [along] = axes(m.op("r")?)?[..] else { return None };
    let dtype = b.ty(x).dtype;
    let p = pairs(b.shape(x), b.shape(y), along)?;
    let rank = b.shape(x).len().max(b.shape(y).len());
    let sides = [x, y].map(|v| -> Option<Id> {
        let shape = padded(b.shape(v), rank);
        let v = b.reshape(v, &shape)?;
        if dtype.bytes() == 2 { b.add(Op::Cast(DType::F32), &[v]) } else { Some(v) }
    });
    let [Some(x), Some(y)] = sides else { return None };
    if !dtype.is_float() || b.shape(x)[along] < TERMS {
        return None;
    }
    let (left, right) = (squares(b, x, along)?, squares(b, y, along)?);
    let squares = b.binary(Add, left, right)?;
    let matmul = matmuls(b, x, y, &p)?;
    let two = b.constant(b.ty(matmul).dtype, 2.);
    let twice = b.binary(Mul, matmul, two)?;
    let distances = b.binary(Sub, squares, twice)?;
    let zero = b.constant(b.ty(distances).dtype, 0.);
    let distances = b.binary(Max, distances, zero)?;
    b.add(Op::Cast(dtype), &[distances])
}
fn squares(b: &mut Builder, x: Id, along: usize) -> Option<Id> {
    let squared = b.binary(Mul, x, x)?;
    b.add(Op::Reduce { op: ReduceOp::Sum, axes: vec![along] }, &[squared])
}
/// The dot products of all pairs of rows by a matmul, in the layout of the pairwise sum.
fn matmuls(b: &mut Builder, x: Id, y: Id, p: &Pairwise) -> Option<Id> {
    let size = |b: &Builder, v: Id, axes: &[usize]| -> Vec<usize> { axes.iter().map(|&i| b.shape(v)[i]).collect() };
    let matrix = |b: &mut Builder, v: Id, last: [usize; 2], none: usize| {
        let axes = [&p.batch[..], &last].concat();
        let shape = size(b, v, &axes);
        let transposed = b.permute(v, &[&axes[..], &[none]].concat())?;
        b.reshape(transposed, &shape)
    };
    let left = matrix(b, x, [p.rows, p.along], p.columns)?;
    let right = matrix(b, y, [p.along, p.columns], p.rows)?;
    let matmul = b.add(Op::Dot, &[left, right])?;
    let shape = [b.shape(matmul), &[1]].concat();
    let matmul = b.reshape(matmul, &shape)?;
    let order = p.order();
    let back: Vec<usize> = (0..order.len()).filter_map(|i| order.iter().position(|a| *a == i)).collect();
    b.permute(matmul, &back)
}

pub const RULES: &[Rule] = &[Rule {
    name: "distance-by-matmul",
    numerics: Fast,
    half: Fast,
    left: &["(reduce.sum:r (mul (sub ?x ?y) (sub ?x ?y)))"],
    when: &[],
    right: By(by_matmul),
    example: "(%a: f32[4,16], %b: f32[6,16]) {\n %x = reshape %a shape=[4,1,16]\n %d = sub %x, %b
        %s = mul %d, %d\n %y = reduce.sum %s axes=[2]\n return %y\n}",
    near_miss: "(%a: f32[6,16], %b: f32[6,16]) {\n %d = sub %a, %b
        %s = mul %d, %d\n %y = reduce.sum %s axes=[1]\n return %y\n}",
}];
