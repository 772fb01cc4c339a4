//! Tiles of arrays whose sizes and strides are numbers of the launch.
//!
//! The pitch is a product of parameters, and an axis ends where a mask says; one without a mask has no end, as the
//! program promises to stay inside of its tensor. Where the tile begins may count in other strides of the launch, those
//! of a batch or a head: these are axes before the rows, along which the tile has one position. Rows `position % size`
//! are rows up to `size`, if what is read for the positions after it only reaches stores that a mask keeps from them
//! ([`super::wrapped`]).
use super::super::Refusal;
use super::{access, accesses, wrapped};
use crate::analysis::strided::{Monomial, Polynomial, Strided, StridedBounds, StridedForms};
use crate::analysis::{Analysis, analyse};
use crate::passes::dce;
use crate::{
    BinaryOp as B, BlockProgram, Builder, CmpOp, Const, Elem, Extent, Facts, Inst, LaunchArray, Op, Param, Swizzle,
    Type, Value,
};
use std::collections::HashMap;

/// A tile of such an array.
struct Tile {
    /// The position of its pointer among the parameters.
    base: usize,
    elem: Elem,
    /// Of the array, axes as in [`LaunchArray`]: what its beginning counts in, then rows and elements of a row.
    sizes: Vec<Extent>,
    strides: Vec<Extent>,
    starts: Vec<Polynomial>,
    /// Rows and elements of a row.
    shape: [usize; 2],
    /// The block's first axis is the contiguous one.
    swapped: bool,
}

/// Most axes before the rows: a tensor map has five.
const MAX_LEADING: usize = 3;

/// The same program, with descriptors of the launch where the forms allow them.
pub fn run(kernel: &BlockProgram) -> Result<BlockProgram, Refusal> {
    let mut k = kernel.clone();
    let mut tiles: HashMap<Inst, Tile> = HashMap::new();
    let mut finder = Finder { k: kernel, forms: StridedForms::of(kernel), facts: analyse(kernel) };
    for inst in accesses(kernel) {
        if let Some(tile) = finder.tile(inst) {
            tiles.insert(inst, tile);
        }
    }
    let mut descriptors: Vec<(LaunchArray, Type, Value)> = vec![];
    let mut params = HashMap::new();
    let mut order: Vec<&Inst> = tiles.keys().collect();
    order.sort_unstable();
    for inst in order {
        let tile = &tiles[inst];
        let swizzle = Swizzle::widest(tile.elem, tile.shape[1]);
        let shape = [vec![1; tile.starts.len() - 2], tile.shape.to_vec()].concat();
        let ty = Type::Desc { elem: tile.elem, shape, swizzle };
        let array = LaunchArray { base: tile.base, sizes: tile.sizes.clone(), strides: tile.strides.clone() };
        let known = descriptors.iter().find(|(a, t, _)| *a == array && *t == ty).map(|d| d.2);
        let value = known.unwrap_or_else(|| {
            let value = k.new_value(ty.clone());
            let name = format!("{}_tile{}", kernel.params[tile.base].name, descriptors.len());
            let readonly = kernel.params[tile.base].readonly;
            let (launch_array, facts) = (Some(array.clone()), Facts::default());
            k.params.push(Param { name, value, align: 16, readonly, array: None, launch_array, facts });
            descriptors.push((array, ty, value));
            value
        });
        params.insert(*inst, value);
    }
    let mut k = Builder::rewrite(k, |b, i| match (tiles.get(&i), params.get(&i)) {
        (Some(tile), Some(param)) => {
            let starts: Vec<Value> = tile.starts.iter().map(|start| number(b, start)).collect();
            access(b, i, *param, &starts, tile.swapped.then_some(tile.shape));
        }
        _ => b.keep(i),
    });
    dce::run(&mut k);
    Ok(k)
}

struct Finder<'a> {
    k: &'a BlockProgram,
    forms: StridedForms<'a>,
    facts: Analysis,
}

