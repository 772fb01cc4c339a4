//! Matmuls of blocks: register tiles of rows by vectors, over operands in scratch memory. The matrix unit's tiles are
//! in [`super::tiles`].
//!
//! Columns are the outer loop: a panel of the right operand stays in the first cache while all rows pass. A loop's
//! accumulator is updated where it is. Where the processor multiplies pairs of bf16 (`avx512bf16`) that is used, for
//! hand-written kernels: sums are of f32, and numbers below the normal range count as zero, as in PyTorch's matmuls.
use super::eval::{Buffer, Place};
use super::group::block_elem;
use super::memory::Store;
use super::text::{Name, reg, vector};
use super::value::{Form, Num, Val};
use super::{Emit, Res};
use kiln_block::{Elem, Value};

/// Steps along the summed axis that are written out.
const UNROLL: usize = 2;
/// Rows of a tile of the matrix unit, and its columns of 32 bits.
pub(super) const TILE: usize = 16;
/// Elements of the summed axis in a tile of the matrix unit.
pub(super) const DEPTH: usize = 32;

/// `left [M,K] x right [K,N] + acc [M,N]`.
pub(super) struct Matmul {
    m: usize,
    pub n: usize,
    pub k: usize,
    pub left: Buffer,
    right: Buffer,
    pub acc: Value,
    pub to: Buffer,
    /// Rows and vectors of a register tile.
    pub rows: usize,
    pub vectors: usize,
    by: Multiplier,
}

/// What multiplies.
#[derive(Clone, Copy, PartialEq)]
enum Multiplier {
    Elements,
    /// Pairs of bf16.
    Pairs,
    /// The matrix unit, pairs of bf16, too.
    Unit,
}

impl Matmul {
    /// Whether pairs of bf16 are multiplied.
    fn pairs(&self) -> bool {
        self.by != Multiplier::Elements
    }
}

/// The columns of the right operand that a tile multiplies.
pub(super) struct Panel {
    pub ptr: Name,
    /// Elements, or pairs, from one step of the summed axis to the next.
    pub stride: usize,
}

/// The first row and column of a tile.
pub(super) struct Corner<'a> {
    pub row: &'a Name,
    pub column: &'a Name,
}

