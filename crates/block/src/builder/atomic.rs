//! Atomic accesses.
use super::Builder;
use crate::{AtomicOp, Atomicity, Op, Value};

impl Builder {
    /// Combines values with the elements at their pointers ([`Op::Atomic`]).
    pub fn atomic(&mut self, op: AtomicOp, p: Value, v: Value, mask: Option<Value>) {
        let shape = self.shape(p);
        let mut args = vec![p, self.broadcast_to(v, &shape)];
        if let Some(m) = mask {
            args.push(self.broadcast_to(m, &shape));
        }
        self.inst(Op::Atomic { op, how: Atomicity::default() }, &args, &[], vec![]);
    }
    /// The same in this order and scope; gives the elements before.
    pub fn atomic_old(&mut self, (op, how): (AtomicOp, Atomicity), p: Value, v: Value, mask: Option<Value>) -> Value {
        let shape = self.shape(p);
        let mut args = vec![p, self.broadcast_to(v, &shape)];
        if let Some(m) = mask {
            args.push(self.broadcast_to(m, &shape));
        }
        let ty = self.ty(p).pointee();
        self.one(Op::Atomic { op, how }, &args, ty)
    }
    /// Replaces elements that are as expected ([`Op::CompareSwap`]); gives the elements before.
    pub fn compare_swap(&mut self, how: Atomicity, p: Value, [expected, new]: [Value; 2]) -> Value {
        let shape = self.shape(p);
        let args = [p, self.broadcast_to(expected, &shape), self.broadcast_to(new, &shape)];
        let ty = self.ty(p).pointee();
        self.one(Op::CompareSwap { how }, &args, ty)
    }
}