impl Finder<'_> {
    fn tile(&mut self, inst: Inst) -> Option<Tile> {
        let k = self.k;
        let data = k.inst(inst);
        let (ptr, is_load) = (data.args[0], matches!(data.op, Op::Load(..)));
        let (mask, other) = if is_load { (data.args.get(1), data.args.get(2)) } else { (data.args.get(2), None) };
        if other.is_some_and(|other| super::super::form::constant(k, *other) != Some(Const::Float(0.0))) {
            return None;
        }
        let form = self.forms.form(ptr)?;
        let base = k.params.iter().position(|p| Some(p.value) == form.root)?;
        let param = &k.params[base];
        let elem = k.ty(ptr).elem().filter(|e| e.is_float() && e.bytes() <= 4)?;
        let safe = if is_load { param.readonly } else { param.facts.noalias && self.is_only_access(inst, param.value) };
        if !safe || !param.align.is_multiple_of(16) {
            return None;
        }
        let (&[_, _], [s0, s1]) = (k.ty(ptr).shape(), &form.strides[..]) else { return None };
        let (swapped, pitch) = match (s0.as_constant(), s1.as_constant()) {
            (_, Some(1)) => (false, s0),
            (Some(1), _) if is_load => (true, s1),
            _ => return None,
        };
        let (monomial, factor) = pitch.as_term().filter(|(_, factor)| *factor > 0)?;
        let pitch_extent = self.extent(&Polynomial::default().add_scaled(pitch, 1)?)?;
        let whole = |d: i64| d.saturating_mul(elem.bytes() as i64) % 16 == 0;
        let (outer, rest) = form.base.split((monomial, factor));
        let (leading, inner) = self.leading(&rest)?;
        let aligned = leading.iter().all(|(stride, _)| stride.terms().all(|(m, _)| whole(self.divisor(m))));
        if !whole(self.divisor(monomial).saturating_mul(factor)) || !aligned || !self.starts_aligned(&inner, elem) {
            return None;
        }
        let mut strides = leading.iter().map(|(stride, _)| self.extent(stride)).collect::<Option<Vec<_>>>()?;
        strides.extend([pitch_extent, Extent::constant(1)]);
        let starts: Vec<Polynomial> = leading.into_iter().map(|(_, start)| start).chain([outer, inner]).collect();
        if starts.iter().flat_map(Polynomial::scalars).any(|v| !self.is_number(v)) {
            return None;
        }
        let bounds = match mask {
            Some(mask) => self.forms.bounds(*mask)?,
            None => vec![],
        };
        let sizes = self.sizes(&form, &bounds, &starts, swapped)?;
        let stays_inside = |forms: &mut StridedForms| wrapped::is_masked(k, forms, data.results[0], &form.wraps);
        if !(form.wraps.is_empty() || is_load && stays_inside(&mut self.forms)) {
            return None;
        }
        let block = k.ty(ptr).shape();
        let shape = if swapped { [block[1], block[0]] } else { [block[0], block[1]] };
        Some(Tile { base, elem, sizes, strides, starts, shape, swapped })
    }
    /// The strides of the launch that a start counts in, each with how many, and what is left.
    fn leading(&self, start: &Polynomial) -> Option<(Vec<(Polynomial, Polynomial)>, Polynomial)> {
        let is_param = |v: &Value| self.k.params.iter().any(|p| p.value == *v);
        let mut leading: Vec<(Polynomial, Polynomial)> = vec![];
        let mut inner = Polynomial::default();
        for (monomial, factor) in start.terms() {
            let (strides, count): (Monomial, Monomial) = monomial.iter().partition(|v| is_param(v));
            let [stride, count] = [(strides, 1), (count, factor)].map(|(scalars, n)| Polynomial::term(scalars, n));
            if stride.as_constant().is_some() {
                inner = inner.add_scaled(&count, 1)?;
            } else if let Some((_, known)) = leading.iter_mut().find(|(known, _)| *known == stride) {
                *known = known.add_scaled(&count, 1)?;
            } else {
                leading.push((stride, count));
            }
        }
        (leading.len() <= MAX_LEADING).then_some((leading, inner))
    }
    /// Where the axes end, by masks and remainders; all of them must be understood. They start where the array does.
    fn sizes(
        &self,
        form: &Strided,
        bounds: &StridedBounds,
        starts: &[Polynomial],
        swapped: bool,
    ) -> Option<Vec<Extent>> {
        let mut sizes = vec![Extent::ENDLESS; starts.len()];
        let leading = starts.len() - 2;
        // Of an axis of the block, which of the array's it is.
        let of_array = |axis: usize| leading + (axis ^ usize::from(swapped));
        let mut end = |axis: usize, size: Polynomial| {
            let extent = self.extent(&size)?;
            let known = sizes.get_mut(axis)?;
            let is_first = *known == Extent::ENDLESS || *known == extent;
            *known = extent;
            is_first.then_some(())
        };
        for (bound, op) in bounds {
            if !bound.wraps.is_empty() || bound.root.is_some() {
                return None;
            }
            // Where the bound has a position along one axis of the array, and the size that is left of it.
            let mut along = (0..2).filter(|a| !bound.strides[*a].is_zero());
            let axes = match (along.next(), along.next()) {
                (Some(axis), None) if bound.strides[axis].as_constant() == Some(1) => {
                    of_array(axis)..of_array(axis) + 1
                }
                (None, _) => 0..leading,
                _ => return None,
            };
            let mut left = axes.map(|axis| Some((axis, starts[axis].add_scaled(&bound.base, -1)?)));
            match op {
                // Nothing is read before the first position.
                CmpOp::Ge => _ = left.find(|found| found.as_ref().is_some_and(|(_, size)| size.is_zero()))??,
                CmpOp::Lt => {
                    let is_size = |size: &Polynomial| self.extent(size).is_some();
                    let (axis, size) = left.flatten().find(|(_, size)| is_size(size))?;
                    end(axis, size)?;
                }
                _ => return None,
            }
        }
        for wrap in &form.wraps {
            if wrap.start != starts[of_array(wrap.axis)] {
                return None;
            }
            end(of_array(wrap.axis), wrap.size.clone())?;
        }
        Some(sizes)
    }
    /// A product of parameters.
    fn extent(&self, size: &Polynomial) -> Option<Extent> {
        let (monomial, factor) = size.as_term()?;
        let params = monomial.iter().map(|v| self.k.params.iter().position(|p| p.value == *v));
        Some(Extent { factor, params: params.collect::<Option<_>>()? })
    }
    /// Whether a scalar is computed where a start is: the form's scalars are those of the access.
    fn is_number(&self, v: Value) -> bool {
        matches!(self.k.ty(v), Type::Block { elem: Elem::I32 | Elem::I64, shape } if shape.is_empty())
    }
    /// Copies must start at multiples of 16 bytes of a row.
    fn starts_aligned(&self, inner: &Polynomial, elem: Elem) -> bool {
        inner.terms().all(|(monomial, factor)| {
            let divisor = self.divisor(monomial).saturating_mul(factor.unsigned_abs().try_into().unwrap_or(1));
            divisor.saturating_mul(elem.bytes() as i64) % 16 == 0
        })
    }
    fn divisor(&self, monomial: &Monomial) -> i64 {
        monomial.iter().map(|v| self.facts.divisor(*v)).fold(1, i64::saturating_mul)
    }
    /// Whether no other access is through a pointer to a parameter's memory.
    fn is_only_access(&mut self, inst: Inst, param: Value) -> bool {
        let mut pointers = vec![];
        self.k.walk(&mut |i, d| {
            if i != inst && !d.op.is_pure() {
                pointers.extend(d.args.iter().copied().filter(|v| matches!(self.k.ty(*v), Type::Ptr { .. })));
            }
        });
        pointers.into_iter().all(|v| self.forms.form(v).and_then(|f| f.root).is_some_and(|root| root != param))
    }
}

/// The value of a polynomial, which fits 32 bits: it is a position in a tensor.
fn number(b: &mut Builder, sum: &Polynomial) -> Value {
    let mut total = None;
    for (monomial, factor) in sum.terms() {
        let mut product = (factor != 1 || monomial.is_empty()).then(|| b.i32(factor));
        for v in monomial {
            let v = b.cast(*v, Elem::I32);
            product = Some(product.map_or(v, |product| b.binary(B::Mul, product, v)));
        }
        total = match (total, product) {
            (Some(total), Some(term)) => Some(b.binary(B::Add, total, term)),
            (total, term) => total.or(term),
        };
    }
    total.unwrap_or_else(|| b.i32(0))
}
