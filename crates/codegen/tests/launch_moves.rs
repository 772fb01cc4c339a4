//! Reductions and scans by a region, and elements taken from several blocks or positions, three ways.
use crate::support::{launch::Launch, *};
use kiln_block::*;
use kiln_machine::Arch;

/// A program that reads a block of each element type and stores what `make` gives.
struct Case<'a> {
    shape: &'a [usize],
    types: &'a [Elem],
    warps: usize,
    /// Integers are below this.
    below: i64,
}

/// Pointers to the elements of a row-major block.
fn pointers(b: &mut Builder, p: Value, shape: &[usize]) -> Value {
    let n = shape.iter().product();
    let lanes = b.iota(n);
    let at = b.reshape(lanes, shape);
    b.ptr_add(p, at)
}

impl Case<'_> {
    fn agree(&self, about: &str, make: impl Fn(&mut Builder, &[Value]) -> Vec<Value>) {
        let mut b = Builder::new("moves", Grid::Launch, self.warps);
        let mut given = Launch::new([1, 1, 1]);
        let mut r = Random::new(about.len() as u64 + self.shape.iter().sum::<usize>() as u64);
        let n: usize = self.shape.iter().product();
        let mut values = vec![];
        for (i, elem) in self.types.iter().enumerate() {
            let p = b.param(format!("in{i}"), *elem, false);
            let p = pointers(&mut b, p, self.shape);
            values.push(b.load(p, None, None));
            let one = |r: &mut Random| match elem.is_float() {
                true => r.value(*elem),
                false => Num::I(r.next_u64() as i64 & (self.below - 1)),
            };
            let all: Vec<Num> = (0..n).map(|_| one(&mut r)).collect();
            given = given.buffer(*elem, encode_all(*elem, &all));
        }
        for (i, v) in make(&mut b, &values).into_iter().enumerate() {
            let (elem, shape) = (b.elem(v).unwrap(), b.shape(v));
            let p = b.param(format!("out{i}"), elem, false);
            let p = if shape.is_empty() { p } else { pointers(&mut b, p, &shape) };
            b.store(p, v, None);
            given = given.buffer(elem, vec![0; shape.iter().product::<usize>() * elem.bytes()]);
        }
        let mut k = b.finish();
        let about = format!("{about} of {:?}, {} warps", self.shape, self.warps);
        assert!(given.agrees(&k, Arch::Sm90a, &about), "{about}: no PTX");
        passes::canonicalise(&mut k).unwrap();
        assert!(given.agrees(&k, Arch::Sm80, &format!("{about}, after passes")), "{about}: no PTX");
    }
}

const SHAPES: [&[usize]; 6] = [&[128], &[4], &[16, 32], &[32, 2], &[1, 64], &[4, 8, 16]];

/// The largest and where it is, the first of equals: two operands, one of which breaks ties.
#[test]
fn the_largest_and_its_place() {
    for (i, shape) in SHAPES.into_iter().enumerate() {
        for value in [Elem::I32, Elem::F32, Elem::F16].into_iter() {
            for axis in 0..shape.len() {
                let case = Case { shape, types: &[value, Elem::I64], warps: [1, 4][i % 2], below: 8 };
                case.agree(&format!("axis {axis}, {value}"), |b, v| {
                    b.reduce_by(axis, v, |b, x, y| {
                        let (more, same) = (b.cmp(CmpOp::Gt, x[0], y[0]), b.cmp(CmpOp::Eq, x[0], y[0]));
                        let first = b.cmp(CmpOp::Lt, x[1], y[1]);
                        let tied = b.binary(BinaryOp::And, same, first);
                        let wins = b.binary(BinaryOp::Or, more, tied);
                        vec![b.select(wins, x[0], y[0]), b.select(wins, x[1], y[1])]
                    })
                });
            }
        }
    }
}

