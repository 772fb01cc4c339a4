//! Integer scalars of one instance, computed as they are asked for.
use crate::analysis::Affine;
use crate::{BinaryOp, BlockProgram, CmpOp, Const, Elem, Inst, InstData, Op, UnaryOp, Value};
use std::collections::HashMap;

/// An affine form of numbers: `constant + Σ coeffs[a]·x[a]`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Numbers {
    pub constant: i64,
    pub coeffs: Vec<i64>,
}

/// The scalars of an instance: those of each open region, innermost last.
pub struct Scalars<'a> {
    program: &'a BlockProgram,
    defs: &'a HashMap<Value, Inst>,
    place: [usize; 3],
    grid: [usize; 3],
    scopes: Vec<HashMap<Value, Option<i64>>>,
}

impl<'a> Scalars<'a> {
    pub fn new(
        program: &'a BlockProgram,
        defs: &'a HashMap<Value, Inst>,
        place: [usize; 3],
        grid: [usize; 3],
    ) -> Scalars<'a> {
        Scalars { program, defs, place, grid, scopes: vec![HashMap::new()] }
    }
    pub fn enter(&mut self) {
        self.scopes.push(HashMap::new());
    }
    pub fn leave(&mut self) {
        self.scopes.pop();
    }
    pub fn set(&mut self, v: Value, number: Option<i64>) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.insert(v, number);
        }
    }
    /// The value of an integer or bool scalar; `None` if it is read from memory, or carried out of a loop.
    pub fn integer(&mut self, v: Value) -> Option<i64> {
        if let Some(known) = self.scopes.iter().rev().find_map(|scope| scope.get(&v)) {
            return *known;
        }
        let number = self.defs.get(&v).and_then(|inst| self.computed(self.program.inst(*inst), v));
        self.set(v, number);
        number
    }
    /// A form with its scalars as numbers.
    pub fn numbers(&mut self, form: &Affine) -> Option<Numbers> {
        let mut constant = form.constant;
        for (v, factor) in &form.scalars {
            constant = constant.checked_add(self.integer(*v)?.checked_mul(*factor)?)?;
        }
        Some(Numbers { constant, coeffs: form.coeffs.clone() })
    }

    fn computed(&mut self, data: &InstData, v: Value) -> Option<i64> {
        let ty = self.program.ty(v);
        let elem = ty.elem().filter(|elem| ty.is_scalar() && (elem.is_int() || *elem == Elem::Bool))?;
        let program = self.program;
        let mut arg = |n: usize| data.args.get(n).and_then(|a| self.integer(*a));
        let number = match &data.op {
            Op::Const(Const::Int(n)) => *n,
            Op::Const(Const::Bool(b)) => i64::from(*b),
            Op::ProgramId(axis) => *self.place.get(usize::from(*axis))? as i64,
            Op::NumPrograms(axis) => *self.grid.get(usize::from(*axis))? as i64,
            Op::Binary(op) => binary(*op, elem, arg(0)?, arg(1)?)?,
            Op::Unary(UnaryOp::Neg) => arg(0)?.checked_neg()?,
            Op::Unary(UnaryOp::Not) if elem == Elem::Bool => 1 - arg(0)?,
            Op::Cmp(op) => {
                let of = program.ty(data.args[0]).elem().filter(|of| of.is_int())?;
                let [a, b] = [arg(0)?, arg(1)?].map(|n| of.ordered(n));
                i64::from(holds(*op, a.cmp(&b)))
            }
            Op::Select => {
                let condition = arg(0)?;
                arg(if condition != 0 { 1 } else { 2 })?
            }
            Op::Cast(_) => {
                program.ty(data.args[0]).elem().filter(|from| from.is_int() || *from == Elem::Bool)?;
                self.integer(data.args[0])?
            }
            _ => return None,
        };
        Some(elem.wrapped(number))
    }
}

/// Whether a comparison holds for numbers of this order.
pub fn holds(op: CmpOp, order: std::cmp::Ordering) -> bool {
    match op {
        CmpOp::Eq => order.is_eq(),
        CmpOp::Ne => order.is_ne(),
        CmpOp::Lt => order.is_lt(),
        CmpOp::Le => order.is_le(),
        CmpOp::Gt => order.is_gt(),
        CmpOp::Ge => order.is_ge(),
    }
}

/// As block programs compute it, before it is wrapped; `None` for what addresses are not computed with.
fn binary(op: BinaryOp, elem: Elem, a: i64, b: i64) -> Option<i64> {
    // Quotients and shifts of what is kept in an i64 as other bits are not computed here.
    if elem == Elem::U64 && (a < 0 || b < 0) {
        return None;
    }
    match op {
        BinaryOp::Add => a.checked_add(b),
        BinaryOp::Sub => a.checked_sub(b),
        BinaryOp::Mul => a.checked_mul(b),
        BinaryOp::Div => Some(if b == 0 { 0 } else { a.checked_div(b)? }),
        BinaryOp::Rem => Some(if b == 0 { 0 } else { a.checked_rem(b)? }),
        BinaryOp::Min => Some(a.min(b)),
        BinaryOp::Max => Some(a.max(b)),
        BinaryOp::And => Some(a & b),
        BinaryOp::Or => Some(a | b),
        BinaryOp::Xor => Some(a ^ b),
        BinaryOp::Shl if (0..32).contains(&b) => a.checked_mul(1 << b),
        BinaryOp::Shr if (0..32).contains(&b) => Some(a >> b),
        _ => None,
    }
}
