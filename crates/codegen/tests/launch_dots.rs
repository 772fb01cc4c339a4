//! Matmuls along a loop over operands that lie as users' do: transposed, masked, at wrapped indices. On a processor
//! with the matrix unit, those of bf16 in whole tiles are computed by it.
use crate::support::{launch::Launch, *};
use kiln_block::*;
use kiln_codegen::host;
use kiln_machine::Arch;

/// How the right operand, depth by columns, lies in memory.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Right {
    Rows,
    Transposed,
}

struct Case {
    elem: Elem,
    rows: usize,
    columns: usize,
    /// Depth of a block, and of the matrices.
    step: usize,
    depth: usize,
    right: Right,
    /// The matrix has this many columns, beyond which indices begin anew.
    wrap: usize,
}

/// Products of small integers have no rounding.
fn small(elem: Elem, count: usize, seed: u64) -> Vec<u8> {
    let mut r = Random::new(seed);
    let values: Vec<Num> = (0..count)
        .map(|_| (r.next_u64() % 9) as i64 - 4)
        .map(|v| if elem.is_float() { Num::F(v as f64) } else { Num::I(v) })
        .collect();
    encode_all(elem, &values)
}

impl Case {
    fn program(&self) -> BlockProgram {
        let sum = if self.elem.is_int() { Elem::I32 } else { Elem::F32 };
        let mut b = Builder::new("matmul", Grid::Launch, 4);
        let [left, right] = ["left", "right"].map(|name| b.param(name, self.elem, true));
        let to = b.param("to", sum, false);
        let [depth, wrap] = ["depth", "wrap"].map(|name| b.scalar(name, Elem::I32, Facts::default()));
        let (i, j, k) = (b.iota(self.rows), b.iota(self.columns), b.iota(self.step));
        let shift = b.i32(self.columns as i64 / 2);
        let wrapped = b.binary(BinaryOp::Add, j, shift);
        let wrapped = b.binary(BinaryOp::Rem, wrapped, wrap);
        let (i, j, wrapped) = (b.expand_dims(i, 1), b.expand_dims(j, 0), b.expand_dims(wrapped, 0));
        let (along, down) = (b.expand_dims(k, 0), b.expand_dims(k, 1));
        let at = b.binary(BinaryOp::Mul, i, depth);
        let at = b.binary(BinaryOp::Add, at, along);
        let left = b.ptr_add(left, at);
        let (outer, inner, pitch) = match self.right {
            Right::Rows => (down, wrapped, wrap),
            Right::Transposed => (wrapped, down, depth),
        };
        let at = b.binary(BinaryOp::Mul, outer, pitch);
        let at = b.binary(BinaryOp::Add, at, inner);
        let right = b.ptr_add(right, at);
        let [lo, step] = [0, self.step as i64].map(|v| b.i32(v));
        let stride = if self.right == Right::Rows { b.binary(BinaryOp::Mul, step, wrap) } else { step };
        let zero = if self.elem.is_int() { Const::Int(0) } else { Const::Float(0.0) };
        let zero = b.constant(Type::block(sum, [self.rows, self.columns]), zero);
        let none =
            b.constant(Type::scalar(self.elem), if self.elem.is_int() { Const::Int(0) } else { Const::Float(0.0) });
        let all = b.for_loop([lo, depth, step], &[zero, left, right], |b, start, carried| {
            let left_in_depth = b.binary(BinaryOp::Sub, depth, start);
            let (x, y) = (b.cmp(CmpOp::Lt, along, left_in_depth), b.cmp(CmpOp::Lt, down, left_in_depth));
            let (x, y) = (b.load(carried[1], Some(x), Some(none)), b.load(carried[2], Some(y), Some(none)));
            let acc = b.dot(x, y, carried[0], DotPrecision::Exact);
            vec![acc, b.ptr_add(carried[1], step), b.ptr_add(carried[2], stride)]
        });
        let width = b.i32(self.columns as i64);
        let at = b.binary(BinaryOp::Mul, i, width);
        let at = b.binary(BinaryOp::Add, at, j);
        let to = b.ptr_add(to, at);
        b.store(to, all[0], None);
        b.finish()
    }
    fn agrees(&self) {
        let sum = if self.elem.is_int() { Elem::I32 } else { Elem::F32 };
        let given = Launch::new([1, 1, 1])
            .buffer(self.elem, small(self.elem, self.rows * self.depth, 3))
            .buffer(self.elem, small(self.elem, self.wrap * self.depth, 5))
            .buffer(sum, vec![0; self.rows * self.columns * sum.bytes()])
            .scalar(Elem::I32, self.depth as f64)
            .scalar(Elem::I32, self.wrap as f64);
        let Case { elem, rows, columns, step, depth, right, wrap } = self;
        let about = format!("{elem}, {rows}x{columns}, {depth} by {step}, {right:?}, {wrap} columns");
        given.agrees(&self.program(), Arch::Sm80, &about);
    }
}

#[test]
fn operands_that_lie_in_any_order() {
    if host::processor().contains("+amx-bf16") {
        println!("products of bf16 are computed by the matrix unit");
    } else {
        println!("this processor has no matrix unit, or KILN_CPU leaves it out: its products are not run");
    }
    for elem in [Elem::Bf16, Elem::F16, Elem::F32, Elem::I8] {
        for right in [Right::Rows, Right::Transposed] {
            for [rows, columns, step, depth, wrap] in
                [[32, 64, 32, 64, 64], [16, 16, 32, 80, 11], [64, 32, 64, 100, 37], [8, 32, 16, 30, 32]]
            {
                Case { elem, rows, columns, step, depth, right, wrap }.agrees();
            }
        }
    }
}
