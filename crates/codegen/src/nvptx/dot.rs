//! Matmuls: `mma.sync` on operands already in fragment layouts, or FMAs on operands staged in shared memory. Those of
//! 3xTF32 are in [`super::split_dot`].
use super::emit::{Emit, Fail, Res, Val, mistyped};
use super::exchange::Placement;
use super::r#gen::Gen;
use super::index::Reg;
use inkwell::types::BasicTypeEnum;
use inkwell::values::IntValue;
use kiln_block::layout::fragment::Tiling;
use kiln_block::layout::{Flat, axis_bits, bits_of};
use kiln_block::passes::layout::anchors::{takes_any_layout, tensor_matmul};
use kiln_block::{Elem, InstData, Terms};

/// One tensor-core instruction: its name and how many 32-bit registers its operands take.
struct Instruction {
    name: &'static str,
    left: usize,
    right: usize,
    /// Elements per register.
    per: usize,
}

fn instruction(elem: Elem) -> Res<Instruction> {
    let name = match elem {
        Elem::Bf16 => "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
        Elem::F16 => "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
        Elem::F32 => "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32",
        other => return Err(Fail::Unsupported(format!("a tensor-core matmul of {other}"))),
    };
    Ok(Instruction { name, left: 4, right: 2, per: if elem == Elem::F32 { 1 } else { 2 } })
}

