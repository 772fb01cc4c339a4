//! Products of bf16 on the processor's matrix unit (AMX), whose tiles are 16 rows of 64 bytes.
//!
//! Up to two by two tiles of sums stay in the unit along the summed axis. A tile of the left operand is read where the
//! operand is; one of the right operand from a panel in which pairs of rows lie side by side, as other instructions for
//! bf16 read it, too. Sums are of f32, and numbers below the normal range count as zero.
use super::dot::{Corner, DEPTH, Matmul, Panel, TILE};
use super::eval::Place;
use super::memory::Store;
use super::text::Name;
use super::{Emit, Res};
use kiln_block::{Const, Op};

/// Tiles of the unit: sums, then two of the left operand, then two of the right one.
const LEFT: usize = 4;
const RIGHT: usize = 6;
const COUNT: usize = 8;

/// What tiles of sums begin with.
#[derive(Clone, Copy, PartialEq)]
enum Start {
    Zero,
    /// What is in their place in memory.
    InPlace,
}

/// Rows of a tile in memory.
struct Rows<'a> {
    ptr: &'a Name,
    /// Bytes from one row to the next.
    stride: usize,
}

/// The configuration of the unit as LLVM text: every tile has its full size.
fn configuration() -> String {
    let mut bytes = [0u8; 64];
    // The palette; then the bytes of a row as u16 from byte 16 on, and the rows from byte 48 on.
    bytes[0] = 1;
    for tile in 0..COUNT {
        bytes[16 + 2 * tile] = 4 * TILE as u8;
        bytes[48 + tile] = TILE as u8;
    }
    let text: String = bytes.iter().map(|b| format!("\\{b:02x}")).collect();
    format!("@kiln.tiles = private constant [64 x i8] c\"{text}\", align 64\n")
}

impl Emit<'_> {
    /// Lines around a function's body that configure the unit and release it; none if no product uses it.
    pub fn unit_guards(&mut self) -> [&'static str; 2] {
        if !self.uses_tiles {
            return ["", ""];
        }
        self.text.add_helper("kiln.tiles", configuration());
        self.text.declare_void("llvm.x86.ldtilecfg", "ptr");
        self.text.declare_void("llvm.x86.tilerelease", "");
        ["  call void @llvm.x86.ldtilecfg(ptr @kiln.tiles)\n", "  call void @llvm.x86.tilerelease()\n"]
    }
    /// Rows and columns of the result: one or two tiles each.
    pub fn unit_tile(&mut self, product: &Matmul, panel: &Panel, corner: &Corner) -> Res<()> {
        self.uses_tiles = true;
        let rows = product.rows / TILE;
        let start = self.unit_start(product, corner)?;
        let mut sums = vec![];
        for r in 0..rows {
            for v in 0..product.vectors {
                let at = self.tile_coordinates(corner, r * TILE, v);
                let off = self.linear(&product.to.shape, &at);
                let super::value::Form::Lanes(off, 1) = off.form else { return Err("a tile that is no tile".into()) };
                let d = self.text.depth();
                let p = self.gep(d, "float", &product.to.ptr, &off.text);
                match start {
                    Start::Zero => self.text.call_void(d, "llvm.x86.tilezero", &[("i8", &sums.len().to_string())]),
                    Start::InPlace => self.tile_load(sums.len(), &Rows { ptr: &p, stride: 4 * product.n }),
                }
                sums.push(p);
            }
        }
        self.unit_products(product, panel, corner);
        let d = self.text.depth();
        for (tile, p) in sums.iter().enumerate() {
            let (tile, stride) = (tile.to_string(), (4 * product.n).to_string());
            self.text.call_void(d, "llvm.x86.tilestored64", &[("i8", &tile), ("ptr", p), ("i64", &stride)]);
        }
        Ok(())
    }
    /// Brings the sums so far to the result's memory, unless they are there or zero.
    fn unit_start(&mut self, product: &Matmul, corner: &Corner) -> Res<Start> {
        let made = self.demand.def.get(&product.acc).map(|i| &self.kernel.inst(*i).op);
        if matches!(made, Some(Op::Const(Const::Float(c))) if *c == 0.0) {
            return Ok(Start::Zero);
        }
        if matches!(self.place.get(&product.acc), Some(Place::Buffer(b)) if b.ptr == product.to.ptr) {
            return Ok(Start::InPlace);
        }
        let (label, row) = self.text.open_loop();
        self.memo.push(Default::default());
        let d = self.text.depth();
        let row_of_tile = self.text.emit(d, format!("add nuw nsw i64 {row}, {}", corner.row));
        let inner = Corner { row: &row_of_tile, column: corner.column };
        for v in 0..product.vectors {
            let at = self.tile_coordinates(&inner, 0, v);
            let x = self.eval(product.acc, &at)?;
            let off = self.linear(&product.to.shape, &at);
            self.write(Store::Scratch, &product.to.ptr, &off, &x, None)?;
        }
        self.memo.pop();
        self.text.close_loop(&label, &row, "0", &product.rows.to_string(), 1);
        Ok(Start::InPlace)
    }
    /// Adds the products along the summed axis to the tiles of sums.
    fn unit_products(&mut self, product: &Matmul, panel: &Panel, corner: &Corner) {
        let (label, pair) = self.text.open_loop();
        let d = self.text.depth();
        for r in 0..product.rows / TILE {
            let row = self.text.emit(d, format!("add nuw nsw i64 {}, {}", corner.row, r * TILE));
            let row = self.text.emit(d, format!("mul nuw nsw i64 {row}, {}", product.k / 2));
            let at = self.text.emit(d, format!("add nuw nsw i64 {row}, {pair}"));
            let p = self.gep(d, "i32", &product.left.ptr, &at);
            self.tile_load(LEFT + r, &Rows { ptr: &p, stride: 2 * product.k });
        }
        let first = self.text.emit(d, format!("mul nuw nsw i64 {pair}, {}", panel.stride));
        for v in 0..product.vectors {
            let at = self.text.emit(d, format!("add nuw nsw i64 {first}, {}", v * TILE));
            let p = self.gep(d, "i32", &panel.ptr, &at);
            self.tile_load(RIGHT + v, &Rows { ptr: &p, stride: 4 * panel.stride });
        }
        for r in 0..product.rows / TILE {
            for v in 0..product.vectors {
                let tiles = [r * product.vectors + v, LEFT + r, RIGHT + v].map(|tile| tile.to_string());
                let [sum, left, right] = tiles.each_ref().map(|tile| ("i8", tile.as_str()));
                self.text.call_void(d, "llvm.x86.tdpbf16ps", &[sum, left, right]);
            }
        }
        self.text.close_loop(&label, &pair, "0", &(product.k / 2).to_string(), (DEPTH / 2) as i64);
    }
    fn tile_load(&mut self, tile: usize, rows: &Rows) {
        let (d, tile, stride) = (self.text.depth(), tile.to_string(), rows.stride.to_string());
        self.text.call_void(d, "llvm.x86.tileloadd64", &[("i8", &tile), ("ptr", rows.ptr), ("i64", &stride)]);
    }
}

