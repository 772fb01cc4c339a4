//! Random programs: host code against the interpreter, bit for bit (integers, and floats without sums or functions).
use crate::support::*;
use kiln_block::*;
use kiln_interp::block as interp;

/// A pool of values over one tile and what can be derived from it.
struct Pool {
    b: Builder,
    r: Random,
    e: Elem,
    shape: [usize; 2],
    /// `e[R,C]`.
    tiles: Vec<Value>,
    /// `e[R]` and `e[C]`.
    rows: Vec<Value>,
    cols: Vec<Value>,
    scalars: Vec<Value>,
}

impl Pool {
    fn below(&mut self, n: usize) -> usize {
        self.r.next_below(n)
    }
    fn pick(&mut self, of: &[Value]) -> Value {
        let i = self.below(of.len());
        of[i]
    }
    fn binary_op(&mut self) -> BinaryOp {
        use BinaryOp::*;
        let all = if self.e.is_float() {
            vec![Add, Sub, Max, Min]
        } else {
            vec![Add, Sub, Mul, Max, Min, And, Xor, Div, Rem]
        };
        let i = self.below(all.len());
        all[i]
    }
    fn reduce_op(&mut self) -> ReduceOp {
        use ReduceOp::*;
        let all = if self.e.is_float() { vec![Max, Min] } else { vec![Sum, Max, Min] };
        let i = self.below(all.len());
        all[i]
    }
    /// A row or column vector as a tile.
    fn spread(&mut self, v: Value, axis: usize) -> Value {
        let v = self.b.expand_dims(v, axis);
        let shape = self.shape;
        self.b.broadcast_to(v, &shape)
    }
    fn step(&mut self, nested: bool) {
        let tiles = self.tiles.clone();
        let (x, y) = (self.pick(&tiles), self.pick(&tiles));
        match self.below(if nested { 11 } else { 12 }) {
            0..=2 => {
                let op = self.binary_op();
                let v = self.b.binary(op, x, y);
                self.tiles.push(v);
            }
            3 => {
                let op = self.reduce_op();
                let v = self.b.reduce(op, x, 1);
                self.rows.push(v);
            }
            4 => {
                let op = self.reduce_op();
                let v = self.b.reduce(op, x, 0);
                self.cols.push(v);
            }
            5 if !self.rows.is_empty() => {
                let rows = self.rows.clone();
                let v = self.pick(&rows);
                let v = self.spread(v, 1);
                let op = self.binary_op();
                let v = self.b.binary(op, x, v);
                self.tiles.push(v);
            }
            6 if !self.cols.is_empty() => {
                let cols = self.cols.clone();
                let v = self.pick(&cols);
                let v = self.spread(v, 0);
                let op = self.binary_op();
                let v = self.b.binary(op, v, x);
                self.tiles.push(v);
            }
            7 => {
                let p = self.b.permute(x, &[1, 0]);
                let shape = self.shape;
                let v = self.b.reshape(p, &shape);
                self.tiles.push(v);
            }
            8 => {
                let c = self.b.cmp(CmpOp::Le, x, y);
                let z = self.pick(&tiles);
                let v = self.b.select(c, z, x);
                self.tiles.push(v);
            }
            9 => {
                let (op, axis) = (if self.e.is_float() { ScanOp::Max } else { ScanOp::Sum }, self.below(2));
                let v = self.b.scan(op, x, axis);
                self.tiles.push(v);
            }
            10 => {
                let op = self.reduce_op();
                let v = self.b.reduce(op, x, 0);
                let v = self.b.reduce(op, v, 0);
                self.scalars.push(v);
                let op = self.binary_op();
                let w = self.b.binary(op, x, v);
                self.tiles.push(w);
            }
            11 => self.looped(x, y),
            _ => {}
        }
    }
    /// A loop that carries two tiles and a scalar, its body random.
    fn looped(&mut self, x: Value, y: Value) {
        let [lo, hi, step] = [1, 6, 2].map(|v| self.b.i32(v));
        let zero = if self.e.is_float() { Const::Float(0.0) } else { Const::Int(0) };
        let s = self.b.constant(Type::scalar(self.e), zero);
        // The body borrows the builder.
        let b = std::mem::replace(&mut self.b, Builder::new("", [1, 1, 1], 4));
        let mut inner = Pool {
            b,
            r: Random::new(self.r.next_u64()),
            e: self.e,
            shape: self.shape,
            tiles: self.tiles.clone(),
            rows: self.rows.clone(),
            cols: self.cols.clone(),
            scalars: vec![],
        };
        let mut outer = std::mem::replace(&mut inner.b, Builder::new("", [1, 1, 1], 4));
        let out = outer.for_loop([lo, hi, step], &[x, y, s], |b, _, c| {
            std::mem::swap(b, &mut inner.b);
            inner.tiles.extend([c[0], c[1]]);
            for _ in 0..5 {
                inner.step(true);
            }
            let op = inner.binary_op();
            let (p, tiles) = (c[1], inner.tiles.clone());
            let q = inner.pick(&tiles);
            let q = inner.b.binary(op, q, c[0]);
            let m = inner.b.reduce(ReduceOp::Max, q, 1);
            let m = inner.b.reduce(ReduceOp::Max, m, 0);
            let s = inner.b.binary(BinaryOp::Max, m, c[2]);
            std::mem::swap(b, &mut inner.b);
            vec![p, q, s]
        });
        self.b = outer;
        self.tiles.extend(&out[..2]);
        self.scalars.push(out[2]);
    }
}

