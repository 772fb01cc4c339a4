//! What `multiple_of` says of a value from there on: divisors that no analysis could find, as of sizes and addresses in
//! memory.
use super::affine::Affine;
use super::axis::unit;
use super::run::Axis;
use super::values::{ANY, Analysis, power_of_two_in};
use crate::{InstData, Type, Value};

impl Analysis {
    /// Takes the operand's facts, and the divisors, as the result's.
    pub(super) fn multiple_of(&mut self, data: &InstData, result: Value, divisors: &[u32]) {
        let Some(ty) = self.types.get(&result).cloned() else { return };
        match ty.shape() {
            [] => self.scalar_multiple(data.args[0], result, &ty, divisors.first().copied().unwrap_or(1)),
            _ => self.block_multiples(data.args[0], result, divisors),
        }
    }
    fn scalar_multiple(&mut self, from: Value, result: Value, ty: &Type, divisor: u32) {
        let (known, said) = (self.scalar_divisor(from), power_of_two_in(divisor.into()));
        if said <= known {
            self.same_form(from, result);
            return;
        }
        match ty {
            Type::Ptr { .. } => {
                self.aligns.insert(result, said as usize);
                self.forms.insert(result, Affine { root: Some(result), ..Affine::default() });
            }
            _ => {
                self.divisors.insert(result, said);
                let range = self.forms.get(&from).and_then(|form| self.range(form, &[]));
                range.map(|range| self.ranges.insert(result, range));
                self.forms.insert(result, Affine::scalar(result));
            }
        }
    }
    /// Of each run of neighbours that is an axis long, the first; of shorter ones, which may be parts of longer ones
    /// that the analysis does not see, as far as their length divides the divisor. Nothing is said of single elements.
    fn block_multiples(&mut self, from: Value, result: Value, divisors: &[u32]) {
        let known = self.axes(from);
        let Some(ty) = self.types.get(&result) else { return };
        let (bytes, shape) = (unit(ty), ty.shape().to_vec());
        let is_single = |axis: usize| known.iter().enumerate().all(|(n, a)| n == axis || a.contiguous == 1);
        let said = |(n, (a, divisor)): (usize, (&Axis, &u32))| {
            let whole = shape.get(n).is_some_and(|size| a.contiguous == *size as i64);
            let limit = if whole { ANY } else { a.contiguous.saturating_mul(bytes) };
            match a.contiguous > 1 && is_single(n) {
                true => Axis { divisor: a.divisor.max(power_of_two_in((*divisor).into()).min(limit)), ..*a },
                false => *a,
            }
        };
        let axes: Vec<Axis> = known.iter().zip(divisors).enumerate().map(said).collect();
        if axes == known {
            self.same_form(from, result);
        }
        self.axes.insert(result, axes);
    }
    fn same_form(&mut self, from: Value, result: Value) {
        if let Some(form) = self.forms.get(&from).cloned() {
            self.forms.insert(result, form);
        }
    }
    /// Largest known power of two that divides a scalar: of a pointer, its address in bytes.
    pub fn scalar_divisor(&self, v: Value) -> i64 {
        let Some(Type::Ptr { elem, .. }) = self.types.get(&v) else { return self.divisor(v) };
        let bytes = elem.bytes() as i64;
        let Some(form) = self.forms.get(&v) else { return bytes };
        let align = form.root.and_then(|root| self.aligns.get(&root)).map_or(1, |align| *align as i64);
        self.form_divisor(form).saturating_mul(bytes).min(align).min(ANY)
    }
}

#[cfg(test)]
mod tests {
    use crate::{BinaryOp, Builder, Elem, Type, Value, analysis::analyse};

    /// Rows of a matrix whose row length and address are in memory, `hint` says of which.
    fn rows(hint: impl Fn(&mut Builder, [Value; 2]) -> [Value; 2]) -> (usize, usize) {
        let mut b = Builder::new("k", [4, 1, 1], 4);
        let (sizes, addresses) = (b.param("sizes", Elem::I32, true), b.param("addresses", Elem::I64, true));
        let (length, address) = (b.load(sizes, None, None), b.load(addresses, None, None));
        let pointer = b.bitcast(address, &Type::Ptr { elem: Elem::F16, shape: vec![] });
        let [length, pointer] = hint(&mut b, [length, pointer]);
        let (rows, columns) = (b.iota(64), b.iota(64));
        let (rows, columns) = (b.expand_dims(rows, 1), b.expand_dims(columns, 0));
        let starts = b.binary(BinaryOp::Mul, rows, length);
        let at = b.binary(BinaryOp::Add, starts, columns);
        let p = b.ptr_add(pointer, at);
        analyse(&b.finish()).alignment(p, 1)
    }

    #[test]
    fn sizes_and_addresses_of_memory() {
        assert_eq!(rows(|_, all| all), (64, 2));
        assert_eq!(rows(|b, [length, p]| [b.multiple_of(length, &[16]), p]), (64, 2));
        assert_eq!(rows(|b, [length, p]| [length, b.multiple_of(p, &[16])]), (64, 2));
        assert_eq!(rows(|b, [length, p]| [b.multiple_of(length, &[8]), b.multiple_of(p, &[16])]), (64, 16));
        assert_eq!(rows(|b, [length, p]| [b.multiple_of(length, &[4]), b.multiple_of(p, &[48])]), (64, 8));
    }

    /// Rows `i % m` are runs of 16 at least, and may be longer ones; rows of memory are no runs.
    #[test]
    fn runs_that_are_parts_of_others() {
        let mut b = Builder::new("k", [4, 1, 1], 4);
        let (x, rows) = (b.param("x", Elem::F16, true), b.iota(64));
        let m = b.i32(48);
        let wrapped = b.binary(BinaryOp::Rem, rows, m);
        let p = b.ptr_add(x, rows);
        let loaded = b.load(p, None, None);
        let loaded = b.cast(loaded, Elem::I32);
        let known = [wrapped, loaded].map(|v| b.multiple_of(v, &[128]));
        let a = analyse(&b.finish());
        assert_eq!(known.map(|v| a.axes(v)[0].divisor), [16, 1]);
    }

    /// Of a block of pointers, the first of each row.
    #[test]
    fn blocks_of_pointers() {
        let mut b = Builder::new("k", [4, 1, 1], 4);
        let (x, length) = (b.param("x", Elem::F16, true), b.param("sizes", Elem::I32, true));
        let length = b.load(length, None, None);
        let (rows, columns) = (b.iota(64), b.iota(64));
        let (rows, columns) = (b.expand_dims(rows, 1), b.expand_dims(columns, 0));
        let starts = b.binary(BinaryOp::Mul, rows, length);
        let at = b.binary(BinaryOp::Add, starts, columns);
        let p = b.ptr_add(x, at);
        let known = b.multiple_of(p, &[16, 16]);
        let step = b.i32(64);
        let next = b.ptr_add(known, step);
        let a = analyse(&b.finish());
        assert_eq!(a.alignment(p, 1), (64, 2));
        assert_eq!(a.alignment(known, 1), (64, 16));
        assert_eq!(a.alignment(known, 0), (1, 2));
        assert_eq!(a.alignment(next, 1), (64, 16));
    }
}