#[cfg(test)]
mod tests {
    use crate::host::{assembly_for, jit::Machine};
    use kiln_block::{BinaryOp, BlockProgram, Builder, Const, DotPrecision, Elem, Facts, Grid, Type, Value};

    /// Pointers to a row-major matrix.
    fn matrix(b: &mut Builder, p: Value, [rows, columns]: [usize; 2]) -> Value {
        let (i, j, width) = (b.iota(rows), b.iota(columns), b.i32(columns as i64));
        let (i, j) = (b.expand_dims(i, 1), b.expand_dims(j, 0));
        let i = b.binary(BinaryOp::Mul, i, width);
        let at = b.binary(BinaryOp::Add, i, j);
        b.ptr_add(p, at)
    }
    /// One product of blocks, started from zero.
    fn product([m, n, k]: [usize; 3]) -> BlockProgram {
        let mut b = Builder::new("product", Grid::Launch, 4);
        let [left, right] = ["left", "right"].map(|name| b.param(name, Elem::Bf16, true));
        let to = b.param("to", Elem::F32, false);
        b.scalar("size", Elem::I32, Facts::default());
        let (left, right) = (matrix(&mut b, left, [m, k]), matrix(&mut b, right, [k, n]));
        let (left, right) = (b.load(left, None, None), b.load(right, None, None));
        let zero = b.constant(Type::block(Elem::F32, [m, n]), Const::Float(0.0));
        let sum = b.dot(left, right, zero, DotPrecision::Exact);
        let to = matrix(&mut b, to, [m, n]);
        b.store(to, sum, None);
        b.finish()
    }

    /// The processor need not have the unit to assemble code for it.
    #[test]
    fn products_of_whole_tiles_are_computed_by_the_unit() {
        let machine = Machine {
            cpu: "sapphirerapids".into(),
            features: "+amx-tile,+amx-bf16".into(),
            lanes: 16,
            f16c: true,
            pairs_of_bf16: true,
            tiles: true,
        };
        for (sizes, products) in
            [([64, 64, 64], 4), ([16, 32, 32], 2), ([16, 16, 32], 1), ([8, 64, 64], 0), ([64, 64, 16], 0)]
        {
            let text = assembly_for(&[product(sizes)], &machine).unwrap();
            let count = |what: &str| text.lines().filter(|l| l.trim_start().starts_with(what)).count();
            assert_eq!(count("tdpbf16ps"), products, "{sizes:?}:\n{text}");
            let once = usize::from(products > 0);
            assert_eq!([count("ldtilecfg"), count("tilerelease")], [once; 2], "{sizes:?}:\n{text}");
            assert_eq!(count("vdpbf16ps") > 0, products == 0, "{sizes:?}:\n{text}");
        }
    }
}
