//! Random chains of the operations that IEEE 754 defines, on every float type, and of integer and bool operations:
//! under exact numerics their results must equal PyTorch's bit by bit, however they are fused.
//!
//! The chains have no sums over several elements, whose order is unspecified, and no elementary functions, which
//! libraries round differently.
use kiln::{DType, Graph, Tensor, Type};
use kiln_graph::{BinaryOp, CompareOp, GraphError, Random, Scalar, UnaryOp, ValueId};

const FLOATS: [DType; 4] = [DType::F64, DType::F32, DType::F16, DType::Bf16];
const INTEGERS: [DType; 5] = [DType::I64, DType::I32, DType::I16, DType::I8, DType::U8];

/// A chain under construction; its values, newest last.
struct Chain {
    g: Graph,
    draw: Random,
    values: Vec<ValueId>,
    shape: Vec<usize>,
}
impl Chain {
    fn any(&mut self, fits: impl Fn(DType) -> bool) -> Option<ValueId> {
        let of_type: Vec<ValueId> = self.values.iter().copied().filter(|v| fits(self.g.dtype(*v))).collect();
        // Picks one of the three newest values, so that chains grow long.
        let last = of_type.len().min(3);
        (last > 0).then(|| of_type[of_type.len() - 1 - self.draw.next_below(last)])
    }
    fn number(&mut self, d: DType) -> ValueId {
        let value = match d {
            DType::Bool => Scalar::Bool(self.draw.next_below(2) == 1),
            d if d.is_float() => Scalar::Float(self.draw.choose(&[1.0, 3.0, -0.7, 0.1, 1e-3, 255.0, 2.5])),
            _ => Scalar::Int(self.draw.choose(&[1, 2, 3, 7, 100])),
        };
        self.g.constant(d, value)
    }
    fn same_type(&mut self, x: ValueId) -> ValueId {
        let d = self.g.dtype(x);
        if self.draw.next_below(4) == 0 { self.number(d) } else { self.any(|o| o == d).unwrap_or(x) }
    }
    fn step(&mut self) -> Result<(), GraphError> {
        use {BinaryOp as B, UnaryOp as U};
        let Some(x) = self.any(|_| true) else { return Ok(()) };
        let d = self.g.dtype(x);
        let choice = self.draw.next_below(10);
        let made = match d {
            _ if choice == 0 => {
                // Floats are not cast to integers: that is undefined out of the integer's range.
                let to = match d {
                    d if d.is_float() => self.draw.choose(&FLOATS),
                    _ => self.draw.choose(&[&FLOATS[..], &INTEGERS, &[DType::Bool]].concat()),
                };
                self.g.cast(x, to)?
            }
            _ if choice == 1 => {
                let y = self.same_type(x);
                let ops = [CompareOp::Eq, CompareOp::Ne, CompareOp::Lt, CompareOp::Le, CompareOp::Gt, CompareOp::Ge];
                let op = self.draw.choose(&ops);
                let c = self.g.compare(op, x, y)?;
                let z = self.same_type(x);
                self.values.push(c);
                self.g.select(c, y, z)?
            }
            DType::Bool => {
                let y = self.same_type(x);
                match self.draw.next_below(4) {
                    0 => self.g.unary(U::Not, x)?,
                    _ => {
                        let op = self.draw.choose(&[B::And, B::Or, B::Xor, B::Max, B::Min]);
                        self.g.binary(op, x, y)?
                    }
                }
            }
            d if d.is_float() => match choice {
                2 | 3 => {
                    let list = [U::Neg, U::Abs, U::Sign, U::Sqrt, U::Reciprocal, U::Floor, U::Ceil, U::Round, U::Trunc];
                    let op = self.draw.choose(&list);
                    // PyTorch takes square roots in f32 and f64 from Intel's library, which sometimes rounds the other
                    // way.
                    let inexact = op == U::Sqrt && matches!(d, DType::F32 | DType::F64);
                    let op = if inexact { U::Abs } else { op };
                    self.g.unary(op, x)?
                }
                4 => {
                    // The sign of PyTorch's zero as a maximum or minimum depends on the element's position; adding zero
                    // makes it positive.
                    let (op, y) = (self.draw.choose(&[B::Max, B::Min]), self.same_type(x));
                    let m = self.g.binary(op, x, y)?;
                    self.g.binary_scalar(B::Add, m, 0.0)?
                }
                5 => {
                    let (op, y) = (self.draw.choose(&[B::Fmod, B::Remainder]), self.same_type(x));
                    self.g.binary(op, x, y)?
                }
                _ => {
                    let (op, y) =
                        (self.draw.choose(&[B::Add, B::Sub, B::Mul, B::Mul, B::Add, B::Div]), self.same_type(x));
                    self.g.binary(op, x, y)?
                }
            },
            _ => match choice {
                2 => self.g.unary(U::Not, x)?,
                3 => {
                    let op = self.draw.choose(&[U::Neg, U::Abs, U::Sign, U::Relu]);
                    self.g.unary(op, x)?
                }
                4 => {
                    let y = self.g.constant(d, Scalar::Int([2, 3, 7][self.draw.next_below(3)]));
                    let op = self.draw.choose(&[B::Div, B::FloorDiv, B::Remainder, B::Fmod]);
                    self.g.binary(op, x, y)?
                }
                _ => {
                    let list = [B::Add, B::Sub, B::Mul, B::Max, B::Min, B::And, B::Or, B::Xor];
                    let (op, y) = (self.draw.choose(&list), self.same_type(x));
                    self.g.binary(op, x, y)?
                }
            },
        };
        self.values.push(made);
        Ok(())
    }
}