/// Composition of `x -> a x + b`, which does not commute, both ways.
#[test]
fn scans_of_compositions() {
    for (i, shape) in SHAPES.into_iter().enumerate() {
        for (axis, reverse) in (0..shape.len()).flat_map(|a| [(a, false), (a, true)]) {
            let case = Case { shape, types: &[Elem::I32, Elem::I32], warps: [4, 1, 2][i % 3], below: 1 << 32 };
            case.agree(&format!("axis {axis}, reverse {reverse}"), |b, v| {
                b.scan_by((axis, reverse), v, |b, x, y| {
                    let factor = b.binary(BinaryOp::Mul, x[0], y[0]);
                    let moved = b.binary(BinaryOp::Mul, x[1], y[0]);
                    vec![factor, b.binary(BinaryOp::Add, moved, y[1])]
                })
            });
        }
    }
}

/// The same, where more threads than elements, or many warps along the axis, hold a block.
#[test]
fn scans_of_many_warps() {
    let shapes: [&'static [usize]; 6] = [&[8, 32], &[32, 16], &[2, 1024], &[1024, 2], &[32, 32], &[1, 1024]];
    for (shape, warps) in shapes.into_iter().flat_map(|s| [(s, 4), (s, 16)]) {
        for (axis, reverse) in (0..shape.len()).flat_map(|a| [(a, false), (a, true)]) {
            let case = Case { shape, types: &[Elem::I32, Elem::I32], warps, below: 1 << 32 };
            case.agree(&format!("axis {axis}, reverse {reverse}, warps {warps}"), |b, v| {
                b.scan_by((axis, reverse), v, |b, x, y| {
                    let factor = b.binary(BinaryOp::Mul, x[0], y[0]);
                    let moved = b.binary(BinaryOp::Mul, x[1], y[0]);
                    vec![factor, b.binary(BinaryOp::Add, moved, y[1])]
                })
            });
        }
    }
}

/// Reductions of it, where the axis lies in vectors, lanes, warps and further registers, or partly in warps.
#[test]
fn reductions_of_many_warps() {
    let shapes: [&'static [usize]; 6] = [&[2048], &[1024], &[16, 64], &[64, 16], &[4, 512], &[8, 8, 16]];
    for (shape, warps) in shapes.into_iter().flat_map(|s| [(s, 4), (s, 8)]) {
        for axis in 0..shape.len() {
            let case = Case { shape, types: &[Elem::I64, Elem::I32], warps, below: 1 << 32 };
            case.agree(&format!("axis {axis}, reduced"), |b, v| {
                b.reduce_by(axis, v, |b, x, y| {
                    // Odd factors, of which no product is zero.
                    let one = b.i32(1);
                    let one = b.cast(one, Elem::I64);
                    let [first, second] = [x[0], y[0]].map(|v| b.binary(BinaryOp::Or, v, one));
                    let narrow = b.cast(second, Elem::I32);
                    let moved = b.binary(BinaryOp::Mul, x[1], narrow);
                    vec![b.binary(BinaryOp::Mul, first, second), b.binary(BinaryOp::Add, moved, y[1])]
                })
            });
        }
    }
}

/// Partners in every bit of an element's number, as sorts take them: what a reduction of pairs gives, in its pairs.
#[test]
fn partners_in_every_bit() {
    for (elements, warps) in [(1024usize, 4), (512, 8), (64, 4)] {
        let shape = [elements];
        let case = Case { shape: &shape, types: &[Elem::I32], warps, below: 1 << 32 };
        case.agree("partners", |b, v| {
            let mut now = v[0];
            for bit in 0..elements.ilog2() {
                let shape = [elements >> (bit + 1), 2, 1 << bit];
                let pairs = b.reshape(now, &shape);
                let both = b.reduce_by(1, &[pairs], |b, x, y| vec![b.binary(BinaryOp::Xor, x[0], y[0])])[0];
                let both = b.expand_dims(both, 1);
                let both = b.broadcast_to(both, &shape);
                let partner = b.binary(BinaryOp::Xor, pairs, both);
                let least = b.binary(BinaryOp::Min, partner, pairs);
                let twice = b.binary(BinaryOp::Add, least, partner);
                now = b.reshape(twice, &[elements]);
            }
            vec![now]
        });
    }
}

/// Scans and reductions of a constant beside what is loaded: constants have no layout before others ask for one.
#[test]
fn combinations_with_constants() {
    let shapes: [&'static [usize]; 5] = [&[8, 32], &[32, 16], &[2, 256], &[256, 2], &[128]];
    for (shape, warps) in shapes.into_iter().flat_map(|s| [(s, 4), (s, 16)]) {
        for (axis, reverse) in (0..shape.len()).flat_map(|a| [(a, false), (a, true)]) {
            let case = Case { shape, types: &[Elem::I32], warps, below: 1 << 32 };
            case.agree(&format!("axis {axis}, reverse {reverse}, warps {warps}"), |b, v| {
                let three = b.i32(3);
                let operands = [b.splat(three, shape), v[0]];
                let affine = |b: &mut Builder, x: &[Value], y: &[Value]| {
                    let factor = b.binary(BinaryOp::Mul, x[0], y[0]);
                    let moved = b.binary(BinaryOp::Mul, x[1], y[0]);
                    vec![factor, b.binary(BinaryOp::Add, moved, y[1])]
                };
                let mut all = b.scan_by((axis, reverse), &operands, affine);
                all.extend(b.reduce_by(axis, &operands, affine));
                all
            });
        }
    }
}

#[test]
fn joined_split_and_put_in_a_row() {
    for (i, shape) in SHAPES.into_iter().enumerate() {
        for elem in [Elem::I32, Elem::F16, Elem::I8, Elem::F64].into_iter() {
            let case = Case { shape, types: &[elem, elem], warps: [1, 4][i % 2], below: 128 };
            case.agree(&format!("{elem}"), |b, v| {
                let both = b.join(v[0], v[1]);
                let [first, second] = b.split(both);
                let mut all = vec![both, b.binary(BinaryOp::Sub, first, second)];
                all.extend((0..shape.len()).map(|axis| b.cat(v[0], v[1], axis)));
                if *shape.last().unwrap() == 2 {
                    all.extend(b.split(v[0]));
                }
                all
            });
        }
    }
}

#[test]
fn elements_at_positions() {
    for (i, shape) in SHAPES.into_iter().enumerate() {
        for axis in 0..shape.len() {
            let case = Case { shape, types: &[Elem::F32, Elem::I32], warps: [1, 4][i % 2], below: shape[axis] as i64 };
            case.agree(&format!("axis {axis}"), |b, v| {
                let half = shape[axis] / 2;
                let mut all = vec![b.gather(v[0], v[1], axis)];
                if half > 0 && shape.len() == 1 {
                    let few = b.iota(half);
                    let two = b.i32(2);
                    let few = b.binary(BinaryOp::Mul, few, two);
                    all.push(b.gather(v[0], few, axis));
                }
                all
            });
        }
    }
}

/// Matmuls of small integers and of floats whose sums are exact.
#[test]
fn matmuls_of_every_type() {
    let types = [Elem::I8, Elem::U8, Elem::F64, Elem::F32, Elem::F16, Elem::Bf16];
    for elem in types.into_iter() {
        let sum = match elem {
            Elem::I8 | Elem::U8 => Elem::I32,
            Elem::F64 => Elem::F64,
            _ => Elem::F32,
        };
        let case = Case { shape: &[16, 16], types: &[Elem::I8, Elem::I8], warps: 1, below: 256 };
        case.agree(&format!("matmul of {elem}"), |b, v| {
            let [x, y] = [v[0], v[1]].map(|v| b.cast(v, elem));
            let zero = if sum == Elem::I32 { Const::Int(7) } else { Const::Float(7.0) };
            let start = b.constant(Type::block(sum, [16, 16]), zero);
            vec![b.dot(x, y, start, DotPrecision::Exact)]
        });
    }
}

/// Parts along each axis, whichever threads have them.
#[test]
fn parts_of_blocks() {
    let shapes: [&[usize]; 5] = [&[128], &[16, 32], &[2, 8, 16], &[4, 4, 4], &[8, 2, 32]];
    for (i, shape) in shapes.into_iter().enumerate() {
        for (axis, size) in shape.iter().enumerate() {
            let case = Case { shape, types: &[[Elem::I32, Elem::F16][i % 2]], warps: [1, 4, 16][i % 3], below: 100 };
            let count = size / 2;
            case.agree(&format!("parts along axis {axis}"), |b, v| {
                [0, count].map(|at| b.part(v[0], axis, at, count)).to_vec()
            });
        }
    }
}