/// The sizes of the array that a program works on.
pub enum Sizes {
    Constant([usize; 2]),
    /// Scalar parameters after the pointers: rows, columns, and the pitch of rows. With what is known of each.
    Launch([Facts; 3]),
}

/// A tile with bounds in a larger array, random ops on it, all leaves stored.
pub fn program(seed: u64, e: Elem, shape: [usize; 2], size: [usize; 2]) -> BlockProgram {
    program_of(seed, e, shape, Sizes::Constant(size))
}

/// The same for sizes of the launch.
pub fn program_of(seed: u64, e: Elem, shape: [usize; 2], sizes: Sizes) -> BlockProgram {
    let grid = match sizes {
        Sizes::Constant(size) => [size[1].div_ceil(shape[1]), size[0].div_ceil(shape[0]), 1].into(),
        Sizes::Launch(_) => Grid::Launch,
    };
    let b = Builder::new("random", grid, 4);
    let mut p = Pool { b, r: Random::new(seed), e, shape, tiles: vec![], rows: vec![], cols: vec![], scalars: vec![] };
    let params = [("x", true), ("y", true), ("u", false), ("v", false)].map(|(n, r)| p.b.param(n, e, r));
    let given = match &sizes {
        Sizes::Launch(facts) => {
            let names = ["rows", "columns", "pitch"];
            names.into_iter().zip(facts).map(|(name, f)| p.b.scalar(name, Elem::I32, *f)).collect()
        }
        Sizes::Constant(_) => vec![],
    };
    let mut coords = vec![];
    for (axis, &block) in shape.iter().enumerate() {
        let pid = p.b.program_id(1 - axis as u8);
        let n = p.b.i32(block as i64);
        let base = p.b.binary(BinaryOp::Mul, pid, n);
        let i = p.b.iota(block);
        let i = p.b.binary(BinaryOp::Add, base, i);
        coords.push(p.b.expand_dims(i, 1 - axis));
    }
    let masks: Vec<Value> = (0..2)
        .map(|a| {
            let n = match sizes {
                Sizes::Constant(size) => p.b.i32(size[a] as i64),
                Sizes::Launch(_) => given[a],
            };
            p.b.cmp(CmpOp::Lt, coords[a], n)
        })
        .collect();
    let mask = p.b.binary(BinaryOp::And, masks[0], masks[1]);
    let width = match sizes {
        Sizes::Constant(size) => p.b.i32(size[1] as i64),
        Sizes::Launch(_) => given[2],
    };
    let row = p.b.binary(BinaryOp::Mul, coords[0], width);
    let at = p.b.binary(BinaryOp::Add, row, coords[1]);
    for &x in &params[..2] {
        let q = p.b.ptr_add(x, at);
        let v = p.b.load(q, Some(mask), None);
        p.tiles.push(v);
    }
    for _ in 0..14 {
        p.step(false);
    }
    let tiles = p.tiles.clone();
    for &y in &params[2..] {
        let mut v = p.pick(&tiles);
        let last = *tiles.last().unwrap();
        v = p.b.binary(BinaryOp::Max, v, last);
        if let Some(&s) = p.scalars.last() {
            v = p.b.binary(BinaryOp::Min, v, s);
        }
        let q = p.b.ptr_add(y, at);
        p.b.store(q, v, Some(mask));
    }
    p.b.finish()
}

#[test]
fn programs() {
    let shapes = [[4, 16], [16, 4], [8, 64], [1, 128], [64, 1], [32, 32], [2, 2]];
    for seed in 1..=140u64 {
        let shape = shapes[seed as usize % shapes.len()];
        let e = [Elem::I32, Elem::F32, Elem::I64, Elem::Bf16, Elem::I32][seed as usize % 5];
        let size = [shape[0] + seed as usize % 3, shape[1] * 2 - seed as usize % 2];
        let k = program(seed * 7919, e, shape, size);
        let n = size[0] * size[1];
        let mut r = Random::new(seed + 5);
        let inputs = [
            encode_all(e, &r.values(e, n)),
            encode_all(e, &r.values(e, n)),
            vec![0; n * e.bytes()],
            vec![0; n * e.bytes()],
        ];
        let mut host = inputs.clone();
        run(&k, &mut host);
        let mut oracle: Vec<interp::Buffer> = inputs.iter().map(|b| interp::Buffer::new(e, &[n], b.clone())).collect();
        if let Err(error) = interp::run(&k, &mut oracle) {
            panic!("seed {seed}: {error}\n{}", text::print(&k));
        }
        for i in 2..4 {
            let (got, want) = (decode_all(e, &host[i]), decode_all(e, &oracle[i].bytes));
            for (j, (g, w)) in got.iter().zip(&want).enumerate() {
                assert!(
                    near(e, *g, *w, 0.0),
                    "seed {seed}, output {i}, element {j}: {g:?}, expected {w:?}\n{}",
                    text::print(&k)
                );
            }
        }
    }
}
