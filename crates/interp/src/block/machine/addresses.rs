//! Pointers as integers and back: by the addresses of memory in a run on a caller's tensors.
use super::Machine;
use crate::block::{memory::Buffer, scalar, value::*};
use kiln_block::Type;

impl Machine<'_, '_> {
    /// The same bits as another type. Where buffers have addresses, integers are those of memory.
    pub(super) fn bitcast(&self, a: &Block, ty: &Type) -> Block {
        let Some(origins) = self.origins else { return scalar::bitcast(a, ty) };
        let (elem, shape) = block_type(ty);
        let data = match (&a.data, ty) {
            (Data::Ptr(v), Type::Block { .. }) => {
                let number = |a: &Address| origins.get(a.param).map_or(a.at, |o| (*o as i64).wrapping_add(a.at));
                Data::Int(v.iter().map(number).collect())
            }
            (Data::Int(v), Type::Ptr { .. }) => Data::Ptr(v.iter().map(|n| self.found(origins, *n)).collect()),
            _ => return scalar::bitcast(a, ty),
        };
        Block { elem, shape, data }
    }
    /// The address of an integer: in the buffer that has it, else in none.
    fn found(&self, origins: &[u64], number: i64) -> Address {
        let inside = |(origin, buffer): (&u64, &Buffer)| {
            *origin != 0 && (number as u64).checked_sub(*origin).is_some_and(|at| at < buffer.bytes.len() as u64)
        };
        match origins.iter().zip(self.buffers.iter()).position(inside) {
            Some(param) => Address { param, at: number.wrapping_sub(origins[param] as i64) },
            None => Address { param: usize::MAX, at: number },
        }
    }
}