/// A chain of 4 to 15 operations, with its inputs.
pub fn chain(seed: u64) -> Result<(Graph, Vec<Tensor>), GraphError> {
    let mut draw = Random::new(seed.wrapping_mul(0x5851_f42d_4c95_7f2d));
    let d = draw.choose(&[&FLOATS[..], &FLOATS, &INTEGERS, &[DType::Bool]].concat());
    let shape = draw.choose(&[[3, 17], [1, 64], [5, 40]]).to_vec();
    let mut g = Graph::new(format!("chain_{seed}"));
    let inputs: Vec<ValueId> = (0..1 + draw.next_below(3)).map(|_| g.input(Type::new(d, shape.clone()))).collect();
    let mut c = Chain { g, draw, values: inputs.clone(), shape };
    for _ in 0..4 + c.draw.next_below(12) {
        c.step()?;
    }
    let outputs: Vec<ValueId> = c.values.iter().rev().copied().filter(|v| !inputs.contains(v)).take(2).collect();
    outputs.into_iter().for_each(|v| c.g.output(v));
    let tensors = inputs.iter().map(|_| tensor(d, &c.shape, &mut c.draw)).collect();
    Ok((c.g.without_dead(), tensors))
}
fn tensor(d: DType, shape: &[usize], draw: &mut Random) -> Tensor {
    let mut t = Tensor::zeros(Type::new(d, shape));
    for i in 0..t.ty.count() {
        match d {
            DType::Bool => t.set_i64(i, draw.next_below(2) as i64),
            d if d.is_float() => {
                // Spread over many powers of two, with a special value now and then.
                let size = 2f64.powi(draw.next_below(24) as i32 - 12) * (draw.uniform() - 0.5);
                let strange = [0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 1e-7, 65504.0];
                t.set_f64(i, if draw.next_below(12) == 0 { draw.choose(&strange) } else { size });
            }
            _ => {
                let (least, most) = d.int_range().unwrap_or_default();
                let v = if draw.next_below(3) == 0 {
                    draw.choose(&[least, most, 0, 1])
                } else {
                    draw.next_u64() as i64 % 100
                };
                t.set_i64(i, v.clamp(least, most));
            }
        }
    }
    t
}