impl<'c> Gen<'c, '_> {
    pub fn dot(&mut self, data: &InstData, terms: Terms) -> Res<Vec<Reg<'c>>> {
        let elem = self.elem(data.args[0])?;
        let sum = self.elem(data.results[0])?;
        let values = match tensor_matmul(self.k, data) {
            Some((tiling, _)) if takes_any_layout(data) => self.split_dot(data, &tiling)?,
            Some((tiling, _)) if sum == Elem::F32 => self.tensor(data, &tiling, elem)?,
            Some(_) => return Err(Fail::Unsupported(format!("a matmul of {elem} summed in {sum}"))),
            None => self.multiply_add(data, terms, elem, sum)?,
        };
        Ok(values.into_iter().map(|v| Reg::of(v, sum)).collect())
    }
    fn tensor(&mut self, data: &InstData, t: &Tiling, elem: Elem) -> Res<Vec<Val<'c>>> {
        let i = instruction(elem)?;
        let (a, b) = (self.plain(data.args[0])?, self.plain(data.args[1])?);
        let mut acc = self.plain(data.args[2])?;
        let (a, b) = (self.operand(&a, i.per)?, self.operand(&b, i.per)?);
        let k_tiles = t.k / (8 * i.per);
        let [m_tiles, n_tiles] = t.instructions();
        for m in 0..m_tiles {
            for n in 0..n_tiles {
                let at = (m * n_tiles + n) * 4;
                let mut c = acc[at..at + 4].to_vec();
                for k in 0..k_tiles {
                    let left = (m * k_tiles + k) * i.left;
                    let right = (n * k_tiles + k) * i.right;
                    c = self.mma(&i, &a[left..left + i.left], &b[right..right + i.right], &c)?;
                }
                acc[at..at + 4].copy_from_slice(&c);
            }
        }
        Ok(acc)
    }
    /// An operand's registers, two halves or one tf32 each.
    fn operand(&mut self, values: &[Val<'c>], per: usize) -> Res<Vec<Val<'c>>> {
        let e = &self.e;
        match per {
            2 => values.chunks(2).map(|p| e.bitcast(e.vector(p)?, e.i32())).collect(),
            _ => values.iter().map(|v| e.call("llvm.nvvm.f2tf32.rna", &[], &[*v])).collect(),
        }
    }
    /// The sums `c` plus the products of one step of K of tf32 operands.
    pub fn tf32_mma(&mut self, a: &[Val<'c>], b: &[Val<'c>], c: &[Val<'c>]) -> Res<Vec<Val<'c>>> {
        let i = instruction(Elem::F32)?;
        self.mma(&i, a, b, c)
    }
    fn mma(&mut self, i: &Instruction, a: &[Val<'c>], b: &[Val<'c>], c: &[Val<'c>]) -> Res<Vec<Val<'c>>> {
        let list = |from: usize, n: usize| {
            let names: Vec<String> = (from..from + n).map(|i| format!("${i}")).collect();
            format!("{{{}}}", names.join(", "))
        };
        let sums = list(0, 4);
        let text = format!("{} {sums}, {}, {}, {sums};", i.name, list(4, i.left), list(4 + i.left, i.right));
        let constraints = format!("=f,=f,=f,=f,{}0,1,2,3", "r,".repeat(i.left + i.right));
        let f32: BasicTypeEnum = self.e.f32().into();
        let result = self.e.cx.struct_type(&[f32; 4], false);
        let args: Vec<Val<'c>> = a.iter().chain(b).chain(c).copied().collect();
        let v = self.e.asm(&text, &constraints, Some(result.into()), &args, false, true)?;
        self.e.fields(v.ok_or_else(|| mistyped("a matmul"))?, 4)
    }

    /// Every thread computes its own elements, in a loop over k. Exact in f32 and f64.
    fn multiply_add(&mut self, data: &InstData, terms: Terms, elem: Elem, sum: Elem) -> Res<Vec<Val<'c>>> {
        let k = self.k;
        let (shape_a, shape_b) = (k.ty(data.args[0]).shape(), k.ty(data.args[1]).shape());
        let [m, depth] = shape_a[..] else { return Err(mistyped("a matmul")) };
        let n = shape_b[1];
        let padded = |shape: &[usize]| {
            let order: Vec<u8> = (0..bits_of(shape) as u8).collect();
            Placement::of(&order, bits_of(&shape[1..]), 16 / elem.bytes())
        };
        let places = [padded(shape_a), padded(shape_b)];
        let starts = self.room(&places.each_ref().map(|p| p.elements * elem.bytes()))?;
        for ((v, place), start) in data.args.iter().zip(&places).zip(&starts) {
            let (flat, values) = (self.flat(*v)?, self.plain(*v)?);
            self.scatter(&flat, place, *start, &values, elem)?;
        }
        self.filled()?;
        let flat = self.flat(data.results[0])?;
        let size = elem.bytes();
        let sides = [self.side(&flat, [m, n], 0, &places[0], size)?, self.side(&flat, [m, n], 1, &places[1], size)?];
        let acc = self.plain(data.args[2])?;
        // Several k at once: a row of a is read in 16-byte accesses.
        let step = (16 / elem.bytes()).min(depth).min(4);
        let pitch_b = places[1].weights.get(bits_of(&[n])).copied().unwrap_or(0);
        let bytes = elem.bytes();
        let end = self.e.int(depth as i64);
        self.along_k((step, end), &acc, |g, now, sums| {
            let a_base = g.e.add(sides[0].base, g.e.mul(now, g.e.int(bytes as i64))?)?;
            let b_base = g.e.add(sides[1].base, g.e.mul(now, g.e.int((pitch_b * bytes) as i64))?)?;
            // For each of the step's k, one element of every row.
            let mut left = vec![vec![]; step];
            for offset in &sides[0].offsets {
                let ptr = g.shared_at(a_base, starts[0] + offset * bytes)?;
                let row = g.shared_load(ptr, step, elem)?;
                left.iter_mut().zip(row).for_each(|(column, v)| column.push(v));
            }
            for (k, column) in left.iter().enumerate() {
                let mut right = vec![];
                for first in (0..sides[1].offsets.len()).step_by(sides[1].vector) {
                    let ptr = g.shared_at(b_base, starts[1] + (sides[1].offsets[first] + k * pitch_b) * bytes)?;
                    right.extend(g.shared_load(ptr, sides[1].vector, elem)?);
                }
                for (r, s) in sums.iter_mut().enumerate() {
                    let (x, y) = (column[sides[0].of[r]], right[sides[1].of[r]]);
                    let (x, y) = (g.cast(x, elem, sum)?, g.cast(y, elem, sum)?);
                    *s = g.e.term(terms, x, y, *s)?;
                }
            }
            Ok(())
        })
    }
    /// Addresses at which the accumulator's registers find their row of a (`axis` 0) or column of b (1), of elements of
    /// `size` bytes.
    fn side(&mut self, flat: &Flat, shape: [usize; 2], axis: usize, place: &Placement, size: usize) -> Res<Side<'c>> {
        let bits = axis_bits(&shape, axis);
        // The operand's bits of that axis: high ones for a's rows, low ones for b's columns.
        let all = place.weights.len();
        let first = if axis == 0 { all - bits.len() } else { 0 };
        let weight = |b: u8| place.weights[first + usize::from(b - bits.start)];
        let weights: Vec<i64> =
            flat.threads().map(|b| b.filter(|b| bits.contains(b)).map_or(0, |b| (weight(b) * size) as i64)).collect();
        let base = self.threads.sum(&self.e, &weights)?.value(&self.e, &mut self.memo)?;
        let mut side = Side { base, offsets: vec![], of: vec![], vector: 1 };
        for r in 0..flat.per_thread() {
            let on_axis = flat.registers.iter().enumerate().filter(|(i, b)| r >> i & 1 == 1 && bits.contains(b));
            let offset = on_axis.map(|(_, b)| weight(*b)).sum::<usize>();
            let n = side.offsets.iter().position(|o| *o == offset).unwrap_or_else(|| {
                side.offsets.push(offset);
                side.offsets.len() - 1
            });
            side.of.push(n);
        }
        let run =
            |n: usize| side.offsets.chunks(n).all(|c| c[0] % n == 0 && c.iter().zip(c[0]..).all(|(a, b)| *a == b));
        while side.vector * 2 * size <= 16
            && side.offsets.len().is_multiple_of(side.vector * 2)
            && run(side.vector * 2)
            && weights.iter().all(|w| w % (side.vector * 2 * size) as i64 == 0)
        {
            side.vector *= 2;
        }
        Ok(side)
    }
}

impl<'c> Emit<'c> {
    /// The sum plus the term of two elements.
    pub fn term(&self, terms: Terms, x: Val<'c>, y: Val<'c>, sum: Val<'c>) -> Res<Val<'c>> {
        let (x, y, sum) = match (x, y, sum) {
            (Val::FloatValue(x), Val::FloatValue(y), Val::FloatValue(sum)) => (x, y, sum),
            (Val::IntValue(x), Val::IntValue(y), Val::IntValue(sum)) if terms == Terms::Products => {
                return Ok(self.add(self.mul(x, y)?, sum)?.into());
            }
            _ => return Err(mistyped("a matmul")),
        };
        Ok(match terms {
            Terms::Products => self.call_float("llvm.fma", &[x, y, sum])?,
            Terms::Squares => {
                let apart = self.fsub(x, y)?;
                self.call_float("llvm.fma", &[apart, apart, sum])?
            }
            Terms::Distances => {
                let apart = self.call_float("llvm.fabs", &[self.fsub(x, y)?])?;
                self.fadd(apart, sum)?
            }
        }
        .into())
    }
}

/// Registers of the accumulator that share a row or column.
struct Side<'c> {
    /// The thread's part of the address, in bytes.
    base: IntValue<'c>,
    /// Offset in elements of each row or column.
    offsets: Vec<usize>,
    /// For each register, the row or column it needs.
    of: Vec<usize>,
    /// How many of them one access reads.
    vector: usize,
}