impl Emit<'_> {
    /// The operands were kept in scratch memory by demand analysis.
    pub fn dot(&mut self, left: Value, right: Value, acc: Value, result: Value) -> Res<()> {
        let shape = self.shape(result);
        let [m, n] = &shape[..] else { return Err("a matmul that is not a matrix".into()) };
        let (m, n) = (*m, *n);
        let k = *self.kernel.ty(left).shape().last().ok_or("a matmul of a scalar")?;
        let elem = block_elem(self.kernel.ty(acc))?;
        let (Some(Place::Buffer(a)), Some(Place::Buffer(b))) =
            (self.place.get(&left).cloned(), self.place.get(&right).cloned())
        else {
            return Err("a matmul of values that are not in memory".into());
        };
        let to = match self.homes.get(&result) {
            Some(home) => home.clone(),
            None => self.new_buffer(elem, &shape),
        };
        self.memo = vec![Default::default()];
        self.lanes = self.machine.lanes.min(n);
        let vectors = (n / self.lanes).min(2);
        // Half of the registers are accumulators.
        let most = if self.machine.lanes >= 16 && vectors == 2 { 8 } else { 8 / vectors };
        let halves = a.memory == Store::Tensor && b.memory == Store::Tensor;
        let pairs = halves && elem == Elem::F32 && self.lanes == 16 && k.is_multiple_of(2);
        let unit = pairs && self.machine.tiles && m.is_multiple_of(TILE) && k.is_multiple_of(DEPTH);
        let (by, most) = match (pairs, unit) {
            (_, true) => (Multiplier::Unit, 2 * TILE),
            (true, false) => (Multiplier::Pairs, most),
            (false, false) => (Multiplier::Elements, most),
        };
        let product = Matmul { m, n, k, left: a, right: b, acc, to, rows: m.min(most), vectors, by };
        self.matmul(&product)?;
        self.memo = vec![Default::default()];
        self.lanes = 1;
        self.place.insert(result, Place::Buffer(product.to));
        Ok(())
    }
    fn matmul(&mut self, product: &Matmul) -> Res<()> {
        let (lanes, panel) = (self.lanes, product.vectors * self.lanes);
        let packed = product.pairs().then(|| self.new_buffer(Elem::I32, &[product.k / 2, panel]));
        let (outer, column) = self.text.open_loop();
        self.memo.push(Default::default());
        let panel_of = match &packed {
            Some(packed) => self.pack_pairs(product, &column, packed),
            None => {
                let d = self.text.depth();
                let right = &product.right;
                let ptr = self.gep(d, right.memory.ty(right.elem), &right.ptr, &column);
                Panel { ptr, stride: product.n }
            }
        };
        let (inner, row) = self.text.open_loop();
        self.memo.push(Default::default());
        let corner = Corner { row: &row, column: &column };
        match product.by {
            Multiplier::Unit => self.unit_tile(product, &panel_of, &corner)?,
            Multiplier::Pairs | Multiplier::Elements => self.tile(product, &panel_of, &corner)?,
        }
        self.memo.pop();
        self.text.close_loop(&inner, &row, "0", &product.m.to_string(), product.rows as i64);
        self.memo.pop();
        self.text.close_loop(&outer, &column, "0", &product.n.to_string(), (product.vectors * lanes) as i64);
        Ok(())
    }
    /// Copies columns of the right operand so that the pairs of rows that are multiplied together lie side by side.
    fn pack_pairs(&mut self, product: &Matmul, column: &Name, packed: &Buffer) -> Panel {
        let (lanes, stride) = (self.lanes, product.vectors * self.lanes);
        let (label, pair) = self.text.open_loop();
        let d = self.text.depth();
        let row = self.text.emit(d, format!("mul nuw nsw i64 {pair}, {}", 2 * product.n));
        let from = self.text.emit(d, format!("add nuw nsw i64 {row}, {column}"));
        let to = self.text.emit(d, format!("mul nuw nsw i64 {pair}, {stride}"));
        let (short, word) = (vector("i16", lanes), vector("i32", lanes));
        for v in 0..product.vectors {
            let halves = [0, product.n].map(|row| {
                let at = self.text.emit(d, format!("add nuw nsw i64 {from}, {}", row + v * lanes));
                let p = self.gep(d, "i16", &product.right.ptr, &at);
                let x = self.text.emit(d, format!("load {short}, ptr {p}, align 2"));
                self.text.emit(d, format!("zext {short} {x} to {word}"))
            });
            let shift = super::text::literal("i32", lanes, "16");
            let high = self.text.emit(d, format!("shl {word} {}, {shift}", halves[1]));
            let both = self.text.emit(d, format!("or {word} {high}, {}", halves[0]));
            let at = self.text.emit(d, format!("add nuw nsw i64 {to}, {}", v * lanes));
            let p = self.gep(d, "i32", &packed.ptr, &at);
            self.text.line(d, format!("store {word} {both}, ptr {p}, align 4"));
        }
        self.text.close_loop(&label, &pair, "0", &(product.k / 2).to_string(), 1);
        Panel { ptr: packed.ptr.clone(), stride }
    }
    fn tile(&mut self, product: &Matmul, panel: &Panel, corner: &Corner) -> Res<()> {
        let (d, lanes, e) = (self.text.depth(), self.lanes, product.to.elem);
        let t = vector(reg(e), lanes);
        let mut sums = vec![];
        for r in 0..product.rows {
            for v in 0..product.vectors {
                let at = self.tile_coordinates(corner, r, v);
                let x = self.eval(product.acc, &at)?;
                let x = self.reg(&x, lanes);
                let slot = self.text.alloca(&t, 64);
                self.text.line(d, format!("store {t} {x}, ptr {slot}"));
                sums.push(slot);
            }
        }
        let steps = if product.pairs() { product.k / 2 } else { product.k };
        let unroll = if steps.is_multiple_of(UNROLL) { UNROLL } else { 1 };
        let (label, step) = self.text.open_loop();
        for u in 0..unroll {
            let d = self.text.depth();
            let at = self.text.emit(d, format!("add nuw nsw i64 {step}, {u}"));
            self.multiply(product, panel, (corner.row, &at), &sums)?;
        }
        self.text.close_loop(&label, &step, "0", &steps.to_string(), unroll as i64);
        for r in 0..product.rows {
            for v in 0..product.vectors {
                let at = self.tile_coordinates(corner, r, v);
                let x = self.text.emit(d, format!("load {t}, ptr {}", sums[r * product.vectors + v]));
                let value =
                    if lanes == 1 { self.wrap(e, x, 1, d) } else { Val { elem: e, form: Form::Vec(x), depth: d } };
                let off = self.linear(&product.to.shape, &at);
                self.write(Store::Scratch, &product.to.ptr, &off, &value, None)?;
            }
        }
        Ok(())
    }
    /// Coordinates of a vector of a tile.
    pub fn tile_coordinates(&mut self, corner: &Corner, row: usize, vector: usize) -> [Val; 2] {
        let (d, lanes) = (self.text.depth(), self.lanes);
        let row = self.text.emit(d, format!("add nuw nsw i64 {}, {row}", corner.row));
        let column = self.text.emit(d, format!("add nuw nsw i64 {}, {}", corner.column, vector * lanes));
        let number = |text: Name| Num { text, konst: None, tz: 0, nonneg: true, exact: true };
        let form = if lanes > 1 { Form::Lanes(number(column), 1) } else { Form::Num(number(column)) };
        let row = Val::num(Elem::I64, number(row), d);
        [row, Val { elem: Elem::I64, form, depth: d }]
    }
    /// One step along the summed axis.
    fn multiply(&mut self, product: &Matmul, panel: &Panel, (row, step): (&Name, &Name), sums: &[Name]) -> Res<()> {
        let (d, lanes, e) = (self.text.depth(), self.lanes, product.to.elem);
        let t = vector(reg(e), lanes);
        let at = self.text.emit(d, format!("mul nuw nsw i64 {step}, {}", panel.stride));
        let mut columns = vec![];
        for v in 0..product.vectors {
            let at = self.text.emit(d, format!("add nuw nsw i64 {at}, {}", v * lanes));
            columns.push(match product.pairs() {
                true => self.word_pairs(&panel.ptr, &at, lanes),
                false => self.factor(&product.right, &panel.ptr, &at, (e, lanes))?,
            });
        }
        let steps = if product.pairs() { product.k / 2 } else { product.k };
        for r in 0..product.rows {
            let at = self.text.emit(d, format!("add nuw nsw i64 {row}, {r}"));
            let at = self.text.emit(d, format!("mul nuw nsw i64 {at}, {steps}"));
            let at = self.text.emit(d, format!("add nuw nsw i64 {at}, {step}"));
            let x = match product.pairs() {
                true => self.word_pairs(&product.left.ptr, &at, 1),
                false => {
                    let x = self.factor(&product.left, &product.left.ptr, &at, (e, 1))?;
                    self.splat(reg(e), &x, lanes, d)
                }
            };
            for (y, slot) in columns.iter().zip(&sums[r * product.vectors..]) {
                let s = self.text.emit(d, format!("load {t}, ptr {slot}"));
                let s = self.sum_of_products(product, [&x, y, &s]);
                self.text.line(d, format!("store {t} {s}, ptr {slot}"));
            }
        }
        Ok(())
    }
    fn sum_of_products(&mut self, product: &Matmul, [x, y, sum]: [&Name; 3]) -> Name {
        let (d, lanes, e) = (self.text.depth(), self.lanes, product.to.elem);
        let t = vector(reg(e), lanes);
        if product.pairs() {
            let pairs = "<32 x bfloat>";
            return self.text.call(d, &t, "llvm.x86.avx512bf16.dpbf16ps.512", &[(&t, sum), (pairs, x), (pairs, y)]);
        }
        if e.is_float() {
            return self.intrinsic(d, "fma", reg(e), lanes, &[x, y, sum]);
        }
        let p = self.text.emit(d, format!("mul {t} {x}, {y}"));
        self.text.emit(d, format!("add {t} {p}, {sum}"))
    }
    /// Elements of an operand as the sum's type.
    fn factor(&mut self, operand: &Buffer, ptr: &Name, at: &Name, (to, lanes): (Elem, usize)) -> Res<Name> {
        let (d, memory, from) = (self.text.depth(), operand.memory, operand.elem);
        let p = self.gep(d, memory.ty(from), ptr, at);
        let ty = vector(memory.ty(from), lanes);
        let x = self.text.emit(d, format!("load {ty}, ptr {p}, align {}", memory.bytes(from)));
        let x = self.unpack(d, from, memory, x, lanes)?;
        if reg(from) == reg(to) { Ok(x) } else { self.cast_reg(from, to, d, x, lanes) }
    }
    /// Words of two bf16 each: of this many lanes, or one word repeated.
    fn word_pairs(&mut self, ptr: &Name, at: &Name, lanes: usize) -> Name {
        let d = self.text.depth();
        let p = self.gep(d, "i32", ptr, at);
        let x = self.text.emit(d, format!("load {}, ptr {p}, align 4", vector("i32", lanes)));
        let x = if lanes == 1 { self.splat("i32", &x, self.lanes, d) } else { x };
        self.text.emit(d, format!("bitcast {} {x} to <32 x bfloat>", vector("i32", self.lanes)))
    }
}
