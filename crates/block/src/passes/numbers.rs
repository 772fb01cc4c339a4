//! Integer arithmetic at compile time, with the results of run time.
use crate::{BinaryOp, CmpOp, Elem, UnaryOp};

pub fn unary(op: UnaryOp, elem: Elem, x: i64) -> Option<i64> {
    Some(elem.wrapped(match op {
        UnaryOp::Neg => x.wrapping_neg(),
        UnaryOp::Abs if !elem.is_signed() => x,
        UnaryOp::Abs => x.wrapping_abs(),
        UnaryOp::Not => !x,
        _ => return None,
    }))
}

/// `None` where targets may differ (shifts by more than the width).
pub fn binary(op: BinaryOp, elem: Elem, x: i64, y: i64) -> Option<i64> {
    let shift = (0..8 * elem.bytes() as i64).contains(&y);
    let (ux, uy) = (x as u64, y as u64);
    Some(elem.wrapped(match op {
        BinaryOp::Add => x.wrapping_add(y),
        BinaryOp::Sub => x.wrapping_sub(y),
        BinaryOp::Mul => x.wrapping_mul(y),
        BinaryOp::Div | BinaryOp::Rem if y == 0 => 0,
        BinaryOp::Div if elem == Elem::U64 => (ux / uy) as i64,
        BinaryOp::Rem if elem == Elem::U64 => (ux % uy) as i64,
        BinaryOp::Div => x.wrapping_div(y),
        BinaryOp::Rem => x.wrapping_rem(y),
        BinaryOp::Max => {
            if elem.ordered(x) >= elem.ordered(y) {
                x
            } else {
                y
            }
        }
        BinaryOp::Min => {
            if elem.ordered(x) <= elem.ordered(y) {
                x
            } else {
                y
            }
        }
        BinaryOp::And => x & y,
        BinaryOp::Or => x | y,
        BinaryOp::Xor => x ^ y,
        BinaryOp::Shl if shift => x << y,
        BinaryOp::Shr if shift && elem == Elem::U64 => (ux >> uy) as i64,
        BinaryOp::Shr if shift => x >> y,
        _ => return None,
    }))
}

pub fn compare(op: CmpOp, elem: Elem, x: i64, y: i64) -> bool {
    let (x, y) = (elem.ordered(x), elem.ordered(y));
    match op {
        CmpOp::Eq => x == y,
        CmpOp::Ne => x != y,
        CmpOp::Lt => x < y,
        CmpOp::Le => x <= y,
        CmpOp::Gt => x > y,
        CmpOp::Ge => x >= y,
    }
}

/// The comparison's outcome where `x - y` lies in the range, if it is the same for all.
pub fn decided(op: CmpOp, (lo, hi): (i64, i64)) -> Option<bool> {
    match op {
        CmpOp::Lt if hi < 0 => Some(true),
        CmpOp::Lt if lo >= 0 => Some(false),
        CmpOp::Le if hi <= 0 => Some(true),
        CmpOp::Le if lo > 0 => Some(false),
        CmpOp::Gt => decided(CmpOp::Le, (lo, hi)).map(|b| !b),
        CmpOp::Ge => decided(CmpOp::Lt, (lo, hi)).map(|b| !b),
        CmpOp::Eq if lo == 0 && hi == 0 => Some(true),
        CmpOp::Eq if lo > 0 || hi < 0 => Some(false),
        CmpOp::Ne => decided(CmpOp::Eq, (lo, hi)).map(|b| !b),
        _ => None,
    }
}
